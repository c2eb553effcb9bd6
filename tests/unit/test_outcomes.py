"""From what a handler did to what is settled: a table, and the form in which errors are kept."""

from __future__ import annotations

import asyncio
import random
import traceback
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.errors import DecodeError, UnrecoverableError
from remuda.lifecycle import Reason, State
from remuda.retry import Constant, NoRetry, pack_policy
from remuda.stores.contract import Delivery, Settlement
from remuda.worker.job import ACK, Job, Verdict
from remuda.worker.options import AckPolicy
from remuda.worker.outcomes import describe, settle_run, undecodable, unheard

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
NACK, REJECT = Verdict("nack"), Verdict("reject", message="not wanted")
RETRY = Constant(every=SECOND, max_attempts=3)


def delivery(**other: Any) -> Delivery:
    given = {
        "key": 1,
        "lease": 1,
        "id": "a",
        "name": "job",
        "payload": b"\xc0",
        "headers": None,
        "attempts": 0,
        "deliveries": 1,
        "priority": 0,
        "created_at": NOW,
        "acquired_at": NOW,
        "next_attempt_at": NOW,
    }
    return Delivery(**{**given, **other})


def settled(
    policy: AckPolicy = AckPolicy.NACK_ON_ERROR,
    *,
    verdict: Verdict | None = None,
    error: BaseException | None = None,
    retry: Any = RETRY,
    result: bytes | None = None,
    **other: Any,
) -> Settlement:
    return settle_run(
        delivery(**other),
        started_at=NOW,
        verdict=verdict,
        error=error,
        ack_policy=policy,
        retry=retry,
        now=NOW + SECOND,
        rng=random.Random(1),
        result=result,
        result_ttl=SECOND,
    )


ERROR = ValueError("no")
C, R, F = State.COMPLETED, State.RETRYABLE, State.FAILED
A, AF, RE, NE, M = AckPolicy

TABLE: list[tuple[AckPolicy, Verdict | None, BaseException | None, State, Reason | None]] = [
    (A, None, None, C, None),
    (A, None, ERROR, C, None),
    (AF, None, None, C, None),
    (AF, None, ERROR, C, None),
    (RE, None, None, C, None),
    (RE, None, ERROR, F, Reason.REJECTED),
    (NE, None, None, C, None),
    (NE, None, ERROR, R, None),
    (M, None, None, F, Reason.REJECTED),
    (M, None, ERROR, F, Reason.REJECTED),
    # A word by hand comes first, whatever the policy and whatever is raised after it.
    *[(policy, ACK, error, C, None) for policy in AckPolicy for error in (None, ERROR, SystemExit(1))],
    *[(policy, NACK, error, R, None) for policy in AckPolicy for error in (None, ERROR)],
    *[(policy, REJECT, error, F, Reason.REJECTED) for policy in AckPolicy for error in (None, ERROR)],
    # Some errors have names of their own.
    (NE, None, UnrecoverableError("no"), F, Reason.UNRECOVERABLE),
    (RE, None, UnrecoverableError("no"), F, Reason.UNRECOVERABLE),
    (NE, None, SystemExit(1), F, Reason.PANIC),
    (RE, None, KeyboardInterrupt(), F, Reason.PANIC),
    (M, None, SystemExit(1), F, Reason.PANIC),
    (NE, NACK, UnrecoverableError("no"), F, Reason.UNRECOVERABLE),
    (NE, None, asyncio.CancelledError(), R, None),
]


@pytest.mark.parametrize(("policy", "verdict", "error", "state", "reason"), TABLE)
def test_every_row_of_the_table(
    policy: AckPolicy,
    verdict: Verdict | None,
    error: BaseException | None,
    state: State,
    reason: Reason | None,
) -> None:
    outcome = settled(policy, verdict=verdict, error=error)
    assert (outcome.state, outcome.reason) == (state, None if reason is None else reason.value)
    assert outcome.started_at == NOW
    assert (outcome.failure is None) == (state is State.COMPLETED)
    assert (outcome.next_attempt_at is None) == (state is not State.RETRYABLE)


def test_the_next_attempt_is_counted_from_now() -> None:
    assert settled(error=ERROR).next_attempt_at == NOW + 2 * SECOND
    asked = settled(verdict=Verdict("nack", delay=9 * SECOND))
    assert asked.next_attempt_at == NOW + 10 * SECOND


def test_attempts_so_far_count() -> None:
    assert settled(error=ERROR, attempts=1).state is State.RETRYABLE
    last = settled(error=ERROR, attempts=2)
    assert (last.state, last.reason) == (State.FAILED, Reason.RETRIES_EXHAUSTED)
    assert settled(error=ERROR, retry=NoRetry()).reason == Reason.RETRIES_EXHAUSTED


def test_the_total_delay_counts_from_the_first_attempt_of_all() -> None:
    policy = Constant(every=SECOND, max_total_delay=10 * SECOND)
    assert settled(error=ERROR, retry=policy, attempts=5).state is State.RETRYABLE
    long_ago = settled(error=ERROR, retry=policy, attempts=5, first_attempt_at=NOW - 10 * SECOND)
    assert long_ago.reason == Reason.RETRIES_EXHAUSTED


