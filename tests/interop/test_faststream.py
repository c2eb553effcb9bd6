"""FastStream's SQL broker and Remuda on the same queue: each takes what the other has written."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from remuda import Job, NewJob, Queue, SchemaError, State, Worker, open_store
from remuda.lifecycle import LIVE_STATES
from remuda.stores.contract import Settlement
from remuda.stores.sql import migrations
from remuda.stores.sql.store import SqlStore
from tests.faults.waiting import until
from tests.interop.conftest import FastStream

pytestmark = pytest.mark.interop

QUICK = timedelta(milliseconds=100)


@pytest.fixture
async def queue(postgres_url: str) -> AsyncIterator[Queue]:
    """A queue that others read along, on tables that Remuda has made."""
    async with Queue("shared", postgres_url, payload_format="json") as queue:
        yield queue


@asynccontextmanager
async def working(queue: Queue, **options: Any) -> AsyncIterator[list[Job]]:
    """A worker that takes every job, whatever it is called; the jobs that it has run."""
    worker = Worker(queue, max_fetch_interval=QUICK, release_stuck_interval=QUICK, **options)
    jobs: list[Job] = []

    @worker.handler()
    async def note(job: Job) -> None:
        jobs.append(job)

    running = asyncio.create_task(worker.run(signals=False))
    try:
        yield jobs
    finally:
        worker.stop()
        await running


async def settled(queue: Queue, count: int) -> bool:
    stats = await queue.stats()
    return (stats.live, stats.completed) == (0, count)


async def test_a_worker_handles_what_faststream_publishes(queue: Queue, faststream: FastStream) -> None:
    later = datetime.now(UTC) + timedelta(seconds=4)
    bytes_body = b"\x00\xff not text"
    await asyncio.to_thread(
        faststream.run,
        "publish",
        messages=[
            {"body": {"to": "a@example.org", "items": [1, 2.5, None]}, "headers": {"trace": "t-1"}},
            {"body": "just text: ü"},
            {"base64": base64.b64encode(bytes_body).decode()},
            {"body": {"when": "later"}, "next_attempt_at": later.isoformat()},
        ],
        batch=[{"number": number} for number in range(20)],
    )

    async with working(queue) as jobs:
        await until(lambda: len(jobs) == 24, "all messages are handled")
        await until(lambda: settled(queue, 24), "all outcomes are written")

    assert datetime.now(UTC) >= later
    by_header = {job.headers.get("trace"): job for job in jobs}
    assert by_header["t-1"].payload == {"to": "a@example.org", "items": [1, 2.5, None]}
    payloads = [job.payload for job in jobs]
    assert "just text: ü" in payloads
    assert bytes_body in payloads
    assert {"when": "later"} in payloads
    assert sorted(each["number"] for each in payloads if isinstance(each, dict) and "number" in each) == list(
        range(20)
    )
    for record in await queue.jobs():
        assert (record.state, record.attempts, record.deliveries) == (State.COMPLETED, 1, 1)
        assert record.foreign


async def test_faststream_handles_what_a_queue_adds(queue: Queue, faststream: FastStream) -> None:
    consumer = faststream.start("consume", count=53)
    await queue.add("welcome", {"to": "a@example.org", "items": [1, 2.5, None]}, headers={"trace": "t-1"})
    await queue.add("text", "ü")
    later = await queue.add("later", "later", delay=timedelta(seconds=2))
    await queue.add_many([NewJob("numbered", number) for number in range(50)])

    await until(lambda: settled(queue, 53), "FastStream has archived all of them")

    assert await asyncio.to_thread(consumer.process.wait, 20) == 0, consumer.errors()
    received = [each["body"] for each in consumer.said("start")]
    assert {"to": "a@example.org", "items": [1, 2.5, None]} in received
    assert "later" in received
    assert sorted(each for each in received if isinstance(each, int)) == list(range(50))
    (traced,) = [each["headers"] for each in consumer.said("start") if "trace" in each["headers"]]
    assert traced["trace"] == "t-1"
    for record in await queue.jobs():
        assert (record.state, record.attempts, record.deliveries) == (State.COMPLETED, 1, 1)
        if record.id == later:
            assert record.first_attempt_at is not None
            assert record.first_attempt_at >= record.created_at + timedelta(seconds=2)


async def test_both_consume_one_queue_and_nothing_is_handled_twice(
    queue: Queue, faststream: FastStream
) -> None:
    consumer = faststream.start("consume", count=1_000_000)
    await queue.add("first", 0)
    await until(lambda: consumer.said("end"), "FastStream is at work")
    async with working(queue, fetch_batch_size=10, concurrency=10) as jobs:
        await queue.add_many([NewJob("numbered", number) for number in range(1, 1_001)])
        await until(lambda: settled(queue, 1_001), "all are done")

    ours = [job.payload for job in jobs]
    theirs = [each["body"] for each in consumer.said("start")]
    assert sorted(ours + theirs) == list(range(1_001))
    assert ours
    assert theirs


async def test_a_message_stuck_in_a_killed_faststream_program_is_recovered(
    queue: Queue, faststream: FastStream
) -> None:
    job_id = await queue.add("stuck", {"number": 1})
    consumer = faststream.start("consume", count=1, hold_s=3600)
    await until(lambda: consumer.said("start"), "FastStream has the message")
    consumer.kill()

    async with working(queue, release_stuck_timeout=timedelta(seconds=1)) as jobs:
        await until(lambda: len(jobs) == 1, "the worker has it")
        await until(lambda: settled(queue, 1), "it is done")

    assert jobs[0].payload == {"number": 1}
    record = await queue.get(job_id)
    assert record is not None
    assert (record.state, record.attempts, record.deliveries) == (State.COMPLETED, 1, 2)


async def test_what_faststream_took_over_from_a_dead_worker_is_not_taken_back(
    queue: Queue, faststream: FastStream
) -> None:
    """FastStream knows nothing of leases: the one that a dead worker left in the row no longer counts."""
    store = queue.store
    await queue.add("taken over", {})
    (late,) = await store.fetch("shared", limit=1, lease=timedelta(seconds=0.2), who="a worker that freezes")
    consumer = faststream.start(
        "consume",
        count=1,
        hold_s=1,
        options={"release_stuck_timeout": 2, "release_stuck_interval": 0.1},
    )
    await until(lambda: consumer.said("start"), "FastStream has released it and taken it")

    assert await store.recover("shared", timeout=timedelta(minutes=1), who="another worker") == []
    outcome = Settlement(delivery=late, state=State.FAILED, reason="rejected", started_at=late.acquired_at)
    assert await store.settle("shared", [outcome], who="a worker that freezes") == [outcome]

    await until(lambda: settled(queue, 1), "FastStream's outcome stands")
    assert len(consumer.said("start")) == 1


async def test_tables_that_faststream_has_made_are_migrated_and_used_by_both(
    postgres_url: str, faststream: FastStream
) -> None:
    await asyncio.to_thread(faststream.run, "create")
    await asyncio.to_thread(faststream.run, "publish", messages=[{"body": {"number": 1}}])
    refused = Queue("shared", postgres_url)
    with pytest.raises(SchemaError, match="remuda migrate"):
        await refused.open()

    await _migrate(postgres_url)

    async with Queue("shared", postgres_url, payload_format="json") as queue:
        async with working(queue) as jobs:
            await asyncio.to_thread(faststream.run, "publish", messages=[{"body": {"number": 2}}])
            await until(lambda: len(jobs) == 2, "the messages from before and after are handled")
            await until(lambda: settled(queue, 2), "their outcomes are written")
        assert [job.payload for job in jobs] == [{"number": 1}, {"number": 2}]
        await queue.add("ours", {"number": 3})
        consumer = faststream.start("consume", count=1)
        await until(lambda: settled(queue, 3), "FastStream has handled ours")
        assert [each["body"] for each in consumer.said("start")] == [{"number": 3}]
        assert not [job for job in await queue.jobs() if job.state in LIVE_STATES]


async def _migrate(url: str) -> None:
    """What `remuda migrate` does."""
    store = open_store(url)
    assert isinstance(store, SqlStore)
    await store.open_unchecked()
    try:
        assert await store.run_on_schema(migrations.migrate)
    finally:
        await store.close()
