"""Waking idle workers: they wait on the ends of the queue's streams, so that nothing is missed or polled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from remuda.errors import StoreUnavailableError
from remuda.stores.contract import Wakeup
from remuda.stores.redis.keys import Keys
from remuda.stores.redis.link import Link


class StreamWakeup(Wakeup):
    """Waits for what comes after the last fetch: jobs, from whatever program, and words to sleepers."""

    def __init__(self, link: Link, keys: Keys, ends: Callable[[], list[bytes] | None]) -> None:
        super().__init__(lambda _: None)
        self._link = link
        self._keys = keys
        self._ends = ends

    async def wait(self, timeout: timedelta) -> bool:
        # Before the first fetch nothing is known: whatever is there is news.
        ends = self._ends() or [b"0-0"] * (1 + len(self._keys.streams))
        seconds = timeout.total_seconds()
        try:
            found = await self._link.block(
                "XREAD",
                "COUNT",
                1,
                "BLOCK",
                max(1, int(seconds * 1000)),
                "STREAMS",
                self._keys.wake,
                *self._keys.streams,
                *ends,
                within=seconds,
            )
        except StoreUnavailableError:
            await asyncio.sleep(min(seconds, 0.1))  # the next fetch will say so
            return False
        return found is not None


class TrailWakeup(Wakeup):
    """Waits for whatever is recorded: no result is kept without a record of how its job ended."""

    def __init__(self, link: Link, log: str) -> None:
        super().__init__(lambda _: None)
        self._link = link
        self._log = log
        self._seen: bytes | None = None

    async def wait(self, timeout: timedelta) -> bool:
        seconds = timeout.total_seconds()
        try:
            if self._seen is None:
                await self._look()
                return True  # something may have been recorded before it looked
            found = await self._link.block(
                "XREAD",
                "COUNT",
                1,
                "BLOCK",
                max(1, int(seconds * 1000)),
                "STREAMS",
                self._log,
                self._seen,
                within=seconds,
            )
            if found is not None:
                await self._look()
        except StoreUnavailableError:
            await asyncio.sleep(min(seconds, 0.1))
            return False
        return found is not None

    async def _look(self) -> None:
        last = await self._link.call("XREVRANGE", self._log, "+", "-", "COUNT", 1)
        self._seen = last[0][0] if last else b"0-0"
