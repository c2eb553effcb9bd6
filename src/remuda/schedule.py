"""Repeatable jobs: a spec is a recipe from which fresh jobs are made, window by window.

Pure rules: when the next window is, and what is owed for the windows that have passed. Every scheduler that
reads the same spec at the same moment comes to the same answer; the store lets one of them carry it out.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from enum import StrEnum
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from remuda.errors import ConfigurationError

if TYPE_CHECKING:
    from cronsim import CronSim

MILLISECOND = timedelta(milliseconds=1)
SHORTEST = timedelta(milliseconds=10)  # between two windows
LATE = timedelta(seconds=60)  # a window that is reached no later than this is on time
MOST_AT_ONCE = 1_000  # windows that one `fire-all` can make up for
_FIVE_FIELDS = 5
_OFFSET = re.compile(r"([+-])([01]\d|2[0-3]):?([0-5]\d)")
_ANY_MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


class Missed(StrEnum):
    """What is done about windows that passed while no scheduler ran.

    SKIP       nothing: the next window comes soon enough
    FIRE_ONCE  one job stands for all of them
    FIRE_ALL   a job for each, at most as many as the spec says, the latest ones
    """

    SKIP = "skip"
    FIRE_ONCE = "fire-once"
    FIRE_ALL = "fire-all"


class Repeat(msgspec.Struct, frozen=True, kw_only=True):
    """A spec: `every` so long, or by a `cron` pattern in a time zone.

    name         of the jobs that are made
    payload      encoded, as every one of them gets it
    start, end   no window before or after
    limit        jobs in all; then the spec is removed
    missed       see `Missed`; `most` is for FIRE_ALL
    """

    name: str
    payload: bytes
    every: timedelta | None = None
    cron: str | None = None
    zone: str = "UTC"
    start: datetime | None = None
    end: datetime | None = None
    limit: int | None = None
    missed: Missed = Missed.SKIP
    most: int | None = None
    key: str = ""

    def __post_init__(self) -> None:
        _check(self)
        if self.missed is Missed.FIRE_ALL and self.most is None:
            msgspec.structs.force_setattr(self, "most", MOST_AT_ONCE)
        if not self.key:
            msgspec.structs.force_setattr(self, "key", f"{self.name}::{self.pattern}")

    @property
    def pattern(self) -> str:
        """What tells apart the specs of one name."""
        if self.every is not None:
            return f"every:{self.every // MILLISECOND}"
        return f"cron:{self.cron}:{self.zone}"

    def windows(self, after: datetime) -> Iterator[datetime]:
        """The windows after a moment, in UTC, up to the end."""
        for window in self._unbounded(after):
            if self.end is not None and window > self.end:
                return
            yield window

    def first_window(self, now: datetime) -> datetime | None:
        """The first window of a spec that is made now; None when there is none any more."""
        return next(self.windows(now - MILLISECOND if self.start is not None else now), None)

    def _unbounded(self, after: datetime) -> Iterator[datetime]:
        if self.every is not None:
            return _grid(self.every, self.start or after + self.every, after)
        if self.start is not None:
            after = max(after, self.start - MILLISECOND)
        return calendar(self.cron or "", self.zone, after)


def _grid(every: timedelta, window: datetime, after: datetime) -> Iterator[datetime]:
    if window <= after:
        window += ((after - window) // every + 1) * every
    while True:
        yield window
        window += every


class Repeating(msgspec.Struct, frozen=True):
    """A spec as its store has it: when its next window is, and how many jobs it has made."""

    spec: Repeat
    next_at: datetime
    fired: int

    @property
    def key(self) -> str:
        return self.spec.key


class Due(msgspec.Struct, frozen=True):
    """What is owed at a moment: a job for each of `windows`, and when the spec is looked at again."""

    windows: tuple[datetime, ...]
    next: datetime | None
    missed: int  # windows for which there is no job


def due(spec: Repeat, window: datetime, *, fired: int, now: datetime) -> Due:
    """What a spec owes whose next window was `window` and that has made `fired` jobs.

    The last window that has come is on time unless it is later than `LATE`; all others were missed.
    """
    if window > now:
        return Due((), window, 0)
    passed, count, coming = _passed(spec, window, now)
    on_time = now - passed[-1] <= LATE
    if spec.missed is Missed.FIRE_ALL:
        owed = passed[-(spec.most or MOST_AT_ONCE) :]
    elif spec.missed is Missed.FIRE_ONCE or on_time:
        owed = passed[-1:]
    else:
        owed = ()
    if spec.limit is not None:
        owed = owed[: max(0, spec.limit - fired)]
        if fired + len(owed) >= spec.limit:
            coming = None
    return Due(tuple(owed), coming, count - len(owed))


def _passed(
    spec: Repeat, window: datetime, now: datetime
) -> tuple[tuple[datetime, ...], int, datetime | None]:
    """The latest windows that have come (a bounded number), how many there were, and the next one."""
    if spec.every is not None:
        count = (now - window) // spec.every + 1
        if spec.end is not None and spec.end >= window:
            count = min(count, (spec.end - window) // spec.every + 1)
        kept = min(count, MOST_AT_ONCE)
        latest = tuple(window + spec.every * place for place in range(count - kept, count))
        coming = window + spec.every * count
        return latest, count, None if spec.end is not None and coming > spec.end else coming
    count = 0
    latest_few: deque[datetime] = deque(maxlen=MOST_AT_ONCE)
    for each in chain((window,), spec.windows(window)):
        if each > now:
            return tuple(latest_few), count, each
        count += 1
        latest_few.append(each)
    return tuple(latest_few), count, None


# -- the calendar


def calendar(expression: str, zone: str, after: datetime) -> Iterator[datetime]:
    """The moments after `after` that a cron expression of five or six fields names in a time zone, in UTC.

    As Debian's cron has it, what would run at a fixed time of a day runs once on every day: an hour that
    the clock leaps over is made up for right after it, one that comes twice counts once.
    """
    fields = expression.split()
    second = 0
    if len(fields) > _FIVE_FIELDS and fields[0].isdigit():
        # At one second of the minute it is a time of five fields, a little later.
        second, expression = int(fields[0]), " ".join(fields[1:])
    shift = timedelta(seconds=second)
    found = _simulated(expression, (after - shift).astimezone(zone_of(zone)))
    for moment in found:
        window = moment.astimezone(UTC) + shift
        if window > after:
            yield window


def _simulated(expression: str, start: datetime) -> CronSim:
    from cronsim import CronSim, CronSimError

    try:
        return CronSim(expression, start)
    except CronSimError as error:
        raise ConfigurationError(f"the cron pattern {expression!r} cannot be read: {error}") from None


@lru_cache(maxsize=128)
def zone_of(name: str) -> tzinfo:
    """A time zone by its name, or by its distance from UTC: `+05:30`."""
    if offset := _OFFSET.fullmatch(name):
        distance = timedelta(hours=int(offset[2]), minutes=int(offset[3]))
        return timezone(-distance if offset[1] == "-" else distance)
    try:
        return UTC if name in ("UTC", "Z") else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigurationError(
            f"there is no time zone {name!r}; write one as Europe/Berlin, UTC or +05:30"
        ) from None


# -- checking


def _check(spec: Repeat) -> None:
    if (spec.every is None) == (spec.cron is None):
        raise ConfigurationError(f"{spec.name!r} cannot be repeated: give either every or cron")
    if spec.every is not None and (spec.every < SHORTEST or spec.every % MILLISECOND):
        raise ConfigurationError(
            f"every must be whole milliseconds and at least {SHORTEST}, not {spec.every}"
        )
    if spec.limit is not None and spec.limit < 1:
        raise ConfigurationError(f"limit must be at least 1, not {spec.limit}")
    _check_bounds(spec)
    _check_missed(spec)
    if spec.cron is not None:
        zone_of(spec.zone)
        if next(calendar(spec.cron, spec.zone, _ANY_MOMENT), None) is None:
            raise ConfigurationError(f"the cron pattern {spec.cron!r} names no moment in fifty years")


def _check_bounds(spec: Repeat) -> None:
    for name in ("start", "end"):
        moment: Any = getattr(spec, name)
        if moment is not None and moment.tzinfo is None:
            raise ConfigurationError(f"{name} must have a time zone, {moment} has none")
    if spec.start is not None and spec.end is not None and spec.end < spec.start:
        raise ConfigurationError(f"the end ({spec.end}) is before the start ({spec.start})")


def _check_missed(spec: Repeat) -> None:
    if spec.most is None:
        return
    if spec.missed is not Missed.FIRE_ALL:
        raise ConfigurationError(f"a number of windows goes with fire-all, not with {spec.missed}")
    if not 1 <= spec.most <= MOST_AT_ONCE:
        raise ConfigurationError(f"fire-all makes up for 1 to {MOST_AT_ONCE} windows, not {spec.most}")
