"""Several worker programs on one store: each job handled once, and a killed one's jobs taken over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from remuda import NewJob, Queue, State
from tests.contract.workbench import checked_trail, eventually, make_worker, record_of, running

ROOT = Path(__file__).parents[2]

# Notes each job in a file of its own; handles until it is told to stop.
PROGRAM = """
import asyncio, os, sys
from datetime import timedelta
from remuda import Job, Queue, Worker

url, notes, hang = sys.argv[1], sys.argv[2], sys.argv[3:] == ["hang"]

async def main() -> None:
    async with Queue("orders", url) as queue:
        worker = Worker(
            queue,
            fetch_batch_size=20,
            max_fetch_interval=timedelta(milliseconds=50),
            release_stuck_timeout=timedelta(seconds=1 if hang else 60),
        )
        out = open(notes, "a", buffering=1)

        @worker.handler()
        async def note(job: Job) -> None:
            out.write(f"{job.id}\\n")
            if hang:
                await asyncio.Event().wait()
            await asyncio.sleep(0.001)

        print("ready", flush=True)
        await worker.run()

asyncio.run(main())
"""


@contextlib.contextmanager
def programs(url: str, notes: list[Path], *options: str) -> Iterator[list[subprocess.Popen[str]]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", PROGRAM, url, str(path), *options],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for path in notes
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def noted(paths: list[Path]) -> Counter[str]:
    return Counter(line for path in paths if path.exists() for line in path.read_text().split())


async def test_three_programs_handle_a_thousand_jobs_once_each(store_url: str, tmp_path: Path) -> None:
    notes = [tmp_path / f"notes-{n}" for n in range(3)]
    async with Queue("orders", store_url) as queue:
        await queue.open()
        with programs(store_url, notes) as started:
            ids = await queue.add_many([NewJob("job", n) for n in range(1_000)])

            async def all_done() -> bool:
                return (await queue.stats()).completed == 1_000

            await eventually(all_done, within_s=60)
            for process in started:
                process.send_signal(signal.SIGTERM)
            for process in started:
                assert await asyncio.to_thread(process.wait, 20) == 0
        assert noted(notes) == Counter(ids)
        assert len(await checked_trail(queue)) == 3_000


@pytest.mark.faults
async def test_the_jobs_of_a_killed_program_are_taken_over(store_url: str, tmp_path: Path) -> None:
    notes = [tmp_path / "notes"]
    async with Queue("orders", store_url) as queue:
        other = Queue("other", queue.store)
        elsewhere = await other.add("job")
        await queue.store.fetch("other", limit=1, lease=timedelta(hours=1), who="somebody")
        ids = await queue.add_many([NewJob("job", n) for n in range(5)])
        with programs(store_url, notes, "hang") as (process,):
            await eventually(lambda: len(noted(notes)) == 5)
            process.kill()
            process.wait()
        assert (await queue.stats()).processing == 5

        worker = make_worker(queue, release_stuck_interval=timedelta(milliseconds=50))
        worker.handler()(lambda job: None)
        async with running(worker):
            await eventually(lambda: worker.counts.completed == 5)
        for job_id in ids:
            record = await record_of(queue, job_id)
            assert (record.state, record.deliveries, record.attempts) == (State.COMPLETED, 2, 1)
        assert (await record_of(other, elsewhere)).state is State.PROCESSING
        await checked_trail(queue)


@pytest.mark.faults
async def test_a_program_that_is_told_to_stop_gives_back_what_it_has_not_begun(
    store_url: str, tmp_path: Path
) -> None:
    notes = [tmp_path / "notes"]
    async with Queue("orders", store_url) as queue:
        await queue.add_many([NewJob("job", n) for n in range(20)])
        with programs(store_url, notes, "hang") as (process,):
            await eventually(lambda: len(noted(notes)) == 10)
            process.send_signal(signal.SIGINT)

            async def unstarted_are_back() -> bool:
                return (await queue.stats()).pending == 10

            await eventually(unstarted_are_back)
            process.send_signal(signal.SIGINT)
            assert await asyncio.to_thread(process.wait, 20) == 0
        records = await queue.jobs(state=State.PENDING)
        assert Counter(each.deliveries for each in records) == {0: 10, 1: 10}
        await checked_trail(queue)
