"""The one thread that writes to a SQLite file, and how an operation is run on a connection."""

from __future__ import annotations

import asyncio
import contextlib
import queue as thread_queue
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Engine

from remuda.errors import StoreError, StoreUnavailableError
from remuda.stores.sql.steps import Query, Raw, Rows, Steps, drive_with

T = TypeVar("T")

MERGED_AT_MOST = 512


class Handle(NamedTuple):
    """One connection, for hand-tuned statements and for SQLAlchemy's."""

    core: Connection
    raw: sqlite3.Connection


def raw_of(connection: Connection) -> sqlite3.Connection:
    """What is under SQLAlchemy's connection."""
    raw = connection.connection.driver_connection
    if not isinstance(raw, sqlite3.Connection):
        raise StoreError(f"the SQLite driver is {type(raw).__module__}, not sqlite3")
    return raw


def drive_sqlite(steps: Steps[T], handle: Handle) -> T:
    """Run the steps on one connection; whoever calls has begun the transaction."""
    return drive_with(steps, lambda query: _ask(query, handle))


def _ask(query: Query, handle: Handle) -> Rows:
    if not isinstance(query, Raw):
        result = handle.core.execute(query)
        return [tuple(row) for row in result] if result.returns_rows else ()
    if query.many:
        handle.raw.executemany(query.sql, query.params)
        return ()
    return handle.raw.execute(query.sql, tuple(query.params)).fetchall()


class _Task(NamedTuple):
    act: Callable[[Handle], Any]
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Any]


class _Result(NamedTuple):
    task: _Task
    value: Any
    error: BaseException | None


class Writer(threading.Thread):
    """What is waiting when it comes round shares one transaction."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(name="remuda-sqlite-writer", daemon=True)
        self._engine = engine
        self._waiting: thread_queue.SimpleQueue[_Task | None] = thread_queue.SimpleQueue()
        self._stopped = False
        self._gate = threading.Lock()

    def submit(self, act: Callable[[Handle], T]) -> asyncio.Future[T]:
        """Run `act` in the next transaction; the future is done when that has committed."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        with self._gate:
            if self._stopped:
                raise StoreError("the SQLite store is closed")
            self._waiting.put(_Task(act, loop, done))
        return done

    def stop(self) -> None:
        """Finish what is waiting, then end."""
        with self._gate:
            self._stopped = True
            self._waiting.put(None)
        self.join()

    def run(self) -> None:
        handle: Handle | None = None
        stopping = False
        while not stopping:
            tasks, stopping = self._next_tasks()
            if not tasks:
                continue
            try:
                if handle is None:
                    core = self._engine.connect()
                    handle = Handle(core, raw_of(core))
                results = self._write(handle, tasks)
            except Exception as error:  # noqa: BLE001
                # Whatever went wrong with the transaction as a whole: nothing of it was written.
                results = [_Result(task, None, _unavailable(error)) for task in tasks]
            _tell(results)
        if handle is not None:
            handle.core.close()

    def _next_tasks(self) -> tuple[list[_Task], bool]:
        """What is waiting, less what nobody waits for any more; and whether that was the last."""
        task = self._waiting.get()
        tasks: list[_Task] = []
        while task is not None:
            if not task.done.cancelled():
                tasks.append(task)
            if len(tasks) >= MERGED_AT_MOST:
                return tasks, False
            try:
                task = self._waiting.get_nowait()
            except thread_queue.Empty:
                return tasks, False
        return tasks, True

    def _write(self, handle: Handle, tasks: list[_Task]) -> list[_Result]:
        raw = handle.raw
        raw.execute("BEGIN IMMEDIATE")
        try:
            results = [self._within(handle, task, alone=len(tasks) == 1) for task in tasks]
            raw.execute("COMMIT")
        except BaseException:
            if raw.in_transaction:
                raw.execute("ROLLBACK")
            raise
        return results

    def _within(self, handle: Handle, task: _Task, *, alone: bool) -> _Result:
        """One operation; its failure undoes it alone, not those it shares the transaction with."""
        raw = handle.raw
        if not alone:
            raw.execute("SAVEPOINT operation")
        try:
            value = task.act(handle)
        except Exception as error:
            if not raw.in_transaction:
                raise  # SQLite itself has undone the whole transaction (disk full, I/O error)
            if alone:
                raw.execute("ROLLBACK")
                raw.execute("BEGIN")
            else:
                raw.execute("ROLLBACK TO operation")
                raw.execute("RELEASE operation")
            broken = isinstance(error, sqlite3.OperationalError)
            return _Result(task, None, _unavailable(error) if broken else error)
        if not alone:
            raw.execute("RELEASE operation")
        return _Result(task, value, None)


def _unavailable(error: Exception) -> StoreUnavailableError:
    unavailable = StoreUnavailableError(f"SQLite could not write: {error}")
    unavailable.__cause__ = error
    return unavailable


def _tell(results: list[_Result]) -> None:
    """Each event loop is woken once for all that is its own."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Result]] = {}
    for result in results:
        by_loop.setdefault(result.task.loop, []).append(result)
    for loop, own in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_resolve, own)


def _resolve(results: list[_Result]) -> None:
    for task, value, error in results:
        if task.done.done():
            continue
        if error is None:
            task.done.set_result(value)
        else:
            task.done.set_exception(error)
