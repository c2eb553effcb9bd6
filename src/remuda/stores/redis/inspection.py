"""Looking: numbers, lists, single jobs. Streams are walked in pages; nothing long runs on the server."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any

from remuda.errors import DecodeError
from remuda.lifecycle import State
from remuda.message import PRIORITIES, JobRecord, Stats
from remuda.stores.redis import wire
from remuda.stores.redis.keys import GROUP, OURS, RETURNED, Keys, stream_index
from remuda.stores.redis.link import Link
from remuda.stores.redis.records import Holder, Lease, LiveJob, completed_record, fields_of
from remuda.stores.redis.wire import from_us

PAGE = 1_000
_AROUND_MS = 60_000  # how far a server's clock and a client's may be apart for the quick way of finding a job
_ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_ALPHABET = {letter: value for value, letter in enumerate("0123456789ABCDEFGHJKMNPQRSTVWXYZ")}

Entry = tuple[bytes, list[bytes]]


class Inspector:
    """Looks into one queue."""

    def __init__(self, link: Link, keys: Keys, queue: str) -> None:
        self._link = link
        self._keys = keys
        self._queue = queue
        self._leases: dict[str, int] | None = None

    # -- walking

    async def entries(
        self, stream: str, *, first: str = "-", last: str = "+", newest_first: bool = False
    ) -> AsyncIterator[Entry]:
        """The entries of a stream, page by page."""
        command = "XREVRANGE" if newest_first else "XRANGE"
        size = 100  # most look at the beginning only
        while True:
            bounds = (last, first) if newest_first else (first, last)
            page = await self._link.call(command, stream, *bounds, "COUNT", size)
            for entry in page:
                yield entry
            if len(page) < size:
                return
            size = PAGE
            edge = f"({page[-1][0].decode()}"
            if newest_first:
                last = edge
            else:
                first = edge

    async def _in_stream(
        self, index: int, stream: str, *, first: str = "-", last: str = "+"
    ) -> AsyncIterator[LiveJob]:
        """The jobs of a stream in order, each with its holder."""
        batch: list[Entry] = []
        async for entry in self.entries(stream, first=first, last=last):
            batch.append(entry)
            if len(batch) == (100 if first == "-" else PAGE):
                for job in await self.with_holders(index, stream, batch):
                    yield job
                first, batch = "later", []
        if batch:
            for job in await self.with_holders(index, stream, batch):
                yield job

    async def with_holders(self, index: int, stream: str, page: Sequence[Entry]) -> list[LiveJob]:
        """The jobs of a page of a stream's entries."""
        holders = await self._holders(stream, page[0][0], page[-1][0], len(page))
        opened = []
        for entry, flat in page:
            fields = fields_of(flat)
            d = fields.get(b"d", b"")
            opened.append((entry.decode(), fields, d, wire.id_of(d) or entry.decode()))
        ids = [job_id for *_, job_id in opened]
        extras, retryable = await self._extras(ids)
        leases = await self._all_leases() if holders else {}
        return [
            LiveJob(
                id=job_id,
                name=fields.get(b"n", b"").decode("utf-8", "replace"),
                d=d,
                extra=extra,
                is_retryable=waits_again,
                index=index,
                entry=entry,
                run_at=fields.get(b"r"),
                holder=holders.get(entry),
                lease=_lease_of(holders.get(entry), leases),
            )
            for (entry, fields, d, job_id), extra, waits_again in zip(opened, extras, retryable, strict=True)
        ]

    async def _holders(self, stream: str, first: bytes, last: bytes, count: int) -> dict[str, Holder]:
        if not await self._has_group(stream):
            return {}
        rows = await self._link.call("XPENDING", stream, GROUP, first, last, count)
        return {row[0].decode(): Holder(row[1].decode(), row[2], row[3]) for row in rows}

    async def _has_group(self, stream: str) -> bool:
        if not await self._link.call("EXISTS", stream):
            return False
        groups = await self._link.call("XINFO", "GROUPS", stream)
        return any(group[1] == GROUP.encode() for group in groups)

    async def is_shared(self) -> bool:
        """Whether programs other than ours work on the queue."""
        for stream in self._keys.streams:
            if await self._has_group(stream):
                for facts in await self._link.call("XINFO", "CONSUMERS", stream, GROUP):
                    name: bytes = facts[1]
                    if name != RETURNED.encode() and not name.startswith(OURS.encode()):
                        return True
        return False

    async def _extras(self, ids: Sequence[str]) -> tuple[list[wire.Extra], list[bool]]:
        packed, retryable = await self._link.call_many(
            [
                ("HMGET", self._keys.extra, *ids),
                ("SMISMEMBER", self._keys.retryable, *ids),
            ]
        )
        return [_extra(each) for each in packed], [bool(each) for each in retryable]

    async def _all_leases(self) -> dict[str, int]:
        """When the lease of each consumer of ours ends. Read once for one look: there are few."""
        if self._leases is None:
            flat = await self._link.call("ZRANGE", self._keys.leases, 0, -1, "WITHSCORES")
            self._leases = {
                consumer.decode(): int(float(score))
                for consumer, score in zip(flat[::2], flat[1::2], strict=True)
            }
        return self._leases

    async def _in_delayed(self) -> AsyncIterator[LiveJob]:
        """The members of the delayed set by their time."""
        start = 0
        while True:
            flat = await self._link.call("ZRANGE", self._keys.delayed, start, start + PAGE - 1, "WITHSCORES")
            members = list(zip(flat[::2], flat[1::2], strict=True))
            for job in await self.delayed_jobs(members):
                yield job
            if len(members) < PAGE:
                return
            start += PAGE

    async def delayed_jobs(self, members: Sequence[tuple[bytes, bytes]]) -> list[LiveJob]:
        if not members:
            return []
        opened = []
        for member, score in members:
            name, d = wire.open_member(member)
            opened.append((member, score, name, d, wire.id_of(d) or ""))
        extras, retryable = await self._extras([job_id for *_, job_id in opened])
        return [
            LiveJob(
                id=job_id,
                name=name,
                d=d,
                extra=extra,
                is_retryable=waits_again,
                run_at=score,
                member=member,
            )
            for (member, score, name, d, job_id), extra, waits_again in zip(
                opened, extras, retryable, strict=True
            )
        ]

    # -- lists

    async def live(self, *, state: State | None, name: str | None, limit: int) -> list[JobRecord]:
        """Live jobs in the order in which they would run."""
        found: list[JobRecord] = []
        sources = [
            self._in_stream(stream_index(priority), stream)
            for priority, stream in zip(PRIORITIES, self._keys.streams, strict=True)
        ]
        if state is not State.PROCESSING:
            sources.append(self._in_delayed())
        # The delayed set is in the order of time only: where some have a priority, all are looked at.
        mixed = await self._link.call("HLEN", self._keys.extra) > 0
        for source in sources:
            taken = 0
            async for job in source:
                if (state is None or job.state is state) and (name is None or job.name == name):
                    found.append(job.record(self._queue))
                    taken += 1
                    if taken == limit and not (mixed and job.member is not None):
                        break
        found.sort(key=lambda record: (-record.priority, record.next_attempt_at or record.created_at))
        return found[:limit]

    async def completed(self, *, name: str | None, limit: int) -> list[JobRecord]:
        """Completed jobs that are kept, newest first."""
        found: list[JobRecord] = []
        async for _, flat in self.entries(self._keys.done, newest_first=True):
            for ended in reversed(wire.open_archive(fields_of(flat)[b"e"])):
                if name is None or ended.name == name:
                    found.append(completed_record(ended, self._queue))
                    if len(found) == limit:
                        return found
        return found

    # -- one job

    async def find_live(self, job_id: str) -> LiveJob | None:
        """A job that has not ended, wherever it lies."""
        found = await self._find_delayed(job_id)
        if found is not None:
            return found
        needle = job_id.encode()
        for first, last in _where_to_look(job_id):
            for priority, stream in zip(PRIORITIES, self._keys.streams, strict=True):
                found = await self._find_in(stream_index(priority), stream, job_id, needle, first, last)
                if found is not None:
                    return found
        return await self._find_delayed(job_id)  # it may have been put back while we looked elsewhere

    async def _find_in(
        self, index: int, stream: str, job_id: str, needle: bytes, first: str, last: str
    ) -> LiveJob | None:
        async for entry in self.entries(stream, first=first, last=last):
            place, flat = entry
            d = fields_of(flat).get(b"d", b"")
            # An unreadable message goes by the name of its entry.
            if (needle in d[: len(needle) + 8] and wire.id_of(d) == job_id) or (
                place == needle and wire.id_of(d) is None
            ):
                return (await self.with_holders(index, stream, [entry]))[0]
        return None

    async def _find_delayed(self, job_id: str) -> LiveJob | None:
        member = await self._link.call("GET", self._keys.delayed_member(job_id))
        if member is None:
            member = await self._scan_delayed(job_id)
        if member is None:
            return None
        score = await self._link.call("ZSCORE", self._keys.delayed, member)
        if score is None:
            return None
        return (await self.delayed_jobs([(member, score)]))[0]

    async def _scan_delayed(self, job_id: str) -> bytes | None:
        """A member that another program wrote down nowhere, or whose note has expired."""
        pattern = b"*" + re.sub(rb"([*?\[\]\\^-])", rb"\\\1", job_id.encode()) + b"*"
        cursor: Any = b"0"
        while True:
            cursor, flat = await self._link.call(
                "ZSCAN", self._keys.delayed, cursor, "MATCH", pattern, "COUNT", PAGE
            )
            for member in flat[::2]:
                if wire.id_of(wire.open_member(member)[1]) == job_id:
                    found: bytes = member
                    return found
            if cursor in (b"0", 0):
                return None

    async def find_completed(self, job_id: str) -> JobRecord | None:
        """The latest life of a completed job that is kept."""
        needle = job_id.encode()
        async for _, flat in self.entries(self._keys.done, newest_first=True):
            packed = fields_of(flat)[b"e"]
            if needle in packed:
                for ended in reversed(wire.open_archive(packed)):
                    if ended.id == job_id:
                        return completed_record(ended, self._queue)
        return None


