# /// script
# dependencies = ["asyncpg==0.32.0", "uvloop==0.23.0"]
#
# [tool.bench]
# stores = ["postgres"]
# bare = true
# variants = { batch-100 = ["settle"] }
# ///
"""The limit on PostgreSQL: asyncpg, one connection, the least a durable queue can do.

Adding is one ``INSERT … SELECT FROM unnest``; a batch is claimed in one transaction (SKIP LOCKED) and
deleted in a second, as a queue must that survives the death of a worker in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from bench.measures import main
from bench.peer import Handled, Peer

SCHEMA = """
CREATE TABLE job (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text NOT NULL,
    payload bytea NOT NULL,
    claimed_at timestamptz
);
CREATE INDEX job_ready ON job (queue, id) WHERE claimed_at IS NULL;
"""
ADD = "INSERT INTO job (queue, payload) VALUES ('bench', $1)"
ADD_MANY = "INSERT INTO job (queue, payload) SELECT 'bench', unnest($1::bytea[])"
CLAIM = """
WITH ready AS MATERIALIZED (
    SELECT id FROM job WHERE queue = 'bench' AND claimed_at IS NULL
    ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED
)
UPDATE job SET claimed_at = now() FROM ready WHERE job.id = ready.id RETURNING job.id, job.payload
"""
SETTLE = "DELETE FROM job WHERE id = ANY($1::bigint[])"


class BareAsyncpg(Peer):
    packages = ("asyncpg",)

    def settings(self, measure: str, variant: str) -> dict[str, Any]:
        batch = 100 if variant == "batch-100" else 5_000
        return {"connections": 1, "batch": batch, "poll_ms": 1}

    async def create(self) -> None:
        connection = await asyncpg.connect(self.url)
        await connection.execute(SCHEMA)
        await connection.close()

    async def open(self) -> None:
        self._connection = await asyncpg.connect(self.url)

    async def close(self) -> None:
        await self._connection.close()

    async def add(self, payload: bytes) -> None:
        await self._connection.execute(ADD, payload)

    async def add_many(self, payloads: list[bytes]) -> None:
        await self._connection.execute(ADD_MANY, payloads)

    async def left(self) -> int:
        return int(await self._connection.fetchval("SELECT count(*) FROM job"))

    @asynccontextmanager
    async def worker(self, handled: Handled) -> AsyncIterator[None]:
        connection = await asyncpg.connect(self.url)
        task = asyncio.create_task(self._work(connection, handled))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            await connection.close()

    async def _work(self, connection: asyncpg.Connection, handled: Handled) -> None:
        claim, settle = await connection.prepare(CLAIM), await connection.prepare(SETTLE)
        while True:
            jobs = await claim.fetch(self.tune["batch"])
            for job in jobs:
                handled(job["payload"])
            if jobs:
                await settle.fetch([job["id"] for job in jobs])
            else:
                await asyncio.sleep(self.tune["poll_ms"] / 1000)


if __name__ == "__main__":
    main(BareAsyncpg)
