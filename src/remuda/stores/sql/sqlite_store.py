"""SQLite: one thread writes, merging what has come in since into one transaction; another reads."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool, StaticPool

from remuda.clock import Clock
from remuda.errors import StoreError, StoreUnavailableError
from remuda.stores.contract import Capabilities, Wakeup
from remuda.stores.sql import migrations
from remuda.stores.sql.sqlite_dialect import SqliteDialect
from remuda.stores.sql.sqlite_writer import Handle, Writer, drive_sqlite, raw_of
from remuda.stores.sql.steps import Steps
from remuda.stores.sql.store import SqlStore

T = TypeVar("T")

BUSY_TIMEOUT = timedelta(seconds=10)
# How soon another process's commit is seen: at once after one, less often in quiet times.
WATCH_MOST_EVERY_S = 0.002
WATCH_AT_LEAST_EVERY_S = 0.02


class SqliteStore(SqlStore):
    """A file, shared by any number of processes on one machine; or `sqlite://`, a private memory."""

    backend = "sqlite"
    dialect = SqliteDialect()

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        super().__init__(url, clock)
        database = make_url(url).database
        self._in_memory = not database or database == ":memory:"
        self._engine: Engine | None = None
        self._writer: Writer | None = None
        self._reader: ThreadPoolExecutor | None = None
        self._read_connection: Connection | None = None
        self._watch: asyncio.Task[None] | None = None

    async def _connect(self) -> Capabilities:
        engine = _make_engine(self._full_url, self._in_memory)
        self._engine = engine
        self._writer = Writer(engine)
        self._writer.start()
        try:
            # Where nothing is to be made no lock is taken: whoever adds in a transaction of their own has it.
            if self._in_memory or not await asyncio.to_thread(self._is_in_order):
                await self.run_on_schema(self._on_schema)
        except BaseException:
            await self._disconnect()
            raise
        if not self._in_memory:
            self._reader = ThreadPoolExecutor(1, thread_name_prefix="remuda-sqlite-reader")
        return Capabilities(
            backend="sqlite", version=sqlite3.sqlite_version, wake="watch", transactional=True
        )

    def _is_in_order(self) -> bool:
        """Whether the tables are as they are wanted, as far as reading can tell."""
        if self._engine is None or self._on_schema is not migrations.ensure:
            return False
        try:
            with self._engine.connect() as connection:
                return migrations.is_in_order(connection)
        except DBAPIError:
            return False  # the writer will say what is wrong

    async def _disconnect(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._reader is not None:
            await asyncio.get_running_loop().run_in_executor(self._reader, self._close_reader)
            self._reader.shutdown()
            self._reader = None
        if self._writer is not None:
            await asyncio.to_thread(self._writer.stop)
            self._writer = None
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    async def _sync_clock(self) -> None:
        """The file has no clock of its own: it is this machine's."""

    async def _hot(self, make: Callable[[], Steps[T]], *, one_statement: bool = False) -> T:
        if self._writer is None:
            raise StoreError(f"the store {self.url} is closed")
        return await self._writer.submit(lambda handle: drive_sqlite(make(), handle))

    async def _cold(self, make: Callable[[], Steps[T]], *, read_only: bool = False) -> T:
        await self._ready()
        if not read_only or self._reader is None:
            return await self._hot(make)
        return await asyncio.get_running_loop().run_in_executor(self._reader, self._read, make)

    async def run_sync(self, act: Callable[[Connection], T]) -> T:
        if self._writer is None:
            raise StoreError(f"the store {self.url} is closed")
        return await self._writer.submit(lambda handle: act(handle.core))

    # -- the reading thread

    def _reading(self) -> Connection:
        if self._read_connection is None:
            if self._engine is None:
                raise StoreError(f"the store {self.url} is closed")
            self._read_connection = self._engine.connect()
        return self._read_connection

    def _read(self, make: Callable[[], Steps[T]]) -> T:
        core = self._reading()
        handle = Handle(core, raw_of(core))
        try:
            # One snapshot for all the statements of a look.
            handle.raw.execute("BEGIN")
            try:
                return drive_sqlite(make(), handle)
            finally:
                handle.raw.execute("ROLLBACK")
        except (sqlite3.OperationalError, OSError) as error:
            raise StoreUnavailableError(f"SQLite could not read: {error}") from error

    def _data_version(self) -> int:
        version: int = raw_of(self._reading()).execute("PRAGMA data_version").fetchone()[0]
        return version

    def _close_reader(self) -> None:
        if self._read_connection is not None:
            self._read_connection.close()
            self._read_connection = None

    # -- waking

    def watch(self, queue: str) -> Wakeup:
        if not self._in_memory and (self._watch is None or self._watch.done()):
            self._watch = asyncio.get_running_loop().create_task(self._watch_commits())
        return super().watch(queue)

    async def _watch_commits(self) -> None:
        """While anyone watches, look whether another connection has committed."""
        await self._ready()
        loop = asyncio.get_running_loop()
        seen: int | None = None
        interval = WATCH_AT_LEAST_EVERY_S
        while self._reader is not None and any(self._wakeups.values()):
            version = await loop.run_in_executor(self._reader, self._data_version)
            if version != seen:  # the first time too: for what was committed before we looked
                for queue in list(self._wakeups):
                    self._announce(queue)
                interval = WATCH_MOST_EVERY_S
            else:
                interval = min(interval * 1.2, WATCH_AT_LEAST_EVERY_S)
            seen = version
            await asyncio.sleep(interval)


def _make_engine(url: str, in_memory: bool) -> Engine:
    made = make_url(url).set(drivername="sqlite+pysqlite")
    engine = create_engine(
        made,
        poolclass=StaticPool if in_memory else NullPool,
        connect_args={"check_same_thread": False, "timeout": BUSY_TIMEOUT.total_seconds()},
    )

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # transactions begin and end where this module says so
        _write_ahead(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA cache_size = -16384")
        connection.execute("PRAGMA wal_autocheckpoint = 4000")
        connection.execute("PRAGMA journal_size_limit = 67108864")

    return engine


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switch to WAL, which a new file does once. Others may be at it: SQLite does not wait for them here."""
    deadline = time.monotonic() + BUSY_TIMEOUT.total_seconds()
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)
        else:
            return
