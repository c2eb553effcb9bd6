# /// script
# dependencies = ["procrastinate==3.10.0", "psycopg[binary]==3.3.8", "uvloop==0.23.0"]
#
# [tool.bench]
# stores = ["postgres"]
# ///
"""Procrastinate.  It fetches and settles one job at a time, so several run at once to overlap the waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from procrastinate import App, PsycopgConnector

from bench.measures import main
from bench.peer import Handled, Peer

logging.getLogger("procrastinate").setLevel(logging.ERROR)  # it warns about an app made in a main module


class Procrastinate(Peer):
    packages = ("procrastinate", "psycopg")

    def settings(self, measure: str, variant: str) -> dict[str, Any]:
        return {"concurrency": 10, "pool": 10, "delete_jobs": "always"}

    async def create(self) -> None:
        async with self._app().open_async() as app:
            await app.schema_manager.apply_schema_async()

    async def open(self) -> None:
        self._adding = self._app()
        await self._adding.open_async()
        self._task = self._adding.configure_task("noop")
        self._connection = await psycopg.AsyncConnection.connect(self.url, autocommit=True)

    async def close(self) -> None:
        await self._connection.close()
        await self._adding.close_async()

    async def add(self, payload: bytes) -> None:
        await self._task.defer_async(payload=payload.decode())

    async def add_many(self, payloads: list[bytes]) -> None:
        await self._task.batch_defer_async(*({"payload": payload.decode()} for payload in payloads))

    async def left(self) -> int:
        cursor = await self._connection.execute(
            "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
        )
        row = await cursor.fetchone()
        return row[0] if row else 0

    @asynccontextmanager
    async def worker(self, handled: Handled) -> AsyncIterator[None]:
        async with self._app().open_async() as app:

            @app.task(name="noop")
            async def noop(payload: str) -> None:
                handled(payload.encode())

            running = asyncio.create_task(
                app.run_worker_async(
                    concurrency=self.tune["concurrency"],
                    delete_jobs=self.tune["delete_jobs"],
                    install_signal_handlers=False,
                )
            )
            try:
                yield
            finally:
                running.cancel()  # it stops in an orderly way when cancelled
                await asyncio.wait([running])

    def _app(self) -> App:
        pool = self.tune["pool"]
        return App(connector=PsycopgConnector(conninfo=self.url, min_size=min(pool, 2), max_size=pool))


if __name__ == "__main__":
    main(Procrastinate)
