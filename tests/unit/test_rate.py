"""Buckets of turns: never more than the limit says, never fewer than it grants, in whatever order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.errors import ConfigurationError
from remuda.rate import NO_LIMITS, RateLimit, RateLimits, book, book_all, has_turn, take

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)


@st.composite
def limits(draw: st.DrawFn) -> RateLimit:
    jobs = draw(st.integers(1, 50))
    return RateLimit(jobs, draw(st.timedeltas(jobs * MICROSECOND, timedelta(days=30))))


pauses = st.one_of(st.just(timedelta(0)), st.timedeltas(timedelta(0), timedelta(days=3)))


def windows_hold(limit: RateLimit, moments: list[datetime]) -> bool:
    """In any stretch of time no more than a bucket full, and what came back meanwhile."""
    return all(
        last - first + 1 <= limit.jobs + (moments[last] - moments[first]) // limit.interval
        for first in range(len(moments))
        for last in range(first, len(moments))
    )


@given(limits(), st.lists(st.tuples(pauses, st.integers(1, 60)), max_size=25))
def test_turns_taken_never_exceed_the_limit_in_any_stretch_of_time(
    limit: RateLimit, asked: list[tuple[timedelta, int]]
) -> None:
    now, full_at, taken = NOW, None, []
    for pause, wanted in asked:
        now += pause
        granted, full_at = take(limit, full_at, wanted=wanted, now=now)
        assert 0 <= granted <= min(wanted, limit.jobs)
        taken += [now] * granted
    assert windows_hold(limit, taken)


@given(limits(), st.lists(pauses, max_size=60))
def test_booked_turns_come_in_order_and_never_exceed_the_limit(
    limit: RateLimit, asked: list[timedelta]
) -> None:
    now, full_at, booked = NOW, None, []
    for pause in asked:
        now += pause
        moment, full_at = book(limit, full_at, now=now)
        assert moment >= now
        booked.append(moment)
    assert booked == sorted(booked)
    assert windows_hold(limit, booked)


@given(limits(), st.integers(1, 1_000))
def test_after_a_quiet_time_there_are_just_as_many_turns_as_the_limit_says(
    limit: RateLimit, more: int
) -> None:
    granted, full_at = take(limit, None, wanted=limit.jobs + more, now=NOW)
    assert granted == limit.jobs
    assert take(limit, full_at, wanted=1, now=NOW)[0] == 0
    assert take(limit, full_at, wanted=more, now=NOW + limit.interval)[0] == 1
    assert take(limit, full_at, wanted=limit.jobs + more, now=NOW + limit.burst)[0] == limit.jobs


@given(limits())
def test_the_rounding_slows_a_limit_by_less_than_a_microsecond_a_job(limit: RateLimit) -> None:
    assert limit.per <= limit.burst < limit.per + limit.jobs * MICROSECOND


@given(limits(), st.integers(0, 60), st.integers(0, 60), pauses)
def test_giving_back_undoes_taking(limit: RateLimit, before: int, wanted: int, pause: timedelta) -> None:
    _, full_at = take(limit, None, wanted=before, now=NOW)
    now = NOW + pause
    granted, after = take(limit, full_at, wanted=wanted, now=now)
    assert take(limit, after, wanted=-granted, now=now) == (0, max(full_at, now))


@given(limits(), st.integers(1, 60), pauses)
def test_no_more_can_be_given_back_than_a_bucket_holds(limit: RateLimit, back: int, pause: timedelta) -> None:
    _, full_at = take(limit, None, wanted=1, now=NOW)
    _, full_at = take(limit, full_at, wanted=-back, now=NOW + pause)
    assert take(limit, full_at, wanted=limit.jobs + 1, now=NOW + pause)[0] == limit.jobs


@given(limits(), st.integers(0, 60), pauses)
def test_a_turn_is_booked_for_now_just_when_one_could_be_taken(
    limit: RateLimit, before: int, pause: timedelta
) -> None:
    _, full_at = take(limit, None, wanted=before, now=NOW)
    now = NOW + pause
    granted, after = take(limit, full_at, wanted=1, now=now)
    moment, booked = book(limit, full_at, now=now)
    assert (moment == now) == (granted == 1)
    if granted:
        assert booked == after


@given(
    limits(), st.lists(st.sampled_from("abc"), max_size=40), st.dictionaries(st.sampled_from("abc"), pauses)
)
def test_booking_for_many_keys_is_booking_for_each_by_itself(
    limit: RateLimit, keys: list[str], ahead: dict[str, timedelta]
) -> None:
    buckets = {key: NOW + each for key, each in ahead.items()}
    moments, changed = book_all(limit, buckets, keys, now=NOW)
    assert changed.keys() == set(keys)
    for key in set(keys):
        full_at = buckets.get(key)
        alone = []
        for _ in range(keys.count(key)):
            moment, full_at = book(limit, full_at, now=NOW)
            alone.append(moment)
        assert [at for at, each in zip(moments, keys, strict=True) if each == key] == alone
        assert changed[key] == full_at


def test_turns_come_at_even_distances() -> None:
    limit = RateLimit(3, timedelta(seconds=30))
    full_at = None
    moments = []
    for _ in range(6):
        moment, full_at = book(limit, full_at, now=NOW)
        moments.append((moment - NOW) // SECOND)
    assert moments == [0, 0, 0, 10, 20, 30]


@pytest.mark.parametrize(
    ("slot", "holds"),
    [(None, False), (0, True), (59, True), (60, False), (86_400, False)],
)
def test_a_slot_is_good_for_one_period(slot: int | None, holds: bool) -> None:
    slot_at = None if slot is None else NOW - slot * SECOND
    assert has_turn(RateLimit(5, 60 * SECOND), slot_at, now=NOW) is holds


def test_a_slot_of_a_fast_limit_outlives_a_busy_moment() -> None:
    assert has_turn(RateLimit(1, SECOND / 100), NOW - SECOND / 2, now=NOW)


@pytest.mark.parametrize(
    ("jobs", "per"),
    [(0, SECOND), (-1, SECOND), (1.5, SECOND), (True, SECOND), (1, timedelta(0)), (1, -SECOND), (1, 60)],
)
def test_a_limit_that_means_nothing_is_refused(jobs: Any, per: Any) -> None:
    with pytest.raises(ConfigurationError, match="rate limit"):
        RateLimit(jobs, per)


def test_a_limit_that_limits_nothing_is_refused() -> None:
    RateLimit(1_000_000, SECOND)
    with pytest.raises(ConfigurationError, match="microsecond"):
        RateLimit(1_000_001, SECOND)


def test_limits_are_true_when_there_is_one() -> None:
    limit = RateLimit(1, SECOND)
    assert not NO_LIMITS
    assert RateLimits(queue=limit)
    assert RateLimits(key=limit)
