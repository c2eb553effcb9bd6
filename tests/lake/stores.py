"""Stores with something in their trails, for tests of the lake: made by the real store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

from remuda import Queue, State
from remuda.clock import Clock
from remuda.message import NewJob
from remuda.stores import open_store
from remuda.stores.contract import Failure, Settlement, Store

LEASE = timedelta(minutes=5)


def on_store(url: str, use: Callable[[Store], Coroutine[Any, Any, Any]], clock: Clock | None = None) -> Any:
    """What a coroutine makes of an open store."""

    async def opened() -> Any:
        async with open_store(url, clock=clock) as store:
            return await use(store)

    return asyncio.run(opened())


async def work(
    store: Store, queue: str, jobs: int, *, dead_every: int = 0, name: str = "welcome"
) -> list[str]:
    """Add jobs and work them off, every so many of them to the dead letters; the ids that died."""
    await Queue(queue, store).add_many([NewJob(name=name, payload={"n": each}) for each in range(jobs)])
    dead: list[str] = []
    while deliveries := await store.fetch(queue, limit=200, lease=LEASE, who="worker-1"):
        outcomes = []
        for number, delivery in enumerate(deliveries):
            outcome = Settlement(
                delivery=delivery, state=State.COMPLETED, started_at=delivery.acquired_at, keep=True
            )
            if dead_every and number % dead_every == 0:
                outcome.state, outcome.reason = State.FAILED, "retries_exhausted"
                outcome.failure = Failure("ValueError", f"no mailbox {number}", "Traceback …")
                dead.append(delivery.id)
            outcomes.append(outcome)
        await store.settle(queue, outcomes, who="worker-1")
    return dead


def worked(url: str, queue: str, jobs: int, *, dead_every: int = 0) -> list[str]:
    """`work`, for programs without an event loop."""
    ids: list[str] = on_store(url, lambda store: work(store, queue, jobs, dead_every=dead_every))
    return ids
