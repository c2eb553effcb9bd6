# /// script
# dependencies = [
#     "streaq==7.2.0",
#     "coredis==6.9.0",
#     "hiredis==3.5.0",
#     "msgpack==1.2.4",
#     "uvloop==0.23.0",
# ]
#
# [tool.bench]
# stores = ["redis", "valkey"]
# ///
"""streaq, on Redis streams.  It reads in batches; each job is looked up and settled on its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import msgpack
from streaq import Worker

from bench.measures import main
from bench.peer import Handled, Peer

logging.getLogger("streaq").setLevel(logging.ERROR)


class Streaq(Peer):
    packages = ("streaq", "coredis")

    def settings(self, measure: str, variant: str) -> dict[str, Any]:
        return {
            "concurrency": 16,
            "prefetch": 16,
            "serializer": "msgpack",
            "ttl": 0,  # no result is kept
            "silent": True,
        }

    async def create(self) -> None:
        """The worker makes the consumer group."""

    async def open(self) -> None:
        self._adding, self._task = self._make(lambda payload: None)
        self._opened = AsyncExitStack()
        await self._opened.enter_async_context(self._adding)

    async def close(self) -> None:
        await self._opened.aclose()

    async def add(self, payload: bytes) -> None:
        await self._task.enqueue(payload.decode())

    async def add_many(self, payloads: list[bytes]) -> None:
        await self._adding.enqueue_many([self._task.enqueue(payload.decode()) for payload in payloads])

    async def left(self) -> int:
        return int(await self._adding.queue_size())

    @asynccontextmanager
    async def worker(self, handled: Handled) -> AsyncIterator[None]:
        worker, _ = self._make(handled)
        running = asyncio.create_task(worker.run_async())
        try:
            yield
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    def _make(self, handled: Handled) -> tuple[Any, Any]:
        worker: Worker[None] = Worker(
            self.url,
            queue_name="bench",
            concurrency=self.tune["concurrency"],
            prefetch=self.tune["prefetch"],
            serializer=msgpack.packb,
            deserializer=msgpack.unpackb,
            handle_signals=False,
        )

        @worker.task(name="noop", ttl=self.tune["ttl"], silent=self.tune["silent"])
        async def noop(payload: str) -> None:
            handled(payload.encode())

        return worker, noop


if __name__ == "__main__":
    main(Streaq)
