"""PostgreSQL: hot operations straight on asyncpg, the rest through SQLAlchemy; LISTEN as an early wake-up."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

import asyncpg
from sqlalchemy import Connection, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import AsyncEngine

from remuda.clock import Clock
from remuda.errors import StoreError
from remuda.stores.contract import Capabilities, Wakeup
from remuda.stores.sql.engine import make_engine, run_on_engine
from remuda.stores.sql.errors import is_conflict, is_outage, unavailable
from remuda.stores.sql.moments import aware
from remuda.stores.sql.postgres_dialect import PostgresDialect
from remuda.stores.sql.steps import Raw, Steps, drive, drive_asyncpg
from remuda.stores.sql.store import SqlStore

T = TypeVar("T")

log = logging.getLogger("remuda.store")

CHANNEL = "remuda"
NOTIFY_EVERY = 0.002  # seconds; a notification takes a lock on the whole cluster when it commits
# Nothing is lost with a notification, so nobody waits for the disk.
NOTIFY = """
    SELECT pg_notify($1, $2) FROM (SELECT set_config('synchronous_commit', 'off', true)) AS quick
"""
POOL_SIZE = 8
CONFLICT_TRIES = 5
RECONNECT_EVERY = 1.0
# A server that stops answering is an outage like any other, not a worker that hangs.
CONNECT_TIMEOUT_S = 10
COMMAND_TIMEOUT_S = 60

# A queue's table is empty one moment and full the next, so what the planner knows of it is mostly
# wrong. These leave it the one plan that is right at any size: find rows through an index, and join
# a batch to them by hashing. (A nested loop over a batch takes the square of its length.)
_PLANNING = {"enable_seqscan": "off", "enable_nestloop": "off", "enable_mergejoin": "off", "jit": "off"}
# A worker that is frozen in the middle of a transaction must not hide its rows from the others for ever.
_FREEZING = {"idle_in_transaction_session_timeout": "60s"}

_SCHEMA_LOCK = 0x72656D756461  # "remuda"


class PostgresStore(SqlStore):
    """PostgreSQL 13 or later."""

    backend = "postgresql"
    dialect = PostgresDialect()

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        super().__init__(url, clock)
        self._target = make_url(url).set(drivername="postgresql+asyncpg")
        self._engine: AsyncEngine | None = None
        self._pool: asyncpg.Pool | None = None
        self._listener: asyncio.Task[None] | None = None
        self._notices: dict[str, asyncio.Task[None]] = {}
        self._noticed_at: dict[str, float] = {}

    async def _connect(self) -> Capabilities:
        limits = {"timeout": CONNECT_TIMEOUT_S, "command_timeout": COMMAND_TIMEOUT_S}
        self._engine = make_engine(self._target, connect_args=limits)
        try:
            await self.run_on_schema(self._on_schema)
            self._pool = await asyncpg.create_pool(
                dsn=_dsn(self._target),
                min_size=0,
                max_size=POOL_SIZE,
                server_settings={"application_name": "remuda", **_PLANNING, **_FREEZING},
                reset=_no_reset,
                timeout=CONNECT_TIMEOUT_S,
                command_timeout=COMMAND_TIMEOUT_S,
            )
            version = await self.run_sync(
                lambda connection: str(connection.execute(text("SHOW server_version")).scalar())
            )
        except BaseException as error:
            await self._disconnect()
            if is_outage(error):
                raise unavailable("PostgreSQL", error) from error
            raise
        return Capabilities(backend="postgresql", version=version, wake="notify", transactional=True)

    async def _disconnect(self) -> None:
        if self._notices:
            await asyncio.gather(*self._notices.values(), return_exceptions=True)
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
            self._listener = None
        if self._pool is not None:
            pool, self._pool = self._pool, None
            try:
                await asyncio.wait_for(pool.close(), 5)
            except Exception:  # noqa: BLE001 - it is being closed; how it fails does not matter
                pool.terminate()
        if self._engine is not None:
            engine, self._engine = self._engine, None
            await engine.dispose()

    async def _sync_clock(self) -> None:
        def ask() -> Steps[datetime]:
            rows = yield Raw("SELECT clock_timestamp() AT TIME ZONE 'UTC'")
            return aware(rows[0][0])

        asked = datetime.now(UTC)
        server = await self._hot(ask, one_statement=True)
        self._learn_clock(asked, server, datetime.now(UTC))

    async def _hot(self, make: Callable[[], Steps[T]], *, one_statement: bool = False) -> T:
        if self._pool is None:
            raise StoreError(f"the store {self.url} is closed")
        for tries_left in reversed(range(CONFLICT_TRIES)):
            try:
                async with self._pool.acquire() as connection:
                    if one_statement:
                        return await drive_asyncpg(make(), connection, at_most=1)
                    async with connection.transaction():
                        return await drive_asyncpg(make(), connection)
            except Exception as error:
                if is_conflict(error) and tries_left:
                    continue
                if is_conflict(error) or is_outage(error):
                    raise unavailable("PostgreSQL", error) from error
                raise
        raise AssertionError("unreachable")

    async def _cold(self, make: Callable[[], Steps[T]], *, read_only: bool = False) -> T:
        return await self.run_sync(lambda connection: drive(make(), connection))

    async def run_sync(self, act: Callable[[Connection], T]) -> T:
        if self._engine is None:
            await self._ready()
        if self._engine is None:
            raise StoreError(f"the store {self.url} is closed")
        return await run_on_engine(self._engine, act, "PostgreSQL")

    async def run_on_schema(self, act: Callable[[Connection], T]) -> T:
        return await self.run_sync(lambda connection: _alone(connection, act))

    # -- waking: one notification for many jobs, and polling behind it

    def _steps_in_caller(self, queue: str) -> Steps[None]:
        yield Raw(f"SELECT pg_notify('{CHANNEL}', $1::text)", (queue,))

    def _announce(self, queue: str) -> None:
        super()._announce(queue)
        if queue not in self._notices:
            notice = asyncio.create_task(self._notify(queue))
            self._notices[queue] = notice

    async def _notify(self, queue: str) -> None:
        try:
            since = time.monotonic() - self._noticed_at.get(queue, 0.0)
            if since < NOTIFY_EVERY:
                await asyncio.sleep(NOTIFY_EVERY - since)
        finally:
            # From here on a job that is added may have been missed by this notification.
            self._notices.pop(queue, None)
        self._noticed_at[queue] = time.monotonic()
        try:
            if self._pool is not None:
                await self._pool.execute(NOTIFY, CHANNEL, queue)
        except Exception as error:  # noqa: BLE001
            # Only the early wake-up is lost; workers poll.
            log.debug("notification not sent", extra={"action": "notify_failed", "error": str(error)})

    def watch(self, queue: str) -> Wakeup:
        if self._listener is None or self._listener.done():
            self._listener = asyncio.get_running_loop().create_task(self._listen())
        return super().watch(queue)

    async def _listen(self) -> None:
        """Keep one connection listening; while it is down, workers poll."""
        while True:
            connection: asyncpg.Connection | None = None
            try:
                connection = await asyncpg.connect(
                    dsn=_dsn(self._target), server_settings={"application_name": "remuda listener"}
                )
                lost = asyncio.Event()
                connection.add_termination_listener(lambda _connection, lost=lost: lost.set())
                await connection.add_listener(CHANNEL, self._heard)
                for queue in list(self._wakeups):  # what was said before we listened
                    super()._announce(queue)
                await lost.wait()
            except Exception as error:  # noqa: BLE001 - whatever it is, polling goes on
                log.debug("not listening", extra={"action": "listen_failed", "error": str(error)})
            finally:
                if connection is not None:
                    connection.terminate()
            await asyncio.sleep(RECONNECT_EVERY)

    def _heard(self, _connection: object, _pid: int, _channel: str, queue: object) -> None:
        super()._announce(str(queue))


def _alone(connection: Connection, act: Callable[[Connection], T]) -> T:
    """One process at a time; the others find the tables made."""
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _SCHEMA_LOCK})
    return act(connection)


def _dsn(target: URL) -> str:
    return target.set(drivername="postgresql").render_as_string(hide_password=False)


async def _no_reset(_connection: object) -> None:
    """Nothing to undo: no operation leaves anything behind on its connection."""
