"""A server that is only a replica takes nothing, says so, and is worked with once it is promoted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from remuda import NewJob, Queue, StoreUnavailableError
from tests.contract.workbench import LEASE
from tests.faults.journal import runs_of
from tests.faults.load import LINES_PER_OUTAGE, done, is_back
from tests.faults.stable import Processes
from tests.faults.trail import audited
from tests.faults.waiting import until
from tests.redis_servers import RedisServer, ValkeyServer

pytestmark = pytest.mark.faults


@pytest.fixture(params=[ValkeyServer, RedisServer], ids=["valkey", "redis7"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[RedisServer, RedisServer]]:
    """A primary and its replica."""
    with ExitStack() as stack:
        primary, replica = (stack.enter_context(request.param()) for _ in range(2))
        replica.replica_of(primary)
        yield primary, replica


async def test_a_replica_refuses_in_clear_words_until_it_is_promoted(
    pair: tuple[RedisServer, RedisServer], processes: Processes
) -> None:
    primary, replica = pair
    async with Queue("jobs", primary.url()) as queue:
        ids = await queue.add_many([NewJob("sleep", 0)] * 50)
    _await_replication(primary)

    async with Queue("jobs", replica.url()) as queue:
        with pytest.raises(StoreUnavailableError, match=r"READONLY|read.only"):
            await queue.add("sleep", 0)
        with pytest.raises(StoreUnavailableError):
            await queue.store.fetch("jobs", limit=1, lease=LEASE, who="worker")
        assert (await queue.stats()).pending == 50  # what can be read is read
        worker = processes.worker(replica.url(), max_fetch_interval=0.1)
        await until(
            lambda: len(worker.log("store_lost")) >= 2, "the worker has tried to fetch and to recover"
        )
        assert worker.exit_code is None

        await asyncio.to_thread(replica.replica_of, None)
        ids.append(await queue.add("sleep", 0))
        await until(lambda: done([worker]) == 51, "all jobs are done", within_s=15)

        async def all_written() -> bool:
            return (await queue.stats()).completed == 51

        await until(all_written, "all outcomes are written")
        assert (await audited(queue)).keys() == set(ids)
    await until(lambda: is_back([worker]), "the worker has the store back")
    assert len(worker.log("store_lost")) <= LINES_PER_OUTAGE
    assert worker.complaints() == []


async def test_a_worker_whose_server_is_demoted_goes_on_when_it_is_a_primary_again(
    pair: tuple[RedisServer, RedisServer], processes: Processes
) -> None:
    """Nothing is lost: the other server has no writes of its own, and gives back what it was given."""
    first, second = pair
    async with Queue("jobs", first.url()) as queue:
        ids = await queue.add_many([NewJob("wait for the gate")] * 5)
        worker = processes.worker(first.url(), max_fetch_interval=0.1)
        await until(lambda: len(runs_of([worker])) == 5, "the jobs run")
        _await_replication(first)
        await asyncio.to_thread(second.replica_of, None)
        await asyncio.to_thread(first.replica_of, second)
        worker.open_gate()
        await until(lambda: worker.log("store_lost"), "the worker has noticed")
        with pytest.raises(StoreUnavailableError):
            await queue.add("sleep", 0)

        await asyncio.to_thread(first.replica_of, None)

        async def all_written() -> bool:
            return (await queue.stats()).completed == 5

        await until(all_written, "all outcomes are written", within_s=15)
        assert (await audited(queue)).keys() == set(ids)
        for job in ids:
            record = await queue.get(job)
            assert record is not None
            assert (record.deliveries, record.attempts) == (1, 1)
    assert worker.complaints() == []


def _await_replication(primary: RedisServer) -> None:
    with primary.client() as client:
        assert client.wait(1, 10_000) == 1
