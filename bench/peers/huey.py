# /// script
# dependencies = ["huey==3.5.4", "redis==8.1.0", "hiredis==3.5.0"]
#
# [tool.bench]
# stores = ["redis", "sqlite", "valkey"]
# without_acks = [""]
# ///
"""Huey on SQLite and Redis.

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

from huey import Huey, RedisHuey, SqliteHuey

from bench.measures import main
from bench.peer import Handled, Peer


class HueyPeer(Peer):
    packages = ("huey",)

    def settings(self, measure: str, variant: str) -> dict[str, Any]:
        settings = {"results": False, "worker_type": "thread"}
        if self._on_redis:
            return settings | {"workers": 4, "blocking": True}  # idle ones are woken by the server
        return settings | {
            # One: threads share one connection and its lock, processes contend for the file's.
            "workers": 1,
            "journal_mode": "wal",
            "synchronous": "normal",  # as the others; Huey itself offers full and off
            # It polls, backing off while the queue is empty.
            "initial_delay": 0.001,
            "max_delay": 0.01,
            "sqlite": sqlite3.sqlite_version,
        }

    @property
    def _on_redis(self) -> bool:
        return self.url.startswith("redis")

    async def create(self) -> None:
        """The tables are made by ``open``."""

    async def open(self) -> None:
        self._huey = self._on_the_server() if self._on_redis else self._in_the_file()
        self._handled: Handled = lambda payload: None
        self._task = self._huey.task(name="noop")(self._noop)

    def _on_the_server(self) -> Huey:
        # It waits a second for a job, which redis-py must not take for a dead connection.
        options = {"blocking": self.tune["blocking"], "read_timeout": 1}
        return RedisHuey("bench", url=self.url, results=self.tune["results"], **options)

    def _in_the_file(self) -> Huey:
        file = self.url.removeprefix("sqlite:///")
        huey = SqliteHuey("bench", filename=file, results=self.tune["results"], timeout=30)
        huey.storage.conn.execute(f"PRAGMA synchronous = {self.tune['synchronous']}")
        return huey

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
        options = ("workers", "worker_type", "initial_delay", "max_delay")
        consumer = self._huey.create_consumer(
            **{option: self.tune[option] for option in options if option in self.tune},
            periodic=False,
            check_worker_health=False,
        )
        consumer.start()
        try:
            yield
        finally:
            await asyncio.to_thread(consumer.stop, graceful=True)


if __name__ == "__main__":
    main(HueyPeer)
