"""The contract of a store: what a queue and a worker may rely on, the same on every backend.

Everything is in batches. Each call is atomic, and writes the transitions of what it changes in the
same step. Times are aware datetimes on the store's own clock (`Store.now`).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

from remuda.errors import QueueFullError
from remuda.lifecycle import State
from remuda.message import DeadLetter, DeadLetterFilter, JobRecord, LogLine, Replayed, Stats
from remuda.rate import RateLimits
from remuda.schedule import Repeat, Repeating
from remuda.transition import Transition

_FAR_AWAY = datetime.max.replace(tzinfo=UTC)


class EncodedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that has passed every check and is ready to be written."""

    id: str
    name: str
    payload: bytes
    next_attempt_at: datetime
    headers: str | None = None
    priority: int = 0
    expires_at: datetime | None = None
    retry: bytes | None = None
    unique: bool = False
    unique_for: timedelta | None = None
    rate_key: str | None = None


class Defect(NamedTuple):
    """What a store found wrong with a message: why it cannot be a job (a dead letter's reason), in words."""

    reason: str
    message: str


class Delivery(msgspec.Struct, kw_only=True, eq=False):
    """One hand-over of a job to a worker. `(key, lease)` identifies it; a later one has another lease.

    `leased_until` is set by `fetch` and moved by `extend`; a holder notes in `lost` that it is over.
    `slot_at` is set on a job that was put back until its turn under a rate limit: it has its turn now.
    `defect` is set on a message that no handler can be given: it is to become a dead letter.
    """

    key: Any
    lease: int
    id: str
    name: str
    payload: bytes
    headers: str | None
    attempts: int
    deliveries: int
    priority: int
    created_at: datetime
    acquired_at: datetime
    next_attempt_at: datetime
    first_attempt_at: datetime | None = None
    expires_at: datetime | None = None
    retry: bytes | None = None
    rate_key: str | None = None
    slot_at: datetime | None = None
    foreign: bool = False
    defect: Defect | None = None
    leased_until: datetime = _FAR_AWAY
    lost: bool = False


class Failure(msgspec.Struct, frozen=True):
    """What a handler raised, as it is kept with the job."""

    type: str
    message: str
    trace: str | None = None


class Settlement(msgspec.Struct, kw_only=True, eq=False):
    """What becomes of a delivery: COMPLETED, RETRYABLE (with `next_attempt_at`) or FAILED (with `reason`).

    `started_at` is when the handler began; None when it never ran, and then no attempt is counted.
    """

    delivery: Delivery
    state: State
    started_at: datetime | None = None
    next_attempt_at: datetime | None = None
    reason: str | None = None
    failure: Failure | None = None
    keep: bool = True  # a completed job goes to the archive
    result: bytes | None = None  # what the handler returned, encoded; None: nothing is to be kept
    result_ttl: timedelta = timedelta(hours=1)


class Note(msgspec.Struct, frozen=True):
    """What a handler said of its job since the last note: how far it is (None: nothing new), and lines."""

    job_id: str
    progress: bytes | None
    lines: Sequence[LogLine]


class Progressed(NamedTuple):
    """How far a job is, encoded like a payload, and when that was noted."""

    value: bytes
    at: datetime


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between stores, so that it can be seen instead of guessed.

    wake          how an idle worker in another process learns of a new job: `notify`, `watch` or `poll`
    transactional  a job can be added inside the caller's own transaction
    renew_within   leases must be renewed at least this often, whatever their length; None: no such rule
    completed_kept  completed jobs that the archive holds at most; None: as many as retention leaves
    features       newer abilities of the server that are in use
    """

    backend: str
    version: str
    wake: str
    transactional: bool
    renew_within: timedelta | None = None
    completed_kept: int | None = None
    features: tuple[str, ...] = ()


class TrailPage(msgspec.Struct, frozen=True):
    """Transitions after an offset, in order, and the offset to go on from."""

    transitions: list[Transition]
    next_offset: int


class RecordPage(msgspec.Struct, frozen=True):
    """Some of a queue's records, and the cursor to go on from; None: there are no more."""

    records: list[JobRecord]
    next: str | None


class TrailEntry(NamedTuple):
    """Transitions that were written together, as they are kept: `remuda.transition.unpack` opens them."""

    first_seq: int
    count: int  # type: ignore[assignment]  # nobody counts the values of this tuple
    entry: bytes


