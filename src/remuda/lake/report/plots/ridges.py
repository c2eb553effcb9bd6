"""Latency by stage: one ridge for each stage, on an axis of orders of magnitude."""

from __future__ import annotations

from collections.abc import Sequence

from remuda.lake.buckets import quantile
from remuda.lake.report.data import Histogram, StageTimes, added_up
from remuda.lake.report.markup import Markup, element, path
from remuda.lake.report.plots.axes import (
    RIGHT,
    Scale,
    Tick,
    bottom_axis,
    canvas,
    duration_ticks,
    logarithmic,
    text,
    tip,
)
from remuda.lake.report.plots.spreading import bounds_of, smoothed, spread
from remuda.lake.report.wording import count, duration

_CELLS = 240
_LEFT = 178.0
_NOTES = 190.0  # room for the figures on the right
_ROW, _PEAK, _TOP = 52.0, 58.0, 30.0


def ridges_plot(stages: Sequence[StageTimes]) -> Markup:
    """One ridge for each stage, in the order given; each is as high as its own peak allows."""
    ticks = ticks_of([stage.histogram for stage in stages])
    x = logarithmic(ticks[0].value, ticks[-1].value, _LEFT, RIGHT - _NOTES)
    bottom = _TOP + _ROW * len(stages) + 8
    named = ", ".join(stage.stage for stage in stages)
    return canvas(
        bottom + 40,
        f"How long messages stayed in each stage: {named}",
        _heading(),
        bottom_axis(ticks, x, _TOP, bottom),
        text("time in the stage, logarithmic", RIGHT - _NOTES, bottom + 34, class_="axis", anchor="end"),
        # The lower ridge stands before the upper one.
        *(_ridge(stage, _TOP + _ROW * (n + 1), x, ticks) for n, stage in enumerate(stages)),
    )


def ticks_of(histograms: Sequence[Histogram]) -> list[Tick]:
    """The axis that has room for all durations of the histograms."""
    together = added_up(histograms)
    if not together:
        return duration_ticks(1, 1_000)
    return duration_ticks(bounds_of(min(together))[0], bounds_of(max(together))[1])


def _heading() -> Markup:
    notes = RIGHT - _NOTES
    return element(
        "g",
        text("median", notes + 92, 14, class_="axis", anchor="end"),
        text("9 of 10 within", RIGHT, 14, class_="axis", anchor="end"),
    )


def _ridge(stage: StageTimes, base: float, x: Scale, ticks: Sequence[Tick]) -> Markup:
    low, high = ticks[0].value, ticks[-1].value
    heights = smoothed(spread(stage.histogram, low, high, _CELLS), 2.5)
    peak = max(heights) or 1.0
    start, end = x(low), x(high)
    outline: list[str | float] = ["M", start, base]
    for n, height in enumerate(heights):
        outline += ["L", start + (end - start) * (n + 0.5) / _CELLS, base - _PEAK * height / peak]
    messages = sum(stage.histogram.values())
    half, most = quantile(stage.histogram, 0.5), quantile(stage.histogram, 0.9)
    said = (
        f"{stage.stage}: {count(messages)} messages, median {duration(half)}, 9 of 10 within {duration(most)}"
    )
    return element(
        "g",
        tip(said),
        element("path", class_="ridge", d=path(*outline, "L", end, base, "z")),
        element("line", class_="base", x1=start, x2=end, y1=base, y2=base),
        _mark(half, x, base, "mark half"),
        _mark(most, x, base, "mark most"),
        text(stage.stage, 0, base - 16, class_="label strong"),
        text(f"{count(messages)} messages", 0, base - 2, class_="note"),
        text(duration(half), RIGHT - _NOTES + 92, base - 4, class_="label", anchor="end"),
        text(duration(most), RIGHT, base - 4, class_="label", anchor="end"),
    )


def _mark(ms: int | None, x: Scale, base: float, class_: str) -> Markup | None:
    if ms is None:
        return None
    return element("line", class_=class_, x1=x(ms), x2=x(ms), y1=base + 4, y2=base - _PEAK * 0.62)
