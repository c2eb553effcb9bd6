"""The retry survival curve: what share of messages is not yet delivered after each attempt."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import log10
from typing import NamedTuple

from remuda.lake.report.data import QueueCounts
from remuda.lake.report.markup import Markup, element, path
from remuda.lake.report.plots.axes import (
    LEFT,
    RIGHT,
    Scale,
    Tick,
    bottom_axis,
    canvas,
    left_axis,
    linear,
    logarithmic,
    polyline,
    text,
    tip,
)
from remuda.lake.report.wording import counted, cut, share

LARGEST = 6
MOST_ATTEMPTS = 20
_TOP, _BOTTOM = 34.0, 290.0
_LABELS = 216.0
_LOWEST = 1e-4


class Survival(NamedTuple):
    """`left[k]` is the share that was not delivered with k attempts."""

    queue: QueueCounts
    left: tuple[float, ...]


def survival_of(queue: QueueCounts, most: int = MOST_ATTEMPTS) -> Survival:
    """The curve of one queue; the dead stay undelivered, so it ends at their share."""
    curve = [1.0]
    undelivered = queue.settled
    for attempt in range(most + 1):
        undelivered -= queue.delivered_at_attempt.get(attempt, 0)
        if attempt:
            curve.append(undelivered / max(1, queue.settled))
    return Survival(queue, tuple(curve))


def survivals(queues: Sequence[QueueCounts]) -> list[Survival]:
    """The curves of the largest queues, as long as the one with the most attempts needs."""
    largest = sorted((queue for queue in queues if queue.settled), key=lambda queue: -queue.settled)[:LARGEST]
    needed = max((max(queue.delivered_at_attempt, default=1) for queue in largest), default=1)
    return [survival_of(queue, min(MOST_ATTEMPTS, max(2, needed))) for queue in largest]


def survival_plot(curves: Sequence[Survival]) -> Markup:
    """Step lines, each with its own dash, marker and label at its end."""
    attempts = max(len(curve.left) for curve in curves) - 1
    lowest = min((left for curve in curves for left in curve.left if left > 0), default=1.0)
    floor = max(_LOWEST, 10.0 ** min(-2, int(log10(lowest)) - (0 if lowest >= 1 else 1)))
    x = linear(0, attempts + 1, LEFT, RIGHT - _LABELS)
    y = logarithmic(floor, 1.0, _BOTTOM, _TOP)
    ends = _apart([y(curve.left[-1]) for curve in curves])
    right = RIGHT - _LABELS
    return canvas(
        _BOTTOM + 44,
        "Share of messages not yet delivered after each attempt, by queue",
        bottom_axis([Tick(n, str(n)) for n in range(attempts + 1)], x, _TOP, _BOTTOM),
        text("after attempt", right, _BOTTOM + 32, class_="axis", anchor="end"),
        left_axis(_decades(floor), y, LEFT, right, title="not yet delivered, logarithmic"),
        *(_curve(curve, n, ends[n], x, y) for n, curve in enumerate(curves)),
    )


def _decades(floor: float) -> list[Tick]:
    powers = range(round(log10(floor)), 1)
    ticks = [Tick(10.0**power, f"{100 * 10.0**power:.6g} %") for power in powers]
    return [ticks[0]._replace(label=f"≤{ticks[0].label}"), *ticks[1:]]


def _apart(wanted: Sequence[float], gap: float = 32.0) -> list[float]:
    """The places nearest to those wanted at which no label covers another."""
    order = sorted(range(len(wanted)), key=lambda n: wanted[n])
    places = [wanted[n] for n in order]
    for n in range(1, len(places)):
        places[n] = max(places[n], places[n - 1] + gap)
    if places and (beyond := places[-1] - _BOTTOM) > 0:
        places[-1] -= beyond
        for n in range(len(places) - 2, -1, -1):
            places[n] = min(places[n], places[n + 1] - gap)
    result = [0.0] * len(wanted)
    for n, place in zip(order, places, strict=True):
        result[n] = place
    return result


def _curve(curve: Survival, n: int, label_y: float, x: Scale, y: Scale) -> Markup:
    points = [(x(0), y(curve.left[0]))]
    for attempt, (before, after) in enumerate(pairwise(curve.left), start=1):
        points += [(x(attempt), y(before)), (x(attempt), y(after))]
    end = x(len(curve.left))
    points.append((end, y(curve.left[-1])))
    queue = curve.queue
    said = f"{queue.queue}: " + ", ".join(
        f"{share(left)} after {k}" for k, left in enumerate(curve.left) if k
    )
    label = f"{share(queue.dead / max(1, queue.settled))} never, of {counted(queue.settled, 'message')}"
    return element(
        "g",
        tip(said),
        polyline(points, f"line series series-{n}"),
        *(marker(n, x(k), y(left)) for k, left in enumerate(curve.left) if k),
        element("path", class_="leader", d=path("M", end, y(curve.left[-1]), "L", end + 10, label_y - 4)),
        marker(n, end + 18, label_y - 4),
        text(cut(queue.queue, 24), end + 28, label_y, class_="label strong"),
        text(label, end + 28, label_y + 13, class_="note"),
        class_=f"of-series-{n}",
    )


def marker(n: int, x: float, y: float) -> Markup:
    """The mark of the n-th line: a shape of its own, not only a colour."""
    shapes = (
        path("M", x - 3.5, y, "a 3.5 3.5 0 1 0 7 0 a 3.5 3.5 0 1 0 -7 0 z"),
        path("M", x - 3.2, y - 3.2, "h 6.4 v 6.4 h -6.4 z"),
        path("M", x, y - 4.2, "l 4.2 7.2 h -8.4 z"),
        path("M", x, y - 4.6, "l 4.6 4.6 l -4.6 4.6 l -4.6 -4.6 z"),
        path("M", x, y + 4.2, "l 4.2 -7.2 h -8.4 z"),
        path("M", x - 4, y - 1.4, "h 2.6 v -2.6 h 2.8 v 2.6 h 2.6 v 2.8 h -2.6 v 2.6 h -2.8 v -2.6 h -2.6 z"),
    )
    return element("path", class_=f"marker series-{n}", d=shapes[n % len(shapes)])
