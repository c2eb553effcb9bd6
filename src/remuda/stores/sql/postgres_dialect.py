"""PostgreSQL: every batch is one statement over arrays, so that no number of parameters is too large."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Executable, Table, any_, bindparam
from sqlalchemy.dialects.postgresql import ARRAY, insert

from remuda.lifecycle import State
from remuda.message import priorities_from
from remuda.stores.contract import Delivery, EncodedJob, Settlement, Suspects
from remuda.stores.sql.dialect import Claimed, Dialect, KeptResult, Recovered
from remuda.stores.sql.moments import aware, milliseconds, naive, naive_or_none
from remuda.stores.sql.rows import (
    CLAIM_COLUMNS,
    error_line,
    first_of_each,
    in_fetch_order,
    read_claimed,
)
from remuda.stores.sql.steps import Raw, Steps
from remuda.transition import JSON_VERSION, MAX_PER_ENTRY, Batch, to_ms

INSERT_CHUNK = 20_000

# The columns of an insert and their types. A column with one value for the whole batch is passed
# once; only the others travel as arrays.
_INSERT_COLUMNS = {
    "job_id": "text",
    "name": "text",
    "payload": "bytea",
    "headers": "json",
    "next_attempt_at": "timestamp",
    "priority": "smallint",
    "expires_at": "timestamp",
    "retry": "bytea",
    "unique_for_ms": "bigint",
    "rate_key": "text",
}


_RECORD = """
    INSERT INTO message_transition (queue, count, written_at, entry)
    SELECT $1::text, entry.count, $2::timestamp, entry.packed
    FROM unnest({counts}::int[], {packed}::bytea[]) AS entry(count, packed)
"""


@lru_cache(maxsize=256)
def _insert_recorded_sql(arrays: tuple[bool, ...]) -> str:
    """Insert a batch and its trail: the parameters of `_insert_sql`, then the counts and the entries."""
    places = {"counts": f"${len(arrays) + 3}", "packed": f"${len(arrays) + 4}"}
    return f"WITH added AS ({_insert_sql(arrays, False)}) {_RECORD.format(**places)}"


@lru_cache(maxsize=256)
def _insert_sql(arrays: tuple[bool, ...], unique: bool) -> str:
    """Insert a batch; unique ones that are live already are left out and not returned.

    $1 queue, $2 now, then a value or an array for each column.
    """
    chosen, unnested = [], []
    for place, (is_array, (column, kind)) in enumerate(
        zip(arrays, _INSERT_COLUMNS.items(), strict=True), start=3
    ):
        if is_array:
            unnested.append((column, f"${place}::{kind}[]"))
            chosen.append(f"job.{column}")
        else:
            chosen.append(f"${place}::{kind}")
    source = ""
    if unnested:
        names, types = zip(*unnested, strict=True)
        source = f"FROM unnest({', '.join(types)}) AS job({', '.join(names)})"
    conflict = "ON CONFLICT (job_id, queue) DO NOTHING RETURNING job_id" if unique else ""
    return f"""
        INSERT INTO message
            (queue, state, attempts_count, deliveries_count, created_at, state_since,
             {", ".join(_INSERT_COLUMNS)})
        SELECT $1::text, 'PENDING', 0, 0, $2::timestamp, $2::timestamp, {", ".join(chosen)}
        {source}
        {conflict}
    """


# Take back unique jobs whose predecessor ended not long enough ago. A statement of its own, after
# the insert: it sees what a settlement that the insert had to wait for has just archived.
_REFUSE_RECENT = """
    DELETE FROM message USING message_archive AS ended
    WHERE message.queue = $1::text AND message.job_id = ANY($2::text[])
      AND ended.queue = $1::text AND ended.job_id = message.job_id AND ended.unique_until > $3::timestamp
    RETURNING message.job_id
"""


# Whoever counts has the others wait for its commit: otherwise two could both find the last free place.
_COUNT_ALONE = "SELECT pg_advisory_xact_lock($1::int, hashtext($2::text))"
_COUNT_LOCK = 0x72656D75  # "remu"
# Each half is bounded, and found in a partial index of its own.
_LIVE = """
    SELECT (SELECT count(*) FROM (SELECT FROM message
                WHERE queue = $1::text AND state IN ('PENDING', 'RETRYABLE') LIMIT $2::bigint) AS waiting)
         + (SELECT count(*) FROM (SELECT FROM message
                WHERE queue = $1::text AND state = 'PROCESSING' LIMIT $2::bigint) AS running)
