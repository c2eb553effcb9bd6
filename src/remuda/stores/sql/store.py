"""What the three SQL stores share: the contract, written once over two ways to run an operation."""

from __future__ import annotations

import asyncio
import sys
from abc import abstractmethod
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from remuda.clock import Clock
from remuda.errors import ConfigurationError, StoreError
from remuda.lifecycle import State
from remuda.message import DeadLetter, DeadLetterFilter, JobRecord, Replayed, Stats
from remuda.rate import RateLimits
from remuda.schedule import Repeat, Repeating
from remuda.stores import redact
from remuda.stores.contract import (
    NO_SUSPECTS,
    Capabilities,
    Delivery,
    EncodedJob,
    Firing,
    RecordPage,
    Settlement,
    Store,
    Suspects,
    TrailEntry,
    TrailPage,
    TrailSpan,
    Wakeup,
)
from remuda.stores.sql import (
    dead_letters,
    inspection,
    migrations,
    operations,
    rates,
    repeats,
    results,
    upkeep,
)
from remuda.stores.sql import trail as trails
from remuda.stores.sql.dialect import Dialect
from remuda.stores.sql.steps import Steps, drive

T = TypeVar("T")

COLD_CHUNK = 500  # rows that one transaction of an operator's command touches
RECOVER_CHUNK = 1_000
PRUNE_CHUNK = 1_000
PATIENT_ROUND_TRIP = timedelta(milliseconds=5)


