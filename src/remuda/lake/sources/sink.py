"""`remuda_queue` as a sink: the rows of a DataFrame become jobs or commands, in bulk, each of them once.

What makes it once is the id of each row: its own, or one made from what it says and from the write it
belongs to (`ids`). A bulk is atomic (of commands 500 at a time); a whole DataFrame is not, and running it
again completes it.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from remuda.codec import DEFAULT_MAX_PAYLOAD_BYTES, PayloadFormat
from remuda.devices.fleet import Fleet
from remuda.devices.sending import NewCommand, make_command
from remuda.errors import ConfigurationError, InvalidJobError
from remuda.lake.sources.ids import RowIds, repeated
from remuda.lake.sources.options import Options
from remuda.lake.sources.rows import (
    COMMAND_COLUMNS,
    JOB_COLUMNS,
    Row,
    check_columns,
    command_of,
    job_of,
    numbered,
)
from remuda.queue import Queue
from remuda.stores.contract import EncodedJob

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger("remuda.lake")

BULK = 5_000
UNIQUE_FOR = timedelta(days=7)
_OF_BOTH = ("url", "batch", "bulk", "payload")
_OF_JOBS = ("queue", "name", "payload_format", "max_payload_bytes", "max_live", "unique_for")
_OF_COMMANDS = ("fleet", "type", "protocol", "grid", "lanes_by_gateway")
# Spark's names for what a micro-batch is part of, among the local properties of its tasks.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


class Written(WriterCommitMessage):
    """What a task wrote: rows, those of them that were new, and the ids that were made, in short."""

    def __init__(self, rows: int, added: int, marks: bytes) -> None:
        self.rows, self.added, self.marks = rows, added, marks


class Plan:
    """What the options and the columns ask for, checked before anything is written."""

    def __init__(self, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        options = Options(given, of="remuda_queue", known=(*_OF_BOTH, *_OF_JOBS, *_OF_COMMANDS))
        if overwrite:
            raise ConfigurationError("a queue is added to, never overwritten: use mode('append')")
        self.url = options.url
        self.queue, self.fleet = options.text("queue"), options.text("fleet")
        if (self.queue is None) == (self.fleet is None):
            raise ConfigurationError(
                "remuda_queue needs the option queue for jobs, or fleet for commands: one of the two"
            )
        self.bulk = options.count("bulk", BULK)
        self.batch = options.text("batch")
        self.payload_is_json = options.choice("payload", ("value", "json"), "value") == "json"
        self.name = options.text("name")
        self.payload_format = options.choice("payload_format", list(PayloadFormat), PayloadFormat.MSGPACK)
        self.max_payload_bytes = options.count("max_payload_bytes", DEFAULT_MAX_PAYLOAD_BYTES)
        self.max_live = options.number("max_live", least=1)
        self.unique_for = options.duration("unique_for", UNIQUE_FOR)
        self.lanes_by_gateway = options.flag("lanes_by_gateway", False)
        same = {name: options.text(name) for name in ("type", "protocol", "grid")}
        self.same = {name: value for name, value in same.items() if value is not None}
        self._check(schema.names)

    def _check(self, columns: Sequence[str]) -> None:
        if self.fleet is None:
            needed = [] if self.name else ["name"]
            check_columns(columns, JOB_COLUMNS, needed=needed, of="a queue")
        else:
            needed = ["device_reference", *(each for each in ("type", "protocol") if each not in self.same)]
            check_columns(columns, COMMAND_COLUMNS, needed=needed, of="a fleet")


class _Destination(ABC):
    """Where rows go, opened in a task."""

    def __init__(self, plan: Plan, ids: RowIds) -> None:
        self._plan = plan
        self._ids = ids

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(self, *_: object) -> None: ...

    @abstractmethod
    def make(self, row: Row) -> Any:
        """What a row becomes; a `ValueError` says what is wrong with it."""

    @abstractmethod
    async def add(self, made: list[Any]) -> int:
        """Add them; how many were new."""

    def id_of(self, row: Row) -> str:
        given = row.get("job_id") if "job_id" in row else row.get("id")
        return self._ids.make(row) if given is None else str(given)


class _Jobs(_Destination):
    async def __aenter__(self) -> Self:
        plan = self._plan
        self._queue = Queue(
            plan.queue or "",
            plan.url,
            payload_format=plan.payload_format,
            max_payload_bytes=plan.max_payload_bytes,
            max_live=plan.max_live,
        )
        await self._queue.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._queue.close()

    def make(self, row: Row) -> EncodedJob:
        plan = self._plan
        job = job_of(
            row,
            self.id_of(row),
            name=plan.name,
            payload_is_json=plan.payload_is_json,
            unique_for=plan.unique_for,
        )
        return self._queue.encode([job])[0]

    async def add(self, made: list[EncodedJob]) -> int:
        queue = self._queue
        return sum(await queue.store.add(queue.name, made, who=queue.who, max_live=queue.max_live))


class _Commands(_Destination):
    async def __aenter__(self) -> Self:
        plan = self._plan
        self._fleet = Fleet(plan.url, name=plan.fleet or "", lanes_by_gateway=plan.lanes_by_gateway)
        await self._fleet.store.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._fleet.close()

    def make(self, row: Row) -> NewCommand:
        plan, fleet = self._plan, self._fleet
        command = command_of(row, self.id_of(row), same=plan.same, payload_is_json=plan.payload_is_json)
        # Checked here, where the row is still known; the fleet would only say that one of them is wrong.
        make_command(
            command,
            command_id=command.id or "",
            now=fleet.store.now(),
            codecs=fleet.codecs,
            by_gateway=fleet.lanes_by_gateway,
        )
        return command

    async def add(self, made: list[NewCommand]) -> int:
        return sum(each.is_new for each in await self._fleet.send_many(made))


async def _write(plan: Plan, token: str, task: str, batches: Iterator[pa.RecordBatch]) -> Written:
    ids = RowIds(token)
    written = added = 0
    async with (_Jobs if plan.fleet is None else _Commands)(plan, ids) as destination:
        for rows in _bulks(batches, plan.bulk):
            made = numbered(rows, written + 1, destination.make, bulk=task)
            added += await destination.add(made)
            written += len(rows)
    return Written(written, added, ids.marks)


def _bulks(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[list[Row]]:
    """The rows of Arrow batches, so many at a time."""
    waiting: list[Row] = []
    for batch in batches:
        for start in range(0, batch.num_rows, size):
            waiting += batch.slice(start, size).to_pylist(maps_as_pydicts="strict")
            while len(waiting) >= size:
                yield waiting[:size]
                waiting = waiting[size:]
    if waiting:
        yield waiting


def _check_distinct(messages: Sequence[WriterCommitMessage | None]) -> None:
    """Equal rows of different tasks have one id and so became one message: that must not be silent."""
    written = [each for each in messages if isinstance(each, Written)]
    lost = repeated(each.marks for each in written)
    if lost:
        raise InvalidJobError(
            f"{lost} of {sum(each.rows for each in written)} rows are equal to a row in another partition, "
            "and became one message with it; all others were added. Give every row an id of its own: in a "
            "column job_id (id for commands), which remuda.lake.sources.with_ids(frame, batch=…) makes"
        )


class QueueWriter(DataSourceArrowWriter):
    """One write of a DataFrame. With the option `batch` the same rows get the same ids in any other run."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._run = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        place = _task().partitionId()
        # Without a name only a task that is run again must find its ids: its partition is part of them.
        token = f"{self._run}/{place}" if self._plan.batch is None else f"batch/{self._plan.batch}"
        return asyncio.run(_write(self._plan, token, f"partition {place}", iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._plan.batch is not None:
            _check_distinct(messages)


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """The micro-batches of a query. One that is run again makes the ids that it made before."""

    def __init__(self, plan: Plan) -> None:
        if plan.batch is not None:
            raise ConfigurationError("batch is for a single write; a stream numbers its batches itself")
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = _task()
        query, batch = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
        if query is None or batch is None:
            raise ConfigurationError(
                "this Spark does not say which micro-batch a task belongs to: write with foreachBatch and "
                "the option batch instead"
            )
        token = f"query/{query}/{batch}"
        return asyncio.run(_write(self._plan, token, f"partition {task.partitionId()}", iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        _check_distinct(messages)


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise ConfigurationError("a writer works inside a task of Spark")
    return task
