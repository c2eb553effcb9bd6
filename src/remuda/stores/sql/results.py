"""Results: what handlers returned, kept for a time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, select

from remuda.stores.sql.dialect import Dialect
from remuda.stores.sql.moments import naive
from remuda.stores.sql.schema import result
from remuda.stores.sql.steps import Steps

_kept = result.c


def get(dialect: Dialect, queue: str, job_ids: Sequence[str], *, now: datetime) -> Steps[dict[str, bytes]]:
    """The results of jobs whose time is not over."""
    among = dialect.among(_kept.job_id, job_ids)
    rows = yield select(_kept.job_id, _kept.result).where(
        _kept.queue == queue, among, _kept.expires_at > naive(now)
    )
    return {job_id: bytes(value) for job_id, value in rows}


def forget(dialect: Dialect, queue: str, job_ids: Sequence[str]) -> Steps[None]:
    """Of jobs that live again, what they once came to."""
    yield delete(result).where(_kept.queue == queue, dialect.among(_kept.job_id, job_ids))


def prune(dialect: Dialect, queue: str, *, now: datetime, limit: int) -> Steps[int]:
    """Remove up to `limit` results whose time is over; how many."""
    over = (_kept.queue == queue, _kept.expires_at <= naive(now))
    rows = yield select(_kept.job_id).where(*over).limit(limit)
    if rows:
        # Asked again: a job may have run once more under its id, and its new result is not over.
        yield delete(result).where(*over, dialect.among(_kept.job_id, [row[0] for row in rows]))
    return len(rows)