def _extra(packed: bytes | None) -> wire.Extra:
    try:
        return wire.open_extra(packed)
    except DecodeError:
        return wire.NO_EXTRA


def _lease_of(holder: Holder | None, leases: dict[str, int]) -> Lease | None:
    if holder is None or holder.consumer not in leases:
        return None
    acquired = holder.consumer.rpartition("/")[2].partition("-")[0]
    return Lease(int(acquired), leases[holder.consumer])


def _where_to_look(job_id: str) -> list[tuple[str, str]]:
    """Ranges of a stream, the likely one first: an id that we made says when, as a stream's entries do."""
    everywhere = ("-", "+")
    if _ULID.fullmatch(job_id) is None:
        return [everywhere]
    ms = 0
    for letter in job_id[:10]:
        ms = ms * 32 + _ALPHABET[letter]
    return [(str(max(0, ms - _AROUND_MS)), str(ms + _AROUND_MS)), everywhere]


def stats_from(answer: Sequence[Any], queue: str, now: datetime) -> Stats:
    """The answer of `stats.lua`."""
    in_streams, held, put_back, delayed, ahead, retryable, done, dead, paused = answer[:9]
    waiting = in_streams - held + put_back + delayed
    first = next_due_from(answer, now)
    retrying = min(retryable, waiting)
    return Stats(
        queue=queue,
        pending=waiting - retrying,
        retryable=retrying,
        processing=held - put_back,
        delayed=ahead,
        completed=int(done),
        failed=dead,
        paused=bool(paused),
        oldest_due=now - first if first is not None and first <= now else None,
    )


def next_due_from(answer: Sequence[Any], now: datetime) -> datetime | None:
    """When the first waiting job is due, from the answer of `stats.lua`."""
    first_delayed, firsts = answer[9], answer[10]
    moments = [wire.from_score(first_delayed)] if first_delayed else []
    for _, flat in filter(None, firsts):
        fields = fields_of(flat)
        moments.append(wire.from_score(fields.get(b"r", b"")) or _created(fields.get(b"d", b"")) or now)
    return min((moment for moment in moments if moment is not None), default=None)


def _created(d: bytes) -> datetime | None:
    try:
        return from_us(wire.open_envelope(d).created_ms * 1000)
    except DecodeError:
        return None
