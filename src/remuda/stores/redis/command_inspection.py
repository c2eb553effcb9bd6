"""Looking at a fleet: its lanes, its numbers, its commands by status, lane, device or name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any

from remuda.lifecycle import CommandStatus
from remuda.stores.commands import CommandStats, LaneStats, StoredCommand
from remuda.stores.redis import command_scripts as scripts
from remuda.stores.redis.command_keys import CommandKeys
from remuda.stores.redis.command_wire import stored_commands
from remuda.stores.redis.holding import Argument
from remuda.stores.redis.link import Link, Script
from remuda.stores.redis.wire import from_score, to_score

LOOKED_AT_ONCE = 500

Run = Callable[[Script, Sequence[Argument]], Awaitable[Any]]


class CommandInspector:
    """Reads one fleet, in pages: nothing of this keeps the server from its work."""

    def __init__(self, link: Link, keys: CommandKeys, run: Run) -> None:
        self._link = link
        self._keys = keys
        self._run = run

    # -- lanes and numbers

    async def lanes(self, now: datetime) -> list[LaneStats]:
        keys = self._keys
        flat_waiting, flat_held = await self._link.call_many(
            [("HGETALL", keys.lanes), ("HGETALL", keys.held_lanes)]
        )
        waiting = {lane.decode(): int(count) for lane, count in _pairs(flat_waiting)}
        held = {lane.decode(): value for lane, value in _pairs(flat_held) if _is_held(value, now)}
        names = sorted({*waiting, *held})
        asked = [
            command
            for lane in names
            for command in (
                ("ZCOUNT", keys.slots(lane), f"({to_score(now)}", "+inf"),
                ("ZSCORE", keys.lock_queue, lane),
            )
        ]
        answers = await self._link.call_many(asked)
        return [
            _lane_stats(lane, waiting.get(lane, 0), held.get(lane), answers[2 * at], answers[2 * at + 1], now)
            for at, lane in enumerate(names)
        ]

    async def stats(self) -> CommandStats:
        keys = self._keys
        signals, to_publish, publishing, *counts = await self._link.call_many(
            [
                ("HLEN", keys.signals),
                ("ZCARD", keys.queue_ended),
                ("ZCARD", keys.queue_publishing),
                *(("ZCARD", keys.status(status)) for status in CommandStatus),
            ]
        )
        return CommandStats(
            by_status={status: count for status, count in zip(CommandStatus, counts, strict=True) if count},
            signals=signals,
            unpublished=to_publish + publishing,
        )

    # -- commands

    async def commands(
        self,
        *,
        status: CommandStatus | None,
        lane: str | None,
        device: str | None,
        before: str | None,
        limit: int,
    ) -> list[StoredCommand]:
        if before == "":
            return []  # nothing is below it; the script takes it for no bound
        found: list[StoredCommand] = []
        statuses = [each.value for each in ([status] if status else CommandStatus)]
        is_filtered = lane is not None or device is not None
        below = before or ""
        while len(found) < limit:
            count = LOOKED_AT_ONCE if is_filtered else min(LOOKED_AT_ONCE, limit - len(found))
            lists = await self._run(scripts.LIST, [below, count, *statuses])
            newest: list[bytes] = sorted({each for ids in lists for each in ids}, reverse=True)[:count]
            if not newest:
                break
            # It may have got another status since.
            wanted = [status or "", lane or "", device or ""]
            found += stored_commands(await self._run(scripts.LOAD, [*wanted, *newest]))
            below = newest[-1].decode()
        return found[:limit]

    async def named(self, name: str) -> list[str]:
        known, members = await self._link.call_many(
            [
                ("EXISTS", self._keys.message(name)),
                ("ZRANGEBYLEX", self._keys.names, f"[{name}\0", f"({name}\1"),
            ]
        )
        ids = {member[len(name.encode()) + 1 :].decode() for member in members}
        # A name with a nought in it begins like another one's member.
        return sorted({each for each in ids if "\0" not in each} | ({name} if known else set()))


def _pairs(flat: list[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _is_held(value: bytes, now: datetime) -> bool:
    until, _ = _hold(value)
    return until is None or until > now


def _hold(value: bytes) -> tuple[datetime | None, str]:
    """Until when a lane is held, and why."""
    until, _, why = value.partition(b"|")
    return (from_score(until) if until else None), why.decode()


def _lane_stats(
    lane: str, waiting: int, held: bytes | None, slots_used: int, opens: bytes | None, now: datetime
) -> LaneStats:
    held_until, held_why = (None, None) if held is None else _hold(held)
    opens_at = None if opens is None else from_score(opens)
    return LaneStats(
        lane=lane,
        waiting=waiting,
        slots_used=slots_used,
        opens_at=opens_at if opens_at is not None and opens_at > now else None,
        held_until=held_until,
        held_why=held_why,
    )
