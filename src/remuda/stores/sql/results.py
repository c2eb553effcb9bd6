"""Results: what handlers returned, kept for a time."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, select

from remuda.stores.sql.dialect import Dialect
from remuda.stores.sql.moments import naive
from remuda.stores.sql.schema import result
from remuda.stores.sql.steps import Steps

_kept = result.c


def get(queue: str, job_id: str, *, now: datetime) -> Steps[bytes | None]:
    """The result of a job whose time is not over."""
    rows = yield select(_kept.result).where(
        _kept.queue == queue, _kept.job_id == job_id, _kept.expires_at > naive(now)
    )
    return bytes(rows[0][0]) if rows else None


def prune(dialect: Dialect, queue: str, *, now: datetime, limit: int) -> Steps[int]:
    """Remove up to `limit` results whose time is over; how many."""
    over = (_kept.queue == queue, _kept.expires_at <= naive(now))
    rows = yield select(_kept.job_id).where(*over).limit(limit)
    if rows:
        # Asked again: a job may have run once more under its id, and its new result is not over.
        yield delete(result).where(*over, dialect.among(_kept.job_id, [row[0] for row in rows]))
    return len(rows)
