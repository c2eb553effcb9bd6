"""Spark's ways into a store and back: data sources that yield Arrow, and a sink.

`register(spark)` makes them known by name: `remuda_transitions`, `remuda_dead_letters`, `remuda_archive`,
`remuda_jobs` and `remuda_queue`. From outside only what is named here may be touched.
docs/lake-sources.md says what each gives and takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from remuda.lake.sources.ids import with_ids

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register", "with_ids"]


def register(spark: SparkSession) -> None:
    """Make every source and the sink known to a session; it does no harm to do so again.

    >>> register(spark)
    >>> spark.read.format("remuda_transitions").option("url", "sqlite:///app.db").load()
    """
    from remuda.lake.sources.messages import ArchiveSource, DeadLettersSource, JobsSource
    from remuda.lake.sources.queue import QueueSource
    from remuda.lake.sources.transitions import TransitionsSource

    for source in (TransitionsSource, DeadLettersSource, ArchiveSource, JobsSource, QueueSource):
        spark.dataSource.register(source)
