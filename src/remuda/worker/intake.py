"""The intake: asks the store for work, and keeps a suspect apart from the rest.

A suspect is a job on its last allowed delivery of which an earlier one was never settled: it may be
poison. A worker holds one at a time and runs it alone, so that if it takes the worker down it takes
nobody's last delivery with it. See docs/decisions/004.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from remuda.errors import StoreUnavailableError
from remuda.stores.contract import Delivery, Store, Suspects
from remuda.worker.options import WorkerOptions

SUSPECTS_EVERY_S = 1.0  # while there is enough other work, how often to look for a suspect


class Intake:
    """Fetches for one worker."""

    def __init__(self, store: Store, queue: str, who: str, options: WorkerOptions) -> None:
        self._store = store
        self._queue = queue
        self._who = who
        self._options = options
        self._looked_at = 0.0
        self.suspect: Delivery | None = None
        self._suspect_ended = asyncio.Event()

    async def fetch(self, limit: int) -> list[Delivery]:
        """Due jobs; among them at most one suspect, and none while there is one."""
        options = self._options
        lease, last = options.release_stuck_timeout, options.max_deliveries
        if last is None or last < 2:
            return await self._store.fetch(self._queue, limit=limit, lease=lease, who=self._who)
        deliveries = await self._store.fetch(
            self._queue, limit=limit, lease=lease, who=self._who, suspects=Suspects(last - 1, only=False)
        )
        now = asyncio.get_running_loop().time()
        if self.suspect is None and (len(deliveries) < limit or now - self._looked_at > SUSPECTS_EVERY_S):
            self._looked_at = now
            found = await self._store.fetch(
                self._queue, limit=1, lease=lease, who=self._who, suspects=Suspects(last - 1, only=True)
            )
            if found:
                self.suspect = found[0]
                self._suspect_ended.clear()
                deliveries += found
        return deliveries

    async def suspect_ended(self) -> None:
        """Wait until there is no suspect any more."""
        if self.suspect is not None:
            await self._suspect_ended.wait()

    def end_suspect(self) -> None:
        self.suspect = None
        self._suspect_ended.set()

    async def idle_time(self) -> timedelta:
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
