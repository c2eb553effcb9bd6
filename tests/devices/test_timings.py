"""Every default of the specification, and what a deadline may not be."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from remuda.devices.timings import Timings
from remuda.errors import ConfigurationError
from remuda.retry import Exponential
from tests.devices.rules_workbench import EXACT, HOUR, MINUTE, SECOND, SEED


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("accept", 20),
        ("gateway", 15 * 60),
        ("device", 12),
        ("correlation", 10),
        ("max_age", 48 * 3600),
        ("sweep", 5),
        ("reap", 2),
        ("lock", 2),
    ],
)
def test_the_deadlines_are_those_of_the_specification(name: str, seconds: int) -> None:
    assert getattr(SEED, name) == timedelta(seconds=seconds)


def test_five_commands_of_a_gateway_at_once() -> None:
    assert SEED.per_gateway == 5


@pytest.mark.parametrize(
    ("age", "delay"),
    [(0, 10), (19.9, 10), (20, 15), (49.9, 15), (50, 20), (89.9, 20), (90, 30), (172_800, 30)],
)
def test_polls_become_rarer_with_age(age: float, delay: int) -> None:
    assert SEED.poll_delay(timedelta(seconds=age)) == timedelta(seconds=delay)


def test_the_last_poll_delay_holds_for_any_age_beyond_the_table() -> None:
    short = Timings(polls=((MINUTE, SECOND), (HOUR, 5 * SECOND)))
    assert short.poll_delay(2 * HOUR) == 5 * SECOND


def test_eleven_retries_take_4094_seconds_before_jitter() -> None:
    rng = random.Random(1)
    delays = [EXACT.retry.delay(tries, rng) for tries in range(1, 12)]
    assert delays[:3] == [2 * SECOND, 4 * SECOND, 8 * SECOND]
    assert sum(delays, timedelta(0)) == 4_094 * SECOND
    assert SEED.retry.max_attempts == 12


def test_a_raised_limit_runs_into_the_cap_of_an_hour() -> None:
    assert EXACT.retry.delay(11, random.Random(1)) == 2_048 * SECOND
    assert EXACT.retry.delay(12, random.Random(1)) == HOUR
    assert EXACT.retry.delay(40, random.Random(1)) == HOUR


@given(st.integers(1, 30), st.integers())
def test_jitter_adds_up_to_half_and_takes_nothing_away(tries: int, seed: int) -> None:
    exact = EXACT.retry.delay(tries, random.Random(seed))
    assert exact <= SEED.retry.delay(tries, random.Random(seed)) <= exact * 1.5


def test_jitter_spreads_the_retries_of_many_commands() -> None:
    delays = {SEED.retry.delay(5, random.Random(seed)) for seed in range(50)}
    assert len(delays) == 50
    assert max(delays) - min(delays) > 10 * SECOND


@pytest.mark.parametrize("name", ["accept", "gateway", "device", "correlation", "max_age", "reap", "call"])
@pytest.mark.parametrize("value", [timedelta(0), -SECOND])
def test_a_deadline_of_nothing_is_refused(name: str, value: timedelta) -> None:
    with pytest.raises(ConfigurationError, match=name):
        replace(SEED, **{name: value})


@pytest.mark.parametrize("name", ["lock", "keep_ended"])
def test_a_lane_need_not_rest_and_ended_commands_need_not_be_kept(name: str) -> None:
    assert getattr(replace(SEED, **{name: timedelta(0)}), name) == timedelta(0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"per_gateway": 0}, "per_gateway"),
        ({"polls": ()}, "polls"),
        ({"polls": ((MINUTE, timedelta(0)),)}, "polls"),
        ({"call": 19 * SECOND}, "call"),
    ],
)
def test_what_cannot_work_is_refused_by_name(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Timings(**wrong)


def test_another_policy_can_be_chosen() -> None:
    patient = replace(SEED, retry=Exponential(initial=SECOND, max_attempts=None))
    assert patient.retry.delay(4, random.Random(1)) == 8 * SECOND
