"""Tags of HTML and SVG. What is not `Markup` is text, and text is escaped: no other module writes a `<`."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

# Characters that no page may hold, and those that turn the direction of the text around them.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]"
)
_VOID = frozenset({"meta", "br", "col"})

Attribute = str | int | float | bool | None


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | int | None


def escape(text: object) -> Markup:
    """Any text as markup: what it says, and nothing that a browser would act upon."""
    if isinstance(text, Markup):
        return text
    return Markup(html.escape(_UNPRINTABLE.sub("\ufffd", str(text))))


def join(parts: Iterable[Child], between: str = "") -> Markup:
    """Parts one after the other; None is left out."""
    return Markup(between.join(escape(part) for part in parts if part is not None))


def number(value: float) -> str:
    """A coordinate: two decimals at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def element(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """A tag. `class_` becomes `class`, `stroke_width` becomes `stroke-width`; None and False are left out."""
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = number(value) if isinstance(value, int | float) else escape(value)
    return f' {name}="{text}"'


def path(*parts: str | float) -> str:
    """The `d` of a path: `path("M", 1, 2, "L", 3, 4)`."""
    return " ".join(part if isinstance(part, str) else number(float(part)) for part in parts)
