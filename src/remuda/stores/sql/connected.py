"""Connected: the life of a SQL store, its clock, and how its operations are run and its workers woken."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from sqlalchemy import Connection

from remuda.clock import Clock
from remuda.errors import StoreError
from remuda.stores import redact
from remuda.stores.contract import Capabilities, Store, Wakeup
from remuda.stores.sql import migrations
from remuda.stores.sql.dialect import Dialect
from remuda.stores.sql.steps import Steps

T = TypeVar("T")

PATIENT_ROUND_TRIP = timedelta(milliseconds=5)


class ConnectedStore(Store):
    """A store over SQL that can be opened and closed. Subclasses say how an operation is run."""

    backend: str
    dialect: Dialect

    def __init__(self, url: str, clock: Clock | None) -> None:
        self._full_url = url
        self.url = redact(url)
        self._clock = clock
        self._clock_offset = timedelta(0)
        self._best_round_trip: timedelta | None = None
        self._capabilities: Capabilities | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        self._on_schema: Callable[[Connection], None] = migrations.ensure
        self._wakeups: dict[str, set[Wakeup]] = {}

    # -- what a subclass provides

    @abstractmethod
    async def _connect(self) -> Capabilities:
        """Connect, create or check the schema."""

    @abstractmethod
    async def _disconnect(self) -> None: ...

    @abstractmethod
    async def _hot(self, make: Callable[[], Steps[T]], *, one_statement: bool = False) -> T:
        """Run an operation of hand-tuned statements in one transaction; a single one is one by itself."""

    @abstractmethod
    async def _cold(self, make: Callable[[], Steps[T]], *, read_only: bool = False) -> T:
        """Run an operation of portable statements in one transaction."""

    @abstractmethod
    async def run_sync(self, act: Callable[[Connection], T]) -> T:
        """Run a function over a SQLAlchemy connection in one transaction (schema work)."""

    async def change(self, make: Callable[[], Steps[T]]) -> T:
        """Run an operation of hand-tuned statements in one transaction."""
        await self._ready()
        return await self._hot(make)

    async def look(self, make: Callable[[], Steps[T]]) -> T:
        """Run an operation that changes nothing."""
        await self._ready()
        return await self._cold(make, read_only=True)

    async def run_on_schema(self, act: Callable[[Connection], T]) -> T:
        """`run_sync`, while nobody else works on the schema. Subclasses lock where that takes a lock."""
        return await self.run_sync(act)

    @abstractmethod
    async def _sync_clock(self) -> None:
        """Learn how far the server's clock is from this machine's."""

    def _announce(self, queue: str) -> None:
        """Wake the workers of this process; subclasses also tell other processes."""
        for wakeup in self._wakeups.get(queue, ()):
            wakeup.announce()

    def _steps_in_caller(self, queue: str) -> Steps[None]:
        """What to add to the caller's transaction so that workers wake when it commits."""
        yield from ()

    # -- life

    def now(self) -> datetime:
        if self._clock is not None:
            return self._clock.now()
        return datetime.now(UTC) + self._clock_offset

    async def open(self) -> Capabilities:
        if self._capabilities is not None:
            return self._capabilities
        async with self._opening:
            if self._closed:
                raise StoreError(f"the store {self.url} was closed; open a new one")
            if self._capabilities is None:
                self._capabilities = await self._connect()
                await self._refresh_clock()
            return self._capabilities

    async def open_unchecked(self) -> Capabilities:
        """`open`, but leave the schema as it is: for whoever looks at it, makes it or migrates it."""
        self._on_schema = _leave_as_it_is
        return await self.open()

    async def close(self) -> None:
        async with self._opening:
            self._closed = True
            if self._capabilities is not None:
                self._capabilities = None
                await self._disconnect()

    async def _ready(self) -> None:
        if self._capabilities is None:
            await self.open()

    async def _refresh_clock(self) -> None:
        if self._clock is None:
            await self._sync_clock()

    def _learn_clock(self, asked: datetime, server: datetime, answered: datetime) -> None:
        """The server's clock, as far as the length of the round trip lets us know it.

        An answer that was long on its way (the event loop was busy, say) says less than what is known.
        """
        round_trip = answered - asked
        if self._best_round_trip is None or round_trip <= self._best_round_trip * 2 + PATIENT_ROUND_TRIP:
            self._clock_offset = server - (asked + round_trip / 2)
            self._best_round_trip = min(round_trip, self._best_round_trip or round_trip)

    def watch(self, queue: str) -> Wakeup:
        wakeup = Wakeup(lambda closed: self._wakeups[queue].discard(closed))
        self._wakeups.setdefault(queue, set()).add(wakeup)
        return wakeup


def _leave_as_it_is(_connection: Connection) -> None:
    """No work on the schema."""
