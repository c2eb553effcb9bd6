"""Those with the worst delivery rate, each with the interval in which its true rate lies."""

from __future__ import annotations

from remuda.lake.report.data import Ranked, Ranking, wilson
from remuda.lake.report.markup import Markup, element
from remuda.lake.report.plots.axes import (
    RIGHT,
    Scale,
    bottom_axis,
    canvas,
    linear,
    share_ticks,
    text,
    tip,
)
from remuda.lake.report.wording import count, cut, share

_LEFT, _NOTES = 200.0, 150.0
_ROW, _TOP = 22.0, 28.0


def ranking_plot(ranking: Ranking) -> Markup:
    """A dot for the rate and a line for its interval, the worst on top."""
    rows = ranking.worst
    lowest = min(wilson(row.delivered, row.delivered + row.dead)[0] for row in rows)
    ticks = share_ticks(lowest)
    shown = ticks[:: max(1, len(ticks) // 5)] if len(ticks) > 6 else ticks
    x = linear(ticks[0].value, 1.0, _LEFT, RIGHT - _NOTES)
    bottom = _TOP + _ROW * len(rows)
    notes = RIGHT - _NOTES
    return canvas(
        bottom + 40,
        f"Delivery rate of each {ranking.dimension}, the worst first",
        text("rate", notes + 74, 14, class_="axis", anchor="end"),
        text("of", RIGHT, 14, class_="axis", anchor="end"),
        bottom_axis(shown, x, _TOP - 4, bottom),
        text("delivery rate", notes, bottom + 34, class_="axis", anchor="end"),
        *(_row(row, _TOP + _ROW * (n + 0.5), x) for n, row in enumerate(rows)),
    )


def _row(row: Ranked, y: float, x: Scale) -> Markup:
    settled = row.delivered + row.dead
    low, high = wilson(row.delivered, settled)
    said = f"{row.key} ({row.queue}): {share(row.rate)} of {count(settled)}"
    said += f", between {share(low)} and {share(high)}"
    return element(
        "g",
        tip(said),
        text(cut(row.key, 28), 0, y + 4),
        element("line", class_="interval", x1=x(low), x2=x(high), y1=y, y2=y),
        element("circle", class_="dot point", cx=x(row.rate), cy=y, r=4),
        text(share(row.rate), RIGHT - _NOTES + 74, y + 4, anchor="end"),
        text(count(settled), RIGHT, y + 4, class_="note", anchor="end"),
    )
