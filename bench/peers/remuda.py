# /// script
# dependencies = []
#
# [tool.bench]
# stores = ["postgres", "redis", "sqlite", "valkey"]
# editable = ".[postgres,redis]"
#
# [tool.bench.variants]
# no-archive = ["settle"]
# processes-1 = ["settle"]
# processes-2 = ["settle"]
# poll-5ms = ["latency"]
# ///
"""Remuda itself, from this repository.

``processes-2`` is ``remuda worker --processes 2``, timed from the moment at which both have started;
``processes-1`` is the same command with one, to compare it with.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any

from bench.crew import Member, crew
from bench.measures import main
from bench.peer import Handled, Peer
from remuda import Job, NewJob, Queue, Worker

PROCESSES = ("processes-1", "processes-2")


class Remuda(Peer):
    packages = ("remuda",)

    def settings(self, measure: str, variant: str) -> dict[str, Any]:
        # On Redis a fetch is quick and the server works beside us: so batches are smaller.
        on_redis = self.url.startswith(("redis", "valkey"))
        return {
            "concurrency": 10,
            "fetch_batch_size": 500 if on_redis else 1_000,
            "archive_completed": variant != "no-archive",
            # The store wakes the worker by itself; only the variant polls as often as others must.
            "max_fetch_interval_ms": 5 if variant == "poll-5ms" else 1_000,
            # 0: in the process that measures, as all peers.
            "processes": int(variant.removeprefix("processes-")) if variant in PROCESSES else 0,
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

    def worker(self, handled: Handled) -> AbstractAsyncContextManager[float | None]:
        processes = self.tune["processes"]
        return self._in_processes(handled, processes) if processes else self._here(handled)

    @asynccontextmanager
    async def _here(self, handled: Handled) -> AsyncIterator[None]:
        async with Queue("bench", self.url) as queue:
            worker = make_worker(queue, self.tune)

            @worker.handler("noop")
            async def noop(job: Job) -> None:
                handled(job.payload.encode())

            running = asyncio.create_task(worker.run(signals=False))
            try:
                yield
            finally:
                worker.stop()
                await running

    def _in_processes(self, handled: Handled, processes: int) -> AbstractAsyncContextManager[float]:
        options = ["--processes", str(processes), "--log-level", "error"]
        command = [sys.executable, "-P", "-m", "remuda.cli", "worker", CREW_WORKER, *options]
        return crew(command, processes, handled, {CREW_ORDERS: json.dumps([self.url, self.tune])})


CREW_WORKER = "bench.peers.remuda:crew_worker"
CREW_ORDERS = "BENCH_REMUDA_CREW"


def make_worker(queue: Queue, tune: dict[str, Any]) -> Worker:
    options = {name: tune[name] for name in ("concurrency", "fetch_batch_size", "archive_completed")}
    return Worker(queue, max_fetch_interval=timedelta(milliseconds=tune["max_fetch_interval_ms"]), **options)


def crew_worker() -> Worker:
    """The worker of one process of several, made by ``remuda worker``."""
    url, tune = json.loads(os.environ[CREW_ORDERS])
    worker = make_worker(Queue("bench", url), tune)
    member = Member()

    @worker.handler("noop")
    async def noop(job: Job) -> None:
        if member.waits:
            await member.gate()
        job.payload.encode()
        member.count()

    return worker


if __name__ == "__main__":
    main(Remuda)
