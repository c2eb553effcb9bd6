"""Histories, brought up to date by merging: what is new joins what is open.

Histories that are still open lie in a partition of their own, which is written anew; ended ones are added
to their day. One that goes on after its end (a replay, a removal) is looked for in the days on which it can
have ended, which its record tells; the files in which it lies are written anew without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from remuda.lake.building.news import (
    BUILT,
    ENDED_NAMES,
    collected_days,
    days_of_the_end,
    new_transitions,
)
from remuda.lake.delta import DataFile
from remuda.lake.histories import (
    duplicated_trails,
    histories_of,
    merge_histories,
    quick_histories,
    without_duplicates,
)
from remuda.lake.place import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KEY = ["source", "queue", "message"]


def build_histories(lake: Lake, spark: SparkSession, target: int, on_step: Callable[[str], None]) -> int:
    """Bring histories up to a batch; how many rows were written, those that stayed as they are included."""
    table = lake.histories
    looked_at = table.version()
    built = table.progress(BUILT)
    if built >= target:
        return 0
    on_step("histories: reading")
    news = new_transitions(lake, spark, above=built, up_to=target)
    open_files = table.files(partitions={None})
    closed_files = _files_with_reopened(lake, spark, news)
    on_step("histories: writing")
    files = _written(lake, spark, news, [*open_files, *closed_files])
    on_step("histories: committing")
    table.commit(
        files,
        removed=[*open_files, *closed_files],
        progress={BUILT: target},
        since=looked_at,
        what=f"build: batches {built + 1} to {target}",
    )
    on_step("histories: committed")
    return sum(each.records for each in files)


def _written(
    lake: Lake, spark: SparkSession, news: DataFrame, replaced: Sequence[DataFile]
) -> list[DataFile]:
    """Files with the new histories, joined with what the replaced files knew.

    Ids that lived more than once are rare, and looking for them takes as long as the rest: it is found out
    by the way, and then done again with care.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    if not duplicated_trails(news).isEmpty():
        news = without_duplicates(news)
    seen = Observation()
    quick = quick_histories(news).observe(seen, F.count_if("reborn").alias("reborn"))
    files = lake.histories.write(_merged(lake, spark, quick.drop("reborn"), replaced))
    if not seen.get["reborn"]:
        return files
    return lake.histories.write(_merged(lake, spark, histories_of(news), replaced))


def _merged(lake: Lake, spark: SparkSession, made: DataFrame, replaced: Sequence[DataFile]) -> DataFrame:
    if not replaced:
        return made
    known = lake.histories.read(spark, replaced)
    return merge_histories(known.select(*lake.histories.spec.names), made)


def _files_with_reopened(lake: Lake, spark: SparkSession, news: DataFrame) -> list[DataFile]:
    """The files of ended histories that go on in `news`."""
    from pyspark.sql import functions as F

    again = news.where(F.col("left").isin(*ENDED_NAMES))
    days = collected_days(again, days_of_the_end())
    files = lake.histories.files(partitions=days)
    if not files:
        return []
    ended = lake.histories.read(spark, files)
    found = (
        ended.select(*_KEY, F.col("_metadata.file_name").alias("file"))
        .join(F.broadcast(again.select(*_KEY).distinct()), _KEY, "left_semi")
        .select("file")
        .distinct()
        .collect()
    )
    names = {row["file"] for row in found}
    return [each for each in files if each.path.rpartition("/")[2] in names]
