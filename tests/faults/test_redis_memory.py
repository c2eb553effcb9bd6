"""A server that is out of memory and evicts nothing: adding is refused, draining goes on and makes room."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
import redis

from remuda import Constant, Job, NewJob, Queue, State, StoreUnavailableError, UnrecoverableError, Worker
from remuda.rate import RateLimit
from tests.contract.workbench import (
    ALL,
    acked,
    checked_trail,
    dead,
    fetch,
    recover,
    release,
    settle,
    within,
)
from tests.faults.trail import audited, states
from tests.redis_servers import RedisServer

pytestmark = pytest.mark.faults

JOBS = 300


@pytest.fixture(params=["valkey", "redis7"])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    found = request.getfixturevalue(f"{request.param}_server")
    assert isinstance(found, RedisServer)
    found.fresh()
    yield found
    with found.client() as client:
        client.config_set("maxmemory", 0)


@pytest.fixture
async def queue(server: RedisServer) -> AsyncIterator[Queue]:
    async with Queue("jobs", server.url()) as queue:
        yield queue


@contextmanager
def full(server: RedisServer) -> Iterator[None]:
    """While this lasts the server has more in its memory than it may."""
    with server.client() as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 100_000)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            client.set("anything", "else")
        yield
        client.config_set("maxmemory", 0)


async def test_adding_is_refused_and_nothing_is_written(server: RedisServer, queue: Queue) -> None:
    ids = await queue.add_many([NewJob("job", number) for number in range(10)])
    with full(server):
        for attempt in (
            queue.add("job"),
            queue.add("job", delay=timedelta(seconds=1)),
            queue.add("job", priority=2, headers={"a": "b"}),
            queue.add_unique("job", job_id="unique", unique_for=timedelta(hours=1)),
            queue.add_many([NewJob("job", number) for number in range(1_000)]),
        ):
            with pytest.raises(StoreUnavailableError, match="OOM"):
                await attempt
        assert (await queue.stats()).total == 10
        assert (await audited(queue)).keys() == set(ids)

    added = await queue.add_unique("job", job_id="unique", unique_for=timedelta(hours=1))
    assert added.new
    assert (await audited(queue)).keys() == {*ids, "unique"}


async def test_what_is_there_is_done_retried_and_buried_meanwhile(server: RedisServer, queue: Queue) -> None:
    ids = await queue.add_many([NewJob("job", number) for number in range(JOBS)])
    worker = _worker(queue)
    with full(server):
        await within(worker.run(until_empty=True, signals=False), 10)
        stats = await queue.stats()
        assert (stats.completed, stats.failed, stats.live) == (JOBS - JOBS // 10, JOBS // 10, 0)
    trail = await audited(queue)
    assert trail.keys() == set(ids)
    assert {len(states(history)) for history in trail.values()} == {3, 5}
    await queue.add("job", 1)
    assert (await queue.stats()).pending == 1


async def test_a_queue_with_rate_limits_is_drained_meanwhile(server: RedisServer, queue: Queue) -> None:
    often = RateLimit(1_000, timedelta(milliseconds=100))
    await queue.limit_rate(queue=often, key=often)
    await queue.add_many([NewJob("job", 1, rate_key=f"key-{number % 7}") for number in range(50)])
    with full(server):
        worker = _worker(queue)
        await within(worker.run(until_empty=True, signals=False), 10)
        assert (await queue.stats()).completed == 50
    await audited(queue)


async def test_jobs_are_given_back_recovered_cancelled_and_replayed_meanwhile(
    server: RedisServer, queue: Queue
) -> None:
    ids = await queue.add_many([NewJob("job", number) for number in range(20)])
    taken = await fetch(queue, 10)
    with full(server):
        await release(queue, *taken[:5])
        assert await queue.store.extend(queue.name, taken[5:], lease=timedelta(0)) == []
        assert len(await recover(queue)) == 5
        assert await queue.cancel(ids[-1])
        await queue.pause()
        assert await fetch(queue) == []
        await queue.resume()
        again = await fetch(queue, 15)
        assert len(again) == 15
        assert await settle(queue, *map(dead, again[:5])) == []
        replayed = await queue.store.replay_dead(queue.name, ALL, limit=2, who="operator")
        assert len(replayed.ids) == 2
        assert await queue.purge() == 4 + 2
    assert await settle(queue, *map(acked, again[5:])) == []
    await checked_trail(queue)
    trail = await audited(queue)
    assert trail.keys() == set(ids)
    assert not [history for history in trail.values() if history[-1].entered is State.PROCESSING]


def _worker(queue: Queue) -> Worker:
    """Every tenth job is no good, and every other one that is left fails at first."""
    worker = Worker(queue, concurrency=20, retry=Constant(every=timedelta(0), max_attempts=3))

    @worker.handler("job")
    async def run(job: Job) -> None:
        if job.payload % 10 == 0:
            raise UnrecoverableError("no good")
        if job.payload % 2 == 0 and job.attempt == 1:
            raise RuntimeError("not yet")

    return worker
