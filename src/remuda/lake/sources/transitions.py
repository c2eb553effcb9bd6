"""`remuda_transitions`: the trails of a store, as a batch or as a stream. It never trims them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from remuda.errors import ConfigurationError
from remuda.lake.sources.blocking import Pace, StoreThread
from remuda.lake.sources.options import Options
from remuda.lake.sources.shapes import TRANSITION_SHAPE, Shape
from remuda.lake.trails import TrailRange, cut, entries, unread, with_store
from remuda.stores.contract import Store, TrailSpan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_KNOWN = (
    "url",
    "source",
    "trails",
    "columns",
    "partitions",
    "after",
    "up_to",
    "since",
    "maxRowsPerTrigger",
    "startingOffsets",
)
_ROWS_PER_TASK = 250_000
_MOST_TASKS = 64
_NO_LIMIT = 2**62
_NAMES_EVERY_S = 5.0
# The offset of a stream that begins at the end, before it is known where that is. No trail is called "".
_LATEST = {"": "latest"}

Range = tuple[str, int, int]  # trail, after, up_to: what a task is given


class TransitionsSource(DataSource):
    """Every recorded state change, in the columns of the lake's table of transitions but for `batch`."""

    @classmethod
    def name(cls) -> str:
        return "remuda_transitions"

    def schema(self) -> str:
        return Asked(self.options).shape.ddl

    def reader(self, schema: StructType) -> TransitionsReader:
        return TransitionsReader(Asked(self.options))

    def streamReader(self, schema: StructType) -> TransitionsStream:  # noqa: N802 - Spark's name
        asked = Asked(self.options)
        if asked.since is not None or asked.after is not None or asked.up_to is not None:
            raise ConfigurationError("since, after and up_to are for batches; a stream has startingOffsets")
        return TransitionsStream(asked)


class Asked:
    """What the options ask for."""

    def __init__(self, given: Mapping[str, str]) -> None:
        options = Options(given, of="remuda_transitions", known=_KNOWN)
        self.url = options.url
        self.source = options.text("source") or "main"
        self.trails = options.names("trails")
        self.columns = options.names("columns")
        self.partitions = options.number("partitions", least=1)
        self.after = options.number("after")
        self.up_to = options.number("up_to")
        self.since = options.moment("since")
        self.rows_per_trigger = options.number("maxRowsPerTrigger", least=1)
        self.starting = _starting(options.text("startingOffsets") or "earliest")
        if (self.after is not None or self.up_to is not None) and len(self.trails or ()) != 1:
            raise ConfigurationError(
                "after and up_to are numbers of one trail: name it with the option trails"
            )

    @property
    def shape(self) -> Shape:
        return TRANSITION_SHAPE.of(self.columns)

    def tasks(self, ranges: Sequence[TrailRange]) -> list[InputPartition]:
        """The ranges, cut into partitions of about the same size."""
        total = sum(map(len, ranges))
        pieces = self.partitions or min(_MOST_TASKS, -(-total // _ROWS_PER_TASK))
        return [
            InputPartition([(each.trail, each.after, each.up_to) for each in task])
            for task in cut(ranges, pieces=pieces or 1)
        ]

    def rows(self, ranges: Sequence[Range] | None) -> Iterator[pa.RecordBatch]:
        """The transitions of a partition, where the task is."""
        from remuda.lake.decoding import decoded

        for trail, after, up_to in ranges or ():
            packed = entries(self.url, TrailRange(trail=trail, after=after, up_to=up_to))
            for rows in decoded(packed, source=self.source, trail=trail, after=after, up_to=up_to, batch=0):
                yield _since(rows, self.since).select(self.shape.names)


def _since(rows: pa.RecordBatch, since: datetime | None) -> pa.RecordBatch:
    if since is None:
        return rows
    import pyarrow as pa
    import pyarrow.compute as pc

    return rows.filter(pc.greater_equal(rows.column("at"), pa.scalar(since, rows.schema.field("at").type)))


def _starting(text: str) -> dict[str, Any]:
    """The first offset: of nothing, of what there will be, or the numbers that were given."""
    if text.lower() in ("earliest", "latest"):
        return {} if text.lower() == "earliest" else _LATEST
    try:
        offsets = msgspec.json.decode(text, type=dict[str, int])
    except msgspec.DecodeError:
        raise ConfigurationError(
            f'startingOffsets is earliest, latest, or JSON such as {{"emails": 1200}}, not {text!r}'
        ) from None
    return dict(offsets)


async def _spans(store: Store, trails: Sequence[str] | None) -> dict[str, TrailSpan]:
    names = await store.trails() if trails is None else trails
    return {name: await store.trail_span(name) for name in names}


class TransitionsReader(DataSourceReader):
    """What is there when the query is planned."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    def partitions(self) -> list[InputPartition]:
        asked = self._asked

        async def look(store: Store) -> tuple[dict[str, TrailSpan], dict[str, int]]:
            spans = await _spans(store, asked.trails)
            if asked.since is None:
                return spans, dict.fromkeys(spans, asked.after or 0)
            moments = {trail: await store.trail_offset(trail, since=asked.since) for trail in spans}
            return spans, {trail: max(number, asked.after or 0) for trail, number in moments.items()}

        spans, read = with_store(asked.url, look)
        if asked.up_to is not None:
            spans = {trail: span._replace(last=min(span.last, asked.up_to)) for trail, span in spans.items()}
        return asked.tasks(unread(spans, read, limit=_NO_LIMIT))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._asked.rows(partition.value)


class TransitionsStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are `{trail: number of the last transition that was read}`; nought for a trail not in it."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._store = StoreThread(asked.url)
        self._pace = Pace()
        self._target: dict[str, TrailSpan] | None = None
        self._newest: dict[str, int] = {}
        self._names: list[str] | None = None
        self._names_until = 0.0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as those below
        return self._asked.starting

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows = self._asked.rows_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._look()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        self._pace.wait()
        spans = self._look() if self._target is None else self._target
        self._newest = {trail: span.last for trail, span in spans.items()}
        if start == _LATEST:
            # An empty batch, which notes in Spark's log where the stream began: a start after a crash must
            # not take a later end for it.
            return self._newest
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else _NO_LIMIT
        ranges = unread(spans, start, limit=rows)
        self._pace.note(empty=not ranges)
        return {**start, **{each.trail: each.up_to for each in ranges}}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._newest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if start == _LATEST:
            return []
        # What was trimmed before it could be read would only make empty tasks.
        spans = self._store.run(lambda store: _spans(store, list(end)))
        spans = {trail: TrailSpan(span.first, min(span.last, end[trail])) for trail, span in spans.items()}
        return self._asked.tasks(unread(spans, start, limit=_NO_LIMIT))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._asked.rows(partition.value)

    def stop(self) -> None:
        self._store.close()

    def _look(self) -> dict[str, TrailSpan]:
        """Where the trails are now. Which there are is asked seldom: on Redis it is a walk over all keys."""
        trails = self._asked.trails or self._names
        if trails is None or time.monotonic() > self._names_until:
            trails = self._asked.trails  # None: all of them
            self._names_until = time.monotonic() + _NAMES_EVERY_S
        spans = self._store.run(lambda store: _spans(store, trails))
        self._names = list(spans)
        return spans
