"""The settler: outcomes wait for company, then go to the store together, and are never dropped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

from remuda.backoff import Backoff
from remuda.errors import StoreUnavailableError
from remuda.stores.contract import Settlement, Store

log = logging.getLogger("remuda.worker")


WRITTEN_AT_MOST = 2_000  # outcomes in one transaction


class Settler:
    """Writes outcomes of one queue in batches, one batch at a time.

    before is awaited ahead of each batch; on_written is told of every settlement that took effect or whose
    lease was lost.
    """

    def __init__(
        self,
        store: Store,
        queue: str,
        who: str,
        *,
        interval: timedelta,
        batch_size: int,
        on_written: Callable[[Sequence[Settlement], Sequence[Settlement]], None],
        before: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._store = store
        self._queue = queue
        self._who = who
        self._interval = interval.total_seconds()
        self._batch_size = batch_size
        self._before = before
        self._on_written = on_written
        self._waiting: list[Settlement] = []
        self._writing: list[Settlement] = []
        self._flushing = asyncio.Lock()
        self._has_some = asyncio.Event()
        self._has_batch = asyncio.Event()
        self._watched: dict[int, asyncio.Future[bool]] = {}
        self.hurry = False

    def put(self, settlement: Settlement) -> None:
        """Take an outcome; it will be written."""
        self._waiting.append(settlement)
        if len(self._waiting) == 1:
            self._has_some.set()
        if len(self._waiting) >= self._batch_size:
            self._has_batch.set()

    @property
    def unwritten(self) -> int:
        return len(self._waiting) + len(self._writing)

    def being_written(self) -> set[int]:
        """Identities of the deliveries whose outcome is on its way: their lease needs no renewal."""
        return {id(each.delivery) for each in self._writing}

    async def run(self) -> None:
        """Until cancelled: wait for outcomes, write them."""
        while True:
            await self._has_some.wait()
            if self._interval and not self.hurry and len(self._waiting) < self._batch_size:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._has_batch.wait(), self._interval)
            await self.flush()

    async def flush(self) -> None:
        """Write what is waiting now, however long the store takes to be available."""
        async with self._flushing:
            await self._flush()

    async def _flush(self) -> None:
        self._has_some.clear()
        self._has_batch.clear()
        if self._waiting:
            if self._before is not None:
                await self._before()
            self._writing, self._waiting = self._waiting[:WRITTEN_AT_MOST], self._waiting[WRITTEN_AT_MOST:]
            try:
                await self._write(self._writing)
            except BaseException:
                # Cancelled in the middle: whether it was written is not known, so it is kept and
                # may be written again, which the lease makes harmless.
                self._waiting = self._writing + self._waiting
                self._has_some.set()
                raise
            finally:
                self._writing = []
            if self._waiting:
                self._has_some.set()

    async def written(self, settlement: Settlement) -> bool:
        """Put an outcome and wait until it is in the store; False when its lease was lost."""
        self._watched[id(settlement)] = asyncio.get_running_loop().create_future()
        self.put(settlement)
        return await self._watched[id(settlement)]

    def _tell(self, settlements: Sequence[Settlement], lost: Sequence[Settlement]) -> None:
        if self._watched:
            refused = {id(each) for each in lost}
            for each in settlements:
                watched = self._watched.pop(id(each), None)
                if watched is not None and not watched.done():
                    watched.set_result(id(each) not in refused)
        self._on_written(settlements, lost)

    async def _write(self, settlements: list[Settlement]) -> None:
        backoff = Backoff("outcomes cannot be written", log)
        while True:
            try:
                lost = await self._store.settle(self._queue, settlements, who=self._who)
            except StoreUnavailableError as error:
                await backoff.wait(error)
            except Exception as error:  # noqa: BLE001 - one bad outcome must not hold up the others
                await self._write_apart(settlements, error)
                return
            else:
                backoff.over()
                self._tell(settlements, lost)
                return

    async def _write_apart(self, settlements: list[Settlement], error: Exception) -> None:
        """The store refuses the batch for what is in it: halve it until the bad one is alone."""
        if len(settlements) > 1:
            half = len(settlements) // 2
            await self._write(settlements[:half])
            await self._write(settlements[half:])
            return
        (settlement,) = settlements
        if settlement.result is not None:
            log.error(
                "a result cannot be stored; the outcome is written without it",
                extra={"action": "result_refused", "job": settlement.delivery.id, "error": str(error)},
            )
            settlement.result = None
            await self._write([settlement])
            return
        if settlement.failure is not None:
            log.error(
                "an error text cannot be stored; the outcome is written without it",
                extra={"action": "failure_text_refused", "job": settlement.delivery.id, "error": str(error)},
            )
            settlement.failure = None
            await self._write([settlement])
            return
        log.critical(
            "an outcome cannot be stored; the job will be delivered again when its lease ends",
            extra={"action": "outcome_refused", "job": settlement.delivery.id, "error": str(error)},
            exc_info=error,
        )
        self._tell([settlement], [settlement])
