"""Retry policies as values, and the one decision that they serve."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.errors import ConfigurationError, DecodeError, UnrecoverableError
from remuda.lifecycle import Reason
from remuda.retry import (
    DEFAULT_RETRY,
    Again,
    Constant,
    Dead,
    Exponential,
    Linear,
    NoRetry,
    RetryPolicy,
    decide,
    final_reason,
    pack_policy,
    unpack_policy,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
NOUGHT = timedelta(0)
SECOND = timedelta(seconds=1)
LONGEST = timedelta(days=3650)

delays = st.timedeltas(NOUGHT, timedelta(days=30))
common = {
    "max_attempts": st.none() | st.integers(1, 1_000),
    "max_total_delay": st.none() | delays,
    "cap": st.none() | delays,
    "jitter": st.floats(0, 10) | delays,
}
policies: st.SearchStrategy[RetryPolicy] = st.one_of(
    st.builds(Constant, every=delays, **common),
    st.builds(Linear, initial=delays, step=delays, **common),
    st.builds(Exponential, initial=delays, multiplier=st.floats(1, 10), **common),
    st.builds(NoRetry),
)
attempts = st.integers(1, 10_000)
seeds = st.integers(0, 2**32)


def decided(policy: Any, attempt: int = 1, **options: Any) -> Again | Dead:
    given = {"first_attempt_at": NOW, "now": NOW, "error": ValueError("no"), "rng": random.Random(1)}
    return decide(policy, attempts=attempt, **{**given, **options})


@given(policies, attempts, seeds)
def test_a_delay_is_never_negative_and_within_its_jitter(
    policy: RetryPolicy, attempt: int, seed: int
) -> None:
    delay = policy.delay(attempt, random.Random(seed))
    plain = policy.base_delay(attempt)
    if policy.cap is not None:
        plain = min(plain, policy.cap)
    if isinstance(policy.jitter, timedelta):
        low, high = plain - policy.jitter, plain + policy.jitter
    else:
        low, high = plain, plain * (1 + policy.jitter)
    assert max(NOUGHT, low) - timedelta(microseconds=1) <= delay <= high + timedelta(milliseconds=1)
    assert delay >= NOUGHT


@given(policies, st.integers(1, 5_000))
def test_without_jitter_a_delay_never_shrinks_and_never_passes_the_cap(
    policy: RetryPolicy, attempt: int
) -> None:
    plain = msgspec.structs.replace(policy, jitter=0.0)
    rng = random.Random(1)
    first, second = plain.delay(attempt, rng), plain.delay(attempt + 1, rng)
    assert first <= second
    if plain.cap is not None:
        assert second <= plain.cap


@given(policies, attempts, seeds)
def test_a_delay_is_the_same_for_the_same_random_source(policy: RetryPolicy, attempt: int, seed: int) -> None:
    assert policy.delay(attempt, random.Random(seed)) == policy.delay(attempt, random.Random(seed))


def test_the_delays_are_those_of_their_names() -> None:
    rng = random.Random(1)

    def first_four(policy: RetryPolicy) -> list[float]:
        return [policy.delay(attempt, rng).total_seconds() for attempt in (1, 2, 3, 4)]

    assert first_four(Constant(every=3 * SECOND)) == [3, 3, 3, 3]
    assert first_four(Linear(initial=SECOND, step=2 * SECOND)) == [1, 3, 5, 7]
    assert first_four(Exponential(initial=SECOND, multiplier=3.0)) == [1, 3, 9, 27]
    assert first_four(Exponential(initial=SECOND, multiplier=3.0, cap=5 * SECOND)) == [1, 3, 5, 5]


@pytest.mark.parametrize(
    "policy",
    [
        Exponential(initial=SECOND, multiplier=10.0),
        Exponential(initial=timedelta(days=3_000), multiplier=1.5),
        Linear(initial=NOUGHT, step=timedelta(days=3_650)),
    ],
)
def test_a_delay_without_bound_comes_to_rest(policy: RetryPolicy) -> None:
    assert policy.delay(1_000_000, random.Random(1)) == LONGEST


def test_nought_times_anything_is_nought() -> None:
    assert Exponential(initial=NOUGHT, multiplier=2.0).delay(5_000, random.Random(1)) == NOUGHT


@given(policies)
def test_an_override_comes_back_from_its_stored_form(policy: RetryPolicy) -> None:
    again = unpack_policy(pack_policy(policy))
    assert again == policy
    assert type(again) is type(policy)


@given(st.binary(max_size=40))
def test_any_other_bytes_are_refused(garbage: bytes) -> None:
    try:
        policy = unpack_policy(garbage)
    except DecodeError:
        return
    assert pack_policy(policy)  # bytes that happen to be a policy


@pytest.mark.parametrize(
    "packed",
    [b"", b"\xc1", b"\x90", msgspec.msgpack.encode(["constant", 0]), msgspec.msgpack.encode(["unknown"])],
)
def test_a_broken_override_is_a_decode_error(packed: bytes) -> None:
    with pytest.raises(DecodeError, match="retry override"):
        unpack_policy(packed)


def test_a_stored_override_is_checked_like_a_new_one() -> None:
    good = msgspec.msgpack.decode(pack_policy(Constant(every=SECOND, max_attempts=7)))
    good[good.index(7)] = -7
    with pytest.raises(DecodeError, match="max_attempts"):
        unpack_policy(msgspec.msgpack.encode(good))


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: Constant(every=-SECOND), "every"),
        (lambda: Constant(every=SECOND, max_attempts=0), "max_attempts"),
        (lambda: Constant(every=SECOND, cap=-SECOND), "cap"),
        (lambda: Constant(every=SECOND, max_total_delay=-SECOND), "max_total_delay"),
        (lambda: Constant(every=SECOND, jitter=-0.1), "jitter"),
        (lambda: Constant(every=SECOND, jitter=11.0), "jitter"),
        (lambda: Constant(every=SECOND, jitter=float("nan")), "jitter"),
        (lambda: Constant(every=SECOND, jitter=-SECOND), "jitter"),
        (lambda: Linear(initial=-SECOND, step=SECOND), "initial"),
        (lambda: Linear(initial=SECOND, step=-SECOND), "step"),
        (lambda: Exponential(initial=-SECOND), "initial"),
        (lambda: Exponential(multiplier=0.9), "multiplier"),
        (lambda: Exponential(multiplier=float("nan")), "multiplier"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_by_name(make: Any, names: str) -> None:
    with pytest.raises(ConfigurationError, match=names):
        make()


@given(policies, attempts, seeds, st.timedeltas(NOUGHT, timedelta(days=60)))
def test_the_limits_of_a_policy_are_kept(
    policy: RetryPolicy, attempt: int, seed: int, since_first: timedelta
) -> None:
    decision = decide(
        policy,
        attempts=attempt,
        first_attempt_at=NOW - since_first,
        now=NOW,
        error=ValueError("no"),
        rng=random.Random(seed),
    )
    if isinstance(decision, Dead):
        assert decision.reason is Reason.RETRIES_EXHAUSTED
        assert policy.max_attempts is not None or policy.max_total_delay is not None
        return
    assert decision.at >= NOW
    assert policy.max_attempts is None or attempt < policy.max_attempts
    assert policy.max_total_delay is None or decision.at - (NOW - since_first) <= policy.max_total_delay


def test_the_last_attempt_is_the_last() -> None:
    policy = Constant(every=SECOND, max_attempts=3)
    assert decided(policy, 2) == Again(NOW + SECOND)
    assert decided(policy, 3) == Dead(Reason.RETRIES_EXHAUSTED)
    assert decided(NoRetry(), 1) == Dead(Reason.RETRIES_EXHAUSTED)


def test_the_total_delay_counts_from_the_first_attempt() -> None:
    policy = Constant(every=SECOND, max_total_delay=3 * SECOND)
    assert decided(policy, first_attempt_at=NOW - 2 * SECOND) == Again(NOW + SECOND)
    late = decided(policy, first_attempt_at=NOW - 2 * SECOND - timedelta(microseconds=1))
    assert late == Dead(Reason.RETRIES_EXHAUSTED)


@pytest.mark.parametrize("policy", [DEFAULT_RETRY, lambda attempts, error: SECOND])
def test_a_final_error_beats_every_policy(policy: Any) -> None:
    assert decided(policy, error=UnrecoverableError("no")) == Dead(Reason.UNRECOVERABLE)
    assert decided(policy, error=SystemExit(1)) == Dead(Reason.PANIC)
    assert decided(policy, error=KeyboardInterrupt()) == Dead(Reason.PANIC)
    assert isinstance(decided(policy, error=None), Again)
    assert isinstance(decided(policy, error=asyncio.CancelledError()), Again)


def test_the_reason_of_each_kind_of_error() -> None:
    class Own(UnrecoverableError):
        pass

    assert final_reason(Own("no")) is Reason.UNRECOVERABLE
    assert final_reason(GeneratorExit()) is Reason.PANIC
    assert final_reason(asyncio.CancelledError()) is None
    assert final_reason(ValueError("no")) is None
    assert final_reason(None) is None


def test_an_asked_delay_replaces_the_delay_and_not_the_limits() -> None:
    policy = Constant(every=SECOND, max_attempts=2, max_total_delay=10 * SECOND)
    assert decided(policy, asked_delay=5 * SECOND) == Again(NOW + 5 * SECOND)
    assert decided(policy, asked_delay=-5 * SECOND) == Again(NOW)
    assert decided(policy, asked_delay=11 * SECOND) == Dead(Reason.RETRIES_EXHAUSTED)
    assert decided(policy, 2, asked_delay=NOUGHT) == Dead(Reason.RETRIES_EXHAUSTED)


def test_a_callable_is_asked_with_the_attempt_and_the_error() -> None:
    asked: list[Any] = []

    def choose(attempts: int, error: BaseException | None) -> timedelta | None:
        asked.append((attempts, error))
        return None if attempts > 2 else attempts * SECOND

    error = ValueError("no")
    assert decided(choose, 2, error=error) == Again(NOW + 2 * SECOND)
    assert decided(choose, 3, error=error) == Dead(Reason.RETRIES_EXHAUSTED)
    assert decided(choose, 1, asked_delay=9 * SECOND) == Again(NOW + 9 * SECOND)
    assert decided(lambda attempts, error: -SECOND) == Again(NOW)
    assert asked[:2] == [(2, error), (3, error)]


def test_policies_are_values() -> None:
    assert Constant(every=SECOND) == Constant(every=SECOND)
    assert len({Constant(every=SECOND), Constant(every=SECOND), NoRetry()}) == 2
