"""Cancelling and rescheduling: what waits can still be changed, by whoever knows its id."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from remuda import (
    ConfigurationError,
    InvalidJobError,
    Job,
    JobFailedError,
    NewJob,
    Queue,
    Reason,
    State,
)
from remuda.clock import VirtualClock
from remuda.worker.canceller import Canceller
from tests.contract.workbench import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    acked,
    bury,
    checked_trail,
    defer,
    eventually,
    fetch,
    fetch_one,
    make_worker,
    nacked,
    record_of,
    running,
    settle,
)

# -- cancelling


async def test_a_job_that_waits_can_be_cancelled_whatever_it_waits_for(
    queue: Queue, clock: VirtualClock
) -> None:
    again = await queue.add("again")
    await settle(queue, nacked(await fetch_one(queue), clock.now() + HOUR))
    due = await queue.add("due", priority=2)
    later = await queue.add("later", delay=HOUR)
    own = (await queue.add_unique("own", job_id="invoice-42", delay=DAY)).id
    stays = await queue.add("stays", delay=HOUR)
    clock.advance(SECOND)
    assert await queue.cancel(own, due, again, later) == [own, due, again, later]
    for job_id in (again, due, later, own):
        assert await queue.get(job_id) is None
    assert [each.id for each in await queue.jobs()] == [stays]
    clock.advance(2 * DAY)
    assert [each.id for each in await fetch(queue)] == [stays]


async def test_a_cancelled_job_is_on_the_trail(queue: Queue, clock: VirtualClock) -> None:
    again, fresh = await queue.add("job"), await queue.add("job", delay=HOUR)
    await settle(queue, nacked(await fetch_one(queue), clock.now() + HOUR))
    clock.advance(MINUTE)
    await queue.cancel(again, fresh)
    last = {each.message: each for each in await checked_trail(queue)}
    for job_id, left, attempt in ((again, State.RETRYABLE, 1), (fresh, State.PENDING, 0)):
        end = last[job_id]
        assert (end.left, end.entered, end.reason) == (left, State.REMOVED, "cancelled")
        assert (end.attempt, end.dwell) == (attempt, MINUTE)
        assert end.who == queue.who


async def test_what_does_not_wait_is_left_as_it_is(queue: Queue) -> None:
    """One that runs, too, where that is asked for."""
    (dead,) = await bury(queue, "dead")
    done = await queue.add("done")
    await settle(queue, acked(await fetch_one(queue)))
    running_job = await queue.add("running")
    delivery = await fetch_one(queue)
    assert await queue.cancel(dead, done, running_job, "nobody", running=False) == []
    assert await queue.cancel(dead, done, "nobody") == []
    assert await queue.cancel() == []
    assert await queue.store.asked_to_cancel(queue.name) == {}
    assert (await record_of(queue, dead)).state is State.FAILED
    assert (await record_of(queue, done)).state is State.COMPLETED
    assert await settle(queue, acked(delivery)) == []
    await checked_trail(queue)


async def test_only_the_ids_that_waited_are_told_each_once(queue: Queue) -> None:
    first, second = await queue.add("job"), await queue.add("job", delay=HOUR)
    assert await queue.cancel(second, "nobody", first, second) == [second, first]
    assert await queue.cancel(first, second) == []
    assert len(await checked_trail(queue)) == 4


async def test_a_cancelled_id_can_be_used_again(queue: Queue) -> None:
    await queue.add_unique("job", 1, job_id="a", unique_for=DAY, delay=HOUR)
    assert await queue.cancel("a") == ["a"]
    assert (await queue.add_unique("job", 2, job_id="a")).new
    assert (await record_of(queue, "a")).value() == 2
    assert [each.id for each in await fetch(queue)] == ["a"]


async def test_a_job_that_waits_for_its_turn_can_be_cancelled(queue: Queue, clock: VirtualClock) -> None:
    job_id = await queue.add("job", rate_key="a")
    await defer(queue, [await fetch_one(queue)], [clock.now() + HOUR])
    assert await queue.cancel(job_id) == [job_id]
    clock.advance(DAY)
    assert await fetch(queue) == []


async def test_another_queue_s_jobs_are_not_cancelled(queue: Queue, other_queue: Queue) -> None:
    theirs = await other_queue.add("job")
    await other_queue.add_unique("job", job_id="a")
    await queue.add_unique("job", job_id="a")
    assert await queue.cancel("a", theirs) == ["a"]
    assert (await other_queue.stats()).live == 2


async def test_many_are_cancelled_in_one_call(queue: Queue) -> None:
    ids = await queue.add_many(
        [NewJob("job", n, delay=HOUR if n % 2 else None, priority=n % 5 - 2) for n in range(1_500)]
    )
    assert await queue.cancel(*ids) == ids
    assert (await queue.stats()).live == 0
    assert len(await checked_trail(queue)) == 3_000


async def test_a_job_is_either_cancelled_or_fetched(store_url: str) -> None:
    queues = [Queue("orders", store_url) for _ in range(3)]
    try:
        ids = await queues[0].add_many([NewJob("job", n) for n in range(300)])

        async def take_all() -> list[str]:
            taken: list[str] = []
            while batch := await fetch(queues[1], 10):
                taken += [each.id for each in batch]
            return taken

        async def cancel_all(mine: Queue, theirs: list[str]) -> list[str]:
            gone: list[str] = []
            for start in range(0, len(theirs), 10):
                gone += await mine.cancel(*theirs[start : start + 10], running=False)
            return gone

        taken, forwards, backwards = await asyncio.gather(
            take_all(), cancel_all(queues[0], ids), cancel_all(queues[2], ids[::-1])
        )
        assert sorted(taken + forwards + backwards) == sorted(ids)
        await checked_trail(queues[0])
    finally:
        for each in queues:
            await each.close()


async def test_a_list_of_ids_is_refused(queue: Queue) -> None:
    with pytest.raises(ConfigurationError, match="ids"):
        await queue.cancel(["a", "b"])  # type: ignore[arg-type]


# -- cancelling what runs


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers look for word more often than they need to."""
    monkeypatch.setattr("remuda.worker.canceller.LOOK_EVERY", timedelta(milliseconds=20))


