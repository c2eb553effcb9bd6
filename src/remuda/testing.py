"""For users' own tests: a queue that runs inline, in the same process, on a clock that the test moves.

>>> async with InlineQueue("emails") as emails:
...     worker = emails.worker(max_deliveries=3)
...     worker.handler("welcome")(welcome)
...     await emails.add("welcome", {"to": "a@example.org"}, delay=timedelta(hours=1))
...     assert await emails.run(worker) == 0
...     emails.clock.advance(timedelta(hours=1))
...     assert await emails.run(worker) == 1
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

from remuda.clock import VirtualClock
from remuda.queue import Queue
from remuda.worker import Worker

__all__ = ["InlineQueue", "VirtualClock"]

_ENDLESS = 10_000


class InlineQueue(Queue):
    """A real queue in a private SQLite memory: everything works as in production, nothing is left behind.

    Time stands still until `clock.advance`; retries and delays take no waiting. Jitter is repeatable.
    """

    clock: VirtualClock

    def __init__(self, name: str = "test", *, start: datetime | None = None, **options: Any) -> None:
        self.clock = VirtualClock(start)
        super().__init__(name, "sqlite://", clock=self.clock, **options)

    def worker(self, **options: Any) -> Worker:
        """A worker on this queue; the options are those of `Worker`."""
        return Worker(self, rng=random.Random(0), **options)

    async def run(self, worker: Worker) -> int:
        """Run every job that is due now, and what they add, until nothing is; how many deliveries."""
        handled = 0
        for _ in range(_ENDLESS):
            count = await worker.step()
            if not count:
                return handled
            handled += count
        raise AssertionError(
            f"{handled} deliveries and no end: a job that adds itself again, or a retry without delay?"
        )

    async def run_until_settled(self, worker: Worker, *, within: timedelta = timedelta(days=30)) -> int:
        """As `run`, and move the clock to the next retry, delayed job or turn until none is left."""
        deadline = self.clock.now() + within
        handled = await self.run(worker)
        while True:
            waiting = [job.next_attempt_at for job in await self.jobs(limit=_ENDLESS) if job.ended_at is None]
            due = min((moment for moment in waiting if moment is not None), default=None)
            if due is not None and due <= self.clock.now():
                # Due, and not handed out: it waits for a turn, or for the end of a pause.
                limit = (await self.rate_limits()).queue
                due = None if limit is None else self.clock.now() + limit.interval
            if due is None or due > deadline:
                return handled
            self.clock.advance(due - self.clock.now())
            handled += await self.run(worker)
