"""Triage: dead letters by fault, how each of them goes on, and what to do about it.

`fates` tells what became of each death, `verdicts` what to do. From outside only what stands here is needed,
and `fates.dead_now` for replay plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from remuda.lake.triage.fates import Fate, with_fates
from remuda.lake.triage.verdicts import Suggestion, Verdict, suggest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["SPARK_HOURS", "SPARK_STEPS", "Fate", "Group", "Suggestion", "Verdict", "groups_of", "triage"]

SPARK_STEPS = 24  # values of `Group.history`, …
SPARK_HOURS = 2  # … of so many hours each: today and yesterday


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """The dead letters of one fault.

    count        deaths; `messages` that died, some more than once
    undescribed  deaths whose error had left the store before it was read
    last_day     deaths of the last 24 hours; `day_before`: of the 24 hours before
    history      deaths in steps of two hours over these two days, oldest first: for a sparkline
    spread       the time in which nine of ten of the deaths lie
    dead_now     messages that are dead letters still
    replayed     deaths after which the message was replayed: it was `fixed` (delivered), or `died_again`, or
                 is under way
    """

    fingerprint: str
    queue: str
    name: str | None
    reason: str
    fault: str
    sources: list[str]
    example: str
    count: int
    messages: int
    undescribed: int
    first_seen: datetime
    last_seen: datetime
    last_day: int
    day_before: int
    history: list[int]
    spread: timedelta
    dead_now: int
    replayed: int
    fixed: int
    died_again: int
    suggestion: Suggestion | None = None

    @property
    def fixed_share(self) -> float | None:
        """Of the replays that ended, how many ended well; None where none did."""
        ended = self.fixed + self.died_again
        return self.fixed / ended if ended else None


def triage(
    tables: Mapping[str, DataFrame], now: datetime, *, limit: int = 50, all_groups: bool = False
) -> list[Group]:
    """Dead letters by fault, each with a suggestion: those with most dead letters first.

    `tables` are a lake's (`Lake.frames`), of which it needs `dead_letters` and `histories`; filter the first
    to ask about a part. Faults of which nothing is dead any more are left out unless `all_groups`.
    """
    from pyspark.sql import functions as F

    found = groups_of(tables["dead_letters"], tables["histories"], now)
    if not all_groups:
        found = found.where("dead_now > 0")
    rows = found.orderBy(F.desc("dead_now"), F.desc("last_seen"), "fingerprint").limit(limit).toArrow()
    groups = [_group(row) for row in rows.to_pylist()]
    return [msgspec.structs.replace(each, suggestion=suggest(each, now)) for each in groups]


def groups_of(dead_letters: DataFrame, histories: DataFrame, now: datetime) -> DataFrame:
    """One row for each fingerprint, with the columns of `Group` (`spread` in seconds)."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    died, fate = F.col("died_at"), F.col("fate")
    hours_ago = (F.lit(int(now.timestamp())) - died.cast("long")) / 3_600
    step = (SPARK_STEPS - 1 - F.floor(hours_ago / SPARK_HOURS)).cast("int")
    deciles = F.percentile_approx(died.cast("long"), [0.05, 0.95], 1_000)
    # Counted where the rows of a message lie together, for counting what is distinct costs two more passes.
    again = Window.partitionBy("source", "queue", "message", "fingerprint")
    return (
        with_fates(dead_letters, histories)
        .withColumn("_is_last", F.col("seq") == F.max("seq").over(again))
        .groupBy("fingerprint")
        .agg(
            *(F.first(name).alias(name) for name in ("queue", "name", "reason", "fault")),
            F.sort_array(F.collect_set("source")).alias("sources"),
            F.max_by("message", "seq").alias("example"),
            F.count("*").alias("count"),
            F.count_if("_is_last").alias("messages"),
            F.count_if(~F.col("described")).alias("undescribed"),
            F.min(died).alias("first_seen"),
            F.max(died).alias("last_seen"),
            F.count_if(hours_ago.between(0, 24)).alias("last_day"),
            F.count_if((hours_ago > 24) & (hours_ago <= 48)).alias("day_before"),
            F.array(*(F.count_if(step == each) for each in range(SPARK_STEPS))).alias("history"),
            (deciles[1] - deciles[0]).alias("spread"),
            F.count_if(fate == Fate.DEAD.value).alias("dead_now"),
            F.count_if(_was_replayed(fate)).alias("replayed"),
            F.count_if(fate == Fate.FIXED.value).alias("fixed"),
            F.count_if(fate == Fate.DIED_AGAIN.value).alias("died_again"),
        )
    )


def _was_replayed(fate: Column) -> Column:
    return fate.isin(Fate.FIXED.value, Fate.DIED_AGAIN.value, Fate.UNDER_WAY.value)


def _group(row: dict[str, Any]) -> Group:
    row["reason"] = row["reason"] or ""
    row["spread"] = timedelta(seconds=row["spread"])
    return Group(**row)