class TrailSpan(NamedTuple):
    """The numbers of the oldest transition that is still kept and of the newest that there was.

    A trail that never had one is (1, 0); in one that was trimmed empty `first` is `last + 1`.
    """

    first: int
    last: int


class Suspects(NamedTuple):
    """Jobs that were delivered `delivered` times or more, of which at least one was never settled.

    They may be poison. A fetch leaves them out, or with `only` takes nothing else.
    """

    delivered: int
    only: bool


NO_SUSPECTS = Suspects(delivered=2**31 - 1, only=False)


def queue_full(queue: str, *, live: int, more: int, max_live: int | None) -> QueueFullError:
    """The error of an add that would make a queue fuller than it may be."""
    limit = live if max_live is None else max_live
    holds = f"{live:,}" if live < limit else f"{live:,} or more"
    return QueueFullError(
        f"the queue {queue!r} is full: {holds} of its jobs have not ended, and max_live is {limit:,}; "
        f"{more:,} more were to be added, and none was"
    )


class Firing(NamedTuple):
    """A spec's window with its jobs, and the window that comes then; None: the spec is removed."""

    key: str
    window: datetime
    next: datetime | None
    jobs: Sequence[EncodedJob]


class Wakeup:
    """An early word that there may be work. What was announced before `wait` was called is not missed."""

    def __init__(self, on_close: Callable[[Wakeup], None]) -> None:
        self._event = asyncio.Event()
        self._on_close = on_close

    def announce(self) -> None:
        self._event.set()

    async def wait(self, timeout: timedelta) -> bool:
        """Return when something was announced (True), or after `timeout` (False)."""
        try:
            await asyncio.wait_for(self._event.wait(), timeout.total_seconds())
        except TimeoutError:
            return False
        self._event.clear()
        return True

    def close(self) -> None:
        self._on_close(self)


