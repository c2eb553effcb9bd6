"""What a table has not seen yet."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from remuda.lake.place import Lake
from remuda.lifecycle import ENDED_STATUSES, TERMINAL_STATES, State

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BUILT = "build"  # the program under which a table notes the batch up to which it is built
ENDED_NAMES = sorted(str(each) for each in {*TERMINAL_STATES, *ENDED_STATUSES, State.REMOVED})

_CLOCKS_DIFFER = timedelta(seconds=2)


def new_transitions(lake: Lake, spark: SparkSession, *, above: int, up_to: int) -> DataFrame:
    """The transitions of the batches in (above, up_to]."""
    from pyspark.sql import functions as F

    files = lake.transitions.files(above=("batch", above))
    return lake.transitions.read(spark, files).where(F.col("batch").between(above + 1, up_to))


def days_of_the_end() -> Column:
    """The days on which a message that goes on can have ended: its record says how long ago that was."""
    from pyspark.sql import functions as F

    margin = F.expr(f"INTERVAL {int(_CLOCKS_DIFFER.total_seconds())} SECONDS")
    ended_at = F.col("at") - F.expr("make_dt_interval(0, 0, 0, dwell_ms / 1000.0)")
    days = F.array(F.to_date(ended_at - margin), F.to_date(ended_at + margin))
    return F.when(F.col("left").isin(*ENDED_NAMES), days)


def collected_days(news: DataFrame, days: Column) -> set[str]:
    """The distinct days of a column of arrays."""
    from pyspark.sql import functions as F

    rows = news.select(F.explode(days).alias("day")).distinct().collect()
    return {str(row["day"]) for row in rows if row["day"] is not None}
