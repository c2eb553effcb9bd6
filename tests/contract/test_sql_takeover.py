"""A foreign program that knows nothing of leases has taken a message over from a dead worker."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from remuda import Queue
from remuda.clock import VirtualClock
from remuda.stores.sql.moments import naive
from remuda.stores.sql.schema import message
from remuda.stores.sql.store import SqlStore
from tests.contract.workbench import LEASE, MINUTE, acked, fetch_one, recover, settle


@pytest.fixture
def store_url(sql_store_url: str) -> str:
    """The queue is in a database."""
    return sql_store_url


async def test_a_lease_that_ended_before_the_message_was_acquired_is_nobodys(
    queue: Queue, clock: VirtualClock
) -> None:
    await queue.add("job")
    old = await fetch_one(queue)
    clock.advance(LEASE + MINUTE)
    store = queue.store
    assert isinstance(store, SqlStore)
    taken_over = update(message).values(acquired_at=naive(clock.now()))
    await store.run_sync(lambda connection: connection.execute(taken_over) and None)

    late = acked(old)
    assert await settle(queue, late) == [late]
    assert await store.extend(queue.name, [old], lease=LEASE) == [old]
    assert await recover(queue) == []
    clock.advance(LEASE)
    assert await recover(queue) == [old.id]
