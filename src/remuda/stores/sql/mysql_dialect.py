"""MariaDB and MySQL: look and lock, then change, within one transaction; batches travel as JSON or VALUES."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Executable, Table
from sqlalchemy.dialects.mysql import insert

from remuda.lifecycle import State
from remuda.message import PRIORITIES, priorities_from
from remuda.stores.contract import Delivery, EncodedJob, Settlement, Suspects
from remuda.stores.sql.dialect import Claimed, Dialect, KeptResult, Recovered
from remuda.stores.sql.moments import aware, milliseconds, naive, naive_or_none
from remuda.stores.sql.rows import (
    CLAIM_COLUMNS,
    error_line,
    first_of_each,
    in_fetch_order,
    read_claimed,
    still_held,
)
from remuda.stores.sql.steps import Raw, Steps
from remuda.transition import Batch

PACKET_CHARACTERS = 2 * 1024 * 1024

# Nothing but placeholders: drivers join such rows into one statement, as large as the server takes.
_INSERT = f"""
    INSERT INTO message
        (queue, state, attempts_count, deliveries_count, created_at, state_since, job_id, name, payload,
         headers, next_attempt_at, priority, expires_at, retry, unique_for_ms, lease, rate_key)
    VALUES ({", ".join(["%s"] * 17)})"""

# A unique job that is live already stays as it is. The batch's mark, in the column of the lease
# (which a waiting row does not use), then tells the new ones from those that were there.
_INSERT_UNIQUE = _INSERT + " ON DUPLICATE KEY UPDATE message.id = message.id"
_MARKED = "SELECT job_id FROM message WHERE queue = %s AND lease = %s AND job_id IN ({ids})"
_RECENT = """
    SELECT job_id FROM message_archive
    WHERE queue = %s AND unique_until > %s AND job_id IN ({ids}) LOCK IN SHARE MODE
"""
_TAKE_BACK_MARKED = "DELETE FROM message WHERE queue = %s AND lease = %s AND job_id IN ({ids})"

_LOCK_QUEUE = "SELECT name FROM message_queue WHERE name = %s FOR UPDATE"
_MAKE_QUEUE = "INSERT IGNORE INTO message_queue (name, last_seq) VALUES (%s, 0)"
_LIVE = "SELECT count(*) FROM (SELECT 1 FROM message WHERE queue = %s LIMIT %s) AS live"
_TAKE_BACK = "DELETE FROM message WHERE queue = %s AND job_id IN ({ids})"

# The levels that have anything due, or none while the queue is paused: one look instead of five.
_LEVELS = f"""
    SELECT level.priority
    FROM ({" UNION ALL ".join(f"SELECT {priority} AS priority" for priority in PRIORITIES)}) AS level
    WHERE NOT EXISTS (SELECT 1 FROM message_queue WHERE name = %s AND paused_at IS NOT NULL)
      AND EXISTS (
        SELECT 1 FROM message
        WHERE queue = %s AND message.priority = level.priority AND next_attempt_at <= %s
          AND state IN ('PENDING', 'RETRYABLE')
          AND (deliveries_count >= %s AND deliveries_count > attempts_count) = %s)
    ORDER BY level.priority DESC
"""

_DUE = f"""
    SELECT {", ".join(CLAIM_COLUMNS).replace("deliveries_count", "deliveries_count + 1")},
        state, coalesce(state_since, created_at)
    FROM message FORCE INDEX (message_fetch_all)
    WHERE queue = %s AND priority = %s AND next_attempt_at <= %s AND state IN ('PENDING', 'RETRYABLE')
      AND (deliveries_count >= %s AND deliveries_count > attempts_count) = %s
    ORDER BY next_attempt_at
    LIMIT %s
    FOR UPDATE SKIP LOCKED
"""

_CLAIM = """
    UPDATE message
    SET state = 'PROCESSING', acquired_at = %s, state_since = %s, lease = %s, lease_expires_at = %s,
        worker = %s, deliveries_count = deliveries_count + 1
    WHERE id IN ({ids})
