"""The questions of a report, as DataFrames that nobody has collected yet."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from remuda.lake.buckets import bucket_column
from remuda.lake.report.data import Z
from remuda.lake.report.periods import EPOCH, Slicing
from remuda.lake.schemas import STAGES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TREND = 24  # parts of the period in which the deaths of a fault are counted
WORST = 20
TOP_FAULTS = 15
SLOWEST = 10
EXAMPLES = 5
MOST_ATTEMPTS = 100
FEW = 3  # deliveries below which a latency says little


class Asked(NamedTuple):
    """The tables, and what of them is asked for."""

    tables: Mapping[str, DataFrame]
    since: datetime | None
    until: datetime | None
    queue: str | None

    def table(self, name: str) -> DataFrame:
        """A table, of the queue that is asked for."""
        from pyspark.sql import functions as F

        frame = self.tables[name]
        return frame if self.queue is None else frame.where(F.col("queue") == self.queue)

    def during(self, column: str) -> Column:
        """Whether the time in a column lies in the period; NULL where there is none."""
        from pyspark.sql import functions as F

        at = F.col(column)
        within = at.isNotNull()
        if self.since is not None:
            within &= at >= _moment(self.since)
        return within & self.before_the_end(column)

    def before_the_end(self, column: str) -> Column:
        from pyspark.sql import functions as F

        return F.lit(True) if self.until is None else F.col(column) < _moment(self.until)


def _moment(at: datetime) -> Column:
    from pyspark.sql import functions as F

    # A number, so that no time zone of a session or of this machine comes between.
    return F.timestamp_micros(F.lit(micros(at)))


def micros(at: datetime) -> int:
    """Microseconds since 1970."""
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def moment_of(value: int) -> datetime:
    """The moment that Spark told as microseconds since 1970."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value)


def extents_of(asked: Asked) -> DataFrame:
    """The first and the last period of each grain of the measures."""
    from pyspark.sql import functions as F

    measures = asked.table("measures").where(F.col("dimension") == "queue")
    if asked.since is not None:
        # Whole days: the day in which the period begins has begun before it.
        measures = measures.where(F.col("period") >= _moment(asked.since - timedelta(days=1)))
    return (
        measures.where(asked.before_the_end("period"))
        .groupBy("grain")
        .agg(
            F.unix_micros(F.min("period")).alias("first"),
            F.unix_micros(F.max("period")).alias("last"),
        )
    )


def questions(asked: Asked, chosen: Slicing) -> dict[str, DataFrame]:
    """Everything that the page tells, by name."""
    return {
        "counts": counts(asked),
        "steps": steps(asked, chosen),
        "latencies": latencies(asked, chosen),
        "stages": stages(asked),
        "moves": moves(asked),
        "faults": faults(asked, chosen),
        "ranking": ranking(asked, chosen),
        "slowest": slowest(asked),
        "anomalies": anomalies(asked),
    }


def counts(asked: Asked) -> DataFrame:
    """Messages of each queue by outcome and, of those delivered, by attempts."""
    from pyspark.sql import functions as F

    ended = asked.during("ended_at") & F.col("outcome").isNotNull()
    later = F.lit(False) if asked.until is None else F.col("ended_at") >= _moment(asked.until)
    live = asked.before_the_end("first_at") & (F.col("outcome").isNull() | later)
    outcome = F.when(ended, F.col("outcome"))
    return (
        asked.table("histories")
        .select(
            "source",
            "queue",
            "kind",
            outcome.alias("outcome"),
            F.when(outcome == "delivered", F.least("attempts", F.lit(MOST_ATTEMPTS))).alias("attempts"),
            asked.during("added_at").cast("bigint").alias("added"),
            F.coalesce(live, F.lit(False)).cast("bigint").alias("live"),
            F.when(ended, F.col("retries")).alias("retries"),
        )
        .where(F.col("outcome").isNotNull() | (F.col("added") > 0) | (F.col("live") > 0))
        .groupBy("source", "queue", "kind", "outcome", "attempts")
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.sum("added").alias("added"),
            F.sum("live").alias("live"),
            F.sum("retries").alias("retries"),
        )
    )


