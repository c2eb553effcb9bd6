"""When repeatable jobs are due: calendars with daylight saving, grids, limits, windows that were missed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.errors import ConfigurationError
from remuda.schedule import LATE, MOST_AT_ONCE, Missed, Repeat, calendar, due

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
BERLIN, NEW_YORK, KOLKATA = "Europe/Berlin", "America/New_York", "Asia/Kolkata"


def local(expression: str, zone: str, after: str, count: int) -> list[str]:
    """The next moments as a clock on the wall there shows them, with the distance from UTC."""
    start = datetime.fromisoformat(after).replace(tzinfo=ZoneInfo(zone))
    moments = islice(calendar(expression, zone, start.astimezone(UTC)), count)
    return [each.astimezone(ZoneInfo(zone)).isoformat() for each in moments]


def every(length: timedelta, **options: Any) -> Repeat:
    return Repeat(name="n", payload=b"\xc0", every=length, **options)


def cron(expression: str, **options: Any) -> Repeat:
    return Repeat(name="n", payload=b"\xc0", cron=expression, **options)


# -- the calendar


def test_fields_names_ranges_steps_and_lists() -> None:
    assert local("*/20 9-10 * * MON-FRI", "UTC", "2026-03-06T09:30", 5) == [
        "2026-03-06T09:40:00+00:00",
        "2026-03-06T10:00:00+00:00",
        "2026-03-06T10:20:00+00:00",
        "2026-03-06T10:40:00+00:00",
        "2026-03-09T09:00:00+00:00",
    ]
    assert local("0 0 1,15 jan,Jun *", "UTC", "2026-01-02T00:00", 3) == [
        "2026-01-15T00:00:00+00:00",
        "2026-06-01T00:00:00+00:00",
        "2026-06-15T00:00:00+00:00",
    ]


def test_six_fields_begin_with_seconds() -> None:
    assert local("*/25 59 23 * * *", "UTC", "2026-03-01T23:59:25", 3) == [
        "2026-03-01T23:59:50+00:00",
        "2026-03-02T23:59:00+00:00",
        "2026-03-02T23:59:25+00:00",
    ]
    assert local("30 0 12 * * *", "UTC", "2026-03-01T12:00:30", 1) == ["2026-03-02T12:00:30+00:00"]
    assert local("30 0 12 * * *", "UTC", "2026-03-01T12:00:29", 1) == ["2026-03-01T12:00:30+00:00"]


def test_the_last_day_and_leap_days() -> None:
    assert local("0 6 L * *", "UTC", "2028-01-31T07:00", 3) == [
        "2028-02-29T06:00:00+00:00",
        "2028-03-31T06:00:00+00:00",
        "2028-04-30T06:00:00+00:00",
    ]
    assert local("0 0 29 2 *", "UTC", "2026-01-01T00:00", 2) == [
        "2028-02-29T00:00:00+00:00",
        "2032-02-29T00:00:00+00:00",
    ]
    assert local("0 0 * * 5L", "UTC", "2026-03-01T00:00", 1) == ["2026-03-27T00:00:00+00:00"]


@pytest.mark.parametrize("expression", ["30 2 * * *", "0 30 2 * * *"])
def test_an_hour_that_the_clock_leaps_over_is_made_up_for(expression: str) -> None:
    assert local(expression, BERLIN, "2026-03-28T12:00", 3) == [
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
        "2026-03-31T02:30:00+02:00",
    ]


@pytest.mark.parametrize("expression", ["30 2 * * *", "0 30 2 * * *"])
def test_an_hour_that_comes_twice_counts_once(expression: str) -> None:
    assert local(expression, BERLIN, "2026-10-24T12:00", 2) == [
        "2026-10-25T02:30:00+02:00",
        "2026-10-26T02:30:00+01:00",
    ]
    # Asked in the second of the two hours, it is over for the day.
    second_time = datetime(2026, 11, 1, 1, 10, tzinfo=ZoneInfo(NEW_YORK), fold=1).astimezone(UTC)
    (coming,) = islice(calendar("30 1 * * *", NEW_YORK, second_time), 1)
    assert coming == datetime(2026, 11, 2, 6, 30, tzinfo=UTC)


def test_what_runs_every_few_minutes_goes_on_through_both_changes() -> None:
    for day in ("2026-03-29T00:30", "2026-10-25T00:30"):
        start = datetime.fromisoformat(day).replace(tzinfo=UTC)
        moments = list(islice(calendar("*/15 * * * *", BERLIN, start), 16))
        assert {later - earlier for earlier, later in pairwise(moments)} == {timedelta(minutes=15)}


def test_zones_that_are_half_an_hour_off() -> None:
    for zone in (KOLKATA, "+05:30", "+0530"):
        assert next(calendar("0 9 * * *", zone, NOON)) == datetime(2026, 3, 3, 3, 30, tzinfo=UTC)
    assert next(calendar("0 9 * * *", "-03:00", NOON)) == datetime(2026, 3, 3, 12, 0, tzinfo=UTC)
    assert next(calendar("0 9 * * *", "Z", NOON)) == datetime(2026, 3, 3, 9, 0, tzinfo=UTC)


@given(
    st.sampled_from(
        ["* * * * *", "30 2 * * *", "0 */6 * * *", "15 1-3 * * SUN", "*/20 30 2 * * *", "0 0 L * *"]
    ),
    st.sampled_from(["UTC", BERLIN, NEW_YORK, KOLKATA, "Australia/Lord_Howe", "America/Santiago"]),
    st.integers(0, 4 * 366 * 86_400 * 1_000).map(lambda ms: NOON + timedelta(milliseconds=ms)),
)
def test_moments_rise_and_come_after_the_one_asked_for(expression: str, zone: str, after: datetime) -> None:
    moments = [after, *islice(calendar(expression, zone, after), 4)]
    assert all(earlier < later for earlier, later in pairwise(moments))
    # The same moments whoever asks from wherever between two of them.
    assert next(calendar(expression, zone, moments[1])) == moments[2]
    assert next(calendar(expression, zone, moments[2] - timedelta(microseconds=1))) == moments[2]


# -- specs


def test_a_spec_goes_by_its_name_and_its_pattern() -> None:
    assert every(timedelta(seconds=1.5)).key == "n::every:1500"
    assert cron("0 9 * * *", zone=BERLIN).key == "n::cron:0 9 * * *:Europe/Berlin"
    assert cron("0 9 * * *", key="mine").key == "mine"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "give either every or cron"),
        ({"every": HOUR, "cron": "* * * * *"}, "give either every or cron"),
        ({"every": timedelta(milliseconds=1)}, "at least 0:00:00.010000"),
        ({"every": timedelta(seconds=1, microseconds=1)}, "whole milliseconds"),
        ({"cron": "61 * * * *"}, "'61 * * * *' cannot be read: Bad minute"),
        ({"cron": "* * *"}, "Wrong number of fields"),
        ({"cron": "0 0 30 2 *"}, "'0 0 30 2 *'"),
        ({"cron": "* * * * *", "zone": "Mars/Base"}, "no time zone 'Mars/Base'"),
        ({"cron": "* * * * *", "zone": "../../etc/passwd"}, "no time zone"),
        ({"every": HOUR, "start": NOON.replace(tzinfo=None)}, "start must have a time zone"),
        ({"every": HOUR, "start": NOON, "end": NOON - DAY}, "is before the start"),
        ({"every": HOUR, "limit": 0}, "limit must be at least 1, not 0"),
        ({"every": HOUR, "missed": Missed.FIRE_ALL, "most": 0}, "1 to 1000 windows, not 0"),
        ({"every": HOUR, "most": 3}, "goes with fire-all"),
    ],
)
def test_what_is_no_spec_is_refused_by_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Repeat(name="n", payload=b"", **options)
    assert said in str(refused.value)


def test_the_first_window() -> None:
    assert every(HOUR).first_window(NOON) == NOON + HOUR
    assert every(HOUR, start=NOON + DAY).first_window(NOON) == NOON + DAY
    assert every(HOUR, start=NOON - 90 * MINUTE).first_window(NOON) == NOON + 30 * MINUTE
    assert every(HOUR, start=NOON).first_window(NOON) == NOON
    assert every(HOUR, end=NOON + MINUTE).first_window(NOON) is None
    assert cron("0 13 * * *").first_window(NOON) == NOON + HOUR
    assert cron("0 13 * * *", start=NOON + HOUR).first_window(NOON) == NOON + HOUR
    assert cron("0 13 * * *", start=NOON + 2 * HOUR).first_window(NOON) == NOON + 25 * HOUR


# -- what is owed


def test_nothing_is_owed_before_the_window() -> None:
    owed = due(every(HOUR), NOON, fired=0, now=NOON - MINUTE)
    assert (owed.windows, owed.next, owed.missed) == ((), NOON, 0)


@pytest.mark.parametrize("spec", [every(HOUR), cron("0 * * * *")])
def test_on_time_there_is_one_job_and_the_grid_stays(spec: Repeat) -> None:
    for late in (timedelta(0), timedelta(seconds=7), LATE):
        owed = due(spec, NOON, fired=0, now=NOON + late)
        assert (owed.windows, owed.next, owed.missed) == ((NOON,), NOON + HOUR, 0)


@pytest.mark.parametrize("make", [lambda **o: every(HOUR, **o), lambda **o: cron("0 * * * *", **o)])
def test_missed_windows(make: Callable[..., Repeat]) -> None:
    now = NOON + 5 * HOUR + 10 * MINUTE  # six windows have come, the last one ten minutes ago
    skipped = due(make(), NOON, fired=0, now=now)
    assert (skipped.windows, skipped.next, skipped.missed) == ((), NOON + 6 * HOUR, 6)
    once = due(make(missed=Missed.FIRE_ONCE), NOON, fired=0, now=now)
    assert (once.windows, once.next, once.missed) == ((NOON + 5 * HOUR,), NOON + 6 * HOUR, 5)
    some = due(make(missed=Missed.FIRE_ALL, most=3), NOON, fired=0, now=now)
    assert some.windows == (NOON + 3 * HOUR, NOON + 4 * HOUR, NOON + 5 * HOUR)
    assert (some.next, some.missed) == (NOON + 6 * HOUR, 3)
    # The last one is on time: it comes whatever is done about the others.
    soon = due(make(), NOON, fired=0, now=NOON + 5 * HOUR + LATE)
    assert (soon.windows, soon.missed) == ((NOON + 5 * HOUR,), 5)


def test_a_year_of_missed_seconds_costs_no_more_than_a_day() -> None:
    owed = due(every(timedelta(seconds=1), missed=Missed.FIRE_ALL), NOON, fired=0, now=NOON + 365 * DAY)
    assert len(owed.windows) == MOST_AT_ONCE
    assert owed.missed == 365 * 86_400 + 1 - MOST_AT_ONCE


def test_limit_and_end_end_a_spec() -> None:
    last = due(every(HOUR, limit=5), NOON, fired=4, now=NOON)
    assert (last.windows, last.next) == ((NOON,), None)
    over = due(every(HOUR, limit=2, missed=Missed.FIRE_ALL), NOON, fired=0, now=NOON + 9 * HOUR)
    assert (len(over.windows), over.next) == (2, None)
    ended = due(every(HOUR, end=NOON + HOUR), NOON + HOUR, fired=1, now=NOON + HOUR)
    assert (ended.windows, ended.next) == ((NOON + HOUR,), None)
    past = due(cron("0 * * * *", end=NOON + HOUR, missed=Missed.FIRE_ALL), NOON, fired=0, now=NOON + DAY)
    assert (past.windows, past.next) == ((NOON, NOON + HOUR), None)


@given(
    st.integers(1, 4000).map(lambda s: timedelta(seconds=s)),
    st.lists(st.integers(0, 20_000), min_size=1, max_size=12),
    st.sampled_from([*Missed]),
    st.one_of(st.none(), st.integers(1, 9)),
)
def test_no_window_is_owed_twice_and_limits_hold(
    length: timedelta, waits: list[int], missed: Missed, limit: int | None
) -> None:
    spec = every(length, missed=missed, limit=limit)
    now, window, fired = NOON, NOON, 0
    seen: list[datetime] = []
    for seconds in waits:
        now += timedelta(seconds=seconds)
        owed = due(spec, window, fired=fired, now=now)
        seen += owed.windows
        fired += len(owed.windows)
        if owed.next is None:
            break
        assert owed.next > now
        assert (owed.next - NOON) % length == timedelta(0)
        window = owed.next
    assert seen == sorted(set(seen))
    assert limit is None or fired <= limit
