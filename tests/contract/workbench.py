"""The words of the contract's tests: fetch, ack, nack, bury, read the trail, wait until."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from remuda import Queue, Reason, State, Transition, Worker
from remuda.lifecycle import JOB_MOVES
from remuda.message import DeadLetterFilter, JobRecord
from remuda.stores.contract import Delivery, EncodedJob, Failure, Settlement

QUEUE = "orders"
LEASE = timedelta(seconds=60)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
ALL = DeadLetterFilter()
CLOCKS_DIFFER = timedelta(milliseconds=50)  # in the trail of several programs on a real clock


# -- the store's side


async def fetch(
    queue: Queue, limit: int = 100, *, lease: timedelta = LEASE, who: str = "worker-1"
) -> list[Delivery]:
    return await queue.store.fetch(queue.name, limit=limit, lease=lease, who=who)


async def fetch_one(queue: Queue, *, lease: timedelta = LEASE, who: str = "worker-1") -> Delivery:
    (delivery,) = await fetch(queue, 1, lease=lease, who=who)
    return delivery


async def settle(queue: Queue, *settlements: Settlement) -> list[Settlement]:
    """Write outcomes; those that were lost."""
    return await queue.store.settle(queue.name, settlements, who="worker-1")


async def release(queue: Queue, *deliveries: Delivery, counted: bool = False) -> None:
    await queue.store.release(queue.name, deliveries, who="worker-1", counted=counted)


async def defer(queue: Queue, deliveries: Sequence[Delivery], until: Sequence[datetime]) -> None:
    """Put back until their turn."""
    await queue.store.release(queue.name, deliveries, who="worker-1", counted=False, until=until)


async def recover(queue: Queue, timeout: timedelta = LEASE) -> list[str]:
    return await queue.store.recover(queue.name, timeout=timeout, who="recoverer")


def acked(delivery: Delivery, *, keep: bool = True, result: bytes | None = None) -> Settlement:
    return Settlement(
        delivery=delivery,
        state=State.COMPLETED,
        started_at=delivery.acquired_at,
        keep=keep,
        result=result,
        result_ttl=HOUR,
    )


def nacked(delivery: Delivery, at: datetime, failure: Failure | None = None) -> Settlement:
    return Settlement(
        delivery=delivery,
        state=State.RETRYABLE,
        started_at=delivery.acquired_at,
        next_attempt_at=at,
        failure=failure,
    )


def dead(
    delivery: Delivery,
    reason: Reason = Reason.REJECTED,
    failure: Failure | None = None,
    *,
    ran: bool = True,
) -> Settlement:
    return Settlement(
        delivery=delivery,
        state=State.FAILED,
        started_at=delivery.acquired_at if ran else None,
        reason=reason.value,
        failure=failure,
    )


def raw_job(queue: Queue, job_id: str, payload: bytes = b"\xc0", **options: Any) -> EncodedJob:
    """A job as a store takes it, past every check of a queue."""
    options = {"name": "job", "next_attempt_at": queue.store.now(), **options}
    return EncodedJob(id=job_id, payload=payload, **options)


async def add_raw(queue: Queue, *jobs: EncodedJob) -> list[bool]:
    return await queue.store.add(queue.name, jobs, who="test")


async def bury(
    queue: Queue, *names: str, reason: Reason = Reason.REJECTED, failure: Failure | None = None
) -> list[str]:
    """Dead letters of these job names; their ids."""
    ids = [await queue.add(name) for name in names]
    deliveries = await fetch(queue, len(ids))
    assert sorted(each.id for each in deliveries) == sorted(ids)
    assert await settle(queue, *(dead(each, reason, failure) for each in deliveries)) == []
    return ids


async def record_of(queue: Queue, job_id: str) -> JobRecord:
    record = await queue.get(job_id)
    assert record is not None, f"there is no job {job_id}"
    return record


# -- the worker's side


def make_worker(queue: Queue, **options: Any) -> Worker:
    """A worker that neither waits for company nor polls slowly."""
    quick = {"flush_interval": timedelta(0), "max_fetch_interval": timedelta(milliseconds=20)}
    return Worker(queue, **{**quick, **options})


@contextlib.asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[asyncio.Task[None]]:
    """The worker at work; stopped and drained at the end."""
    task = asyncio.create_task(worker.run(signals=False))
    await asyncio.sleep(0)  # its queue is open already, so it is at work from here on
    try:
        yield task
    finally:
        worker.stop()
        await asyncio.wait_for(task, 20)


async def eventually(holds: Callable[[], Awaitable[bool] | bool], within_s: float = 15) -> None:
    """Look again until it holds; for what other tasks and processes do in real time."""
    deadline = time.monotonic() + within_s
    while True:
        answer = holds()
        if answer if isinstance(answer, bool) else await answer:
            return
        assert time.monotonic() < deadline, "it did not come about in time"
        await asyncio.sleep(0.005)


async def within(waiting: Awaitable[Any], seconds: float = 15) -> Any:
    return await asyncio.wait_for(waiting, seconds)


# -- the trail


async def trail(queue: Queue, after: int = 0) -> list[Transition]:
    return [each async for each in queue.transitions(after=after)]


def moves_of(transitions: Sequence[Transition], job_id: str) -> list[tuple[State | None, State]]:
    return [(each.left, each.entered) for each in transitions if each.message == job_id]


async def checked_trail(queue: Queue) -> list[Transition]:
    """The whole trail, after checking that it is numbered without a gap, legal, and unbroken per message."""
    transitions = await trail(queue)
    assert [each.seq for each in transitions] == list(range(1, len(transitions) + 1))
    last: dict[str, Transition] = {}
    for each in transitions:
        assert (each.left, each.entered) in JOB_MOVES, each
        before = last.get(each.message)
        if each.left is None:
            # An id may be given again once its job has ended.
            assert before is None or before.entered in (State.COMPLETED, State.FAILED, State.REMOVED), each
            assert each.dwell is None, each
        else:
            assert before is not None, each
            assert each.left == before.entered, (before, each)
            assert each.dwell is not None, each
            assert abs(each.dwell - (each.at - before.at)) <= CLOCKS_DIFFER, (before, each)
        last[each.message] = each
    return transitions
