"""The canceller: hears of running jobs that somebody wants to end, and tells their handlers."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

from remuda.backoff import Backoff
from remuda.errors import StoreUnavailableError
from remuda.stores.contract import Store
from remuda.worker.runner import Runner

log = logging.getLogger("remuda.worker")

LOOK_EVERY = timedelta(milliseconds=500)
FORGOTTEN_AFTER = timedelta(days=1)  # word for a job that ended just then, by itself


class Canceller:
    """Looks for words that were left for this worker's jobs, as long as it has any at work."""

    def __init__(self, store: Store, queue: str, runner: Runner) -> None:
        self._store = store
        self._queue = queue
        self._runner = runner
        self._told: set[str] = set()

    async def run(self) -> None:
        """Until cancelled."""
        backoff = Backoff("jobs that are to be cancelled cannot be looked for", log)
        while True:
            await asyncio.sleep(LOOK_EVERY.total_seconds())
            try:
                await self.tick()
            except StoreUnavailableError as error:
                await backoff.wait(error)
                continue
            backoff.over()

    async def tick(self) -> None:
        """Tell the handlers of what is asked; take back the word for what has ended."""
        if self._runner.at_work or self._told:
            asked = await self._store.asked_to_cancel(self._queue)
            for job_id in set(asked) & set(self._runner.at_work) - self._told:
                if self._runner.cancel(job_id, asked_at=asked[job_id]):
                    log.info("job %s is cancelled", job_id, extra={"action": "job_cancelled", "job": job_id})
                    self._told.add(job_id)
            ended = self._told - set(self._runner.at_work)
            long_ago = self._store.now() - FORGOTTEN_AFTER
            over = [job_id for job_id, at in asked.items() if job_id in ended or at < long_ago]
            await self._store.forget_to_cancel(self._queue, over)
            self._told -= ended
