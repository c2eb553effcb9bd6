"""Durations and moments, as people write and read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from remuda.durations import parse_duration

_STEPS = (
    (timedelta(days=1), "d", timedelta(hours=1), "h"),
    (timedelta(hours=1), "h", timedelta(minutes=1), "min"),
    (timedelta(minutes=1), "min", timedelta(seconds=1), "s"),
)


class Moment(NamedTuple):
    """A moment in time, or how long ago it was: told by the store's clock, once that is known."""

    at: datetime | None = None
    ago: timedelta | None = None

    def on(self, now: datetime) -> datetime:
        """The moment itself."""
        if self.at is not None:
            return self.at
        return now - (self.ago or timedelta(0))


def parse_instant(text: str) -> datetime:
    """An ISO 8601 date or time; without a time zone it is this machine's. `ValueError` for anything else."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(
            f"not a time: {text!r}; write 2030-01-31, 2030-01-31T08:00 or 2030-01-31T08:00Z"
        ) from None
    try:
        return moment.astimezone(UTC)
    except (OverflowError, OSError, ValueError):
        raise ValueError(f"not a time that can be reckoned with: {text!r}") from None


def parse_moment(text: str) -> Moment:
    """An ISO time, or a duration: that long ago."""
    try:
        return Moment(ago=parse_duration(text))
    except ValueError:
        pass
    try:
        return Moment(at=parse_instant(text))
    except ValueError:
        raise ValueError(
            f"neither a time nor a duration: {text!r}; write 2030-01-31T08:00Z, or 2h for two hours ago"
        ) from None


def span(duration: timedelta) -> str:
    """A duration in one or two units: `250 ms`, `8.5 s`, `3 min`, `1 h 5 min`, `2 d 4 h`."""
    if duration < timedelta(0):
        return f"-{span(-duration)}"
    if duration < timedelta(seconds=1):
        return f"{duration / timedelta(milliseconds=1):.0f} ms"
    if duration < timedelta(seconds=10):
        return f"{duration.total_seconds():.1f}".removesuffix(".0") + " s"
    if duration < timedelta(minutes=1):
        return f"{duration.total_seconds():.0f} s"
    for unit, name, smaller, smaller_name in _STEPS:
        if duration >= unit:
            whole, rest = divmod(duration, unit)
            part = rest // smaller
            exact = part and whole < 10
            return f"{whole} {name} {part} {smaller_name}" if exact else f"{whole} {name}"
    raise AssertionError("unreachable")


def relative(moment: datetime, now: datetime) -> str:
    """`3 min ago`, `in 5 s`, `just now`."""
    distance = now - moment
    if abs(distance) < timedelta(seconds=1):
        return "just now"
    step = timedelta(seconds=1) if abs(distance) < timedelta(minutes=1) else timedelta(minutes=1)
    coarse = abs(distance) // step * step
    return f"{span(coarse)} ago" if distance > timedelta(0) else f"in {span(coarse)}"


def local(moment: datetime, *, zone: bool = True) -> str:
    """The moment in this machine's time zone, to the millisecond."""
    here = moment.astimezone()
    return (here if zone else here.replace(tzinfo=None)).isoformat(sep=" ", timespec="milliseconds")
