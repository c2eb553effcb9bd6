"""Measures: what ended and what was added, counted by minute, hour and day, for everything that is measured.

Minutes are counted first, with the latencies in buckets; hours and days are added up from the minutes, and
percentiles read from the buckets at the end.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from remuda.lake.buckets import bucket_column, middle_column
from remuda.lake.schemas import DIMENSIONS, GRAINS, MEASURES, STAGES

_SECONDS = {"minute": 60, "hour": 3_600, "day": 86_400}
_TIMES = tuple(f"{stage.lower()}_ms" for stage in STAGES)
_COUNTS = ("added", "ended", "delivered", "dead", "removed", "attempts", "deliveries", "retries", "replays")
_SUMS = (*_COUNTS, "latency_ms", *_TIMES)
_WHAT = ("source", "queue", "dimension", "key")
_SHARES = {"latency_p50_ms": 0.5, "latency_p90_ms": 0.9, "latency_p99_ms": 0.99}


def measures_of(histories: DataFrame, added: DataFrame) -> DataFrame:
    """Rows of `MEASURES` for every period and whatever is measured.

    Give it the histories that ended in some days (others do not count), and the records of adding
    (`left` NULL) of the same days. Percentiles are of what was delivered, as `buckets.quantile` reads them.
    """
    minutes = _by_minute(_ended(histories).unionByName(_added(added)))
    by_bucket = (
        minutes.select(F.explode(_periods()).alias("when"), *_WHAT, "bucket", *_SUMS, "latency_max_ms")
        .select("when.*", *_WHAT, "bucket", *_SUMS, "latency_max_ms")
        .repartition("grain", "period", *_WHAT)
        .groupBy("grain", "period", *_WHAT, "bucket")
        .agg(*_added_up())
    )
    counted = F.when(F.col("bucket").isNotNull(), F.struct("bucket", F.col("delivered").alias("count")))
    whole = by_bucket.groupBy("grain", "period", *_WHAT).agg(
        *_added_up(), F.sort_array(F.collect_list(counted)).alias("latency_histogram")
    )
    return _finished(whole)


def _ended(histories: DataFrame) -> DataFrame:
    """One row for each message that ended: its minute, and what it counts for."""
    ended = histories.where(F.col("outcome").isNotNull())
    delivered = (F.col("outcome") == "delivered") & F.col("latency_ms").isNotNull()
    return ended.select(
        F.date_trunc("minute", "ended_at").alias("minute"),
        *("source", "queue", "name", "lane", "gateway", "device"),
        F.when(delivered, bucket_column(F.col("latency_ms"))).alias("bucket"),
        *_whole(
            {
                "added": F.lit(0),
                "ended": F.lit(1),
                **{name: (F.col("outcome") == name).cast("int") for name in ("delivered", "dead", "removed")},
                **{name: F.col(name) for name in ("attempts", "deliveries", "retries", "replays")},
                "latency_ms": F.when(delivered, F.col("latency_ms")),
                **{name: F.col(name) for name in _TIMES},
            }
        ),
    )


def _added(added: DataFrame) -> DataFrame:
    """One row for each message that was added."""
    born = added.where(F.col("left").isNull())
    nothing = {name: F.lit(0) for name in _COUNTS if name != "added"}
    return born.select(
        F.date_trunc("minute", "at").alias("minute"),
        *("source", "queue", "name", "lane", "gateway", "device"),
        F.lit(None).cast("int").alias("bucket"),
        *_whole({"added": F.lit(1), **nothing, **{name: F.lit(None) for name in ("latency_ms", *_TIMES)}}),
    )


def _whole(values: dict[str, Column]) -> list[Column]:
    return [values[name].cast("bigint").alias(name) for name in _SUMS]


def _by_minute(rows: DataFrame) -> DataFrame:
    """Counted by minute, dimension and bucket."""
    own = {name: F.col(name) for name in DIMENSIONS}
    what = F.array(*(F.struct(F.lit(name).alias("dimension"), own[name].alias("key")) for name in DIMENSIONS))
    known = F.filter(what, lambda each: each["key"].isNotNull())
    counted = (
        rows.groupBy("minute", "source", *DIMENSIONS, "bucket")
        .agg(*(F.sum(name).alias(name) for name in _SUMS), F.max("latency_ms").alias("latency_max_ms"))
        .select(
            "minute", "source", "queue", "bucket", F.explode(known).alias("what"), *_SUMS, "latency_max_ms"
        )
    )
    return counted.select("minute", "source", "queue", "bucket", "what.*", *_SUMS, "latency_max_ms")


def _periods() -> Column:
    return F.array(
        *(
            F.struct(F.lit(grain).alias("grain"), F.date_trunc(grain, "minute").alias("period"))
            for grain in GRAINS
        )
    )


def _added_up() -> list[Column]:
    return [*(F.sum(name).alias(name) for name in _SUMS), F.max("latency_max_ms").alias("latency_max_ms")]


def _finished(whole: DataFrame) -> DataFrame:
    """Rates, means and percentiles from sums and histograms."""
    seconds = reduce(
        lambda found, each: found.when(F.col("grain") == each[0], each[1]),
        list(_SECONDS.items())[1:],
        F.when(F.col("grain") == "minute", _SECONDS["minute"]),
    )
    judged = F.col("delivered") + F.col("dead")
    timed = F.aggregate("latency_histogram", F.lit(0).cast("bigint"), lambda sum_, each: sum_ + each["count"])
    values = {
        "delivery_rate": F.when(judged > 0, F.col("delivered") / judged),
        "per_second": F.col("ended") / seconds,
        "latency_mean_ms": F.when(timed > 0, F.col("latency_ms") / timed),
        **{name: _quantile(timed, share) for name, share in _SHARES.items()},
    }
    return whole.select(*(values.get(name, F.col(name)).alias(name) for name in MEASURES.names))


def _quantile(timed: Column, share: float) -> Column:
    """`buckets.quantile` over the sorted histogram."""
    wanted = F.ceil(F.lit(share) * timed)
    begin = F.struct(F.lit(0).cast("bigint").alias("seen"), F.lit(None).cast("int").alias("bucket"))
    found = F.aggregate(
        "latency_histogram",
        begin,
        lambda so_far, each: F.when(so_far["seen"] >= wanted, so_far).otherwise(
            F.struct((so_far["seen"] + each["count"]).alias("seen"), each["bucket"].alias("bucket"))
        ),
    )
    # The middle of the last bucket may lie above all that is in it.
    return F.when(timed > 0, F.least(middle_column(found["bucket"]), "latency_max_ms"))
