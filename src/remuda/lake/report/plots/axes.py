"""What the plots share: the canvas, scales, ticks and axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from math import ceil, floor, log, log10
from typing import NamedTuple

from remuda.lake.report.markup import Markup, element, join, path
from remuda.lake.report.wording import day, month, short_count

WIDTH = 880.0  # of every plot, in its own units: the page scales it
LEFT, RIGHT = 64.0, WIDTH - 24

Scale = Callable[[float], float]


class Tick(NamedTuple):
    """A place on an axis. A `strong` one begins something larger: a day among hours."""

    value: float
    label: str
    strong: bool = False


def linear(low: float, high: float, start: float, end: float) -> Scale:
    """Values from `low` to `high` onto `start` to `end`; what is beyond goes to the edge."""
    size = (high - low) or 1.0
    return lambda value: start + (end - start) * min(1.0, max(0.0, (value - low) / size))


def logarithmic(low: float, high: float, start: float, end: float) -> Scale:
    """The same by orders of magnitude. `low` is above 0."""
    inner = linear(log(low), log(high), start, end)
    return lambda value: inner(log(max(value, low)))


def nice_ceiling(value: float) -> float:
    """The next of 1, 2, 2.5, 5, 10, 20 … that is not below."""
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next(size * power for size in (1, 2, 2.5, 5, 10) if size * power >= value * (1 - 1e-9))


def count_ticks(highest: int, wanted: int = 4) -> list[Tick]:
    """From 0 to `highest` or a little above it, in whole numbers."""
    step = max(1.0, nice_ceiling(highest / wanted))
    step = 5.0 if step == 2.5 else step
    return [Tick(step * n, short_count(step * n)) for n in range(max(1, ceil(highest / step)) + 1)]


# Where an axis of rates may begin, in per cent, and the distance of its ticks.
_RATE_AXES = (
    (99.9, 0.02),
    (99.5, 0.1),
    (99, 0.2),
    (98, 0.5),
    (95, 1),
    (90, 2),
    (80, 5),
    (70, 5),
    (50, 10),
    (0, 25),
)


def share_ticks(lowest: float) -> list[Tick]:
    """Rates from a round number that is not above `lowest` up to 100 %."""
    bottom, step = next((axis for axis in _RATE_AXES if 100 * lowest >= axis[0]), _RATE_AXES[-1])
    percents = [bottom + step * n for n in range(round((100 - bottom) / step) + 1)]
    return [Tick(percent / 100, f"{percent:.6g} %") for percent in percents]


_SECOND, _MINUTE, _HOUR, _DAY = 1_000.0, 60_000.0, 3_600_000.0, 86_400_000.0
NO_TIME = 0.3  # where a logarithmic axis has room for what took no millisecond at all
_DURATIONS = (
    Tick(NO_TIME, "0"),
    Tick(1, "1 ms"),
    Tick(10, "10 ms"),
    Tick(100, "100 ms"),
    Tick(_SECOND, "1 s"),
    Tick(10 * _SECOND, "10 s"),
    Tick(_MINUTE, "1 min"),
    Tick(10 * _MINUTE, "10 min"),
    Tick(_HOUR, "1 h"),
    Tick(6 * _HOUR, "6 h"),
    Tick(_DAY, "1 d"),
    Tick(7 * _DAY, "1 week"),
    Tick(30 * _DAY, "30 d"),
    Tick(365 * _DAY, "1 year"),
)


def duration_ticks(lowest_ms: float, highest_ms: float) -> list[Tick]:
    """Ticks that enclose the durations; the first and the last are the ends of the axis."""
    first = max((n for n, tick in enumerate(_DURATIONS) if tick.value <= lowest_ms), default=0)
    after = (n for n, tick in enumerate(_DURATIONS) if tick.value >= highest_ms)
    last = max(next(after, len(_DURATIONS) - 1), first + 1)
    first = min(first, last - 2 if last > 1 else 0)
    return list(_DURATIONS[first : last + 1])


_MINUTES = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720)
_DAYS = (1, 2, 4, 7, 14)


def time_ticks(since: datetime, until: datetime, wanted: int = 9) -> list[Tick]:
    """Round times of the clock or days of the calendar (UTC) between both, as seconds since 1970."""
    length = until - since
    for minutes in _MINUTES:
        if length / timedelta(minutes=minutes) <= wanted:
            return _clock_ticks(since, until, minutes * 60)
    for days in _DAYS:
        if length / timedelta(days=days) <= wanted:
            return _day_ticks(since, until, days)
    months = ceil(length / timedelta(days=30.44) / wanted)
    return _month_ticks(since, until, months)


def _clock_ticks(since: datetime, until: datetime, step: int) -> list[Tick]:
    first = -(-int(since.timestamp()) // step) * step
    ticks = []
    for seconds in range(first, int(until.timestamp()) + 1, step):
        at = datetime.fromtimestamp(seconds, UTC)
        midnight = seconds % 86_400 == 0
        ticks.append(Tick(seconds, day(at) if midnight else f"{at:%H:%M}", midnight))
    return ticks


def _day_ticks(since: datetime, until: datetime, step: int) -> list[Tick]:
    monday = 4 * 86_400  # 5 January 1970, so that weeks begin on one
    size = step * 86_400
    first = -(-(int(since.timestamp()) - monday) // size) * size + monday
    moments = range(first, int(until.timestamp()) + 1, size)
    return [Tick(seconds, day(datetime.fromtimestamp(seconds, UTC))) for seconds in moments]


def _month_ticks(since: datetime, until: datetime, step: int) -> list[Tick]:
    ticks = []
    months = since.year * 12 + since.month - 1
    months = -(-months // step) * step
    while (at := datetime(months // 12, months % 12 + 1, 1, tzinfo=UTC)) <= until:
        if at >= since:
            ticks.append(Tick(at.timestamp(), month(at), at.month == 1))
        months += step
    return ticks


def bottom_axis(ticks: Sequence[Tick], x: Scale, top: float, bottom: float, *, title: str = "") -> Markup:
    """Upright lines of a grid with their labels below; the title, with the unit, at its right end."""
    marks = (
        element("line", class_="grid", x1=x(tick.value), x2=x(tick.value), y1=top, y2=bottom)
        + element(
            "text",
            tick.label,
            class_="tick strong" if tick.strong else "tick",
            x=x(tick.value),
            y=bottom + 16,
            text_anchor="middle",
        )
        for tick in ticks
    )
    named = (
        element("text", title, class_="axis", x=RIGHT, y=bottom + 32, text_anchor="end") if title else None
    )
    return element("g", *(Markup(mark) for mark in marks), named, class_="axis-x")


def left_axis(ticks: Sequence[Tick], y: Scale, left: float, right: float, *, title: str = "") -> Markup:
    """Level lines of a grid with their labels on the left; the title, with the unit, above them."""
    marks = (
        element("line", class_="grid", x1=left, x2=right, y1=y(tick.value), y2=y(tick.value))
        + element("text", tick.label, class_="tick", x=left - 8, y=y(tick.value) + 4, text_anchor="end")
        for tick in ticks
    )
    top = min((y(tick.value) for tick in ticks), default=0.0)
    named = element("text", title, class_="axis", x=0, y=top - 12) if title else None
    return element("g", *(Markup(mark) for mark in marks), named, class_="axis-y")


def canvas(height: float, label: str, *parts: str | None, class_: str = "plot") -> Markup:
    """A whole plot. `label` tells those who do not see it what it shows."""
    return element(
        "svg",
        *parts,
        class_=class_,
        viewBox=f"0 0 {WIDTH:.0f} {height:.0f}",
        role="img",
        aria_label=label,
    )


def text(content: str, x: float, y: float, *, class_: str = "label", anchor: str = "start") -> Markup:
    """A line of text."""
    return element("text", content, class_=class_, x=x, y=y, text_anchor=anchor)


def tip(content: str) -> Markup:
    """What a pointer that rests on a shape is told."""
    return element("title", content)


def polyline(points: Sequence[tuple[float, float]], class_: str) -> Markup:
    """A line through the points."""
    parts: list[str | float] = []
    for n, (x, y) in enumerate(points):
        parts += ["L" if n else "M", x, y]
    return element("path", class_=class_, d=path(*parts)) if points else join(())


def box(x: float, y: float, width: float, height: float) -> str:
    """A rectangle as part of the `d` of a path."""
    return path("M", x, y, "h", width, "v", height, "h", -width, "z")
