"""One run of a worker: the reader, the runners, the settler, the lease keeper, the recoverer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from remuda.backoff import Backoff
from remuda.errors import StoreUnavailableError
from remuda.lifecycle import State
from remuda.stores.contract import Delivery, Settlement, Suspects
from remuda.worker.runner import Runner
from remuda.worker.settler import Settler

if TYPE_CHECKING:
    from remuda.worker.worker import Worker

log = logging.getLogger("remuda.worker")

PRUNE_EVERY_ROUNDS = 6
PRUNE_CHUNK = 500
LAST_WORDS_S = 5.0  # for the final writes when a worker must end at once
SUSPECTS_EVERY_S = 1.0  # while the queue is full, how often to look for jobs on their last delivery
YIELD_EVERY_S = 0.005  # handlers that never wait must not keep the loop from its other work


class Counts(msgspec.Struct):
    """What a worker has done since it was made."""

    fetched: int = 0
    completed: int = 0
    retried: int = 0
    failed: int = 0
    released: int = 0
    lost: int = 0
    recovered: int = 0


class Shift:
    """The loops of one run, and what they share."""

    def __init__(self, worker: Worker, *, until_empty: bool) -> None:
        self._options = worker.options
        self._queue = worker.queue.name
        self._store = worker.queue.store
        self._who = worker.who
        self._handlers = worker.handlers
        self._until_empty = until_empty
        self._counts = worker.counts
        self._units: asyncio.Queue[list[Delivery] | None] = asyncio.Queue()
        self._buffered = 0
        self._held: dict[int, Delivery] = {}
        self._running: dict[asyncio.Task[None], list[Delivery]] = {}
        self._lost: set[int] = set()
        self._room = asyncio.Event()
        self._suspect: Delivery | None = None
        self._suspect_ended = asyncio.Event()
        self._looked_for_suspects = 0.0
        self._alone: asyncio.Event | None = None
        self._someone_finished = asyncio.Event()
        self._stopping = asyncio.Event()
        self._at_once = asyncio.Event()
        self._executor = ThreadPoolExecutor(worker.options.concurrency, thread_name_prefix="remuda-handler")
        self._settler = Settler(
            self._store,
            self._queue,
            self._who,
            interval=self._options.flush_interval,
            batch_size=self._options.fetch_batch_size,
            on_written=self._written,
        )
        self._runner = Runner(
            worker.queue,
            self._who,
            self._options,
            worker.handlers,
            worker.middlewares,
            self._settler,
            self._executor,
            worker.rng,
        )

    # -- from outside

    def stop(self) -> None:
        """Drain; the second time, end at once."""
        if self._stopping.is_set():
            self._at_once.set()
        self._stopping.set()

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
            asyncio.create_task(self._keep_leases(), name="remuda-lease-keeper"),
            asyncio.create_task(self._recover(), name="remuda-recoverer"),
        ]
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            # No loop ends by itself: one that does has met something it has no answer to.
            await asyncio.wait({stopping, reader, *runners, *upkeep}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._at_once.set()
            raise
        finally:
            self._stopping.set()
            await asyncio.shield(asyncio.create_task(self._drain(reader, runners, upkeep)))
            stopping.cancel()
        for task in (reader, *runners, *upkeep):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def one_round(self) -> int:
        """Fetch once, run all of it, settle all of it."""
        options = self._options
        try:
            deliveries = await self._fetch(options.fetch_batch_size)
            self._accept(deliveries)
            settling = asyncio.create_task(self._settler.run())
            while self._buffered:
                unit = self._take(self._units.get_nowait())
                await self._run(unit)
            settling.cancel()
            await asyncio.wait({settling})
            await self._settler.flush()
        finally:
            self._executor.shutdown(wait=False)
        return len(deliveries)

    # -- the reader

    async def _read(self) -> None:
        options = self._options
        backoff = Backoff("jobs cannot be fetched", log)
        wakeup = self._store.watch(self._queue)
        try:
            while not self._stopping.is_set():
                limit = await self._free_capacity()
                try:
                    deliveries = await self._fetch(limit)
                except StoreUnavailableError as error:
                    await self._unless_stopping(backoff.wait(error))
                    continue
                backoff.over()
                self._accept(deliveries)
                if self._suspect is not None:
                    await self._unless_stopping(self._suspect_ended.wait())
                elif len(deliveries) >= limit:
                    if options.min_fetch_interval:
                        await self._unless_stopping(asyncio.sleep(options.min_fetch_interval.total_seconds()))
                elif self._until_empty:
                    if not deliveries and await self._all_done():
                        self._stopping.set()
                else:
                    await self._unless_stopping(wakeup.wait(await self._idle_time()))
        finally:
            wakeup.close()

    async def _fetch(self, limit: int) -> list[Delivery]:
        """Due jobs; among them at most one suspect: on its last delivery, with one before that never ended.

        It may be poison: it is held apart from others like it and runs alone, so that if it
        takes the worker down it takes nobody's last delivery with it. See docs/decisions/004.
        """
        options = self._options
        lease = options.release_stuck_timeout
        last = options.max_deliveries
        if last is None or last < 2:
            return await self._store.fetch(self._queue, limit=limit, lease=lease, who=self._who)
        deliveries = await self._store.fetch(
            self._queue, limit=limit, lease=lease, who=self._who, suspects=Suspects(last - 1, only=False)
        )
        now = asyncio.get_running_loop().time()
        if len(deliveries) < limit or now - self._looked_for_suspects > SUSPECTS_EVERY_S:
            self._looked_for_suspects = now
            found = await self._store.fetch(
                self._queue, limit=1, lease=lease, who=self._who, suspects=Suspects(last - 1, only=True)
            )
            if found:
                self._suspect_ended.clear()
                self._suspect = found[0]
                deliveries += found
        return deliveries

    async def _idle_time(self) -> timedelta:
        """Until the next job is due, as far as that is known, and no longer than `max_fetch_interval`.

        What is due already and was not fetched (the queue is paused, say) waits for the longest time.
        """
        longest = self._options.max_fetch_interval
        try:
            due = await self._store.next_due(self._queue)
        except StoreUnavailableError:
            return longest  # the next fetch will say so
        ahead = timedelta(0) if due is None else due - self._store.now()
        return min(longest, ahead + timedelta(milliseconds=1)) if ahead > timedelta(0) else longest

    async def _free_capacity(self) -> int:
        """How many to ask for; waits until that is worth a fetch."""
        options = self._options
        worthwhile = max(1, min(options.fetch_batch_size, options.buffer_size) // 4)
        while not self._stopping.is_set():
            free = options.buffer_size - self._buffered
            if free >= worthwhile or not self._buffered:
                return max(1, min(options.fetch_batch_size, free))
            self._room.clear()
            await self._unless_stopping(self._room.wait())
        return 1

    async def _all_done(self) -> bool:
        """Whether nothing is buffered, running or unwritten; waits a moment if something is."""
        if not self._buffered and not self._running and not self._settler.unwritten:
            return True
        await asyncio.sleep(0.01)
        return False

    async def _unless_stopping(self, waiting: Any) -> None:
        """Wait for something, or until the worker is told to stop."""
        first = asyncio.ensure_future(waiting)
        second = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (first, second):
                task.cancel()
            await asyncio.gather(first, second, return_exceptions=True)

    def _accept(self, deliveries: Sequence[Delivery]) -> None:
        """Into the buffer: one by one, or together for a batch handler."""
        self._counts.fetched += len(deliveries)
        self._buffered += len(deliveries)
        batches: dict[str, list[Delivery]] = {}
        for delivery in deliveries:
            self._held[id(delivery)] = delivery
            handler = self._handlers.find(delivery.name)
            if handler is None or handler.batch is None or delivery is self._suspect:
                self._units.put_nowait([delivery])
                continue
            batch = batches.setdefault(delivery.name, [])
            batch.append(delivery)
            if len(batch) == handler.batch:
                self._units.put_nowait(batches.pop(delivery.name))
        for batch in batches.values():
            self._units.put_nowait(batch)

    # -- the runners

    async def _work(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise AssertionError("unreachable")
        loop = asyncio.get_running_loop()
        yielded = loop.time()
        while True:
            if loop.time() - yielded > YIELD_EVERY_S:
                await asyncio.sleep(0)
                yielded = loop.time()
            unit = await self._units.get()
            if unit is None:
                return
            if self._alone is not None:
                self._units.put_nowait(unit)
                await self._alone.wait()
                continue
            unit = self._take(unit)
            self._running[task] = unit
            try:
                await self._run(unit)
            except asyncio.CancelledError:
                if self._stopping.is_set() or not all(id(each) in self._lost for each in unit):
                    raise  # its deliveries stay in `_running` for the drain to give back
                task.uncancel()
                log.warning(
                    "a handler was cancelled: another worker has its job",
                    extra={"action": "lease_lost", "jobs": [each.id for each in unit]},
                )
            del self._running[task]
            self._someone_finished.set()
            self._lost.difference_update(map(id, unit))

    def _take(self, unit: list[Delivery] | None) -> list[Delivery]:
        """Out of the buffer, less what was lost while it waited there."""
        if unit is None:
            return []
        self._buffered -= len(unit)
        if not self._room.is_set():
            self._room.set()
        if not self._lost:
            return unit
        kept = [each for each in unit if id(each) not in self._lost]
        if not any(each is self._suspect for each in kept) and any(each is self._suspect for each in unit):
            self._end_suspect()
        self._lost.difference_update(map(id, unit))
        return kept

    async def _run(self, unit: list[Delivery]) -> None:
        if not unit:
            return
        if unit[0] is self._suspect:
            await self._run_alone(unit[0])
            return
        handler = self._handlers.find(unit[0].name)
        if handler is not None and handler.batch is not None:
            await self._runner.run_batch(handler, unit)
        else:
            await self._runner.run_one(unit[0])

    async def _run_alone(self, suspect: Delivery) -> None:
        """Nothing else runs meanwhile: whatever happens to this process, it was this job's doing."""
        self._alone = asyncio.Event()
        try:
            task = asyncio.current_task()
            while any(each is not task for each in self._running):
                self._someone_finished.clear()
                await self._someone_finished.wait()
            handler = self._handlers.find(suspect.name)
            if handler is not None and handler.batch is not None:
                await self._runner.run_batch(handler, [suspect])
            else:
                await self._runner.run_one(suspect)
            # Written before anything else may go wrong: it will not be delivered once more.
            while id(suspect) in self._held and self._settler.unwritten:
                await self._settler.flush()
        finally:
            self._end_suspect()
            self._alone.set()
            self._alone = None

    def _end_suspect(self) -> None:
        self._suspect = None
        self._suspect_ended.set()

    # -- the settler's echo

    def _written(self, settlements: Sequence[Settlement], lost: Sequence[Settlement]) -> None:
        refused = {id(each) for each in lost}
        for each in settlements:
            self._held.pop(id(each.delivery), None)
            if id(each) in refused:
                self._counts.lost += 1
                log.warning(
                    "the outcome of job %s came too late: its lease was lost",
                    each.delivery.id,
                    extra={"action": "outcome_lost", "job": each.delivery.id},
                )
            elif each.state is State.COMPLETED:
                self._counts.completed += 1
            elif each.state is State.RETRYABLE:
                self._counts.retried += 1
            else:
                self._counts.failed += 1

    # -- the lease keeper

    async def _keep_leases(self) -> None:
        lease = self._options.release_stuck_timeout
        every = lease.total_seconds() / 3
        backoff = Backoff("leases cannot be renewed", log)
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + every
            await asyncio.sleep(every)
            if loop.time() - due > every:
                log.warning(
                    "the event loop was blocked for %.1f s, and leases with it: make the handler a plain "
                    "function, which runs in a thread",
                    loop.time() - due,
                    extra={"action": "loop_blocked"},
                )
            await self._renew(lease, backoff)

    async def _renew(self, lease: Any, backoff: Backoff) -> None:
        while True:
            # An outcome on its way needs no lease; both at once could wait for each other's rows.
            leaving = self._settler.being_written()
            held = [each for key, each in self._held.items() if key not in leaving]
            try:
                lost = await self._store.extend(self._queue, held, lease=lease)
            except StoreUnavailableError as error:
                await backoff.wait(error)
                continue
            backoff.over()
            leaving |= self._settler.being_written()
            for delivery in lost:
                # Settled between the question and the answer: not lost, but done.
                if id(delivery) in self._held and id(delivery) not in leaving:
                    self._lose(delivery)
            return

    def _lose(self, delivery: Delivery) -> None:
        self._held.pop(id(delivery), None)
        self._lost.add(id(delivery))
        self._counts.lost += 1
        for task, unit in self._running.items():
            if any(each is delivery for each in unit):
                if all(id(each) in self._lost for each in unit):
                    task.cancel()
                return

    # -- the recoverer

    async def _recover(self) -> None:
        options = self._options
        backoff = Backoff("the jobs of dead workers cannot be recovered", log)
        rounds = 0
        while True:
            try:
                recovered = await self._store.recover(
                    self._queue, timeout=options.release_stuck_timeout, who=self._who
                )
                if rounds % PRUNE_EVERY_ROUNDS == 0:
                    await self._prune()
            except StoreUnavailableError as error:
                await backoff.wait(error)
                continue
            backoff.over()
            rounds += 1
            if recovered:
                self._counts.recovered += len(recovered)
                log.warning(
                    "recovered %d jobs of dead workers",
                    len(recovered),
                    extra={"action": "recovered", "count": len(recovered)},
                )
            await asyncio.sleep(options.release_stuck_interval.total_seconds())

    async def _prune(self) -> None:
        retention = self._options.retention
        now = self._store.now()
        completed = None if retention.completed is None else now - retention.completed
        failed = None if retention.failed is None else now - retention.failed
        while (completed or failed) and await self._store.prune(
            self._queue,
            completed_before=completed,
            failed_before=failed,
            who=self._who,
            limit=PRUNE_CHUNK,
        ):
            pass

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
        for _ in runners:
            self._units.put_nowait(None)
        await self._give_back(unstarted, counted=False)
        at_once = asyncio.create_task(self._at_once.wait())
        finished = asyncio.create_task(asyncio.wait(runners))
        await asyncio.wait(
            {at_once, finished},
            timeout=self._options.graceful_timeout.total_seconds(),
            return_when=asyncio.FIRST_COMPLETED,
        )
        for task in runners:
            task.cancel()
        await asyncio.gather(reader, *runners, return_exceptions=True)
        at_once.cancel()
        finished.cancel()
        settler, *others = upkeep
        await self._last_words(settler)
        # Cancelled in the middle of a handler: it may have had effects, so the delivery counts.
        cut_off = [each for unit in self._running.values() for each in unit if id(each) in self._held]
        await self._give_back(cut_off, counted=True)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self._executor.shutdown(wait=False, cancel_futures=True)
        log.info("worker %s has stopped", self._who, extra={"action": "worker_stopped"})

    def _unstarted(self) -> list[Delivery]:
        found: list[Delivery] = []
        while not self._units.empty():
            unit = self._units.get_nowait()
            found += self._take(unit)
        return found

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
        for each in deliveries:
            self._held.pop(id(each), None)
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
