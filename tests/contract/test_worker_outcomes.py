"""From what a handler does to what becomes of its job: words by hand, ack policies, retry policies."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from remuda import (
    AckPolicy,
    Constant,
    Exponential,
    Job,
    NoRetry,
    Queue,
    Reason,
    State,
    UnrecoverableError,
)
from remuda.clock import VirtualClock
from remuda.message import JobRecord
from tests.contract.workbench import HOUR, MINUTE, SECOND, make_worker, record_of

RETRY = Constant(every=MINUTE, max_attempts=3)


async def after(queue: Queue, handle: Any, **options: Any) -> JobRecord:
    """One job, one run of a handler; what became of the job."""
    worker = make_worker(queue, **{"retry": RETRY, **options})
    worker.handler("greet")(handle)
    job_id = await queue.add("greet")
    assert await worker.step() == 1
    return await record_of(queue, job_id)


async def returns(job: Job) -> None: ...


async def raises(job: Job) -> None:
    raise ValueError("no")


@pytest.mark.parametrize(
    ("policy", "handle", "state", "reason"),
    [
        (AckPolicy.ACK, returns, State.COMPLETED, None),
        (AckPolicy.ACK, raises, State.COMPLETED, None),
        (AckPolicy.ACK_FIRST, returns, State.COMPLETED, None),
        (AckPolicy.ACK_FIRST, raises, State.COMPLETED, None),
        (AckPolicy.REJECT_ON_ERROR, returns, State.COMPLETED, None),
        (AckPolicy.REJECT_ON_ERROR, raises, State.FAILED, Reason.REJECTED),
        (AckPolicy.NACK_ON_ERROR, returns, State.COMPLETED, None),
        (AckPolicy.NACK_ON_ERROR, raises, State.RETRYABLE, None),
        (AckPolicy.MANUAL, returns, State.FAILED, Reason.REJECTED),
        (AckPolicy.MANUAL, raises, State.FAILED, Reason.REJECTED),
    ],
)
async def test_the_ack_policy_speaks_for_a_silent_handler(
    sqlite_url: str, policy: AckPolicy, handle: Any, state: State, reason: Reason | None
) -> None:
    async with Queue("orders", sqlite_url, clock=VirtualClock()) as queue:
        record = await after(queue, handle, ack_policy=policy)
    assert (record.state, record.reason, record.attempts) == (state, reason, 1)


async def test_silence_under_manual_is_told_in_the_dead_letter(queue: Queue) -> None:
    record = await after(queue, returns, ack_policy="manual")
    assert record.error_message is not None
    assert "MANUAL" in record.error_message


async def test_under_ack_first_the_job_is_done_before_its_handler_starts(queue: Queue) -> None:
    seen: list[State] = []

    async def look(job: Job) -> None:
        seen.append((await record_of(queue, job.id)).state)

    record = await after(queue, look, ack_policy=AckPolicy.ACK_FIRST)
    assert seen == [State.COMPLETED]
    assert (record.state, record.attempts, record.deliveries) == (State.COMPLETED, 1, 1)


@pytest.mark.parametrize("policy", [each for each in AckPolicy if each is not AckPolicy.ACK_FIRST])
async def test_a_word_by_hand_comes_before_every_policy(sqlite_url: str, policy: AckPolicy) -> None:
    async def ack_and_raise(job: Job) -> None:
        job.ack()
        raise ValueError("after the word")

    async def nack(job: Job) -> None:
        job.nack()

    async def reject(job: Job) -> None:
        job.reject("not wanted")

    async def reject_and_raise(job: Job) -> None:
        job.reject()
        raise ValueError("why it was rejected")

    async with Queue("orders", sqlite_url, clock=VirtualClock()) as queue:
        assert (await after(queue, ack_and_raise, ack_policy=policy)).state is State.COMPLETED
        assert (await after(queue, nack, ack_policy=policy)).state is State.RETRYABLE
        rejected = await after(queue, reject, ack_policy=policy)
        assert (rejected.state, rejected.reason) == (State.FAILED, Reason.REJECTED)
        assert rejected.error_message == "not wanted"
        rejected = await after(queue, reject_and_raise, ack_policy=policy)
        assert (rejected.reason, rejected.error_message) == (Reason.REJECTED, "why it was rejected")


async def test_the_first_word_counts(queue: Queue) -> None:
    async def change_of_mind(job: Job) -> None:
        job.reject("first")
        job.ack()
        job.nack()

    record = await after(queue, change_of_mind)
    assert (record.reason, record.error_message) == (Reason.REJECTED, "first")


async def test_a_nack_may_choose_its_delay_but_not_the_number_of_attempts(
    queue: Queue, clock: VirtualClock
) -> None:
    async def later(job: Job) -> None:
        job.nack(delay=HOUR)

    record = await after(queue, later)
    assert record.next_attempt_at == clock.now() + HOUR
    record = await after(queue, later, retry=NoRetry())
    assert (record.state, record.reason) == (State.FAILED, Reason.RETRIES_EXHAUSTED)


async def test_an_unrecoverable_error_beats_every_policy(queue: Queue) -> None:
    async def hopeless(job: Job) -> None:
        raise UnrecoverableError("the account is closed")

    for policy in (AckPolicy.NACK_ON_ERROR, AckPolicy.REJECT_ON_ERROR):
        record = await after(queue, hopeless, ack_policy=policy)
        assert (record.state, record.reason) == (State.FAILED, Reason.UNRECOVERABLE)
        assert (record.attempts, record.error_message) == (1, "the account is closed")


async def test_a_handler_that_wants_to_end_the_program_ends_its_job(queue: Queue) -> None:
    async def leave(job: Job) -> None:
        raise SystemExit(3)

    def leave_in_a_thread(job: Job) -> None:
        raise SystemExit(3)

    async def interrupt(job: Job) -> None:
        raise KeyboardInterrupt

    class Strange(BaseException):
        pass

    async def strange(job: Job) -> None:
        raise Strange("neither fish nor fowl")

    for handle in (leave, leave_in_a_thread, interrupt, strange):
        record = await after(queue, handle)
        assert (record.state, record.reason, record.attempts) == (State.FAILED, Reason.PANIC, 1)


async def test_a_handler_that_cancels_itself_has_failed_and_the_worker_goes_on(queue: Queue) -> None:
    async def cancel(job: Job) -> None:
        raise asyncio.CancelledError("gave up")

    record = await after(queue, cancel)
    assert (record.state, record.attempts) == (State.RETRYABLE, 1)
    assert record.error_message is not None
    assert "CancelledError" in record.error_message
    assert (await after(queue, returns)).state is State.COMPLETED


async def test_an_error_that_cannot_be_printed_is_an_outcome_like_any_other(queue: Queue) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    async def mute(job: Job) -> None:
        raise Mute

    record = await after(queue, mute, retry=NoRetry())
    assert (record.state, record.reason) == (State.FAILED, Reason.RETRIES_EXHAUSTED)
    assert record.error_type is not None
    assert record.error_type.endswith("Mute")


async def test_a_job_may_have_fewer_or_more_attempts_than_the_worker_gives(
    queue: Queue, clock: VirtualClock
) -> None:
    worker = make_worker(queue, retry=Constant(every=SECOND, max_attempts=2))
    attempts: dict[str, list[int]] = {"fewer": [], "worker's": [], "more": []}

    @worker.handler()
    async def anything(job: Job) -> None:
        attempts[job.name].append(job.attempt)
        raise ValueError("no")

    await queue.add("fewer", retry=NoRetry())
    await queue.add("worker's")
    await queue.add("more", retry=Exponential(initial=SECOND, multiplier=1.0, max_attempts=4))
    for _ in range(6):
        await worker.step()
        clock.advance(SECOND)
    assert attempts == {"fewer": [1], "worker's": [1, 2], "more": [1, 2, 3, 4]}
    assert await queue.dead.count() == {"retries_exhausted": 3}


async def test_the_delay_of_an_override_is_its_own(queue: Queue, clock: VirtualClock) -> None:
    worker = make_worker(queue, retry=Constant(every=SECOND, max_attempts=2))
    worker.handler()(raises)
    job_id = await queue.add("greet", retry=Constant(every=HOUR, max_attempts=2))
    await worker.step()
    assert (await record_of(queue, job_id)).next_attempt_at == clock.now() + HOUR


async def test_a_retry_callable_decides_by_attempt_and_error(queue: Queue, clock: VirtualClock) -> None:
    asked: list[tuple[int, str]] = []

    def choose(attempts: int, error: BaseException | None) -> timedelta | None:
        asked.append((attempts, type(error).__name__))
        return attempts * MINUTE if attempts < 3 else None

    worker = make_worker(queue, retry=choose)
    worker.handler()(raises)
    job_id = await queue.add("greet")
    for attempt in (1, 2):
        await worker.step()
        assert (await record_of(queue, job_id)).next_attempt_at == clock.now() + attempt * MINUTE
        clock.advance(HOUR)
    await worker.step()
    assert (await record_of(queue, job_id)).reason == Reason.RETRIES_EXHAUSTED
    assert asked == [(1, "ValueError"), (2, "ValueError"), (3, "ValueError")]


async def test_a_retry_callable_that_fails_makes_a_dead_letter_not_a_loop(queue: Queue) -> None:
    def broken(attempts: int, error: BaseException | None) -> timedelta | None:
        raise KeyError("the policy itself")

    record = await after(queue, raises, retry=broken)
    assert (record.state, record.reason, record.attempts) == (State.FAILED, Reason.RETRIES_EXHAUSTED, 1)


async def test_no_attempt_starts_later_than_the_total_delay(queue: Queue, clock: VirtualClock) -> None:
    worker = make_worker(queue, retry=Constant(every=MINUTE, max_total_delay=2 * MINUTE))
    starts: list[timedelta] = []
    begun = clock.now()

    @worker.handler()
    async def anything(job: Job) -> None:
        starts.append(clock.now() - begun)
        raise ValueError("no")

    job_id = await queue.add("greet")
    for _ in range(5):
        await worker.step()
        clock.advance(MINUTE)
    assert starts == [0 * MINUTE, MINUTE, 2 * MINUTE]
    assert (await record_of(queue, job_id)).reason == Reason.RETRIES_EXHAUSTED


async def test_the_delay_counts_from_the_failure_not_from_the_start(
    queue: Queue, clock: VirtualClock
) -> None:
    async def slow(job: Job) -> None:
        clock.advance(HOUR)
        raise ValueError("after an hour")

    record = await after(queue, slow)
    assert record.next_attempt_at == clock.now() + MINUTE
