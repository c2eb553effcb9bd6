"""`remuda_jobs`, `remuda_archive` and `remuda_dead_letters`: what a store holds of each message, as batches.

A partition is a queue, or a fleet's commands: each is read in pages, where its task is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from remuda.dead_letters import make_filter
from remuda.devices.command import Command
from remuda.devices.ledger import opened_all
from remuda.errors import ConfigurationError
from remuda.lake.sources.blocking import paged
from remuda.lake.sources.options import Options
from remuda.lake.sources.records import ROWS_AT_ONCE, command_rows, job_rows
from remuda.lake.sources.shapes import DEAD_LETTER_SHAPE, MESSAGE_SHAPE, Shape
from remuda.lake.trails import with_store
from remuda.lifecycle import ENDED_STATUSES, CommandStatus, EndReason, Reason
from remuda.message import DeadLetterFilter, JobRecord
from remuda.stores import open_store
from remuda.stores.command_trail import fleet_of
from remuda.stores.commands import CommandStore
from remuda.stores.contract import Store
from remuda.stores.opening_commands import open_commands

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class _Reader(DataSourceReader):
    """One partition for each queue and fleet. How one is read is for the subclasses to say."""

    def __init__(
        self, given: Mapping[str, str], *, of: str, shape: Shape, filters: tuple[str, ...] = ()
    ) -> None:
        self._options = Options(given, of=of, known=("url", "source", "queues", "columns", *filters))
        self._url = self._options.url
        self._queues = self._options.names("queues")
        self._source = self._options.text("source") or "main"
        self._shape = shape.chosen(self._options)

    @property
    def schema(self) -> str:
        return self._shape.ddl

    def partitions(self) -> list[InputPartition]:
        async def names(store: Store) -> list[str]:
            # Only the trail knows which fleets there are.
            fleets = [trail for trail in await store.trails() if fleet_of(trail) is not None]
            return [*await store.queues(), *fleets]

        queues = with_store(self._url, names) if self._queues is None else self._queues
        return [InputPartition(queue) for queue in dict.fromkeys(queues)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        queue = partition.value
        if queue is None:  # there is no queue at all
            return
        fleet = fleet_of(queue)
        if fleet is None:
            for jobs in paged(open_store(self._url), lambda store: self._jobs(store, queue)):
                yield from job_rows(jobs, self._shape, source=self._source)
        else:
            for commands in paged(open_commands(self._url, fleet=fleet), self._commands):
                yield from command_rows(commands, self._shape, source=self._source, fleet=fleet)

    def _jobs(self, store: Store, queue: str) -> AsyncIterator[list[JobRecord]]:
        raise NotImplementedError

    def _commands(self, store: CommandStore) -> AsyncIterator[list[Command]]:
        raise NotImplementedError


async def _all_commands(
    store: CommandStore, status: CommandStatus | None = None
) -> AsyncIterator[list[Command]]:
    """Every command of a fleet, newest first, in pages."""
    before: str | None = None
    while True:
        page = await store.commands(status=status, before=before, limit=ROWS_AT_ONCE)
        if not page:
            return
        yield opened_all(page)
        before = page[-1].id


class MessagesReader(_Reader):
    """All live messages, or all ended ones that the store still has."""

    def __init__(self, given: Mapping[str, str], *, of: str, ended: bool) -> None:
        super().__init__(given, of=of, shape=MESSAGE_SHAPE)
        self._ended = ended

    async def _jobs(self, store: Store, queue: str) -> AsyncIterator[list[JobRecord]]:
        after: str | None = None
        while True:
            page = await store.records(queue, ended=self._ended, after=after, limit=ROWS_AT_ONCE)
            yield page.records
            if page.next is None:
                return
            after = page.next

    async def _commands(self, store: CommandStore) -> AsyncIterator[list[Command]]:
        async for page in _all_commands(store):
            yield [each for each in page if (each.status in ENDED_STATUSES) is self._ended]


class DeadLettersReader(_Reader):
    """All dead letters, and the commands that failed; the filters are those of `Queue.dead`."""

    def __init__(self, given: Mapping[str, str]) -> None:
        super().__init__(
            given,
            of="remuda_dead_letters",
            shape=DEAD_LETTER_SHAPE,
            filters=("reason", "name", "since", "until"),
        )
        self._reason = self._options.text("reason")
        self._name = self._options.text("name")
        self._since = self._options.moment("since")
        self._until = self._options.moment("until")
        known = {each.value for each in (*Reason, *EndReason)}
        if self._reason is not None and self._reason not in known:
            raise ConfigurationError(
                f"no dead letter has the reason {self._reason!r}; the reasons are {', '.join(sorted(known))}"
            )

    async def _jobs(self, store: Store, queue: str) -> AsyncIterator[list[JobRecord]]:
        if self._reason is not None and self._reason not in Reason.__members__.values():
            return  # only commands have it
        which = self._filter()
        after: str | None = None
        while True:
            page = await store.peek_dead(queue, which, limit=ROWS_AT_ONCE, after=after, oldest_first=True)
            yield list(page)
            if len(page) < ROWS_AT_ONCE:
                return
            after = page[-1].cursor

    def _filter(self) -> DeadLetterFilter:
        return make_filter(reason=self._reason, name=self._name, since=self._since, until=self._until)

    async def _commands(self, store: CommandStore) -> AsyncIterator[list[Command]]:
        async for page in _all_commands(store, CommandStatus.DELIVERY_FAILED):
            yield [each for each in page if self._wants(each)]

    def _wants(self, command: Command) -> bool:
        return (
            (self._reason is None or command.reason == self._reason)
            and (self._name is None or command.type == self._name)
            and (self._since is None or command.status_since >= self._since)
            and (self._until is None or command.status_since <= self._until)
        )


class JobsSource(DataSource):
    """A snapshot of what lives: jobs, and commands that have not ended."""

    @classmethod
    def name(cls) -> str:
        return "remuda_jobs"

    def schema(self) -> str:
        return self._reader().schema

    def reader(self, schema: StructType) -> MessagesReader:
        return self._reader()

    def _reader(self) -> MessagesReader:
        return MessagesReader(self.options, of=self.name(), ended=False)


class ArchiveSource(DataSource):
    """Ended jobs and commands that the store still has."""

    @classmethod
    def name(cls) -> str:
        return "remuda_archive"

    def schema(self) -> str:
        return self._reader().schema

    def reader(self, schema: StructType) -> MessagesReader:
        return self._reader()

    def _reader(self) -> MessagesReader:
        return MessagesReader(self.options, of=self.name(), ended=True)


class DeadLettersSource(DataSource):
    """Dead letters, with their errors and payloads."""

    @classmethod
    def name(cls) -> str:
        return "remuda_dead_letters"

    def schema(self) -> str:
        return DeadLettersReader(self.options).schema

    def reader(self, schema: StructType) -> DeadLettersReader:
        return DeadLettersReader(self.options)
