# /// script
# dependencies = ["rq==2.12.0", "redis==8.1.0", "hiredis==3.5.0"]
#
# [tool.bench]
# stores = ["redis", "valkey"]
# ///
"""RQ, with its ``SimpleWorker``: the default one forks a process for each job and is far slower.

It takes, runs and settles one job after another; handlers are plain functions.  Bulk adds go through
``enqueue_many``, one pipeline each.  Jobs and results are deleted at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from redis import Redis
from rq import Queue, SimpleWorker
from rq.exceptions import StopRequested
from rq.timeouts import BaseDeathPenalty

import bench.peers.rq as importable
from bench.measures import main
from bench.peer import Handled, Peer

logging.getLogger("rq").setLevel(logging.ERROR)

on_job: Handled = lambda payload: None  # noqa: E731 - replaced by a worker, in the module that RQ imports


def noop(payload: str) -> None:
    on_job(payload.encode())


class NoDeathPenalty(BaseDeathPenalty):
    """Jobs without a time limit; RQ would set and reset a signal for each all the same."""

    def setup_death_penalty(self) -> None: ...

    def cancel_death_penalty(self) -> None: ...


class InThread(SimpleWorker):
    """Signals belong to the main thread, where the harness is; an idle worker is stopped without one."""

    death_penalty_class = NoDeathPenalty

    def _install_signal_handlers(self) -> None: ...

    def heartbeat(self, *arguments: Any, **options: Any) -> None:
        if self._stop_requested:
            raise StopRequested
        super().heartbeat(*arguments, **options)


class Rq(Peer):
    packages = ("rq", "redis", "hiredis")

    def settings(self, measure: str, variant: str) -> dict[str, Any]:
        return {
            "worker": "SimpleWorker",
            "result_ttl": 0,
            "timeout": -1,
            "worker_ttl": 16,  # so that an idle worker looks once a second whether it is to stop
        }

    async def create(self) -> None:
        """There is nothing to make."""

    async def open(self) -> None:
        self._redis = Redis.from_url(self.url)
        self._queue = Queue("bench", connection=self._redis)

    async def close(self) -> None:
        self._redis.close()

    async def add(self, payload: bytes) -> None:
        self._queue.enqueue_call(importable.noop, (payload.decode(),), **self._job_options())

    async def add_many(self, payloads: list[bytes]) -> None:
        options = self._job_options()
        self._queue.enqueue_many(
            [Queue.prepare_data(importable.noop, (payload.decode(),), **options) for payload in payloads]
        )

    def _job_options(self) -> dict[str, Any]:
        # The description would be made from the arguments.
        return {"timeout": self.tune["timeout"], "result_ttl": self.tune["result_ttl"], "description": "noop"}

    async def left(self) -> int:
        with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.llen(self._queue.key)
            pipeline.llen(self._queue.intermediate_queue_key)
            pipeline.zcard(self._queue.started_job_registry.key)
            return int(sum(pipeline.execute()))

    @asynccontextmanager
    async def worker(self, handled: Handled) -> AsyncIterator[None]:
        importable.on_job = handled
        with Redis.from_url(self.url) as redis:
            queue = Queue("bench", connection=redis)
            worker = InThread([queue], connection=redis, worker_ttl=self.tune["worker_ttl"])
            working = asyncio.create_task(asyncio.to_thread(worker.work, logging_level="ERROR"))
            try:
                yield
            finally:
                worker._stop_requested = True
                await working


if __name__ == "__main__":
    main(Rq)
