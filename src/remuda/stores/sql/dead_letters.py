"""Dead letters: the FAILED rows of the archive, counted, looked at, replayed and dropped."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, exists, func, insert, literal, or_, select

from remuda.errors import StoreError
from remuda.lifecycle import State
from remuda.message import DeadLetter, DeadLetterFilter
from remuda.stores.sql import results
from remuda.stores.sql.dialect import Dialect
from remuda.stores.sql.inspection import dead_letter_columns, dead_letter_from
from remuda.stores.sql.moments import aware, naive
from remuda.stores.sql.schema import StoredState, archive, message
from remuda.stores.sql.steps import Row, Steps
from remuda.stores.sql.upkeep import by_public_ids
from remuda.transition import Batch, between_ms

UNKNOWN_REASON = "unknown"  # a foreign program archived it and said nothing

_ENDED = archive.c

# What a replayed row takes along; the rest starts afresh.
_KEPT = (
    "id",
    "queue",
    "headers",
    "payload",
    "created_at",
    "job_id",
    "name",
    "priority",
    "retry",
    "unique_for_ms",
    "rate_key",
)


def _matching(dialect: Dialect, queue: str, which: DeadLetterFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [
        _ENDED.queue == queue,
        _ENDED.state == StoredState.FAILED,
    ]
    if which.reason is not None:
        conditions.append(_ENDED.reason == which.reason.value)
    if which.name is not None:
        conditions.append(func.coalesce(_ENDED.name, literal("")) == which.name)
    if which.since is not None:
        conditions.append(_ENDED.archived_at >= naive(which.since))
    if which.until is not None:
        conditions.append(_ENDED.archived_at <= naive(which.until))
    if which.ids is not None:
        conditions.append(by_public_ids(dialect, _ENDED, which.ids))
    return conditions


def count(dialect: Dialect, queue: str, which: DeadLetterFilter) -> Steps[dict[str, int]]:
    """How many, by reason."""
    rows = (
        yield select(_ENDED.reason, func.count())
        .where(*_matching(dialect, queue, which))
        .group_by(_ENDED.reason)
    )
    return {row[0] or UNKNOWN_REASON: row[1] for row in rows}


def peek(
    dialect: Dialect,
    queue: str,
    which: DeadLetterFilter,
    *,
    limit: int,
    after: str | None,
    oldest_first: bool,
) -> Steps[list[DeadLetter]]:
    """Newest or oldest first; from a cursor on."""
    query = select(*dead_letter_columns).where(*_matching(dialect, queue, which))
    if after is not None:
        moment, key = _read_cursor(after)
        # Spelt out instead of as a row comparison, which not every planner walks an index for.
        at, same = _ENDED.archived_at, _ENDED.archived_at == moment
        query = query.where(
            (at > moment) | (same & (_ENDED.id > key))
            if oldest_first
            else (at < moment) | (same & (_ENDED.id < key))
        )
    order = (_ENDED.archived_at, _ENDED.id)
    rows = yield query.order_by(*(order if oldest_first else [each.desc() for each in order])).limit(limit)
    return [dead_letter_from(row, f"{row[17].isoformat()}/{row[0]}") for row in rows]


def _read_cursor(cursor: str) -> tuple[datetime, int]:
    moment, _, key = cursor.partition("/")
    try:
        return datetime.fromisoformat(moment), int(key)
    except ValueError:
        raise StoreError(f"not a cursor of a dead letter: {cursor!r}") from None


def _lock_oldest(dialect: Dialect, queue: str, which: DeadLetterFilter, limit: int) -> Select[Any]:
    """Oldest first; what a concurrent replay or drop has locked is left to it."""
    return (
        select(_ENDED.id, _ENDED.job_id, _ENDED.archived_at, _ENDED.attempts_count, _ENDED.reason)
        .where(*_matching(dialect, queue, which))
        .order_by(_ENDED.archived_at, _ENDED.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )


def _public_id(row: Row) -> str:
    return str(row[0]) if row[1] is None else row[1]


_LIVES_AGAIN = exists().where(message.c.queue == _ENDED.queue, message.c.job_id == _ENDED.job_id)


def replay(
    dialect: Dialect, queue: str, which: DeadLetterFilter, *, limit: int, now: datetime, who: str
) -> Steps[list[str]]:
    """Move back with a fresh budget. A job whose id lives again meanwhile stays where it is."""
    rows = yield _lock_oldest(dialect, queue, which, limit).where(~_LIVES_AGAIN)
    # The same id may have died more than once: only one of them can live again.
    chosen: dict[str, Row] = {}
    for row in rows:
        chosen.setdefault(_public_id(row), row)
    keys = [row[0] for row in chosen.values()]
    if keys:
        moment = literal(naive(now), message.c.created_at.type)
        fresh = {
            "state": literal(StoredState.PENDING, message.c.state.type),
            "attempts_count": literal(0),
            "deliveries_count": literal(0),
            "next_attempt_at": moment,
            "state_since": moment,
        }
        source = select(*(_ENDED[name] for name in _KEPT), *fresh.values()).where(_ENDED.id.in_(keys))
        yield insert(message).from_select([*_KEPT, *fresh], source, include_defaults=False)
        yield delete(archive).where(_ENDED.id.in_(keys))
        yield from results.forget(dialect, queue, list(chosen))
        yield from _record(dialect, queue, list(chosen.values()), State.PENDING, "replay", now, who)
    return list(chosen)


def replayable(dialect: Dialect, queue: str, which: DeadLetterFilter, *, limit: int) -> Steps[list[str]]:
    """What a replay would move, in its order."""
    rows = yield (
        select(_ENDED.id, _ENDED.job_id)
        .where(*_matching(dialect, queue, which), ~_LIVES_AGAIN)
        .order_by(_ENDED.archived_at, _ENDED.id)
        .limit(limit)
    )
    return list(dict.fromkeys(map(_public_id, rows)))


def still_live(dialect: Dialect, queue: str, which: DeadLetterFilter, *, limit: int) -> Steps[list[str]]:
    """Dead letters that cannot be replayed, because a job with their id is live."""
    rows = (
        yield select(_ENDED.id, _ENDED.job_id)
        .where(*_matching(dialect, queue, which), _LIVES_AGAIN)
        .limit(limit)
    )
    return [_public_id(row) for row in rows]


def drop(
    dialect: Dialect, queue: str, which: DeadLetterFilter, *, limit: int, now: datetime, who: str
) -> Steps[list[str]]:
    """Remove for good; the trail keeps that it happened."""
    rows = yield _lock_oldest(dialect, queue, which, limit)
    if rows:
        yield delete(archive).where(_ENDED.id.in_([row[0] for row in rows]))
        yield from _record(dialect, queue, list(rows), State.REMOVED, "dropped", now, who)
    return [_public_id(row) for row in rows]


def _record(
    dialect: Dialect, queue: str, rows: list[Row], entered: State, reason: str, now: datetime, who: str
) -> Steps[None]:
    yield from dialect.record(
        queue,
        Batch(
            messages=[_public_id(row) for row in rows],
            left=State.FAILED,
            entered=entered,
            at=now,
            dwell_ms=[between_ms(aware(row[2]), now) for row in rows],
            attempt=0 if entered is State.PENDING else [row[3] for row in rows],
            reason=reason,
            who=who,
        ),
    )


def prune(
    dialect: Dialect,
    queue: str,
    *,
    completed_before: datetime | None,
    failed_before: datetime | None,
    now: datetime,
    who: str,
    limit: int,
) -> Steps[int]:
    """Remove what is past its retention; the end of a dead letter is recorded. Held unique ids stay."""
    removed = 0
    held = or_(_ENDED.unique_until.is_(None), _ENDED.unique_until <= naive(now))
    if completed_before is not None:
        rows = yield (
            select(_ENDED.id)
            .where(
                _ENDED.queue == queue,
                _ENDED.state == StoredState.COMPLETED,
                _ENDED.archived_at < naive(completed_before),
                held,
            )
            .order_by(_ENDED.archived_at)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        if rows:
            yield delete(archive).where(_ENDED.id.in_([row[0] for row in rows]))
            removed += len(rows)
    if failed_before is not None and removed < limit:
        rows = yield _lock_oldest(dialect, queue, DeadLetterFilter(), limit - removed).where(
            _ENDED.archived_at < naive(failed_before), held
        )
        if rows:
            yield delete(archive).where(_ENDED.id.in_([row[0] for row in rows]))
            yield from _record(dialect, queue, list(rows), State.REMOVED, "retention", now, who)
            removed += len(rows)
    return removed
