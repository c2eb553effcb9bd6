# /// script
# dependencies = ["arq==0.28.0", "redis==5.3.1", "hiredis==3.5.0", "msgpack==1.2.4", "uvloop==0.23.0"]
#
# [tool.bench]
# stores = ["redis", "valkey"]
# ///
"""arq on Redis.  It polls; it takes and settles one job at a time, in several round trips each.

A job stays in its sorted set until it has run.  There is no bulk add, so that many are added at once
instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgpack
from arq import Worker, create_pool
from arq.connections import ArqRedis, RedisSettings
from arq.worker import func

from bench.measures import main
from bench.peer import Handled, Peer

logging.getLogger("arq").setLevel(logging.ERROR)


class Arq(Peer):
    packages = ("arq", "redis", "hiredis")

    def settings(self, measure: str, variant: str) -> dict[str, Any]:
        return {
            "max_jobs": 50,
            "queue_read_limit": 1_000,
            "poll_delay": 0.005,
            "keep_result": 0,
            "serializer": "msgpack",
            "adds_at_once": 20,
        }

    async def create(self) -> None:
        """There is nothing to make."""

    async def open(self) -> None:
        self._pool = await self._make_pool()
        self._slots = asyncio.Semaphore(self.tune["adds_at_once"])

    async def close(self) -> None:
        await self._pool.aclose()

    async def add(self, payload: bytes) -> None:
        await self._pool.enqueue_job("noop", payload.decode())

    async def add_many(self, payloads: list[bytes]) -> None:
        await asyncio.gather(*map(self._add_in_a_slot, payloads))

    async def _add_in_a_slot(self, payload: bytes) -> None:
        async with self._slots:
            await self.add(payload)

    async def left(self) -> int:
        return int(await self._pool.zcard("bench"))

    @asynccontextmanager
    async def worker(self, handled: Handled) -> AsyncIterator[None]:
        async def noop(_context: dict[Any, Any], payload: str) -> None:
            handled(payload.encode())

        options = ("max_jobs", "queue_read_limit", "poll_delay", "keep_result")
        worker = Worker(
            [func(noop, name="noop")],
            queue_name="bench",
            redis_pool=await self._make_pool(),
            handle_signals=False,
            job_serializer=msgpack.packb,
            job_deserializer=msgpack.unpackb,
            **{option: self.tune[option] for option in options},
        )
        running = asyncio.create_task(worker.async_run())
        try:
            yield
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            await worker.close()

    async def _make_pool(self) -> ArqRedis:
        return await create_pool(
            RedisSettings.from_dsn(self.url),
            job_serializer=msgpack.packb,
            job_deserializer=msgpack.unpackb,
            default_queue_name="bench",
        )


if __name__ == "__main__":
    main(Arq)
