"""Numbers, times and durations as the page writes them: whole words are a reader's, not a machine's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
NOTHING = "–"
_UNBROKEN = "\N{NO-BREAK SPACE}"  # a number stays on the line of its unit


def count(value: float | None) -> str:
    """`1,234,567`."""
    return NOTHING if value is None else f"{value:,.0f}"


def counted(value: int, one: str, many: str | None = None) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{count(value)} {one if value == 1 else many or one + 's'}"


def short_count(value: float) -> str:
    """`1.2k`, `3M`: for an axis."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def ratio(value: float | None) -> str:
    """`0.42`: something for each message."""
    return NOTHING if value is None else f"{value:.2f}"


def share(value: float | None) -> str:
    """`98.5 %`; never 100 % or 0 % where it is only nearly so."""
    if value is None:
        return NOTHING
    percent = 100 * value
    if 0 < percent < 0.01:
        return f"<0.01{_UNBROKEN}%"
    if 99.99 < percent < 100:
        return f">99.99{_UNBROKEN}%"
    if percent in {0, 100}:
        return f"{percent:.0f}{_UNBROKEN}%"
    return f"{percent:.2f}{_UNBROKEN}%" if percent > 99 or percent < 1 else f"{percent:.1f}{_UNBROKEN}%"


def duration(ms: float | None) -> str:
    """`850 ms`, `3.2 s`, `4 min 10 s`, `2 h 5 min`, `3 d 4 h`: two units at most."""
    if ms is None:
        return NOTHING
    if ms < _SECOND:
        return f"{ms:.0f}{_UNBROKEN}ms"
    if ms < _MINUTE:
        return f"{ms / _SECOND:.3g}{_UNBROKEN}s" if ms < 59_950 else f"1{_UNBROKEN}min"
    for unit, size, small, part in (("min", _MINUTE, "s", _SECOND), ("h", _HOUR, "min", _MINUTE)):
        if ms < 60 * size if unit == "min" else ms < _DAY:
            return _two_units(ms, unit, size, small, part)
    return _two_units(ms, "d", _DAY, "h", _HOUR)


def _two_units(ms: float, unit: str, size: int, small: str, part: int) -> str:
    whole, rest = divmod(round(ms / part), size // part)
    words = f"{count(whole)} {unit} {rest} {small}" if rest and whole < 100 else f"{count(whole)} {unit}"
    return words.replace(" ", _UNBROKEN)


def span(time: timedelta) -> str:
    """The length of a step in words: `1 hour`, `15 minutes`, `2 days`."""
    seconds = int(time.total_seconds())
    for size, unit in ((604_800, "week"), (86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds % size == 0 and seconds >= size:
            return counted(seconds // size, unit)
    return counted(seconds, "second")


def moment(at: datetime | None) -> str:
    """`16 Nov 2025 14:05`, in UTC; with seconds where it has any."""
    if at is None:
        return NOTHING
    at = at.astimezone(UTC)
    clock = f"{at:%H:%M:%S}" if at.second else f"{at:%H:%M}"
    return f"{day(at)} {at.year} {clock}".replace(" ", _UNBROKEN)


def brief_moment(at: datetime) -> str:
    """`16 Nov 14:05`, in UTC."""
    at = at.astimezone(UTC)
    return f"{day(at)} {at:%H:%M}".replace(" ", _UNBROKEN)


def day(at: datetime) -> str:
    """`16 Nov`."""
    return f"{at.day} {_MONTHS[at.month - 1]}"


def month(at: datetime) -> str:
    """`Nov 2025`."""
    return f"{_MONTHS[at.month - 1]} {at.year}"


def cut(text: str, length: int) -> str:
    """The beginning of a long text, with an ellipsis."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"
