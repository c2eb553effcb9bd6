"""SQLite: one thread writes, merging what has come in since into one transaction; another reads."""

from __future__ import annotations

import asyncio
import queue as thread_queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool, StaticPool

from remuda.clock import Clock
from remuda.errors import StoreError, StoreUnavailableError
from remuda.stores.contract import Capabilities, Wakeup
from remuda.stores.sql.sqlite_dialect import SqliteDialect
from remuda.stores.sql.steps import Query, Raw, Rows, Steps
from remuda.stores.sql.store import SqlStore

T = TypeVar("T")

BUSY_TIMEOUT = timedelta(seconds=10)
WATCH_INTERVAL = timedelta(milliseconds=20)  # how soon another process's commit is seen
MERGED_AT_MOST = 512


class SqliteStore(SqlStore):
    """A file, shared by any number of processes on one machine; or `sqlite://`, a private memory."""

    backend = "sqlite"
    dialect = SqliteDialect()

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        super().__init__(url, clock)
        database = make_url(url).database
        self._in_memory = not database or database == ":memory:"
        self._engine: Engine | None = None
        self._writer: _Writer | None = None
        self._reader: ThreadPoolExecutor | None = None
        self._read_connection: Connection | None = None
        self._watch: asyncio.Task[None] | None = None

    async def _connect(self) -> Capabilities:
        engine = _make_engine(self._full_url, self._in_memory)
        self._engine = engine
        self._writer = _Writer(engine)
        self._writer.start()
        try:
            await self.run_on_schema(self._on_schema)
        except BaseException:
            await self._disconnect()
            raise
        if not self._in_memory:
            self._reader = ThreadPoolExecutor(1, thread_name_prefix="remuda-sqlite-reader")
        return Capabilities(
            backend="sqlite", version=sqlite3.sqlite_version, wake="watch", transactional=True
        )

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

    async def _hot(self, make: Callable[[], Steps[T]]) -> T:
        if self._writer is None:
            raise StoreError(f"the store {self.url} is closed")
        return await asyncio.wrap_future(self._writer.submit(lambda connection: _drive(make(), connection)))

    async def _cold(self, make: Callable[[], Steps[T]], *, read_only: bool = False) -> T:
        await self._ready()
        if not read_only or self._reader is None:
            return await self._hot(make)
        return await asyncio.get_running_loop().run_in_executor(self._reader, self._read, make)

    async def run_sync(self, act: Callable[[Connection], T]) -> T:
        if self._writer is None:
            raise StoreError(f"the store {self.url} is closed")
        return await asyncio.wrap_future(self._writer.submit(lambda connection: act(connection.core)))

    # -- the reading thread

    def _reading(self) -> Connection:
        if self._read_connection is None:
            if self._engine is None:
                raise StoreError(f"the store {self.url} is closed")
            self._read_connection = self._engine.connect()
        return self._read_connection

    def _read(self, make: Callable[[], Steps[T]]) -> T:
        core = self._reading()
        handle = _Handle(core, _raw_of(core))
        try:
            # One snapshot for all the statements of a look.
            handle.raw.execute("BEGIN")
            try:
                return _drive(make(), handle)
            finally:
                handle.raw.execute("ROLLBACK")
        except (sqlite3.OperationalError, OSError) as error:
            raise StoreUnavailableError(f"SQLite could not read: {error}") from error

    def _data_version(self) -> int:
        version: int = _raw_of(self._reading()).execute("PRAGMA data_version").fetchone()[0]
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
        while self._reader is not None and any(self._wakeups.values()):
            version = await loop.run_in_executor(self._reader, self._data_version)
            if version != seen:  # the first time too: for what was committed before we looked
                for queue in list(self._wakeups):
                    self._announce(queue)
            seen = version
            await asyncio.sleep(WATCH_INTERVAL.total_seconds())


class _Handle(NamedTuple):
    """One connection, for hand-tuned statements and for SQLAlchemy's."""

    core: Connection
    raw: sqlite3.Connection


def _raw_of(connection: Connection) -> sqlite3.Connection:
    raw = connection.connection.driver_connection
    if not isinstance(raw, sqlite3.Connection):
        raise StoreError(f"the SQLite driver is {type(raw).__module__}, not sqlite3")
    return raw


