"""The rounds of a scheduler that looks at devices only when there is something to do.

One timer serves them all, and it is set only while a device waits to be looked at.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections.abc import Callable
from typing import Generic, TypeVar

D = TypeVar("D")


class Rounds(Generic[D]):
    """A round every `every_s` of the loop's time, with at most `batch` devices, the longest waiting first."""

    def __init__(self, every_s: float, batch: int, visit: Callable[[D], None]) -> None:
        self._every_s = every_s
        self._batch = batch
        self._visit = visit
        self._agenda: list[tuple[float, int, D]] = []
        self._entry_of: dict[D, int] = {}  # a device's only valid entry; older ones are passed over
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    def plan(self, device: D, at: float) -> None:
        """Look at a device in the first round from `at` on, and not as planned before."""
        number = self._entry_of[device] = next(self._numbers)
        heapq.heappush(self._agenda, (at, number, device))
        self._set_timer()

    def clear(self) -> None:
        """Forget everything that was planned."""
        self._agenda.clear()
        self._entry_of.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        if not self._agenda:
            return
        loop = asyncio.get_running_loop()
        # Rounds are at whole multiples of the interval, as if the scheduler had always been running, and
        # never two in one moment: who plans anew in a round waits for the next.
        due = math.ceil(self._agenda[0][0] / self._every_s)
        at = max(due, math.floor(loop.time() / self._every_s) + 1) * self._every_s
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = loop.call_at(at, self._round)

    def _round(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        due: list[D] = []
        while self._agenda and len(due) < self._batch and self._agenda[0][0] <= now:
            _, number, device = heapq.heappop(self._agenda)
            if self._entry_of.get(device) == number:
                del self._entry_of[device]
                due.append(device)
        for device in due:
            self._visit(device)
        self._set_timer()
