"""A job's way from being added to its end, as the store tells it afterwards."""

from __future__ import annotations

from datetime import timedelta

from remuda import Constant, Job, NoRetry, Queue, Reason, State
from remuda.clock import VirtualClock
from tests.contract.workbench import (
    LEASE,
    MINUTE,
    SECOND,
    checked_trail,
    fetch,
    fetch_one,
    make_worker,
    moves_of,
    record_of,
    recover,
)


async def test_a_consumed_job_is_completed_and_kept_with_its_times(queue: Queue, clock: VirtualClock) -> None:
    worker = make_worker(queue)

    @worker.handler("greet")
    async def greet(job: Job) -> None:
        clock.advance(2 * SECOND)

    job_id = await queue.add("greet", {"to": "a@example.org"})
    created = clock.now()
    clock.advance(SECOND)

    assert await worker.step() == 1

    record = await record_of(queue, job_id)
    assert (record.state, record.attempts, record.deliveries) == (State.COMPLETED, 1, 1)
    assert record.created_at == created
    assert record.first_attempt_at == record.last_attempt_at == created + SECOND
    assert record.ended_at == created + 3 * SECOND
    assert record.worker == worker.who
    assert record.value() == {"to": "a@example.org"}
    assert await queue.jobs(state=State.PENDING) == []
    assert (await queue.stats()).live == 0


async def test_a_completed_job_is_not_kept_when_the_worker_says_so(queue: Queue) -> None:
    worker = make_worker(queue, archive_completed=False)

    @worker.handler()
    async def anything(job: Job) -> None: ...

    job_id = await queue.add("greet")
    await worker.step()

    assert await queue.get(job_id) is None
    assert (await queue.stats()).total == 0
    assert moves_of(await checked_trail(queue), job_id)[-1] == (State.PROCESSING, State.COMPLETED)


async def test_a_nacked_job_with_retries_left_waits_for_its_next_attempt(
    queue: Queue, clock: VirtualClock
) -> None:
    worker = make_worker(queue, retry=Constant(every=5 * MINUTE, max_attempts=2))

    @worker.handler("greet")
    async def greet(job: Job) -> None:
        raise ConnectionError("the mail server is down")

    job_id = await queue.add("greet")
    await worker.step()

    record = await record_of(queue, job_id)
    assert record.state is State.RETRYABLE
    assert record.acquired_at is None
    assert record.lease_expires_at is None
    assert record.worker is None
    assert record.first_attempt_at is not None
    assert record.next_attempt_at == record.first_attempt_at + 5 * MINUTE
    assert (record.attempts, record.deliveries) == (1, 1)
    assert record.error_message is not None
    assert "the mail server is down" in record.error_message
    assert await fetch(queue) == []
    clock.advance(5 * MINUTE)
    assert [each.id for each in await fetch(queue)] == [job_id]


async def test_a_nacked_job_without_retries_is_a_dead_letter(queue: Queue) -> None:
    worker = make_worker(queue, retry=NoRetry())

    @worker.handler("greet")
    async def greet(job: Job) -> None:
        job.nack()

    job_id = await queue.add("greet")
    await worker.step()

    record = await record_of(queue, job_id)
    assert (record.state, record.reason) == (State.FAILED, Reason.RETRIES_EXHAUSTED)
    assert (record.attempts, record.deliveries) == (1, 1)


async def test_three_attempts_end_in_a_dead_letter_with_three_of_each(
    queue: Queue, clock: VirtualClock
) -> None:
    worker = make_worker(queue, retry=Constant(every=SECOND, max_attempts=3))
    seen: list[int] = []

    @worker.handler("greet")
    async def greet(job: Job) -> None:
        seen.append(job.attempt)
        raise ValueError(f"attempt {job.attempt}")

    job_id = await queue.add("greet")
    started = clock.now()
    for _ in range(5):
        await worker.step()
        clock.advance(SECOND)

    record = await record_of(queue, job_id)
    assert seen == [1, 2, 3]
    assert (record.state, record.reason) == (State.FAILED, Reason.RETRIES_EXHAUSTED)
    assert (record.attempts, record.deliveries) == (3, 3)
    assert record.first_attempt_at == started
    assert record.last_attempt_at == record.ended_at == started + 2 * SECOND
    assert (record.error_type, record.error_message) == ("ValueError", "attempt 3")
    assert record.error_trace is not None
    assert 'raise ValueError(f"attempt {job.attempt}")' in record.error_trace
    assert record.error_trace.count('File "') == 1


