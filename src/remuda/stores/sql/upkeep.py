"""What an operator does to a queue: pause, resume, purge, cancel, reschedule, expire, obliterate."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, insert, or_, select, update

from remuda.lifecycle import State
from remuda.stores.sql.dialect import Dialect
from remuda.stores.sql.moments import aware, naive
from remuda.stores.sql.schema import StoredState, archive, message
from remuda.stores.sql.schema import cancel as cancel_table
from remuda.stores.sql.schema import log_line as log_table
from remuda.stores.sql.schema import progress as progress_table
from remuda.stores.sql.schema import queue as queue_table
from remuda.stores.sql.schema import rate as rate_table
from remuda.stores.sql.schema import repeat as repeat_table
from remuda.stores.sql.schema import result as result_table
from remuda.stores.sql.steps import Row, Steps
from remuda.transition import Batch, between_ms

_MAIN = message.c


def queue_row(queue: str) -> Steps[int]:
    """Lock the queue's own row, made if it is not there; its last sequence number."""
    query = select(queue_table.c.last_seq).where(queue_table.c.name == queue).with_for_update()
    rows = yield query
    if not rows:
        yield insert(queue_table).values(name=queue, last_seq=0)
        rows = yield query
    last_seq: int = rows[0][0]
    return last_seq


def set_pause(queue: str, paused_at: datetime | None) -> Steps[None]:
    """Pause from a moment on, or (None) resume."""
    yield from queue_row(queue)
    yield (
        update(queue_table)
        .where(queue_table.c.name == queue)
        .values(paused_at=None if paused_at is None else naive(paused_at))
    )


def purge(dialect: Dialect, queue: str, *, now: datetime, who: str, limit: int) -> Steps[int]:
    """Remove up to `limit` waiting jobs, and record it."""
    rows = yield _waiting(queue).limit(limit).with_for_update(skip_locked=True)
    yield from _remove(dialect, queue, rows, reason="purged", now=now, who=who)
    return len(rows)


def ask_to_cancel(dialect: Dialect, queue: str, job_ids: Sequence[str], *, now: datetime) -> Steps[None]:
    """Leave word for the workers that run these jobs."""
    yield from queue_row(queue)
    yield from forget_to_cancel(dialect, queue, job_ids)
    rows = [{"queue": queue, "job_id": each, "asked_at": naive(now)} for each in job_ids]
    yield insert(cancel_table).values(rows)


def asked_to_cancel(queue: str) -> Steps[dict[str, datetime]]:
    """The jobs for which word was left, and when."""
    rows = yield select(cancel_table.c.job_id, cancel_table.c.asked_at).where(cancel_table.c.queue == queue)
    return {job_id: aware(asked_at) for job_id, asked_at in rows}


def forget_to_cancel(dialect: Dialect, queue: str, job_ids: Sequence[str]) -> Steps[None]:
    """Take the word back."""
    yield delete(cancel_table).where(
        cancel_table.c.queue == queue, dialect.among(cancel_table.c.job_id, job_ids)
    )


def cancel(
    dialect: Dialect, queue: str, job_ids: Sequence[str], *, now: datetime, who: str
) -> Steps[list[str]]:
    """Remove those that wait, and record it. One that a worker is just fetching is waited for: it may not."""
    rows = yield (
        _waiting(queue).where(by_public_ids(dialect, message.c, job_ids)).order_by(_MAIN.id).with_for_update()
    )
    yield from _remove(dialect, queue, rows, reason="cancelled", now=now, who=who)
    return [_public_id(row) for row in rows]


def reschedule(dialect: Dialect, queue: str, job_id: str, *, at: datetime) -> Steps[bool]:
    """Give a job that waits another moment. The turn it had under a rate limit is not for that one."""
    rows = yield _waiting(queue).where(by_public_ids(dialect, message.c, [job_id])).with_for_update()
    if rows:
        yield (
            update(message)
            .where(_MAIN.id.in_([row[0] for row in rows]))
            .values(next_attempt_at=naive(at), slot_at=None)
        )
    return bool(rows)


