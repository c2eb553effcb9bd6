# /// script
# dependencies = ["dramatiq==2.2.1", "redis==8.1.0", "hiredis==3.5.0"]
#
# [tool.bench]
# stores = ["redis", "valkey"]
# ///
"""Dramatiq on Redis, with its default middleware.

It fetches in batches and acks each job on its own, from threads; handlers are plain functions.  It polls
an empty queue, backing off up to ``worker_timeout``.  There is no bulk add.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.measures import main
from bench.peer import Handled, Peer

logging.getLogger("dramatiq").setLevel(logging.ERROR)


class Dramatiq(Peer):
    packages = ("dramatiq", "redis", "hiredis")

    def settings(self, measure: str, variant: str) -> dict[str, Any]:
        return {
            "worker_threads": 16,
            "queue_prefetch": 100,
            "worker_timeout_ms": 5 if measure == "latency" else 100,
        }

    async def create(self) -> None:
        """There is nothing to make."""

    async def open(self) -> None:
        self._broker, self._actor = self._make(lambda payload: None)

    async def close(self) -> None:
        self._broker.close()

    async def add(self, payload: bytes) -> None:
        self._actor.send(payload.decode())

    async def add_many(self, payloads: list[bytes]) -> None:
        for payload in payloads:
            self._actor.send(payload.decode())

    async def left(self) -> int:
        return int(self._broker.client.hlen("dramatiq:bench.msgs"))

    @asynccontextmanager
    async def worker(self, handled: Handled) -> AsyncIterator[None]:
        broker, _ = self._make(handled)
        worker = dramatiq.Worker(
            broker,
            worker_threads=self.tune["worker_threads"],
            worker_timeout=self.tune["worker_timeout_ms"],
        )
        worker.queue_prefetch = self.tune["queue_prefetch"]  # else from the environment, at import
        worker.start()
        try:
            yield
        finally:
            await asyncio.to_thread(worker.stop)
            broker.close()

    def _make(self, handled: Handled) -> tuple[RedisBroker, Any]:
        broker = RedisBroker(url=self.url)

        @dramatiq.actor(actor_name="noop", queue_name="bench", broker=broker)
        def noop(payload: str) -> None:
            handled(payload.encode())

        return broker, noop


if __name__ == "__main__":
    main(Dramatiq)
