# /// script
# dependencies = [
#     "saq==0.26.4",
#     "redis==7.4.1",
#     "hiredis==3.5.0",
#     "orjson==3.13.0",
#     "typing-extensions==4.16.0",
#     "uvloop==0.23.0",
# ]
#
# [tool.bench]
# stores = ["redis", "valkey"]
# ///
"""SAQ on Redis.  It fetches and settles one job at a time, so several run at once to overlap the waits.

A job is in an `active` list until it has run, from which a sweep takes those of dead workers.  There is
no bulk add, so that many are added at once instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
from redis.asyncio import Redis
from saq import Worker
from saq.queue.redis import RedisQueue

from bench.measures import main
from bench.peer import Handled, Peer

logging.getLogger("saq").setLevel(logging.ERROR)

SWEEPS_LESS_OFTEN_THAN_SECONDS = 3_600


class Saq(Peer):
    packages = ("saq", "redis", "hiredis")

    def settings(self, measure: str, variant: str) -> dict[str, Any]:
        return {
            "concurrency": 10,
            "max_concurrent_ops": 20,
            "serializer": "orjson",
            "ttl": -1,  # a job that has run is deleted at once
            "dequeue_timeout": 1,  # how long its stop takes at most
        }

    async def create(self) -> None:
        # A worker sweeps as it starts, and takes a job that another has taken a moment ago for a lost one:
        # it would run twice.  Whoever sweeps keeps others from it for a time; here, for the whole run.
        queue = self._make_queue()
        await queue.connect()
        await queue.sweep(lock=SWEEPS_LESS_OFTEN_THAN_SECONDS)
        await queue.disconnect()

    async def open(self) -> None:
        self._queue = self._make_queue()
        await self._queue.connect()

    async def close(self) -> None:
        await self._queue.disconnect()

    async def add(self, payload: bytes) -> None:
        await self._queue.enqueue("noop", payload=payload.decode(), ttl=self.tune["ttl"])

    async def add_many(self, payloads: list[bytes]) -> None:
        await asyncio.gather(*map(self.add, payloads))  # no more than max_concurrent_ops at once

    async def left(self) -> int:
        return int(await self._queue.count("incomplete"))

    @asynccontextmanager
    async def worker(self, handled: Handled) -> AsyncIterator[None]:
        async def noop(_context: Any, *, payload: str) -> None:
            handled(payload.encode())

        queue = self._make_queue()
        worker: Worker[Any] = Worker(
            queue,
            [("noop", noop)],
            concurrency=self.tune["concurrency"],
            dequeue_timeout=self.tune["dequeue_timeout"],
            shutdown_grace_period_s=2,  # its timers never end by themselves
        )
        await queue.connect()
        running = asyncio.create_task(worker.start())
        try:
            yield
        finally:
            worker.event.set()
            await running
            await queue.disconnect()

    def _make_queue(self) -> RedisQueue:
        redis = Redis.from_url(self.url)
        ops = self.tune["max_concurrent_ops"]
        return RedisQueue(redis, "bench", orjson.dumps, orjson.loads, max_concurrent_ops=ops)


if __name__ == "__main__":
    main(Saq)
