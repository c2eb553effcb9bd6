"""A worker that stands still past its lease has lost its jobs, and what it says afterwards is refused."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing

import pytest

from remuda import NewJob, Queue, State
from tests.faults.journal import overlaps, runs_of
from tests.faults.stable import Processes, Running
from tests.faults.trail import histories, states
from tests.faults.waiting import until

pytestmark = pytest.mark.faults

QUICK = {"max_fetch_interval": 0.1, "release_stuck_timeout": 1.0, "release_stuck_interval": 0.1}
QUIET = {**QUICK, "max_fetch_interval": 60.0, "release_stuck_interval": 60.0}
TWO_HOLDERS = [State.PENDING, State.PROCESSING, State.PENDING, State.PROCESSING, State.COMPLETED]


@pytest.mark.parametrize("late", ["while the new holder works", "after the new holder is done"])
async def test_the_late_outcome_of_a_frozen_worker_is_refused(
    worked_store_url: str, processes: Processes, late: str
) -> None:
    async with Queue("jobs", worked_store_url) as queue:
        job = await queue.add("wait for the gate")
        frozen = processes.worker(worked_store_url, **QUIET)
        await until(lambda: runs_of([frozen]), "the first worker has the job")
        await _freeze(frozen, worked_store_url)
        holder = processes.worker(worked_store_url, **QUICK)
        await until(lambda: runs_of([holder]), "the second worker has the job")

        frozen.open_gate()
        if late == "after the new holder is done":
            await _finish(queue, job, holder)
        frozen.signal(signal.SIGCONT)
        await until(lambda: _losses(frozen), "the first worker has noticed its loss")
        if late == "while the new holder works":
            held = await queue.get(job)
            assert held is not None
            assert (held.state, held.deliveries) == (State.PROCESSING, 2)
            await _finish(queue, job, holder)
        frozen.signal(signal.SIGTERM)
        await until(lambda: frozen.exit_code == 0, "the first worker has ended in order")

        done = await queue.get(job)
        assert done is not None
        assert (done.state, done.deliveries, done.attempts) == (State.COMPLETED, 2, 1)
        assert f"-{holder.pid}-" in str(done.worker)
        history = (await histories(queue))[job]
        assert states(history) == TWO_HOLDERS
        assert history[2].reason == "lease_expired"
        assert (await queue.stats()).total == 1
    (counts,) = [line for line in frozen.log() if line["logger"] == "counts"]
    assert counts["lost"] >= 1
    assert counts["completed"] == 0
    assert frozen.complaints() == holder.complaints() == []


async def test_jobs_behind_one_that_blocks_the_loop_do_not_start_once_their_lease_is_over(
    worked_store_url: str, processes: Processes
) -> None:
    async with Queue("jobs", worked_store_url) as queue:
        (blocker, *behind) = await queue.add_many([NewJob("block the loop"), *[NewJob("sleep", 1.5)] * 3])
        blocked = processes.worker(worked_store_url, concurrency=1, **QUICK)
        await until(lambda: runs_of([blocked]), "the loop of the first worker is blocked")
        healthy = processes.worker(worked_store_url, **QUICK)
        healthy.open_gate()
        await until(
            lambda: len(runs_of([healthy])) == 4, "the second worker has all the jobs of the first one"
        )
        blocked.open_gate()

        async def all_done() -> bool:
            return (await queue.stats()).completed == 4

        await until(all_done, "all jobs are done", within_s=10)
        await until(lambda: blocked.log("loop_blocked"), "the first worker says what went wrong")
        await until(lambda: _losses(blocked), "the first worker has noticed its loss")
        for history in (await histories(queue)).values():
            assert states(history) == TWO_HOLDERS
        # The one that blocks the loop cannot be helped; those behind it can.
        assert {run.job for run in runs_of([blocked])} == {blocker}
        assert {pair[0].job for pair in overlaps(runs_of([blocked, healthy]))}.isdisjoint(behind)


async def _freeze(worker: Running, url: str) -> None:
    """SIGSTOP, but not in the middle of a write to a SQLite file: nobody else could write to it any more."""

    def frozen() -> bool:
        worker.signal(signal.SIGSTOP)
        if not url.startswith("sqlite") or _takes_writes(url):
            return True
        worker.signal(signal.SIGCONT)
        return False

    await until(frozen, "the worker stands still between two writes")


def _takes_writes(url: str) -> bool:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=0)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        return True


def _losses(worker: Running) -> list[dict[str, object]]:
    return worker.log("outcome_lost") + worker.log("lease_lost")


async def _finish(queue: Queue, job: str, worker: Running) -> None:
    worker.open_gate()

    async def completed() -> bool:
        record = await queue.get(job)
        assert record is not None
        return record.state is State.COMPLETED

    await until(completed, "the second worker has completed the job")
