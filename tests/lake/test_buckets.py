"""Histograms of durations: Python and Spark agree, and a quantile is near the truth."""

from __future__ import annotations

import random
from collections import Counter
from math import ceil

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from remuda.lake.buckets import bucket_column, bucket_of, middle_column, middle_of, quantile


def interesting() -> list[int]:
    """Everything small, the neighbours of every power of two up to 278 years, and some between."""
    rng = random.Random(7)
    powers = [2**power + more for power in range(5, 43) for more in (-1, 0, 1)]
    return [*range(-3, 2_100), *powers, *(rng.randrange(2**43) >> rng.randrange(40) for _ in range(2_000))]


def test_buckets_follow_each_other_and_a_duration_is_near_the_middle_of_its_own() -> None:
    durations = sorted(each for each in interesting() if each >= 0)
    buckets = [bucket_of(each) for each in durations]
    assert buckets == sorted(buckets)
    for duration, bucket in zip(durations, buckets, strict=True):
        assert bucket_of(middle_of(bucket)) == bucket
        assert abs(middle_of(bucket) - duration) <= duration / 64
    assert [bucket_of(each) for each in (-5, 0, 1, 63, 64, 65, 66)] == [0, 0, 1, 63, 64, 64, 65]


def test_spark_puts_every_duration_into_the_same_bucket(spark: SparkSession) -> None:
    durations = interesting()
    frame = spark.createDataFrame([(each,) for each in (*durations, None)], "duration bigint")
    bucket = bucket_column(F.col("duration"))
    rows = frame.select("duration", bucket.alias("bucket"), middle_column(bucket).alias("middle")).collect()
    assert {row["duration"]: (row["bucket"], row["middle"]) for row in rows} == {
        None: (None, None),
        **{each: (bucket_of(each), middle_of(bucket_of(each))) for each in durations},
    }


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 0.99, 1.0])
def test_a_quantile_is_off_by_a_fiftieth_at_most(share: float) -> None:
    rng = random.Random(share)
    durations = sorted(int(rng.lognormvariate(7, 2)) for _ in range(999))
    told = quantile(Counter(bucket_of(each) for each in durations), share)
    truth = durations[max(0, ceil(share * len(durations)) - 1)]
    assert told == pytest.approx(truth, rel=0.016, abs=0)


def test_histograms_of_two_periods_add_up() -> None:
    one, other = Counter({3: 2, 70: 1}), Counter({70: 4, 90: 1})
    assert quantile(one + other, 0.5) == middle_of(70)
    assert quantile({}, 0.5) is None
