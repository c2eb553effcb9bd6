"""SQLite: a new file in a temporary folder for each run."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Server:
    """No server: hands out files."""

    latency_rate = 200

    def __init__(self, directory: Path) -> None:
        self.facts = {"version": sqlite3.sqlite_version, "pragmas": "each peer's own, in its settings"}
        self._directory = directory
        self._numbers = itertools.count(1)

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """The URL of a file that does not exist yet; it is gone afterwards."""
        file = self._directory / f"bench-{next(self._numbers)}.db"
        try:
            yield f"sqlite:///{file}"
        finally:
            for leftover in self._directory.glob(f"{file.name}*"):
                leftover.unlink()


@contextmanager
def serve(directory: Path) -> Iterator[Server]:
    yield Server(directory)
