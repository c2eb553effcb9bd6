"""Reading the trail: a stream whose ids are the sequence numbers, `<number of the last>-<how many>`."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from remuda.stores.contract import TrailPage
from remuda.stores.redis.keys import Keys
from remuda.stores.redis.link import Link
from remuda.stores.redis.records import fields_of
from remuda.transition import Transition, to_ms, unpack

_CLOCKS_DIFFER = timedelta(milliseconds=500)  # between the programs that write


def _numbers(entry: bytes) -> tuple[int, int]:
    """The first and the last number of an entry."""
    last, _, count = entry.partition(b"-")
    return int(last) - int(count) + 1, int(last)


async def read(link: Link, keys: Keys, queue: str, *, after: int, limit: int) -> TrailPage:
    """Whole entries until `limit` is reached, cut at the front to what comes after `after`."""
    found: list[Transition] = []
    while len(found) < limit:
        page = await link.call("XRANGE", keys.log, f"{after + 1}-0", "+", "COUNT", max(1, min(100, limit)))
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


async def offset(link: Link, keys: Keys, *, since: datetime) -> int:
    """The number before the first entry written at or after a moment, found by halving."""
    since_ms = to_ms(since - _CLOCKS_DIFFER)
    first = await link.call("XRANGE", keys.log, "-", "+", "COUNT", 1)
    last = await link.call("XREVRANGE", keys.log, "+", "-", "COUNT", 1)
    if not first:
        return 0
    low, high = _numbers(first[0][0])[0] - 1, _numbers(last[0][0])[1]
    if _written_ms(last[0]) < since_ms:
        return high
    while low < high:
        middle = (low + high) // 2
        (entry,) = await link.call("XRANGE", keys.log, f"{middle + 1}-0", "+", "COUNT", 1)
        begins, ends = _numbers(entry[0])
        if _written_ms(entry) >= since_ms:
            high = min(middle, begins - 1)
        else:
            low = ends
    return max(low, 0)


def _written_ms(entry: Any) -> int:
    return int(fields_of(entry[1])[b"t"])
