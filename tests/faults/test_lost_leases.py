"""A lease that is lost between the end of a handler and the writing of its outcome."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest
import redis

from remuda import Job, NewJob, Queue, Worker
from remuda.stores.redis.keys import PRIORITIES, keys_of
from remuda.stores.sql.store import SqlStore
from tests.faults.waiting import until

pytestmark = pytest.mark.faults

LOST = 50
MORE = 1_000


@pytest.fixture(params=["sqlite", "valkey"])
def leased_store_url(request: pytest.FixtureRequest) -> str:
    """One of the stores that keep a lease in a column, and one of those that keep it in a list of holders."""
    return str(request.getfixturevalue(f"{request.param}_url"))


async def test_a_worker_that_has_lost_leases_still_runs_every_job_it_takes_later(
    leased_store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="remuda.worker")
    async with Queue("jobs", leased_store_url) as queue:
        worker = Worker(
            queue,
            concurrency=LOST,
            flush_interval=timedelta(seconds=1),  # outcomes wait, and their leases are looked after meanwhile
            release_stuck_timeout=timedelta(seconds=0.3),
        )
        done: list[str] = []

        @worker.handler()
        async def note(job: Job) -> None:
            done.append(job.id)

        working = asyncio.create_task(worker.run(signals=False))
        await queue.add_many([NewJob("first")] * LOST)
        await until(lambda: len(done) == LOST, "the handlers have run")
        await _give_to_somebody_else(queue)
        await until(lambda: _refused(caplog) == LOST, "the late outcomes are refused")

        later = await queue.add_many([NewJob("later")] * MORE)

        await until(lambda: set(later) <= set(done), "every job runs", within_s=5)
        assert worker.counts.lost == LOST
        worker.stop()
        await working


async def _give_to_somebody_else(queue: Queue) -> None:
    """As if every lease had ended and another worker had taken the jobs."""
    if isinstance(queue.store, SqlStore):
        await queue.store.run_sync(
            lambda connection: connection.exec_driver_sql(
                "UPDATE message SET lease = 1, lease_expires_at = '2999-01-01 00:00:00.000000'"
            )
        )
        return
    keys, somebody = keys_of(queue.name), "remuda:somebody/1-1"
    stream = keys.streams[PRIORITIES.index(0)]
    with redis.Redis.from_url(queue.store.url.replace("valkey://", "redis://")) as client:
        held = client.xpending_range(stream, "default", "-", "+", 2 * LOST)
        with client.pipeline(transaction=True) as together:
            together.xclaim(
                stream, "default", somebody, 0, [each["message_id"] for each in held], justid=True
            )
            together.delete(keys.leases)
            together.zadd(keys.leases, {somebody: 32_503_680_000_000_000})
            together.execute()


def _refused(caplog: pytest.LogCaptureFixture) -> int:
    return sum(getattr(record, "action", None) == "outcome_lost" for record in caplog.records)
