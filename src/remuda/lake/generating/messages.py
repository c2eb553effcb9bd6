"""The messages: where each belongs, which path it takes, and when each of its steps is made."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from remuda.lake.generating.drawing import Draw, choose
from remuda.lake.generating.paths import DAY, HOUR
from remuda.lake.generating.recipe import (
    BAD_GATEWAY,
    BAD_GATEWAYS,
    DEVICES,
    GATEWAYS,
    JOB,
    OUTAGE,
    PULL,
    PULL_GATEWAYS,
    PUSH,
    Recipe,
)

# The day's rhythm: most is added about this hour (UTC), six times as much as twelve hours before or after.
_BUSIEST = 14 * HOUR / DAY
_SWING = 0.09
_WAITS = "array<struct<fixed:bigint,spread:bigint,mean:bigint>>"
# How long queues' and fleets' work takes, each beside the others.
_PACES = (1.0, 0.4, 6.0, 1.5, 2.5)


def messages(spark: SparkSession, recipe: Recipe) -> DataFrame:
    """number, trail, path, and `times`: when (ms) each step of the path is made, be it after the end."""
    draw = Draw(recipe.seed)
    drawn = (
        spark.range(0, recipe.messages, 1, recipe.tasks)
        .withColumnRenamed("id", "number")
        .select(
            "number",
            draw.share("trail").alias("trail_share"),
            draw.share("path").alias("path_share"),
            gateway_number(draw).alias("gateway"),
            _usual_moment(recipe, draw).alias("added_ms"),
        )
        .withColumn("trail", F.expr(choose("trail_share", _trail_choices(recipe))))
        .withColumn("meets", _meets(recipe))
        .withColumn("path", _drawn_path(recipe))
    )
    if recipe.planted:
        drawn = drawn.transform(lambda frame: _with_faults(spark, recipe, frame))
    waits = _path_table(spark, recipe)
    moved = (
        drawn.join(F.broadcast(waits), "path")
        .withColumn("added_ms", _moment(recipe, draw))
        .withColumn("pace", _pace(recipe))
    )
    return moved.select("number", "trail", "path", _times(draw).alias("times"))


def device_number(draw: Draw) -> Column:
    """Which device of its fleet a command is for."""
    return draw.below(DEVICES, "device")


def gateway_number(draw: Draw) -> Column:
    """Which gateway of its fleet hears that device."""
    return F.pmod(device_number(draw), F.lit(GATEWAYS))


def is_pull(draw: Draw) -> Column:
    return gateway_number(draw).isin(list(PULL_GATEWAYS))


def _trail_choices(recipe: Recipe) -> list[tuple[float, int]]:
    return sorted(((share, place) for place, share in enumerate(recipe.shares)), reverse=True)


def _usual_moment(recipe: Recipe, draw: Draw) -> Column:
    """When a message is added, if nothing else says: one after the other, by the rhythm of the day."""
    first, last = (_steady(moment / DAY) for moment in (recipe.start_ms, recipe.end_ms))
    share = (F.col("number") + draw.share("added")) / F.lit(float(recipe.messages))
    moment = _rhythm(F.lit(first) + share * F.lit(last - first))
    added = F.floor(moment * F.lit(float(DAY))).cast("bigint")
    return F.least(F.greatest(added, _whole(recipe.start_ms)), _whole(recipe.end_ms - 1))


def _rhythm(steady: Column) -> Column:
    """From a time (days) that runs steadily to one that dwells in the busy hours.

    A bump made of two parabolas, forward and back within each day: sums and products only, which come out
    the same on every machine, unlike a sine.
    """
    phase = steady - F.lit(_BUSIEST)
    part = phase - F.floor(phase)
    bump = F.when(part < 0.5, part * (0.5 - part)).otherwise((part - 1.0) * (part - 0.5))
    return steady - F.lit(16 * _SWING) * bump


def _steady(moment: float) -> float:
    """The inverse of `_rhythm`, by halving."""
    low, high = moment - 1.0, moment + 1.0
    for _ in range(60):
        middle = (low + high) / 2
        part = (middle - _BUSIEST) % 1.0
        bump = part * (0.5 - part) if part < 0.5 else (part - 1.0) * (part - 0.5)
        if middle - 16 * _SWING * bump < moment:
            low = middle
        else:
            high = middle
    return low


def _meets(recipe: Recipe) -> Column:
    """The table of paths that a message is drawn from."""
    begin, end = recipe.outage_ms
    added, gateway = F.col("added_ms"), F.col("gateway")
    return (
        F.when(F.col("trail") < len(recipe.queues), JOB)
        .when((added >= begin) & (added < end), OUTAGE)
        .when(gateway.isin(list(BAD_GATEWAYS)), BAD_GATEWAY)
        .when(gateway.isin(list(PULL_GATEWAYS)), PULL)
        .otherwise(PUSH)
    )


def _drawn_path(recipe: Recipe) -> Column:
    cases = (
        f"WHEN meets = {meets} THEN {choose('path_share', choices)}"
        for meets, choices in enumerate(recipe.choices)
    )
    return F.expr(f"CASE {' '.join(cases)} END")


def _with_faults(spark: SparkSession, recipe: Recipe, drawn: DataFrame) -> DataFrame:
    """The messages that were chosen for a fault take its path instead."""
    faults = spark.createDataFrame(recipe.planted, "number bigint, as_job int, as_push int, as_pull int")
    planted = (
        F.when(F.col("meets") == JOB, F.col("as_job"))
        .when(F.col("gateway").isin(list(PULL_GATEWAYS)), F.col("as_pull"))
        .otherwise(F.col("as_push"))
    )
    return drawn.join(F.broadcast(faults), "number", "left").withColumn(
        "path", F.coalesce(planted, F.col("path"))
    )


def _path_table(spark: SparkSession, recipe: Recipe) -> DataFrame:
    """Of each path: the waits before its steps, and when it begins if that matters."""
    rows = [
        (
            number,
            [tuple(step.wait) for step in path.steps[1:]],
            path.late,
            None if path.within is None else path.within[0],
            None if path.within is None else path.within[1],
        )
        for number, path in enumerate(recipe.paths)
    ]
    return spark.createDataFrame(
        rows, f"path int, waits {_WAITS}, late bigint, earliest double, latest double"
    )


def _moment(recipe: Recipe, draw: Draw) -> Column:
    """When a message is added, by what its path says."""
    share = draw.share("moved")
    late = _whole(recipe.end_ms - 1) - F.floor(share * F.col("late")).cast("bigint")
    part = F.col("earliest") + share * (F.col("latest") - F.col("earliest"))
    placed = _whole(recipe.start_ms) + F.floor(part * F.lit(float(recipe.span_ms))).cast("bigint")
    return (
        F.when(F.col("late") > 0, F.greatest(late, _whole(recipe.start_ms)))
        .when(F.col("earliest").isNotNull(), placed)
        .otherwise(F.col("added_ms"))
    )


def _pace(recipe: Recipe) -> Column:
    paces = (F.lit(_PACES[place % len(_PACES)]) for place in range(len(recipe.trails)))
    return F.element_at(F.array(*paces), F.col("trail") + 1)


def _times(draw: Draw) -> Column:
    """The moments of a path's steps: each a wait after the one before."""

    def wait_ms(wait: Column, step: Column) -> Column:
        share = draw.share("wait", step)
        uneven = wait["mean"] * F.col("pace") * -F.ln(1.0 - share)
        return wait["fixed"] + F.floor(wait["spread"] * share + uneven).cast("bigint")

    def go_on(times: Column, wait: Column) -> Column:
        return F.concat(times, F.array(F.element_at(times, -1) + wait_ms(wait, F.size(times))))

    return F.aggregate("waits", F.array(F.col("added_ms")), go_on)


def _whole(number: int) -> Column:
    return F.lit(number).cast("bigint")
