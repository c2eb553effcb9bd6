# /// script
# dependencies = ["celery[redis]==5.7.0", "kombu[redis]==5.7.0", "redis==8.1.0", "hiredis==3.5.0"]
#
# [tool.bench]
# stores = ["redis", "valkey"]
# variants = { acks-early = ["settle"] }
# without_acks = ["acks-early"]
# ///
"""Celery on Redis, with late acks: a job is acked after it has run, so that a dead worker loses none.

Celery's own default acks before; that is ``acks-early``.  Its pool is ``solo``: the default one hands jobs
to further processes, and ``threads`` was no faster.  Handlers are plain functions.  There is no bulk add:
jobs are added one by one over one connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from celery import Celery
from celery.worker import WorkController, state
from redis import Redis

from bench.measures import main
from bench.peer import Handled, Peer

logging.getLogger("celery").setLevel(logging.ERROR)


class CeleryPeer(Peer):
    packages = ("celery", "kombu", "redis", "hiredis")

    def settings(self, measure: str, variant: str) -> dict[str, Any]:
        return {
            "pool": "solo",
            "concurrency": 1,
            "worker_prefetch_multiplier": 100,
            "task_acks_late": variant != "acks-early",
            "task_ignore_result": True,
            "worker_send_task_events": False,
            "gossip, mingle, heartbeat": False,
        }

    async def create(self) -> None:
        """There is nothing to make."""

    async def open(self) -> None:
        self._redis = Redis.from_url(self.url)
        self._app, self._task = self._make(lambda payload: None)
        self._producer = self._app.amqp.Producer(self._app.connection_for_write())

    async def close(self) -> None:
        self._producer.connection.close()
        self._app.close()
        self._redis.close()

    async def add(self, payload: bytes) -> None:
        self._task.apply_async((payload.decode(),), producer=self._producer)

    async def add_many(self, payloads: list[bytes]) -> None:
        for payload in payloads:
            self._task.apply_async((payload.decode(),), producer=self._producer)

    async def left(self) -> int:
        with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.llen("bench")
            pipeline.hlen("unacked")
            return int(sum(pipeline.execute()))

    @asynccontextmanager
    async def worker(self, handled: Handled) -> AsyncIterator[None]:
        app, _ = self._make(handled)
        app.set_default()  # running a job asks for it
        worker: Any = WorkController(
            app,
            pool_cls=self.tune["pool"],
            concurrency=self.tune["concurrency"],
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
        )
        state.should_stop = None
        working = asyncio.create_task(asyncio.to_thread(worker.start))
        try:
            yield
        finally:
            state.should_stop = 0  # an exit code: what its handler of signals does
            await asyncio.gather(working, return_exceptions=True)
            app.close()

    def _make(self, handled: Handled) -> tuple[Celery, Any]:
        app = Celery("bench", broker=self.url, set_as_current=False)
        options = ("worker_prefetch_multiplier", "task_acks_late", "task_ignore_result")
        app.conf.update({option: self.tune[option] for option in options}, task_default_queue="bench")

        @app.task(name="noop", shared=False)
        def noop(payload: str) -> None:
            handled(payload.encode())

        return app, noop


if __name__ == "__main__":
    main(CeleryPeer)
