# /// script
# dependencies = [
#     "faststream-sqlbroker==0.1.0a11",
#     "faststream==0.7.8",
#     "sqlalchemy[asyncio]==2.1.8",
#     "asyncpg==0.32.0",
#     "aiosqlite==0.22.1",
#     "uvloop==0.23.0",
# ]
#
# [tool.bench]
# stores = ["postgres", "sqlite"]
# variants = { no-archive = ["settle"] }
# ///
"""FastStream's SQL broker, whose lifecycle Remuda shares.  It polls; it flushes outcomes in batches.

It keeps settled jobs in an archive table, as Remuda does; the variant ``no-archive`` does not.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from faststream_sqlbroker import SqlBroker, SqlBrokerSchemaConfig
from faststream_sqlbroker.sqlbroker.schema import define_sqlbroker_schema
from sqlalchemy import BigInteger, Integer, event, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from bench.measures import main
from bench.peer import Handled, Peer

QUEUE = "bench"


class FastStreamSqlBroker(Peer):
    packages = ("faststream-sqlbroker", "faststream", "sqlalchemy", "asyncpg", "aiosqlite")

    def settings(self, measure: str, variant: str) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "fetch_batch_size": 1_000,
            "max_workers": 10,
            "min_fetch_interval": 0,
            # How often an empty queue is asked again: as often as is still sensible where that counts.
            "max_fetch_interval": 0.005 if measure == "latency" else 0.1,
            "flush_interval": 0.02,
            "retain_in_archive_on_ack": variant != "no-archive",
            "apply_types": False,
            "logger": None,
        }
        if self.url.startswith("sqlite"):
            settings |= {"journal_mode": "wal", "synchronous": "normal", "sqlite": sqlite3.sqlite_version}
        return settings

    async def create(self) -> None:
        engine = self._engine()
        tables = define_sqlbroker_schema(config=SqlBrokerSchemaConfig()).tables.values()
        async with engine.begin() as connection:
            for table in tables:
                # On SQLite only INTEGER keys number themselves; the tables are the user's to make.
                table.c.id.type = BigInteger().with_variant(Integer, "sqlite")
                await connection.run_sync(table.create)
        await engine.dispose()

    async def open(self) -> None:
        self._counting = self._engine()
        self._adding = self._broker()
        await self._adding.connect()

    async def close(self) -> None:
        await self._adding.stop()
        await self._counting.dispose()

    async def add(self, payload: bytes) -> None:
        await self._adding.publish(payload, queue=QUEUE)

    async def add_many(self, payloads: list[bytes]) -> None:
        await self._adding.publish_batch(*payloads, queue=QUEUE)

    async def left(self) -> int:
        async with self._counting.connect() as connection:
            return int((await connection.execute(text("SELECT count(*) FROM message"))).scalar_one())

    @asynccontextmanager
    async def worker(self, handled: Handled) -> AsyncIterator[None]:
        broker = self._broker()

        @broker.subscriber(
            queues=[QUEUE],
            **{
                option: self.tune[option]
                for option in (
                    "fetch_batch_size",
                    "max_workers",
                    "min_fetch_interval",
                    "max_fetch_interval",
                    "flush_interval",
                    "retain_in_archive_on_ack",
                )
            },
        )
        async def noop(payload: bytes) -> None:
            handled(payload)

        await broker.start()
        try:
            yield
        finally:
            await broker.stop()

    def _broker(self) -> SqlBroker:
        options = {option: self.tune[option] for option in ("apply_types", "logger")}
        return SqlBroker(engine=self._engine(), **options)

    def _engine(self) -> AsyncEngine:
        if self.url.startswith("postgresql"):
            return create_async_engine(self.url.replace("postgresql://", "postgresql+asyncpg://", 1))
        engine = create_async_engine(self.url.replace("sqlite://", "sqlite+aiosqlite://", 1))
        event.listen(engine.sync_engine, "connect", self._set_pragmas)
        return engine

    def _set_pragmas(self, connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA journal_mode = {self.tune['journal_mode']}")
        cursor.execute(f"PRAGMA synchronous = {self.tune['synchronous']}")
        cursor.execute("PRAGMA busy_timeout = 30000")
        cursor.close()


if __name__ == "__main__":
    main(FastStreamSqlBroker)
