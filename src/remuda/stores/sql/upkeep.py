"""What an operator does to a queue: pause, resume, purge."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, insert, select, update

from remuda.lifecycle import State
from remuda.stores.sql.dialect import Dialect
from remuda.stores.sql.moments import aware, between_ms, naive
from remuda.stores.sql.schema import StoredState, message
from remuda.stores.sql.schema import queue as queue_table
from remuda.stores.sql.steps import Steps
from remuda.transition import Batch


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
    column = message.c
    rows = yield (
        select(
            column.id,
            column.job_id,
            column.state,
            column.state_since,
            column.created_at,
            column.attempts_count,
        )
        .where(column.queue == queue, column.state.in_([StoredState.PENDING, StoredState.RETRYABLE]))
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    if rows:
        yield delete(message).where(column.id.in_([row[0] for row in rows]))
        yield from dialect.record(
            queue,
            Batch(
                messages=[str(row[0]) if row[1] is None else row[1] for row in rows],
                left=[State(row[2].value) for row in rows],
                entered=State.REMOVED,
                at=now,
                dwell_ms=[between_ms(aware(row[3] or row[4]), now) for row in rows],
                attempt=[row[5] for row in rows],
                reason="purged",
                who=who,
            ),
        )
    return len(rows)