class Store(ABC):
    """One place where messages live."""

    url: str

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @abstractmethod
    def now(self) -> datetime:
        """The store's time: the server's clock as far as it is known, so that all workers agree."""

    @abstractmethod
    async def open(self) -> Capabilities:
        """Connect, create what is missing, check what is there. Safe to call again."""

    @abstractmethod
    async def close(self) -> None:
        """Give everything back. Calls after this raise."""

    # -- publishing and delivering

    @abstractmethod
    async def add(
        self,
        queue: str,
        jobs: Sequence[EncodedJob],
        *,
        who: str,
        connection: Any = None,
        max_live: int | None = None,
    ) -> list[bool]:
        """Add all of them or none; for each whether it is new. `connection`: the caller's transaction.

        `QueueFullError` when the queue would then hold more than `max_live` jobs that have not ended.
        """

    @abstractmethod
    def add_blocking(
        self,
        queue: str,
        jobs: Sequence[EncodedJob],
        *,
        who: str,
        connection: Any,
        max_live: int | None = None,
    ) -> list[bool]:
        """`add` inside the transaction of a program without an event loop."""

    @abstractmethod
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
        """Acquire up to `limit` due jobs, by priority, then by `next_attempt_at`. None while paused.

        `suspects` says which jobs count as such, and whether they are left out or asked for.
        `begin_with` is a priority to begin with, then downwards, then those above: so that none starves.
        """

    @abstractmethod
    async def held(self, queue: str, leases: Sequence[int]) -> list[Delivery]:
        """What `fetch` gave out under these leases (`Delivery.lease`) and nobody has ended or taken back.

        For a program that was started anew and has only the numbers: what it gets can be settled, extended
        and released as if it had fetched it itself.
        """

    @abstractmethod
    async def settle(self, queue: str, settlements: Sequence[Settlement], *, who: str) -> list[Settlement]:
        """Write outcomes; gives back those whose lease was lost, which changed nothing."""

    @abstractmethod
    async def extend(self, queue: str, deliveries: Sequence[Delivery], *, lease: timedelta) -> list[Delivery]:
        """Renew the leases; gives back the deliveries whose lease was lost."""

    @abstractmethod
    async def release(
        self,
        queue: str,
        deliveries: Sequence[Delivery],
        *,
        who: str,
        counted: bool,
        until: Sequence[datetime] | None = None,
    ) -> None:
        """Put deliveries back as PENDING; unless `counted`, as if they had never been delivered.

        With `until` (one moment for each) they wait for their turn under a rate limit: that moment
        becomes their `next_attempt_at`, and their `slot_at` when they are fetched again.
        """

    @abstractmethod
    async def recover(self, queue: str, *, timeout: timedelta, who: str) -> list[str]:
        """Put back what a dead worker holds: lease over, or (without one) acquired `timeout` ago. The ids."""

    @abstractmethod
    async def next_due(self, queue: str) -> datetime | None:
        """When the first waiting job is due, in the past or in the future; None when none waits."""

    @abstractmethod
    def watch(self, queue: str) -> Wakeup:
        """From now on be told when a job may have become due. Close it when it is not needed any more."""

    # -- rate limits

    @abstractmethod
    async def set_rate_limits(self, queue: str, limits: RateLimits) -> None:
        """From now on, on every worker. Survives restarts."""

    @abstractmethod
    async def rate_limits(self, queue: str) -> RateLimits:
        """What was set; no limits where nothing was."""

    @abstractmethod
    async def take_turns(self, queue: str, *, wanted: int) -> int:
        """Take up to `wanted` turns from the queue's own limit now; how many there were.

        A negative `wanted` gives turns back that were not used.
        """

    @abstractmethod
    async def book(self, queue: str, keys: Sequence[str]) -> list[datetime]:
        """One turn for each rate key, in order: the moment from which it may be used, now or later."""

    # -- results

    @abstractmethod
    async def results(self, queue: str, job_ids: Sequence[str]) -> dict[str, bytes]:
        """What settlements kept as the results of jobs, of those that have one whose time is not over."""

    @abstractmethod
    def watch_results(self, queue: str) -> Wakeup:
        """Wakes when a result may have been kept; where the store cannot, only for those of this program."""

    # -- notes: what handlers say while they run

    @abstractmethod
    async def note(self, queue: str, notes: Sequence[Note], *, ttl: timedelta) -> None:
        """Keep them for this long: of progress the last word, of lines all, in order."""

    @abstractmethod
    async def progress(self, queue: str, job_ids: Sequence[str]) -> dict[str, Progressed]:
        """How far jobs are, of those that have said so."""

    @abstractmethod
    async def log(self, queue: str, job_id: str, *, after: int, limit: int) -> list[LogLine]:
        """Lines of a job in the order in which they were said, less the first `after`.

        All are there until the time of the last one is over: a reader counts them.
        """

    # -- repeatable jobs

    @abstractmethod
    async def put_repeat(self, queue: str, spec: Repeat, *, first: datetime, keep: bool) -> bool:
        """Write a spec under its key; whether it is new. Its next window is `first`.

        With `keep`, one that is there keeps its next window and its count; otherwise it begins anew.
        """

    @abstractmethod
    async def repeats(self, queue: str, *, key: str | None = None, limit: int) -> list[Repeating]:
        """Specs, or the one of a key, those that are due first first."""

    @abstractmethod
    async def remove_repeat(self, queue: str, key: str) -> bool:
        """Remove a spec; False if there is none. Jobs that it has made stay."""

    @abstractmethod
    async def fire(self, queue: str, firings: Sequence[Firing], *, who: str) -> list[bool]:
        """Add the jobs of windows and move their specs on, in one step; for each whether it was done.

        Only whoever knows a spec's next window can take it: of several schedulers, one.
        """

    # -- dead letters

    @abstractmethod
    async def count_dead(self, queue: str, which: DeadLetterFilter) -> dict[str, int]:
        """How many, by reason."""

    @abstractmethod
    async def peek_dead(
        self,
        queue: str,
        which: DeadLetterFilter,
        *,
        limit: int,
        after: str | None = None,
        oldest_first: bool = False,
    ) -> list[DeadLetter]:
        """Newest first, or oldest first (the order of a replay); from the one with cursor `after` on."""

    @abstractmethod
    async def replay_dead(
        self, queue: str, which: DeadLetterFilter, *, limit: int, who: str, dry_run: bool = False
    ) -> Replayed:
        """Move dead letters, oldest first, back to PENDING with attempts and deliveries at nought.

        With `dry_run` nothing changes; the answer is what would be done.
        """

    @abstractmethod
    async def drop_dead(self, queue: str, which: DeadLetterFilter, *, limit: int, who: str) -> list[str]:
        """Remove dead letters for good, oldest first; the ids."""

    # -- looking and operating

    @abstractmethod
    async def queues(self) -> list[str]:
        """The names of all queues that hold anything."""

    @abstractmethod
    async def stats(self, queue: str) -> Stats:
        """The queue in numbers."""

    @abstractmethod
    async def get(self, queue: str, job_id: str) -> JobRecord | None:
        """One job, live or ended."""

    @abstractmethod
    async def jobs(self, queue: str, *, state: State | None, name: str | None, limit: int) -> list[JobRecord]:
        """Jobs in the order in which they would run; ended ones newest first."""

    @abstractmethod
    async def records(self, queue: str, *, ended: bool, after: str | None, limit: int) -> RecordPage:
        """All live records in pages, or all ended ones that are still kept; `after` is a page's `next`.

        One that stays where it is comes once. On Redis one that is moved meanwhile (it is retried, its delay
        is over) may come twice; one that is rescheduled, or moved again and again, may be missed.
        """

    @abstractmethod
    async def cancel(self, queue: str, job_ids: Sequence[str], *, who: str) -> list[str]:
        """Remove waiting jobs, recorded as `cancelled`; the ids of those that were still waiting."""

    @abstractmethod
    async def ask_to_cancel(self, queue: str, job_ids: Sequence[str]) -> None:
        """Leave word for the workers that run these jobs."""

    @abstractmethod
    async def asked_to_cancel(self, queue: str) -> dict[str, datetime]:
        """The jobs for which word was left and not taken back, and when it was left."""

    @abstractmethod
    async def forget_to_cancel(self, queue: str, job_ids: Sequence[str]) -> None:
        """Take the word back: the jobs have ended, or it is old."""

    @abstractmethod
    async def reschedule(self, queue: str, job_id: str, *, at: datetime) -> bool:
        """Give a waiting job another `next_attempt_at`; False when it does not wait (any more)."""

    @abstractmethod
    async def set_expiry(self, queue: str, job_id: str, *, at: datetime | None) -> bool:
        """Let a waiting job expire at another moment, or never; False when it does not wait (any more)."""

    @abstractmethod
    async def pause(self, queue: str) -> None:
        """From now on `fetch` gives nothing; what runs goes on. Survives restarts."""

    @abstractmethod
    async def resume(self, queue: str) -> None:
        """End a pause."""

    @abstractmethod
    async def purge(self, queue: str, *, who: str) -> int:
        """Remove every waiting job; the number of them. Running ones and dead letters stay."""

    @abstractmethod
    async def prune(
        self,
        queue: str,
        *,
        completed_before: datetime | None,
        failed_before: datetime | None,
        who: str,
        limit: int,
    ) -> int:
        """Remove ended jobs that are past their retention, up to `limit`; the number of them."""

    @abstractmethod
    async def take_back(self, queue: str, *, who: str) -> list[str]:
        """Put back what any worker holds, dead or alive; the ids. Outcomes that come later do not count."""

    @abstractmethod
    async def forget(self, queue: str) -> None:
        """Forget all that is kept beside jobs: specs, limits, a pause, results, notes, words to cancel.

        The trail stays, and with it the numbers of its transitions. Not in one step on Redis: call it again.
        """

    # -- the trail: a queue's by the queue's name, a fleet's by `command_trail.trail_name`

    @abstractmethod
    async def trails(self) -> list[str]:
        """The names of all trails that ever had a transition, of queues and of fleets."""

    @abstractmethod
    async def trail_span(self, trail: str) -> TrailSpan:
        """Which numbers there are. What is read up to `last` from now on stays as it is, unless trimmed."""

    @abstractmethod
    async def trail_entries(self, trail: str, *, after: int, up_to: int, limit: int) -> list[TrailEntry]:
        """Whole packed entries that reach beyond `after` and begin at or before `up_to`, in order.

        About `limit` transitions, at least one entry when there is one; none means that there is no more.
        Only what `trail_span` has told of is found: ask for it first.
        """

    @abstractmethod
    async def transitions(self, queue: str, *, after: int, limit: int) -> TrailPage:
        """Recorded transitions with a sequence number above `after`, about `limit` of them."""

    @abstractmethod
    async def trail_offset(self, queue: str, *, since: datetime) -> int:
        """A sequence number after which every transition since a moment stands, and few older ones."""

    @abstractmethod
    async def trim_transitions(self, queue: str, *, up_to: int) -> int:
        """Forget entries whose every transition has a number of at most `up_to`; how many transitions."""

    @abstractmethod
    async def forget_trail(self, queue: str) -> None:
        """Forget a trail with its numbers, which would begin anew.

        Only for a queue that was obliterated and is never used again: whoever has read the trail could not
        tell new numbers from old ones.
        """
