"""Audit: does everything add up? Added = delivered + dead + removed + live, queue by queue, or it names ids.

The store goes on while it is looked at. So the trail is ingested once before the look and once after it: a
message is only called missing if its history is open, had no record since before the look, and the look did
not see it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from remuda.lake.ingest import progress_of
from remuda.lake.place import Lake
from remuda.lake.trails import spans

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_KEY = ["queue", "message"]
_NAMED = 1_000  # ids that are named of each kind and queue


class Finding(StrEnum):
    """What can be wrong with a message."""

    VANISHED = "vanished"
    LETTER_GONE = "letter_gone"
    UNRECORDED = "unrecorded"
    DIFFERS = "differs"
    NO_HISTORY = "no_history"


FINDING_MEANINGS: Mapping[Finding, str] = {
    Finding.VANISHED: "the lake knows it as live, and the store does not have it",
    Finding.LETTER_GONE: "the lake knows it as a dead letter, and the store does not have it",
    Finding.UNRECORDED: "the store has it, and the trail never told of it",
    Finding.DIFFERS: "the lake and the store have it in different states",
    Finding.NO_HISTORY: "it was added, and has no history: the tables are not built, or broken",
}


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    """One queue in numbers. `unborn` are histories whose adding was never seen (trimmed, or foreign)."""

    queue: str
    added: int
    unborn: int
    delivered: int
    dead: int
    removed: int
    live: int
    in_store: int

    @property
    def adds_up(self) -> bool:
        return self.added + self.unborn == self.delivered + self.dead + self.removed + self.live


class Suspicion(msgspec.Struct, frozen=True, kw_only=True):
    """One message with which something is wrong."""

    queue: str
    message: str
    finding: Finding
    lake_state: str | None
    store_state: str | None


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. `found` names at most a thousand ids of each kind and queue; `counts` has all of them."""

    balances: list[Balance]
    found: list[Suspicion]
    counts: dict[str, int]

    @property
    def is_clean(self) -> bool:
        return not self.counts and all(each.adds_up for each in self.balances)


class Snapshot(msgspec.Struct, frozen=True):
    """What the store had when it was looked at: (queue, message, state) of what lives, and of what ended."""

    live: DataFrame
    ended: DataFrame


def offsets(lake: Lake, url: str, source: str) -> dict[str, int]:
    """How far each trail of the store is in the lake."""
    return progress_of(lake, source, spans(url))


def look(spark: SparkSession, url: str) -> Snapshot:
    """Look at the store once, and keep what was seen for as long as the audit takes."""
    from pyspark.sql import functions as F

    def seen(name: str) -> DataFrame:
        rows = spark.read.format(name).option("url", url).option("columns", "queue,id,state").load()
        return rows.select("queue", F.col("id").alias("message"), "state").localCheckpoint(eager=True)

    return Snapshot(seen("remuda_jobs"), seen("remuda_archive"))


def audit(
    spark: SparkSession,
    *,
    transitions: DataFrame,
    histories: DataFrame,
    snapshot: Snapshot,
    before: Mapping[str, int],
) -> Audit:
    """Compare tables of one source (ingested after the look) with the look; `before` are the offsets
    up to which they went before it.
    """
    latest = _latest_lives(histories)
    doubts = _doubts(spark, latest, snapshot, before)
    doubts = doubts.unionByName(_without_history(transitions, histories)).localCheckpoint(eager=True)
    counted = doubts.groupBy("finding").count().collect()
    return Audit(
        balances=_balances(transitions, histories, snapshot.live),
        found=_named(doubts),
        counts={row["finding"]: row["count"] for row in counted},
    )


def _latest_lives(histories: DataFrame) -> DataFrame:
    """The last life of each id: one that was used again stands in the store only as that."""
    from pyspark.sql import functions as F

    last = F.max_by(F.struct("state", "outcome", "last_seq"), "last_seq")
    return histories.groupBy(*_KEY).agg(last.alias("last")).select(*_KEY, "last.*")


