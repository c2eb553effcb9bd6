"""Worker processes beside the one that measures: they start together, and their jobs are counted there.

Both sides share a small file of counters.  Each process takes a place in it and waits at a gate before
its first job; once all have taken theirs the gate is opened and the clock starts, so that the start of
Python is not measured.  Runs inside the peers' own environments, hence the standard library only.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from bench.peer import BenchError, Handled

COUNTERS = "BENCH_CREW_COUNTERS"
GATE = 0
CELL_BYTES = 8
PATIENCE_SECONDS = 30
LOOK_EVERY_SECONDS = 0.002


class Member:
    """One process of the crew.  Make one when it starts; ``gate`` before a job, ``count`` after it."""

    def __init__(self) -> None:
        self._file = Path(os.environ[COUNTERS])
        self._cells = _map(self._file)
        self._place = self._take_place()
        self.waits = True

    def _take_place(self) -> int:
        for place in range(GATE + 1, len(self._cells)):
            with suppress(FileExistsError):
                _place_file(self._file, place).touch(exist_ok=False)
                return place
        raise BenchError("more processes than places: one has died and was started again")

    async def gate(self) -> None:
        """Return once the whole crew has started.  Call it only while ``waits``."""
        while not self._cells[GATE]:  # noqa: ASYNC110 - another process opens it
            await asyncio.sleep(0.001)
        self.waits = False

    def count(self) -> None:
        """One more job was handled."""
        self._cells[self._place] += 1


@asynccontextmanager
async def crew(
    command: Sequence[str], processes: int, handled: Handled, environment: dict[str, str]
) -> AsyncIterator[float]:
    """Run ``command``, in which ``processes`` members work, and call ``handled`` for what they count.

    Yields the moment at which the gate was opened.  SIGTERM ends the command.
    """
    with tempfile.TemporaryDirectory(prefix="bench-crew-") as directory:
        file = Path(directory) / "counters"
        file.write_bytes(bytes(CELL_BYTES * (1 + processes)))
        cells = _map(file)
        process = await asyncio.create_subprocess_exec(
            *command,
            env={**os.environ, **environment, COUNTERS: str(file)},
            stdout=asyncio.subprocess.DEVNULL,
        )
        counting = asyncio.create_task(_count(cells, handled))
        try:
            await _assembled(file, processes, process)
            cells[GATE] = 1
            yield time.perf_counter()
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            await process.wait()
            await asyncio.sleep(2 * LOOK_EVERY_SECONDS)  # what was handled on the way out counts too
            counting.cancel()


async def _assembled(file: Path, processes: int, process: asyncio.subprocess.Process) -> None:
    """Return once every process has taken its place."""
    patience = time.perf_counter() + PATIENCE_SECONDS
    places = [_place_file(file, place) for place in range(GATE + 1, GATE + 1 + processes)]
    while not all(place.exists() for place in places):
        if process.returncode is not None:
            raise BenchError(f"the worker processes ended at once, with exit code {process.returncode}")
        if time.perf_counter() > patience:
            raise BenchError(f"no {processes} worker processes within {PATIENCE_SECONDS} s")
        await asyncio.sleep(0.01)


async def _count(cells: memoryview, handled: Handled) -> None:
    counted = 0
    while True:
        total = sum(cells[GATE + 1 :])
        for _ in range(total - counted):
            handled(b"")
        counted = total
        await asyncio.sleep(LOOK_EVERY_SECONDS)


def _map(file: Path) -> memoryview:
    with file.open("r+b") as opened:
        return memoryview(mmap.mmap(opened.fileno(), 0)).cast("Q")


def _place_file(counters: Path, place: int) -> Path:
    return counters.with_suffix(f".{place}")
