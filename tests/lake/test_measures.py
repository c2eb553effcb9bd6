"""Measures: rates, latencies and times in stage equal those of plain Python and of DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from remuda.lake.buckets import bucket_of, middle_of
from remuda.lake.measures import measures_of
from remuda.lake.schemas import HISTORIES, MEASURES, TRANSITIONS
from tests.lake import plain
from tests.lake.duckdb_sql import measures_sql, rows_of_query
from tests.lake.lifecycles import Row, arrow_of, command_trail, job_trail, rows_of

START = datetime(2030, 1, 1, 23, 59, tzinfo=UTC)
# Each example is a crowd of messages; a failing one is not made smaller, for that would take an hour.
EXAMPLES = settings(max_examples=1, phases=[Phase.generate])


def arrow_histories(rows: Sequence[Row]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=HISTORIES.arrow_schema())


def measured(spark: SparkSession, histories: Sequence[Row], added: Sequence[Row]) -> list[Row]:
    told: DataFrame = measures_of(
        spark.createDataFrame(arrow_histories(histories)), spark.createDataFrame(arrow_of(added))
    )
    assert told.columns == MEASURES.names
    return plain.measures_in_order(told.toArrow().to_pylist())


@EXAMPLES
@given(seed=st.integers(0, 10_000))
def test_measures_are_those_of_plain_python_and_of_duckdb(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    rows = [*rows_of(job_trail(seed)), *rows_of(command_trail(seed))]
    histories = plain.histories(rows)
    added = [row for row in rows if row["left"] is None]
    expected = plain.measures(histories, added)
    assert {(row["grain"], row["dimension"]) for row in expected} == {
        (grain, dimension)
        for grain in ("minute", "hour", "day")
        for dimension in ("queue", "name", "lane", "gateway", "device")
    }
    assert measured(spark, histories, added) == expected
    assert from_duckdb(tmp_path_factory.mktemp("parquet"), histories, added) == expected


def from_duckdb(folder: Path, histories: Sequence[Row], added: Sequence[Row]) -> list[Row]:
    pq.write_table(arrow_histories(histories), folder / "histories.parquet")
    pq.write_table(arrow_of(added), folder / "added.parquet")
    names = (f"read_parquet('{folder / name}.parquet')" for name in ("histories", "added"))
    return plain.measures_in_order(rows_of_query(measures_sql(*names)))


# -- by hand


def ended(
    outcome: str | None, latency_ms: int | None, *, after: timedelta = timedelta(0), **more: Any
) -> Row:
    history: Row = dict.fromkeys(HISTORIES.names)
    return {
        **history,
        "source": "main",
        "queue": "orders",
        "message": "m",
        "outcome": outcome,
        "latency_ms": latency_ms,
        "ended_at": START + after if outcome else None,
        "attempts": 1,
        "deliveries": 2,
        "retries": 1,
        "replays": 0,
        "pending_ms": 10,
        **more,
    }


def added(*, after: timedelta = timedelta(0), **more: Any) -> Row:
    record: Row = dict.fromkeys(TRANSITIONS.names)
    return {**record, "source": "main", "queue": "orders", "message": "m", "at": START + after, **more}


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> list[Row]:
    histories = [
        *(ended("delivered", latency_ms, name="welcome") for latency_ms in range(1_000, 1_100)),
        ended("delivered", 60_000, name="invoice"),
        ended("delivered", None),  # its adding was not seen: delivered, but nobody knows how quickly
        ended("dead", 5_000),
        ended("dead", 5_000, after=timedelta(minutes=1)),  # the next day
        ended("removed", 1),
        ended(None, None),
    ]
    births = [added(), added(after=timedelta(minutes=2), name="late")]
    told = measured(spark, histories, births)
    assert told == plain.measures(histories, births)
    return told


def one(rows: Sequence[Row], grain: str, dimension: str, key: str, *, at: datetime = START) -> Row:
    (row,) = (
        row
        for row in rows
        if (row["grain"], row["dimension"], row["key"], row["period"]) == (grain, dimension, key, at)
    )
    return row


def test_rates_and_throughput_are_of_what_ended_in_the_period(rows: list[Row]) -> None:
    minute = one(rows, "minute", "queue", "orders")
    assert (minute["added"], minute["ended"], minute["delivered"], minute["dead"]) == (1, 104, 102, 1)
    assert (minute["removed"], minute["delivery_rate"], minute["per_second"]) == (1, 102 / 103, 104 / 60)
    assert (minute["attempts"], minute["deliveries"], minute["retries"]) == (104, 208, 104)
    assert (minute["pending_ms"], minute["queued_ms"]) == (1_040, None)


def test_latency_is_of_the_delivered_alone(rows: list[Row]) -> None:
    minute = one(rows, "minute", "queue", "orders")
    assert minute["latency_mean_ms"] == (sum(range(1_000, 1_100)) + 60_000) / 101
    assert minute["latency_max_ms"] == 60_000
    assert minute["latency_p50_ms"] == middle_of(bucket_of(1_050))
    assert minute["latency_p99_ms"] == middle_of(bucket_of(1_099))
    assert sum(each["count"] for each in minute["latency_histogram"]) == 101
    buckets = [each["bucket"] for each in minute["latency_histogram"]]
    assert buckets == sorted(set(buckets))
    assert one(rows, "minute", "name", "invoice")["latency_p50_ms"] == middle_of(bucket_of(60_000))


def test_a_day_begins_at_midnight_of_greenwich(rows: list[Row]) -> None:
    midnight = START.replace(hour=0, minute=0)
    first = one(rows, "day", "queue", "orders", at=midnight)
    second = one(rows, "day", "queue", "orders", at=midnight + timedelta(days=1))
    assert (first["ended"], second["ended"], second["added"], second["per_second"]) == (104, 1, 1, 1 / 86_400)
    assert one(rows, "hour", "queue", "orders", at=START.replace(minute=0))["ended"] == 104


def test_what_was_only_added_has_a_row_too(rows: list[Row]) -> None:
    late = one(rows, "minute", "name", "late", at=START + timedelta(minutes=2))
    assert (late["added"], late["ended"], late["attempts"], late["per_second"]) == (1, 0, 0, 0.0)
    assert (late["delivery_rate"], late["latency_mean_ms"], late["latency_p50_ms"]) == (None, None, None)
    assert (late["latency_histogram"], late["pending_ms"]) == ([], None)


def test_a_dimension_that_a_message_does_not_have_is_not_measured(rows: list[Row]) -> None:
    assert {row["dimension"] for row in rows} == {"queue", "name"}
