"""Rate limits: a bucket of turns that refills evenly. Pure: moments go in, moments come out.

The state of a bucket is one moment, its `full_at`: when it will be full again. A turn moves it on by
one interval; there are turns as long as it is less than `burst` ahead of now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from remuda.errors import ConfigurationError

_MICROSECOND = timedelta(microseconds=1)
_GRACE = timedelta(seconds=1)  # a worker that is busy for a moment does not lose the turns of that moment


class RateLimit(msgspec.Struct, frozen=True):
    """`jobs` handler runs in `per`: up to `jobs` at once after a quiet time, evenly from then on.

    >>> RateLimit(100, timedelta(seconds=1))
    """

    jobs: int
    per: timedelta

    def __post_init__(self) -> None:
        jobs: object = self.jobs  # callers need not be typed
        per: object = self.per
        if type(jobs) is not int or jobs < 1:
            raise ConfigurationError(f"a rate limit allows 1 job or more, a whole number, not {jobs!r}")
        if not isinstance(per, timedelta) or per <= timedelta(0):
            raise ConfigurationError(f"the period of a rate limit is a timedelta above nought, not {per!r}")
        if per < jobs * _MICROSECOND:
            raise ConfigurationError(f"{jobs:,} jobs in {per} is no limit: less than a microsecond for each")

    @property
    def interval(self) -> timedelta:
        """The time in which one turn comes back; rounded up, so that the limit is never exceeded."""
        return -(-self.per // self.jobs)

    @property
    def burst(self) -> timedelta:
        """The time in which an empty bucket is full again: `per`, but for the rounding."""
        return self.interval * self.jobs


class RateLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a queue: one for all of its jobs, one for each rate key."""

    queue: RateLimit | None = None
    key: RateLimit | None = None

    def __bool__(self) -> bool:
        return self.queue is not None or self.key is not None


NO_LIMITS = RateLimits()


def take(limit: RateLimit, full_at: datetime | None, *, wanted: int, now: datetime) -> tuple[int, datetime]:
    """How many of the wanted turns there are now, and the bucket's new `full_at`.

    A negative `wanted` puts turns back.
    """
    base = now if full_at is None else max(full_at, now)
    if wanted <= 0:
        return 0, max(now, base + limit.interval * wanted)
    free = (now + limit.burst - base) // limit.interval
    granted = max(0, min(wanted, free))
    return granted, base + limit.interval * granted


def book(limit: RateLimit, full_at: datetime | None, *, now: datetime) -> tuple[datetime, datetime]:
    """The moment of the next turn, now or later, and the bucket's new `full_at`."""
    base = (now if full_at is None else max(full_at, now)) + limit.interval
    return max(now, base - limit.burst), base


def book_all(
    limit: RateLimit, full_at: Mapping[str, datetime], keys: Sequence[str], *, now: datetime
) -> tuple[list[datetime], dict[str, datetime]]:
    """`book` for each key in order, from buckets by key: the moments, and the buckets that it changed."""
    moments: list[datetime] = []
    changed: dict[str, datetime] = {}
    for key in keys:
        moment, changed[key] = book(limit, changed.get(key, full_at.get(key)), now=now)
        moments.append(moment)
    return moments, changed


def has_turn(limit: RateLimit, slot_at: datetime | None, *, now: datetime) -> bool:
    """Whether a job may run in the slot it was given. A slot that nobody used in its time is gone.

    Otherwise, after a night without workers, all that were put back would run at once.
    """
    return slot_at is not None and now - slot_at < max(limit.per, _GRACE)
