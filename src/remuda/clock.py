"""Time as a value that is passed in: the system's clock, and one that tests move by hand."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """What the engine asks of time."""

    def now(self) -> datetime:
        """The current time, aware, in UTC."""
        ...

    async def sleep(self, duration: timedelta) -> None:
        """Return after `duration` of this clock's time."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, duration: timedelta) -> None:
        await asyncio.sleep(duration.total_seconds())


class VirtualClock:
    """A clock that stands still until a test moves it.

    >>> clock = VirtualClock(datetime(2030, 1, 1, tzinfo=UTC))
    >>> clock.advance(timedelta(days=2))
    >>> clock.now()
    datetime.datetime(2030, 1, 3, 0, 0, tzinfo=datetime.timezone.utc)
    """

    def __init__(self, start: datetime | None = None) -> None:
        self._now = start or datetime(2030, 1, 1, tzinfo=UTC)
        self._sleepers: list[tuple[datetime, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def now(self) -> datetime:
        return self._now

    def advance(self, duration: timedelta) -> None:
        """Move on by `duration` and wake every sleeper whose time has come."""
        if duration < timedelta(0):
            raise ValueError(f"a clock cannot be moved back (by {duration})")
        self._now += duration
        while self._sleepers and self._sleepers[0][0] <= self._now:
            _, _, sleeper = heapq.heappop(self._sleepers)
            if not sleeper.done():
                sleeper.set_result(None)

    async def sleep(self, duration: timedelta) -> None:
        if duration <= timedelta(0):
            await asyncio.sleep(0)
            return
        sleeper = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + duration, next(self._order), sleeper))
        await sleeper