def set_expiry(dialect: Dialect, queue: str, job_id: str, *, at: datetime | None) -> Steps[bool]:
    """Let a job that waits expire at another moment, or (None) never."""
    rows = yield _waiting(queue).where(by_public_ids(dialect, message.c, [job_id])).with_for_update()
    if rows:
        yield (
            update(message)
            .where(_MAIN.id.in_([row[0] for row in rows]))
            .values(expires_at=None if at is None else naive(at))
        )
    return bool(rows)


def take_back(dialect: Dialect, queue: str, *, now: datetime, who: str, limit: int) -> Steps[list[str]]:
    """Put back up to `limit` jobs that workers hold. One that is just settled is left alone."""
    rows = yield (
        _of(queue)
        .where(_MAIN.state == StoredState.PROCESSING)
        .order_by(_MAIN.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    if rows:
        without_holder = dict.fromkeys(("lease", "lease_expires_at", "worker", "acquired_at"))
        yield (
            update(message)
            .where(_MAIN.id.in_([row[0] for row in rows]))
            .values(state=StoredState.PENDING, state_since=naive(now), **without_holder)
        )
        yield from dialect.record(queue, _moves(rows, State.PENDING, reason="taken_back", now=now, who=who))
    return [_public_id(row) for row in rows]


def forget(queue: str) -> Steps[None]:
    """All that is kept beside jobs, and completed ones that still hold an id. The last number stays."""
    last_seq = yield from queue_row(queue)
    yield delete(archive).where(archive.c.queue == queue, archive.c.state == StoredState.COMPLETED)
    for table in (repeat_table, rate_table, result_table, cancel_table, progress_table, log_table):
        yield delete(table).where(table.c.queue == queue)
    settings = ("paused_at", "rate_jobs", "rate_per_us", "rate_full_at", "key_rate_jobs", "key_rate_per_us")
    yield (
        update(queue_table)
        .where(queue_table.c.name == queue)
        .values({**dict.fromkeys(settings), "forgotten_seq": last_seq})
    )


def by_public_ids(dialect: Dialect, column: Any, ids: Sequence[str]) -> ColumnElement[bool]:
    """The rows that ids mean, in either table: jobs' own, or the numbers of a foreign program's rows."""
    own = dialect.among(column.job_id, ids)
    numbers = [int(each) for each in ids if each.isascii() and each.isdecimal() and len(each) < 19]
    return or_(own, dialect.among(column.id, numbers) & column.job_id.is_(None)) if numbers else own


def _of(queue: str) -> Select[Any]:
    """Live jobs, with what `_remove` has to know of them."""
    return select(
        _MAIN.id, _MAIN.job_id, _MAIN.state, _MAIN.state_since, _MAIN.created_at, _MAIN.attempts_count
    ).where(_MAIN.queue == queue)


def _waiting(queue: str) -> Select[Any]:
    return _of(queue).where(_MAIN.state.in_([StoredState.PENDING, StoredState.RETRYABLE]))


def _remove(
    dialect: Dialect, queue: str, rows: Sequence[Row], *, reason: str, now: datetime, who: str
) -> Steps[None]:
    if not rows:
        return
    yield delete(message).where(_MAIN.id.in_([row[0] for row in rows]))
    yield from dialect.record(queue, _moves(rows, State.REMOVED, reason=reason, now=now, who=who))


def _moves(rows: Sequence[Row], entered: State, *, reason: str, now: datetime, who: str) -> Batch:
    return Batch(
        messages=[_public_id(row) for row in rows],
        left=[State(row[2].value) for row in rows],
        entered=entered,
        at=now,
        dwell_ms=[between_ms(aware(row[3] or row[4]), now) for row in rows],
        attempt=[row[5] for row in rows],
        reason=reason,
        who=who,
    )


def _public_id(row: Row) -> str:
    return str(row[0]) if row[1] is None else row[1]
