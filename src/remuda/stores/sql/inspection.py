"""Looking: queues, numbers, single jobs. Read-only, the same statements on every database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Select, Text, cast, func, literal, null, or_, select, text, union

from remuda.codec import decode_headers
from remuda.errors import DecodeError, StoreError
from remuda.lifecycle import TERMINAL_STATES, State
from remuda.message import PRIORITIES, DeadLetter, JobRecord, Stats
from remuda.stores.command_trail import trail_name
from remuda.stores.contract import Delivery, RecordPage
from remuda.stores.sql.dialect import Dialect
from remuda.stores.sql.moments import aware, aware_or_none, naive
from remuda.stores.sql.rows import CLAIM_COLUMNS, read_claimed
from remuda.stores.sql.schema import StoredState, archive, message
from remuda.stores.sql.schema import queue as queue_table
from remuda.stores.sql.steps import Row, Rows, Steps

# In the order in which `record_from` takes them.
_RECORD_COLUMNS = (
    "id",
    "job_id",
    "queue",
    "name",
    "state",
    "payload",
    "headers",
    "priority",
    "attempts_count",
    "deliveries_count",
    "created_at",
    "next_attempt_at",
    "first_attempt_at",
    "last_attempt_at",
    "acquired_at",
    "lease_expires_at",
    "expires_at",
    "archived_at",
    "worker",
    "reason",
    "error_type",
    "error_message",
    "error_trace",
    "rate_key",
)

_MAIN = message.c
_ENDED = archive.c
# Written as the partial index has it, for a planner only takes the index if it can tell they agree.
_IS_WAITING = text("state IN ('PENDING', 'RETRYABLE')")


def _columns(source: Any, **other: Any) -> list[ColumnElement[Any]]:
    """The columns of a job record, in order, from either table; `other` where the table has none."""
    columns: list[ColumnElement[Any]] = []
    for name in _RECORD_COLUMNS:
        column = other.get(name, source.get(name))
        if column is None:
            column = null()
        columns.append(cast(column, Text) if name == "headers" else column)
    return columns


_LIVE_COLUMNS = _columns(_MAIN, error_message=_MAIN.last_error)
_ENDED_COLUMNS = _columns(_ENDED)


def record_from(row: Row) -> JobRecord:
    """A job record from the columns above."""
    try:
        headers = decode_headers(row[6])
    except DecodeError:
        headers = {}
    state = row[4]
    return JobRecord(
        id=str(row[0]) if row[1] is None else row[1],
        queue=row[2],
        name=row[3] or "",
        state=State(state.value if isinstance(state, StoredState) else state),
        payload=row[5],
        headers=headers,
        priority=row[7],
        attempts=row[8],
        deliveries=row[9],
        created_at=aware(row[10]),
        next_attempt_at=aware_or_none(row[11]),
        first_attempt_at=aware_or_none(row[12]),
        last_attempt_at=aware_or_none(row[13]),
        acquired_at=aware_or_none(row[14]),
        lease_expires_at=aware_or_none(row[15]),
        expires_at=aware_or_none(row[16]),
        ended_at=aware_or_none(row[17]),
        worker=row[18],
        reason=row[19],
        error_type=row[20],
        error_message=row[21],
        error_trace=row[22],
        rate_key=row[23],
        foreign=row[1] is None,
    )


def queues() -> Steps[list[str]]:
    """Every queue that holds a message, live or ended, or is paused; not the trails of device fleets."""
    forgotten = queue_table.c.forgotten_seq
    known = select(queue_table.c.name).where(
        ~queue_table.c.name.startswith(trail_name(""), autoescape=True),
        # One that was obliterated is known again when something has happened in it since.
        or_(forgotten.is_(None), forgotten < queue_table.c.last_seq, queue_table.c.paused_at.is_not(None)),
    )
    rows = yield union(select(_MAIN.queue), select(_ENDED.queue), known)
    return sorted(row[0] for row in rows)


def stats(queue: str, *, now: datetime) -> Steps[Stats]:
    """One queue in numbers."""
    moment = naive(now)
    live = _counted(
        (yield select(_MAIN.state, func.count()).where(_MAIN.queue == queue).group_by(_MAIN.state))
    )
    ended = _counted(
        (yield select(_ENDED.state, func.count()).where(_ENDED.queue == queue).group_by(_ENDED.state))
    )
    delayed = yield (
        select(func.count())
        .select_from(message)
        .where(_MAIN.queue == queue, _IS_WAITING, _MAIN.next_attempt_at > moment)
    )
    oldest = yield select(func.min(_MAIN.next_attempt_at)).where(
        _MAIN.queue == queue, _IS_WAITING, _MAIN.next_attempt_at <= moment
    )
    paused = yield select(queue_table.c.paused_at).where(
        queue_table.c.name == queue, queue_table.c.paused_at.is_not(None)
    )
    first_due = oldest[0][0]
    return Stats(
        queue=queue,
        pending=live.get(StoredState.PENDING, 0),
        retryable=live.get(StoredState.RETRYABLE, 0),
        processing=live.get(StoredState.PROCESSING, 0),
        delayed=delayed[0][0],
        completed=ended.get(StoredState.COMPLETED, 0),
        failed=ended.get(StoredState.FAILED, 0),
        paused=bool(paused),
        oldest_due=None if first_due is None else now - aware(first_due),
    )


def next_due(queue: str) -> Steps[datetime | None]:
    """The earliest `next_attempt_at` of what waits: one look into the fetch index per priority."""
    firsts = [
        select(_MAIN.next_attempt_at)
        .where(_MAIN.queue == queue, _MAIN.priority == priority, _IS_WAITING)
        .order_by(_MAIN.next_attempt_at)
        .limit(1)
        .scalar_subquery()
        for priority in PRIORITIES
    ]
    rows = yield select(*firsts)
    return min((aware(moment) for moment in rows[0] if moment is not None), default=None)


def _counted(rows: Rows) -> dict[StoredState, int]:
    return {row[0]: row[1] for row in rows}


def _by_id(table: Any, job_id: str) -> list[ColumnElement[bool]]:
    """The rows that an id may mean: a job's own id, or the row number of a foreign program's message."""
    conditions: list[ColumnElement[bool]] = [table.job_id == job_id]
    if job_id.isascii() and job_id.isdecimal() and len(job_id) < 19:
        conditions.append((table.id == int(job_id)) & table.job_id.is_(None))
    return conditions


def get(queue: str, job_id: str) -> Steps[JobRecord | None]:
    """One job, live or ended; of several ended ones with the same id, the latest."""
    for columns, table in ((_LIVE_COLUMNS, _MAIN), (_ENDED_COLUMNS, _ENDED)):
        for condition in _by_id(table, job_id):
            query = select(*columns).where(table.queue == queue, condition)
            if table is _ENDED:
                query = query.order_by(_ENDED.archived_at.desc()).limit(1)
            rows = yield query
            if rows:
                return record_from(rows[0])
    return None


def jobs(queue: str, *, state: State | None, name: str | None, limit: int) -> Steps[list[JobRecord]]:
    """Live ones in the order in which they would run, then ended ones, newest first."""
    found: list[JobRecord] = []
    if state is None or state not in TERMINAL_STATES:
        rows = (
            yield _narrow(select(*_LIVE_COLUMNS), _MAIN, queue, state, name)
            .order_by(_MAIN.priority.desc(), _MAIN.next_attempt_at, _MAIN.id)
            .limit(limit)
        )
        found += [record_from(row) for row in rows]
    if (state is None or state in TERMINAL_STATES) and len(found) < limit:
        rows = (
            yield _narrow(select(*_ENDED_COLUMNS), _ENDED, queue, state, name)
            .order_by(_ENDED.archived_at.desc(), _ENDED.id.desc())
            .limit(limit - len(found))
        )
        found += [record_from(row) for row in rows]
    return found


def records(dialect: Dialect, queue: str, *, ended: bool, after: str | None, limit: int) -> Steps[RecordPage]:
    """Live or ended ones by the number of their row, which a message keeps as long as it is there."""
    kind = "ended" if ended else "live"
    columns, table = (_ENDED_COLUMNS, _ENDED) if ended else (_LIVE_COLUMNS, _MAIN)
    query = select(*columns).where(dialect.in_queue(table.queue, queue))
    if after is not None:
        query = query.where(table.id > _row_number(after, kind))
    limit = max(1, limit)
    rows = yield query.order_by(table.id).limit(limit)
    return RecordPage(
        [record_from(row) for row in rows], f"{kind}/{rows[-1][0]}" if len(rows) == limit else None
    )


def _row_number(cursor: str, kind: str) -> int:
    told, _, number = cursor.partition("/")
    if told != kind or not (number.isascii() and number.isdecimal() and len(number) < 19):
        raise StoreError(f"not a cursor of the {kind} records of a queue: {cursor!r}")
    return int(number)


def _narrow(query: Select[Any], table: Any, queue: str, state: State | None, name: str | None) -> Select[Any]:
    query = query.where(table.queue == queue)
    if state is not None:
        query = query.where(table.state == StoredState(state.value))
    if name is not None:
        query = query.where(func.coalesce(table.name, literal("")) == name)
    return query


dead_letter_columns = _ENDED_COLUMNS


def dead_letter_from(row: Row, cursor: str) -> DeadLetter:
    """A dead letter from `dead_letter_columns`."""
    return DeadLetter(cursor=cursor, **msgspec.structs.asdict(record_from(row)))


def held(queue: str, leases: Sequence[int]) -> Steps[list[Delivery]]:
    """What is held under these leases, as `fetch` gave it out."""
    columns = [
        cast(message.c[name], Text) if name == "headers" else message.c[name] for name in CLAIM_COLUMNS
    ]
    rows = yield (
        select(message.c.lease, message.c.acquired_at, message.c.lease_expires_at, *columns)
        .where(message.c.queue == queue, message.c.state == StoredState.PROCESSING)
        .where(message.c.lease.in_(leases), message.c.lease_expires_at >= message.c.acquired_at)
        .order_by(message.c.priority.desc(), message.c.next_attempt_at, message.c.id)
    )
    found = []
    for lease, acquired_at, until, *claimed in rows:
        row = (*claimed, StoredState.PROCESSING.value, acquired_at)
        delivery = read_claimed(row, lease=lease, now=aware(acquired_at), moment=aware).delivery
        delivery.leased_until = aware(until)
        found.append(delivery)
    return found