"""

# A lease that ends before the message was acquired is a stale one: a foreign program, which does not
# know of leases, took the message over.
_LEASES = """
    SELECT id, lease FROM message
    WHERE id IN ({ids}) AND state = 'PROCESSING' AND lease_expires_at >= acquired_at FOR UPDATE
"""

_ARCHIVE = """
    INSERT INTO message_archive
        (id, queue, headers, payload, state, attempts_count, deliveries_count, created_at,
         first_attempt_at, last_attempt_at, archived_at, job_id, name, priority, expires_at, retry,
         unique_for_ms, unique_until, worker, reason, error_type, error_message, error_trace, rate_key)
    SELECT message.id, queue, headers, payload, told.state, attempts_count + (told.started_at IS NOT NULL),
         deliveries_count, created_at, coalesce(first_attempt_at, told.started_at),
         coalesce(told.started_at, last_attempt_at), %s, job_id, name, priority, expires_at, retry,
         unique_for_ms, %s + INTERVAL unique_for_ms * 1000 MICROSECOND, %s,
         told.reason, told.error_type, told.error_message, told.error_trace, rate_key
    FROM JSON_TABLE(%s, '$[*]' COLUMNS (
            id BIGINT PATH '$[0]', state VARCHAR(16) PATH '$[1]', started_at DATETIME(6) PATH '$[2]',
            keep INT PATH '$[3]', reason VARCHAR(64) PATH '$[4]', error_type VARCHAR(255) PATH '$[5]',
            error_message LONGTEXT PATH '$[6]', error_trace LONGTEXT PATH '$[7]')) AS told
    JOIN message ON message.id = told.id
    WHERE told.keep = 1 OR unique_for_ms IS NOT NULL
"""

_KEEP_RESULT = """
    INSERT INTO message_result (queue, job_id, result, expires_at) VALUES (%s, %s, %s, %s)
    ON DUPLICATE KEY UPDATE result = VALUES(result), expires_at = VALUES(expires_at)
"""

_DELETE = "DELETE FROM message WHERE id IN ({ids})"

_RETRY = """
    UPDATE message
    JOIN JSON_TABLE(%s, '$[*]' COLUMNS (
            id BIGINT PATH '$[0]', started_at DATETIME(6) PATH '$[1]',
            next_attempt_at DATETIME(6) PATH '$[2]', error LONGTEXT PATH '$[3]')) AS told
        ON told.id = message.id
    SET message.attempts_count = message.attempts_count + (told.started_at IS NOT NULL),
        message.first_attempt_at = coalesce(message.first_attempt_at, told.started_at),
        message.last_attempt_at = coalesce(told.started_at, message.last_attempt_at),
        message.next_attempt_at = told.next_attempt_at, message.state = 'RETRYABLE',
        message.state_since = %s, message.acquired_at = NULL, message.lease = NULL,
        message.lease_expires_at = NULL, message.worker = NULL, message.last_error = told.error,
        message.slot_at = NULL
"""

_EXTEND = "UPDATE message SET acquired_at = %s, lease_expires_at = %s WHERE id IN ({ids})"

_RELEASE = """
    UPDATE message
    SET state = 'PENDING', state_since = %s, acquired_at = NULL, lease = NULL, lease_expires_at = NULL,
        worker = NULL, deliveries_count = greatest(deliveries_count - %s, 0)
    WHERE id IN ({ids})
"""

_DEFER = """
    UPDATE message
    JOIN JSON_TABLE(%s, '$[*]' COLUMNS (id BIGINT PATH '$[0]', slot_at DATETIME(6) PATH '$[1]')) AS told
        ON told.id = message.id
    SET message.state = 'PENDING', message.state_since = %s, message.acquired_at = NULL,
        message.lease = NULL, message.lease_expires_at = NULL, message.worker = NULL,
        message.deliveries_count = greatest(message.deliveries_count - %s, 0),
        message.next_attempt_at = told.slot_at, message.slot_at = told.slot_at
