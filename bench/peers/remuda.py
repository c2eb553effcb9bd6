# /// script
# dependencies = []
#
# [tool.bench]
# stores = ["postgres", "sqlite"]
# editable = ".[postgres]"
# variants = { no-archive = ["settle"], poll-5ms = ["latency"] }
# ///
"""Remuda itself, from this repository."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from bench.measures import main
from bench.peer import Handled, Peer
from remuda import Job, NewJob, Queue, Worker


class Remuda(Peer):
    packages = ("remuda",)

    def settings(self, measure: str, variant: str) -> dict[str, Any]:
        return {
            "concurrency": 10,
            "fetch_batch_size": 1_000,
            "archive_completed": variant != "no-archive",
            # The store wakes the worker by itself; only the variant polls as often as others must.
            "max_fetch_interval_ms": 5 if variant == "poll-5ms" else 1_000,
        }

    async def create(self) -> None:
        """The tables are made by ``open``."""

    async def open(self) -> None:
        self._queue = Queue("bench", self.url)
        await self._queue.open()

    async def close(self) -> None:
        await self._queue.close()

    async def add(self, payload: bytes) -> None:
        await self._queue.add("noop", payload.decode())

    async def add_many(self, payloads: list[bytes]) -> None:
        await self._queue.add_many([NewJob("noop", payload.decode()) for payload in payloads])

    async def left(self) -> int:
        stats = await self._queue.stats()
        return stats.pending + stats.delayed + stats.processing + stats.retryable

    @asynccontextmanager
    async def worker(self, handled: Handled) -> AsyncIterator[None]:
        async with Queue("bench", self.url) as queue:
            options = dict(self.tune)
            idle = timedelta(milliseconds=options.pop("max_fetch_interval_ms"))
            worker = Worker(queue, max_fetch_interval=idle, **options)

            @worker.handler("noop")
            async def noop(job: Job) -> None:
                handled(job.payload.encode())

            running = asyncio.create_task(worker.run(signals=False))
            try:
                yield
            finally:
                worker.stop()
                await running


if __name__ == "__main__":
    main(Remuda)
