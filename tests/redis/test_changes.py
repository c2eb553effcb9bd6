"""Another moment or expiry for a job that waits: what happened between the look and the write counts."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from remuda import Queue
from remuda.stores.redis import scripts
from remuda.stores.redis.link import Script
from remuda.stores.redis.settling import expiring, rescheduled
from remuda.stores.redis.store import RedisStore
from tests.contract.workbench import HOUR, fetch_one, record_of

CHANGES: list[tuple[Script, Any]] = [(scripts.EXPIRE, expiring), (scripts.RESCHEDULE, rescheduled)]
both_changes = pytest.mark.parametrize(("script", "arguments"), CHANGES, ids=["expire", "reschedule"])


def redis_store(queue: Queue) -> RedisStore:
    assert isinstance(queue.store, RedisStore)
    return queue.store


async def look(queue: Queue, job_id: str) -> Any:
    inspector, _ = await redis_store(queue)._inspector(queue.name)
    return await inspector.find_live(job_id)


async def write(queue: Queue, script: Script, arguments: list[Any]) -> int:
    store = redis_store(queue)
    done: int = await store._run(script, queue.name, store.now(), arguments)
    return done


@both_changes
@pytest.mark.parametrize("delay", [None, HOUR])
async def test_extras_that_have_changed_are_not_overwritten(
    valkey_queue: Queue, script: Script, arguments: Any, delay: timedelta | None
) -> None:
    now = valkey_queue.store.now()
    job_id = await valkey_queue.add("job", delay=delay)
    found = await look(valkey_queue, job_id)
    assert await valkey_queue.expire(job_id, at=now + 3 * HOUR)
    before = await record_of(valkey_queue, job_id)
    assert before.expires_at == now + 3 * HOUR
    assert await write(valkey_queue, script, arguments(found, b"", now + 2 * HOUR)) == -1
    assert await record_of(valkey_queue, job_id) == before


@both_changes
async def test_a_job_that_was_fetched_meanwhile_stays_as_it_is(
    valkey_queue: Queue, script: Script, arguments: Any
) -> None:
    job_id = await valkey_queue.add("job")
    found = await look(valkey_queue, job_id)
    assert (await fetch_one(valkey_queue)).id == job_id
    before = await record_of(valkey_queue, job_id)
    assert await write(valkey_queue, script, arguments(found, b"", valkey_queue.store.now() + HOUR)) == 0
    assert await record_of(valkey_queue, job_id) == before


async def test_whoever_comes_second_keeps_what_the_first_has_changed(
    valkey_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator lets a job expire while another gives it another moment."""
    store = redis_store(valkey_queue)
    now = store.now()
    job_id = await valkey_queue.add("job", delay=HOUR)
    run, asked = store._run, 0

    async def slowly(script: Script, queue: str, moment: datetime, arguments: list[Any]) -> Any:
        nonlocal asked
        if script is scripts.RESCHEDULE:
            asked += 1
            if asked == 1:
                assert await valkey_queue.expire(job_id, at=now + 3 * HOUR)
        return await run(script, queue, moment, arguments)

    monkeypatch.setattr(store, "_run", slowly)
    assert await valkey_queue.reschedule(job_id, at=now + 2 * HOUR)
    assert asked == 2
    record = await record_of(valkey_queue, job_id)
    assert (record.next_attempt_at, record.expires_at) == (now + 2 * HOUR, now + 3 * HOUR)
