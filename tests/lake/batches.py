"""Transitions that are in a lake already, batch by batch, without a store."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from remuda.lake.ingest import BATCHES
from remuda.lake.place import Lake
from remuda.lake.schemas import TRANSITIONS


def put(lake: Lake, transitions: DataFrame) -> int:
    """The next batch: rows as an ingest would have brought them; its number."""
    table = lake.transitions
    batch = table.progress(BATCHES) + 1
    files = table.write(transitions.withColumn("batch", F.lit(batch).cast("bigint")).coalesce(1))
    table.commit(files, progress={BATCHES: batch}, since=table.version(), what="test")
    return batch


def frame(spark: SparkSession, rows: Sequence[dict[str, object]]) -> DataFrame:
    """Rows of the table; what is left out is NULL."""
    full = [tuple(row.get(name) for name in TRANSITIONS.names) for row in rows]
    return spark.createDataFrame(full, TRANSITIONS.spark_schema())


def flat(rows: DataFrame) -> DataFrame:
    """The same rows without the plan that made them, which every query on them would plan again."""
    return rows.sparkSession.createDataFrame(rows.toArrow())
