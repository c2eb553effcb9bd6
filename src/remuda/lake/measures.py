"""Measures: what was added and what ended, by minute, hour and day; by queue, name, lane, gateway and device.

Everything is counted by the minute first, apart for each bucket of latencies. Hours are added up from
minutes and days from hours; what belongs together stays in one partition meanwhile. Histograms and
percentiles are made from the counts of the buckets at the end.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from remuda.lake.buckets import bucket_column, middle_column
from remuda.lake.schemas import DIMENSIONS, MEASURES, STAGES

_SECONDS = {"minute": 60, "hour": 3_600, "day": 86_400}
_WHAT = ("dimension", "source", "queue", "key")
_OF_MESSAGES = ("source", *DIMENSIONS)  # what says of a message to what it counts
_COUNTS = ("added", "ended", "delivered", "dead", "removed")
_ADDED_UP = ("attempts", "deliveries", "retries", "replays")
_TIMES = ("latency_ms", *(f"{stage.lower()}_ms" for stage in STAGES))
_SHARES = {"latency_p50_ms": 0.5, "latency_p90_ms": 0.9, "latency_p99_ms": 0.99}
_COUNT_BITS = 40  # a bucket and its count are packed into one number: Spark sorts those quickest


def measures_of(histories: DataFrame, added: DataFrame) -> DataFrame:
    """Rows of `MEASURES` for every period and everything that is measured.

    Give it the histories that ended in some days (others do not count), and the records of adding (`left`
    NULL) of the same days. Latencies are those of what was delivered, percentiles as `buckets.quantile`
    reads them, and never above the longest. Where nothing ended, numbers are 0, the histogram is empty,
    rate and latencies are NULL.
    """
    counted = _counted(_ended(histories).unionByName(_added(added)), "minute")
    minutes = counted.repartition(*_WHAT)
    hours = _counted(minutes, "hour")
    days = _counted(hours, "day")
    grains = {"minute": minutes, "hour": hours, "day": days}
    named = (frame.withColumn("grain", F.lit(grain)) for grain, frame in grains.items())
    return _told(reduce(DataFrame.unionByName, named))


# -- what counts


def _ended(histories: DataFrame) -> DataFrame:
    """For each dimension, a row for each message that ended."""
    outcome = F.col("outcome")
    latency_ms = F.when(outcome == "delivered", F.col("latency_ms"))
    ended = histories.where(outcome.isNotNull()).select(
        *_OF_MESSAGES,
        F.unix_seconds("ended_at").alias("begun"),
        bucket_column(latency_ms).alias("bucket"),
        _number(0).alias("added"),
        _number(1).alias("ended"),
        *((outcome == each).cast("bigint").alias(each) for each in ("delivered", "dead", "removed")),
        *(F.col(name).cast("bigint").alias(name) for name in _ADDED_UP),
        latency_ms.alias("latency_ms"),
        *_TIMES[1:],
        latency_ms.alias("latency_max_ms"),
    )
    return _by_dimension(ended)


def _added(added: DataFrame) -> DataFrame:
    """For each dimension, a row for each message that was added."""
    born = added.where(F.col("left").isNull()).select(
        *_OF_MESSAGES,
        F.unix_seconds("at").alias("begun"),
        F.lit(None).cast("int").alias("bucket"),
        _number(1).alias("added"),
        *(_number(0).alias(name) for name in (*_COUNTS[1:], *_ADDED_UP)),
        *(F.lit(None).cast("bigint").alias(name) for name in (*_TIMES, "latency_max_ms")),
    )
    return _by_dimension(born)


def _by_dimension(messages: DataFrame) -> DataFrame:
    """Each message once for each dimension that it has. In one reading: ten of them are long to plan."""
    pairs = [part for dimension in DIMENSIONS for part in (F.lit(dimension), F.col(dimension))]
    dimensions = F.stack(F.lit(len(DIMENSIONS)), *pairs).alias("dimension", "key")
    numbers = [name for name in messages.columns if name not in _OF_MESSAGES]
    return messages.select("source", "queue", dimensions, *numbers).where(F.col("key").isNotNull())


def _number(value: int) -> Column:
    return F.lit(value).cast("bigint")


# -- counting


def _counted(rows: DataFrame, grain: str) -> DataFrame:
    """Added up by a longer period, still apart for each bucket."""
    # In whole seconds: `date_trunc` goes by the zone of the session, and takes its time.
    begun = F.col("begun") - F.pmod("begun", F.lit(_SECONDS[grain]))
    rows = rows.withColumn("begun", begun)
    return rows.groupBy(*_WHAT, "begun", "bucket").agg(*_sums())


def _sums() -> list[Column]:
    return [
        *(F.sum(name).alias(name) for name in (*_COUNTS, *_ADDED_UP, *_TIMES)),
        F.max("latency_max_ms").alias("latency_max_ms"),
    ]


# -- rows of the table


def _told(counted: DataFrame) -> DataFrame:
    """The buckets of each period put together, as rows of the table. In one plan: three are long to make."""
    in_bucket = F.shiftleft(F.col("bucket").cast("bigint"), _COUNT_BITS) + F.col("delivered")
    timed = F.sum(F.when(F.col("bucket").isNotNull(), F.col("delivered")))
    whole = counted.groupBy("grain", *_WHAT, "begun").agg(
        *_sums(), timed.alias("timed"), F.sort_array(F.collect_list(in_bucket)).alias("packed")
    )
    judged = F.col("delivered") + F.col("dead")
    seconds = F.create_map(*(F.lit(part) for pair in _SECONDS.items() for part in pair))[F.col("grain")]
    values = {
        "period": F.timestamp_seconds("begun"),
        "delivery_rate": F.when(judged > 0, F.col("delivered") / judged),
        "per_second": F.col("ended") / seconds,
        "latency_mean_ms": F.col("latency_ms") / F.col("timed"),
        "latency_histogram": F.transform(
            "packed", lambda each: F.struct(_bucket(each).alias("bucket"), _count(each).alias("count"))
        ),
    }
    quantiles = whole.withColumn("quantiles", _quantiles())
    # The middle of the last bucket may be later than all that is in it.
    longest = F.col("latency_max_ms")
    values |= {name: F.least(middle_column(F.col(f"quantiles.{name}")), longest) for name in _SHARES}
    return quantiles.select(*(values.get(name, F.col(name)).alias(name) for name in MEASURES.names))


def _bucket(packed: Column) -> Column:
    return F.shiftright(packed, _COUNT_BITS).cast("int")


def _count(packed: Column) -> Column:
    return packed.bitwiseAND(F.lit((1 << _COUNT_BITS) - 1))


def _quantiles() -> Column:
    """The buckets of `_SHARES`, as a struct: the first at which so many have been seen."""
    nothing = F.lit(None).cast("int")
    wanted = {
        name: F.greatest(F.ceil(F.lit(share) * F.col("timed")), F.lit(1)) for name, share in _SHARES.items()
    }

    def further(so_far: Column, each: Column) -> Column:
        seen = so_far["seen"] + _count(each)
        found = (
            F.coalesce(so_far[name], F.when(seen >= enough, _bucket(each))).alias(name)
            for name, enough in wanted.items()
        )
        return F.struct(seen.alias("seen"), *found)

    begin = F.struct(_number(0).alias("seen"), *(nothing.alias(name) for name in _SHARES))
    searched = F.aggregate("packed", begin, further)
    # Most devices have one latency in a minute, or a few that are alike: nothing to search.
    only = F.struct(
        F.col("timed").alias("seen"), *(_bucket(F.get("packed", F.lit(0))).alias(name) for name in _SHARES)
    )
    return F.when(F.size("packed") == 1, only).otherwise(searched)
