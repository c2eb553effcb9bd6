"""One SQLite file: several processes at once, a writer that dies, a disk that is full."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from remuda import NewJob, Queue, State, StoreUnavailableError
from remuda.stores.sql.store import SqlStore
from tests.faults.journal import by_job, overlaps, runs_of
from tests.faults.stable import Processes
from tests.faults.trail import histories, states
from tests.faults.waiting import until

pytestmark = pytest.mark.faults


async def test_writers_and_workers_share_one_file(sqlite_url: str, processes: Processes) -> None:
    workers = [processes.worker(sqlite_url, max_fetch_interval=0.2) for _ in range(3)]
    publishers = [
        processes.program("publisher", sqlite_url, mark=mark, batches=60, size=10) for mark in ("a", "b", "c")
    ]
    await until(lambda: all(each.exit_code is not None for each in publishers), "all jobs are added")
    assert [each.exit_code for each in publishers] == [0, 0, 0]
    async with Queue("jobs", sqlite_url) as queue:

        async def all_done() -> bool:
            return (await queue.stats()).completed == 3 * 60 * 11

        await until(all_done, "all jobs are done")
        runs = runs_of(workers)
        assert len(by_job(runs)) == len(runs) == 3 * 60 * 11
        assert not overlaps(runs)
        assert len({run.pid for run in runs}) == 3
        await histories(queue)
    for each in workers + publishers:
        assert each.complaints() == []
        assert each.log("store_lost") == []  # "database is locked" would be one


async def test_a_writer_killed_in_its_transaction_leaves_the_file_usable(
    sqlite_url: str, processes: Processes
) -> None:
    async with Queue("jobs", sqlite_url) as queue:
        first = await queue.add("sleep", 0)
        writer = processes.program("transaction", sqlite_url)
        await until(lambda: writer.log("transaction_open"), "a job is added but not committed")
        writer.kill()

        second = await queue.add("sleep", 0)

        assert {record.id for record in await queue.jobs()} == {first, second}
        assert (await histories(queue)).keys() == {first, second}


async def test_a_batch_of_a_publisher_that_is_killed_is_there_whole_or_not_at_all(
    sqlite_url: str, processes: Processes
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it with a failure
    rng = random.Random(seed)
    async with Queue("jobs", sqlite_url) as queue:
        for number in range(8):
            before = (await queue.stats()).total
            publisher = processes.program(
                "publisher", sqlite_url, mark=f"killed-{number}", batches=1_000, size=300
            )

            async def has_added(before: int = before) -> bool:
                return (await queue.stats()).total > before + rng.randrange(900)

            await until(has_added, "the publisher is at work")
            publisher.kill()

        jobs = await queue.jobs(limit=1_000_000)
        sizes = Counter(job.headers["batch"] for job in jobs if "batch" in job.headers)
        assert sizes
        assert set(sizes.values()) == {300}
        trail = await histories(queue)
        assert trail.keys() == {job.id for job in jobs}
        assert all(states(history) == [State.PENDING] for history in trail.values())


async def test_a_full_disk_refuses_and_writes_nothing_by_halves(sqlite_url: str) -> None:
    async with Queue("jobs", sqlite_url) as queue:
        added = set(await queue.add_many([NewJob("small", "x" * 100)] * 50))
        pages = await _limit_pages(queue, 1)
        await _limit_pages(queue, pages + 40)

        async def add_until_it_is_full() -> None:
            for _ in range(100):
                added.update(await queue.add_many([NewJob("large", "x" * 10_000)] * 5))

        with pytest.raises(StoreUnavailableError, match="full"):
            await add_until_it_is_full()

        assert {job.id for job in await queue.jobs(limit=1_000)} == added
        assert (await histories(queue)).keys() == added
        await _limit_pages(queue, 1_000_000)
        added.add(await queue.add("large", "x" * 100_000))
        assert {job.id for job in await queue.jobs(limit=1_000)} == added
        assert (await histories(queue)).keys() == added


async def _limit_pages(queue: Queue, pages: int) -> int:
    """Let the file grow no further than this; what the limit then is (never less than the file has)."""
    assert isinstance(queue.store, SqlStore)
    limit: int = await queue.store.run_sync(
        lambda connection: connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}").scalar_one()
    )
    return limit
