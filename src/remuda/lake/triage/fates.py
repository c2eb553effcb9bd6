"""What became of each death: still dead, replayed and fixed, dead again, under way, dropped."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KEY = ["source", "queue", "message"]


class Fate(StrEnum):
    """What became of a death, as far as the lake knows.

    DEAD        it is a dead letter still, or nothing is known of it since
    FIXED       it was replayed, and delivered
    DIED_AGAIN  it was replayed, and became a dead letter once more
    UNDER_WAY   it was replayed, and has not ended yet
    REMOVED     it was dropped, or removed after a replay
    """

    DEAD = "dead"
    FIXED = "fixed"
    DIED_AGAIN = "died_again"
    UNDER_WAY = "under_way"
    REMOVED = "removed"


def with_fates(dead_letters: DataFrame, histories: DataFrame) -> DataFrame:
    """Dead letters with the column `fate`; those of one message lie in one partition.

    An id that was used again has a history for each of its lives; a death belongs to the last one that
    had begun. Only the last death of a life tells what became of the message: it was replayed after the
    others, for there is no other way to die again.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    lives = (
        histories.join(dead_letters.select(*_KEY), _KEY, "left_semi")
        .groupBy(*_KEY)
        .agg(F.sort_array(F.collect_list(F.struct("first_seq", "last_seq", "outcome"))).alias("_lives"))
    )
    begun = F.filter("_lives", lambda life: life["first_seq"] <= F.col("seq"))
    # Gathered by message once: each of the windows here, and of those who ask, finds its rows together.
    joined = (
        dead_letters.join(lives, _KEY, "left")
        .withColumn("_life", F.try_element_at(begun, F.lit(-1)))
        .repartition(*_KEY)
    )
    first, outcome = F.col("_life.first_seq"), F.col("_life.outcome")
    last_death = F.max("seq").over(Window.partitionBy(*_KEY, first))
    # No history, or none that was built since.
    unknown = first.isNull() | (F.col("seq") > F.col("_life.last_seq"))
    fate = (
        F.when(F.col("seq") < last_death, Fate.DIED_AGAIN.value)
        .when(unknown | (outcome == "dead"), Fate.DEAD.value)
        .when(outcome == "delivered", Fate.FIXED.value)
        .when(outcome == "removed", Fate.REMOVED.value)
        .otherwise(Fate.UNDER_WAY.value)
    )
    return joined.withColumn("fate", fate).drop("_lives", "_life")


def dead_now(dead_letters: DataFrame, histories: DataFrame) -> DataFrame:
    """The dead letters that are dead still, as far as the lake knows: the latest death of each message."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    latest = F.max("seq").over(Window.partitionBy(*_KEY))
    return (
        with_fates(dead_letters, histories)
        .where(F.col("fate") == Fate.DEAD.value)
        .withColumn("_latest", latest)
        .where("seq = _latest")
        .drop("_latest", "fate")
    )