def _measures(asked: Asked, chosen: Slicing, *dimensions: str) -> DataFrame:
    from pyspark.sql import functions as F

    return asked.table("measures").where(
        (F.col("grain") == chosen.grain) & F.col("dimension").isin(*dimensions) & asked.during("period")
    )


def _step(chosen: Slicing) -> Column:
    """The number of a period's step, counted from the first."""
    from pyspark.sql import functions as F

    size = int(chosen.period.step.total_seconds())
    start = int((chosen.period.since - EPOCH).total_seconds()) // size
    beginning = int(EPOCH.timestamp())
    return (F.floor((F.unix_seconds("period") - beginning) / F.lit(size)) - start).cast("int").alias("step")


def steps(asked: Asked, chosen: Slicing) -> DataFrame:
    """What was added and what ended, step by step."""
    from pyspark.sql import functions as F

    sums = [F.sum(name).alias(name) for name in ("added", "delivered", "dead", "removed")]
    return _measures(asked, chosen, "queue").groupBy(_step(chosen)).agg(*sums)


def latencies(asked: Asked, chosen: Slicing) -> DataFrame:
    """The histograms of latency, step by step; those of queues and of fleets apart."""
    from pyspark.sql import functions as F

    return (
        _measures(asked, chosen, "queue")
        .select(_step(chosen), F.col("queue"), F.explode("latency_histogram").alias("of"))
        .groupBy(
            "step",
            F.col("queue").startswith("devices:").alias("commands"),
            F.col("of.bucket").alias("bucket"),
        )
        .agg(F.sum("of.count").alias("messages"))
    )


def stages(asked: Asked) -> DataFrame:
    """The histogram of the time in each stage, of the messages that ended."""
    from pyspark.sql import functions as F

    # A stage that was never entered has no time at all, not a time of 0.
    times = [
        F.struct(
            F.lit(stage).alias("stage"),
            F.when(F.col(f"{stage.lower()}_at").isNotNull(), F.col(f"{stage.lower()}_ms")).alias("ms"),
        )
        for stage in STAGES
    ]
    return (
        asked.table("histories")
        .where(asked.during("ended_at"))
        .select(F.explode(F.array(*times)).alias("of"))
        .where(F.col("of.ms").isNotNull())
        .groupBy(F.col("of.stage").alias("stage"), bucket_column(F.col("of.ms")).alias("bucket"))
        .agg(F.count(F.lit(1)).alias("messages"))
    )


def moves(asked: Asked) -> DataFrame:
    """How often each move was made, and how long the state before it had lasted."""
    from pyspark.sql import functions as F

    return (
        asked.table("transitions")
        .where(asked.during("at"))
        .groupBy("left", "entered")
        .agg(F.count(F.lit(1)).alias("times"), F.avg("dwell_ms").alias("dwell_ms"))
    )


