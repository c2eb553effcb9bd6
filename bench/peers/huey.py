# /// script
# dependencies = ["huey==3.5.4"]
#
# [tool.bench]
# stores = ["sqlite"]
# ///
"""Huey on SQLite.

It deletes a job when it takes it, before the handler runs: a job is settled at its claim and a crash
loses it, which is less than the others promise.  Its handlers are plain functions, and it has no way
to add many jobs at once (``map`` adds them one by one).
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from huey import SqliteHuey

from bench.measures import main
from bench.peer import Handled, Peer


class Huey(Peer):
    packages = ("huey",)

    def settings(self, measure: str, variant: str) -> dict[str, Any]:
        return {
            "journal_mode": "wal",
            "synchronous": "normal",  # as the others; Huey itself offers full and off
            "results": False,
            # One: threads share one connection and its lock, processes contend for the file's.
            "workers": 1,
            "worker_type": "thread",
            # It polls, backing off while the queue is empty.
            "initial_delay": 0.001,
            "max_delay": 0.01,
            "sqlite": sqlite3.sqlite_version,
        }

    async def create(self) -> None:
        """The tables are made by ``open``."""

    async def open(self) -> None:
        file = self.url.removeprefix("sqlite:///")
        self._huey = SqliteHuey("bench", filename=file, results=self.tune["results"], timeout=30)
        self._huey.storage.conn.execute(f"PRAGMA synchronous = {self.tune['synchronous']}")
        self._handled: Handled = lambda payload: None
        self._task = self._huey.task(name="noop")(self._noop)

    def _noop(self, payload: bytes) -> None:
        self._handled(payload)

    async def close(self) -> None:
        self._huey.storage.close()

    async def add(self, payload: bytes) -> None:
        self._task(payload)

    async def add_many(self, payloads: list[bytes]) -> None:
        self._task.map(payloads)

    async def left(self) -> int:
        return int(self._huey.pending_count())

    @asynccontextmanager
    async def worker(self, handled: Handled) -> AsyncIterator[None]:
        self._handled = handled
        consumer = self._huey.create_consumer(
            workers=self.tune["workers"],
            worker_type=self.tune["worker_type"],
            initial_delay=self.tune["initial_delay"],
            max_delay=self.tune["max_delay"],
            periodic=False,
            check_worker_health=False,
        )
        consumer.start()
        try:
            yield
        finally:
            await asyncio.to_thread(consumer.stop, graceful=True)


if __name__ == "__main__":
    main(Huey)
