"""Another server takes over: a replica that Sentinel promotes; and a primary of a cluster that restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from remuda import NewJob, Queue, State
from remuda.stores.redis.keys import keys_of
from tests.faults.journal import overlaps, runs_of
from tests.faults.load import LINES_PER_OUTAGE, carry_on_through, is_back
from tests.faults.stable import Processes, Running
from tests.faults.trail import audited, states
from tests.faults.waiting import until
from tests.redis_servers import MASTER_NAME, RedisCluster, RedisServer, Sentinel
from tests.servers import Server

pytestmark = pytest.mark.faults

RUNNING = 10


@pytest.fixture
def sentinel() -> Iterator[Sentinel]:
    with Sentinel() as sentinel:
        yield sentinel


async def test_workers_go_on_with_the_replica_when_the_primary_has_crashed(
    sentinel: Sentinel, processes: Processes
) -> None:
    """Replication is asynchronous: what the primary took last may be lost with it, whoever its user is.

    So the crash comes at a moment when the replica has everything, and nothing is written but renewals.
    """
    async with Queue("jobs", sentinel.url()) as queue:
        before = await queue.add_many([NewJob("sleep", 0)] * 100 + [NewJob("wait for the gate")] * RUNNING)
        workers = [processes.worker(sentinel.url(), max_fetch_interval=0.2) for _ in range(2)]
        await until(lambda: _completed(queue, 100), "the workers are at work")
        await until(lambda: len(runs_of(workers)) == 100 + RUNNING, "some jobs run")
        primary = sentinel.primary
        _await_replication(primary)
        await asyncio.to_thread(primary.kill)
        for worker in workers:
            worker.open_gate()
        await until(lambda: all(worker.log("store_lost") for worker in workers), "the workers have noticed")

        after = await until(lambda: queue.add_many([NewJob("sleep", 0)] * 100), "there is a new primary")
        await until(lambda: _completed(queue, 200 + RUNNING), "the old jobs and the new ones are done")
        assert sentinel.primary is not primary
        trail = await audited(queue)
        assert trail.keys() == {*before, *after}
        assert {tuple(states(history)) for history in trail.values()} == {
            (State.PENDING, State.PROCESSING, State.COMPLETED)
        }
        runs = runs_of(workers)
        assert len(runs) == 200 + RUNNING
        assert not overlaps(runs)
    await until(lambda: is_back(workers), "the workers have the store back")
    for worker in workers:
        assert len(worker.log("store_lost")) <= LINES_PER_OUTAGE
        assert worker.complaints() == []


async def test_jobs_are_added_and_done_across_an_orderly_failover(
    sentinel: Sentinel, processes: Processes
) -> None:
    """The old primary takes no more writes, waits until the replica has them all, and only then gives way."""

    async def trouble(workers: list[Running]) -> None:
        before = sentinel.primary
        with sentinel.sentinel.client() as client:
            client.execute_command("SENTINEL", "FAILOVER", MASTER_NAME, "COORDINATED")
        await until(lambda: sentinel.primary is not before, "there is another primary")
        await until(lambda: is_back(workers), "the workers are back")

    await carry_on_through(trouble, times=1, url=sentinel.url(), processes=processes, lease_s=8.0)


def _crash(server: Server) -> None:
    server.kill()
    server.start()


@pytest.mark.parametrize("go_away", [Server.restart, _crash], ids=["restart", "crash"])
async def test_jobs_are_added_and_done_while_a_primary_of_the_cluster_restarts(
    redis_cluster: RedisCluster, processes: Processes, go_away: Callable[[Server], None]
) -> None:
    url = redis_cluster.fresh()
    node = redis_cluster.node_of(keys_of("jobs").meta)

    async def trouble(workers: list[Running]) -> None:
        await asyncio.to_thread(go_away, node)
        await asyncio.to_thread(redis_cluster.start)
        await until(lambda: is_back(workers), "the workers are back")

    added, _ = await carry_on_through(trouble, times=1, url=url, processes=processes, lease_s=8.0)
    assert added.refusals


async def _completed(queue: Queue, count: int) -> bool:
    return (await queue.stats()).completed == count


def _await_replication(primary: RedisServer) -> None:
    with primary.client() as client:
        assert client.wait(1, 10_000) == 1
