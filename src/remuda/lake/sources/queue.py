"""`remuda_queue`: a queue as a stream source for those who process messages on Spark, and as a sink."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from remuda.codec import check_name
from remuda.errors import ConfigurationError
from remuda.lake.schemas import Column
from remuda.lake.sources.blocking import Pace, StoreThread
from remuda.lake.sources.holding import Holding, Message, Terms
from remuda.lake.sources.options import Options
from remuda.lake.sources.shapes import QUEUE_SHAPE, Shape
from remuda.lake.sources.sink import Plan, QueueStreamWriter, QueueWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_KNOWN = (
    "url",
    "queue",
    "columns",
    "payload",
    "lease",
    "maxRowsPerTrigger",
    "partitions",
    "max_deliveries",
    "max_payload_bytes",
    "archive_completed",
)
ROWS_PER_TRIGGER = 5_000
LEASE = timedelta(minutes=5)
_ROWS_PER_TASK = 1_000
_MOST_BYTES = 16 * 1024 * 1024
_NOTHING = {"batch": 0, "leases": "", "messages": 0}

Offset = dict[str, Any]


class QueueSource(DataSource):
    """Reads as a stream; writes batches and streams."""

    @classmethod
    def name(cls) -> str:
        return "remuda_queue"

    def schema(self) -> str:
        return Asked(self.options).shape.ddl

    def reader(self, schema: StructType) -> DataSourceReader:
        raise ConfigurationError("a queue is read as a stream (readStream); remuda_jobs shows what is in it")

    def streamReader(self, schema: StructType) -> QueueStream:  # noqa: N802 - Spark's name, as those below
        return QueueStream(Asked(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> QueueWriter:
        return QueueWriter(Plan(self.options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> QueueStreamWriter:  # noqa: N802
        return QueueStreamWriter(Plan(self.options, schema, overwrite=overwrite))


class Asked:
    """What the options of the source ask for."""

    def __init__(self, given: Mapping[str, str]) -> None:
        options = Options(given, of="remuda_queue", known=_KNOWN)
        self.url = options.url
        self.rows_per_trigger = options.count("maxRowsPerTrigger", ROWS_PER_TRIGGER)
        self.partitions = options.number("partitions", least=1)
        self.columns = options.names("columns")
        self.terms = Terms(
            queue=check_name(options.required("queue", "orders"), "a queue's name", ConfigurationError),
            lease=options.duration("lease", LEASE),
            max_deliveries=options.number("max_deliveries", least=1),
            max_payload_bytes=options.count("max_payload_bytes", _MOST_BYTES),
            raw=options.choice("payload", ("json", "raw"), "json") == "raw",
            archive_completed=options.flag("archive_completed", True),
        )
        if self.terms.lease < timedelta(seconds=1):
            raise ConfigurationError(
                f"a lease of {self.terms.lease} would end before a batch does: give 1s or more"
            )

    @property
    def shape(self) -> Shape:
        shape = QUEUE_SHAPE
        if self.terms.raw:
            columns = (
                Column(each.name, "binary", each.meaning) if each.name == "payload" else each
                for each in QUEUE_SHAPE.columns
            )
            shape = Shape(tuple(columns))
        return shape.of(self.columns)


class QueueStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are `{batch, leases, messages}`: the micro-batch's number here, and what it is held under.

    Spark asks for the next offset from that of a batch it has committed: that is when the batch is acked.
    (`commit` comes a batch later, and never for the last; `stop` is not sure to come: the process is ended.)
    """

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._store = StoreThread(asked.url)
        self._holding: Holding | None = None
        self._recovers = False
        self._acked = 0
        self._offered: tuple[int, Offset] | None = None
        self._ends = False
        self._left: int | None = None  # messages that a query that ends may still fetch
        self._pace = Pace()

    def __getstate__(self) -> dict[str, Any]:
        """Tasks only need to know what was asked for."""
        return {**self.__dict__, "_holding": None}

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name, as those below
        return _NOTHING

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._asked.rows_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._ends = True  # with what is due when a batch that is run again, if any, is done

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        if self._offered is not None and self._offered[0] == start["batch"]:
            return self._offered[1]  # fetched already, and not processed yet
        holding = self._opened()
        if start["batch"] > self._acked:
            self._store.run(lambda store: holding.ack(store, start["batch"], _leases(start)))
            self._acked = start["batch"]
        batch = start["batch"] + 1
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._asked.rows_per_trigger
        messages = self._fetch(holding, batch, rows)
        if not messages:
            return start
        leases = {each.delivery.lease for each in messages}
        offset = {
            "batch": batch,
            "leases": " ".join(f"{each:x}" for each in sorted(leases)),
            "messages": len(messages),
        }
        self._offered = (start["batch"], offset)
        return offset

    def _fetch(self, holding: Holding, batch: int, rows: int) -> list[Message]:
        if not self._recovers:
            self._recovers = True
            self._store.run(holding.recover)
            self._store.keep_running(holding.keep_recovering)
        if self._ends and self._left is None:
            self._left = self._store.run(holding.count_due)
        rows = rows if self._left is None else min(rows, self._left)
        if not rows:
            return []
        self._pace.wait()
        messages = self._store.run(lambda store: holding.fetch(store, batch, rows))
        self._pace.note(empty=not messages)
        if self._left is not None:
            self._left -= len(messages)
        return messages

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        if start == end:
            return []
        holding = self._opened()
        messages = self._store.run(lambda store: holding.messages_of(store, end["batch"], _leases(end)))
        pieces = self._asked.partitions or -(-len(messages) // _ROWS_PER_TASK)
        size = max(1, -(-len(messages) // max(1, pieces)))
        return [
            InputPartition(self._packed(messages[place : place + size]))
            for place in range(0, len(messages), size)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        if partition.value is not None:
            yield from pa.ipc.open_stream(partition.value)

    def stop(self) -> None:
        """Nothing is put back: what is held may be committed already, and is acked by the next start."""
        self._store.close()

    def _packed(self, messages: Sequence[Message]) -> bytes:
        """Rows as bytes: they go to the tasks with the plan, for only this process holds them."""
        import pyarrow as pa

        schema = self._asked.shape.arrow_schema()
        arrays = [
            pa.repeat(pa.scalar(self._asked.terms.queue, field.type), len(messages))
            if field.name == "queue"
            else pa.array([each.column(field.name) for each in messages], field.type)
            for field in schema
        ]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as stream:
            stream.write_batch(pa.record_batch(arrays, schema=schema))
        return bytes(sink.getvalue())

    def _opened(self) -> Holding:
        if self._holding is None:
            self._holding = Holding(self._asked.terms)
            self._store.keep_running(self._holding.keep_leases)
        return self._holding


def _leases(offset: Offset) -> list[int]:
    return [int(each, 16) for each in offset["leases"].split()]