async def test_the_trail_of_a_retried_job_tells_every_move_and_how_long_it_stayed(
    queue: Queue, clock: VirtualClock
) -> None:
    worker = make_worker(queue, retry=Constant(every=MINUTE, max_attempts=2))

    @worker.handler("greet")
    async def greet(job: Job) -> None:
        clock.advance(3 * SECOND)
        if job.attempt == 1:
            raise ValueError("once")

    job_id = await queue.add("greet")
    clock.advance(7 * SECOND)
    await worker.step()
    clock.advance(MINUTE)
    await worker.step()

    transitions = await checked_trail(queue)
    assert [(each.left, each.entered, each.dwell, each.attempt) for each in transitions] == [
        (None, State.PENDING, None, 0),
        (State.PENDING, State.PROCESSING, 7 * SECOND, 0),
        (State.PROCESSING, State.RETRYABLE, 3 * SECOND, 1),
        (State.RETRYABLE, State.PROCESSING, MINUTE, 1),
        (State.PROCESSING, State.COMPLETED, 3 * SECOND, 2),
    ]
    assert {each.message for each in transitions} == {job_id}
    assert {each.queue for each in transitions} == {queue.name}
    assert [each.who for each in transitions] == [queue.who] + [worker.who] * 4
    assert [each.name for each in transitions] == ["greet"] + [None] * 4


async def test_a_stuck_job_past_max_deliveries_is_rejected_before_its_handler(
    queue: Queue, clock: VirtualClock
) -> None:
    worker = make_worker(queue, max_deliveries=1)
    ran: list[str] = []

    @worker.handler("greet")
    async def greet(job: Job) -> None:
        ran.append(job.id)

    job_id = await queue.add("greet")
    await fetch_one(queue, who="a worker that dies")
    clock.advance(LEASE)
    assert await recover(queue) == [job_id]

    await worker.step()

    record = await record_of(queue, job_id)
    assert ran == []
    assert (record.state, record.reason) == (State.FAILED, Reason.MAX_DELIVERIES)
    assert (record.attempts, record.deliveries) == (0, 2)
    assert record.first_attempt_at is None
    assert record.last_attempt_at is None


async def test_a_job_within_max_deliveries_runs(queue: Queue, clock: VirtualClock) -> None:
    worker = make_worker(queue, max_deliveries=2)

    @worker.handler("greet")
    async def greet(job: Job) -> None: ...

    job_id = await queue.add("greet")
    await fetch_one(queue, who="a worker that dies")
    clock.advance(LEASE)
    await recover(queue)
    await worker.step()

    record = await record_of(queue, job_id)
    assert (record.state, record.attempts, record.deliveries) == (State.COMPLETED, 1, 2)


async def test_an_expired_job_is_a_dead_letter_without_running(queue: Queue, clock: VirtualClock) -> None:
    worker = make_worker(queue)
    ran: list[str] = []

    @worker.handler("greet")
    async def greet(job: Job) -> None:
        ran.append(job.id)

    by_duration = await queue.add("greet", expires_in=MINUTE)
    by_moment = await queue.add("greet", expires_at=clock.now() + MINUTE)
    in_time = await queue.add("greet", expires_in=MINUTE + timedelta(microseconds=1))
    clock.advance(MINUTE)
    await worker.step()

    assert ran == [in_time]
    for job_id in (by_duration, by_moment):
        record = await record_of(queue, job_id)
        assert (record.state, record.reason) == (State.FAILED, Reason.EXPIRED)
        assert (record.attempts, record.deliveries) == (0, 1)
