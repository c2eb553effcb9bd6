# /// script
# dependencies = ["pgqueuer==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0"]
#
# [tool.bench]
# stores = ["postgres"]
# ///
"""PgQueuer, with its durable tables.  A settled job leaves the queue table and is written to its log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench.measures import main
from bench.peer import Handled, Peer


class PgQueuerPeer(Peer):
    packages = ("pgqueuer", "asyncpg")

    def settings(self, measure: str, variant: str) -> dict[str, Any]:
        return {"durability": "durable", "batch_size": 250, "pool": 5}

    async def create(self) -> None:
        connection = await asyncpg.connect(self.url)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    async def open(self) -> None:
        self._connection = await asyncpg.connect(self.url)
        self._queries = Queries(AsyncpgDriver(self._connection))

    async def close(self) -> None:
        await self._connection.close()

    async def add(self, payload: bytes) -> None:
        await self._queries.enqueue("noop", payload)

    async def add_many(self, payloads: list[bytes]) -> None:
        await self._queries.enqueue(["noop"] * len(payloads), list(payloads), [0] * len(payloads))

    async def left(self) -> int:
        return int(await self._connection.fetchval("SELECT count(*) FROM pgqueuer"))

    @asynccontextmanager
    async def worker(self, handled: Handled) -> AsyncIterator[None]:
        async with asyncpg.create_pool(self.url, min_size=2, max_size=self.tune["pool"]) as pool:
            worker = PgQueuer(AsyncpgPoolDriver(pool))

            @worker.entrypoint("noop")
            async def noop(job: Job) -> None:
                handled(job.payload or b"")

            running = asyncio.create_task(
                worker.run(batch_size=self.tune["batch_size"], dequeue_timeout=timedelta(seconds=5))
            )
            try:
                yield
            finally:
                worker.shutdown.set()
                await asyncio.wait([running])


if __name__ == "__main__":
    main(PgQueuerPeer)
