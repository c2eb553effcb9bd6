"""The recoverer: takes back what dead workers hold, and removes what is past its retention."""

from __future__ import annotations

import asyncio
import logging

from remuda.backoff import Backoff
from remuda.errors import StoreUnavailableError
from remuda.stores.contract import Store
from remuda.worker.counts import Counts
from remuda.worker.options import WorkerOptions

log = logging.getLogger("remuda.worker")

PRUNE_EVERY_ROUNDS = 6
PRUNE_CHUNK = 500


class Recoverer:
    """Every worker has one; it does not matter which of them finds a dead one's jobs."""

    def __init__(self, store: Store, queue: str, who: str, options: WorkerOptions, counts: Counts) -> None:
        self._store = store
        self._queue = queue
        self._who = who
        self._options = options
        self._counts = counts
        self._rounds = 0

    async def run(self) -> None:
        """Until cancelled."""
        backoff = Backoff("the jobs of dead workers cannot be recovered", log)
        while True:
            try:
                await self._recover()
                if self._rounds % PRUNE_EVERY_ROUNDS == 0:
                    await self._prune()
            except StoreUnavailableError as error:
                await backoff.wait(error)
                continue
            backoff.over()
            self._rounds += 1
            await asyncio.sleep(self._options.release_stuck_interval.total_seconds())

    async def _recover(self) -> None:
        recovered = await self._store.recover(
            self._queue, timeout=self._options.release_stuck_timeout, who=self._who
        )
        if recovered:
            self._counts.recovered += len(recovered)
            log.warning(
                "recovered %d jobs of dead workers",
                len(recovered),
                extra={"action": "recovered", "count": len(recovered)},
            )

    async def _prune(self) -> None:
        retention = self._options.retention
        now = self._store.now()
        completed = None if retention.completed is None else now - retention.completed
        failed = None if retention.failed is None else now - retention.failed
        # Even where every job is kept: results are over, and buckets of turns full.
        while await self._store.prune(
            self._queue,
            completed_before=completed,
            failed_before=failed,
            who=self._who,
            limit=PRUNE_CHUNK,
        ):
            pass
