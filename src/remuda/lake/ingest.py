"""Ingest: the trail of a store becomes the table of transitions, each of them exactly once.

A round reads what is new (up to a limit) in parallel tasks, which write the files themselves: the rows
never pass through the JVM. One commit then makes the files count and notes how far each trail was read, so
that a program that is killed at any moment, or two that run at once, neither lose nor repeat one.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from remuda.errors import ConfigurationError
from remuda.lake.delta import DataFile, LakeConflictError
from remuda.lake.paths import Root
from remuda.lake.place import Lake
from remuda.lake.trails import TrailRange, cut, entries, program_of, spans, unread, with_store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from remuda.stores.contract import Store, TrailSpan

ROWS_AT_ONCE = 4_000_000  # transitions to a round
BATCHES = "ingest"  # the program that counts the rounds
_LEAST_PER_TASK = 20_000
_FILES = "path string, size bigint, day string, records bigint, low array<bigint>, high array<bigint>"

Step = Callable[[str], None]


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """What one round of an ingest did."""

    batch: int
    transitions: int
    trails: dict[str, int]  # how far each was read
    files: int
    seconds: float
    behind: int  # transitions that were there already and wait for the next round


def no_step(_: str) -> None:
    """Nobody wants to know how far a round has come."""


def ingest_round(
    lake: Lake,
    spark: SparkSession,
    url: str,
    *,
    source: str,
    trails: Sequence[str] | None = None,
    limit: int = ROWS_AT_ONCE,
    tasks: int | None = None,
    pass_over: bool = False,
    on_step: Step = no_step,
) -> Round | None:
    """Ingest what is new, up to `limit` transitions; None when nothing is.

    An entry that cannot be read is an error; with `pass_over` it is left out, and shows as a gap.
    `LakeConflictError` when another program ingested the same meanwhile: nothing was written, try again.
    """
    began = time.monotonic()
    table = lake.transitions
    on_step("looking")
    ends = spans(url, trails)
    programs = {trail: program_of(source, trail) for trail in ends}
    looked_at = table.version()
    noted = table.all_progress([BATCHES, *programs.values()])
    read = {trail: noted[program] for trail, program in programs.items()}
    # Looked at again, for another ingest may have gone further in the meantime.
    if _shrunk(ends, read) and (shrunk := _shrunk(spans(url, list(ends)), read)):
        raise _another_store(source, shrunk[0], read)
    ranges = unread(ends, read, limit=limit)
    if not ranges:
        return None
    total = sum(map(len, ranges))
    batch = noted[BATCHES] + 1
    pieces = tasks or max(1, min(_parallelism(spark), total // _LEAST_PER_TASK))
    on_step("reading")
    carrier = _Carrier(
        table.root.uri, url, cut(ranges, pieces=pieces), source=source, batch=batch, pass_over=pass_over
    )
    files = carrier.run(spark)
    found = sum(each.records for each in files)
    on_step("committing")
    reached = {each.trail: each.up_to for each in ranges}
    table.commit(
        files,
        progress={BATCHES: batch, **{programs[trail]: up_to for trail, up_to in reached.items()}},
        since=looked_at,
        what=f"ingest {batch} from {source}: {found} transitions",
    )
    on_step("committed")
    return Round(
        batch=batch,
        transitions=found,
        trails=reached,
        files=len(files),
        seconds=time.monotonic() - began,
        behind=_waiting(ends, read) - total,
    )


def ingest(
    lake: Lake, spark: SparkSession, url: str, *, source: str, on_round: Callable[[Round], None], **how: Any
) -> int:
    """Rounds until everything is there that was there at the beginning; the number of transitions."""
    carried = 0
    while True:
        try:
            done = ingest_round(lake, spark, url, source=source, **how)
        except LakeConflictError:
            continue  # the other one's commit stands: what is left is less
        if done is None:
            return carried
        carried += done.transitions
        on_round(done)
        if not done.behind:
            return carried


def trim(lake: Lake, url: str, *, source: str, trails: Sequence[str] | None = None) -> dict[str, int]:
    """Forget in the store what the lake has; how many transitions of each trail. Never what it has not."""

    async def forget(store: Store) -> dict[str, int]:
        names = await store.trails() if trails is None else trails
        noted = progress_of(lake, source, dict.fromkeys(names))
        ends = {name: await store.trail_span(name) for name in names}
        if shrunk := _shrunk(ends, noted):
            raise _another_store(source, shrunk[0], noted)
        return {name: await store.trim_transitions(name, up_to=noted[name]) for name in names if noted[name]}

    return with_store(url, forget)


def _shrunk(ends: Mapping[str, TrailSpan], read: Mapping[str, int]) -> list[str]:
    """Trails that end before what was read of them: numbers are never given back, so they are other ones."""
    return [trail for trail, span in ends.items() if span.last < read[trail]]


def _another_store(source: str, trail: str, read: Mapping[str, int]) -> ConfigurationError:
    return ConfigurationError(
        f"{trail!r} has fewer records in the store than the lake has from {source!r} ({read[trail]:,}): "
        "it is not the store that it was. Ingest it under another name: --source"
    )


def _waiting(ends: Mapping[str, TrailSpan], read: Mapping[str, int]) -> int:
    """How many transitions are there that were not read."""
    return sum(max(0, span.last - max(read[trail], span.first - 1)) for trail, span in ends.items())


def _parallelism(spark: SparkSession) -> int:
    """How many tasks run at once: what a plain range is cut into, for Spark Connect cannot be asked."""
    from pyspark.sql import functions as F

    row = spark.range(100_000).select(F.spark_partition_id().alias("p")).agg(F.max("p")).first()
    return 1 if row is None or row[0] is None else int(row[0]) + 1


class _Carrier:
    """Tasks that read ranges of trails and write them to files. It is sent to wherever the tasks are."""

    def __init__(
        self,
        root: str,
        url: str,
        tasks: Sequence[Sequence[TrailRange]],
        *,
        source: str,
        batch: int,
        pass_over: bool,
    ) -> None:
        self._root, self._folder, self._url = root, uuid.uuid4().hex, url
        self._tasks = [[(each.trail, each.after, each.up_to) for each in task] for task in tasks]
        self._source, self._batch, self._pass_over = source, batch, pass_over

    def run(self, spark: SparkSession) -> list[DataFile]:
        """The files that the tasks wrote; they do not count yet."""
        count = len(self._tasks)
        rows = spark.range(0, count, 1, count).mapInArrow(self, _FILES).collect()
        return [
            DataFile(
                path=row["path"],
                size=row["size"],
                records=row["records"],
                partition=row["day"],
                low=dict(zip(("seq", "batch"), row["low"], strict=True)),
                high=dict(zip(("seq", "batch"), row["high"], strict=True)),
            )
            for row in rows
        ]

    def __call__(self, ids: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from remuda.lake.decoding import decoded
        from remuda.lake.files import DayFiles, described

        for chunk in ids:
            for number in chunk.column(0).to_pylist():
                with DayFiles(Root(self._root), f"{self._folder}/{number}") as files:
                    for trail, after, up_to in self._tasks[number]:
                        wanted = TrailRange(trail=trail, after=after, up_to=up_to)
                        packed = entries(self._url, wanted)
                        for rows in decoded(
                            packed,
                            source=self._source,
                            trail=trail,
                            after=after,
                            up_to=up_to,
                            batch=self._batch,
                            pass_over=self._pass_over,
                        ):
                            files.write(rows)
                yield described(files.written)


def progress_of(lake: Lake, source: str, trails: Mapping[str, Any]) -> dict[str, int]:
    """How far each trail was ingested."""
    programs = {trail: program_of(source, trail) for trail in trails}
    noted = lake.transitions.all_progress(programs.values())
    return {trail: noted[program] for trail, program in programs.items()}
