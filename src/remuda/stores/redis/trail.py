"""Reading the trail: a stream whose ids are the sequence numbers, `<number of the last>-<how many>`."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from remuda.stores.command_trail import fleet_of, trail_name
from remuda.stores.contract import TrailEntry, TrailPage, TrailSpan
from remuda.stores.redis.command_keys import command_keys, fleet_of_key
from remuda.stores.redis.keys import keys_of, queue_of
from remuda.stores.redis.link import Link
from remuda.stores.redis.records import fields_of
from remuda.transition import MAX_PER_ENTRY, Transition, to_ms, unpack

_CLOCKS_DIFFER = timedelta(milliseconds=500)  # between the programs that write

_ENTRIES_AT_ONCE = 10_000  # in one answer of the server, so that others get their turn


class TrailKeys(NamedTuple):
    """Where a trail is: the hash with its last number (`seq`), and the stream."""

    meta: str
    log: str


def trail_keys(trail: str) -> TrailKeys:
    """The keys of a trail by its name, whether it is a queue's or a fleet's."""
    fleet = fleet_of(trail)
    keys = keys_of(trail) if fleet is None else command_keys(fleet)
    return TrailKeys(keys.meta, keys.log)


async def names(link: Link) -> list[str]:
    """Every trail, found by the key of its stream."""
    found: set[str] = set()
    async for key in link.scan("{*}:*log"):
        fleet = fleet_of_key(key)
        trail = queue_of(key) if fleet is None else trail_name(fleet)
        if trail is not None and trail_keys(trail).log.encode() == key:
            found.add(trail)
    return sorted(found)


async def span(link: Link, keys: TrailKeys) -> TrailSpan:
    """The first and the last number. The last is asked for first: what comes in between is beyond it."""
    newest, oldest = await link.call_many(
        [("HGET", keys.meta, "seq"), ("XRANGE", keys.log, "-", "+", "COUNT", 1)]
    )
    last = int(newest or 0)
    if not oldest:
        return TrailSpan(last + 1, last)
    first, _ = _numbers(oldest[0][0])
    return TrailSpan(first, max(last, first - 1))


async def entries(link: Link, log: str, *, after: int, up_to: int, limit: int) -> list[TrailEntry]:
    """Packed entries as they are. Ids are numbers without a gap, so a stretch of them holds about `limit`."""
    found: list[TrailEntry] = []
    reach = min(after + max(1, limit), up_to + MAX_PER_ENTRY)
    while after < reach:
        page = await _stretch(link, log, after, reach, _ENTRIES_AT_ONCE)
        found += page
        if len(page) < _ENTRIES_AT_ONCE:
            break
        after = page[-1].first_seq + page[-1].count - 1
    if not found:  # the first is longer than `limit`, or what stood here was trimmed
        found = await _stretch(link, log, after, "+", 1)
    return [each for each in found if each.first_seq <= up_to]


async def _stretch(link: Link, log: str, after: int, to: int | str, count: int) -> list[TrailEntry]:
    """Entries that end after a number, and at or before another."""
    page = await link.call("XRANGE", log, f"{after + 1}-0", to, "COUNT", count)
    read = []
    for entry, flat in page:
        first, last = _numbers(entry)
        read.append(
            TrailEntry(first, last - first + 1, flat[1] if flat[0] == b"e" else fields_of(flat)[b"e"])
        )
    return read


def _numbers(entry: bytes) -> tuple[int, int]:
    """The first and the last number of an entry."""
    last, _, count = entry.partition(b"-")
    return int(last) - int(count) + 1, int(last)


async def read(link: Link, log: str, queue: str, *, after: int, limit: int) -> TrailPage:
    """Whole entries until `limit` is reached, cut at the front to what comes after `after`."""
    found: list[Transition] = []
    while len(found) < limit:
        page = await link.call("XRANGE", log, f"{after + 1}-0", "+", "COUNT", max(1, min(100, limit)))
        for entry, flat in page:
            if len(found) >= limit:
                break
            first, last = _numbers(entry)
            opened = unpack(fields_of(flat)[b"e"], queue=queue, first_seq=first)
            found += opened[max(0, after + 1 - first) :]
            after = last
        if not page:
            break
    return TrailPage(found, after)


async def offset(link: Link, log: str, *, since: datetime) -> int:
    """The number before the first entry written at or after a moment, found by halving."""
    since_ms = to_ms(since - _CLOCKS_DIFFER)
    first = await link.call("XRANGE", log, "-", "+", "COUNT", 1)
    last = await link.call("XREVRANGE", log, "+", "-", "COUNT", 1)
    if not first:
        return 0
    low, high = _numbers(first[0][0])[0] - 1, _numbers(last[0][0])[1]
    if _written_ms(last[0]) < since_ms:
        return high
    while low < high:
        middle = (low + high) // 2
        (entry,) = await link.call("XRANGE", log, f"{middle + 1}-0", "+", "COUNT", 1)
        begins, ends = _numbers(entry[0])
        if _written_ms(entry) >= since_ms:
            high = min(middle, begins - 1)
        else:
            low = ends
    return max(low, 0)


def _written_ms(entry: Any) -> int:
    return int(fields_of(entry[1])[b"t"])
