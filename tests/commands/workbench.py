"""The words of these tests: a new command, the next record of one, claim, due, read the trail."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec

from remuda.clock import VirtualClock
from remuda.lifecycle import CommandStatus
from remuda.stores.commands import (
    Change,
    Claimed,
    CommandStore,
    Home,
    LaneStats,
    Move,
    Pace,
    Placing,
    StoredCommand,
    StoredSignal,
)
from remuda.transition import Transition

T = TypeVar("T")

LANE = "gateway:g1"
OTHER_LANE = "gateway:g2"
WHO = "engine-1"
HOLD = timedelta(seconds=30)
MILLISECOND = timedelta(milliseconds=1)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
START = VirtualClock().now()
ANY_LANE = (Pace(prefix=""),)

STATUSES = {
    Home.LANE: CommandStatus.QUEUED,
    Home.TO_NS: CommandStatus.SENT_TO_NS,
    Home.TO_GATEWAY: CommandStatus.DELIVERED_TO_NS,
    Home.TO_DEVICE: CommandStatus.SENT_TO_DEVICE,
    Home.TASK_V1: CommandStatus.DELIVERED_TO_NS,
    Home.TASK_V2: CommandStatus.DELIVERED_TO_NS,
    Home.RETRY: CommandStatus.TO_RETRY,
    Home.ENDED: CommandStatus.DELIVERY_FAILED,
}

# -- what is written


def placed(home: Home = Home.LANE, **options: Any) -> Placing:
    """A placing, with the rest as the home suggests; all but LANE are due at once unless told otherwise."""
    usual: dict[str, Any] = {
        "lane": LANE,
        "priority": 0,
        "status": STATUSES[home],
        "type": "read_credit",
        "device": "dev-1",
        "due_at": None if home is Home.LANE else START,
    }
    return Placing(home=home, **{**usual, **options})


def next_of(command_id: str, base: int, home: Home = Home.LANE, **options: Any) -> Change:
    """The record after version `base`; its bytes name the command and the version that it becomes."""
    moves = options.pop("moves", ())
    record = options.pop("record", f"{command_id}:{base + 1}".encode())
    return Change(id=command_id, base=base, record=record, placing=placed(home, **options), moves=moves)


def new(command_id: str, home: Home = Home.LANE, **options: Any) -> Change:
    return next_of(command_id, 0, home, **options)


def ended(command_id: str, base: int, *, at: datetime = START, **options: Any) -> Change:
    return next_of(command_id, base, Home.ENDED, due_at=at, **options)


def move(left: CommandStatus | None, entered: CommandStatus, *, at: datetime = START, **options: Any) -> Move:
    return Move(left=left, entered=entered, at=at, **options)


async def put(store: CommandStore, *changes: Change, who: str = WHO) -> None:
    """Write them, every one."""
    assert await store.write(changes, who=who) == [True] * len(changes)


async def tried(store: CommandStore, *changes: Change, whole: bool = False) -> list[bool]:
    return await store.write(changes, who=WHO, whole=whole)


# -- what is read


def stored(command_id: str, version: int) -> StoredCommand:
    """What `next_of` with its usual bytes leaves in the store."""
    return StoredCommand(id=command_id, version=version, record=f"{command_id}:{version}".encode())


def ids_of(found: Iterable[StoredCommand] | Claimed) -> list[str]:
    return [each.id for each in (found.commands if isinstance(found, Claimed) else found)]


async def claim(store: CommandStore, *paces: Pace, limit: int = 100, hold: timedelta = HOLD) -> Claimed:
    """Claim under these paces; with none given, from any lane at any pace."""
    return await store.claim(paces or ANY_LANE, limit=limit, hold=hold)


async def claimed(store: CommandStore, *paces: Pace, limit: int = 100, hold: timedelta = HOLD) -> list[str]:
    """The ids of a claim."""
    return ids_of(await claim(store, *paces, limit=limit, hold=hold))


async def due(store: CommandStore, *homes: Home, limit: int = 100, hold: timedelta = HOLD) -> list[str]:
    """The ids of those due."""
    return ids_of(await store.due(homes, limit=limit, hold=hold))


async def lane_of(store: CommandStore, lane: str = LANE) -> LaneStats | None:
    return next((each for each in await store.lanes() if each.lane == lane), None)


async def side_by_side(calls: Iterable[Awaitable[list[T]]]) -> list[T]:
    """Run them at the same time; what all of them found."""
    return list(itertools.chain.from_iterable(await asyncio.gather(*calls)))


# -- signals


def signal(signal_id: str, *, device: str = "dev-1", at: datetime = START) -> StoredSignal:
    return StoredSignal(id=signal_id, device=device, body=signal_id.encode(), received_at=at)


async def keep(store: CommandStore, *signals: StoredSignal, remember: timedelta = HOUR) -> int:
    return await store.keep_signals(signals, remember=remember)


async def taken(store: CommandStore, *, limit: int = 100, hold: timedelta = HOLD) -> list[tuple[str, int]]:
    """The ids of the signals that are due, each with its `looks`."""
    return [(each.id, each.looks) for each in await store.take_signals(limit=limit, hold=hold)]


async def settle(store: CommandStore, *done: str, later: Sequence[tuple[str, datetime]] = ()) -> None:
    await store.settle_signals(done=done, later=later)


# -- the trail


async def trail(store: CommandStore, *, after: int = 0, limit: int = 1_000) -> list[Transition]:
    """All of it from an offset on, page by page."""
    found: list[Transition] = []
    while (page := await store.transitions(after=after, limit=limit)).transitions:
        found += page.transitions
        after = page.next_offset
    return found


# -- everything at once


async def picture(store: CommandStore, *ids: str) -> object:
    """All that a refused change must leave as it is, in one value to compare."""
    stats = await store.stats()
    return msgspec.to_builtins(
        (
            await store.load(ids),
            await store.commands(),
            {status: count for status, count in stats.by_status.items() if count},
            (stats.signals, stats.unpublished),
            await store.lanes(),
            await store.hearers(["dev-1", "dev-2"]),
            await store.owners(["key-1", "key-2"]),
            await store.find(["ext-1", "ext-2"]),
            await trail(store),
        )
    )
