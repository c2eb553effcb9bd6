"""The demo's worker: a small shop whose mail sometimes fails, and one order that kills who touches it."""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import timedelta
from pathlib import Path

from remuda import Exponential, Job, Queue, UnrecoverableError, Worker

RETRY = Exponential(initial=timedelta(milliseconds=200), jitter=0.5, max_attempts=3)


def make_worker() -> Worker:
    """A worker on the demo's store; the environment says where that is."""
    queue = Queue("shop", os.environ["REMUDA_URL"])
    worker = Worker(
        queue,
        concurrency=20,
        fetch_batch_size=40,
        retry=RETRY,
        max_deliveries=5,
        release_stuck_timeout=timedelta(seconds=1.5),
        release_stuck_interval=timedelta(seconds=0.2),
        graceful_timeout=timedelta(seconds=5),
    )
    fixed = Path(os.environ["REMUDA_DEMO_FIX"])

    @worker.handler("welcome")
    async def welcome(job: Job) -> None:
        await asyncio.sleep(0.004)

    @worker.handler("invoice")
    async def invoice(job: Job) -> None:
        if job.attempt < 3:
            raise ConnectionError("the mail server hangs up")

    @worker.handler("receipt")
    def receipt(job: Job) -> None:
        if not fixed.exists():
            raise ZeroDivisionError("a bug: the receipt of an empty basket")

    @worker.handler("postcard")
    async def postcard(job: Job) -> None:
        raise UnrecoverableError(f"no such address: {job.payload['to']}")

    @worker.handler("poison")
    async def poison(job: Job) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    return worker
