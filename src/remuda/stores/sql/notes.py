"""Notes: how far jobs are, and what their handlers said, kept for a time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, delete, exists, insert, select

from remuda.message import LogLine
from remuda.stores.contract import Note, Progressed
from remuda.stores.sql.dialect import Dialect
from remuda.stores.sql.moments import aware, naive
from remuda.stores.sql.schema import log_line, progress
from remuda.stores.sql.steps import Steps

_ROWS = 500  # in one statement, which takes so many parameters and no more

_far = progress.c
_said = log_line.c


def put(dialect: Dialect, queue: str, notes: Sequence[Note], *, now: datetime, ttl: timedelta) -> Steps[None]:
    """Keep them: the last word of progress, every line."""
    over = naive(now + ttl)
    latest = {each.job_id: each.progress for each in notes if each.progress is not None}
    if latest:
        rows = [
            {"queue": queue, "job_id": job_id, "progress": value, "noted_at": naive(now), "expires_at": over}
            # In one order, so that two workers never wait for each other.
            for job_id, value in sorted(latest.items())
        ]
        for start in range(0, len(rows), _ROWS):
            yield dialect.upsert(progress, rows[start : start + _ROWS])
    said = [
        {
            "queue": queue,
            "job_id": each.job_id,
            "said_at": naive(line.at),
            "attempt": line.attempt,
            "line": line.text.encode(),
            "expires_at": over,
        }
        for each in notes
        for line in each.lines
    ]
    for start in range(0, len(said), _ROWS):
        yield insert(log_line).values(said[start : start + _ROWS])


def how_far(
    dialect: Dialect, queue: str, job_ids: Sequence[str], *, now: datetime
) -> Steps[dict[str, Progressed]]:
    """How far jobs are, of those that have said so."""
    rows = yield select(_far.job_id, _far.progress, _far.noted_at).where(
        _far.queue == queue, dialect.among(_far.job_id, job_ids), _far.expires_at > naive(now)
    )
    return {job_id: Progressed(bytes(value), aware(at)) for job_id, value, at in rows}


def lines(queue: str, job_id: str, *, now: datetime, after: int, limit: int) -> Steps[list[LogLine]]:
    """What a job's handler said, in order. All of it is there as long as its last line."""
    rows = yield (
        select(_said.said_at, _said.attempt, _said.line)
        .where(_said.queue == queue, _said.job_id == job_id, _is_kept(_said, now))
        .order_by(_said.id)
        .offset(after)
        .limit(limit)
    )
    return [LogLine(aware(at), attempt, bytes(line).decode()) for at, attempt, line in rows]


def prune_progress(dialect: Dialect, queue: str, *, now: datetime, limit: int) -> Steps[int]:
    """Remove up to `limit` whose time is over; how many."""
    over = (_far.queue == queue, _far.expires_at <= naive(now))
    rows = yield select(_far.job_id).where(*over).limit(limit)
    if rows:
        yield delete(progress).where(*over, dialect.among(_far.job_id, [row[0] for row in rows]))
    return len(rows)


def prune_lines(dialect: Dialect, queue: str, *, now: datetime, limit: int) -> Steps[int]:
    """Remove up to `limit` whose time is over; how many. A log goes as a whole: its lines are counted."""
    rows = yield (
        select(_said.id)
        .where(_said.queue == queue, _said.expires_at <= naive(now), ~_is_kept(_said, now))
        .limit(limit)
    )
    if rows:
        yield delete(log_line).where(dialect.among(_said.id, [row[0] for row in rows]))
    return len(rows)


def _is_kept(line: Any, now: datetime) -> ColumnElement[bool]:
    """Whether any line of the same job is to be kept still."""
    other = log_line.alias("other").c
    return exists().where(
        other.queue == line.queue, other.job_id == line.job_id, other.expires_at > naive(now)
    )