"""
_TAKE_BACK = "DELETE FROM message WHERE queue = $1::text AND job_id = ANY($2::text[])"


def _claimed_column(column: str) -> str:
    """With its zone, so that the driver makes aware datetimes of it."""
    zone = " AT TIME ZONE 'UTC'" if column.endswith("_at") else ""
    return f"message.{column}{zone} AS {column}"


def _recording(
    source: str,
    *,
    queue: str,
    now: str,
    now_ms: str,
    left: str,
    entered: str,
    dwell: str,
    attempt: str,
    who: str,
) -> str:
    """Write the trail's entry in the statement that changes the state, packed as JSON by the server.

    Columns as in `transition.Batch`: what is handed over at a fetch and acked is most of all transitions,
    and so costs no round trip of its own.
    """
    return f"""
        INSERT INTO message_transition (queue, count, written_at, entry)
        SELECT {queue}, count(*), {now}, convert_to(json_build_array(
            {JSON_VERSION}, json_agg(coalesce(job_id, id::text)), {left}, '{entered}', {now_ms}::bigint,
            json_agg(greatest(0, floor(extract(epoch FROM {dwell}) * 1000)::bigint)),
            json_agg({attempt}), NULL::text, {who}::text, NULL::text)::text, 'UTF8')
        FROM {source}
        HAVING count(*) > 0"""


# Level by level, each in the order of the partial index, until the limit is reached. The inner
# select is a fence: the update can never touch more than it locked.
_CLAIM = f"""
    WITH due AS MATERIALIZED (
        SELECT waiting.id, waiting.state, waiting.since
        FROM unnest($2::smallint[]) AS level(priority)
        CROSS JOIN LATERAL (
            SELECT id, state, coalesce(state_since, created_at) AS since
            FROM message
            WHERE queue = $1 AND priority = level.priority
              AND state IN ('PENDING', 'RETRYABLE') AND next_attempt_at <= $3
              AND (deliveries_count >= $8 AND deliveries_count > attempts_count) = $9
            ORDER BY next_attempt_at
            LIMIT $4
            FOR UPDATE SKIP LOCKED
        ) AS waiting
        WHERE NOT EXISTS (SELECT FROM message_queue WHERE name = $1 AND paused_at IS NOT NULL)
        LIMIT $4
    ), claimed AS (
        UPDATE message
        SET state = 'PROCESSING', acquired_at = $3, state_since = $3, lease = $5, lease_expires_at = $6,
            worker = $7, deliveries_count = message.deliveries_count + 1
        FROM due
        WHERE message.id = ANY(ARRAY(SELECT id FROM due)) AND message.id = due.id
        RETURNING {", ".join(map(_claimed_column, CLAIM_COLUMNS))},
            due.state::text AS left_state, due.since AT TIME ZONE 'UTC' AS since
    ), recorded AS ({
    _recording(
        "claimed",
        queue="$1",
        now="$3",
        now_ms="$10",
        left="json_agg(left_state)",
        entered="PROCESSING",
        dwell="$3 - since AT TIME ZONE 'UTC'",
        attempt="attempts_count",
        who="$7",
    )
})
    SELECT * FROM claimed
"""

# The fence of every later write. A lease that ends before the message was acquired is a stale one: a
# foreign program took the message over and does not know of leases. The first condition is for the
# planner: it bounds the rows that are looked at to the batch, whatever it believes of the table.
_HELD = """message.id = ANY($1::bigint[]) AND message.id = told.id
        AND message.lease = told.lease AND message.state = 'PROCESSING'
        AND message.lease_expires_at >= message.acquired_at"""

# Delete what still carries the lease, and archive just that, in one statement: doing it twice
# changes nothing. $1 ids, $2 leases, $3 start of the attempt, $4 now, $5 worker.
_FINISH = """
    WITH ended AS (
        DELETE FROM message USING unnest({arrays}) AS told({columns})
        WHERE {_HELD}
        RETURNING message.*, {told}
    ), archived AS (
        INSERT INTO message_archive
            (id, queue, headers, payload, state, attempts_count, deliveries_count, created_at,
             first_attempt_at, last_attempt_at, archived_at, job_id, name, priority, expires_at, retry,
             unique_for_ms, unique_until, worker, rate_key, reason, error_type, error_message, error_trace)
        SELECT id, queue, headers, payload, '{state}', attempts_count + (started_at IS NOT NULL)::int,
             deliveries_count, created_at, coalesce(first_attempt_at, started_at),
             coalesce(started_at, last_attempt_at), $4::timestamp, job_id, name, priority, expires_at, retry,
             unique_for_ms, $4::timestamp + unique_for_ms * interval '1 millisecond', $5, rate_key, {cause}
        FROM ended
        {kept}
    ){recorded}
    SELECT id FROM ended
