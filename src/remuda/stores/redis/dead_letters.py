"""Dead letters: entries of the dead-letter stream, counted, looked at, replayed and dropped."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime

from remuda.errors import DecodeError, StoreError
from remuda.message import DeadLetterFilter
from remuda.stores.redis import wire
from remuda.stores.redis.inspection import Inspector
from remuda.stores.redis.keys import Keys, stream_index
from remuda.stores.redis.operations import Argument
from remuda.stores.redis.records import DeadEntry
from remuda.stores.redis.wire import to_us


class DeadLetterStream:
    """The dead letters of one queue, walked in pages."""

    def __init__(self, inspector: Inspector, keys: Keys) -> None:
        self._inspector = inspector
        self._keys = keys

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


def replay_arguments(dead: DeadEntry, now: datetime) -> list[Argument]:
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


def drop_arguments(dead: DeadEntry) -> list[Argument]:
    """What `drop.lua` takes for one of them."""
    return [dead.entry, dead.id, dead.died_us, dead.attempts]


def holds_its_id(dead: DeadEntry, now: datetime) -> bool:
    """Whether its unique id is still held, so that it must not be pruned."""
    hold_ms = dead.extra.unique_for_ms
    return hold_ms is not None and dead.died_us + hold_ms * 1000 > to_us(now)
