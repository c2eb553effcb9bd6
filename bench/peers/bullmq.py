# /// script
# dependencies = ["bullmq==3.4.4", "redis==8.1.0", "hiredis==3.5.0", "uvloop==0.23.0"]
#
# [tool.bench]
# stores = ["redis", "valkey"]
# ///
"""BullMQ's Python port.  A script takes or settles one job at a time, under a lock that is renewed.

Bulk adds go through ``addBulk``, one pipeline each.  Jobs that have run are removed at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bullmq import Job, Queue, Worker

from bench.measures import main
from bench.peer import Handled, Peer


class BullMQ(Peer):
    packages = ("bullmq", "redis", "hiredis")

    def settings(self, measure: str, variant: str) -> dict[str, Any]:
        return {"concurrency": 10, "removeOnComplete": True}

    async def create(self) -> None:
        """There is nothing to make."""

    async def open(self) -> None:
        self._options = {"removeOnComplete": self.tune["removeOnComplete"]}
        self._queue = Queue("bench", {"connection": self.url})

    async def close(self) -> None:
        await self._queue.close()

    async def add(self, payload: bytes) -> None:
        await self._queue.add("noop", payload.decode(), self._options)

    async def add_many(self, payloads: list[bytes]) -> None:
        jobs = [{"name": "noop", "data": payload.decode(), "opts": self._options} for payload in payloads]
        await self._queue.addBulk(jobs)

    async def left(self) -> int:
        counts = await self._queue.getJobCounts(
            "wait", "active", "delayed", "prioritized", "paused", "failed"
        )
        return sum(counts.values())

    @asynccontextmanager
    async def worker(self, handled: Handled) -> AsyncIterator[None]:
        async def noop(job: Job, _token: str) -> None:
            handled(job.data.encode())

        concurrency = self.tune["concurrency"]
        worker = Worker("bench", noop, {"connection": self.url, "concurrency": concurrency, "autorun": False})
        running = asyncio.create_task(worker.run())
        try:
            yield
        finally:
            await worker.close()
            await asyncio.wait([running])


if __name__ == "__main__":
    main(BullMQ)
