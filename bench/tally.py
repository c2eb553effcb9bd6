"""Counting handled jobs, and what the measures note about single ones."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from bench.peer import BenchError, stamp_age_ms

PATIENCE_SECONDS = 20


class Tally:
    """Counts handled jobs, and says when the expected number has been reached."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.count = 0
        self._first_at = 0.0
        self._numbers = itertools.count(1)  # next() is atomic: threaded workers need no lock
        self._loop = asyncio.get_running_loop()
        self._reached = asyncio.Event()

    def __call__(self, payload: bytes) -> None:
        number = next(self._numbers)
        self.count = max(self.count, number)
        self.note(number, payload)
        if number == 1:
            self._first_at = time.perf_counter()
        if number == self.expected:
            self._loop.call_soon_threadsafe(self._reached.set)

    def note(self, number: int, payload: bytes) -> None:
        """What a measure wants to know of the ``number``-th job, beyond the count."""

    async def reached(self) -> None:
        """Return once the expected number of jobs has been handled; fail if their stream dries up."""
        seen = -1
        while not self._reached.is_set():
            if self.count == seen:
                raise BenchError(f"no job for {PATIENCE_SECONDS} s, after {seen} of {self.expected}")
            seen = self.count
            with suppress(TimeoutError):
                await asyncio.wait_for(self._reached.wait(), PATIENCE_SECONDS)

    def rate_until(self, moment: float) -> float:
        """Jobs a second from the first one to a moment (by ``time.perf_counter``), start-up left out."""
        return self.expected / max(moment - self._first_at, 1e-6)


class LatencyTally(Tally):
    """Also notes how long each job waited, from the stamp in its payload to its handler."""

    def __init__(self, expected: int) -> None:
        super().__init__(expected)
        self.waits_ms: list[float] = []

    def note(self, number: int, payload: bytes) -> None:
        self.waits_ms.append(stamp_age_ms(payload))


class MemoryTally(Tally):
    """Also notes this process's resident memory at the first job, after a tenth, and at the last."""

    def __init__(self, expected: int) -> None:
        super().__init__(expected)
        self._marks = {1: "start_mib", max(expected // 10, 2): "tenth_mib", expected: "end_mib"}
        self.resident: dict[str, float] = {}

    def note(self, number: int, payload: bytes) -> None:
        if mark := self._marks.get(number):
            gc.collect()  # so that garbage which merely awaits its turn is not counted
            self.resident[mark] = round(resident_mib(), 1)


def resident_mib() -> float:
    """Resident memory of this process in MiB."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(os.getpid())])) / 1024
