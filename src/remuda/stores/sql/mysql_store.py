"""MariaDB and MySQL, through SQLAlchemy's engine on an asyncio driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from sqlalchemy import Connection, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncEngine

from remuda.clock import Clock
from remuda.errors import ConfigurationError, StoreError, StoreUnavailableError
from remuda.stores.contract import Capabilities, Wakeup
from remuda.stores.sql.engine import make_engine, run_on_engine
from remuda.stores.sql.moments import aware
from remuda.stores.sql.mysql_dialect import MysqlDialect
from remuda.stores.sql.steps import Steps, drive
from remuda.stores.sql.store import SqlStore
from remuda.stores.sql.working import ends_of

T = TypeVar("T")

_SCHEMA_LOCK = "remuda schema"
SCHEMA_LOCK_S = 60
CONNECT_TIMEOUT_S = 10
LOOK_MOST_EVERY_S = 0.02
LOOK_AT_LEAST_EVERY_S = 0.2
OLDEST_MARIADB = (10, 6)
OLDEST_MYSQL = (8, 0)


class MysqlStore(SqlStore):
    """MariaDB 10.6 or later, MySQL 8.0 or later: the first ones with SKIP LOCKED and JSON_TABLE."""

    backend = "mysql"
    dialect = MysqlDialect()

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        super().__init__(url, clock)
        self._target = make_url(url).set(drivername="mysql+asyncmy")
        if "charset" not in self._target.query:
            self._target = self._target.update_query_dict({"charset": "utf8mb4"})
        self._engine: AsyncEngine | None = None
        self._lookers: dict[str, asyncio.Task[None]] = {}

    async def _connect(self) -> Capabilities:
        # Each statement sees what is committed, and locks only the rows it returns.
        self._engine = make_engine(
            self._target,
            isolation_level="READ COMMITTED",
            connect_args={"connect_timeout": CONNECT_TIMEOUT_S},
        )
        try:
            version = await self.run_sync(_checked_version)
            await self.run_on_schema(self._on_schema)
        except BaseException:
            await self._disconnect()
            raise
        return Capabilities(backend="mysql", version=version, wake="poll", transactional=True)

    async def _disconnect(self) -> None:
        for looker in self._lookers.values():
            looker.cancel()
        await asyncio.gather(*self._lookers.values(), return_exceptions=True)
        self._lookers.clear()
        if self._engine is not None:
            engine, self._engine = self._engine, None
            await engine.dispose()

    async def _sync_clock(self) -> None:
        asked = datetime.now(UTC)
        server = await self.run_sync(
            lambda connection: connection.execute(text("SELECT UTC_TIMESTAMP(6)")).scalar_one()
        )
        self._learn_clock(asked, aware(server), datetime.now(UTC))

    async def _hot(self, make: Callable[[], Steps[T]], *, one_statement: bool = False) -> T:
        return await self.run_sync(lambda connection: drive(make(), connection))

    async def _cold(self, make: Callable[[], Steps[T]], *, read_only: bool = False) -> T:
        return await self._hot(make)

    async def run_sync(self, act: Callable[[Connection], T]) -> T:
        if self._engine is None:
            await self._ready()
        if self._engine is None:
            raise StoreError(f"the store {self.url} is closed")
        return await run_on_engine(self._engine, act, "MySQL")

    async def run_on_schema(self, act: Callable[[Connection], T]) -> T:
        return await self.run_sync(lambda connection: _alone(connection, act))

    # -- waking: no notifications here, so one look for all the workers of this process

    def watch(self, queue: str) -> Wakeup:
        looker = self._lookers.get(queue)
        if looker is None or looker.done():
            self._lookers[queue] = asyncio.get_running_loop().create_task(self._look_out(queue))
        return super().watch(queue)

    def watch_results(self, queue: str) -> Wakeup:
        return super().watch(ends_of(queue))  # whoever waits looks for itself

    async def _look_out(self, queue: str) -> None:
        """While anyone watches, look for a due job: often after one was found, less so in quiet times."""
        interval = LOOK_AT_LEAST_EVERY_S
        last_due: datetime | None = None
        while True:
            await asyncio.sleep(interval)
            if not self._wakeups.get(queue):
                return
            try:
                due = await self.next_due(queue)
            except StoreError:
                due = None  # the workers notice for themselves
            if due is not None and due <= self.now() and due != last_due:
                self._announce(queue)
                interval = LOOK_MOST_EVERY_S
            else:
                interval = min(interval * 1.5, LOOK_AT_LEAST_EVERY_S)
            last_due = due


def _checked_version(connection: Connection) -> str:
    version = str(connection.execute(text("SELECT VERSION()")).scalar())
    numbers = tuple(int(part) for part in version.partition("-")[0].split(".")[:2])
    oldest = OLDEST_MARIADB if "mariadb" in version.lower() else OLDEST_MYSQL
    if numbers < oldest:
        raise ConfigurationError(
            f"the server is {version}; Remuda needs MariaDB {'.'.join(map(str, OLDEST_MARIADB))} "
            f"or MySQL {'.'.join(map(str, OLDEST_MYSQL))} and later, for SKIP LOCKED and JSON_TABLE"
        )
    return version


def _alone(connection: Connection, act: Callable[[Connection], T]) -> T:
    """One process at a time; the others find the tables made. Tables are not transactional here."""
    # Such a lock is the whole server's, so it carries the database's name; at most 64 characters.
    database = connection.execute(text("SELECT DATABASE()")).scalar()
    name = {"name": f"{_SCHEMA_LOCK} {database}"[:64]}
    if not connection.execute(text(f"SELECT GET_LOCK(:name, {SCHEMA_LOCK_S})"), name).scalar():
        raise StoreUnavailableError(f"another process has been at the tables for {SCHEMA_LOCK_S} s")
    try:
        return act(connection)
    finally:
        if not connection.invalidated:  # otherwise the server has let go of it by itself
            connection.execute(text("SELECT RELEASE_LOCK(:name)"), name)
