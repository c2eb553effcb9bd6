"""The same tables by DuckDB and by Polars, for `bench.lake`: a request as JSON in, seconds and memory out."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from remuda.lake.codes import OUTCOMES
from remuda.lake.schemas import DIMENSIONS, STAGES
from tests.lake.duckdb_sql import histories_sql, measures_sql

KEY = ["source", "queue", "message"]


def duckdb_histories(transitions: list[str], out: Path) -> Callable[[], object]:
    return _copied(histories_sql(f"read_parquet({transitions!r})"), out / "histories.parquet")


def duckdb_measures(transitions: list[str], out: Path) -> Callable[[], object]:
    births = f'(SELECT * FROM read_parquet({transitions!r}) WHERE "left" IS NULL)'
    histories = f"read_parquet('{out / 'histories.parquet'}')"
    return _copied(measures_sql(histories, births), out / "measures.parquet")


def _copied(query: str, to: Path) -> Callable[[], object]:
    connection = duckdb.connect()
    connection.execute("SET threads = 2; SET TimeZone = 'UTC'")
    return lambda: connection.execute(f"COPY ({query}) TO '{to}' (FORMAT parquet, COMPRESSION zstd)")


def polars_histories(transitions: list[str], out: Path) -> Callable[[], object]:
    left, entered, seq = pl.col("left"), pl.col("entered"), pl.col("seq")
    sums = [
        pl.len().alias("records"),
        seq.min().alias("first_seq"),
        seq.max().alias("last_seq"),
        pl.col("at").min().alias("added_at"),
        pl.col("at").max().alias("last_at"),
        entered.sort_by("seq").last().alias("state"),
        pl.col("attempt").max().alias("attempts"),
        *(pl.col(name).max() for name in ("name", "device", "lane", "gateway", "grid")),
        entered.is_in(["PROCESSING", "SENT_TO_NS"]).sum().alias("deliveries"),
        entered.is_in(["RETRYABLE", "TO_RETRY"]).sum().alias("retries"),
        *(pl.col("dwell_ms").filter(left == stage).sum().alias(f"{stage.lower()}_ms") for stage in STAGES),
        *(pl.col("at").filter(entered == stage).min().alias(f"{stage.lower()}_at") for stage in STAGES),
    ]
    made = pl.scan_parquet(transitions).group_by(KEY).agg(sums)
    outcome = pl.col("state").replace_strict(dict(OUTCOMES), default=None)
    latency = (pl.col("last_at") - pl.col("added_at")).dt.total_milliseconds()
    made = made.with_columns(outcome.alias("outcome"), latency.alias("latency_ms"))
    return lambda: made.sink_parquet(out / "histories.parquet", engine="streaming")


def polars_measures(_transitions: list[str], out: Path) -> Callable[[], object]:
    histories = pl.scan_parquet(out / "histories.parquet").filter(pl.col("outcome").is_not_null())
    delivered = pl.col("outcome") == "delivered"
    latency = pl.col("latency_ms").filter(delivered)
    aggregated = [
        pl.len().alias("ended"),
        *((pl.col("outcome") == each).sum().alias(each) for each in ("delivered", "dead", "removed")),
        *(pl.col(name).sum() for name in ("attempts", "deliveries", "retries")),
        latency.mean().alias("latency_mean_ms"),
        *(latency.quantile(share).alias(f"p{share}") for share in (0.5, 0.9, 0.99)),
        *(pl.col(f"{stage.lower()}_ms").sum() for stage in STAGES),
    ]
    frames = [
        histories.filter(pl.col(dimension).is_not_null())
        .group_by(
            pl.col("last_at").dt.truncate(every).alias("period"),
            *dict.fromkeys(["source", "queue", dimension]),
        )
        .agg(aggregated)
        .rename({dimension: "key"} if dimension != "queue" else {})
        .select("period", "source", pl.exclude("period", "source"))
        for dimension in DIMENSIONS
        for every in ("1m", "1h", "1d")
    ]

    def run() -> None:
        for place, frame in enumerate(frames):
            frame.sink_parquet(out / f"measures-{place}.parquet", engine="streaming")

    return run


WORK: dict[tuple[str, str], Callable[[list[str], Path], Callable[[], object]]] = {
    ("duckdb", "histories"): duckdb_histories,
    ("duckdb", "measures"): duckdb_measures,
    ("polars", "histories"): polars_histories,
    ("polars", "measures"): polars_measures,
}


def main() -> None:
    asked: dict[str, Any] = json.load(sys.stdin)
    out = Path(asked["out"])
    out.mkdir(parents=True, exist_ok=True)
    work = WORK[asked["engine"], asked["what"]](asked["transitions"], out)
    seconds = 0.0
    for _ in range(asked["runs"]):  # the last one counts, as for Spark
        began = time.perf_counter()
        work()
        seconds = time.perf_counter() - began
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "memory": memory}))


if __name__ == "__main__":
    main()
