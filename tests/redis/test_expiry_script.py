"""Another expiry, on Redis: what has happened to the job between the look and the write counts."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from remuda import Queue
from remuda.stores.redis import scripts
from remuda.stores.redis.settling import expiring
from remuda.stores.redis.store import RedisStore
from tests.contract.workbench import HOUR, fetch_one


async def write(queue: Queue, found: Any, known: bytes, at: datetime) -> int:
    store = queue.store
    assert isinstance(store, RedisStore)
    done: int = await store._run(scripts.EXPIRE, queue.name, store.now(), expiring(found, known, at))
    return done


async def look(queue: Queue, job_id: str) -> Any:
    assert isinstance(queue.store, RedisStore)
    inspector, _ = await queue.store._inspector(queue.name)
    return await inspector.find_live(job_id)


@pytest.mark.parametrize("delay", [None, HOUR])
async def test_extras_that_have_changed_are_not_overwritten(valkey_queue: Queue, delay: Any) -> None:
    at = valkey_queue.store.now() + HOUR
    job_id = await valkey_queue.add("job", delay=delay)
    found = await look(valkey_queue, job_id)
    assert await valkey_queue.expire(job_id, at=2 * HOUR + at)
    assert await write(valkey_queue, found, b"", at) == -1
    record = await valkey_queue.get(job_id)
    assert record is not None
    assert record.expires_at == 2 * HOUR + at


async def test_a_job_that_was_fetched_meanwhile_keeps_its_expiry(valkey_queue: Queue) -> None:
    job_id = await valkey_queue.add("job")
    found = await look(valkey_queue, job_id)
    delivery = await fetch_one(valkey_queue)
    assert delivery.id == job_id
    assert await write(valkey_queue, found, b"", valkey_queue.store.now() + HOUR) == 0
    record = await valkey_queue.get(job_id)
    assert record is not None
    assert record.expires_at is None
