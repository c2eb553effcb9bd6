"""Waiting for a store to come back: longer each time, one log line when it goes and one when it is back."""

from __future__ import annotations

import asyncio
import logging

FIRST_S = 0.1
LONGEST_S = 5.0


class Backoff:
    """One outage as one loop sees it."""

    def __init__(self, trouble: str, log: logging.Logger) -> None:
        self._trouble = trouble
        self._log = log
        self._delay = FIRST_S
        self._down = False

    async def wait(self, error: Exception) -> None:
        """Log the first failure of an outage, and wait before the next try."""
        if not self._down:
            self._down = True
            self._log.warning(
                "%s; trying again until the store is back: %s",
                self._trouble,
                error,
                extra={"action": "store_lost"},
            )
        await asyncio.sleep(self._delay)
        self._delay = min(self._delay * 2, LONGEST_S)

    def over(self) -> None:
        """The store has answered."""
        if self._down:
            self._log.info("the store is back", extra={"action": "store_back"})
        self._down = False
        self._delay = FIRST_S
