"""Into which steps the plots divide a period, and from which grain of the measures they are made."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from remuda.lake.report.data import Period

MOST_STEPS = 200  # each still broad enough to be seen
_MINUTE, _HOUR, _DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
_STEPS = (
    *(n * _MINUTE for n in (1, 2, 5, 10, 15, 30)),
    *(n * _HOUR for n in (1, 2, 3, 6, 12)),
    *(n * _DAY for n in (1, 2, 7, 28)),
)
GRAIN_LENGTHS: Mapping[str, timedelta] = {"minute": _MINUTE, "hour": _HOUR, "day": _DAY}
# 5 January 1970 was a Monday: steps of weeks begin on one.
EPOCH = datetime(1970, 1, 5, tzinfo=UTC)


class Extent(NamedTuple):
    """When the first and the last period of a grain begin."""

    first: datetime
    last: datetime


class Slicing(NamedTuple):
    """The period of a report, and the grain of the measures from which its steps are added up."""

    period: Period
    grain: str


def slicing(extents: Mapping[str, Extent], since: datetime | None, until: datetime | None) -> Slicing | None:
    """Whole steps that enclose the data between both; None where there are none.

    The finest grain that reaches as far back as the others is taken: the finer ones may have expired.
    """
    finest = finest_covering(extents)
    if finest is None:
        return None
    length = GRAIN_LENGTHS[finest]
    start, end = extents[finest].first, extents[finest].last + length
    if (since and end <= since) or (until and start >= until):
        return None
    start = max(start, since) if since else start
    if until and until - end <= end - start:
        end = until  # that nothing happened until then is worth showing, within reason
    elif until:
        end = min(end, until)
    step = next(
        (step for step in _STEPS if step >= length and (end - start) / step <= MOST_STEPS), _STEPS[-1]
    )
    period = Period(floor_to(start, step), ceil_to(end, step), step)
    return Slicing(period, grain_of(step))


def finest_covering(extents: Mapping[str, Extent]) -> str | None:
    """The finest grain that begins where the coarser ones begin."""
    there = [grain for grain in GRAIN_LENGTHS if grain in extents]
    for place, grain in enumerate(there):
        coarser = there[place + 1 :]
        if all(extents[grain].first < extents[other].first + GRAIN_LENGTHS[other] for other in coarser):
            return grain
    return None


def grain_of(step: timedelta) -> str:
    """The coarsest grain of which the step is a multiple."""
    return next(grain for grain in ("day", "hour", "minute") if not step % GRAIN_LENGTHS[grain])


def floor_to(at: datetime, step: timedelta) -> datetime:
    """The beginning of the step in which a moment lies."""
    return EPOCH + (at - EPOCH) // step * step


def ceil_to(at: datetime, step: timedelta) -> datetime:
    """The end of the step in which a moment lies; a beginning is its own."""
    return EPOCH - (EPOCH - at) // step * step
