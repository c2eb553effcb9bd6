"""SQLite: one writer at a time, so that a look and the change after it are one step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Executable, Table, func, select
from sqlalchemy.dialects.sqlite import insert

from remuda.lifecycle import State
from remuda.message import priorities_from
from remuda.stores.contract import Delivery, EncodedJob, Settlement, Suspects
from remuda.stores.sql.dialect import Claimed, Dialect, KeptResult, Recovered
from remuda.stores.sql.moments import milliseconds
from remuda.stores.sql.rows import CLAIM_COLUMNS, error_line, first_of_each, read_claimed, still_held
from remuda.stores.sql.steps import Raw, Steps
from remuda.transition import Batch

_INSERT = """
    INSERT INTO message
        (queue, state, attempts_count, deliveries_count, created_at, state_since, job_id, name, payload,
         headers, next_attempt_at, priority, expires_at, retry, unique_for_ms, rate_key)
    VALUES (?, 'PENDING', 0, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

# Unique ids that are taken: by a live job, or by one that ended not long enough ago.
_TAKEN = """
    SELECT job_id FROM message WHERE queue = ? AND job_id IN (SELECT value FROM json_each(?))
    UNION
    SELECT job_id FROM message_archive
    WHERE queue = ? AND job_id IN (SELECT value FROM json_each(?)) AND unique_until > ?
"""

# Each half is bounded, and found in an index of its own.
_LIVE = """
    SELECT (SELECT count(*) FROM (SELECT 1 FROM message
                WHERE queue = ?1 AND state IN ('PENDING', 'RETRYABLE') LIMIT ?2))
         + (SELECT count(*) FROM (SELECT 1 FROM message WHERE queue = ?1 AND state = 'PROCESSING' LIMIT ?2))
"""
_TAKE_BACK = "DELETE FROM message WHERE queue = ? AND job_id IN (SELECT value FROM json_each(?))"

_PAUSED = "SELECT 1 FROM message_queue WHERE name = ? AND paused_at IS NOT NULL"

_DUE = f"""
    SELECT {", ".join(CLAIM_COLUMNS).replace("deliveries_count", "deliveries_count + 1")},
        state, coalesce(state_since, created_at)
    FROM message
    WHERE queue = ? AND priority = ? AND state IN ('PENDING', 'RETRYABLE') AND next_attempt_at <= ?
      AND (deliveries_count >= ? AND deliveries_count > attempts_count) = ?
    ORDER BY next_attempt_at, id
    LIMIT ?
"""

_CLAIM = """
    UPDATE message
    SET state = 'PROCESSING', acquired_at = ?, state_since = ?, lease = ?, lease_expires_at = ?,
        worker = ?, deliveries_count = deliveries_count + 1
    WHERE id IN (SELECT value FROM json_each(?))
"""

# A lease that ends before the message was acquired is a stale one: a foreign program, which does not
# know of leases, took the message over.
_LEASES = """
    SELECT id, lease FROM message
    WHERE id IN (SELECT value FROM json_each(?)) AND state = 'PROCESSING' AND lease_expires_at >= acquired_at
"""

_ARCHIVE = """
    INSERT INTO message_archive
        (id, queue, headers, payload, state, attempts_count, deliveries_count, created_at,
         first_attempt_at, last_attempt_at, archived_at, job_id, name, priority, expires_at, retry,
         unique_for_ms, unique_until, worker, reason, error_type, error_message, error_trace, rate_key)
    SELECT id, queue, headers, payload, ?1, attempts_count + (?2 IS NOT NULL), deliveries_count, created_at,
         coalesce(first_attempt_at, ?2), coalesce(?2, last_attempt_at), ?3, job_id, name, priority,
         expires_at, retry, unique_for_ms,
         CASE WHEN unique_for_ms IS NOT NULL
              THEN strftime('%Y-%m-%d %H:%M:%f000', ?3, (unique_for_ms / 1000.0) || ' seconds') END,
         ?4, ?5, ?6, ?7, ?8, rate_key
    FROM message WHERE id = ?9 AND (?10 OR unique_for_ms IS NOT NULL)
"""

_DELETE = "DELETE FROM message WHERE id IN (SELECT value FROM json_each(?))"

_KEEP_RESULT = """
    INSERT INTO message_result (queue, job_id, result, expires_at) VALUES (?, ?, ?, ?)
    ON CONFLICT (queue, job_id) DO UPDATE SET result = excluded.result, expires_at = excluded.expires_at
"""

_RETRY = """
    UPDATE message
    SET state = 'RETRYABLE', attempts_count = attempts_count + (?1 IS NOT NULL),
        first_attempt_at = coalesce(first_attempt_at, ?1), last_attempt_at = coalesce(?1, last_attempt_at),
        next_attempt_at = ?2, state_since = ?3, acquired_at = NULL, lease = NULL, lease_expires_at = NULL,
        worker = NULL, last_error = ?4, slot_at = NULL
    WHERE id = ?5
"""

_EXTEND = """
    UPDATE message SET acquired_at = ?, lease_expires_at = ? WHERE id IN (SELECT value FROM json_each(?))
"""

_RELEASE = """
    UPDATE message
    SET state = 'PENDING', state_since = ?, acquired_at = NULL, lease = NULL, lease_expires_at = NULL,
        worker = NULL, deliveries_count = max(deliveries_count - ?, 0)
    WHERE id IN (SELECT value FROM json_each(?))
"""

_DEFER = """
    UPDATE message
    SET state = 'PENDING', state_since = ?1, acquired_at = NULL, lease = NULL, lease_expires_at = NULL,
        worker = NULL, deliveries_count = max(deliveries_count - ?2, 0), next_attempt_at = ?3, slot_at = ?3
    WHERE id = ?4
"""

_STUCK = """
    SELECT id, coalesce(job_id, id), coalesce(state_since, acquired_at), attempts_count FROM message
    WHERE queue = ? AND state = 'PROCESSING'
      AND CASE WHEN lease_expires_at >= acquired_at THEN lease_expires_at <= ? ELSE acquired_at <= ? END
    LIMIT ?
"""

_RECORD = "INSERT INTO message_transition (queue, count, written_at, entry) VALUES (?, ?, ?, ?)"


def text_of(moment: datetime) -> str:
    """A moment as SQLAlchemy writes it on SQLite, so that comparing texts compares times."""
    return moment.replace(tzinfo=None).isoformat(" ", "microseconds")


def moment_of(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def _text_or_none(moment: datetime | None) -> str | None:
    return None if moment is None else text_of(moment)


def _id_list(keys: Iterable[int]) -> str:
    return f"[{','.join(map(str, keys))}]"


def _json_list(values: Iterable[Any]) -> str:
    return msgspec.json.encode(list(values)).decode()


class SqliteDialect(Dialect):
    """Statements for SQLite 3.35 and later, inside a transaction that began as IMMEDIATE."""

    def insert(self, queue: str, jobs: Sequence[EncodedJob], *, now: datetime) -> Steps[list[bool]]:
        moment = text_of(now)
        unique_ids = [job.id for job in jobs if job.unique]
        new = [True] * len(jobs)
        if unique_ids:
            wanted = _json_list(unique_ids)
            rows = yield Raw(_TAKEN, (queue, wanted, queue, wanted, moment))
            taken = {row[0] for row in rows}
            new = first_of_each([job.id for job in jobs], {job.id for job in jobs} - taken)
        # A bulk load has one moment for all of it, so few of them have to be written out.
        due = {each: text_of(each) for each in {job.next_attempt_at for job in jobs}}
        rows_to_add = [
            (
                queue,
                moment,
                moment,
                job.id,
                job.name,
                job.payload,
                job.headers,
                due[job.next_attempt_at],
                job.priority,
                _text_or_none(job.expires_at),
                job.retry,
                milliseconds(job.unique_for),
                job.rate_key,
            )
            for job, is_new in zip(jobs, new, strict=True)
            if is_new
        ]
        if rows_to_add:
            yield Raw(_INSERT, rows_to_add, many=True)
        return new

    def count_live(self, queue: str, *, at_most: int, alone: bool) -> Steps[int]:
        rows = yield Raw(_LIVE, (queue, at_most))  # whoever writes is alone here
        live: int = rows[0][0]
        return live

    def take_back(self, queue: str, ids: Sequence[str]) -> Steps[None]:
        yield Raw(_TAKE_BACK, (queue, _json_list(ids)))

    def claim(
        self,
        queue: str,
        *,
        limit: int,
        now: datetime,
        lease: int,
        lease_expires_at: datetime,
        who: str,
        suspects: Suspects,
        begin_with: int | None,
    ) -> Steps[list[Claimed]]:
        if (yield Raw(_PAUSED, (queue,))):
            return []
        moment = text_of(now)
        claimed: list[Claimed] = []
        for priority in priorities_from(begin_with):
            rows = yield Raw(_DUE, (queue, priority, moment, *suspects, limit - len(claimed)))
            claimed += [read_claimed(row, lease=lease, now=now, moment=moment_of) for row in rows]
            if len(claimed) >= limit:
                break
        if claimed:
            keys = _id_list(each.delivery.key for each in claimed)
            yield Raw(_CLAIM, (moment, moment, lease, text_of(lease_expires_at), who, keys))
        return claimed

    def _held(self, deliveries: Sequence[Delivery]) -> Steps[list[Delivery]]:
        rows = yield Raw(_LEASES, (_id_list(each.key for each in deliveries),))
        return still_held(deliveries, {row[0]: row[1] for row in rows})

    def finish(
        self, queue: str, settlements: Sequence[Settlement], *, now: datetime, who: str
    ) -> Steps[set[int]]:
        held = yield from self._held([each.delivery for each in settlements])
        keys = {each.key for each in held}
        moment = text_of(now)
        rows = [
            (
                each.state.value,
                _text_or_none(each.started_at),
                moment,
                who,
                each.reason,
                each.failure and each.failure.type,
                each.failure and each.failure.message,
                each.failure and each.failure.trace,
                each.delivery.key,
                each.keep or each.state is State.FAILED,
            )
            for each in settlements
            if each.delivery.key in keys
        ]
        yield Raw(_ARCHIVE, rows, many=True)
        yield Raw(_DELETE, (_id_list(keys),))
        return keys

    def keep_results(self, queue: str, results: Sequence[KeptResult]) -> Steps[None]:
        rows = [(queue, each.job_id, each.result, text_of(each.expires_at)) for each in results]
        yield Raw(_KEEP_RESULT, rows, many=True)

    def retry(self, settlements: Sequence[Settlement], *, now: datetime) -> Steps[set[int]]:
        held = yield from self._held([each.delivery for each in settlements])
        keys = {each.key for each in held}
        moment = text_of(now)
        rows = [
            (
                _text_or_none(each.started_at),
                _text_or_none(each.next_attempt_at),
                moment,
                error_line(each),
                each.delivery.key,
            )
            for each in settlements
            if each.delivery.key in keys
        ]
        yield Raw(_RETRY, rows, many=True)
        return keys

    def extend(
        self, deliveries: Sequence[Delivery], *, now: datetime, lease_expires_at: datetime
    ) -> Steps[set[int]]:
        held = yield from self._held(deliveries)
        keys = {each.key for each in held}
        yield Raw(_EXTEND, (text_of(now), text_of(lease_expires_at), _id_list(keys)))
        return keys

    def release(
        self,
        deliveries: Sequence[Delivery],
        *,
        now: datetime,
        counted: bool,
        until: Sequence[datetime] | None,
    ) -> Steps[set[int]]:
        held = yield from self._held(deliveries)
        keys = {each.key for each in held}
        uncount = 0 if counted else 1
        if until is None:
            yield Raw(_RELEASE, (text_of(now), uncount, _id_list(keys)))
        else:
            slots = zip(deliveries, until, strict=True)
            rows = [(text_of(now), uncount, text_of(at), each.key) for each, at in slots if each.key in keys]
            yield Raw(_DEFER, rows, many=True)
        return keys

    def recover(self, queue: str, *, now: datetime, timeout: timedelta, limit: int) -> Steps[list[Recovered]]:
        rows = yield Raw(_STUCK, (queue, text_of(now), text_of(now - timeout), limit))
        if rows:
            yield Raw(_RELEASE, (text_of(now), 0, _id_list(row[0] for row in rows)))
        return [Recovered(str(row[1]), moment_of(row[2]), row[3]) for row in rows]

    def in_queue(self, column: ColumnElement[Any], queue: str) -> ColumnElement[bool]:
        # Hidden from the planner, which would take an index of the queue and sort all of it for each page.
        return func.coalesce(column, "") == queue

    def among(self, column: ColumnElement[Any], values: Sequence[Any]) -> ColumnElement[bool]:
        return column.in_(select(func.json_each(_json_list(values)).table_valued("value").c.value))

    def upsert(self, table: Table, rows: Sequence[dict[str, Any]]) -> Executable:
        statement = insert(table).values(list(rows))
        changed = {each.name: statement.excluded[each.name] for each in table.columns if not each.primary_key}
        return statement.on_conflict_do_update(index_elements=table.primary_key, set_=changed)

    def record(self, queue: str, batch: Batch) -> Steps[None]:
        written_at = text_of(batch.at)
        rows = [(queue, count, written_at, packed) for count, packed in batch.entries()]
        yield Raw(_RECORD, rows, many=True)