"""

_STUCK = """
    SELECT id, coalesce(job_id, id), coalesce(state_since, acquired_at), attempts_count FROM message
    WHERE queue = %s AND state = 'PROCESSING'
      AND CASE WHEN lease_expires_at >= acquired_at THEN lease_expires_at <= %s ELSE acquired_at <= %s END
    LIMIT %s
    FOR UPDATE SKIP LOCKED
"""

_RECORD = "INSERT INTO message_transition (queue, `count`, written_at, entry) VALUES (%s, %s, %s, %s)"


def _with_ids(sql: str, keys: Iterable[int]) -> str:
    """Row ids are numbers of our own; written into the statement they meet no limit on parameters."""
    return sql.format(ids=",".join(map(str, keys)) or "NULL")


def _with_places(sql: str, count: int) -> str:
    return sql.format(ids=",".join(["%s"] * count) or "NULL")


def _packets(rows: Iterable[object]) -> Iterator[str]:
    """Rows as JSON lists, each well below the 16 MiB that a server takes in one packet by default."""
    packet: list[str] = []
    size = 0
    for row in rows:
        encoded = msgspec.json.encode(row).decode()
        if packet and size + len(encoded) > PACKET_CHARACTERS:
            yield f"[{','.join(packet)}]"
            packet, size = [], 0
        packet.append(encoded)
        size += len(encoded)
    if packet:
        yield f"[{','.join(packet)}]"


class MysqlDialect(Dialect):
    """Statements for MariaDB 10.6 and MySQL 8.0 and later."""

    def insert(self, queue: str, jobs: Sequence[EncodedJob], *, now: datetime) -> Steps[list[bool]]:
        moment = naive(now)
        unique_ids = [job.id for job in jobs if job.unique]
        mark = secrets.randbits(62) + 1 if unique_ids else None
        rows = [
            (
                queue,
                State.PENDING.value,
                0,
                0,
                moment,
                moment,
                job.id,
                job.name,
                job.payload,
                job.headers,
                naive(job.next_attempt_at),
                job.priority,
                naive_or_none(job.expires_at),
                job.retry,
                milliseconds(job.unique_for),
                mark,
                job.rate_key,
            )
            for job in jobs
        ]
        yield Raw(_INSERT_UNIQUE if unique_ids else _INSERT, rows, many=True)
        if not unique_ids:
            return [True] * len(jobs)
        marked = yield Raw(_with_places(_MARKED, len(unique_ids)), (queue, mark, *unique_ids))
        inserted = {row[0] for row in marked}
        recent = yield Raw(_with_places(_RECENT, len(unique_ids)), (queue, moment, *unique_ids))
        refused = [row[0] for row in recent if row[0] in inserted]
        if refused:
            yield Raw(_with_places(_TAKE_BACK_MARKED, len(refused)), (queue, mark, *refused))
        inserted |= {job.id for job in jobs if not job.unique}
        return first_of_each([job.id for job in jobs], inserted.difference(refused))

    def count_live(self, queue: str, *, at_most: int, alone: bool) -> Steps[int]:
        if alone and not (yield Raw(_LOCK_QUEUE, (queue,))):
            yield Raw(_MAKE_QUEUE, (queue,))
            yield Raw(_LOCK_QUEUE, (queue,))
        rows = yield Raw(_LIVE, (queue, at_most))
        live: int = rows[0][0]
        return live

    def take_back(self, queue: str, ids: Sequence[str]) -> Steps[None]:
        yield Raw(_with_places(_TAKE_BACK, len(ids)), (queue, *ids))

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
        moment = naive(now)
        levels = yield Raw(_LEVELS, (queue, queue, moment, *suspects))
        claimed: list[Claimed] = []
        populated = {row[0] for row in levels}
        for priority in filter(populated.__contains__, priorities_from(begin_with)):
            rows = yield Raw(_DUE, (queue, priority, moment, *suspects, limit - len(claimed)))
            claimed += [read_claimed(row, lease=lease, now=now, moment=aware) for row in rows]
            if len(claimed) >= limit:
                break
        if claimed:
            sql = _with_ids(_CLAIM, (each.delivery.key for each in claimed))
            yield Raw(sql, (moment, moment, lease, naive(lease_expires_at), who))
        return in_fetch_order(claimed, begin_with)

    def _held(self, deliveries: Sequence[Delivery]) -> Steps[list[Delivery]]:
        rows = yield Raw(_with_ids(_LEASES, (each.key for each in deliveries)))
        return still_held(deliveries, {row[0]: row[1] for row in rows})

    def finish(
        self, queue: str, settlements: Sequence[Settlement], *, now: datetime, who: str
    ) -> Steps[set[int]]:
        held = yield from self._held([each.delivery for each in settlements])
        keys = {each.key for each in held}
        told = [
            (
                each.delivery.key,
                each.state.value,
                naive_or_none(each.started_at),
                int(each.keep or each.state is State.FAILED),
                each.reason,
                each.failure and each.failure.type,
                each.failure and each.failure.message,
                each.failure and each.failure.trace,
            )
            for each in settlements
            if each.delivery.key in keys
        ]
        for packet in _packets(told):
            yield Raw(_ARCHIVE, (naive(now), naive(now), who, packet))
        yield Raw(_with_ids(_DELETE, keys))
        return keys

    def keep_results(self, queue: str, results: Sequence[KeptResult]) -> Steps[None]:
        rows = [(queue, each.job_id, each.result, naive(each.expires_at)) for each in results]
        yield Raw(_KEEP_RESULT, rows, many=True)

    def retry(self, settlements: Sequence[Settlement], *, now: datetime) -> Steps[set[int]]:
        held = yield from self._held([each.delivery for each in settlements])
        keys = {each.key for each in held}
        told = [
            (
                each.delivery.key,
                naive_or_none(each.started_at),
                naive_or_none(each.next_attempt_at),
                error_line(each),
            )
            for each in settlements
            if each.delivery.key in keys
        ]
        for packet in _packets(told):
            yield Raw(_RETRY, (packet, naive(now)))
        return keys

    def extend(
        self, deliveries: Sequence[Delivery], *, now: datetime, lease_expires_at: datetime
    ) -> Steps[set[int]]:
        held = yield from self._held(deliveries)
        keys = {each.key for each in held}
        yield Raw(_with_ids(_EXTEND, keys), (naive(now), naive(lease_expires_at)))
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
            yield Raw(_with_ids(_RELEASE, keys), (naive(now), uncount))
        else:
            slots = zip(deliveries, until, strict=True)
            for packet in _packets((each.key, naive(at)) for each, at in slots if each.key in keys):
                yield Raw(_DEFER, (packet, naive(now), uncount))
        return keys

    def recover(self, queue: str, *, now: datetime, timeout: timedelta, limit: int) -> Steps[list[Recovered]]:
        rows = yield Raw(_STUCK, (queue, naive(now), naive(now - timeout), limit))
        if rows:
            yield Raw(_with_ids(_RELEASE, (row[0] for row in rows)), (naive(now), 0))
        return [Recovered(str(row[1]), aware(row[2]), row[3]) for row in rows]

    def among(self, column: ColumnElement[Any], values: Sequence[Any]) -> ColumnElement[bool]:
        return column.in_(values)  # the driver writes them into the statement

    def upsert(self, table: Table, rows: Sequence[dict[str, Any]]) -> Executable:
        statement = insert(table).values(list(rows))
        changed = {each.name: statement.inserted[each.name] for each in table.columns if not each.primary_key}
        return statement.on_duplicate_key_update(changed)

    def record(self, queue: str, batch: Batch) -> Steps[None]:
        written_at = naive(batch.at)
        rows = [(queue, count, written_at, packed) for count, packed in batch.entries()]
        yield Raw(_RECORD, rows, many=True)
