"""Latency over time as a heat map: the stronger a field, the more messages took so long at that time."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log10, sqrt
from typing import NamedTuple

from remuda.lake.buckets import quantile
from remuda.lake.report.data import Period, StepLatencies
from remuda.lake.report.markup import Markup, element, join
from remuda.lake.report.plots.axes import (
    LEFT,
    RIGHT,
    Scale,
    Tick,
    bottom_axis,
    box,
    canvas,
    left_axis,
    linear,
    logarithmic,
    polyline,
    time_ticks,
    tip,
)
from remuda.lake.report.plots.legend import stroke_swatch, swatch
from remuda.lake.report.plots.ridges import ticks_of
from remuda.lake.report.plots.spreading import spread
from remuda.lake.report.wording import counted, duration, moment, short_count

_TOP, _BOTTOM = 34.0, 290.0
LEVELS = 7


class _Grid(NamedTuple):
    """The fields of the map: `columns` are steps, each with its counts from the quickest to the slowest."""

    columns: Sequence[list[float]]
    highest: float

    def level(self, count: float) -> int:
        """How strong, from 0 (nothing) to `LEVELS`. The root shows the few beside the many."""
        return 0 if count <= 0 else 1 + min(LEVELS - 1, int(LEVELS * sqrt(count / self.highest)))


def heat_plot(latencies: Sequence[StepLatencies], period: Period) -> Markup:
    """Steps from left to right, durations upwards, with lines for the median and for 9 of 10."""
    ticks = ticks_of([step.histogram for step in latencies])
    x = linear(period.since.timestamp(), period.until.timestamp(), LEFT, RIGHT)
    y = logarithmic(ticks[0].value, ticks[-1].value, _BOTTOM, _TOP)
    grid = _grid(latencies, ticks)
    return canvas(
        _BOTTOM + 40,
        "How long delivered messages took, over time: a heat map",
        *_fields(grid, latencies, period, x),
        bottom_axis(time_ticks(period.since, period.until), x, _TOP, _BOTTOM, title="time (UTC)"),
        left_axis(ticks, y, LEFT, RIGHT, title="from adding to delivery"),
        polyline(_line(latencies, period, 0.5, x, y), "line half"),
        polyline(_line(latencies, period, 0.9, x, y), "line most"),
        *(_column_tip(step, period, x) for step in latencies),
    )


def _grid(latencies: Sequence[StepLatencies], ticks: Sequence[Tick]) -> _Grid:
    low, high = ticks[0].value, ticks[-1].value
    cells = min(48, max(16, round(9 * log10(high / low))))
    columns = [spread(step.histogram, low, high, cells) for step in latencies]
    return _Grid(columns, max((max(column) for column in columns), default=0.0) or 1.0)


def _fields(grid: _Grid, latencies: Sequence[StepLatencies], period: Period, x: Scale) -> list[Markup]:
    # One path for each level: thousands of fields would be thousands of tags.
    paths: list[list[str]] = [[] for _ in range(LEVELS + 1)]
    for step, column in zip(latencies, grid.columns, strict=True):
        start, end = x(step.at.timestamp()), x((step.at + period.step).timestamp())
        height = (_BOTTOM - _TOP) / len(column)
        for n, count in enumerate(column):
            paths[grid.level(count)].append(box(start, _BOTTOM - (n + 1) * height, end - start, height))
    return [
        element("path", class_=f"heat heat-{level}", d=" ".join(boxes))
        for level, boxes in enumerate(paths)
        if level and boxes
    ]


def _line(
    latencies: Sequence[StepLatencies], period: Period, share: float, x: Scale, y: Scale
) -> list[tuple[float, float]]:
    middle = period.step.total_seconds() / 2
    return [
        (x(step.at.timestamp() + middle), y(ms))
        for step in latencies
        if (ms := quantile(step.histogram, share)) is not None
    ]


def _column_tip(step: StepLatencies, period: Period, x: Scale) -> Markup:
    start = x(step.at.timestamp())
    half, most = quantile(step.histogram, 0.5), quantile(step.histogram, 0.9)
    delivered = counted(sum(step.histogram.values()), "delivered", "delivered")
    said = f"{moment(step.at)}: {delivered}, median {duration(half)}, 9 of 10 within {duration(most)}"
    width = x((step.at + period.step).timestamp()) - start
    return element("rect", tip(said), class_="hover", x=start, y=_TOP, width=width, height=_BOTTOM - _TOP)


def heat_legend(latencies: Sequence[StepLatencies]) -> Markup:
    """From how many messages on a field has which strength."""
    grid = _grid(latencies, ticks_of([step.histogram for step in latencies]))
    fields = (
        swatch(f"heat heat-{level}", f"from {short_count(ceil(least))} in a field")
        for level in range(2, LEVELS + 1, 2)
        if (least := grid.highest * ((level - 1) / LEVELS) ** 2) >= 1
    )
    lines = (stroke_swatch("line half", "median"), stroke_swatch("line most", "9 of 10 within (dashed)"))
    return join((*lines, *fields))
