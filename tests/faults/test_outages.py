"""A server goes away under load and comes back: workers go on as if nothing had been."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable

import pytest
from sqlalchemy import Connection

from remuda import NewJob, Queue, StoreUnavailableError
from remuda.stores.sql.store import SqlStore
from tests.faults.journal import runs_of
from tests.faults.load import carry_on_through, done, is_back
from tests.faults.stable import Processes, Running
from tests.faults.trail import histories
from tests.faults.waiting import until
from tests.servers import Server

pytestmark = pytest.mark.faults


# Longer than a server takes to come back: what ran meanwhile is still its worker's.
LEASE_S = {"postgres": 20.0, "mariadb": 20.0, "valkey": 5.0}


@pytest.fixture(params=["postgres", "mariadb", "valkey"])
def server(request: pytest.FixtureRequest) -> Server:
    return _server(request)


@pytest.fixture(params=["postgres", "mariadb"])
def database_server(request: pytest.FixtureRequest) -> Server:
    return _server(request)


def _server(request: pytest.FixtureRequest) -> Server:
    found = request.getfixturevalue(f"{request.param}_server")
    assert isinstance(found, Server)
    return found


def _crash(server: Server) -> None:
    server.kill()
    server.start()


@pytest.mark.parametrize("go_away", [Server.restart, _crash], ids=["restart", "crash"])
async def test_jobs_are_added_and_done_across_outages(
    server: Server, processes: Processes, go_away: Callable[[Server], None]
) -> None:
    outages = 2

    async def trouble(workers: list[Running]) -> None:
        await asyncio.to_thread(go_away, server)
        await until(lambda: is_back(workers), "the workers are back")

    with server.database() as url:
        added, workers = await carry_on_through(
            trouble,
            times=outages,
            url=url,
            processes=processes,
            lease_s=LEASE_S[server.kind],
            jobs_between=300,
        )
    # A restart is over in a moment: a worker that asked nothing meanwhile has not seen it. Somebody has.
    assert added.refusals or any(worker.log("store_lost") for worker in workers)


async def test_outcomes_that_are_ready_during_an_outage_are_written_after_it(
    server: Server, processes: Processes
) -> None:
    with server.database() as url:
        async with Queue("jobs", url) as queue:
            ids = await queue.add_many([NewJob("wait for the gate")] * 10)
            worker = processes.worker(url, max_fetch_interval=0.1)
            await until(lambda: len(runs_of([worker])) == 10, "ten jobs run")

            server.kill()
            worker.open_gate()
            await until(lambda: done([worker]) == 10, "ten jobs have ended while the server is down")
            await until(lambda: worker.log("store_lost"), "the worker has noticed")
            await asyncio.to_thread(server.start)

            async def all_done() -> bool:
                return (await queue.stats()).completed == 10

            await until(all_done, "the outcomes are written")
            for job in ids:
                record = await queue.get(job)
                assert record is not None
                assert (record.deliveries, record.attempts) == (1, 1)
            await histories(queue)
        assert len(runs_of([worker])) == 10
        assert worker.complaints() == []


async def test_a_worker_that_starts_while_the_server_is_down_begins_when_it_is_up(
    server: Server, processes: Processes
) -> None:
    with server.database() as url:
        async with Queue("jobs", url) as queue:
            await queue.add("sleep", 0)
        server.stop()
        worker = processes.worker(url)
        await until(lambda: worker.log("store_lost"), "the worker has found the server down")
        assert worker.exit_code is None
        await asyncio.to_thread(server.start)
        await until(lambda: done([worker]) == 1, "the job is done")
        assert len(worker.log("store_lost")) == 1
        assert worker.complaints() == []


async def test_a_worker_that_is_stopped_while_the_server_is_down_ends_in_time_and_loses_nothing(
    server: Server, processes: Processes
) -> None:
    with server.database() as url:
        async with Queue("jobs", url) as queue:
            await queue.add_many([NewJob("sleep", 0.1)] * 20)
            lease = {"release_stuck_timeout": 2.0, "release_stuck_interval": 0.2}
            worker = processes.worker(url, concurrency=2, graceful_timeout=1.0, **lease)
            await until(lambda: len(runs_of([worker])) >= 2, "jobs run")
            server.kill()
            await until(lambda: worker.log("store_lost"), "the worker has noticed")
            worker.signal(signal.SIGTERM)
            await until(lambda: worker.exit_code == 0, "the worker has ended", within_s=20)

            await asyncio.to_thread(server.start)
            processes.worker(url, concurrency=20, **lease)

            async def all_done() -> bool:
                return (await queue.stats()).completed == 20

            await until(all_done, "another worker has done the jobs")
            await histories(queue)


async def test_a_server_that_dies_during_work_on_the_schema_is_an_outage_like_any_other(
    database_server: Server,
) -> None:
    """Opening a store is work on its schema: a worker that starts just then must know it for an outage."""
    sleep = {"postgres": "SELECT pg_sleep(60)", "mariadb": "SELECT SLEEP(60)"}[database_server.kind]
    with database_server.database() as url:
        async with Queue("jobs", url) as queue:
            store = queue.store
            assert isinstance(store, SqlStore)
            begun = threading.Event()

            def work(connection: Connection) -> None:
                begun.set()
                connection.exec_driver_sql(sleep)

            working = asyncio.create_task(store.run_on_schema(work))
            await until(begun.is_set, "work on the schema has begun")
            await asyncio.to_thread(database_server.kill)
            with pytest.raises(StoreUnavailableError):
                await working
