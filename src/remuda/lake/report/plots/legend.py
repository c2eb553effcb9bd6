"""The keys of a plot: a piece of its picture beside what it means."""

from __future__ import annotations

from remuda.lake.report.markup import Markup, element, path


def swatch(class_: str, label: str) -> Markup:
    """A small field of a colour with what it means."""
    field = element("rect", class_=class_, x=0, y=1, width=14, height=10)
    return _key(field, label)


def stroke_swatch(class_: str, label: str) -> Markup:
    """A small line with what it means."""
    return _key(element("path", class_=class_, d=path("M", 0, 6, "H", 18)), label)


def _key(shape: Markup, label: str) -> Markup:
    picture = element("svg", shape, class_="key", viewBox="0 0 18 12", aria_hidden="true")
    return element("span", picture, label, class_="legend-item")
