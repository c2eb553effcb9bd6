"""The building blocks of the page: sections, figures, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from remuda.lake.report.markup import Child, Markup, element
from remuda.lake.report.wording import counted, cut

_LONG, _BROAD = 40, 7


class Head(str):
    """The heading of a column of words."""

    __slots__ = ()


class Figures(Head):
    """The heading of a column of figures, which stand on the right."""

    __slots__ = ()


def section(anchor: str, title: str, *children: Child) -> Markup:
    """A part of the page that can be linked to."""
    return element("section", element("h2", title), *children, id=anchor)


def sentence(*children: Child) -> Markup:
    """What a plot shows, in words."""
    return element("p", *children, class_="says")


def figure(plot: Child, legend: Child = None) -> Markup:
    """A plot with its keys. On a narrow screen it is moved sideways rather than made too small to read."""
    keys = element("div", legend, class_="legend") if legend else None
    return element("figure", keys, element("div", plot, class_="scroll", tabindex=0))


def table(heads: Sequence[Head], rows: Iterable[Sequence[Child]], *, class_: str | None = None) -> Markup:
    """A real table; the heading of a column decides on which side its cells stand."""
    rows = list(rows)
    sides = ["n" if isinstance(head, Figures) else None for head in heads]
    top = element(
        "tr",
        *(element("th", head, scope="col", class_=side) for head, side in zip(heads, sides, strict=True)),
    )
    body = (
        element("tr", *(element("td", cell, class_=side) for cell, side in zip(row, sides, strict=True)))
        for row in rows
    )
    whole = element("table", element("thead", top), element("tbody", *body), class_=class_)
    # On paper, a long narrow one stands in two columns.
    long = len(rows) > _LONG and len(heads) < _BROAD
    return element("div", whole, class_="scroll long" if long else "scroll", tabindex=0)


def behind(heads: Sequence[Head], rows: Sequence[Sequence[Child]], what: str = "row") -> Markup:
    """The table behind a plot, folded away; on paper it is open."""
    summary = element("summary", f"The table behind it ({counted(len(rows), what)})")
    return element("details", summary, table(heads, rows))


def long_text(content: str, length: int, class_: str | None = None) -> Markup:
    """A text that may be long: its beginning, with all of it for a pointer that rests there."""
    shown = cut(content, length)
    return element("span", shown, class_=class_, title=content if shown != content else None)
