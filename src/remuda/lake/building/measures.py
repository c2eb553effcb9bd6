"""Measures, by the day: a day in which something was added, ended or went on after its end is made anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from remuda.lake.building.news import (
    BUILT,
    ENDED_NAMES,
    collected_days,
    days_of_the_end,
    new_transitions,
)
from remuda.lake.measures import measures_of
from remuda.lake.place import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def build_measures(lake: Lake, spark: SparkSession, target: int, on_step: Callable[[str], None]) -> set[str]:
    """Bring measures up to a batch; the days that were made anew."""
    from pyspark.sql import functions as F

    table = lake.measures
    looked_at = table.version()
    built = table.progress(BUILT)
    if built >= target:
        return set()
    on_step("measures: reading")
    days = _touched_days(new_transitions(lake, spark, above=built, up_to=target))
    ended = lake.histories.read(spark, lake.histories.files(partitions=days))
    recorded = lake.transitions.read(spark, lake.transitions.files(partitions=days))
    added = recorded.where(F.col("left").isNull() & (F.col("batch") <= target))
    on_step("measures: writing")
    files = table.write(measures_of(ended, added))
    on_step("measures: committing")
    table.commit(
        files,
        removed=table.files(partitions=days),
        progress={BUILT: target},
        since=looked_at,
        what=f"build: {len(days)} days up to batch {target}",
    )
    on_step("measures: committed")
    return days


def _touched_days(news: DataFrame) -> set[str]:
    """Days that have new numbers, and those that a message left when it went on after its end."""
    from pyspark.sql import functions as F

    counted = F.col("left").isNull() | F.col("entered").isin(*ENDED_NAMES)
    own = F.when(counted, F.array(F.to_date("at")))
    nothing = F.array().cast("array<date>")
    return collected_days(news, F.concat(F.coalesce(own, nothing), F.coalesce(days_of_the_end(), nothing)))
