"""What users build their own tests on: the inline queue, its clock, and the pytest fixture."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from remuda import Constant, Exponential, Job, NewJob, QueueFullError, RateLimit, State
from remuda.testing import InlineQueue

HOUR = timedelta(hours=1)


async def test_the_fixture_gives_a_queue_that_runs_inline(remuda_queue: InlineQueue) -> None:
    worker = remuda_queue.worker()
    seen = []

    @worker.handler("greet")
    async def greet(job: Job) -> None:
        seen.append(job.payload)

    job_id = await remuda_queue.add("greet", "world")
    assert await remuda_queue.run(worker) == 1
    assert seen == ["world"]
    record = await remuda_queue.get(job_id)
    assert record is not None
    assert record.state is State.COMPLETED


async def test_the_clock_moves_only_by_hand(remuda_queue: InlineQueue) -> None:
    worker = remuda_queue.worker(retry=Constant(every=HOUR, max_attempts=3))
    runs = []

    @worker.handler("fail")
    async def fail(job: Job) -> None:
        runs.append((job.attempt, remuda_queue.clock.now()))
        raise ConnectionError("down")

    await remuda_queue.add("fail", delay=HOUR)
    start = remuda_queue.clock.now()
    assert await remuda_queue.run(worker) == 0
    remuda_queue.clock.advance(HOUR)
    assert await remuda_queue.run(worker) == 1
    assert await remuda_queue.run(worker) == 0
    assert await remuda_queue.run_until_settled(worker) == 2
    assert runs == [(1, start + HOUR), (2, start + 2 * HOUR), (3, start + 3 * HOUR)]
    assert await remuda_queue.dead.count() == {"retries_exhausted": 1}


async def test_jobs_that_a_handler_adds_are_run_too(remuda_queue: InlineQueue) -> None:
    worker = remuda_queue.worker()

    @worker.handler("count down")
    async def count_down(job: Job) -> None:
        if job.payload > 0:
            await remuda_queue.add("count down", job.payload - 1)

    await remuda_queue.add("count down", 5)
    assert await remuda_queue.run(worker) == 6


async def test_jitter_is_the_same_in_every_run() -> None:
    async def times() -> list[datetime]:
        async with InlineQueue(start=datetime(2031, 1, 1, tzinfo=UTC)) as queue:
            worker = queue.worker(retry=Exponential(jitter=0.5, max_attempts=4))
            moments = []

            @worker.handler("fail")
            async def fail(job: Job) -> None:
                moments.append(queue.clock.now())
                raise ValueError

            await queue.add("fail")
            await queue.run_until_settled(worker)
            return moments

    first = await times()
    assert len(first) == 4
    assert first == await times()


async def test_an_endless_queue_is_an_error_and_not_a_hang(
    remuda_queue: InlineQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remuda.testing._ENDLESS", 20)
    worker = remuda_queue.worker()

    @worker.handler("again")
    async def again(job: Job) -> None:
        await remuda_queue.add("again")

    await remuda_queue.add("again")
    with pytest.raises(AssertionError, match="no end"):
        await remuda_queue.run(worker)


async def test_two_inline_queues_share_nothing() -> None:
    async with InlineQueue("a") as one, InlineQueue("a") as other:
        await one.add_many([NewJob("x") for _ in range(3)])
        assert (await one.stats()).pending == 3
        assert (await other.stats()).pending == 0


def test_the_fixture_works_without_an_async_test(remuda_queue: InlineQueue) -> None:
    assert remuda_queue.name == "test"


async def test_the_clock_is_moved_to_the_next_turn_under_a_rate_limit(remuda_queue: InlineQueue) -> None:
    await remuda_queue.limit_rate(queue=RateLimit(2, HOUR), key=RateLimit(1, 3 * HOUR))
    worker = remuda_queue.worker()
    start = remuda_queue.clock.now()
    ran: list[tuple[str, timedelta]] = []

    @worker.handler()
    async def run(job: Job) -> None:
        ran.append((job.name, remuda_queue.clock.now() - start))

    await remuda_queue.add_many([NewJob("keyed", rate_key="a") for _ in range(2)])
    await remuda_queue.add_many([NewJob("plain") for _ in range(3)])
    assert await remuda_queue.run_until_settled(worker) == 5
    assert [at for name, at in ran if name == "keyed"] == [0 * HOUR, 3 * HOUR]
    assert [at for name, at in ran if name == "plain"] == [0 * HOUR, HOUR / 2, HOUR]


async def test_a_paused_queue_is_settled_as_far_as_it_can_be(remuda_queue: InlineQueue) -> None:
    worker = remuda_queue.worker()
    worker.handler()(lambda _job: None)
    await remuda_queue.add("job")
    await remuda_queue.pause()
    assert await remuda_queue.run_until_settled(worker) == 0


async def test_an_inline_queue_can_be_full() -> None:
    async with InlineQueue(max_live=1) as queue:
        await queue.add("job")
        with pytest.raises(QueueFullError):
            await queue.add("job")
