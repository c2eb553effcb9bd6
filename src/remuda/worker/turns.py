"""Turns: a queue's rate limits as its workers keep them.

For the queue's own limit, turns are taken before a fetch, and those that were not needed are given
back. For the limit of each key, jobs are fetched first, and one whose turn comes later is put back
until then. A worker that dies in between loses a turn, and no job.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta

from remuda.errors import StoreUnavailableError
from remuda.rate import NO_LIMITS, has_turn
from remuda.stores.contract import Delivery, Store

log = logging.getLogger("remuda.worker")

LOOK_EVERY_S = 1.0  # how soon a limit that was set or changed is noticed
SHORTEST_PAUSE = timedelta(milliseconds=10)  # a fetch for each turn of a fast queue would be a busy loop


class Turns:
    """The turns of one worker."""

    def __init__(self, store: Store, queue: str, who: str) -> None:
        self._store = store
        self._queue = queue
        self._who = who
        self._limits = NO_LIMITS
        self._looked_at: float | None = None
        self._in_hand = 0

    async def look(self) -> None:
        """Learn the queue's limits, if that was not just done."""
        now = asyncio.get_running_loop().time()
        if self._looked_at is None or now - self._looked_at >= LOOK_EVERY_S:
            self._limits = await self._store.rate_limits(self._queue)
            self._looked_at = now

    @property
    def limited(self) -> bool:
        """Whether the queue as a whole has a limit."""
        return self._limits.queue is not None

    async def take(self, wanted: int) -> int:
        """How many jobs may be fetched, of those that are wanted."""
        if self._limits.queue is None:
            return wanted
        granted = await self._store.take_turns(self._queue, wanted=wanted)
        self._in_hand += granted
        return granted

    async def give_back_all_but(self, used: int) -> None:
        """End a fetch of which so many jobs will run."""
        unused, self._in_hand = self._in_hand - used, 0
        if unused > 0:
            try:
                await self._store.take_turns(self._queue, wanted=-unused)
            except StoreUnavailableError:
                self._in_hand = unused  # after the next fetch, then

    async def of_now(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Those that may run now. The others are put back until their turn."""
        limit = self._limits.key
        if limit is None:
            return deliveries
        now = self._store.now()
        asking = [
            each
            for each in deliveries
            if each.rate_key is not None and not has_turn(limit, each.slot_at, now=now)
        ]
        if not asking:
            return deliveries
        later = await self._put_back(asking)
        return [each for each in deliveries if id(each) not in later]

    async def _put_back(self, asking: Sequence[Delivery]) -> set[int]:
        """Book turns, and put back what has none yet: the identities of what must not run now."""
        try:
            moments = await self._store.book(self._queue, [each.rate_key or "" for each in asking])
        except StoreUnavailableError as error:
            _log_left(asking, error)
            return {id(each) for each in asking}
        now = self._store.now()
        later = [(each, at) for each, at in zip(asking, moments, strict=True) if at > now]
        if later:
            deferred, until = zip(*later, strict=True)
            try:
                await self._store.release(self._queue, deferred, who=self._who, counted=False, until=until)
            except StoreUnavailableError as error:
                _log_left(deferred, error)
        return {id(each) for each, _ in later}

    @property
    def pause(self) -> timedelta:
        """How long to wait for turns when there are none: until there may be one, or a few."""
        limit = self._limits.queue
        return SHORTEST_PAUSE if limit is None else max(SHORTEST_PAUSE, limit.interval)


def _log_left(deliveries: Sequence[Delivery], error: StoreUnavailableError) -> None:
    log.warning(
        "%d jobs could not be put back until their turn; they are delivered again when their lease ends: %s",
        len(deliveries),
        error,
        extra={"action": "defer_failed"},
    )
