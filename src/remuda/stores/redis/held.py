"""What is held under leases whose numbers are all that a program, started anew, knows of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from remuda.message import PRIORITIES
from remuda.stores.contract import Delivery
from remuda.stores.redis.delivering import deliveries
from remuda.stores.redis.keys import GROUP, Keys, stream_index
from remuda.stores.redis.link import Link
from remuda.stores.redis.records import fields_of
from remuda.stores.redis.wire import from_us, id_of

_OURS = re.compile(r"/(\d+)-([0-9a-f]+)(?:~\d+)?\Z")  # acquired when, under which lease, and a part of it
_MOST = 100_000


async def held(link: Link, keys: Keys, leases: Sequence[int]) -> list[Delivery]:
    """The deliveries of these leases, as `fetch` gave them out."""
    wanted = set(leases)
    flat = await link.call("ZRANGE", keys.leases, 0, -1, "WITHSCORES")
    found: list[Delivery] = []
    for consumer, until_us in zip(flat[::2], flat[1::2], strict=True):
        ours = _OURS.search(consumer.decode())
        if ours is None or int(ours[2], 16) not in wanted:
            continue
        found += deliveries(
            await _entries(link, keys, consumer),
            consumer=consumer.decode(),
            lease=int(ours[2], 16),
            now=from_us(int(ours[1])),
            leased_until=from_us(int(float(until_us))),
        )
    return found


async def _entries(link: Link, keys: Keys, consumer: bytes) -> list[Any]:
    """What a consumer holds, stream by stream, as `fetch.lua` answers."""
    answer: list[Any] = []
    for priority, stream in zip(PRIORITIES, keys.streams, strict=True):
        if not await _has_group(link, stream):
            continue
        pending = await link.call("XPENDING", stream, GROUP, "-", "+", _MOST, consumer)
        if not pending:
            continue
        read = await link.call_many([("XRANGE", stream, entry, entry) for entry, *_ in pending])
        there = [(each, page[0][1]) for each, page in zip(pending, read, strict=True) if page]
        fields = [fields_of(flat) for _, flat in there]
        ids = [id_of(each.get(b"d", b"")) or "" for each in fields]
        extras = await link.call("HMGET", keys.extra, *ids) if ids else []
        flat: list[Any] = []
        beside: list[Any] = []
        for place, ((entry, _, _, count), _) in enumerate(there):
            flat += (entry, fields[place].get(b"d"), fields[place].get(b"n", b""))
            beside += (place, extras[place] or b"", fields[place].get(b"r", b""), count)
        answer += (stream_index(priority), flat, beside)
    return answer


async def _has_group(link: Link, stream: str) -> bool:
    if not await link.call("EXISTS", stream):
        return False
    return any(group[1] == GROUP.encode() for group in await link.call("XINFO", "GROUPS", stream))
