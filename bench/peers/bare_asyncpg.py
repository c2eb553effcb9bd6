# /// script
# dependencies = ["asyncpg==0.32.0", "uvloop==0.23.0"]
#
# [tool.bench]
# stores = ["postgres"]
# bare = true
# variants = { batch-100 = ["settle"], reference-tables = ["publish-bulk", "settle"] }
# ///
"""The limit on PostgreSQL: asyncpg, one connection, the least a durable queue can do.

Adding is one ``INSERT … SELECT FROM unnest``; a batch is claimed in one transaction (SKIP LOCKED) and
deleted in a second, as a queue must that survives the death of a worker in between.

``reference-tables`` does the same on the table that Remuda's is a superset of, columns and indexes as
the reference broker makes them: the limit for a queue that keeps such rows.
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
REFERENCE_SCHEMA = """
CREATE TYPE state AS ENUM ('PENDING', 'PROCESSING', 'COMPLETED', 'FAILED', 'RETRYABLE');
CREATE TABLE message (
    id bigserial PRIMARY KEY,
    queue varchar(255) NOT NULL,
    headers json,
    payload bytea NOT NULL,
    state state NOT NULL,
    attempts_count bigint NOT NULL,
    deliveries_count bigint NOT NULL,
    created_at timestamp NOT NULL,
    first_attempt_at timestamp,
    next_attempt_at timestamp NOT NULL,
    last_attempt_at timestamp,
    acquired_at timestamp
);
CREATE INDEX ON message (queue);
CREATE INDEX ON message (state);
CREATE INDEX ON message (next_attempt_at);
"""
REFERENCE_ADD = """
INSERT INTO message (queue, payload, state, attempts_count, deliveries_count, created_at, next_attempt_at)
SELECT 'bench', unnest($1::bytea[]), 'PENDING', 0, 0, now() AT TIME ZONE 'UTC', now() AT TIME ZONE 'UTC'
"""
REFERENCE_CLAIM = """
WITH ready AS MATERIALIZED (
    SELECT id FROM message
    WHERE queue = 'bench' AND state IN ('PENDING', 'RETRYABLE')
      AND next_attempt_at <= now() AT TIME ZONE 'UTC'
    ORDER BY next_attempt_at LIMIT $1 FOR UPDATE SKIP LOCKED
)
UPDATE message SET state = 'PROCESSING', acquired_at = now() AT TIME ZONE 'UTC',
    deliveries_count = deliveries_count + 1
FROM ready WHERE message.id = ready.id RETURNING message.id, message.payload
"""
REFERENCE_SETTLE = "DELETE FROM message WHERE id = ANY($1::bigint[])"

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
        batch = 5_000 if variant == "" else 100
        tables = "reference" if variant == "reference-tables" else "least"
        return {"connections": 1, "batch": batch, "poll_ms": 1, "tables": tables}

    @property
    def _on_reference_tables(self) -> bool:
        return bool(self.tune["tables"] == "reference")

    async def create(self) -> None:
        connection = await asyncpg.connect(self.url)
        await connection.execute(REFERENCE_SCHEMA if self._on_reference_tables else SCHEMA)
        await connection.close()

    async def open(self) -> None:
        self._connection = await asyncpg.connect(self.url)

    async def close(self) -> None:
        await self._connection.close()

    async def add(self, payload: bytes) -> None:
        await self._connection.execute(ADD, payload)

    async def add_many(self, payloads: list[bytes]) -> None:
        await self._connection.execute(REFERENCE_ADD if self._on_reference_tables else ADD_MANY, payloads)

    async def left(self) -> int:
        table = "message" if self._on_reference_tables else "job"
        return int(await self._connection.fetchval(f"SELECT count(*) FROM {table}"))

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
        reference = self._on_reference_tables
        claim = await connection.prepare(REFERENCE_CLAIM if reference else CLAIM)
        settle = await connection.prepare(REFERENCE_SETTLE if reference else SETTLE)
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