class SqlStore(Store):
    """A store over SQL. Subclasses say how an operation is run, and how a worker is woken."""

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

    # -- publishing and delivering

    async def add(
        self,
        queue: str,
        jobs: Sequence[EncodedJob],
        *,
        who: str,
        connection: Any = None,
        max_live: int | None = None,
    ) -> list[bool]:
        await self._ready()
        if not jobs:
            return []
        now = self.now()
        if connection is not None:
            return await self._add_in_caller(queue, jobs, now, who, connection, max_live)
        if max_live is None:
            new = await self._hot(
                lambda: operations.add(self.dialect, queue, jobs, now=now, who=who),
                one_statement=self.dialect.inserts_at_once(jobs),
            )
        else:
            new = await self._hot(
                lambda: operations.add_bounded(
                    self.dialect, queue, jobs, max_live=max_live, alone=True, now=now, who=who
                )
            )
        if any(job.next_attempt_at <= now for job in jobs):
            self._announce(queue)
        return new

    async def _add_in_caller(
        self,
        queue: str,
        jobs: Sequence[EncodedJob],
        now: datetime,
        who: str,
        connection: Any,
        max_live: int | None,
    ) -> list[bool]:
        # Needs greenlet, which SQLite does without; whoever has such a connection has loaded it.
        asynchronous = sys.modules.get("sqlalchemy.ext.asyncio")
        if asynchronous is not None and isinstance(connection, asynchronous.AsyncSession):
            connection = await connection.connection()
        if asynchronous is not None and isinstance(connection, asynchronous.AsyncConnection):
            new: list[bool] = await connection.run_sync(
                lambda sync: drive(
                    self._add_with_wake(queue, jobs, now, who, max_live), self._of_this_kind(sync)
                )
            )
            return new
        return self.add_blocking(queue, jobs, who=who, connection=connection, max_live=max_live)

    def add_blocking(
        self,
        queue: str,
        jobs: Sequence[EncodedJob],
        *,
        who: str,
        connection: Any,
        max_live: int | None = None,
    ) -> list[bool]:
        if isinstance(connection, Session):
            connection = connection.connection()
        if not isinstance(connection, Connection):
            raise ConfigurationError(
                "connection must be a SQLAlchemy Connection, Session, AsyncConnection or AsyncSession, "
                f"not {type(connection).__name__}"
            )
        steps = self._add_with_wake(queue, jobs, self.now(), who, max_live)
        return drive(steps, self._of_this_kind(connection))

    def _add_with_wake(
        self, queue: str, jobs: Sequence[EncodedJob], now: datetime, who: str, max_live: int | None
    ) -> Steps[list[bool]]:
        if max_live is None:
            new = yield from operations.add(self.dialect, queue, jobs, now=now, who=who)
        else:
            new = yield from operations.add_bounded(
                self.dialect, queue, jobs, max_live=max_live, alone=False, now=now, who=who
            )
        yield from self._steps_in_caller(queue)
        return new

    def _of_this_kind(self, connection: Connection) -> Connection:
        kind = connection.dialect.name
        if kind != self.backend and {kind, self.backend} != {"mysql", "mariadb"}:
            raise ConfigurationError(
                f"the connection is to {kind}, but the queue lives on {self.backend} ({self.url})"
            )
        return connection

    async def fetch(
        self,
        queue: str,
        *,
        limit: int,
        lease: timedelta,
        who: str,
        suspects: Suspects = NO_SUSPECTS,
        begin_with: int | None = None,
    ) -> list[Delivery]:
        await self._ready()
        now = self.now()
        return await self._hot(
            lambda: operations.fetch(
                self.dialect,
                queue,
                limit=limit,
                now=now,
                lease_for=lease,
                who=who,
                suspects=suspects,
                begin_with=begin_with,
            ),
            one_statement=self.dialect.records_by_itself,
        )

    async def held(self, queue: str, leases: Sequence[int]) -> list[Delivery]:
        await self._ready()
        return await self._cold(lambda: inspection.held(queue, leases), read_only=True)

    async def settle(self, queue: str, settlements: Sequence[Settlement], *, who: str) -> list[Settlement]:
        await self._ready()
        if not settlements:
            return []
        now = self.now()
        lost = await self._hot(
            lambda: operations.settle(self.dialect, queue, settlements, now=now, who=who),
            one_statement=operations.settles_in_one_statement(self.dialect, settlements),
        )
        if any(each.result is not None for each in settlements):
            self._announce(ends_of(queue))
        return lost

    async def extend(self, queue: str, deliveries: Sequence[Delivery], *, lease: timedelta) -> list[Delivery]:
        await self._ready()
        if not deliveries:
            return []
        now = self.now()
        return await self._hot(lambda: operations.extend(self.dialect, deliveries, now=now, lease_for=lease))

    async def release(
        self,
        queue: str,
        deliveries: Sequence[Delivery],
        *,
        who: str,
        counted: bool,
        until: Sequence[datetime] | None = None,
    ) -> None:
        await self._ready()
        if not deliveries:
            return
        now = self.now()
        await self._hot(
            lambda: operations.release(
                self.dialect, queue, deliveries, now=now, who=who, counted=counted, until=until
            )
        )
        if until is None or min(until) <= now:
            self._announce(queue)

    async def recover(self, queue: str, *, timeout: timedelta, who: str) -> list[str]:
        await self._ready()
        await self._refresh_clock()
        recovered: list[str] = []
        while True:
            now = self.now()
            chunk = await self._hot(
                lambda now=now: operations.recover(  # type: ignore[misc]  # mypy cannot type the default
                    self.dialect, queue, now=now, timeout=timeout, limit=RECOVER_CHUNK, who=who
                )
            )
            recovered += chunk
            if len(chunk) < RECOVER_CHUNK:
                break
        if recovered:
            self._announce(queue)
        return recovered

    async def next_due(self, queue: str) -> datetime | None:
        return await self._cold(lambda: inspection.next_due(queue), read_only=True)

    def watch(self, queue: str) -> Wakeup:
        wakeup = Wakeup(lambda closed: self._wakeups[queue].discard(closed))
        self._wakeups.setdefault(queue, set()).add(wakeup)
        return wakeup

    # -- rate limits

    async def set_rate_limits(self, queue: str, limits: RateLimits) -> None:
        await self._cold(lambda: rates.put(queue, limits))
        self._announce(queue)

    async def rate_limits(self, queue: str) -> RateLimits:
        return await self._cold(lambda: rates.look(queue), read_only=True)

    async def take_turns(self, queue: str, *, wanted: int) -> int:
        await self._ready()
        if not wanted:
            return 0
        now = self.now()
        return await self._cold(lambda: rates.take_turns(queue, wanted=wanted, now=now))

    async def book(self, queue: str, keys: Sequence[str]) -> list[datetime]:
        await self._ready()
        if not keys:
            return []
        now = self.now()
        return await self._cold(lambda: rates.book(self.dialect, queue, keys, now=now))

    # -- results

    async def results(self, queue: str, job_ids: Sequence[str]) -> dict[str, bytes]:
        await self._ready()
        if not job_ids:
            return {}
        now = self.now()
        return await self._cold(lambda: results.get(self.dialect, queue, job_ids, now=now), read_only=True)

    def watch_results(self, queue: str) -> Wakeup:
        return self.watch(ends_of(queue))

    # -- repeatable jobs

    async def put_repeat(self, queue: str, spec: Repeat, *, first: datetime, keep: bool) -> bool:
        await self._ready()
        return await self._cold(lambda: repeats.put(queue, spec, first=first, keep=keep))

    async def repeats(self, queue: str, *, key: str | None = None, limit: int) -> list[Repeating]:
        await self._ready()
        return await self._cold(lambda: repeats.look(queue, key=key, limit=limit), read_only=True)

    async def remove_repeat(self, queue: str, key: str) -> bool:
        await self._ready()
        return await self._cold(lambda: repeats.remove(queue, key))

    async def fire(self, queue: str, firings: Sequence[Firing], *, who: str) -> list[bool]:
        await self._ready()
        if not firings:
            return []
        now = self.now()
        done = await self._cold(lambda: repeats.fire(self.dialect, queue, firings, now=now, who=who))
        if any(done):
            self._announce(queue)
        return done

    # -- dead letters

    async def count_dead(self, queue: str, which: DeadLetterFilter) -> dict[str, int]:
        return await self._cold(lambda: dead_letters.count(self.dialect, queue, which), read_only=True)

    async def peek_dead(
        self,
        queue: str,
        which: DeadLetterFilter,
        *,
        limit: int,
        after: str | None = None,
        oldest_first: bool = False,
    ) -> list[DeadLetter]:
        return await self._cold(
            lambda: dead_letters.peek(
                self.dialect, queue, which, limit=limit, after=after, oldest_first=oldest_first
            ),
            read_only=True,
        )

    async def replay_dead(
        self, queue: str, which: DeadLetterFilter, *, limit: int, who: str, dry_run: bool = False
    ) -> Replayed:
        await self._ready()
        now = self.now()
        # What dies again while this goes on is not replayed a second time by it.
        until = now if which.until is None else min(which.until, now)
        which = DeadLetterFilter(
            reason=which.reason, name=which.name, since=which.since, until=until, ids=which.ids
        )
        conflicts = await self._cold(
            lambda: dead_letters.still_live(self.dialect, queue, which, limit=min(limit, COLD_CHUNK)),
            read_only=True,
        )
        if dry_run:
            candidates = await self._cold(
                lambda: dead_letters.replayable(self.dialect, queue, which, limit=limit), read_only=True
            )
            return Replayed(ids=candidates, still_live=conflicts)
        replayed: list[str] = []
        while len(replayed) < limit:
            ask = min(COLD_CHUNK, limit - len(replayed))
            chunk = await self._cold(
                lambda ask=ask: dead_letters.replay(  # type: ignore[misc]  # as above
                    self.dialect, queue, which, limit=ask, now=now, who=who
                )
            )
            replayed += chunk
            if not chunk:
                break
        if replayed:
            self._announce(queue)
        return Replayed(ids=replayed, still_live=conflicts)

    async def drop_dead(self, queue: str, which: DeadLetterFilter, *, limit: int, who: str) -> list[str]:
        dropped: list[str] = []
        while len(dropped) < limit:
            ask = min(COLD_CHUNK, limit - len(dropped))
            now = self.now()
            chunk = await self._cold(
                lambda ask=ask, now=now: dead_letters.drop(  # type: ignore[misc]  # as above
                    self.dialect, queue, which, limit=ask, now=now, who=who
                )
            )
            dropped += chunk
            if len(chunk) < ask:
                break
        return dropped

    # -- looking and operating

    async def queues(self) -> list[str]:
        return await self._cold(inspection.queues, read_only=True)

    async def stats(self, queue: str) -> Stats:
        await self._ready()
        now = self.now()
        return await self._cold(lambda: inspection.stats(queue, now=now), read_only=True)

    async def get(self, queue: str, job_id: str) -> JobRecord | None:
        return await self._cold(lambda: inspection.get(queue, job_id), read_only=True)

    async def jobs(self, queue: str, *, state: State | None, name: str | None, limit: int) -> list[JobRecord]:
        return await self._cold(
            lambda: inspection.jobs(queue, state=state, name=name, limit=limit), read_only=True
        )

    async def records(self, queue: str, *, ended: bool, after: str | None, limit: int) -> RecordPage:
        return await self._cold(
            lambda: inspection.records(self.dialect, queue, ended=ended, after=after, limit=limit),
            read_only=True,
        )

    async def cancel(self, queue: str, job_ids: Sequence[str], *, who: str) -> list[str]:
        await self._ready()
        cancelled: set[str] = set()
        for start in range(0, len(job_ids), COLD_CHUNK):
            part, now = job_ids[start : start + COLD_CHUNK], self.now()
            cancelled.update(
                await self._cold(
                    lambda part=part, now=now: upkeep.cancel(  # type: ignore[misc]  # as above
                        self.dialect, queue, part, now=now, who=who
                    )
                )
            )
        return [each for each in dict.fromkeys(job_ids) if each in cancelled]

    async def ask_to_cancel(self, queue: str, job_ids: Sequence[str]) -> None:
        await self._ready()
        if job_ids:
            now = self.now()
            ids = list(dict.fromkeys(job_ids))
            await self._cold(lambda: upkeep.ask_to_cancel(self.dialect, queue, ids, now=now))

    async def asked_to_cancel(self, queue: str) -> dict[str, datetime]:
        await self._ready()
        return await self._cold(lambda: upkeep.asked_to_cancel(queue), read_only=True)

    async def forget_to_cancel(self, queue: str, job_ids: Sequence[str]) -> None:
        await self._ready()
        if job_ids:
            await self._cold(lambda: upkeep.forget_to_cancel(self.dialect, queue, job_ids))

    async def reschedule(self, queue: str, job_id: str, *, at: datetime) -> bool:
        await self._ready()
        done = await self._cold(lambda: upkeep.reschedule(self.dialect, queue, job_id, at=at))
        if done and at <= self.now():
            self._announce(queue)
        return done

    async def pause(self, queue: str) -> None:
        await self._ready()
        now = self.now()
        await self._cold(lambda: upkeep.set_pause(queue, now))

    async def resume(self, queue: str) -> None:
        await self._cold(lambda: upkeep.set_pause(queue, None))
        self._announce(queue)

    async def purge(self, queue: str, *, who: str) -> int:
        await self._ready()
        removed = 0
        while True:
            now = self.now()
            chunk = await self._cold(
                lambda now=now: upkeep.purge(  # type: ignore[misc]  # as above
                    self.dialect, queue, now=now, who=who, limit=COLD_CHUNK
                )
            )
            removed += chunk
            if chunk < COLD_CHUNK:
                return removed

    async def prune(
        self,
        queue: str,
        *,
        completed_before: datetime | None,
        failed_before: datetime | None,
        who: str,
        limit: int,
    ) -> int:
        await self._ready()
        now = self.now()
        for expired in (results.prune, rates.prune):
            while (
                await self._cold(
                    lambda expired=expired: expired(  # type: ignore[misc]  # as above
                        self.dialect, queue, now=now, limit=PRUNE_CHUNK
                    )
                )
                >= PRUNE_CHUNK
            ):
                pass
        return await self._cold(
            lambda: dead_letters.prune(
                self.dialect,
                queue,
                completed_before=completed_before,
                failed_before=failed_before,
                now=now,
                who=who,
                limit=limit,
            )
        )

    # -- the trail

    async def _number(self, queue: str) -> None:
        """Give numbers to what was recorded since the last look."""
        if await self._cold(lambda: trails.unnumbered(queue), read_only=True):
            while await self._cold(lambda: trails.number(queue)):
                pass

    async def trails(self) -> list[str]:
        return await self._cold(trails.names, read_only=True)

    async def trail_span(self, trail: str) -> TrailSpan:
        await self._number(trail)
        return await self._cold(lambda: trails.span(trail), read_only=True)

    async def trail_entries(self, trail: str, *, after: int, up_to: int, limit: int) -> list[TrailEntry]:
        return await self._cold(
            lambda: trails.entries(trail, after=after, up_to=up_to, limit=limit), read_only=True
        )

    async def transitions(self, queue: str, *, after: int, limit: int) -> TrailPage:
        await self._number(queue)
        return await self._cold(lambda: trails.read(queue, after=after, limit=limit), read_only=True)

    async def trail_offset(self, queue: str, *, since: datetime) -> int:
        await self._number(queue)
        return await self._cold(lambda: trails.offset(queue, since=since), read_only=True)

    async def trim_transitions(self, queue: str, *, up_to: int) -> int:
        return await self._cold(lambda: trails.trim(queue, up_to=up_to))


def _leave_as_it_is(_connection: Connection) -> None:
    """No work on the schema."""


def ends_of(queue: str) -> str:
    """The name under which those who wait for results are woken; no queue has it."""
    return f"\x1f{queue}"
