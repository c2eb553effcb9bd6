# /// script
# dependencies = []
#
# [tool.bench]
# stores = ["sqlite"]
# bare = true
# variants = { batch-128 = ["settle"] }
# ///
"""The limit on SQLite: the sqlite3 module, WAL, synchronous NORMAL, the least a durable queue can do.

A batch is claimed in one transaction and deleted in a second, as a queue must that survives the death
of a worker in between.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.measures import main
from bench.peer import Handled, Peer

SCHEMA = """
CREATE TABLE job (id INTEGER PRIMARY KEY, queue TEXT NOT NULL, payload BLOB NOT NULL, claimed_at REAL);
CREATE INDEX job_ready ON job (queue, id) WHERE claimed_at IS NULL;
"""
ADD = "INSERT INTO job (queue, payload) VALUES ('bench', ?)"
CLAIM = """
UPDATE job SET claimed_at = unixepoch('subsec') WHERE id IN (
    SELECT id FROM job WHERE queue = 'bench' AND claimed_at IS NULL ORDER BY id LIMIT ?
) RETURNING id, payload
"""
SETTLE = "DELETE FROM job WHERE id = ?"


class BareSqlite3(Peer):
    def settings(self, measure: str, variant: str) -> dict[str, Any]:
        return {
            "journal_mode": "wal",
            "synchronous": "normal",
            "batch": 128 if variant == "batch-128" else 512,
            "poll_ms": 1,
            "sqlite": sqlite3.sqlite_version,
        }

    async def create(self) -> None:
        connection = self._connect()
        connection.executescript(SCHEMA)
        connection.close()

    async def open(self) -> None:
        self._connection = self._connect()

    async def close(self) -> None:
        self._connection.close()

    async def add(self, payload: bytes) -> None:
        self._connection.execute(ADD, (payload,))

    async def add_many(self, payloads: list[bytes]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(ADD, [(payload,) for payload in payloads])
        self._connection.execute("COMMIT")

    async def left(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM job").fetchone()[0])

    @asynccontextmanager
    async def worker(self, handled: Handled) -> AsyncIterator[None]:
        stopping = threading.Event()
        task = asyncio.create_task(asyncio.to_thread(self._work, handled, stopping))
        try:
            yield
        finally:
            stopping.set()
            await task

    def _work(self, handled: Handled, stopping: threading.Event) -> None:
        connection = self._connect()
        while not stopping.is_set():
            jobs = connection.execute(CLAIM, (self.tune["batch"],)).fetchall()
            for _, payload in jobs:
                handled(payload)
            if jobs:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(SETTLE, [(job_id,) for job_id, _ in jobs])
                connection.execute("COMMIT")
            else:
                stopping.wait(self.tune["poll_ms"] / 1000)
        connection.close()

    def _connect(self) -> sqlite3.Connection:
        # isolation_level None: transactions begin and end where this file says so.
        connection = sqlite3.connect(self.url.removeprefix("sqlite:///"), isolation_level=None, timeout=30)
        connection.execute(f"PRAGMA journal_mode = {self.tune['journal_mode']}")
        connection.execute(f"PRAGMA synchronous = {self.tune['synchronous']}")
        return connection


if __name__ == "__main__":
    main(BareSqlite3)
