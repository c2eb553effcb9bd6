"""What is still held under a lease, for a program that was started anew and knows only the lease's number.

This looks into the stores themselves; it stands here until the contract of a store has it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Text, cast, select

from remuda.message import PRIORITIES
from remuda.stores.contract import Delivery, Store
from remuda.stores.redis.connected import ConnectedStore
from remuda.stores.redis.delivering import deliveries
from remuda.stores.redis.keys import GROUP, Keys, keys_of, stream_index
from remuda.stores.redis.link import Link
from remuda.stores.redis.records import fields_of
from remuda.stores.redis.wire import from_us, id_of
from remuda.stores.sql.moments import aware
from remuda.stores.sql.rows import CLAIM_COLUMNS, read_claimed
from remuda.stores.sql.schema import StoredState, message
from remuda.stores.sql.steps import Steps
from remuda.stores.sql.store import SqlStore

_OURS = re.compile(r"/(\d+)-([0-9a-f]+)(?:~\d+)?\Z")  # acquired when, under which lease, and a part of it
_MOST = 100_000


async def held(store: Store, queue: str, leases: Sequence[int]) -> list[Delivery]:
    """The deliveries that still hold, as `fetch` gave them."""
    if isinstance(store, SqlStore):
        return await store.look(lambda: _in_sql(queue, leases))
    if isinstance(store, ConnectedStore):
        await store.open()
        return await _in_redis(store.link, keys_of(queue), leases)
    return []


def _in_sql(queue: str, leases: Sequence[int]) -> Steps[list[Delivery]]:
    columns = [
        cast(message.c[name], Text) if name == "headers" else message.c[name] for name in CLAIM_COLUMNS
    ]
    rows = yield (
        select(message.c.lease, message.c.acquired_at, message.c.lease_expires_at, *columns)
        .where(message.c.queue == queue, message.c.state == StoredState.PROCESSING)
        .where(message.c.lease.in_(leases), message.c.lease_expires_at >= message.c.acquired_at)
        .order_by(message.c.priority.desc(), message.c.next_attempt_at, message.c.id)
    )
    found = []
    for lease, acquired_at, until, *claimed in rows:
        row = (*claimed, StoredState.PROCESSING.value, acquired_at)
        delivery = read_claimed(row, lease=lease, now=aware(acquired_at), moment=aware).delivery
        delivery.leased_until = aware(until)
        found.append(delivery)
    return found


async def _in_redis(link: Link, keys: Keys, leases: Sequence[int]) -> list[Delivery]:
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
