# /// script
# dependencies = ["chasquimq==1.3.0", "redis==6.4.0", "uvloop==0.23.0"]
#
# [tool.bench]
# stores = ["redis"]
# needs = { redis = "8.6" }
# native = true
# variants = { events-off = ["settle", "latency"] }
# ///
"""ChasquiMQ, whose wire Remuda shares: an engine in Rust under async handlers in Python.

By default its worker writes two events for each job; ``events-off`` does not.  Bulk adds go through
``add_bulk``, one pipeline each.  Its own defaults for reading and acking (64 and 256) stay: larger
reads made no difference in short trials.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from chasquimq import Job, Queue, Worker
from redis.asyncio import Redis

from bench.measures import main
from bench.peer import Handled, Peer

STREAM = "{chasqui:bench}:stream"


class ChasquiMQ(Peer):
    packages = ("chasquimq",)

    def settings(self, measure: str, variant: str) -> dict[str, Any]:
        return {
            "concurrency": 100,
            "read_count": 64,
            "events_enabled": variant != "events-off",
            "max_stream_len": 100_000_000,  # the stream is trimmed above this, unread jobs included
        }

    async def create(self) -> None:
        """The worker makes the consumer group."""

    async def open(self) -> None:
        self._queue = Queue("bench", redis_url=self.url, max_stream_len=self.tune["max_stream_len"])
        self._redis = Redis.from_url(self.url)

    async def close(self) -> None:
        await self._queue.close()
        await self._redis.aclose()

    async def add(self, payload: bytes) -> None:
        await self._queue.add("noop", payload.decode())

    async def add_many(self, payloads: list[bytes]) -> None:
        await self._queue.add_bulk([{"name": "noop", "data": payload.decode()} for payload in payloads])

    async def left(self) -> int:
        return int(await self._redis.xlen(STREAM))

    @asynccontextmanager
    async def worker(self, handled: Handled) -> AsyncIterator[None]:
        async def noop(job: Job) -> None:
            handled(job.data.encode())

        worker = Worker(
            "bench",
            noop,
            redis_url=self.url,
            concurrency=self.tune["concurrency"],
            read_count=self.tune["read_count"],
            events_enabled=self.tune["events_enabled"],
        )
        running = asyncio.create_task(worker.run())
        try:
            yield
        finally:
            await worker.close()
            await running
            await self._blocking_read_over()

    async def _blocking_read_over(self) -> None:
        """Return once the server has let the worker's last read go.

        It outlives the worker (for ``read_block_ms``), and jobs that are added meanwhile would be
        handed to it: nobody runs them until another worker claims them 30 s later.
        """
        while (await self._redis.info("clients"))["blocked_clients"]:  # noqa: ASYNC110 - the server's doing
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    main(ChasquiMQ)