"""
_COMPLETE = _FINISH.format(
    _HELD=_HELD,
    arrays="$1::bigint[], $2::bigint[], $3::timestamp[]",
    columns="id, lease, started_at",
    told="told.started_at",
    state="COMPLETED",
    cause="NULL, NULL, NULL, NULL",
    kept="WHERE $6::boolean OR unique_for_ms IS NOT NULL",
    recorded=", recorded AS ("
    + _recording(
        "ended",
        queue="$7::text",
        now="$4::timestamp",
        now_ms="$8",
        left="'PROCESSING'",
        entered="COMPLETED",
        dwell="$4::timestamp - state_since",
        attempt="attempts_count + (started_at IS NOT NULL)::int",
        who="$5",
    )
    + ")",
)
_FAIL = _FINISH.format(
    _HELD=_HELD,
    arrays="$1::bigint[], $2::bigint[], $3::timestamp[], $6::text[], $7::text[], $8::text[], $9::text[]",
    columns="id, lease, started_at, reason, error_type, error_message, error_trace",
    told="told.started_at, told.reason, told.error_type, told.error_message, told.error_trace",
    state="FAILED",
    cause="reason, error_type, error_message, error_trace",
    kept="",
    recorded="",
)

_KEEP_RESULTS = """
    INSERT INTO message_result (queue, job_id, result, expires_at)
    SELECT $1::text, kept.job_id, kept.result, kept.expires_at
    FROM unnest($2::text[], $3::bytea[], $4::timestamp[]) AS kept(job_id, result, expires_at)
    ON CONFLICT (queue, job_id) DO UPDATE SET result = excluded.result, expires_at = excluded.expires_at
"""

_RETRY = f"""
    UPDATE message
    SET state = 'RETRYABLE', attempts_count = attempts_count + (told.started_at IS NOT NULL)::int,
        first_attempt_at = coalesce(first_attempt_at, told.started_at),
        last_attempt_at = coalesce(told.started_at, last_attempt_at),
        next_attempt_at = told.next_attempt_at, state_since = $6, acquired_at = NULL,
        lease = NULL, lease_expires_at = NULL, worker = NULL, last_error = told.error,
        slot_at = NULL
    FROM unnest($1::bigint[], $2::bigint[], $3::timestamp[], $4::timestamp[], $5::text[])
        AS told(id, lease, started_at, next_attempt_at, error)
    WHERE {_HELD}
    RETURNING message.id
"""

_EXTEND = f"""
    UPDATE message SET acquired_at = $3, lease_expires_at = $4
    FROM unnest($1::bigint[], $2::bigint[]) AS told(id, lease)
    WHERE {_HELD}
    RETURNING message.id
"""

_RELEASE = f"""
    UPDATE message
    SET state = 'PENDING', state_since = $3, acquired_at = NULL, lease = NULL, lease_expires_at = NULL,
        worker = NULL, deliveries_count = greatest(deliveries_count - $4::int, 0)
    FROM unnest($1::bigint[], $2::bigint[]) AS told(id, lease)
    WHERE {_HELD}
    RETURNING message.id
"""

_DEFER = f"""
    UPDATE message
    SET state = 'PENDING', state_since = $3, acquired_at = NULL, lease = NULL, lease_expires_at = NULL,
        worker = NULL, deliveries_count = greatest(deliveries_count - $4::int, 0),
        next_attempt_at = told.slot_at, slot_at = told.slot_at
    FROM unnest($1::bigint[], $2::bigint[], $5::timestamp[]) AS told(id, lease, slot_at)
    WHERE {_HELD}
    RETURNING message.id
