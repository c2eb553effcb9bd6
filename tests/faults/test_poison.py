"""A job that kills every worker that touches it becomes a dead letter, and takes no neighbour with it."""

from __future__ import annotations

import pytest

from remuda import NewJob, Queue, State
from tests.faults.journal import by_job, runs_of
from tests.faults.stable import Processes
from tests.faults.trail import histories
from tests.faults.waiting import until

pytestmark = pytest.mark.faults

INNOCENTS = 60
MAX_DELIVERIES = 3
OPTIONS = {
    "concurrency": 10,
    "fetch_batch_size": INNOCENTS + 1,  # one worker holds them all, and poison among them
    "max_deliveries": MAX_DELIVERIES,
    "max_fetch_interval": 0.05,
    "release_stuck_timeout": 0.6,
    "release_stuck_interval": 0.1,
}


async def test_poison_dies_alone(worked_store_url: str, processes: Processes) -> None:
    async with Queue("jobs", worked_store_url) as queue:
        jobs = [NewJob("sleep", 0.02, job_id=f"innocent-{n}") for n in range(INNOCENTS)]
        jobs.insert(5, NewJob("die", job_id="poison"))
        await queue.add_many(jobs)
        workers = [processes.worker(worked_store_url, **OPTIONS)]

        async def all_ended() -> bool:
            if workers[-1].exit_code is not None:
                workers.append(processes.worker(worked_store_url, **OPTIONS))
            return not (await queue.stats()).live

        await until(all_ended, "every job is done or dead")
        stats = await queue.stats()
        assert (stats.completed, stats.failed) == (INNOCENTS, 1)
        (letter,) = await queue.dead.peek()
        assert (letter.id, letter.reason, letter.attempts) == ("poison", "max_deliveries", 0)
        assert letter.deliveries == MAX_DELIVERIES + 1
        assert len(by_job(runs_of(workers))["poison"]) == MAX_DELIVERIES
        assert len(workers) == MAX_DELIVERIES + 1
        for job, history in (await histories(queue)).items():
            assert history[-1].entered is (State.FAILED if job == "poison" else State.COMPLETED)
