"""A server that stands still: for a moment, or for so long that it counts as gone."""

from __future__ import annotations

import asyncio
import threading

import pytest
import redis

from remuda import NewJob, Queue, StoreUnavailableError
from tests.faults.load import carry_on_through, done, is_back
from tests.faults.stable import Processes, Running
from tests.faults.waiting import until
from tests.redis_servers import RedisServer, ValkeyServer

pytestmark = pytest.mark.faults

BLINK_S = 0.3


async def test_a_server_that_stands_still_for_less_than_its_time_out_is_waited_for(
    valkey_server: ValkeyServer, processes: Processes
) -> None:
    async def trouble(_: list[Running]) -> None:
        valkey_server.freeze()
        await asyncio.sleep(BLINK_S)  # how long it takes is what this is about
        valkey_server.thaw()

    added, workers = await carry_on_through(
        trouble, times=3, url=valkey_server.fresh(), processes=processes, jobs_between=50
    )
    assert added.refusals == 0
    assert [line for worker in workers for line in worker.log("store_lost")] == []


async def test_a_server_that_stands_still_for_longer_counts_as_gone_until_it_answers(
    valkey_server: ValkeyServer, processes: Processes
) -> None:
    async def trouble(workers: list[Running]) -> None:
        valkey_server.freeze()
        await _all_notice(workers)
        valkey_server.thaw()
        await until(lambda: is_back(workers), "the workers are back")

    added, _ = await carry_on_through(
        trouble, times=2, url=f"{valkey_server.fresh()}?timeout=0.4", processes=processes, jobs_between=50
    )
    assert added.refusals


async def test_a_caller_of_a_server_that_stands_still_is_told_in_time(valkey_server: ValkeyServer) -> None:
    async with Queue("jobs", f"{valkey_server.fresh()}?timeout=0.2") as queue:
        await queue.add("sleep", 0)
        valkey_server.freeze()
        for _ in range(3):
            with pytest.raises(StoreUnavailableError, match=r"no answer within|no connection within"):
                async with asyncio.timeout(2):
                    await queue.add("sleep", 0)
        valkey_server.thaw()
        # What was sent and not answered may have been done when the server could: here it was.
        await until(lambda: queue.add_unique("sleep", 0, job_id="last"), "it is back", within_s=3)
        assert 2 <= (await queue.stats()).pending <= 5


async def test_a_server_that_is_busy_with_another_programs_script_counts_as_gone_until_it_is_free(
    valkey_server: ValkeyServer, processes: Processes
) -> None:
    async def trouble(workers: list[Running]) -> None:
        with valkey_server.client() as client:
            client.config_set("lua-time-limit", 50)
            occupied = asyncio.create_task(asyncio.to_thread(_run_for_ever, valkey_server))
            await _all_notice(workers)
            client.execute_command("SCRIPT", "KILL")
        await occupied
        await until(lambda: is_back(workers), "the workers are back")

    added, _ = await carry_on_through(
        trouble, times=2, url=valkey_server.fresh(), processes=processes, jobs_between=50
    )
    assert added.refusals


async def test_a_server_that_takes_no_writes_just_now_counts_as_gone_until_it_does(
    valkey_server: ValkeyServer, processes: Processes
) -> None:
    async def trouble(workers: list[Running]) -> None:
        with valkey_server.client() as client:
            client.config_set("min-replicas-to-write", 1)
            await _all_notice(workers)
            client.config_set("min-replicas-to-write", 0)
        await until(lambda: is_back(workers), "the workers are back")

    added, _ = await carry_on_through(
        trouble, times=2, url=valkey_server.fresh(), processes=processes, jobs_between=50
    )
    assert added.refusals


async def test_a_worker_that_starts_while_the_server_reads_its_file_says_so_once(
    processes: Processes,
) -> None:
    with ValkeyServer() as server:
        async with Queue("jobs", server.url()) as queue:
            await queue.add_many([NewJob("sleep", 0)] * 10)
        with server.client() as client, client.pipeline(transaction=False) as much_to_read:
            for number in range(15_000):
                much_to_read.set("filler", number)
            much_to_read.execute()
        server.stop()
        server.settings["key-load-delay"] = "100"  # microseconds
        starting = threading.Thread(target=server.start)
        starting.start()
        await until(lambda: _is_loading(server), "the server reads its file")
        worker = processes.worker(server.url())
        await until(lambda: worker.log("store_lost"), "the worker has found it reading")
        starting.join()
        await until(lambda: done([worker]) == 10, "all jobs are done")
        assert len(worker.log("store_lost")) == 1
        assert worker.complaints() == []


async def _all_notice(workers: list[Running]) -> None:
    """Return when each worker has said once more that the store is gone."""
    before = {worker.pid: len(worker.log("store_lost")) for worker in workers}
    await until(
        lambda: all(len(worker.log("store_lost")) > before[worker.pid] for worker in workers),
        "the workers have noticed",
        within_s=10,
    )


def _run_for_ever(server: RedisServer) -> None:
    with server.client() as client, pytest.raises(redis.ResponseError, match=r"[Ss]cript killed"):
        client.eval("while true do end", 0)


def _is_loading(server: RedisServer) -> bool:
    try:
        with server.client() as client:
            client.ping()
    except redis.BusyLoadingError:
        return True
    except redis.ConnectionError:
        pass
    return False