def _doubts(
    spark: SparkSession, latest: DataFrame, snapshot: Snapshot, before: Mapping[str, int]
) -> DataFrame:
    """Messages of which the lake and the store do not say the same."""
    from pyspark.sql import functions as F

    known = spark.createDataFrame(list(before.items()), "queue string, before bigint")
    seen = snapshot.live.withColumn("is_live", F.lit(True)).unionByName(
        snapshot.ended.withColumn("is_live", F.lit(False))
    )
    # An id may stand in the archive from an earlier life, and live: what lives says where it is.
    seen = seen.groupBy(*_KEY).agg(
        F.max_by(F.struct("state", "is_live"), F.col("is_live").cast("int")).alias("seen")
    )
    both = (
        latest.join(F.broadcast(known), "queue", "left")
        .withColumn("unmoved", F.col("last_seq") <= F.coalesce("before", F.lit(0)))
        .join(seen.select(*_KEY, F.col("seen.state").alias("store_state"), "seen.is_live"), _KEY, "full")
    )
    return (
        both.withColumn("finding", _finding(F.col("state"), F.col("store_state")))
        .where("finding IS NOT NULL")
        .select(*_KEY, "finding", F.col("state").alias("lake_state"), "store_state")
    )


def _finding(state: Column, store_state: Column) -> Column:
    from pyspark.sql import functions as F

    unmoved, outcome = F.col("unmoved"), F.col("outcome")
    return (
        F.when(state.isNull() & F.col("is_live"), Finding.UNRECORDED.value)
        .when(unmoved & store_state.isNull() & outcome.isNull(), Finding.VANISHED.value)
        .when(unmoved & store_state.isNull() & (state == "FAILED"), Finding.LETTER_GONE.value)
        .when(unmoved & store_state.isNotNull() & (state != store_state), Finding.DIFFERS.value)
    )


def _without_history(transitions: DataFrame, histories: DataFrame) -> DataFrame:
    """Messages that were added, and of which no history tells."""
    from pyspark.sql import functions as F

    nothing = F.lit(None).cast("string")
    added = transitions.where(F.col("left").isNull()).select("source", *_KEY, F.col("seq").alias("added_seq"))
    missing = added.join(
        histories.select("source", "queue", "added_seq"), ["source", "queue", "added_seq"], "anti"
    )
    return missing.select(
        *_KEY,
        F.lit(Finding.NO_HISTORY.value).alias("finding"),
        nothing.alias("lake_state"),
        nothing.alias("store_state"),
    )


def _balances(transitions: DataFrame, histories: DataFrame, live: DataFrame) -> list[Balance]:
    from pyspark.sql import functions as F

    added = transitions.where(F.col("left").isNull()).groupBy("queue").agg(F.count("*").alias("added"))
    ended = {
        name: F.count_if(F.col("outcome") == name).alias(name) for name in ("delivered", "dead", "removed")
    }
    told = histories.groupBy("queue").agg(
        F.count_if(F.col("added_seq").isNull()).alias("unborn"),
        *ended.values(),
        F.count_if(F.col("outcome").isNull()).alias("live"),
    )
    seen = live.groupBy("queue").agg(F.count("*").alias("in_store"))
    rows = added.join(told, "queue", "full").join(seen, "queue", "full").fillna(0).orderBy("queue").collect()
    return [Balance(**row.asDict()) for row in rows]


def _named(doubts: DataFrame) -> list[Suspicion]:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    place = F.row_number().over(Window.partitionBy("queue", "finding").orderBy("message"))
    rows: Sequence[object] = (
        doubts.withColumn("place", place)
        .where(F.col("place") <= _NAMED)
        .drop("place")
        .orderBy("queue", "finding", "message")
        .collect()
    )
    return [msgspec.convert(row.asDict(), Suspicion) for row in rows]  # type: ignore[attr-defined]  # a Row
