"""Programs that add and workers that run, while something goes wrong again and again."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import msgspec

from remuda import NewJob, Queue, State, StoreUnavailableError
from tests.faults.journal import by_job, overlaps, runs_of
from tests.faults.stable import Processes, Running
from tests.faults.trail import audited, states
from tests.faults.waiting import until

# Reader, settler, lease keeper, recoverer, scheduler and canceller each say once that the
# store is gone.
LINES_PER_OUTAGE = 6


class Added(msgspec.Struct):
    """What was added, by the programs' own word, and what may have been: they had no answer."""

    surely: set[str] = msgspec.field(default_factory=set)
    unsure: set[str] = msgspec.field(default_factory=set)
    refusals: int = 0


@asynccontextmanager
async def publishing(queue: Queue) -> AsyncIterator[Added]:
    """Add jobs all the time, four at once."""
    added = Added()
    enough = asyncio.Event()

    async def add_unique(publisher: int) -> None:
        """Repeats what failed: there is exactly one of each in the end."""
        number = 0
        while not enough.is_set():
            job_id = f"unique-{publisher}-{number}"
            try:
                await queue.add_unique("sleep", 0.001, job_id=job_id, unique_for=timedelta(hours=1))
                added.surely.add(job_id)
                number += 1
            except StoreUnavailableError:
                added.refusals += 1
            await asyncio.sleep(0.002)

    async def add_once(publisher: int) -> None:
        """Does not: a job whose adding failed may be there or not."""
        for number in itertools.takewhile(lambda _: not enough.is_set(), itertools.count()):
            job_id = f"once-{publisher}-{number}"
            try:
                await queue.add_many([NewJob("sleep", 0.001, job_id=job_id)])
                added.surely.add(job_id)
            except StoreUnavailableError:
                added.refusals += 1
                added.unsure.add(job_id)
            await asyncio.sleep(0.002)

    tasks = [asyncio.create_task(add(publisher)) for publisher in range(2) for add in (add_unique, add_once)]
    try:
        yield added
    finally:
        enough.set()  # not cancelled: then nobody would know of the last ones whether they were added
        await asyncio.gather(*tasks)


async def carry_on_through(
    trouble: Callable[[list[Running]], Awaitable[None]],
    *,
    times: int,
    url: str,
    processes: Processes,
    lease_s: float = 5.0,
    jobs_between: int = 100,
) -> tuple[Added, list[Running]]:
    """Meet the same trouble several times under load: nothing is lost, nothing runs twice at the same time.

    A lease is longer than the trouble takes: what runs meanwhile stays its worker's.
    """
    options = {
        "concurrency": 20,
        "max_fetch_interval": 0.2,
        "release_stuck_timeout": lease_s,
        "release_stuck_interval": lease_s / 5,
    }
    async with Queue("jobs", url) as queue:
        workers = [processes.worker(url, **options) for _ in range(2)]
        async with publishing(queue) as added:
            for number in range(times + 1):
                floor = len(added.surely) + jobs_between
                await until(lambda floor=floor: len(added.surely) > floor, "jobs are added")
                await until(lambda floor=floor: done(workers) >= floor - jobs_between, "the workers keep up")
                if number < times:
                    await trouble(workers)
        await _everything_is_done(queue, added, workers)
    await until(lambda: is_back(workers), "the workers have the store back")
    for worker in workers:
        assert worker.exit_code is None
        assert worker.complaints() == []
        assert len(worker.log("store_lost")) <= times * LINES_PER_OUTAGE
    return added, workers


async def _everything_is_done(queue: Queue, added: Added, workers: list[Running]) -> None:
    async def nothing_is_left() -> bool:
        stats = await queue.stats()
        return stats.live == 0 and stats.completed >= len(added.surely)

    await until(nothing_is_left, "all jobs are done")
    trail = await audited(queue)
    assert added.surely <= trail.keys() <= added.surely | added.unsure
    assert all(states(history)[-1] is State.COMPLETED for history in trail.values())
    runs = runs_of(workers)
    assert by_job(runs).keys() == trail.keys()
    assert not overlaps(runs)


def done(workers: list[Running]) -> int:
    return sum(run.ended for run in runs_of(workers))


def is_back(workers: list[Running]) -> bool:
    """Whether each has said of every outage that it is over."""
    return all(len(each.log("store_lost")) == len(each.log("store_back")) for each in workers)
