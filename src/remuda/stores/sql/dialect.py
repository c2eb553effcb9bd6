"""What every SQL database must be able to do for the engine; the statements differ, the meaning does not.

The hot operations (add, claim, finish, retry, extend, release, recover) are hand-tuned statements,
one module per database. They yield `Raw` only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Executable, Table

from remuda.lifecycle import State
from remuda.stores.contract import Delivery, EncodedJob, Settlement, Suspects
from remuda.stores.sql.steps import Steps
from remuda.transition import Batch


class Claimed(NamedTuple):
    """A claimed delivery, with the state it was in and for how long."""

    delivery: Delivery
    left: State
    since: datetime


class Recovered(NamedTuple):
    """A message taken back from a dead worker."""

    id: str
    since: datetime
    attempts: int


class KeptResult(NamedTuple):
    """What the handler of a job returned, encoded, and until when it is kept."""

    job_id: str
    result: bytes
    expires_at: datetime


class Dialect(ABC):
    """The hot statements of one database. Times that go in and come out are aware."""

    # Whether `claim`, and `finish` for what is completed, write the trail too, all in one statement.
    records_by_itself = False

    def inserts_at_once(self, jobs: Sequence[EncodedJob]) -> bool:
        """Whether `insert_recorded` takes these: one statement for the jobs and their trail."""
        return False

    def insert_recorded(
        self, queue: str, jobs: Sequence[EncodedJob], batch: Batch, *, now: datetime
    ) -> Steps[None]:
        """Insert jobs, none of them unique, and record it."""
        raise NotImplementedError

    @abstractmethod
    def insert(self, queue: str, jobs: Sequence[EncodedJob], *, now: datetime) -> Steps[list[bool]]:
        """Insert jobs; for each whether it is new (only unique ones can be not)."""

    @abstractmethod
    def count_live(self, queue: str, *, at_most: int, alone: bool) -> Steps[int]:
        """How many jobs have not ended, counted as far as `at_most`.

        `alone`: nobody else counts before this transaction has ended, so that the answer holds.
        """

    @abstractmethod
    def take_back(self, queue: str, ids: Sequence[str]) -> Steps[None]:
        """Delete jobs that this same transaction inserted."""

    @abstractmethod
    def claim(
        self,
        queue: str,
        *,
        limit: int,
        now: datetime,
        lease: int,
        lease_expires_at: datetime,
        who: str,
        suspects: Suspects,
        begin_with: int | None,
    ) -> Steps[list[Claimed]]:
        """Lock due jobs that nobody else has locked and mark them PROCESSING, in fetch order."""

    @abstractmethod
    def finish(
        self, queue: str, settlements: Sequence[Settlement], *, now: datetime, who: str
    ) -> Steps[set[int]]:
        """Move to the archive, if the lease still holds; the keys moved. All are COMPLETED or all FAILED."""

    @abstractmethod
    def keep_results(self, queue: str, results: Sequence[KeptResult]) -> Steps[None]:
        """Write what handlers returned; a result that an id had before gives way."""

    @abstractmethod
    def retry(self, settlements: Sequence[Settlement], *, now: datetime) -> Steps[set[int]]:
        """Mark as RETRYABLE, if the lease still holds; the keys marked."""

    @abstractmethod
    def extend(
        self, deliveries: Sequence[Delivery], *, now: datetime, lease_expires_at: datetime
    ) -> Steps[set[int]]:
        """Move the end of the leases that still hold; their keys."""

    @abstractmethod
    def release(
        self,
        deliveries: Sequence[Delivery],
        *,
        now: datetime,
        counted: bool,
        until: Sequence[datetime] | None,
    ) -> Steps[set[int]]:
        """Mark as PENDING, if the lease still holds; the keys marked. `until`: each due then, in its slot."""

    @abstractmethod
    def recover(self, queue: str, *, now: datetime, timeout: timedelta, limit: int) -> Steps[list[Recovered]]:
        """Mark as PENDING what has outlived its lease and nobody has locked."""

    def in_queue(self, column: ColumnElement[Any], queue: str) -> ColumnElement[bool]:
        """Whether a row is of a queue, for a walk over all of its rows by their number."""
        return column == queue

    @abstractmethod
    def among(self, column: ColumnElement[Any], values: Sequence[Any]) -> ColumnElement[bool]:
        """Whether a column is one of these values, however many they are."""

    @abstractmethod
    def upsert(self, table: Table, rows: Sequence[dict[str, Any]]) -> Executable:
        """Insert rows; one that has the primary key of another gives it its values."""

    @abstractmethod
    def record(self, queue: str, batch: Batch) -> Steps[None]:
        """Write transitions to the trail."""
