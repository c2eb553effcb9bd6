"""The intake: asks the store for work, as the rate limits allow, and keeps a suspect apart from the rest.

A suspect is a job on its last allowed delivery of which an earlier one was never settled: it may be
poison. A worker holds one at a time and runs it alone, so that if it takes the worker down it takes
nobody's last delivery with it. See docs/decisions/004.
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta

from remuda.errors import StoreUnavailableError
from remuda.message import PRIORITIES
from remuda.stores.contract import NO_SUSPECTS, Delivery, Store, Suspects
from remuda.worker.options import WorkerOptions
from remuda.worker.turns import Turns

SUSPECTS_EVERY_S = 1.0  # while there is enough other work, how often to look for a suspect
# While there is more work than a fetch can hold, one fetch in so many begins with a lower priority than the
# highest: often enough that each gets somewhere, seldom enough that the highest hardly notices.
LOWER_FIRST_EVERY = 10
_LOWER = PRIORITIES[:0:-1]  # from the lowest up


class Fairness:
    """Which priority to begin with. Only full fetches count: after others nobody has to wait."""

    def __init__(self) -> None:
        self._full_fetches = 0
        self._turn = 0  # whose it is among the lower ones

    @property
    def begin_with(self) -> int | None:
        """None for the usual order."""
        return _LOWER[self._turn] if self._full_fetches >= LOWER_FIRST_EVERY - 1 else None

    def note(self, *, full: bool) -> None:
        """A fetch has come back."""
        if self.begin_with is not None:
            self._turn = (self._turn + 1) % len(_LOWER)
            self._full_fetches = 0
        else:
            self._full_fetches = self._full_fetches + 1 if full else 0


class Intake:
    """Fetches for one worker.

    more          whether the last fetch may have left due jobs that can be had at once
    out_of_turns  … or that have to wait for turns under the queue's rate limit
    held_back     whether there was a job due, and turns, and yet nothing to be had: the queue is paused, say
    """

    def __init__(
        self, store: Store, queue: str, who: str, options: WorkerOptions, fairness: Fairness
    ) -> None:
        self._store = store
        self._queue = queue
        self._who = who
        self._options = options
        self._fairness = fairness
        self._turns = Turns(store, queue, who)
        self._looked_at = 0.0
        self._fetched_at = datetime.min.replace(tzinfo=UTC)
        self.more = False
        self.out_of_turns = False
        self.held_back = False
        self.suspect: Delivery | None = None
        self._suspect_ended = asyncio.Event()

    async def fetch(self, limit: int) -> list[Delivery]:
        """Due jobs whose turn it is; among them at most one suspect, and none while there is one."""
        await self._turns.look()
        if self._turns.limited and not await self._is_due():
            # Taking turns and giving them back is a write, which on some stores wakes every idle worker.
            self.more = self.out_of_turns = self.held_back = False
            return []
        granted = await self._turns.take(limit)
        fetched = await self._fetch(granted) if granted else []
        kept = await self._turns.of_now(fetched)
        await self._turns.give_back_all_but(len(kept))
        if self.suspect in fetched and self.suspect not in kept:
            self.end_suspect()
        full = len(fetched) >= granted
        # Turns of jobs that were put back can be taken again.
        self.more = full and (granted == limit or len(kept) < len(fetched))
        self.out_of_turns = full and not self.more
        self.held_back = self._turns.limited and not fetched and not self.out_of_turns
        return kept

    async def _is_due(self) -> bool:
        due = await self._store.next_due(self._queue)
        return due is not None and due <= self._store.now()

    async def _fetch(self, limit: int) -> list[Delivery]:
        last = self._options.max_deliveries
        if last is None or last < 2:
            return await self._fetch_some(limit, NO_SUSPECTS)
        now = asyncio.get_running_loop().time()
        found: list[Delivery] = []
        if self.suspect is None and now - self._looked_at > SUSPECTS_EVERY_S:
            found = await self._fetch_suspect(Suspects(last - 1, only=True), now)
            if found and limit == 1:
                return found
        # From here on an outage is left to the next fetch to notice: what is in hand is not lost with it.
        with contextlib.suppress(StoreUnavailableError) if found else contextlib.nullcontext():
            found += await self._fetch_some(limit - len(found), Suspects(last - 1, only=False))
        # On Redis a fetch that leaves suspects out is what brings to light those that nobody has read.
        if self.suspect is None and len(found) < limit and (self._looked_at < now or not found):
            with contextlib.suppress(StoreUnavailableError) if found else contextlib.nullcontext():
                found += await self._fetch_suspect(Suspects(last - 1, only=True), now)
        return found

    async def _fetch_some(self, limit: int, suspects: Suspects) -> list[Delivery]:
        self._fetched_at = self._store.now()
        deliveries = await self._store.fetch(
            self._queue,
            limit=limit,
            lease=self._options.release_stuck_timeout,
            who=self._who,
            suspects=suspects,
            begin_with=self._fairness.begin_with,
        )
        self._fairness.note(full=len(deliveries) >= limit)
        return deliveries

    async def _fetch_suspect(self, suspects: Suspects, now: float) -> list[Delivery]:
        self._looked_at = now
        found = await self._store.fetch(
            self._queue, limit=1, lease=self._options.release_stuck_timeout, who=self._who, suspects=suspects
        )
        if found:
            self.suspect = found[0]
            self._suspect_ended.clear()
        return found

    async def suspect_ended(self) -> None:
        """Wait until there is no suspect any more."""
        if self.suspect is not None:
            await self._suspect_ended.wait()

    def end_suspect(self) -> None:
        self.suspect = None
        self._suspect_ended.set()

    @property
    def pause(self) -> timedelta:
        """How long to wait for turns."""
        return min(self._options.max_fetch_interval, self._turns.pause)

    async def idle_time(self) -> timedelta:
        """Until the next job is due, as far as that is known, and no longer than `max_fetch_interval`.

        What was due already and was not fetched (the queue is paused, say) waits for the longest time.
        """
        longest = self._options.max_fetch_interval
        try:
            due = await self._store.next_due(self._queue)
        except StoreUnavailableError:
            return longest  # the next fetch will say so
        if due is None or due <= self._fetched_at:
            return longest
        # It may have become due since the fetch, which then was a moment too early.
        return min(longest, max(timedelta(0), due - self._store.now()) + timedelta(milliseconds=1))