@contextlib.asynccontextmanager
async def at_work(queue: Queue, handler: Callable[[Job], Any], **options: Any) -> AsyncIterator[str]:
    """A job whose handler has begun; its id."""
    begun = threading.Event()
    worker = make_worker(queue, **options)

    if asyncio.iscoroutinefunction(handler):

        @worker.handler("job")
        async def run(job: Job) -> None:
            begun.set()
            await handler(job)

    else:

        @worker.handler("job")
        def run_in_thread(job: Job) -> None:
            begun.set()
            handler(job)

    job_id = await queue.add("job")
    async with running(worker):
        await eventually(begun.is_set)
        yield job_id


async def sleep_long(_job: Job) -> None:
    await asyncio.sleep(60)


def until_told(job: Job) -> None:
    while True:
        time.sleep(0.01)
        job.check_cancelled()


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("handler", [sleep_long, until_told], ids=["coroutine", "thread"])
async def test_a_job_that_runs_is_cancelled_and_says_so(queue: Queue, handler: Callable[[Job], Any]) -> None:
    async with at_work(queue, handler, store_results=True) as job_id:
        assert await queue.cancel(job_id) == [job_id]
        with pytest.raises(JobFailedError) as failed:
            await queue.result(job_id, timeout=30)
        assert failed.value.reason == "cancelled"
        await eventually(lambda: nothing_asked(queue))
    record = await record_of(queue, job_id)
    assert (record.state, record.reason, record.attempts) == (State.FAILED, Reason.CANCELLED, 1)
    assert await queue.dead.count() == {"cancelled": 1}
    await checked_trail(queue)


async def nothing_asked(queue: Queue) -> bool:
    return not await queue.store.asked_to_cancel(queue.name)


@pytest.mark.usefixtures("often")
async def test_a_handler_that_does_not_look_ends_as_it_ends(queue: Queue) -> None:
    told = threading.Event()

    def go_on(job: Job) -> None:
        while not job.cancelled:
            time.sleep(0.01)
        told.set()

    async with at_work(queue, go_on) as job_id:
        assert await queue.cancel(job_id) == [job_id]
        await eventually(told.is_set)
        await eventually(lambda: nothing_asked(queue))
    assert (await record_of(queue, job_id)).state is State.COMPLETED


@pytest.mark.usefixtures("often")
async def test_a_coroutine_that_will_not_be_cancelled_leaves_nothing_to_the_next(queue: Queue) -> None:
    counts: list[int] = []
    worker = make_worker(queue, concurrency=1)

    @worker.handler()
    async def run(job: Job) -> None:
        task = asyncio.current_task()
        assert task is not None
        counts.append(task.cancelling())
        if job.payload == "stubborn":
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    stubborn = await queue.add("job", "stubborn")
    async with running(worker):
        await eventually(lambda: counts == [0])
        assert await queue.cancel(stubborn) == [stubborn]
        await queue.add("job")
        await eventually(lambda: len(counts) == 2)
    assert counts == [0, 0]
    assert (await record_of(queue, stubborn)).state is State.COMPLETED


@pytest.mark.usefixtures("often")
async def test_word_for_a_job_is_not_for_the_next_one_of_its_id(queue: Queue, clock: VirtualClock) -> None:
    """It ended just when it was cancelled: whoever has its id later runs on."""
    await queue.add_unique("job", job_id="a")
    delivery = await fetch_one(queue)
    assert await queue.cancel("a") == ["a"]
    await settle(queue, acked(delivery))
    clock.advance(HOUR)
    seen: list[bool] = []
    begun = asyncio.Event()
    worker = make_worker(queue)

    @worker.handler("job")
    async def run(job: Job) -> None:
        begun.set()
        await asyncio.sleep(0.2)  # the worker looks several times meanwhile
        seen.append(job.cancelled)

    await queue.add_unique("job", job_id="a")
    async with running(worker):
        await eventually(lambda: bool(seen))
    assert seen == [False]
    assert (await record_of(queue, "a")).state is State.COMPLETED
    clock.advance(2 * DAY)
    await Canceller(queue.store, queue.name, busy_runner()).tick()
    assert await nothing_asked(queue)


