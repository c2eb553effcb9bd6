"""Small pictures that stand in a cell of a table."""

from __future__ import annotations

from collections.abc import Sequence

from remuda.lake.report.markup import Markup, element, path
from remuda.lake.report.plots.axes import box, logarithmic
from remuda.lake.report.wording import count, duration

_WIDE, _HIGH = 120.0, 24.0


def bar(value: int, highest: int) -> Markup:
    """A bar as long as the value's part of the highest."""
    length = max(1.0, _WIDE * value / max(1, highest))
    shape = element("rect", class_="fill-dead", x=0, y=3, width=length, height=_HIGH - 6)
    return _picture(f"{count(value)} of at most {count(highest)}", shape)


def spark_line(values: Sequence[int]) -> Markup:
    """Columns of a trend, on a scale of its own."""
    highest = max(values, default=0) or 1
    width = _WIDE / max(1, len(values))
    boxes = [
        box(n * width + 0.5, _HIGH - tall, max(0.5, width - 1), tall)
        for n, value in enumerate(values)
        if value and (tall := max(1.5, (_HIGH - 2) * value / highest))
    ]
    said = f"over the period: {', '.join(map(count, values))}"
    base = element("path", class_="base", d=path("M", 0, _HIGH - 0.5, "H", _WIDE))
    return _picture(said, base, element("path", class_="spark", d=" ".join(boxes)))


def time_range(p50: int, p90: int, most: int, lowest: int, highest: int) -> Markup:
    """The median as a dot, 9 of 10 as a thick line, the slowest as a thin one, on a logarithmic scale."""
    x = logarithmic(max(1, lowest), max(2, highest, lowest + 1), 6, _WIDE - 6)
    middle = _HIGH / 2
    said = f"median {duration(p50)}, 9 of 10 within {duration(p90)}, slowest {duration(most)}"
    return _picture(
        said,
        element("line", class_="thin", x1=x(p50), x2=x(most), y1=middle, y2=middle),
        element("line", class_="thick", x1=x(p50), x2=x(p90), y1=middle, y2=middle),
        element("circle", class_="dot point", cx=x(p50), cy=middle, r=4),
    )


def _picture(said: str, *shapes: Markup) -> Markup:
    view = f"0 0 {_WIDE:.0f} {_HIGH:.0f}"
    return element(
        "svg", element("title", said), *shapes, class_="small", viewBox=view, role="img", aria_label=said
    )
