"""The truth, by the paths that were drawn: what the lake finds out is held against it."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from remuda.lake.generating.drawing import pick
from remuda.lake.generating.recipe import Recipe
from remuda.lake.generating.records import MOST_STEPS, step_table
from remuda.lifecycle import CommandStatus, State

_OUTCOMES = {
    "delivered": (State.COMPLETED.value, CommandStatus.DELIVERY_SUCCESSFUL.value),
    "dead": (State.FAILED.value, CommandStatus.DELIVERY_FAILED.value),
    "removed": (State.REMOVED.value,),
}


def affected(recipe: Recipe, records: DataFrame) -> DataFrame:
    """The records that show a fault; of a gap the first number that is missing."""
    is_gap = F.col("mark") == "gap"
    return (
        records.where(F.col("mark").isNotNull())
        .dropDuplicates(["source", "queue", "seq"])  # of a record that stands twice, one
        .select(
            "source",
            "queue",
            F.col("mark").alias("kind"),
            F.when(~is_gap, F.col("message")).alias("message"),
            "seq",
            F.when(is_gap, F.lit(recipe.faults.lost).cast("bigint")).alias("missing"),
        )
    )


def outcomes(spark: SparkSession, recipe: Recipe, messages: DataFrame) -> DataFrame:
    """How many messages each queue had, and what has become of them at the end."""
    made = F.size(F.filter("times", lambda moment: moment <= recipe.end_ms))
    last = messages.select(
        "trail", made.alias("made"), (F.col("path") * MOST_STEPS + made - 1).alias("code")
    ).join(F.broadcast(_reached(spark, recipe)), "code")
    outcome = {name: F.col("entered").isin(list(states)) for name, states in _OUTCOMES.items()}
    ended = [state for states in _OUTCOMES.values() for state in states]
    return (
        last.groupBy("trail")
        .agg(
            F.sum(F.col("made") + F.col("beside")).alias("records"),
            F.count("*").alias("added"),
            *(F.count_if(is_so).alias(name) for name, is_so in outcome.items()),
            F.count_if(~F.col("entered").isin(ended)).alias("live"),
        )
        .withColumn("queue", pick(recipe.trails, F.col("trail")))
        .select("queue", "records", "added", *outcome, "live")
    )


def _reached(spark: SparkSession, recipe: Recipe) -> DataFrame:
    """By the code of its last step: the state of a message, and how many records it has beside its steps."""
    steps = step_table(spark, recipe)
    so_far = [
        (number * MOST_STEPS + place, sum(step.twice - step.lost for step in path.steps[: place + 1]))
        for number, path in enumerate(recipe.paths)
        for place in range(len(path.steps))
    ]
    beside = spark.createDataFrame(so_far, "code int, beside bigint")
    return steps.select("code", "entered").join(beside, "code")