def busy_runner() -> Any:
    """Stands for a runner with something at work."""
    return SimpleNamespace(at_work={"another"}, cancel=lambda *_, **__: False)


# -- rescheduling


async def test_a_waiting_job_can_be_brought_forward_and_put_off(queue: Queue, clock: VirtualClock) -> None:
    delayed = await queue.add("job", delay=DAY)
    due = await queue.add("job")
    assert await queue.reschedule(delayed, delay=timedelta(0))
    assert await queue.reschedule(due, at=clock.now() + HOUR)
    assert (await record_of(queue, due)).next_attempt_at == clock.now() + HOUR
    assert [each.id for each in await fetch(queue)] == [delayed]
    clock.advance(HOUR)
    assert [each.id for each in await fetch(queue)] == [due]
    await checked_trail(queue)


async def test_a_job_between_attempts_keeps_all_but_its_time(queue: Queue, clock: VirtualClock) -> None:
    job_id = await queue.add("job", {"n": 1}, priority=1, headers={"tenant": "a"}, rate_key="a")
    await settle(queue, nacked(await fetch_one(queue), clock.now() + DAY))
    before = await record_of(queue, job_id)
    clock.advance(MINUTE)
    assert await queue.reschedule(job_id, delay=MINUTE)
    after = await record_of(queue, job_id)
    assert after.next_attempt_at == clock.now() + MINUTE
    for fact in ("state", "attempts", "deliveries", "priority", "headers", "created_at", "rate_key"):
        assert getattr(after, fact) == getattr(before, fact), fact
    assert after.value() == {"n": 1}
    clock.advance(MINUTE)
    delivery = await fetch_one(queue)
    assert (delivery.id, delivery.attempts, delivery.priority) == (job_id, 1, 1)


async def test_a_moment_in_the_past_is_now(queue: Queue, clock: VirtualClock) -> None:
    """Before or after what was due already: that is left to the store."""
    first = await queue.add("job")
    second = await queue.add("job", delay=HOUR)
    assert await queue.reschedule(second, at=clock.now() - HOUR)
    assert {each.id for each in await fetch(queue)} == {first, second}


async def test_what_does_not_wait_cannot_be_rescheduled(queue: Queue) -> None:
    (dead,) = await bury(queue, "dead")
    running_job = await queue.add("running")
    delivery = await fetch_one(queue)
    for job_id in (dead, running_job, "nobody"):
        assert not await queue.reschedule(job_id, delay=HOUR)
    assert await settle(queue, acked(delivery)) == []
    assert not await queue.reschedule(running_job, delay=HOUR)
    assert (await queue.stats()).live == 0


async def test_a_rescheduled_job_gives_up_its_turn(queue: Queue, clock: VirtualClock) -> None:
    job_id = await queue.add("job", rate_key="a")
    await defer(queue, [await fetch_one(queue)], [clock.now() + DAY])
    assert await queue.reschedule(job_id, at=clock.now())
    delivery = await fetch_one(queue)
    assert (delivery.id, delivery.slot_at) == (job_id, None)


async def test_a_unique_job_stays_unique_when_it_is_rescheduled(queue: Queue, clock: VirtualClock) -> None:
    await queue.add_unique("job", job_id="a", delay=DAY)
    assert await queue.reschedule("a", delay=MINUTE)
    assert not (await queue.add_unique("job", job_id="a")).new
    assert await queue.reschedule("a", delay=2 * MINUTE)
    clock.advance(2 * MINUTE)
    assert [each.id for each in await fetch(queue)] == ["a"]


@pytest.mark.parametrize(
    ("when", "complaint"),
    [
        ({}, "when"),
        ({"at": datetime(2030, 1, 1, tzinfo=UTC), "delay": HOUR}, "both"),
        ({"at": datetime(2030, 1, 1)}, "time zone"),  # noqa: DTZ001 - the point of it
        ({"delay": -SECOND}, "delay"),
        ({"delay": 5}, "delay"),
        ({"at": "tomorrow"}, "datetime"),
    ],
)
async def test_a_time_that_means_nothing_is_refused(
    queue: Queue, when: dict[str, object], complaint: str
) -> None:
    job_id = await queue.add("job", delay=HOUR)
    before = await record_of(queue, job_id)
    with pytest.raises(InvalidJobError, match=complaint):
        await queue.reschedule(job_id, **when)  # type: ignore[arg-type]
    assert await record_of(queue, job_id) == before


async def test_a_job_that_is_brought_forward_wakes_an_idle_worker(store_url: str) -> None:
    async with Queue("orders", store_url) as queue:
        worker = make_worker(queue, max_fetch_interval=MINUTE)
        ran: list[str] = []

        @worker.handler()
        async def run(job: Job) -> None:
            ran.append(job.id)

        job_id = await queue.add("job", delay=HOUR)
        async with running(worker):
            await queue.add("first")
            await eventually(lambda: len(ran) == 1)
            assert await queue.reschedule(job_id, delay=timedelta(0))
            await eventually(lambda: ran[-1] == job_id)