def test_an_override_goes_before_the_workers_policy() -> None:
    override = pack_policy(Constant(every=60 * SECOND))
    outcome = settle_run(
        delivery(retry=override),
        started_at=NOW,
        verdict=None,
        error=ERROR,
        ack_policy=AckPolicy.NACK_ON_ERROR,
        retry=NoRetry(),
        now=NOW,
        rng=random.Random(1),
    )
    assert outcome.next_attempt_at == NOW + 60 * SECOND


def test_a_broken_override_is_a_decode_error() -> None:
    with pytest.raises(DecodeError):
        settle_run(
            delivery(retry=b"\xc1"),
            started_at=NOW,
            verdict=None,
            error=ERROR,
            ack_policy=AckPolicy.NACK_ON_ERROR,
            retry=RETRY,
            now=NOW,
            rng=random.Random(1),
        )


def unheard_with(**other: Any) -> Settlement | None:
    return unheard(delivery(**other), now=NOW, max_deliveries=2, max_payload_bytes=10)


def test_what_may_not_be_heard_ends_without_an_attempt() -> None:
    assert unheard_with() is None
    assert unheard_with(deliveries=2, payload=b"x" * 10, expires_at=NOW + SECOND) is None
    for other, reason in (
        ({"deliveries": 3}, Reason.MAX_DELIVERIES),
        ({"expires_at": NOW}, Reason.EXPIRED),
        ({"payload": b"x" * 11}, Reason.OVERSIZE),
    ):
        outcome = unheard_with(**other)
        assert outcome is not None
        assert (outcome.state, outcome.reason, outcome.started_at) == (State.FAILED, reason, None)
        assert outcome.failure is not None
        assert outcome.failure.message


def test_no_limit_of_deliveries_is_no_limit() -> None:
    many = delivery(deliveries=10**6)
    assert unheard(many, now=NOW, max_deliveries=None, max_payload_bytes=10) is None


def test_an_unreadable_delivery_ends_without_an_attempt() -> None:
    outcome = undecodable(delivery(), DecodeError("no msgpack"))
    assert (outcome.state, outcome.reason, outcome.started_at) == (State.FAILED, Reason.DECODE_FAIL, None)
    assert outcome.failure is not None
    assert outcome.failure.message == "no msgpack"


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - for its trace
        return caught


def test_an_error_is_kept_with_its_type_text_and_trace() -> None:
    failure = describe(raised(ValueError("no")))
    assert (failure.type, failure.message) == ("ValueError", "no")
    assert failure.trace is not None
    assert failure.trace.startswith("Traceback")
    assert failure.trace.endswith("ValueError: no\n")
    assert describe(UnrecoverableError("no")).type == "remuda.errors.UnrecoverableError"
    assert describe(ValueError("never raised")).trace is None


def test_a_trace_begins_with_what_is_the_users_own() -> None:
    with pytest.raises(TimeoutError) as found:
        asyncio.run(asyncio.wait_for(asyncio.Event().wait(), 0.001))
    assert "in test_a_trace_begins" in (describe(found.value).trace or "")
    ours = found.value.with_traceback(found.tb.tb_next)
    trace = describe(ours).trace or ""
    assert "in test_a_trace_begins" not in trace
    whole = "".join(traceback.format_exception(ours))
    assert trace == whole, "where nothing is the user's, all of it is kept"


@given(st.text(max_size=200))
def test_any_text_is_kept_in_characters_that_every_store_takes(text: str) -> None:
    failure = describe(raised(ValueError(text)))
    assert failure.trace is not None
    for kept in (failure.message, failure.trace):
        kept.encode()
        assert "\x00" not in kept


def test_long_texts_are_cut_at_the_end_that_says_less() -> None:
    failure = describe(raised(ValueError("begin" + "x" * 100_000 + "end")))
    assert failure.trace is not None
    assert failure.message.startswith("begin")
    assert failure.trace.endswith("end\n")
    assert (len(failure.message), len(failure.trace)) == (4_000, 32_000)


def test_an_error_that_cannot_be_printed_is_kept_all_the_same() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    failure = describe(raised(Mute()))
    assert failure.type.endswith("Mute")
    assert "RuntimeError" in failure.message


def test_a_very_long_type_name_is_cut() -> None:
    assert len(describe(type("E" * 1_000, (Exception,), {})("no")).type) == 255


def make_job() -> Job:
    return Job(
        id="a",
        name="job",
        payload=None,
        headers={},
        queue="orders",
        attempt=1,
        deliveries=1,
        priority=0,
        created_at=NOW,
        expires_at=None,
        worker="w",
    )


def test_the_first_word_of_a_handler_counts() -> None:
    job = make_job()
    assert job.verdict is None
    job.nack(delay=SECOND)
    job.ack()
    job.reject("no")
    assert job.verdict == Verdict("nack", delay=SECOND)


def test_a_negative_delay_of_a_nack_is_refused() -> None:
    job = make_job()
    with pytest.raises(ValueError, match="negative"):
        job.nack(delay=-SECOND)
    assert job.verdict is None


def test_only_a_completed_job_has_a_result() -> None:
    done = settled(result=b"\x01")
    assert (done.result, done.result_ttl) == (b"\x01", SECOND)
    for ended in (settled(verdict=NACK, result=b"\x01"), settled(verdict=REJECT, result=b"\x01")):
        assert ended.result is None
