"""Durations and moments as people write and read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from remuda.cli.times import Moment, parse_duration, parse_instant, parse_moment, relative, span

NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("30s", 30),
        ("5m", 300),
        ("1h30m", 5400),
        ("2D", 172_800),
        ("1w", 604_800),
        ("1.5h", 5400),
    ],
)
def test_a_duration_is_numbers_with_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "5", "m", "5 m", "-5m", "5y", "5m!", "1e3s", "9999999999999w"])
def test_anything_else_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a duration|longer than"):
        parse_duration(text)


def test_a_moment_is_an_iso_time_or_a_while_ago() -> None:
    assert parse_moment("2030-01-31T08:00Z").on(NOW) == datetime(2030, 1, 31, 8, tzinfo=UTC)
    assert parse_moment("2h").on(NOW) == NOW - timedelta(hours=2)
    assert parse_instant("2030-01-31T08:00+02:00") == datetime(2030, 1, 31, 6, tzinfo=UTC)
    with pytest.raises(ValueError, match="neither a time nor a duration: 'yesterday'"):
        parse_moment("yesterday")


def test_a_time_without_a_zone_is_this_machines() -> None:
    assert parse_moment("2030-01-31") == Moment(at=datetime(2030, 1, 31).astimezone(UTC))


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.0004, "0 ms"),
        (0.25, "250 ms"),
        (2, "2 s"),
        (8.54, "8.5 s"),
        (59.9, "60 s"),
        (180, "3 min"),
        (75, "1 min 15 s"),
        (3_900, "1 h 5 min"),
        (40_000, "11 h"),
        (187_200, "2 d 4 h"),
        (-3, "-3 s"),
    ],
)
def test_a_span_is_told_in_one_or_two_units(seconds: float, told: str) -> None:
    assert span(timedelta(seconds=seconds)) == told


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.2, "just now"), (5, "5 s ago"), (200, "3 min ago"), (7_500, "2 h 5 min ago"), (-300, "in 5 min")],
)
def test_a_moment_is_told_relative_to_now(seconds: float, told: str) -> None:
    assert relative(NOW - timedelta(seconds=seconds), NOW) == told
