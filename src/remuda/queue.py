"""Queue: what a program adds jobs to and looks into."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self, overload

from remuda.clock import Clock
from remuda.codec import DEFAULT_MAX_PAYLOAD_BYTES, PayloadFormat, check_name, decode_payload
from remuda.dead_letters import DeadLetters
from remuda.errors import ConfigurationError, QueueBusyError, QueueClosedError
from remuda.identity import make_identity
from remuda.ids import IdMaker
from remuda.lifecycle import State
from remuda.merging import MergingAdder
from remuda.message import Added, DeadLetterFilter, JobRecord, LogLine, NewJob, Progress, Result, Stats
from remuda.publishing import encode_jobs, moment_to_expire, moment_to_run
from remuda.rate import RateLimit, RateLimits
from remuda.repeats import Repeats
from remuda.results import Waiting, failure_of, open_result
from remuda.retry import RetryPolicy
from remuda.stores import open_store
from remuda.stores.command_trail import fleet_of
from remuda.stores.contract import Capabilities, EncodedJob, Store
from remuda.transition import Transition, to_ms

TRAIL_PAGE = 5_000
RUNNING_AT_MOST = 100_000
CHUNK = 500
_NEVER = datetime(9999, 1, 1, tzinfo=UTC)


class Queue:
    """A named queue in a store.

    >>> async with Queue("emails", "sqlite:///app.db") as emails:
    ...     await emails.add("welcome", {"to": "a@example.org"}, delay=timedelta(minutes=5))

    `store` is a URL, or a store that several queues share (and that their owner closes).
    `payload_format` is how payloads are written; both msgpack and JSON are always read.
    `max_live` is how many jobs may be there that have not ended: an add beyond it is a `QueueFullError`.
    """

    def __init__(
        self,
        name: str,
        store: str | Store,
        *,
        payload_format: PayloadFormat | str = PayloadFormat.MSGPACK,
        max_payload_bytes: int = DEFAULT_MAX_PAYLOAD_BYTES,
        max_live: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.name = check_name(name, "a queue's name", ConfigurationError)
        if fleet_of(name) is not None:
            raise ConfigurationError(
                f"a queue cannot be called {name!r}: that is the trail of a device fleet; choose another name"
            )
        self._owns_store = isinstance(store, str)
        self.store: Store = open_store(store, clock=clock) if isinstance(store, str) else store
        try:
            self.payload_format = PayloadFormat(payload_format)
        except ValueError:
            formats = ", ".join(PayloadFormat)
            raise ConfigurationError(f"payload_format is one of {formats}, not {payload_format!r}") from None
        if max_payload_bytes < 1:
            raise ConfigurationError(f"max_payload_bytes must be at least 1, not {max_payload_bytes}")
        self.max_payload_bytes = max_payload_bytes
        if max_live is not None and max_live < 1:
            raise ConfigurationError(f"max_live must be at least 1, or None for no limit, not {max_live}")
        self.max_live = max_live
        self.who = make_identity("client")
        self.dead = DeadLetters(self)
        self.repeats = Repeats(self)
        self._waiting = Waiting(self.store, self.name)
        self._adder = MergingAdder(self.store, self.name, self.who, max_live=max_live)
        self._ids = IdMaker()
        self._closed = False
        self._adding = 0
        self._nothing_added = asyncio.Event()

    def __repr__(self) -> str:
        return f"Queue({self.name!r}, {self.store.url!r})"

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> Capabilities:
        """Connect now instead of at the first use; says what the store can do."""
        self.check_open()
        return await self.store.open()

    async def close(self) -> None:
        """Finish what is being added, and close the store if the queue opened it."""
        if not self._closed:
            self._closed = True
            self._waiting.close()
            while self._adding:
                self._nothing_added.clear()
                await self._nothing_added.wait()
            if self._owns_store:
                await self.store.close()

    def check_open(self) -> None:
        if self._closed:
            raise QueueClosedError(f"the queue {self.name!r} was closed; open a new one")

    # -- adding

    async def add(
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
        """Add one job and return its id when it is durable.

        With `connection` (a SQLAlchemy connection or session, sync or async, to the same database)
        the job commits or rolls back with the caller's own data. The options are those of `NewJob`.
        """
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
        return (await self._add_one(job, connection)).id

    async def add_unique(
        self,
        name: str,
        payload: Any = None,
        *,
        job_id: str,
        unique_for: timedelta | None = None,
        delay: timedelta | None = None,
        next_attempt_at: datetime | None = None,
        priority: int = 0,
        headers: dict[str, Any] | None = None,
        expires_in: timedelta | None = None,
        expires_at: datetime | None = None,
        retry: RetryPolicy | None = None,
        rate_key: str | None = None,
        connection: Any = None,
    ) -> Added:
        """Add a job unless one with this id lives, or ended less than `unique_for` ago."""
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
            job_id=job_id,
            unique_for=unique_for,
            rate_key=rate_key,
        )
        return await self._add_one(job, connection)

    async def add_many(self, jobs: Iterable[NewJob], *, connection: Any = None) -> list[str]:
        """Add all of them in one transaction, or none; their ids, in order.

        A job with a `job_id` that lives already is left as it is, and its id returned all the same.
        """
        await self._ready()
        encoded = self.encode(list(jobs))
        if encoded:
            with self._under_way():
                await self._write(encoded, connection)
        return [job.id for job in encoded]

    async def _add_one(self, job: NewJob, connection: Any) -> Added:
        await self._ready()
        (encoded,) = self.encode([job])
        with self._under_way():
            if connection is None:
                new = await self._adder.add(encoded)
            else:
                (new,) = await self._write([encoded], connection)
        return Added(encoded.id, new)

    async def _write(self, jobs: list[EncodedJob], connection: Any) -> list[bool]:
        return await self.store.add(
            self.name, jobs, who=self.who, connection=connection, max_live=self.max_live
        )

    @contextlib.contextmanager
    def _under_way(self) -> Iterator[None]:
        """An add that `close` waits for."""
        self._adding += 1
        try:
            yield
        finally:
            self._adding -= 1
            if not self._adding:
                self._nothing_added.set()

    async def add_encoded(self, name: str, payload: bytes) -> str:
        """Add a job whose payload is encoded already; its id."""
        await self._ready()
        now = self.store.now()
        (job_id,) = self._ids.make(1, to_ms(now))
        job = EncodedJob(id=job_id, name=name, payload=payload, next_attempt_at=now)
        with self._under_way():
            await self._adder.add(job)
        return job_id

    def encode(self, jobs: list[NewJob]) -> list[EncodedJob]:
        """Check and encode; nothing is written."""
        self.check_open()
        return encode_jobs(
            jobs,
            ids=self._ids,
            now=self.store.now(),
            payload_format=self.payload_format,
            max_payload_bytes=self.max_payload_bytes,
        )

    async def _ready(self) -> None:
        """The store must be open before a job is given its times: they are on the store's clock."""
        self.check_open()
        await self.store.open()

    # -- looking

    async def stats(self) -> Stats:
        """The queue in numbers."""
        self.check_open()
        return await self.store.stats(self.name)

    async def get(self, job_id: str) -> JobRecord | None:
        """One job as it is now, live or ended; None when there is none."""
        self.check_open()
        return await self.store.get(self.name, job_id)

    async def jobs(
        self, *, state: State | str | None = None, name: str | None = None, limit: int = 100
    ) -> list[JobRecord]:
        """Jobs in the order in which they would run; ended ones newest first."""
        self.check_open()
        try:
            wanted = None if state is None else State(state)
        except ValueError:
            raise ConfigurationError(f"a state is one of {', '.join(State)}, not {state!r}") from None
        if wanted is State.REMOVED:
            return []  # only the trail knows them
        return await self.store.jobs(self.name, state=wanted, name=name, limit=limit)

    @overload
    async def result(self, job_id: str, *, timeout: timedelta | float) -> Result: ...
    @overload
    async def result(self, job_id: str, *, timeout: None = None) -> Result | None: ...

    async def result(self, job_id: str, *, timeout: timedelta | float | None = None) -> Result | None:
        """What the job's handler returned, on a worker with `store_results`; None when nothing is kept (yet).

        With `timeout` (in seconds, or a timedelta) it is waited for: the caller is woken when the job ends.
        `TimeoutError` when that is too late, `NoResultError` when there can be none any more. Of a job that
        is a dead letter, `JobFailedError` says why.

        >>> result = await reports.result(job_id, timeout=30)
        >>> print(result.value)
        """
        self.check_open()
        if timeout is not None:
            return await self._waiting.wait(job_id, _as_timedelta(timeout))
        kept = await self.store.results(self.name, [job_id])
        if job_id in kept:
            return open_result(job_id, kept[job_id])
        failed = failure_of(await self.store.get(self.name, job_id))
        if failed is not None:
            raise failed
        return None

    async def progress(self, job_id: str) -> Progress | None:
        """How far a job is, as its handler said last with `job.progress`; None when it said nothing."""
        self.check_open()
        found = await self.store.progress(self.name, [job_id])
        if job_id not in found:
            return None
        return Progress(decode_payload(found[job_id].value, None), found[job_id].at)

    async def log(self, job_id: str, *, after: int = 0, limit: int = 1_000) -> list[LogLine]:
        """What a job's handler said with `job.log`, in order, from line `after` on."""
        self.check_open()
        if after < 0 or limit < 1:
            raise ConfigurationError(f"lines are asked for after 0 or more, 1 or more, not {after}, {limit}")
        return await self.store.log(self.name, job_id, after=after, limit=limit)

    async def transitions(self, *, after: int = 0) -> AsyncIterator[Transition]:
        """Every recorded state change after a sequence number, in order, up to now."""
        self.check_open()
        while True:
            page = await self.store.transitions(self.name, after=after, limit=TRAIL_PAGE)
            if not page.transitions:
                return
            for transition in page.transitions:
                yield transition
            after = page.next_offset

    async def history(self, job_id: str) -> list[Transition]:
        """Every recorded state change of one job, in order; also of one that was removed."""
        record = await self.get(job_id)
        after = 0 if record is None else await self.store.trail_offset(self.name, since=record.created_at)
        # Clocks differ a little, and an entry is written a moment after it was made.
        last = None if record is None or record.ended_at is None else record.ended_at + timedelta(minutes=1)
        found: list[Transition] = []
        async for transition in self.transitions(after=after):
            if last is not None and transition.at > last:
                break
            if transition.message == job_id:
                found.append(transition)
        return found

    # -- changing what waits

    async def cancel(self, *job_ids: str, running: bool = True) -> list[str]:
        """Cancel jobs; the ids of those that could be.

        One that waits is removed, recorded in the trail. Of one that runs its worker hears within a second:
        a coroutine is cancelled, a plain function has to look at `job.cancelled`. It is a dead letter then,
        `cancelled`, unless it ends otherwise before. With `running=False` such jobs are left alone.
        """
        self.check_open()
        for job_id in job_ids:
            if not isinstance(job_id, str):
                raise ConfigurationError(f"cancel takes ids, one after another, not {job_id!r:.100}")
        if not job_ids:
            return []
        removed = await self.store.cancel(self.name, job_ids, who=self.who)
        others = [each for each in dict.fromkeys(job_ids) if each not in set(removed)] if running else []
        if not others:
            return removed
        found = await self.store.jobs(self.name, state=State.PROCESSING, name=None, limit=RUNNING_AT_MOST)
        at_work = {record.id for record in found}
        asked = [each for each in others if each in at_work]
        await self.store.ask_to_cancel(self.name, asked)
        return [*removed, *asked]

    async def reschedule(
        self, job_id: str, *, at: datetime | None = None, delay: timedelta | None = None
    ) -> bool:
        """Let a job that waits run at another time, sooner or later; False when it does not wait."""
        await self._ready()
        moment = moment_to_run(job_id, delay=delay, at=at, now=self.store.now())
        return await self.store.reschedule(self.name, job_id, at=moment)

    async def expire(
        self, job_id: str, *, at: datetime | None = None, after: timedelta | None = None
    ) -> bool:
        """Let a job that waits expire at another time, sooner or later; with neither, never.

        False when it does not wait. One whose time is over becomes a dead letter, `expired`, unheard.
        """
        await self._ready()
        moment = moment_to_expire(job_id, after=after, at=at, now=self.store.now())
        return await self.store.set_expiry(self.name, job_id, at=moment)

    # -- operating

    async def limit_rate(self, *, queue: RateLimit | None = None, key: RateLimit | None = None) -> None:
        """From now on, on all workers together: so many handler runs in a time. None is no limit.

        `queue` counts every job; `key` those with the same `rate_key`, each key by itself.

        >>> await mails.limit_rate(key=RateLimit(10, timedelta(seconds=1)))
        """
        self.check_open()
        for limit in (queue, key):
            if not isinstance(limit, RateLimit | None):
                raise ConfigurationError(f"a limit is RateLimit(jobs, per) or None, not {limit!r}")
        await self.store.set_rate_limits(self.name, RateLimits(queue=queue, key=key))

    async def rate_limits(self) -> RateLimits:
        """The limits that are set, for the queue and for each key."""
        self.check_open()
        return await self.store.rate_limits(self.name)

    async def pause(self) -> None:
        """Nothing more is handed out until `resume`, on any worker; what runs goes on."""
        self.check_open()
        await self.store.pause(self.name)

    async def resume(self) -> None:
        """End a pause."""
        self.check_open()
        await self.store.resume(self.name)

    async def purge(self) -> int:
        """Remove every waiting job, recorded in the trail; how many. Running and dead ones stay."""
        self.check_open()
        return await self.store.purge(self.name, who=self.who)

    async def obliterate(self, *, force: bool = False) -> int:
        """Remove everything of the queue: jobs in every state, dead letters, specs, limits; how many jobs.

        The trail keeps what happened, until it is trimmed. Jobs that run are in the way (`QueueBusyError`),
        unless `force`: they are taken from their workers, whose outcomes do not count then. Nothing should be
        added meanwhile. Killed in the middle, it is to be called again.
        """
        self.check_open()
        was_paused = (await self.store.stats(self.name)).paused
        await self.store.pause(self.name)  # or workers would go on fetching
        running = (await self.store.stats(self.name)).processing
        if running and not force:
            if not was_paused:
                await self.store.resume(self.name)
            raise QueueBusyError(
                f"{running:,} jobs of the queue {self.name!r} run: wait for them, or take them away (force)"
            )
        removed = 0
        while True:
            if force:
                await self.store.take_back(self.name, who=self.who)
            gone = await self.store.purge(self.name, who=self.who)
            everything = DeadLetterFilter()
            gone += len(await self.store.drop_dead(self.name, everything, limit=CHUNK, who=self.who))
            gone += await self.store.prune(
                self.name, completed_before=_NEVER, failed_before=None, who=self.who, limit=CHUNK
            )
            removed += gone
            if not gone:
                break
        removed += (await self.store.stats(self.name)).completed  # those that hold their id for a time
        await self.store.forget(self.name)
        return removed

    async def prune(
        self, *, completed_before: datetime | None = None, failed_before: datetime | None = None
    ) -> int:
        """Remove ended jobs from before a moment; how many."""
        self.check_open()
        removed = 0
        while True:
            chunk = await self.store.prune(
                self.name,
                completed_before=completed_before,
                failed_before=failed_before,
                who=self.who,
                limit=500,
            )
            removed += chunk
            if not chunk:
                return removed


def _as_timedelta(timeout: timedelta | float) -> timedelta:
    return timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
