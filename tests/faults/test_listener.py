"""PostgreSQL's LISTEN is a convenience: without it a worker polls, and it listens again when it can."""

from __future__ import annotations

import psycopg
import pytest

from remuda import Queue
from tests.faults.journal import runs_of
from tests.faults.stable import Processes
from tests.faults.waiting import until

pytestmark = pytest.mark.faults


async def test_a_worker_whose_listener_is_cut_off_polls(postgres_url: str, processes: Processes) -> None:
    async with Queue("jobs", postgres_url) as queue:
        await queue.add("sleep", 0)
        worker = processes.worker(postgres_url, max_fetch_interval=0.1)
        await until(lambda: len(runs_of([worker])) == 1, "the worker is at work")
        for count in range(2, 6):
            await until(lambda: _cut_off(postgres_url), "there is a listener to cut off")
            await queue.add("sleep", 0)
            await until(lambda count=count: len(runs_of([worker])) == count, "the job is found", within_s=3)
        assert worker.exit_code is None
        assert worker.complaints() == []


async def test_a_worker_whose_listener_is_cut_off_listens_again(
    postgres_url: str, processes: Processes
) -> None:
    async with Queue("jobs", postgres_url) as queue:
        await queue.add("sleep", 0)
        worker = processes.worker(postgres_url, max_fetch_interval=3600.0)
        await until(lambda: len(runs_of([worker])) == 1, "the worker is at work")

        (old,) = await until(lambda: _cut_off(postgres_url), "there is a listener to cut off")
        await queue.add("sleep", 0)
        await until(lambda: len(runs_of([worker])) == 2, "what nobody heard of is found", within_s=10)
        new = await until(lambda: _listeners(postgres_url) - {old}, "there is a new listener")
        assert len(new) == 1

        await queue.add("sleep", 0)
        await until(lambda: len(runs_of([worker])) == 3, "the new listener has heard of it", within_s=3)
        assert worker.complaints() == []


def _listeners(url: str) -> set[int]:
    """The server's processes for connections of workers that listen in this database."""
    return _ask(url, "SELECT pid FROM pg_stat_activity WHERE {listening}")


def _cut_off(url: str) -> set[int]:
    return _ask(url, "SELECT pid FROM pg_stat_activity WHERE {listening} AND pg_terminate_backend(pid)")


def _ask(url: str, query: str) -> set[int]:
    listening = "datname = current_database() AND query LIKE 'LISTEN %'"
    with psycopg.connect(url) as connection:
        return {row[0] for row in connection.execute(query.format(listening=listening).encode())}
