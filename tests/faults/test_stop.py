"""SIGTERM drains a worker; a second one ends it at once. Neither loses a job."""

from __future__ import annotations

import signal

import pytest

from remuda import NewJob, Queue, State
from tests.faults.journal import runs_of
from tests.faults.stable import Processes
from tests.faults.trail import histories
from tests.faults.waiting import until

pytestmark = pytest.mark.faults


async def test_sigterm_lets_running_jobs_finish_and_gives_the_others_back_uncounted(
    worked_store_url: str, processes: Processes
) -> None:
    async with Queue("jobs", worked_store_url) as queue:
        ids = await queue.add_many([NewJob("wait for the gate")] * 10)
        worker = processes.worker(worked_store_url, concurrency=2)
        await until(lambda: len(runs_of([worker])) == 2, "two jobs run")
        started = {run.job for run in runs_of([worker])}

        worker.signal(signal.SIGTERM)

        async def given_back() -> bool:
            return (await queue.stats()).pending == 8

        await until(given_back, "the unstarted jobs are back")
        assert worker.exit_code is None
        worker.open_gate()
        await until(lambda: worker.exit_code is not None, "the worker has ended")
        assert worker.exit_code == 0
        for job in ids:
            record = await queue.get(job)
            assert record is not None
            if job in started:
                assert (record.state, record.deliveries, record.attempts) == (State.COMPLETED, 1, 1)
            else:
                assert (record.state, record.deliveries, record.attempts) == (State.PENDING, 0, 0)
        await histories(queue)
    assert worker.complaints() == []


async def test_a_second_sigterm_ends_a_worker_at_once_and_its_jobs_are_back(
    worked_store_url: str, processes: Processes
) -> None:
    async with Queue("jobs", worked_store_url) as queue:
        ids = await queue.add_many([NewJob("wait for the gate")] * 10)
        worker = processes.worker(worked_store_url, concurrency=2)
        await until(lambda: len(runs_of([worker])) == 2, "two jobs run")
        started = {run.job for run in runs_of([worker])}

        worker.signal(signal.SIGTERM)

        async def given_back() -> bool:
            return (await queue.stats()).pending == 8

        await until(given_back, "the unstarted jobs are back")
        worker.signal(signal.SIGTERM)
        await until(lambda: worker.exit_code is not None, "the worker has ended", within_s=5)

        assert worker.exit_code == 0
        for job in ids:
            record = await queue.get(job)
            assert record is not None
            assert record.state is State.PENDING
            assert record.deliveries == (1 if job in started else 0)
        await histories(queue)
    assert worker.complaints() == []


async def test_two_sigterms_in_a_row_lose_nothing(worked_store_url: str, processes: Processes) -> None:
    async with Queue("jobs", worked_store_url) as queue:
        ids = await queue.add_many([NewJob("sleep", 0.02)] * 400)
        worker = processes.worker(worked_store_url, concurrency=5, fetch_batch_size=20)
        await until(lambda: len(runs_of([worker])) > 20, "jobs run")
        worker.signal(signal.SIGTERM)
        worker.signal(signal.SIGTERM)
        await until(lambda: worker.exit_code == 0, "the worker has ended", within_s=5)
        stats = await queue.stats()
        assert (stats.processing, stats.total) == (0, len(ids))

        processes.worker(worked_store_url, concurrency=50)

        async def all_done() -> bool:
            return (await queue.stats()).completed == len(ids)

        await until(all_done, "all jobs are done")
        await histories(queue)


async def test_a_job_that_runs_in_a_thread_is_nobody_elses_until_the_thread_is_gone(
    worked_store_url: str, processes: Processes
) -> None:
    """A thread cannot be stopped. A worker whose time is up either takes it along or keeps its job."""
    quick = {"release_stuck_timeout": 1.0, "release_stuck_interval": 0.1, "max_fetch_interval": 0.1}
    async with Queue("jobs", worked_store_url) as queue:
        job = await queue.add("wait in a thread")
        worker = processes.worker(worked_store_url, graceful_timeout=0.5, **quick)
        await until(lambda: runs_of([worker]), "the job runs in a thread")
        worker.signal(signal.SIGTERM)
        next_worker = processes.worker(worked_store_url, **quick)
        next_worker.open_gate()

        async def done() -> bool:
            record = await queue.get(job)
            return record is not None and record.state is State.COMPLETED

        await until(done, "the job is done")
        assert worker.exit_code is not None, "the job was done again while its first run went on"
        await histories(queue)
