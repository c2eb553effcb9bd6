"""One run of a worker: its loops, what they share, and how they end."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING, Any

from remuda.backoff import Backoff
from remuda.errors import StoreUnavailableError
from remuda.stores.contract import Delivery
from remuda.worker.canceller import Canceller
from remuda.worker.holdings import Holdings
from remuda.worker.intake import Intake
from remuda.worker.keeper import LeaseKeeper
from remuda.worker.notes import NoteTaker
from remuda.worker.recoverer import Recoverer
from remuda.worker.runner import Runner
from remuda.worker.scheduler import Scheduler
from remuda.worker.settler import Settler

if TYPE_CHECKING:
    from remuda.worker.worker import Worker

log = logging.getLogger("remuda.worker")

LAST_WORDS_S = 5.0  # for the final writes when a worker must end at once
YIELD_EVERY_S = 0.002  # handlers that never wait must not keep the loop from its other work


class Shift:
    """The reader and the runners of one run; settler, lease keeper and recoverer beside them."""

    def __init__(self, worker: Worker, *, until_empty: bool) -> None:
        self._options = worker.options
        self._queue = worker.queue.name
        self._store = worker.queue.store
        self._who = worker.who
        self._handlers = worker.handlers
        self._until_empty = until_empty
        self._counts = worker.counts
        self._units: deque[list[Delivery] | None] = deque()
        self._work_waits = asyncio.Event()
        self._yielded = 0.0
        self._buffered = 0
        self._running: dict[asyncio.Task[None], list[Delivery]] = {}
        self._alone: asyncio.Event | None = None
        self._someone_finished = asyncio.Event()
        self._room = asyncio.Event()
        self.stopping = asyncio.Event()
        self._at_once = asyncio.Event()
        self._executor = ThreadPoolExecutor(worker.options.concurrency, thread_name_prefix="remuda-handler")
        self._holdings = Holdings(worker.counts)
        self._intake = Intake(self._store, self._queue, self._who, self._options, worker.fairness)
        self._notes = NoteTaker(self._store, self._queue, ttl=self._options.notes_ttl)
        self._settler = Settler(
            self._store,
            self._queue,
            self._who,
            interval=self._options.flush_interval,
            batch_size=self._options.fetch_batch_size,
            before=self._notes.write,
            on_written=self._holdings.written,
        )
        self._keeper = LeaseKeeper(
            self._store,
            self._queue,
            self._options.release_stuck_timeout,
            self._holdings,
            self._settler,
            self._cancel_lost,
        )
        self._recoverer = Recoverer(self._store, self._queue, self._who, self._options, self._counts)
        self._scheduler = Scheduler(self._store, self._queue, self._who)
        self._runner = Runner(
            worker.queue,
            self._who,
            self._options,
            worker.handlers,
            worker.middlewares,
            self._settler,
            self._notes,
            self._executor,
            worker.rng,
        )

        self._canceller = Canceller(self._store, self._queue, self._runner)

    # -- from outside

    def stop(self) -> None:
        """Drain; the second time, end at once."""
        if self.stopping.is_set():
            self._at_once.set()
        self.stopping.set()

    @property
    def threads_running(self) -> int:
        """Plain functions that are still running, though the shift may be over."""
        return self._runner.threads_running

    async def run(self) -> None:
        """All loops, until stopped; then drain."""
        log.info(
            "worker %s runs queue %r on %s",
            self._who,
            self._queue,
            self._store.url,
            extra={"action": "worker_started"},
        )
        reader = asyncio.create_task(self._read(), name="remuda-reader")
        runners = [
            asyncio.create_task(self._work(), name=f"remuda-runner-{number}")
            for number in range(self._options.concurrency)
        ]
        upkeep = [
            asyncio.create_task(self._settler.run(), name="remuda-settler"),
            asyncio.create_task(self._keeper.run(), name="remuda-lease-keeper"),
            asyncio.create_task(self._recoverer.run(), name="remuda-recoverer"),
        ]
        upkeep.append(asyncio.create_task(self._notes.run(), name="remuda-note-taker"))
        upkeep.append(asyncio.create_task(self._canceller.run(), name="remuda-canceller"))
        if self._options.schedule:
            upkeep.append(asyncio.create_task(self._scheduler.run(), name="remuda-scheduler"))
        stopping = asyncio.create_task(self.stopping.wait())
        try:
            # No loop ends by itself: one that does has met something it has no answer to.
            await asyncio.wait({stopping, reader, *runners, *upkeep}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._at_once.set()
            raise
        finally:
            self.stopping.set()
            await asyncio.shield(asyncio.create_task(self._drain(reader, runners, upkeep)))
            stopping.cancel()
        for task in (reader, *runners, *upkeep):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def one_round(self) -> int:
        """Fetch once, run all of it, settle all of it."""
        try:
            deliveries = await self._intake.fetch(self._options.fetch_batch_size)
            while not deliveries and self._intake.more:  # all of it was put back until its turn
                deliveries = await self._intake.fetch(self._options.fetch_batch_size)
            self._accept(deliveries)
            settling = asyncio.create_task(self._settler.run())
            while self._buffered:
                unit = self._take(self._units.popleft(), self._store.now())
                if unit:
                    await self._running_of(unit, self._store.now())
            settling.cancel()
            await asyncio.wait({settling})
            while self._settler.unwritten:
                await self._settler.flush()
            await self._notes.write()
        finally:
            self._executor.shutdown(wait=False)
        return len(deliveries)

    # -- the reader

    async def _read(self) -> None:
        options = self._options
        backoff = Backoff("jobs cannot be fetched", log)
        wakeup = self._store.watch(self._queue)
        try:
            while not self.stopping.is_set():
                limit = await self._free_capacity()
                try:
                    deliveries = await self._intake.fetch(limit)
                except StoreUnavailableError as error:
                    await self._unless_stopping(backoff.wait(error))
                    continue
                backoff.over()
                self._accept(deliveries)
                if self._intake.suspect is not None:
                    await self._unless_stopping(self._intake.suspect_ended())
                elif self._intake.more:
                    # Without a pause the next fetch is on its way before the handlers have the loop.
                    if options.min_fetch_interval:
                        await self._unless_stopping(asyncio.sleep(options.min_fetch_interval.total_seconds()))
                elif self._intake.out_of_turns:
                    # New jobs, which would wake it, could not be fetched either.
                    await self._unless_stopping(asyncio.sleep(self._intake.pause.total_seconds()))
                elif self._until_empty:
                    await self._stop_when_done(deliveries)
                elif self._intake.held_back:
                    idle = await self._intake.idle_time()
                    await self._unless_stopping(asyncio.sleep(idle.total_seconds()))
                else:
                    await self._unless_stopping(wakeup.wait(await self._intake.idle_time()))
        finally:
            wakeup.close()

    async def _free_capacity(self) -> int:
        """How many to ask for; waits until that is worth a fetch."""
        options = self._options
        worthwhile = max(1, min(options.fetch_batch_size, options.buffer_size) // 4)
        while not self.stopping.is_set():
            free = options.buffer_size - self._buffered
            if free >= worthwhile or not self._buffered:
                return max(1, min(options.fetch_batch_size, free))
            self._room.clear()
            await self._unless_stopping(self._room.wait())
        return 1

    async def _stop_when_done(self, deliveries: Sequence[Delivery]) -> None:
        """Stop when nothing was due and nothing is buffered, running or unwritten."""
        if not deliveries and not self._buffered and not self._running and not self._settler.unwritten:
            self.stopping.set()
        else:
            await asyncio.sleep(0.01)

    async def _unless_stopping(self, waiting: Any) -> None:
        """Wait for something, or until the worker is told to stop."""
        first = asyncio.ensure_future(waiting)
        second = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (first, second):
                task.cancel()
            await asyncio.gather(first, second, return_exceptions=True)
        if not first.cancelled():
            first.result()

    def _accept(self, deliveries: Sequence[Delivery]) -> None:
        """Into the buffer: one by one, or together for a batch handler."""
        self._holdings.take_in(deliveries)
        self._buffered += len(deliveries)
        batches: dict[str, list[Delivery]] = {}
        for delivery in deliveries:
            handler = self._handlers.find(delivery.name)
            if handler is None or handler.batch is None or delivery is self._intake.suspect:
                self._units.append([delivery])
                continue
            batch = batches.setdefault(delivery.name, [])
            batch.append(delivery)
            if len(batch) == handler.batch:
                self._units.append(batches.pop(delivery.name))
        self._units.extend(batches.values())
        if self._units:
            self._work_waits.set()

    # -- the runners

    async def _work(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise AssertionError("unreachable")
        loop = asyncio.get_running_loop()
        while True:
            # One watch for all runners: whoever finds it run out lets the others see to the sockets.
            if loop.time() - self._yielded > YIELD_EVERY_S:
                await asyncio.sleep(0)
                self._yielded = loop.time()
            if not self._units:
                self._work_waits.clear()
                await self._work_waits.wait()
                continue
            if self._alone is not None:
                await self._alone.wait()
                continue
            next_unit = self._units.popleft()
            if next_unit is None:
                return
            now = self._store.now()
            unit = self._take(next_unit, now)
            if not unit:
                continue
            self._running[task] = unit
            try:
                await self._running_of(unit, now)
            except asyncio.CancelledError:
                if self.stopping.is_set() or not all(each.lost for each in unit):
                    raise  # its deliveries stay in `_running` for the drain to give back
                task.uncancel()
                log.warning(
                    "a handler was cancelled: another worker has its job",
                    extra={"action": "lease_lost", "jobs": [each.id for each in unit]},
                )
            del self._running[task]
            self._someone_finished.set()

    def _take(self, unit: list[Delivery] | None, now: datetime) -> list[Delivery]:
        """Out of the buffer, less what was lost while it waited there."""
        if unit is None:
            return []
        self._buffered -= len(unit)
        if not self._room.is_set():
            self._room.set()
        kept = self._holdings.still_ours(unit, now)
        if not kept and unit[0] is self._intake.suspect:
            self._intake.end_suspect()
        return kept

    # Not async themselves: every job would pay for another coroutine.

    def _running_of(self, unit: list[Delivery], now: datetime) -> Coroutine[Any, Any, None]:
        return self._run_alone(unit) if unit[0] is self._intake.suspect else self._run_of(unit, now)

    def _run_of(self, unit: list[Delivery], now: datetime) -> Coroutine[Any, Any, None]:
        handler = self._handlers.find(unit[0].name)
        if handler is not None and handler.batch is not None:
            return self._runner.run_batch(handler, unit)
        return self._runner.run_one(unit[0], handler, now)

    async def _run_alone(self, unit: list[Delivery]) -> None:
        """Nothing else runs meanwhile: whatever happens to this process, it was this job's doing."""
        self._alone = asyncio.Event()
        try:
            task = asyncio.current_task()
            while any(each is not task for each in self._running):
                self._someone_finished.clear()
                await self._someone_finished.wait()
            await self._run_of(unit, self._store.now())
            # Written before anything else may go wrong: it will not be delivered once more.
            while unit[0] in self._holdings and self._settler.unwritten:
                await self._settler.flush()
        finally:
            self._intake.end_suspect()
            self._alone.set()
            self._alone = None

    def _cancel_lost(self, delivery: Delivery) -> None:
        """Another worker has it: a handler that runs for nothing else is cancelled."""
        for task, unit in self._running.items():
            if any(each is delivery for each in unit):
                if all(each.lost for each in unit):
                    task.cancel()
                return

    # -- stopping

    async def _drain(
        self,
        reader: asyncio.Task[None],
        runners: list[asyncio.Task[None]],
        upkeep: list[asyncio.Task[None]],
    ) -> None:
        """Unstarted ones go back uncounted, running ones finish or are cancelled, outcomes are written."""
        # A fetch under way is waited for: cancelled, it could leave jobs leased to nobody.
        await asyncio.wait({reader}, timeout=LAST_WORDS_S)
        reader.cancel()
        unstarted = self._unstarted()
        self._units.extend([None] * len(runners))
        self._work_waits.set()
        await self._give_back(unstarted, counted=False)
        await self._wait_for_handlers(runners)
        for task in runners:
            task.cancel()
        await asyncio.gather(reader, *runners, return_exceptions=True)
        settler, *others = upkeep
        await self._last_words(settler)
        await self._give_back(self._cut_off(), counted=True)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._notes.write()  # of handlers that were cut off
        self._executor.shutdown(wait=False, cancel_futures=True)
        log.info("worker %s has stopped", self._who, extra={"action": "worker_stopped"})

    def _unstarted(self) -> list[Delivery]:
        found: list[Delivery] = []
        while self._units:
            found += self._take(self._units.popleft(), self._store.now())
        return found

    async def _wait_for_handlers(self, runners: list[asyncio.Task[None]]) -> None:
        """Until they have finished, for `graceful_timeout`, or until somebody is in a hurry."""
        at_once = asyncio.create_task(self._at_once.wait())
        finished = asyncio.create_task(asyncio.wait(runners))
        await asyncio.wait(
            {at_once, finished},
            timeout=self._options.graceful_timeout.total_seconds(),
            return_when=asyncio.FIRST_COMPLETED,
        )
        at_once.cancel()
        finished.cancel()

    def _cut_off(self) -> list[Delivery]:
        """Cancelled in the middle of a handler: it may have had effects, so the delivery counts.

        A thread goes on; its job stays leased, for nobody else may have it before the process has ended.
        """
        return [
            each
            for task, unit in self._running.items()
            if not self._runner.is_in_thread(task)
            for each in unit
            if each in self._holdings
        ]

    async def _give_back(self, deliveries: list[Delivery], *, counted: bool) -> None:
        if not deliveries:
            return
        try:
            await asyncio.wait_for(
                self._store.release(self._queue, deliveries, who=self._who, counted=counted), LAST_WORDS_S
            )
        except (StoreUnavailableError, TimeoutError) as error:
            log.warning(
                "%d jobs could not be given back; they are delivered again when their lease ends: %s",
                len(deliveries),
                error,
                extra={"action": "release_failed"},
            )
        self._holdings.let_go(deliveries)
        self._counts.released += len(deliveries)

    async def _last_words(self, settler: asyncio.Task[None]) -> None:
        """Write every outcome that is left, for as long as a stop may take."""
        self._settler.hurry = True
        limit = max(LAST_WORDS_S, self._options.graceful_timeout.total_seconds())
        try:
            async with asyncio.timeout(LAST_WORDS_S if self._at_once.is_set() else limit):
                while self._settler.unwritten:
                    await self._settler.flush()
        except TimeoutError:
            log.error(
                "%d outcomes could not be written; their jobs are delivered again when their lease ends",
                self._settler.unwritten,
                extra={"action": "outcomes_unwritten"},
            )
        settler.cancel()
        await asyncio.gather(settler, return_exceptions=True)
