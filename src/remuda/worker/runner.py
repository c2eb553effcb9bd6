"""The runner: one delivery, or one batch of them, from its bytes to its outcome."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from remuda.codec import CONTENT_TYPE, decode_headers, decode_payload, encode_payload
from remuda.errors import DecodeError, HandlerTimeoutError, InvalidJobError, JobCancelledError
from remuda.lifecycle import Reason, State
from remuda.queue import Queue
from remuda.results import encode_failure
from remuda.stores.contract import Delivery, Settlement
from remuda.worker.handlers import Handler, Handlers, Middleware
from remuda.worker.job import ACK, Job
from remuda.worker.notes import NoteTaker
from remuda.worker.options import AckPolicy, WorkerOptions
from remuda.worker.outcomes import settle_run, text_of, undecodable, unheard
from remuda.worker.settler import Settler

log = logging.getLogger("remuda.worker")


_NOTHING = object()  # a middleware did not call the handler


class _Run(NamedTuple):
    """How a handler's run ended: with what it returned, or with what it raised."""

    returned: Any
    error: BaseException | None


class _AtWork(NamedTuple):
    """The jobs of a handler that runs; its task, where that can be cancelled for one job's sake."""

    jobs: list[Job]
    task: asyncio.Task[Any] | None


class Runner:
    """Runs handlers. Whatever one does, the result is an outcome; only a cancellation passes through."""

    def __init__(
        self,
        queue: Queue,
        who: str,
        options: WorkerOptions,
        handlers: Handlers,
        middlewares: Sequence[Middleware],
        settler: Settler,
        notes: NoteTaker,
        executor: ThreadPoolExecutor,
        rng: random.Random,
    ) -> None:
        self._queue = queue.name
        self._max_result_bytes = queue.max_payload_bytes
        self._now = queue.store.now
        self._who = who
        self._options = options
        self._handlers = handlers
        self._middlewares = tuple(middlewares)
        self._settler = settler
        self._notes = notes
        self._executor = executor
        self._rng = rng
        self._threads: dict[asyncio.Task[Any] | None, Future[Any]] = {}
        self._at_work: dict[str, _AtWork] = {}

    @property
    def threads_running(self) -> int:
        """Plain functions that have not returned, whether anybody waits for them or not."""
        return sum(not each.done() for each in self._threads.values())

    def is_in_thread(self, task: asyncio.Task[Any]) -> bool:
        """Whether the plain function that a task ran last is still running."""
        thread = self._threads.get(task)
        return thread is not None and not thread.done()

    @property
    def at_work(self) -> Collection[str]:
        """The ids of the jobs whose handlers run."""
        return self._at_work.keys()

    def cancel(self, job_id: str, *, asked_at: datetime) -> bool:
        """Somebody wants it to end: a coroutine is cancelled, another handler can look for itself.

        False when it was another job that was meant: one that had the same id before.
        """
        found = self._at_work.get(job_id)
        if found is None:
            return False
        meant = [job for job in found.jobs if job.id == job_id and job.created_at <= asked_at]
        for job in meant:
            job.cancelled = True
            if found.task is not None:
                found.task.cancel()
        return bool(meant)

    async def run_one(self, delivery: Delivery, handler: Handler | None, started_at: datetime) -> None:
        """From a delivery to an outcome in the settler's hands."""
        job = self._open(delivery, started_at)
        if job is None:
            return
        if handler is None:
            self._settle(delivery, job, started_at, self._handlers.missing(delivery.name), None)
            return
        try:
            arguments = (job,) if handler.arguments is None else handler.arguments(job)
        except DecodeError as unfit:
            self._put(undecodable(delivery, unfit))
            return
        if self._options.ack_policy is AckPolicy.ACK_FIRST and not await self._ack_first(
            delivery, started_at
        ):
            return
        task = asyncio.current_task() if handler.is_async else None
        self._at_work[job.id] = _AtWork([job], task)
        try:
            returned, error = await self._run(handler, job, arguments)
        finally:
            self._at_work.pop(job.id, None)
            if job.cancelled and task is not None:
                task.uncancel()  # whatever the handler made of it: the next job's handler is another
        if self._options.ack_policy is AckPolicy.ACK_FIRST:
            self._note_error(job, error)
        else:
            result = self._encoded(job, returned) if self._options.store_results and error is None else None
            self._settle(delivery, job, started_at, error, result)

    async def run_batch(self, handler: Handler, deliveries: list[Delivery]) -> None:
        """A batch handler with all that can be read; each delivery gets an outcome of its own."""
        started_at = self._now()
        opened = [(each, job) for each in deliveries if (job := self._open(each, started_at)) is not None]
        if self._options.ack_policy is AckPolicy.ACK_FIRST:
            acked = await asyncio.gather(*(self._ack_first(each, started_at) for each, _ in opened))
            opened = [pair for pair, held in zip(opened, acked, strict=True) if held]
        if not opened:
            return
        jobs = [job for _, job in opened]
        for job in jobs:
            self._at_work[job.id] = _AtWork(jobs, None)
        try:
            _, error = await self._run(handler, None, (jobs,))
        finally:
            for job in jobs:
                self._at_work.pop(job.id, None)
        for delivery, job in opened:
            if self._options.ack_policy is AckPolicy.ACK_FIRST:
                self._note_error(job, error)
            else:
                self._settle(delivery, job, started_at, error, None)

    def _open(self, delivery: Delivery, now: datetime) -> Job | None:
        """The job of a delivery; None when it has met its end unheard."""
        ended = unheard(
            delivery,
            now=now,
            max_deliveries=self._options.max_deliveries,
            max_payload_bytes=self._options.max_payload_bytes,
        )
        if ended is not None:
            log.warning(
                "job %s (%s) is a dead letter: %s",
                delivery.id,
                delivery.name,
                ended.reason,
                extra={"action": "dead_unheard", "job": delivery.id, "reason": ended.reason},
            )
            self._put(ended)
            return None
        try:
            headers = decode_headers(delivery.headers) if delivery.headers is not None else {}
        except DecodeError as error:
            self._put(undecodable(delivery, error, Reason.MALFORMED))
            return None
        try:
            payload = decode_payload(delivery.payload, headers.get(CONTENT_TYPE), foreign=delivery.foreign)
        except DecodeError as error:
            self._put(undecodable(delivery, error))
            return None
        return Job(
            id=delivery.id,
            name=delivery.name,
            payload=payload,
            headers=headers,
            queue=self._queue,
            attempt=delivery.attempts + 1,
            deliveries=delivery.deliveries,
            priority=delivery.priority,
            created_at=delivery.created_at,
            expires_at=delivery.expires_at,
            worker=self._who,
            notebook=self._notes.notebook(delivery.id, delivery.attempts + 1),
        )

    async def _ack_first(self, delivery: Delivery, started_at: datetime) -> bool:
        settlement = settle_run(
            delivery,
            started_at=started_at,
            verdict=ACK,
            error=None,
            ack_policy=AckPolicy.ACK_FIRST,
            retry=self._options.retry,
            now=started_at,
            rng=self._rng,
            keep=self._options.archive_completed,
        )
        return await self._settler.written(settlement)

    def _encoded(self, job: Job, returned: Any) -> bytes | None:
        """What a handler returned as it is kept. If it cannot be, the job is done all the same."""
        if returned is _NOTHING:
            return None
        try:
            return encode_payload(returned, name=job.name, max_bytes=self._max_result_bytes)
        except InvalidJobError as error:
            log.error(
                "the result of job %s (%s) cannot be kept: %s",
                job.id,
                job.name,
                error,
                extra={"action": "result_refused", "job": job.id, "job_name": job.name},
            )
            return None

    def _settle(
        self,
        delivery: Delivery,
        job: Job,
        started_at: datetime,
        error: BaseException | None,
        result: bytes | None,
    ) -> None:
        if error is None and job.verdict is None and self._options.ack_policy is not AckPolicy.MANUAL:
            # What nearly every delivery comes to, without asking anybody.
            self._put(
                Settlement(
                    delivery=delivery,
                    state=State.COMPLETED,
                    started_at=started_at,
                    keep=self._options.archive_completed,
                    result=result,
                    result_ttl=self._options.result_ttl,
                )
            )
            return
        self._note_error(job, error)
        try:
            settlement = settle_run(
                delivery,
                started_at=started_at,
                verdict=job.verdict,
                error=error,
                ack_policy=self._options.ack_policy,
                retry=self._options.retry,
                now=self._now(),
                rng=self._rng,
                keep=self._options.archive_completed,
                result=result,
                result_ttl=self._options.result_ttl,
            )
        except Exception as broken:
            log.exception("the retry policy failed", extra={"action": "retry_policy_failed", "job": job.id})
            settlement = undecodable(delivery, broken, Reason.RETRIES_EXHAUSTED)
            settlement.started_at = started_at
        self._put(settlement)

    def _put(self, settlement: Settlement) -> None:
        if self._options.store_results and settlement.state is State.FAILED:
            settlement.result = encode_failure(settlement.reason, settlement.failure)
            settlement.result_ttl = self._options.result_ttl
        self._settler.put(settlement)

    def _note_error(self, job: Job, error: BaseException | None) -> None:
        if error is not None:
            log.warning(
                "job %s (%s) failed in attempt %d: %s: %s",
                job.id,
                job.name,
                job.attempt,
                type(error).__name__,
                text_of(error),
                extra={"action": "handler_failed", "job": job.id, "job_name": job.name},
            )

    async def _run(self, handler: Handler, job: Job | None, arguments: tuple[Any, ...]) -> _Run:
        """Run it; what came of it. Our own cancellation passes through."""
        timeout = handler.timeout or self._options.handler_timeout
        try:
            if handler.is_async and timeout is None and not self._middlewares:
                return _Run(await handler.function(*arguments), None)
            return _Run(await self._call(handler, job, arguments, timeout), None)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if job is not None and job.cancelled and task is not None and task.cancelling() <= 1:
                return _Run(None, JobCancelledError(f"job {job.id} was cancelled while it ran"))
            if task is not None and task.cancelling():
                raise
            return _Run(None, error)  # the handler's own doing
        except BaseException as error:  # noqa: BLE001 - even SystemExit is this job's outcome, not the worker's end
            return _Run(None, error)

    async def _call(
        self, handler: Handler, job: Job | None, arguments: tuple[Any, ...], timeout: timedelta | None
    ) -> Any:
        """With its middleware and time-out; what the handler itself returned."""
        returned: Any = _NOTHING

        async def call_handler() -> Any:
            # Noted here, for a middleware need not pass it on.
            nonlocal returned
            if handler.is_async:
                returned = await handler.function(*arguments)
            else:
                returned = await self._in_thread(handler, arguments, timeout)
            return returned

        call: Callable[[], Awaitable[Any]] = call_handler
        if job is not None:
            for middleware in reversed(self._middlewares):
                call = _wrapped(middleware, job, call)
        if timeout is None or not handler.is_async:
            await call()
            return returned
        limit = asyncio.timeout(timeout.total_seconds())
        try:
            async with limit:
                await call()
        except TimeoutError:
            if limit.expired():
                raise HandlerTimeoutError(f"the handler ran longer than {timeout}") from None
            raise
        return returned

    async def _in_thread(
        self, handler: Handler, arguments: tuple[Any, ...], timeout: timedelta | None
    ) -> Any:
        """A plain function. No thread can be stopped: past its time-out it has failed when it returns."""
        loop = asyncio.get_running_loop()
        context = contextvars.copy_context()
        started = loop.time()
        thread = self._executor.submit(context.run, _outcome_of, handler.function, arguments)
        self._threads[asyncio.current_task()] = thread
        run = await asyncio.wrap_future(thread)
        if run.error is not None:
            raise run.error
        if timeout is not None and loop.time() - started > timeout.total_seconds():
            raise HandlerTimeoutError(f"the handler ran longer than {timeout}")
        return run.returned


def _wrapped(
    middleware: Middleware, job: Job, inner: Callable[[], Awaitable[Any]]
) -> Callable[[], Awaitable[Any]]:
    return lambda: middleware(job, inner)


def _outcome_of(function: Callable[..., Any], arguments: tuple[Any, ...]) -> _Run:
    """Run a plain function; its error as a value, for not every exception can cross a future."""
    try:
        return _Run(function(*arguments), None)
    except BaseException as error:  # noqa: BLE001 - it is the outcome
        return _Run(None, error)
