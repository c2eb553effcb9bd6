"""Durations as people write them, on the command line and in settings: `30s`, `1h30m`."""

from __future__ import annotations

import re
from datetime import timedelta

_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")


def parse_duration(text: str) -> timedelta:
    """`30s`, `5m`, `1h30m`, `2d`, `250ms`; `ValueError` for anything else."""
    parts = _PART.findall(text.strip().lower())
    if not parts or "".join(number + unit for number, unit in parts) != text.strip().lower():
        raise ValueError(f"not a duration: {text!r}; write 250ms, 30s, 5m, 1h30m, 2d or 1w")
    try:
        return sum((float(number) * _UNITS[unit] for number, unit in parts), timedelta(0))
    except OverflowError:
        raise ValueError(f"longer than anything that can be waited for: {text!r}") from None
