"""Aware datetimes at the surface, naive UTC in the tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_MILLISECOND = timedelta(milliseconds=1)


def naive(moment: datetime) -> datetime:
    """What a `timestamp` column takes. The moment must be in UTC."""
    return moment.replace(tzinfo=None)


def naive_or_none(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.replace(tzinfo=None)


def aware(moment: datetime) -> datetime:
    """What a `timestamp` column gave."""
    return moment.replace(tzinfo=UTC)


def aware_or_none(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.replace(tzinfo=UTC)


def milliseconds(duration: timedelta | None) -> int | None:
    return None if duration is None else duration // _MILLISECOND
