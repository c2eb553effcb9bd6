"""Build: what was ingested since the last time becomes histories, measures and anomalies.

Each table notes the batch up to which it is built in the commit that changes it, so that a build that was
killed goes on where it was, table by table, and one that is run again changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from remuda.lake.building.anomalies import build_anomalies
from remuda.lake.building.histories import build_histories
from remuda.lake.building.measures import build_measures
from remuda.lake.ingest import BATCHES, no_step
from remuda.lake.place import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Step = Callable[[str], None]


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """What a build did: to histories, measures (the days that were made anew) and anomalies (found newly)."""

    batch: int
    histories: int
    days: list[str]
    anomalies: int
    seconds: float


def build(lake: Lake, spark: SparkSession, *, now: datetime, on_step: Step = no_step) -> Built:
    """Bring every table up to the last batch that was ingested. `now` decides what has stopped moving."""
    began = time.monotonic()
    target = lake.transitions.progress(BATCHES)
    written = build_histories(lake, spark, target, on_step)
    days = build_measures(lake, spark, target, on_step)
    found = build_anomalies(lake, spark, target, now, on_step)
    return Built(
        batch=target,
        histories=written,
        days=sorted(days),
        anomalies=found,
        seconds=time.monotonic() - began,
    )