def faults(asked: Asked, chosen: Slicing) -> DataFrame:
    """The most frequent faults with their trend, and how many deaths and faults there are in all."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    start, end = micros(chosen.period.since), micros(chosen.period.until)
    part = F.floor((F.unix_micros("died_at") - start) * F.lit(TREND) / F.lit(max(1, end - start)))
    everything = Window.partitionBy(F.lit(1))
    return (
        asked.table("dead_letters")
        .where(asked.during("died_at"))
        .groupBy(
            "fingerprint", F.greatest(F.lit(0), F.least(F.lit(TREND - 1), part)).cast("int").alias("part")
        )
        .agg(
            F.count(F.lit(1)).alias("deaths"),
            F.min("died_at").alias("first"),
            F.max("died_at").alias("last"),
            F.min("fault").alias("fault"),
            F.collect_set("reason").alias("reasons"),
            F.collect_set("queue").alias("queues"),
        )
        .groupBy("fingerprint")
        .agg(
            F.sum("deaths").alias("deaths"),
            F.unix_micros(F.min("first")).alias("first"),
            F.unix_micros(F.max("last")).alias("last"),
            F.min("fault").alias("fault"),
            F.sort_array(F.array_distinct(F.flatten(F.collect_list("reasons")))).alias("reasons"),
            F.sort_array(F.array_distinct(F.flatten(F.collect_list("queues")))).alias("queues"),
            F.collect_list(F.struct("part", "deaths")).alias("trend"),
        )
        .select(
            "*",
            F.sum("deaths").over(everything).alias("all_deaths"),
            F.count(F.lit(1)).over(everything).alias("all_faults"),
        )
        .orderBy(F.desc("deaths"), "fingerprint")
        .limit(TOP_FAULTS)
    )


def ranking(asked: Asked, chosen: Slicing) -> DataFrame:
    """The worst gateways, lanes and queues, and how many of each there are."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    delivered, settled = F.col("delivered"), F.col("delivered") + F.col("dead")
    each = Window.partitionBy("dimension")
    worst_first = each.orderBy(_upper_end(delivered, settled), F.desc("dead"), "source", "queue", "key")
    return (
        _measures(asked, chosen, "gateway", "lane", "queue")
        .where(F.col("key").isNotNull() & (F.col("key") != ""))
        .groupBy("dimension", "source", "queue", "key")
        .agg(F.sum("delivered").alias("delivered"), F.sum("dead").alias("dead"))
        .where(settled > 0)
        .select(
            "*", F.row_number().over(worst_first).alias("place"), F.count(F.lit(1)).over(each).alias("all")
        )
        .where(F.col("place") <= WORST)
    )


def _upper_end(successes: Column, trials: Column) -> Column:
    """The upper end of `data.wilson`."""
    from pyspark.sql import functions as F

    rate, spread = successes / trials, F.lit(Z * Z) / trials
    half = F.lit(Z) * F.sqrt(rate * (1 - rate) / trials + spread / (4 * trials))
    return F.when(successes == trials, F.lit(1.0)).otherwise((rate + spread / 2 + half) / (1 + spread))


def slowest(asked: Asked) -> DataFrame:
    """The devices and names whose messages took longest; those with few deliveries come last."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    whats = F.array(
        *(F.struct(F.lit(what).alias("what"), F.col(what).alias("key")) for what in ("device", "name"))
    )
    few = F.col("delivered") < FEW
    slow_first = Window.partitionBy("what").orderBy(few, F.desc("p90"), F.desc("slowest"), "queue", "key")
    return (
        asked.table("histories")
        .where(asked.during("ended_at") & (F.col("outcome") == "delivered") & F.col("latency_ms").isNotNull())
        .select("source", "queue", "latency_ms", F.explode(whats).alias("of"))
        .where(F.col("of.key").isNotNull())
        .groupBy(F.col("of.what").alias("what"), "source", "queue", F.col("of.key").alias("key"))
        .agg(
            F.count(F.lit(1)).alias("delivered"),
            # Both at once: each such aggregate sorts all messages.
            F.percentile_approx("latency_ms", [0.5, 0.9], 1000).alias("parts"),
            F.max("latency_ms").alias("slowest"),
        )
        .withColumns({"p50": F.col("parts")[0], "p90": F.col("parts")[1]})
        .select("*", F.row_number().over(slow_first).alias("place"))
        .where(F.col("place") <= SLOWEST)
    )


def anomalies(asked: Asked) -> DataFrame:
    """The latest of each kind of anomaly, with how many there are of it."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    each = Window.partitionBy("kind")
    latest = each.orderBy(F.desc_nulls_last("at"), "source", "queue", "seq")
    # What has stopped still stands, however long ago its last record was made.
    standing = (F.col("kind") == "stopped") & asked.before_the_end("at")
    return (
        asked.table("anomalies")
        .where(asked.during("at") | standing | F.col("at").isNull())
        .select(
            "source",
            "queue",
            "kind",
            "message",
            "seq",
            "detail",
            F.unix_micros("at").alias("at"),
            F.count(F.lit(1)).over(each).alias("found"),
            F.unix_micros(F.min("at").over(each)).alias("first"),
            F.unix_micros(F.max("at").over(each)).alias("last"),
            F.row_number().over(latest).alias("place"),
        )
        .where(F.col("place") <= EXAMPLES)
    )
