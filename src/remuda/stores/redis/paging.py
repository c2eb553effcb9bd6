"""All records of a queue in pages: the places where they lie are walked one after the other.

Streams by their entries, the delayed set by time; then the ends of the streams once more, for what has
come out of the delayed set meanwhile. A cursor says where in which place to go on.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from remuda.errors import StoreError
from remuda.message import PRIORITIES, JobRecord
from remuda.stores.contract import RecordPage
from remuda.stores.redis import scripts, wire
from remuda.stores.redis.holding import Argument
from remuda.stores.redis.inspection import PAGE, Inspector
from remuda.stores.redis.keys import Keys, stream_index
from remuda.stores.redis.link import Link, Script
from remuda.stores.redis.records import DeadEntry, completed_record, fields_of

Run = Callable[[Script, Sequence[Argument]], Awaitable[Any]]
Spot = list[bytes]  # where something lies in its place; empty: before all of it
Found = AsyncIterator[tuple[JobRecord, Spot]]

_CUT = 1024  # of a delayed job its name and its id are enough to tell it; delayed.lua cuts there too


class _Cursor(msgspec.Struct, array_like=True, frozen=True):
    """Where a walk goes on: behind `spot` of the place with number `place`.

    `seen` is the last entry of each stream that was given.
    """

    ended: bool
    place: int
    spot: Spot
    seen: list[bytes]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Cursor)


class RecordWalk:
    """Walks the records of one queue. `run` runs a script on it."""

    def __init__(self, link: Link, keys: Keys, queue: str, run: Run) -> None:
        self._link = link
        self._keys = keys
        self._queue = queue
        self._inspector = Inspector(link, keys, queue)
        self._run = run

    async def page(self, *, ended: bool, after: str | None, limit: int) -> RecordPage:
        """Up to `limit` records from behind a cursor."""
        begin = _Cursor(ended, 0, [], [b""] * len(PRIORITIES))
        cursor = begin if after is None else _read(after, ended)
        seen = list(cursor.seen)
        places = [self._completed, self._dead] if ended else self._live(seen)
        records: list[JobRecord] = []
        for number in range(cursor.place, len(places)):
            begin_at = cursor.spot if number == cursor.place else []
            async for record, spot in places[number](begin_at, max(1, limit) - len(records)):
                records.append(record)
                if not ended and number < len(seen):
                    seen[number] = spot[0]
                if len(records) >= limit:
                    return RecordPage(records, _write(_Cursor(ended, number, spot, seen)))
        return RecordPage(records, None)

    def _live(self, seen: list[bytes]) -> list[Callable[[Spot, int], Found]]:
        numbers = range(len(PRIORITIES))
        streams = [partial(self._in_stream, number, None) for number in numbers]
        ends = [partial(self._in_stream, number, seen) for number in numbers]
        return [*streams, self._delayed, *ends]

    async def _pages(self, stream: str, after: Spot, limit: int) -> AsyncIterator[list[Any]]:
        """Up to `limit` entries of a stream behind one, page by page."""
        while limit:
            size = min(PAGE, limit)
            first = b"(" + after[0] if after else b"-"
            page = await self._link.call("XRANGE", stream, first, "+", "COUNT", size)
            if page:
                yield page
                after = [page[-1][0]]
            limit -= size
            if len(page) < size:
                return

    async def _in_stream(self, number: int, seen: list[bytes] | None, after: Spot, limit: int) -> Found:
        """The jobs of a stream; with `seen` those behind what the walk has seen of it."""
        stream, index = self._keys.streams[number], stream_index(PRIORITIES[number])
        if not after and seen is not None and seen[number]:
            after = [seen[number]]
        async for page in self._pages(stream, after, limit):
            for job in await self._inspector.with_holders(index, stream, page):
                yield job.record(self._queue), [job.entry.encode()]

    async def _delayed(self, after: Spot, limit: int) -> Found:
        score, member = after or (b"-inf", b"")
        while limit:
            size = min(PAGE, limit)
            flat = await self._run(scripts.DELAYED, [score, member, size])
            members = list(zip(flat[::2], flat[1::2], strict=True))
            jobs = await self._inspector.delayed_jobs(members)
            for (whole, score), job in zip(members, jobs, strict=True):
                member = whole[:_CUT]
                yield job.record(self._queue), [score, member]
            limit -= size
            if len(members) < size:
                return

    async def _completed(self, after: Spot, limit: int) -> Found:
        """The jobs of the archive. An entry holds one or many: a spot says how many of it were given."""
        entry, given = (after[0], int(after[1])) if after else (b"-", 0)
        jobs = entries = 0
        while True:
            # As many entries as are needed, going by those that were read.
            size = min(PAGE, 1 + (limit - jobs) * entries // jobs) if jobs else 1
            page = await self._link.call("XRANGE", self._keys.done, entry, "+", "COUNT", size)
            for place, flat in page:
                opened = wire.open_archive(fields_of(flat)[b"e"])
                already = given if place == entry else 0
                for number, ended in enumerate(opened[already:], already + 1):
                    spot = [place, b"%d" % number] if number < len(opened) else [b"(" + place, b"0"]
                    yield completed_record(ended, self._queue), spot
                jobs += len(opened) - already
            entries += len(page)
            if len(page) < size:
                return
            entry, given = b"(" + page[-1][0], 0

    async def _dead(self, after: Spot, limit: int) -> Found:
        async for page in self._pages(self._keys.dlq, after, limit):
            for entry, flat in page:
                letter = DeadEntry.read(entry, flat).letter(self._queue)
                fields = {name: getattr(letter, name) for name in JobRecord.__struct_fields__}
                yield JobRecord(**fields), [entry]


def _write(cursor: _Cursor) -> str:
    return base64.urlsafe_b64encode(_encoder.encode(cursor)).decode()


def _read(text: str, ended: bool) -> _Cursor:
    try:
        cursor = _decoder.decode(base64.b64decode(text.encode(), altchars=b"-_", validate=True))
    except (binascii.Error, msgspec.DecodeError, UnicodeEncodeError):
        cursor = None
    if cursor is None or cursor.ended is not ended or len(cursor.seen) != len(PRIORITIES):
        kind = "ended" if ended else "live"
        raise StoreError(f"not a cursor of the {kind} records of a queue: {text!r}")
    return cursor
