"""Histories and measures as SQL for DuckDB: an independent check, and the peer of the benchmarks.

Written as DuckDB likes it: what is compared often becomes a number first, everything in one pass, sums of
minutes before sums of hours.
"""

from __future__ import annotations

from typing import Any

import duckdb

from remuda.lake.chain import CHAIN_WEIGHTS
from remuda.lake.schemas import COMMAND_STAGES, DIMENSIONS, HISTORIES, JOB_STAGES, MEASURES, STAGES
from remuda.lifecycle import COMMAND_MOVES, JOB_MOVES

STATES = tuple(dict.fromkeys(str(entered) for _, entered in (*JOB_MOVES, *COMMAND_MOVES)))
NUMBER = {state: number for number, state in enumerate(STATES)}
ENDS = {
    "COMPLETED": "delivered",
    "DELIVERY_SUCCESSFUL": "delivered",
    "FAILED": "dead",
    "DELIVERY_FAILED": "dead",
    "REMOVED": "removed",
}

_ABOUT = ("name", "device", "lane", "gateway", "grid")


def rows_of_query(sql: str) -> list[dict[str, Any]]:
    """The rows that DuckDB answers with, times in UTC."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        rows: list[dict[str, Any]] = connection.sql(sql).to_arrow_table().to_pylist()
        return rows


def _case(of: str, values: dict[str, str], otherwise: str) -> str:
    cases = " ".join(f"WHEN '{name}' THEN {value}" for name, value in values.items())
    return f"CASE {of} {cases} ELSE {otherwise} END"


def _numbers(*states: str) -> str:
    return ", ".join(str(NUMBER[state]) for state in states)


def _move(left: str | None, entered: str) -> int:
    return (NUMBER[left] if left else 30) * 32 + NUMBER[entered]


# -- histories


def histories_sql(transitions: str, *, lives: bool = False) -> str:
    """`HISTORIES` from `transitions` (anything that can stand after FROM), in the order of its columns.

    Without `lives`, every id is taken to have lived once, which saves putting records in order.
    """
    begun = (
        """max(seq) FILTER (WHERE "left" IS NULL) OVER (PARTITION BY source, queue, message ORDER BY seq)"""
        if lives
        else "NULL::BIGINT"
    )
    number = {name: str(value) for name, value in NUMBER.items()}
    return f"""
    WITH records AS (
        SELECT source, queue, message, seq, "at", dwell_ms, attempt, reason, batch,
               name, device, lane, gateway, grid, entered,
               {_case('"left"', number, '''CASE WHEN "left" IS NULL THEN 30 ELSE 31 END''')}::SMALLINT AS was,
               {_case("entered", number, "31")}::SMALLINT AS now,
               {begun} AS life
        FROM {transitions}
    ), summed AS (
        SELECT source, queue, message, {_sums()}, {_stage_sums()}
        FROM records GROUP BY source, queue, message, life
    ), told AS (
        SELECT *, starts_with(queue, 'devices:') AS is_command,
               {_case("state", {name: f"'{outcome}'" for name, outcome in ENDS.items()}, "NULL")} AS outcome
        FROM summed
    )
    SELECT {_columns()} FROM told
    """


def _sums() -> str:
    weight = {str(NUMBER[state]): str(value) for state, value in CHAIN_WEIGHTS.items()}
    weights = " ".join(f"WHEN {number} THEN {value}" for number, value in weight.items())
    legal = ", ".join(str(_move(left, entered)) for left, entered in (*JOB_MOVES, *COMMAND_MOVES))
    replayed = f"{_move('FAILED', 'PENDING')}, {_move('DELIVERY_FAILED', 'QUEUED')}"
    births = "FILTER (WHERE was = 30)"
    return f"""
        max(seq) {births} AS added_seq, min("at") {births} AS added_at,
        min(seq) AS first_seq, max(seq) AS last_seq,
        arg_min("at", seq) AS first_at, arg_max("at", seq) AS last_at,
        {", ".join(f"max({name}) {births} AS {name}" for name in _ABOUT)},
        arg_max(entered, seq) AS state, arg_max_null(reason, seq) AS reason,
        max(attempt) AS attempts, max(batch) AS batch, count(*) AS records,
        coalesce(sum(dwell_ms), 0) AS dwell_ms,
        sum(CASE now {weights} ELSE 0 END - CASE was {weights} ELSE 0 END) AS chain,
        count(*) FILTER (WHERE now IN ({_numbers("PROCESSING", "SENT_TO_NS")})) AS deliveries,
        count(*) FILTER (WHERE now IN ({_numbers("RETRYABLE", "TO_RETRY")})) AS retries,
        count(*) FILTER (WHERE was * 32 + now = {_move("PROCESSING", "PENDING")}) AS recoveries,
        count(*) FILTER (WHERE now IN ({_numbers("FAILED", "DELIVERY_FAILED")})) AS deaths,
        count(*) FILTER (WHERE was * 32 + now IN ({replayed})) AS replays,
        count(*) FILTER (WHERE was * 32 + now NOT IN ({legal})) AS illegal"""


# A job and a command are never the same message: their stages are summed up together.
_PLACES: dict[str, tuple[str, ...]] = {
    "a": ("PENDING", "QUEUED"),
    "b": ("PROCESSING", "SENT_TO_NS"),
    "c": ("RETRYABLE", "TO_RETRY"),
    "d": ("DELIVERED_TO_NS",),
    "e": ("SENT_TO_DEVICE",),
}


def _stage_sums() -> str:
    return ", ".join(
        f'min("at") FILTER (WHERE now IN ({_numbers(*stages)})) AS {place}_at, '
        f"sum(dwell_ms) FILTER (WHERE was IN ({_numbers(*stages)})) AS {place}_ms"
        for place, stages in _PLACES.items()
    )


def _columns() -> str:
    ended_at = "CASE WHEN outcome IS NOT NULL THEN last_at END"
    values = {
        "kind": "CASE WHEN is_command THEN 'command' ELSE 'job' END",
        "started_at": "b_at",
        "ended_at": ended_at,
        "latency_ms": f"CASE WHEN added_at IS NOT NULL AND outcome IS NOT NULL "
        f"THEN greatest(0, (epoch_us({ended_at}) - epoch_us(added_at)) // 1000) END",
    }
    for stages, own in ((JOB_STAGES, "NOT is_command"), (COMMAND_STAGES, "is_command")):
        for stage in stages:
            place = next(place for place, among in _PLACES.items() if stage in among)
            for what in ("at", "ms"):
                values[f"{stage.lower()}_{what}"] = f"CASE WHEN {own} THEN {place}_{what} END"
    return ", ".join(_typed(column.name, column.type, values) for column in HISTORIES.columns)


def _typed(name: str, kind: str, values: dict[str, str]) -> str:
    type_ = {"string": "VARCHAR", "bigint": "BIGINT", "int": "INTEGER", "double": "DOUBLE"}
    value = values.get(name, name)
    return f"({value})::{type_[kind]} AS {name}" if kind in type_ else f"{value} AS {name}"


# -- measures


_COUNTS = ("added", "ended", "delivered", "dead", "removed", "attempts", "deliveries", "retries", "replays")
_TIMES = tuple(f"{stage.lower()}_ms" for stage in STAGES)
_WHAT = "dimension, source, queue, key"


def measures_sql(histories: str, added: str) -> str:
    """`MEASURES` of histories that ended, and of records of adding (anything that can stand after FROM)."""
    by_minute = " UNION ALL ".join(_by_minute(dimension, histories, added) for dimension in DIMENSIONS)
    sums = ", ".join(f"sum({name}) AS {name}" for name in (*_COUNTS, "timed", "latency_ms", *_TIMES))
    sums += ", max(latency_max_ms) AS latency_max_ms"
    return f"""
    WITH minutes AS MATERIALIZED (
        SELECT 'minute' AS grain, period, {_WHAT}, bucket, {sums}
        FROM ({by_minute}) GROUP BY period, {_WHAT}, bucket
    ), hours AS MATERIALIZED (
        SELECT 'hour' AS grain, date_trunc('hour', period) AS period, {_WHAT}, bucket, {sums}
        FROM minutes GROUP BY 2, {_WHAT}, bucket
    ), days AS (
        SELECT 'day' AS grain, date_trunc('day', period) AS period, {_WHAT}, bucket, {sums}
        FROM hours GROUP BY 2, {_WHAT}, bucket
    ), summed AS (
        SELECT grain, period, {_WHAT}, {sums},
               coalesce(list({{'bucket': bucket, 'count': timed}} ORDER BY bucket)
                   FILTER (WHERE bucket IS NOT NULL), []) AS latency_histogram
        FROM (FROM minutes UNION ALL FROM hours UNION ALL FROM days) GROUP BY grain, period, {_WHAT}
    ), counted AS (
        SELECT *, list_transform(latency_histogram, lambda each: each['count']) AS counts FROM summed
    )
    SELECT {_measure_columns()} FROM counted
    """


def _by_minute(dimension: str, histories: str, added: str) -> str:
    """Counted by minute and bucket, for one dimension."""
    timed = "outcome = 'delivered' AND latency_ms IS NOT NULL"
    outcomes = ", ".join(
        f"count(*) FILTER (WHERE outcome = '{each}') AS {each}" for each in ("delivered", "dead", "removed")
    )
    of_ended = ", ".join(
        f"sum({name}) AS {name}" for name in ("attempts", "deliveries", "retries", "replays")
    )
    nothing = ", ".join(["0"] * len(_COUNTS[1:]))
    return f"""
    SELECT '{dimension}' AS dimension, source, queue, {dimension} AS key,
           date_trunc('minute', ended_at) AS period,
           CASE WHEN {timed} THEN {bucket_sql("latency_ms")} END AS bucket,
           0 AS added, count(*) AS ended, {outcomes}, {of_ended},
           count(*) FILTER (WHERE {timed}) AS timed, sum(latency_ms) FILTER (WHERE {timed}) AS latency_ms,
           {", ".join(f"sum({name}) AS {name}" for name in _TIMES)},
           max(latency_ms) FILTER (WHERE {timed}) AS latency_max_ms
    FROM {histories} WHERE outcome IS NOT NULL AND {dimension} IS NOT NULL GROUP BY ALL
    UNION ALL
    SELECT '{dimension}', source, queue, {dimension}, date_trunc('minute', "at"), NULL,
           count(*), {nothing}, 0, NULL, {", ".join(["NULL"] * len(_TIMES))}, NULL
    FROM {added} WHERE {dimension} IS NOT NULL GROUP BY ALL
    """


def bucket_sql(duration: str) -> str:
    """`buckets.bucket_of`."""
    power = f"floor(ln(greatest({duration}, 1)) / ln(2) + 1e-13)::INTEGER"
    return (
        f"CASE WHEN {duration} < 32 THEN greatest({duration}, 0) "
        f"ELSE ({power} - 5) * 32 + ({duration} >> ({power} - 5)) END::INTEGER"
    )


def _middle_sql(bucket: str) -> str:
    shift = f"({bucket} // 32 - 1)"
    return (
        f"CASE WHEN {bucket} < 64 THEN {bucket}::BIGINT "
        f"ELSE (({bucket} % 32 + 32)::BIGINT << {shift}) + (1::BIGINT << {shift}) // 2 END"
    )


def _quantile_sql(share: float) -> str:
    """`buckets.quantile`: the first bucket at which so many have been seen."""
    wanted = f"greatest(1, ceil({share}::DOUBLE * timed))"
    seen = "list_sum(counts[1:place])"
    place = f"list_filter(range(1, len(counts) + 1), lambda place: {seen} >= {wanted})[1]"
    middle = _middle_sql(f"latency_histogram[{place}].bucket")
    return f"CASE WHEN timed > 0 THEN least({middle}, latency_max_ms) END"


def _measure_columns() -> str:
    seconds = "CASE grain WHEN 'minute' THEN 60 WHEN 'hour' THEN 3600 ELSE 86400 END"
    values = {
        "delivery_rate": "CASE WHEN delivered + dead > 0 THEN delivered / (delivered + dead) END",
        "per_second": f"ended / {seconds}",
        "latency_mean_ms": "CASE WHEN timed > 0 THEN latency_ms / timed END",
        "latency_p50_ms": _quantile_sql(0.5),
        "latency_p90_ms": _quantile_sql(0.9),
        "latency_p99_ms": _quantile_sql(0.99),
    }
    return ", ".join(_typed(column.name, column.type, values) for column in MEASURES.columns)