def _drive(steps: Steps[T], handle: _Handle) -> T:
    try:
        query = next(steps)
        while True:
            query = steps.send(_ask(query, handle))
    except StopIteration as end:
        result: T = end.value
        return result


def _ask(query: Query, handle: _Handle) -> Rows:
    if not isinstance(query, Raw):
        result = handle.core.execute(query)
        return [tuple(row) for row in result] if result.returns_rows else ()
    if query.many:
        handle.raw.executemany(query.sql, query.params)
        return ()
    return handle.raw.execute(query.sql, tuple(query.params)).fetchall()


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
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA cache_size = -65536")
        connection.execute("PRAGMA wal_autocheckpoint = 4000")
        connection.execute("PRAGMA journal_size_limit = 67108864")

    return engine


class _Job(NamedTuple):
    act: Callable[[_Handle], Any]
    done: Future[Any]


class _Writer(threading.Thread):
    """The one thread that writes. What is waiting when it comes round shares one transaction."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(name="remuda-sqlite-writer", daemon=True)
        self._engine = engine
        self._waiting: thread_queue.SimpleQueue[_Job | None] = thread_queue.SimpleQueue()
        self._stopped = False
        self._gate = threading.Lock()

    def submit(self, act: Callable[[_Handle], T]) -> Future[T]:
        """Run `act` in the next transaction; the future is done when it has committed."""
        done: Future[T] = Future()
        with self._gate:
            if self._stopped:
                raise StoreError("the SQLite store is closed")
            self._waiting.put(_Job(act, done))
        return done

    def stop(self) -> None:
        """Finish what is waiting, then end."""
        with self._gate:
            self._stopped = True
            self._waiting.put(None)
        self.join()

    def run(self) -> None:
        handle: _Handle | None = None
        stopping = False
        while not stopping:
            jobs, stopping = self._next_jobs()
            if not jobs:
                continue
            try:
                if handle is None:
                    core = self._engine.connect()
                    handle = _Handle(core, _raw_of(core))
                self._write(handle, jobs)
            except Exception as error:  # noqa: BLE001
                # Whatever went wrong with the transaction as a whole: nothing of it was written.
                wrapped = StoreUnavailableError(f"SQLite could not write: {error}")
                wrapped.__cause__ = error
                for job in jobs:
                    if not job.done.done():
                        job.done.set_exception(wrapped)
        if handle is not None:
            handle.core.close()

    def _next_jobs(self) -> tuple[list[_Job], bool]:
        first = self._waiting.get()
        if first is None:
            return [], True
        jobs = [first]
        while len(jobs) < MERGED_AT_MOST:
            try:
                job = self._waiting.get_nowait()
            except thread_queue.Empty:
                break
            if job is None:
                return jobs, True
            jobs.append(job)
        return jobs, False

    def _write(self, handle: _Handle, jobs: list[_Job]) -> None:
        jobs = [job for job in jobs if job.done.set_running_or_notify_cancel()]
        if not jobs:
            return
        raw = handle.raw
        raw.execute("BEGIN IMMEDIATE")
        try:
            results = [self._within(handle, job, alone=len(jobs) == 1) for job in jobs]
            raw.execute("COMMIT")
        except BaseException:
            if raw.in_transaction:
                raw.execute("ROLLBACK")
            raise
        for job, value, error in results:
            if error is None:
                job.done.set_result(value)
            else:
                job.done.set_exception(error)

    def _within(self, handle: _Handle, job: _Job, *, alone: bool) -> tuple[_Job, Any, BaseException | None]:
        """One operation; its failure undoes it alone, not those it shares the transaction with."""
        raw = handle.raw
        if not alone:
            raw.execute("SAVEPOINT operation")
        try:
            value = job.act(handle)
        except Exception as error:
            if not raw.in_transaction:
                raise  # SQLite itself has undone the whole transaction (disk full, I/O error)
            raw.execute("ROLLBACK" if alone else "ROLLBACK TO operation")
            if alone:
                raw.execute("BEGIN")
            else:
                raw.execute("RELEASE operation")
            if isinstance(error, sqlite3.OperationalError):
                unavailable = StoreUnavailableError(f"SQLite could not write: {error}")
                unavailable.__cause__ = error
                return job, None, unavailable
            return job, None, error
        if not alone:
            raw.execute("RELEASE operation")
        return job, value, None
