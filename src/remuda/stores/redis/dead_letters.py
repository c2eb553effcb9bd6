"""Dead letters: entries of the dead-letter stream, counted, looked at, replayed and dropped."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any

from remuda.errors import DecodeError, StoreError
from remuda.message import DeadLetterFilter, Replayed
from remuda.stores.redis import scripts, wire
from remuda.stores.redis.holding import Argument
from remuda.stores.redis.inspection import Inspector
from remuda.stores.redis.keys import Keys, stream_index
from remuda.stores.redis.link import Link, Script
from remuda.stores.redis.records import DeadEntry
from remuda.stores.redis.wire import to_us

Run = Callable[[Script, datetime, Sequence[Argument]], Awaitable[Any]]

AT_ONCE = 500  # dead letters in one step


class DeadLetterStream:
    """The dead letters of one queue, walked in pages. `run` runs a script on the queue."""

    def __init__(self, link: Link, keys: Keys, queue: str, run: Run) -> None:
        self._link = link
        self._keys = keys
        self._inspector = Inspector(link, keys, queue)
        self._run = run

    async def matching(
        self, which: DeadLetterFilter, *, after: str | None = None, oldest_first: bool = True
    ) -> AsyncIterator[DeadEntry]:
        """Those that a filter lets through, from a cursor on."""
        first, last = "-", "+"
        if after is not None:
            _check_cursor(after)
            if oldest_first:
                first = f"({after}"
            else:
                last = f"({after}"
        ids = None if which.ids is None else frozenset(which.ids)
        async for entry, flat in self._inspector.entries(
            self._keys.dlq, first=first, last=last, newest_first=not oldest_first
        ):
            read = DeadEntry.read(entry, flat)
            if _lets_through(which, ids, read):
                yield read

    async def replay(
        self, which: DeadLetterFilter, *, limit: int, who: str, now: Callable[[], datetime], dry_run: bool
    ) -> Replayed:
        """Oldest first, back to the streams."""
        chosen: list[DeadEntry] = []
        still_live: dict[str, None] = {}
        seen: set[str] = set()
        replayed: list[str] = []
        async for dead in self.matching(which):
            if len(replayed) + len(chosen) >= limit:
                break
            if not dead.has_id:
                continue  # no job, and it would come back under another name: the producer is to be mended
            if await self._lives_again(dead):
                still_live[dead.id] = None
            elif dead.id not in seen:  # the same id may have died more than once: only one can live again
                seen.add(dead.id)
                chosen.append(dead)
                if len(chosen) == AT_ONCE and not dry_run:
                    replayed += await self._move_back(chosen, who, now())
                    chosen = []
        if dry_run:
            return Replayed(ids=[dead.id for dead in chosen], still_live=list(still_live))
        if chosen:
            replayed += await self._move_back(chosen, who, now())
        return Replayed(ids=replayed, still_live=[each for each in still_live if each not in seen])

    async def _lives_again(self, dead: DeadEntry) -> bool:
        """Whether a job with the same unique id was added since."""
        if not dead.extra.unique:
            return False
        return bool(await self._link.call("GET", self._keys.held_id(dead.id)) == b"live")

    async def _move_back(self, chosen: Sequence[DeadEntry], who: str, now: datetime) -> list[str]:
        arguments: list[Argument] = [who, len(chosen)]
        for dead in chosen:
            arguments += _replayed(dead, now)
        moved = await self._run(scripts.REPLAY, now, arguments)
        return [chosen[place - 1].id for place in moved]

    async def drop(
        self,
        which: DeadLetterFilter,
        *,
        limit: int,
        who: str,
        reason: str,
        now: Callable[[], datetime],
        spare: Callable[[DeadEntry], bool] = lambda _: False,
    ) -> list[str]:
        """Oldest first, for good; but for those to be spared."""
        dropped: list[str] = []
        chosen: list[DeadEntry] = []
        async for dead in self.matching(which):
            if len(dropped) + len(chosen) >= limit:
                break
            if not spare(dead):
                chosen.append(dead)
                if len(chosen) == AT_ONCE:
                    dropped += await self._remove(chosen, who, reason, now())
                    chosen = []
        if chosen:
            dropped += await self._remove(chosen, who, reason, now())
        return dropped

    async def _remove(self, chosen: Sequence[DeadEntry], who: str, reason: str, now: datetime) -> list[str]:
        arguments: list[Argument] = [who, reason, len(chosen)]
        for dead in chosen:
            arguments += (dead.entry, dead.id, dead.died_us, dead.attempts)
        there = await self._run(scripts.DROP, now, arguments)
        return [chosen[place - 1].id for place in there]


def _check_cursor(cursor: str) -> None:
    ms, _, number = cursor.partition("-")
    if not (ms.isdecimal() and number.isdecimal()):
        raise StoreError(f"not a cursor of a dead letter: {cursor!r}")


def _lets_through(which: DeadLetterFilter, ids: frozenset[str] | None, dead: DeadEntry) -> bool:
    if which.reason is not None and dead.reason != which.reason.value:
        return False
    if which.name is not None and dead.name != which.name:
        return False
    if which.since is not None and dead.died_us < to_us(which.since):
        return False
    if which.until is not None and dead.died_us > to_us(which.until):
        return False
    return ids is None or dead.id in ids


def _replayed(dead: DeadEntry, now: datetime) -> list[Argument]:
    """What `replay.lua` takes for one of them: envelope and extras with every count at nought."""
    extra = dead.extra
    kept = wire.Extra(
        headers=extra.headers,
        priority=extra.priority,
        packed_retry=extra.packed_retry,
        unique=extra.unique,
        unique_for_ms=extra.unique_for_ms,
        rate_key=extra.rate_key,
        since_us=to_us(now),
    )
    return [
        dead.entry,
        dead.id,
        stream_index(extra.priority),
        _with_a_fresh_budget(dead.d),
        dead.name,
        wire.encode(kept),
        "1" if extra.unique else "0",
        dead.died_us,
    ]


def _with_a_fresh_budget(d: bytes) -> bytes:
    try:
        envelope = wire.open_envelope(d)
    except DecodeError:
        return d  # it will come back as what it is
    return wire.pack_envelope(envelope.id, envelope.payload, envelope.created_ms, 0, envelope.retry)


def holds_its_id(dead: DeadEntry, now: datetime) -> bool:
    """Whether its unique id is still held, so that it must not be pruned."""
    hold_ms = dead.extra.unique_for_ms
    return hold_ms is not None and dead.died_us + hold_ms * 1000 > to_us(now)
