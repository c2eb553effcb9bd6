"""Realistic transitions, made in Spark itself: for trying the lake out, for its tests and its benchmark.

Each message is drawn a path through the lifecycle; nothing depends on anything but the seed, so that faults
can be planted and their true number is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Required, TypedDict, Unpack

import msgspec
from pyspark.sql import DataFrame, SparkSession

from remuda.lake.generating.faulty_paths import NO_FAULTS, Faults
from remuda.lake.generating.messages import messages
from remuda.lake.generating.recipe import FLEETS, QUEUES, Recipe
from remuda.lake.generating.records import numbered, records
from remuda.lake.generating.truths import affected, outcomes
from remuda.lake.schemas import TRANSITIONS

__all__ = ["FLEETS", "NO_FAULTS", "QUEUES", "Faults", "Truth", "Wish", "generate", "truth"]


class Wish(TypedDict, total=False):
    """What to make.

    transitions  about how many records
    start, span  the time they are made in; at the end of it some messages still live
    seed         another one gives other records
    queues       the names of queues of jobs, the busiest first
    fleets       the names of fleets of devices, the busiest first
    faults       how many faults to plant
    partitions   in how many parts Spark works on them; the records are the same
    source       the name of the store that they seem to come from
    batch        the ingest that seems to bring them
    """

    transitions: Required[int]
    start: Required[datetime]
    span: Required[timedelta]
    seed: int
    queues: Sequence[str]
    fleets: Sequence[str]
    faults: Faults
    partitions: int | None
    source: str
    batch: int


class Truth(msgspec.Struct, frozen=True):
    """What is true of generated transitions, by the paths that were drawn.

    counts    how many anomalies of each kind they show
    affected  the records that show them: source, queue, kind, message, seq, missing
    queues    for each: queue, records, and messages added, delivered, dead, removed and (at the end) live
    """

    counts: Mapping[str, int]
    affected: DataFrame
    queues: DataFrame


def generate(spark: SparkSession, **wish: Unpack[Wish]) -> DataFrame:
    """Transitions of jobs and commands; the same wish gives the same rows, however they are partitioned.

    In each trail their numbers go by time and have no gaps, but those that are among the faults.

    >>> week = {"start": datetime(2026, 1, 5, tzinfo=UTC), "span": timedelta(days=7)}
    >>> generate(spark, transitions=1_000_000, seed=7, faults=Faults(gap=3, stopped=2), **week)
    """
    recipe = Recipe(**wish)
    made = records(spark, recipe, numbered(recipe, messages(spark, recipe)))
    return made.where(~made["lost"]).select(*TRANSITIONS.names)


def truth(spark: SparkSession, **wish: Unpack[Wish]) -> Truth:
    """The truth about what `generate` makes of the same wish."""
    recipe = Recipe(**wish)
    drawn = messages(spark, recipe)
    return Truth(
        counts=recipe.faults.counts,
        affected=affected(recipe, records(spark, recipe, numbered(recipe, drawn))),
        queues=outcomes(spark, recipe, drawn),
    )
