"""SyncQueue: the same queue for programs without an event loop."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from remuda.codec import DEFAULT_MAX_PAYLOAD_BYTES, PayloadFormat
from remuda.dead_letters import Which
from remuda.lifecycle import State
from remuda.message import (
    Added,
    DeadLetter,
    JobRecord,
    LogLine,
    NewJob,
    Progress,
    Replayed,
    Result,
    Stats,
)
from remuda.queue import Queue
from remuda.rate import RateLimit, RateLimits
from remuda.repeats import LISTED_AT_MOST
from remuda.retry import RetryPolicy
from remuda.schedule import Repeating
from remuda.stores.contract import Capabilities
from remuda.transition import Transition

T = TypeVar("T")


class SyncQueue:
    """A queue whose methods block. It may be shared by threads.

    >>> with SyncQueue("emails", "postgresql://localhost/app") as emails:
    ...     emails.add("welcome", {"to": "a@example.org"})

    With `connection` (a SQLAlchemy `Connection` or `Session`) a job is added inside the caller's own
    transaction, on the caller's own connection and in the caller's own thread.
    """

    def __init__(
        self,
        name: str,
        store: str,
        *,
        payload_format: PayloadFormat | str = PayloadFormat.MSGPACK,
        max_payload_bytes: int = DEFAULT_MAX_PAYLOAD_BYTES,
        max_live: int | None = None,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="remuda-sync", daemon=True)
        self._thread.start()
        self._closed = False
        try:
            self._queue = self._run(_make(name, store, payload_format, max_payload_bytes, max_live))
        except BaseException:
            self._end_loop()
            raise
        self.name = self._queue.name
        self.dead = SyncDeadLetters(self)
        self.repeats = SyncRepeats(self)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> Capabilities:
        """Connect now instead of at the first use; says what the store can do."""
        return self._run(self._queue.open())

    def close(self) -> None:
        """Finish what is being added and give everything back."""
        if not self._closed:
            self._closed = True
            try:
                self._run(self._queue.close())
            finally:
                self._end_loop()

    def add(
        self,
        name: str,
        payload: Any = None,
        *,
        delay: timedelta | None = None,
        next_attempt_at: datetime | None = None,
        priority: int = 0,
        headers: dict[str, Any] | None = None,
        expires_in: timedelta | None = None,
        expires_at: datetime | None = None,
        retry: RetryPolicy | None = None,
        rate_key: str | None = None,
        connection: Any = None,
    ) -> str:
        """Add one job; its id. See `Queue.add`."""
        job = NewJob(
            name=name,
            payload=payload,
            delay=delay,
            next_attempt_at=next_attempt_at,
            priority=priority,
            headers=headers,
            expires_in=expires_in,
            expires_at=expires_at,
            retry=retry,
            rate_key=rate_key,
        )
        return self.add_many([job], connection=connection)[0]

    def add_unique(
        self,
        name: str,
        payload: Any = None,
        *,
        job_id: str,
        unique_for: timedelta | None = None,
        connection: Any = None,
        **options: Any,
    ) -> Added:
        """Add a job unless its id is taken. See `Queue.add_unique` for the options."""
        if connection is None:
            return self._run(
                self._queue.add_unique(name, payload, job_id=job_id, unique_for=unique_for, **options)
            )
        job = NewJob(name=name, payload=payload, job_id=job_id, unique_for=unique_for, **options)
        return Added(job_id, self._add_blocking([job], connection)[1][0])

    def add_many(self, jobs: Iterable[NewJob], *, connection: Any = None) -> list[str]:
        """Add all of them or none; their ids. See `Queue.add_many`."""
        if connection is None:
            return self._run(self._queue.add_many(jobs))
        return self._add_blocking(list(jobs), connection)[0]

    def _add_blocking(self, jobs: list[NewJob], connection: Any) -> tuple[list[str], list[bool]]:
        self._run(self._queue.open())
        encoded = self._queue.encode(jobs)
        new = self._queue.store.add_blocking(
            self.name,
            encoded,
            who=self._queue.who,
            connection=connection,
            max_live=self._queue.max_live,
        )
        return [job.id for job in encoded], new

    def stats(self) -> Stats:
        return self._run(self._queue.stats())

    def get(self, job_id: str) -> JobRecord | None:
        return self._run(self._queue.get(job_id))

    def jobs(
        self, *, state: State | str | None = None, name: str | None = None, limit: int = 100
    ) -> list[JobRecord]:
        return self._run(self._queue.jobs(state=state, name=name, limit=limit))

    def result(self, job_id: str, *, timeout: timedelta | float | None = None) -> Result | None:
        if timeout is None:
            return self._run(self._queue.result(job_id))
        return self._run(self._queue.result(job_id, timeout=timeout))

    def progress(self, job_id: str) -> Progress | None:
        return self._run(self._queue.progress(job_id))

    def log(self, job_id: str, *, after: int = 0, limit: int = 1_000) -> list[LogLine]:
        return self._run(self._queue.log(job_id, after=after, limit=limit))

    def transitions(self, *, after: int = 0) -> Iterator[Transition]:
        """Every recorded state change after a sequence number, in order, up to now."""
        yield from self._each(self._queue.transitions(after=after))

    def history(self, job_id: str) -> list[Transition]:
        return self._run(self._queue.history(job_id))

    def cancel(self, *job_ids: str, running: bool = True) -> list[str]:
        return self._run(self._queue.cancel(*job_ids, running=running))

    def reschedule(self, job_id: str, *, at: datetime | None = None, delay: timedelta | None = None) -> bool:
        return self._run(self._queue.reschedule(job_id, at=at, delay=delay))

    def expire(self, job_id: str, *, at: datetime | None = None, after: timedelta | None = None) -> bool:
        return self._run(self._queue.expire(job_id, at=at, after=after))

    def limit_rate(self, *, queue: RateLimit | None = None, key: RateLimit | None = None) -> None:
        self._run(self._queue.limit_rate(queue=queue, key=key))

    def rate_limits(self) -> RateLimits:
        return self._run(self._queue.rate_limits())

    def pause(self) -> None:
        self._run(self._queue.pause())

    def resume(self) -> None:
        self._run(self._queue.resume())

    def purge(self) -> int:
        return self._run(self._queue.purge())

    def prune(
        self, *, completed_before: datetime | None = None, failed_before: datetime | None = None
    ) -> int:
        return self._run(self._queue.prune(completed_before=completed_before, failed_before=failed_before))

    def obliterate(self, *, force: bool = False) -> int:
        return self._run(self._queue.obliterate(force=force))

    def _each(self, items: AsyncIterator[T]) -> Iterator[T]:
        """An asynchronous iterator's items, one after another."""
        with contextlib.suppress(StopAsyncIteration):
            while True:
                yield self._run(_next(items))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            work.close()
            self._queue.check_open()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class SyncDeadLetters:
    """`queue.dead` without an event loop; the filters are those of `DeadLetters`."""

    def __init__(self, queue: SyncQueue) -> None:
        self._sync = queue

    def count(self, **which: Unpack[Which]) -> dict[str, int]:
        return self._sync._run(self._sync._queue.dead.count(**which))

    def peek(self, *, limit: int = 20, **which: Unpack[Which]) -> list[DeadLetter]:
        return self._sync._run(self._sync._queue.dead.peek(limit=limit, **which))

    def replay(self, *, limit: int = 100, dry_run: bool = False, **which: Unpack[Which]) -> Replayed:
        return self._sync._run(self._sync._queue.dead.replay(limit=limit, dry_run=dry_run, **which))

    def drop(self, *, limit: int = 100, **which: Unpack[Which]) -> list[str]:
        return self._sync._run(self._sync._queue.dead.drop(limit=limit, **which))

    def export(self, **which: Unpack[Which]) -> Iterator[DeadLetter]:
        """All of them, oldest first."""
        yield from self._sync._each(self._sync._queue.dead.export(**which))


class SyncRepeats:
    """`queue.repeats` without an event loop."""

    def __init__(self, queue: SyncQueue) -> None:
        self._sync = queue

    def put(self, name: str, payload: Any = None, **spec: Any) -> Repeating:
        """Write a spec. See `Repeats.put` for what it may say."""
        return self._sync._run(self._sync._queue.repeats.put(name, payload, **spec))

    def list(self, *, limit: int = LISTED_AT_MOST) -> builtins.list[Repeating]:
        return self._sync._run(self._sync._queue.repeats.list(limit=limit))

    def get(self, key: str) -> Repeating | None:
        return self._sync._run(self._sync._queue.repeats.get(key))

    def remove(self, key: str) -> bool:
        return self._sync._run(self._sync._queue.repeats.remove(key))

    def run(self, key: str) -> str:
        return self._sync._run(self._sync._queue.repeats.run(key))


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)


async def _make(
    name: str,
    store: str,
    payload_format: PayloadFormat | str,
    max_payload_bytes: int,
    max_live: int | None,
) -> Queue:
    """Inside the loop, for what it holds belongs to the loop."""
    return Queue(
        name, store, payload_format=payload_format, max_payload_bytes=max_payload_bytes, max_live=max_live
    )