"""

_RECOVER = """
    WITH stuck AS MATERIALIZED (
        SELECT id, coalesce(state_since, acquired_at) AS since FROM message
        WHERE queue = $1 AND state = 'PROCESSING'
          AND CASE WHEN lease_expires_at >= acquired_at THEN lease_expires_at
                   ELSE acquired_at + $3::interval END <= $2
        LIMIT $4
        FOR UPDATE SKIP LOCKED
    )
    UPDATE message
    SET state = 'PENDING', state_since = $2, acquired_at = NULL, lease = NULL, lease_expires_at = NULL,
        worker = NULL
    FROM stuck
    WHERE message.id = ANY(ARRAY(SELECT id FROM stuck)) AND message.id = stuck.id
    RETURNING coalesce(message.job_id, message.id::text), stuck.since, message.attempts_count
"""


class PostgresDialect(Dialect):
    """Statements for PostgreSQL 13 and later."""

    records_by_itself = True

    def insert(self, queue: str, jobs: Sequence[EncodedJob], *, now: datetime) -> Steps[list[bool]]:
        new: list[bool] = []
        for start in range(0, len(jobs), INSERT_CHUNK):
            new += yield from self._insert_chunk(queue, jobs[start : start + INSERT_CHUNK], now)
        return new

    def inserts_at_once(self, jobs: Sequence[EncodedJob]) -> bool:
        return len(jobs) <= INSERT_CHUNK and not any(job.unique for job in jobs)

    def insert_recorded(
        self, queue: str, jobs: Sequence[EncodedJob], batch: Batch, *, now: datetime
    ) -> Steps[None]:
        arrays, values = _columns(jobs)
        yield Raw(_insert_recorded_sql(arrays), (queue, naive(now), *values, *_packed(batch)))

    def _insert_chunk(self, queue: str, jobs: Sequence[EncodedJob], now: datetime) -> Steps[list[bool]]:
        arrays, values = _columns(jobs)
        unique_ids = [job.id for job in jobs if job.unique]
        rows = yield Raw(_insert_sql(arrays, bool(unique_ids)), (queue, naive(now), *values))
        if not unique_ids:
            return [True] * len(jobs)
        inserted = {row[0] for row in rows}
        refused = yield Raw(
            _REFUSE_RECENT, (queue, [each for each in unique_ids if each in inserted], naive(now))
        )
        inserted -= {row[0] for row in refused}
        return first_of_each([job.id for job in jobs], inserted)

    def count_live(self, queue: str, *, at_most: int, alone: bool) -> Steps[int]:
        if alone:
            yield Raw(_COUNT_ALONE, (_COUNT_LOCK, queue))
        rows = yield Raw(_LIVE, (queue, at_most))
        live: int = rows[0][0]
        return live

    def take_back(self, queue: str, ids: Sequence[str]) -> Steps[None]:
        yield Raw(_TAKE_BACK, (queue, list(ids)))

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
        rows = yield Raw(
            _CLAIM,
            (
                queue,
                list(priorities_from(begin_with)),
                naive(now),
                min(limit, MAX_PER_ENTRY),
                lease,
                naive(lease_expires_at),
                who,
                *suspects,
                to_ms(now),
            ),
        )
        # RETURNING promises no order.
        claimed = [read_claimed(row, lease=lease, now=now, moment=None) for row in rows]
        return in_fetch_order(claimed, begin_with)

    def finish(
        self, queue: str, settlements: Sequence[Settlement], *, now: datetime, who: str
    ) -> Steps[set[int]]:
        if settlements[0].state is State.COMPLETED:
            return (yield from self._complete(queue, settlements, now, who))
        failures = [each.failure for each in settlements]
        rows = yield Raw(
            _FAIL,
            (
                *_fence(settlements),
                naive(now),
                who,
                [each.reason for each in settlements],
                [failure and failure.type for failure in failures],
                [failure and failure.message for failure in failures],
                [failure and failure.trace for failure in failures],
            ),
        )
        return {row[0] for row in rows}

    def _complete(
        self, queue: str, settlements: Sequence[Settlement], now: datetime, who: str
    ) -> Steps[set[int]]:
        moved: set[int] = set()
        for keep in {each.keep for each in settlements}:
            same = [each for each in settlements if each.keep == keep]
            for start in range(0, len(same), MAX_PER_ENTRY):
                fence = _fence(same[start : start + MAX_PER_ENTRY])
                rows = yield Raw(_COMPLETE, (*fence, naive(now), who, keep, queue, to_ms(now)))
                moved.update([row[0] for row in rows])
        return moved

    def keep_results(self, queue: str, results: Sequence[KeptResult]) -> Steps[None]:
        ids, values, ends = zip(*results, strict=True)
        yield Raw(_KEEP_RESULTS, (queue, ids, values, [naive(each) for each in ends]))

    def retry(self, settlements: Sequence[Settlement], *, now: datetime) -> Steps[set[int]]:
        rows = yield Raw(
            _RETRY,
            (
                *_fence(settlements),
                [naive_or_none(each.next_attempt_at) for each in settlements],
                [error_line(each) for each in settlements],
                naive(now),
            ),
        )
        return {row[0] for row in rows}

    def extend(
        self, deliveries: Sequence[Delivery], *, now: datetime, lease_expires_at: datetime
    ) -> Steps[set[int]]:
        rows = yield Raw(_EXTEND, (*_leases(deliveries), naive(now), naive(lease_expires_at)))
        return {row[0] for row in rows}

    def release(
        self,
        deliveries: Sequence[Delivery],
        *,
        now: datetime,
        counted: bool,
        until: Sequence[datetime] | None,
    ) -> Steps[set[int]]:
        params = (*_leases(deliveries), naive(now), 0 if counted else 1)
        if until is None:
            rows = yield Raw(_RELEASE, params)
        else:
            rows = yield Raw(_DEFER, (*params, [naive(each) for each in until]))
        return {row[0] for row in rows}

    def recover(self, queue: str, *, now: datetime, timeout: timedelta, limit: int) -> Steps[list[Recovered]]:
        rows = yield Raw(_RECOVER, (queue, naive(now), timeout, limit))
        return [Recovered(row[0], aware(row[1]), row[2]) for row in rows]

    def among(self, column: ColumnElement[Any], values: Sequence[Any]) -> ColumnElement[bool]:
        return column == any_(bindparam(None, list(values), type_=ARRAY(column.type), unique=True))

    def upsert(self, table: Table, rows: Sequence[dict[str, Any]]) -> Executable:
        statement = insert(table).values(list(rows))
        changed = {each.name: statement.excluded[each.name] for each in table.columns if not each.primary_key}
        return statement.on_conflict_do_update(index_elements=table.primary_key, set_=changed)

    def record(self, queue: str, batch: Batch) -> Steps[None]:
        yield Raw(_RECORD.format(counts="$3", packed="$4"), (queue, naive(batch.at), *_packed(batch)))


def _columns(jobs: Sequence[EncodedJob]) -> tuple[tuple[bool, ...], list[Any]]:
    """The columns of an insert: for each whether it is an array, and its array or its one value."""
    columns: list[list[Any]] = [
        [job.id for job in jobs],
        [job.name for job in jobs],
        [job.payload for job in jobs],
        [job.headers for job in jobs],
        [naive(job.next_attempt_at) for job in jobs],
        [job.priority for job in jobs],
        [naive_or_none(job.expires_at) for job in jobs],
        [job.retry for job in jobs],
        [milliseconds(job.unique_for) for job in jobs],
        [job.rate_key for job in jobs],
    ]
    arrays = tuple(len(jobs) > 1 and column.count(column[0]) != len(column) for column in columns)
    values = [column if is_array else column[0] for column, is_array in zip(columns, arrays, strict=True)]
    return arrays, values


def _packed(batch: Batch) -> tuple[list[int], list[bytes]]:
    entries = list(batch.entries())
    return [count for count, _ in entries], [packed for _, packed in entries]


def _leases(deliveries: Sequence[Delivery]) -> tuple[list[int], list[int]]:
    return [each.key for each in deliveries], [each.lease for each in deliveries]


def _fence(settlements: Sequence[Settlement]) -> tuple[list[int], list[int], list[datetime | None]]:
    """Ids, leases, and when each attempt began."""
    keys, leases = _leases([each.delivery for each in settlements])
    return keys, leases, [naive_or_none(each.started_at) for each in settlements]
