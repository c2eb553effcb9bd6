"""Workers die by SIGKILL at random moments: nothing is lost, and nothing runs twice at the same time."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from remuda import NewJob, Queue, State
from tests.faults.journal import by_job, overlaps, runs_of
from tests.faults.stable import Processes
from tests.faults.trail import histories, states
from tests.faults.waiting import until

pytestmark = pytest.mark.faults

# PostgreSQL and Valkey have the most, for they are where several machines work on one queue.
JOBS = {"sqlite": 5_000, "postgresql": 20_000, "mysql": 5_000, "valkey": 10_000}
LONG_JOBS = 30  # these outlast a lease, and are only done if it is renewed
LONG_S = 3.0
BRIEF_S = 0.05
LEASE_S = 2.0
WORKERS = 4
OPTIONS = {
    "concurrency": 25,
    "fetch_batch_size": 50,
    "max_fetch_interval": 0.2,
    "release_stuck_timeout": LEASE_S,
    "release_stuck_interval": 0.3,
}


async def test_workers_killed_at_random_moments_lose_nothing_and_share_nothing(
    worked_store_url: str, processes: Processes
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it with a failure
    rng = random.Random(seed)
    async with Queue("jobs", worked_store_url) as queue:
        ids = await _add(queue, JOBS[worked_store_url.partition(":")[0]], rng)

        kills = await _kill_while_they_work(queue, processes, worked_store_url, len(ids), rng)
        assert not overlaps(runs_of(processes.started))
        await _all_completed(queue, len(ids))

        runs = runs_of(processes.started)
        assert not overlaps(runs)
        done = by_job(run for run in runs if run.ended)
        assert set(done) == set(ids)
        cut_off = {run.job for run in runs if not run.ended}
        assert kills >= 5
        assert cut_off, "no worker was killed with a job in its hands: this proves nothing"
        trail = await histories(queue)
        assert set(trail) == set(ids)
        assert all(states(history)[-1] is State.COMPLETED for history in trail.values())
        recovered = {
            job for job, history in trail.items() if any(each.reason == "lease_expired" for each in history)
        }
        assert cut_off <= recovered
    assert [line for worker in processes.started for line in worker.complaints()] == []


async def _add(queue: Queue, count: int, rng: random.Random) -> list[str]:
    """Brief ones, and long ones among the first, so that there is time to kill their workers."""
    jobs = [NewJob("sleep", rng.uniform(0, BRIEF_S)) for _ in range(count - LONG_JOBS)]
    for _ in range(LONG_JOBS):
        jobs.insert(rng.randrange(len(jobs) // 2), NewJob("sleep", LONG_S))
    ids: list[str] = []
    for start in range(0, count, 1_000):
        ids += await queue.add_many(jobs[start : start + 1_000])
    return ids


async def _kill_while_they_work(
    queue: Queue, processes: Processes, url: str, count: int, rng: random.Random
) -> int:
    """Kill one worker after another, with a new one for each, until most jobs are done; how many."""
    workers = [processes.worker(url, **OPTIONS) for _ in range(WORKERS)]
    kills = 0
    completed = 0
    deadline = time.monotonic() + 60
    while completed < 0.95 * count:
        assert time.monotonic() < deadline, f"too slow: {await queue.stats()}"
        await asyncio.sleep(rng.uniform(0.05, 0.4))
        before, completed = completed, (await queue.stats()).completed
        if completed == before:
            continue  # on a busy machine, workers that are killed before they have begun prove nothing
        place = rng.randrange(WORKERS)
        await asyncio.to_thread(workers[place].kill)
        workers[place] = processes.worker(url, **OPTIONS)
        kills += 1
    return kills


async def _all_completed(queue: Queue, count: int) -> None:
    async def nothing_is_left() -> bool:
        stats = await queue.stats()
        assert stats.failed == 0
        return (stats.live, stats.completed) == (0, count)

    await until(nothing_is_left, f"all {count} jobs are completed")
