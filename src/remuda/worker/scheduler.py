"""The scheduler: makes the jobs of repeatable specs when their windows come.

Every worker has one, and none leads: all of them see the same windows, and the store gives each window to
whoever is first. One that was stopped and goes on, or whose clock is off, finds its windows taken.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta

from remuda.backoff import Backoff
from remuda.errors import StoreUnavailableError
from remuda.ids import IdMaker
from remuda.schedule import Due, Repeating, due
from remuda.stores.contract import EncodedJob, Firing, Store
from remuda.transition import to_ms

log = logging.getLogger("remuda.worker")

LOOK_EVERY = timedelta(seconds=1)
SHORTEST_NAP = timedelta(milliseconds=5)
SPECS_AT_ONCE = 200


class Scheduler:
    """Looks at the specs of a queue, and fires what is due."""

    def __init__(self, store: Store, queue: str, who: str) -> None:
        self._store = store
        self._queue = queue
        self._who = who
        self._ids = IdMaker()

    async def run(self) -> None:
        """Until cancelled."""
        backoff = Backoff("repeatable jobs cannot be made", log)
        while True:
            try:
                coming = await self.tick()
            except StoreUnavailableError as error:
                await backoff.wait(error)
                continue
            backoff.over()
            nap = LOOK_EVERY if coming is None else min(LOOK_EVERY, coming - self._store.now())
            await asyncio.sleep(max(nap, SHORTEST_NAP).total_seconds())

    async def tick(self) -> datetime | None:
        """Fire all that is due now; the next window, if there is one."""
        while True:
            specs = await self._store.repeats(self._queue, limit=SPECS_AT_ONCE)
            now = self._store.now()
            owing = [each for each in specs if each.next_at <= now]
            if not owing:
                return specs[0].next_at if specs else None
            if not any(await self._fire(owing, now)):
                return None  # somebody else is at it

    async def _fire(self, owing: list[Repeating], now: datetime) -> list[bool]:
        owed = [due(each.spec, each.next_at, fired=each.fired, now=now) for each in owing]
        firings = [self._firing(each, what, now) for each, what in zip(owing, owed, strict=True)]
        taken = await self._store.fire(self._queue, firings, who=self._who)
        for each, what, is_ours in zip(owing, owed, taken, strict=True):
            if is_ours and what.missed:
                log.warning(
                    "%d windows of %s were missed (%s)",
                    what.missed,
                    each.key,
                    each.spec.missed,
                    extra={"action": "windows_missed", "spec": each.key, "count": what.missed},
                )
        return taken

    def _firing(self, each: Repeating, owed: Due, now: datetime) -> Firing:
        spec = each.spec
        jobs = [
            EncodedJob(id=job_id, name=spec.name, payload=spec.payload, next_attempt_at=now)
            for job_id in self._ids.make(len(owed.windows), to_ms(now))
        ]
        return Firing(each.key, each.next_at, owed.next, jobs)
