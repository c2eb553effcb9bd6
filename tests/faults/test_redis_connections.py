"""A server that closes connections, or forgets scripts, whenever it likes."""

from __future__ import annotations

import pytest

from remuda import Queue
from tests.faults.journal import runs_of
from tests.faults.load import carry_on_through
from tests.faults.stable import Processes, Running
from tests.faults.waiting import until
from tests.redis_servers import RedisServer, ValkeyServer

pytestmark = pytest.mark.faults


async def test_jobs_are_added_and_done_while_every_connection_is_killed_again_and_again(
    valkey_server: ValkeyServer, processes: Processes
) -> None:
    killed: list[int] = []

    async def trouble(_: list[Running]) -> None:
        with valkey_server.client() as client:
            killed.append(client.execute_command("CLIENT", "KILL", "TYPE", "normal"))

    await carry_on_through(
        trouble, times=10, url=valkey_server.fresh(), processes=processes, lease_s=3.0, jobs_between=30
    )
    assert min(killed) >= 1
    assert max(killed) >= 3  # each worker's and the queue's own


async def test_jobs_are_added_and_done_while_scripts_are_flushed_again_and_again_and_nobody_notices(
    valkey_server: ValkeyServer, processes: Processes
) -> None:
    async def trouble(_: list[Running]) -> None:
        with valkey_server.client() as client:
            client.script_flush()

    added, workers = await carry_on_through(
        trouble, times=20, url=valkey_server.fresh(), processes=processes, jobs_between=20
    )
    assert added.refusals == 0
    assert [line for worker in workers for line in worker.log("store_lost")] == []
    with valkey_server.client() as client:
        # One for each script after each flush, and not one for each call.
        sent_whole = client.info("commandstats")["cmdstat_eval"]["calls"]
    assert sent_whole < 21 * 16 * 3


async def test_an_idle_worker_whose_waiting_is_killed_waits_again(
    valkey_server: ValkeyServer, processes: Processes
) -> None:
    async with Queue("jobs", valkey_server.fresh()) as queue:
        await queue.add("sleep", 0)
        worker = processes.worker(valkey_server.url(), max_fetch_interval=3600.0)
        await until(lambda: len(runs_of([worker])) == 1, "the worker is at work")
        killed: set[int] = set()
        for count in range(2, 6):
            killed |= await until(
                lambda killed=killed: _kill_waiting(valkey_server, killed), "there is somebody to cut off"
            )
            await queue.add("sleep", 0)
            await until(lambda count=count: len(runs_of([worker])) == count, "the job is found", within_s=3)
        assert len(killed) == 4
        assert worker.log("store_lost") == worker.complaints() == []


def _kill_waiting(server: RedisServer, before: set[int]) -> set[int]:
    """The clients that wait for something on the server, and do so no more."""
    with server.client() as client:
        waiting = {int(each["id"]) for each in client.client_list() if "b" in each["flags"]} - before
        return {each for each in waiting if client.client_kill_filter(_id=str(each))}
