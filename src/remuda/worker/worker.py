"""Worker: fetches, runs, settles, keeps leases, recovers what dead workers left."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from remuda.errors import ConfigurationError
from remuda.identity import make_identity
from remuda.queue import Queue
from remuda.retry import DEFAULT_RETRY, RetryCallable, RetryPolicy
from remuda.worker.counts import Counts
from remuda.worker.handlers import AnyHandler, Handlers, Middleware
from remuda.worker.intake import Fairness
from remuda.worker.opening import open_unless_stopped
from remuda.worker.options import AckPolicy, Retention, WorkerOptions
from remuda.worker.shift import Shift
from remuda.worker.signals import end_process, stopped_by_signals

F = TypeVar("F", bound=AnyHandler)


class Worker:
    """Runs the jobs of one queue.

    >>> worker = Worker(queue, concurrency=100, max_deliveries=5)
    >>> @worker.handler("welcome")
    ... async def welcome(job: Job) -> None: ...
    >>> await worker.run()

    The options are those of `WorkerOptions`. A handler is a coroutine function, or a plain function,
    which then runs in a thread.
    """

    def __init__(
        self,
        queue: Queue,
        *,
        concurrency: int = 10,
        fetch_batch_size: int = 250,
        overfetch_factor: float = 1.5,
        min_fetch_interval: timedelta = timedelta(0),
        max_fetch_interval: timedelta = timedelta(seconds=1),
        flush_interval: timedelta = timedelta(milliseconds=10),
        release_stuck_timeout: timedelta = timedelta(seconds=60),
        release_stuck_interval: timedelta = timedelta(seconds=10),
        graceful_timeout: timedelta = timedelta(seconds=15),
        max_deliveries: int | None = None,
        ack_policy: AckPolicy | str = AckPolicy.NACK_ON_ERROR,
        retry: RetryPolicy | RetryCallable = DEFAULT_RETRY,
        handler_timeout: timedelta | None = None,
        max_payload_bytes: int = 16 * 1024 * 1024,
        archive_completed: bool = True,
        store_results: bool = False,
        result_ttl: timedelta = timedelta(hours=1),
        notes_ttl: timedelta = timedelta(days=7),
        retention: Retention = Retention(),  # noqa: B008 - frozen
        schedule: bool = True,
        rng: random.Random | None = None,
    ) -> None:
        self.queue = queue
        self.options = WorkerOptions(
            concurrency=concurrency,
            fetch_batch_size=fetch_batch_size,
            overfetch_factor=overfetch_factor,
            min_fetch_interval=min_fetch_interval,
            max_fetch_interval=max_fetch_interval,
            flush_interval=flush_interval,
            release_stuck_timeout=release_stuck_timeout,
            release_stuck_interval=release_stuck_interval,
            graceful_timeout=graceful_timeout,
            max_deliveries=max_deliveries,
            ack_policy=_ack_policy(ack_policy),
            retry=retry,
            handler_timeout=handler_timeout,
            max_payload_bytes=max_payload_bytes,
            archive_completed=archive_completed,
            store_results=store_results,
            result_ttl=result_ttl,
            notes_ttl=notes_ttl,
            retention=retention,
            schedule=schedule,
        )
        self.who = make_identity("worker")
        self.counts = Counts()
        self.fairness = Fairness()
        self.handlers = Handlers()
        self.middlewares: list[Middleware] = []
        self.rng = rng or random.Random()
        self._shift: Shift | None = None

    def __repr__(self) -> str:
        return f"Worker({self.queue!r}, handlers={self.handlers.names})"

    # -- registering

    def handler(self, name: str | None = None, *, timeout: timedelta | None = None) -> Callable[[F], F]:
        """Run the decorated function for jobs of this name; without a name, for all that have no other.

        Its parameters are filled by what they are: a `Job`; the payload (named `payload`, or with a
        type, to which it is converted and checked by msgspec or pydantic); or something `provide`d.
        """

        def register(function: F) -> F:
            self.handlers.register(name, function, timeout=timeout)
            return function

        return register

    def batch_handler(
        self, name: str, *, max_size: int = 100, timeout: timedelta | None = None
    ) -> Callable[[F], F]:
        """Run the decorated function with a list of jobs: those of this name that were fetched together.

        Each job may be acked, nacked or rejected by hand; what the function raises counts for the rest.
        """

        def register(function: F) -> F:
            self.handlers.register(name, function, timeout=timeout, batch=max_size)
            return function

        return register

    def middleware(self, function: Middleware) -> Middleware:
        """Wrap every single-job handler: `async def around(job, call_next): … await call_next() …`."""
        self.middlewares.append(function)
        return function

    def provide(self, kind: type[Any], value: Any) -> None:
        """Give `value` to every handler parameter annotated with `kind`. Call it before registering."""
        self.handlers.provide(kind, value)

    # -- running

    async def run(self, *, until_empty: bool = False, signals: bool = True) -> None:
        """Work until stopped: by `stop`, or (with `signals`) by SIGTERM or SIGINT.

        The first signal drains: running handlers finish, what was not started goes back uncounted.
        The second ends at once. A plain function that does not return in time cannot be stopped: then the
        process is ended (with `signals`; without, its job may run elsewhere once the lease is over).
        With `until_empty` it also ends when nothing is due and nothing runs.
        """
        if self._shift is not None:
            raise ConfigurationError("this worker is running already")
        if not self.handlers:
            raise ConfigurationError("this worker has no handlers; register one with @worker.handler(name)")
        self._shift = shift = Shift(self, until_empty=until_empty)
        try:
            with stopped_by_signals(self.stop) if signals else contextlib.nullcontext():
                if await open_unless_stopped(self.queue, shift.stopping):
                    await shift.run()
            if signals and shift.threads_running:
                end_process(shift.threads_running)
        finally:
            self._shift = None

    def stop(self) -> None:
        """Begin to drain; a second call ends at once. Safe to call from a signal handler of the loop."""
        if self._shift is not None:
            self._shift.stop()

    async def step(self) -> int:
        """Fetch one batch, run it and settle it, here and now; how many jobs that was. For tests."""
        await self.queue.open()
        return await Shift(self, until_empty=True).one_round()


def _ack_policy(word: AckPolicy | str) -> AckPolicy:
    try:
        return AckPolicy(word)
    except ValueError:
        raise ConfigurationError(f"ack_policy is one of {', '.join(AckPolicy)}, not {word!r}") from None
