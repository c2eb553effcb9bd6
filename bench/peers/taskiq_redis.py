# /// script
# dependencies = [
#     "taskiq-redis==1.2.4",
#     "taskiq==0.13.0",
#     "redis==8.1.0",
#     "hiredis==3.5.0",
#     "orjson==3.13.0",
#     "uvloop==0.23.0",
# ]
#
# [tool.bench]
# stores = ["redis", "valkey"]
# variants = { list = ["settle"] }
# without_acks = ["list"]
# ///
"""Taskiq on Redis: the stream broker, which reads in batches and acks each job after it has run.

It leaves acked entries in the stream.  It has no bulk add, so that many are added at once instead.
``list`` is its other broker, which takes a job off a list for good before it runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis
from taskiq.receiver import Receiver
from taskiq.serializers import ORJSONSerializer
from taskiq_redis import ListQueueBroker, RedisStreamBroker

from bench.measures import main
from bench.peer import Handled, Peer

logging.getLogger("taskiq").setLevel(logging.CRITICAL)

STOP_PATIENCE_SECONDS = 1


class Taskiq(Peer):
    packages = ("taskiq", "taskiq-redis", "redis", "hiredis")

    def settings(self, measure: str, variant: str) -> dict[str, Any]:
        return {
            "broker": "list" if variant == "list" else "stream",
            "max_async_tasks": 100,
            "max_prefetch": 100,
            "xread_count": 100,
            # By default the lock of a worker that was stopped while it held it keeps all others waiting.
            "unacknowledged_lock_timeout": 1,
            "pool": 100,
            "serializer": "orjson",
            "validate_params": False,
            "adds_at_once": 20,
        }

    async def create(self) -> None:
        broker = self._broker()
        await broker.startup()  # makes the consumer group
        await broker.shutdown()

    async def open(self) -> None:
        self._redis = Redis.from_url(self.url)
        self._adding = self._broker()
        await self._adding.startup()
        self._task = _register(self._adding, lambda payload: None)
        self._slots = asyncio.Semaphore(self.tune["adds_at_once"])

    async def close(self) -> None:
        await self._adding.shutdown()
        await self._redis.aclose()

    async def add(self, payload: bytes) -> None:
        await self._task.kiq(payload.decode())

    async def add_many(self, payloads: list[bytes]) -> None:
        await asyncio.gather(*map(self._add_in_a_slot, payloads))

    async def _add_in_a_slot(self, payload: bytes) -> None:
        async with self._slots:
            await self.add(payload)

    async def left(self) -> int:
        if self.tune["broker"] == "list":
            return int(await self._redis.llen("bench"))
        (group,) = await self._redis.xinfo_groups("bench")
        return int(group["pending"] + group["lag"])

    @asynccontextmanager
    async def worker(self, handled: Handled) -> AsyncIterator[None]:
        broker = self._broker()
        _register(broker, handled)
        options = {name: self.tune[name] for name in ("max_async_tasks", "max_prefetch", "validate_params")}
        stopping = asyncio.Event()
        running = asyncio.create_task(Receiver(broker, **options).listen(stopping))
        try:
            yield
        finally:
            stopping.set()
            # Now and then its read does not hear of it; without a connection it must end.
            await asyncio.wait([running], timeout=STOP_PATIENCE_SECONDS)
            await broker.shutdown()
            await asyncio.gather(running, return_exceptions=True)

    def _broker(self) -> Any:
        pool = {"max_connection_pool_size": self.tune["pool"]}
        if self.tune["broker"] == "list":
            # It waits for a job without end, which redis-py would take for a dead connection.
            broker: Any = ListQueueBroker(self.url, queue_name="bench", socket_timeout=None, **pool)
        else:
            options = {name: self.tune[name] for name in ("xread_count", "unacknowledged_lock_timeout")}
            broker = RedisStreamBroker(self.url, "bench", consumer_id="0", **options, **pool)
        return broker.with_serializer(ORJSONSerializer())


def _register(broker: Any, handled: Handled) -> Any:
    async def noop(payload: str) -> None:
        handled(payload.encode())

    return broker.register_task(noop, task_name="noop")


if __name__ == "__main__":
    main(Taskiq)
