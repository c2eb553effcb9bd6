"""Delivery over time: bars of what ended in each step, and above them the delivery rate."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from remuda.lake.report.data import Period, StepCounts, share_of
from remuda.lake.report.markup import Markup, element, join
from remuda.lake.report.plots.axes import (
    LEFT,
    RIGHT,
    Scale,
    bottom_axis,
    canvas,
    count_ticks,
    left_axis,
    linear,
    polyline,
    share_ticks,
    time_ticks,
    tip,
)
from remuda.lake.report.plots.legend import stroke_swatch, swatch
from remuda.lake.report.wording import counted, moment, share, span

_RATE_TOP, _RATE_BOTTOM = 34.0, 124.0
_BARS_TOP, _BARS_BOTTOM = 182.0, 360.0
_HEIGHT = 400.0
_THINNEST = 1.5  # a few dead letters among many delivered must still be seen


def delivery_plot(steps: Sequence[StepCounts], period: Period) -> Markup:
    """Stacked bars of delivered and dead in each step, the added as a line, the rate in a panel above."""
    x = linear(period.since.timestamp(), period.until.timestamp(), LEFT, RIGHT)
    highest = max((max(step.delivered + step.dead, step.added) for step in steps), default=0)
    ticks = count_ticks(highest)
    y = linear(0, ticks[-1].value, _BARS_BOTTOM, _BARS_TOP)
    times = time_ticks(period.since, period.until)
    return canvas(
        _HEIGHT,
        "Delivered and dead messages over time, with the delivery rate",
        bottom_axis(times, x, _RATE_TOP, _BARS_BOTTOM, title="time (UTC)"),
        _rate_panel(steps, period, x),
        left_axis(ticks, y, LEFT, RIGHT, title=f"messages in {span(period.step)}"),
        element("g", *(_bar(step, period, x, y) for step in steps), class_="bars"),
        polyline(_added_line(steps, period, x, y), "line added"),
    )


def _rate_panel(steps: Sequence[StepCounts], period: Period, x: Scale) -> Markup:
    rates = [(step, share_of(step.delivered, step.delivered + step.dead)) for step in steps]
    known = [rate for _, rate in rates if rate is not None]
    ticks = share_ticks(min(known, default=1.0))
    y = linear(ticks[0].value, 1.0, _RATE_BOTTOM, _RATE_TOP)
    middle = period.step.total_seconds() / 2
    # A step without an end has no rate: the line stops there.
    runs = (list(run) for has, run in groupby(rates, key=lambda pair: pair[1] is not None) if has)
    lines: list[Markup] = []
    for run in runs:
        points = [(x(step.at.timestamp() + middle), y(rate or 0.0)) for step, rate in run]
        alone = element("circle", class_="dot rate", cx=points[0][0], cy=points[0][1], r=2.5)
        lines.append(polyline(points, "line rate") if len(points) > 1 else alone)
    shown = ticks[:: max(1, len(ticks) // 4)] if len(ticks) > 6 else ticks
    title = "delivery rate"
    return element("g", left_axis(shown, y, LEFT, RIGHT, title=title), *lines, class_="panel")


def _bar(step: StepCounts, period: Period, x: Scale, y: Scale) -> Markup | None:
    ended = step.delivered + step.dead
    if not ended:
        return None
    start = x(step.at.timestamp())
    width = x((step.at + period.step).timestamp()) - start
    inset = 0.5 if width > 3 else 0.0
    dead = max(y(0) - y(step.dead), _THINNEST) if step.dead else 0.0
    delivered = y(0) - y(step.delivered)
    said = f"{moment(step.at)}: {counted(step.delivered, 'delivered', 'delivered')}, {step.dead:,} dead"
    said += f", rate {share(step.delivered / ended)}"

    def part(class_: str, bottom: float, height: float) -> Markup | None:
        if not height:
            return None
        return element(
            "rect", class_=class_, x=start + inset, y=bottom - height, width=width - 2 * inset, height=height
        )

    stacked = y(0) - delivered
    return element("g", tip(said), part("fill-delivered", y(0), delivered), part("fill-dead", stacked, dead))


def _added_line(steps: Sequence[StepCounts], period: Period, x: Scale, y: Scale) -> list[tuple[float, float]]:
    points = []
    for step in steps:
        points += [
            (x(step.at.timestamp()), y(step.added)),
            (x((step.at + period.step).timestamp()), y(step.added)),
        ]
    return points


def delivery_legend() -> Markup:
    """What the bars and the lines are."""
    return join(
        (
            swatch("fill-delivered", "delivered"),
            swatch("fill-dead", "dead letters (hatched)"),
            stroke_swatch("line added", "added (dotted line)"),
            stroke_swatch("line rate", "delivery rate (line above)"),
        )
    )
