"""Rate limits: what was set for a queue, and its buckets of turns. The reckoning itself is in `remuda.rate`.

Whoever changes a bucket holds the queue's own row, so that workers take their turns one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import delete, insert, select, update

from remuda.rate import NO_LIMITS, RateLimit, RateLimits, book_all, take
from remuda.stores.sql.dialect import Dialect
from remuda.stores.sql.moments import aware, aware_or_none, naive
from remuda.stores.sql.schema import queue as queue_table
from remuda.stores.sql.schema import rate as rate_table
from remuda.stores.sql.steps import Row, Steps
from remuda.stores.sql.upkeep import queue_row

_MICROSECOND = timedelta(microseconds=1)
_INSERT_CHUNK = 1_000  # a statement takes so many parameters and no more

_own = queue_table.c
_bucket = rate_table.c
_SET = (_own.rate_jobs, _own.rate_per_us, _own.key_rate_jobs, _own.key_rate_per_us)


def look(queue: str) -> Steps[RateLimits]:
    """What was set."""
    rows = yield select(*_SET).where(_own.name == queue)
    return _limits(rows[0]) if rows else NO_LIMITS


def _limits(row: Row) -> RateLimits:
    return RateLimits(queue=_limit(row[0], row[1]), key=_limit(row[2], row[3]))


def _limit(jobs: int | None, per_us: int | None) -> RateLimit | None:
    return None if jobs is None or per_us is None else RateLimit(jobs, per_us * _MICROSECOND)


def put(queue: str, limits: RateLimits) -> Steps[None]:
    """Set both. A limit that changes starts with a full bucket: the old one's debts are not the new one's."""
    yield from queue_row(queue)
    before = yield from look(queue)
    values = {
        "rate_jobs": limits.queue and limits.queue.jobs,
        "rate_per_us": limits.queue and limits.queue.per // _MICROSECOND,
        "key_rate_jobs": limits.key and limits.key.jobs,
        "key_rate_per_us": limits.key and limits.key.per // _MICROSECOND,
    }
    if limits.queue != before.queue:
        values["rate_full_at"] = None
    yield update(queue_table).where(_own.name == queue).values(values)
    if limits.key != before.key:
        yield delete(rate_table).where(_bucket.queue == queue)


def take_turns(queue: str, *, wanted: int, now: datetime) -> Steps[int]:
    """Take turns of the queue, or (negative) give some back. Without a limit there are plenty."""
    rows = (
        yield select(_own.rate_jobs, _own.rate_per_us, _own.rate_full_at)
        .where(_own.name == queue, _own.rate_jobs.is_not(None))
        .with_for_update()
    )
    limit = _limit(rows[0][0], rows[0][1]) if rows else None
    if limit is None:
        return max(0, wanted)
    granted, full_at = take(limit, aware_or_none(rows[0][2]), wanted=wanted, now=now)
    if granted or wanted < 0:
        yield update(queue_table).where(_own.name == queue).values(rate_full_at=naive(full_at))
    return granted


def book(dialect: Dialect, queue: str, keys: Sequence[str], *, now: datetime) -> Steps[list[datetime]]:
    """One turn for each key, in order."""
    yield from queue_row(queue)
    limit = (yield from look(queue)).key
    if limit is None:
        return [now] * len(keys)
    known = dialect.among(_bucket.rate_key, list(set(keys)))
    rows = yield select(_bucket.rate_key, _bucket.full_at).where(_bucket.queue == queue, known)
    before = {row[0]: aware(row[1]) for row in rows}
    moments, full_at = book_all(limit, before, keys, now=now)
    if before:
        yield delete(rate_table).where(_bucket.queue == queue, known)
    rows_to_add = [{"queue": queue, "rate_key": key, "full_at": naive(at)} for key, at in full_at.items()]
    for start in range(0, len(rows_to_add), _INSERT_CHUNK):
        yield insert(rate_table).values(rows_to_add[start : start + _INSERT_CHUNK])
    return moments


def prune(dialect: Dialect, queue: str, *, now: datetime, limit: int) -> Steps[int]:
    """Forget up to `limit` buckets that are full: a key without one has all its turns."""
    full = (_bucket.queue == queue, _bucket.full_at <= naive(now))
    rows = yield select(_bucket.rate_key).where(*full).limit(limit)
    if rows:
        yield from queue_row(queue)
        # Asked again: a turn may have been booked meanwhile.
        yield delete(rate_table).where(*full, dialect.among(_bucket.rate_key, [row[0] for row in rows]))
    return len(rows)
