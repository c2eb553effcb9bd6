"""Working: what producers and workers call, on a SQL store."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from remuda.errors import ConfigurationError
from remuda.message import LogLine
from remuda.rate import RateLimits
from remuda.schedule import Repeat, Repeating
from remuda.stores.contract import (
    NO_SUSPECTS,
    Delivery,
    EncodedJob,
    Firing,
    Note,
    Progressed,
    Settlement,
    Suspects,
    Wakeup,
)
from remuda.stores.sql import inspection, operations, rates, repeats, results
from remuda.stores.sql import notes as notes_table
from remuda.stores.sql.connected import ConnectedStore
from remuda.stores.sql.steps import Steps, drive

RECOVER_CHUNK = 1_000


class WorkingStore(ConnectedStore):
    """Publishing and delivering, rate limits, results, notes and repeatable jobs."""

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
        # Loaded by whoever has a session; without it every program starts sooner.
        orm = sys.modules.get("sqlalchemy.orm")
        if orm is not None and isinstance(connection, orm.Session):
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

    # -- notes

    async def note(self, queue: str, notes: Sequence[Note], *, ttl: timedelta) -> None:
        await self._ready()
        if notes:
            now = self.now()
            await self._cold(lambda: notes_table.put(self.dialect, queue, notes, now=now, ttl=ttl))

    async def progress(self, queue: str, job_ids: Sequence[str]) -> dict[str, Progressed]:
        await self._ready()
        if not job_ids:
            return {}
        now = self.now()
        return await self._cold(
            lambda: notes_table.how_far(self.dialect, queue, job_ids, now=now), read_only=True
        )

    async def log(self, queue: str, job_id: str, *, after: int, limit: int) -> list[LogLine]:
        await self._ready()
        now = self.now()
        return await self._cold(
            lambda: notes_table.lines(queue, job_id, now=now, after=after, limit=limit), read_only=True
        )

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


def ends_of(queue: str) -> str:
    """The name under which those who wait for results are woken; no queue has it."""
    return f"\x1f{queue}"
