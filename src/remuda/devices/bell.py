"""A bell that wakes one loop: rung while nobody waits, it is heard at the next wait."""

from __future__ import annotations

import asyncio


class Bell:
    """For one waiter. Much cheaper than an event with a time-out, which costs a task each time."""

    def __init__(self) -> None:
        self._is_rung = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        self._is_rung = True
        self._wake()

    async def wait(self, seconds: float) -> None:
        """Return when it was rung, or after so many seconds."""
        if not self._is_rung:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(seconds, self._wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        self._is_rung = False

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
