"""For the reference: docstrings that tell words and their meanings in two columns become lists."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_PAIR = re.compile(r"(\w[\w.|/, `]*?)\s{2,}(\S.*)")


class Columns(Extension):
    """Griffe calls it for every object that it has read."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_lists(obj.docstring.value)


def as_lists(docstring: str) -> str:
    """
    >>> print(as_lists("Every option.\\n\\nbatch   jobs in a fetch\\n        at most\\nevery  how often"))
    Every option.
    <BLANKLINE>
    - `batch`: jobs in a fetch at most
    - `every`: how often
    """
    return "\n\n".join(map(_as_list, docstring.split("\n\n")))


def _as_list(paragraph: str) -> str:
    items: list[str] = []
    for line in paragraph.splitlines():
        if pair := _PAIR.fullmatch(line):
            items.append(f"- `{pair[1]}`: {pair[2]}")
        elif items and line.startswith("  "):
            items[-1] += f" {line.strip()}"
        else:
            return paragraph
    return "\n".join(items) or paragraph
