"""Anomalies: the new records are looked through once; what may yet mend is looked for anew each time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from remuda.lake.building.news import BUILT, new_transitions
from remuda.lake.place import Lake
from remuda.lake.trails import program_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KEY = ["source", "queue", "message"]
_PASSING = "passing"


def build_anomalies(
    lake: Lake, spark: SparkSession, target: int, now: datetime, on_step: Callable[[str], None]
) -> int:
    """Bring anomalies up to a batch; how many were found in what is new. `now` tells what has stopped."""
    from remuda.lake.anomalies import stopped

    table = lake.anomalies
    looked_at = table.version()
    built = table.progress(BUILT)
    on_step("anomalies: reading")
    open_histories = lake.histories.read(spark, lake.histories.files(partitions={None}))
    still = stopped(open_histories, now)
    before = table.files(partitions={_PASSING})
    progress: dict[str, int] = {}
    if built < target:
        found, progress = _found(lake, spark, open_histories, built, target)
        rows = found.unionByName(still)
    elif still.count() == sum(each.records for each in before):
        return 0  # as it was
    else:
        rows = still
    on_step("anomalies: writing")
    files = table.write(rows)
    on_step("anomalies: committing")
    table.commit(
        files,
        removed=before,
        progress={BUILT: target, **progress},
        since=looked_at,
        what=f"build: batches {built + 1} to {target}",
    )
    on_step("anomalies: committed")
    return sum(each.records for each in files if each.partition != _PASSING)


def _found(
    lake: Lake, spark: SparkSession, open_histories: DataFrame, built: int, target: int
) -> tuple[DataFrame, dict[str, int]]:
    """What the records of the batches in (built, target] show, and how far each trail was looked through."""
    from pyspark.sql import functions as F

    from remuda.lake.anomalies import chain_anomalies, gaps, row_anomalies, suspects

    news = new_transitions(lake, spark, above=built, up_to=target)
    reached = news.groupBy("source", "queue").agg(F.max("seq").alias("last_seq")).collect()
    programs = {(row["source"], row["queue"]): program_of(row["source"], row["queue"]) for row in reached}
    noted = lake.anomalies.all_progress(programs.values())
    known = [(*trail, noted[program]) for trail, program in programs.items() if noted[program]]
    spans = spark.createDataFrame(known, "source string, queue string, last_seq bigint")

    changed = lake.histories.read(spark, lake.histories.files(above=("batch", built)))
    odd = suspects(changed.where(F.col("batch") > built), open_histories)
    records = lake.transitions.read(spark).join(F.broadcast(odd.select(*_KEY).distinct()), _KEY, "left_semi")
    chained = chain_anomalies(records).where(F.col("batch").between(built + 1, target))
    found = row_anomalies(news).unionByName(gaps(spans, news)).unionByName(chained)
    progress = {programs[row["source"], row["queue"]]: int(row["last_seq"]) for row in reached}
    return found, {program: max(seq, noted[program]) for program, seq in progress.items()}
