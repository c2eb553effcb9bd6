"""`bench`: how quick the user's own store is, from where the command is run."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Annotated

import typer

from remuda.cli import output
from remuda.cli.exits import run
from remuda.cli.opening import opened_store
from remuda.cli.options import AsJson, Url
from remuda.cli.output import Cell, Column

if TYPE_CHECKING:
    from remuda.queue import Queue

BULK = 500  # jobs in one call
PRODUCERS = 50  # that add one job after another, at the same time
SAMPLES = 200


def bench(
    url: Url = None,
    jobs: Annotated[
        int, typer.Option("--jobs", min=100, max=1_000_000, metavar="N", help="Jobs for each measure.")
    ] = 5_000,
    size: Annotated[
        int, typer.Option("--size", min=0, max=1_000_000, metavar="BYTES", help="The size of a payload.")
    ] = 200,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, max=10_000, metavar="N", help="Handlers at a time.")
    ] = 100,
    as_json: AsJson = False,
) -> None:
    """Measure how many jobs a second your store carries.

    And how soon one begins. Works in a queue of its own, which is obliterated at the end, also when it is
    interrupted. One process adds and works, and the handlers do nothing: what is left is the store and the
    way to it.
    """
    run(lambda: _bench(url, jobs, size, concurrency, as_json=as_json))


async def _bench(url: str | None, jobs: int, size: int, concurrency: int, *, as_json: bool) -> None:
    from remuda.queue import Queue

    async with opened_store(url) as store:
        capabilities = await store.open()
        queue = Queue(f"remuda-bench-{secrets.token_hex(4)}", store)
        try:
            measured = await _measure(queue, jobs, "x" * size, concurrency)
        finally:
            await queue.obliterate(force=True)
            await store.forget_trail(queue.name)
            await queue.close()
    if as_json:
        about = {"jobs": jobs, "payload_bytes": size, "concurrency": concurrency}
        place = {"store": store.url, "backend": capabilities.backend, "version": capabilities.version}
        output.emit({**place, **about, **measured})
        return
    output.facts([("store", store.url), ("server", f"{capabilities.backend} {capabilities.version}")])
    output.say()
    output.table(_COLUMNS, _rows(measured, concurrency))
    output.note(f"{jobs:,} jobs of {size:,} bytes each, at this hour, from this machine")


_COLUMNS = (Column("measure"), Column("result", right=True), Column("how", flexible=True))


def _rows(measured: dict[str, float], concurrency: int) -> list[output.Cells]:
    def per_second(name: str) -> Cell:
        return Cell(f"{measured[name]:,.0f} jobs/s", "bold")

    def milliseconds(name: str) -> Cell:
        return Cell(f"{measured[name]:.1f} ms", "bold")

    return [
        ("add, one by one", per_second("add_one_per_second"), f"{PRODUCERS} producers at a time"),
        ("add, in bulk", per_second("add_bulk_per_second"), f"{BULK} jobs in a call"),
        ("work", per_second("work_per_second"), f"fetched, run and settled; {concurrency} at a time"),
        ("from add to handler", milliseconds("latency_p50_ms"), f"the middle of {SAMPLES}, on an idle queue"),
        ("", milliseconds("latency_p99_ms"), "99 of 100 are quicker"),
    ]


async def _measure(queue: Queue, jobs: int, payload: str, concurrency: int) -> dict[str, float]:
    from remuda.message import NewJob
    from remuda.worker import Worker

    with output.progress("measuring", 4) as advance:
        one_by_one = await _adding_one_by_one(queue, jobs, payload)
        advance(1)
        began = time.perf_counter()
        for start in range(0, jobs, BULK):
            await queue.add_many(
                [NewJob(name="bench", payload=payload) for _ in range(min(BULK, jobs - start))]
            )
        in_bulk = jobs / (time.perf_counter() - began)
        advance(1)
        worker = Worker(queue, concurrency=concurrency, schedule=False)
        worker.handler("bench")(_nothing)
        began = time.perf_counter()
        await worker.run(until_empty=True, signals=False)
        worked = 2 * jobs / (time.perf_counter() - began)
        advance(1)
        latencies = sorted(await _latencies(queue))
        advance(1)
    return {
        "add_one_per_second": round(one_by_one, 1),
        "add_bulk_per_second": round(in_bulk, 1),
        "work_per_second": round(worked, 1),
        "latency_p50_ms": round(latencies[len(latencies) // 2] * 1000, 3),
        "latency_p99_ms": round(latencies[len(latencies) * 99 // 100] * 1000, 3),
    }


async def _nothing() -> None:
    """A handler that does its work in no time."""


async def _adding_one_by_one(queue: Queue, jobs: int, payload: str) -> float:
    import asyncio

    left = iter(range(jobs))

    async def produce() -> None:
        for _ in left:
            await queue.add("bench", payload)

    began = time.perf_counter()
    await asyncio.gather(*(produce() for _ in range(PRODUCERS)))
    return jobs / (time.perf_counter() - began)


async def _latencies(queue: Queue) -> list[float]:
    """From the call of `add` to the first line of the handler, one job at a time."""
    import asyncio

    from remuda.worker import Worker

    worker = Worker(queue, schedule=False)
    begun: asyncio.Queue[float] = asyncio.Queue()

    @worker.handler("bench")
    async def note() -> None:
        begun.put_nowait(time.perf_counter())

    running = asyncio.create_task(worker.run(signals=False))
    found: list[float] = []
    try:
        for _ in range(SAMPLES):
            added = time.perf_counter()
            await queue.add("bench")
            first, _ = await asyncio.wait(
                {running, getting := asyncio.create_task(begun.get())}, return_when=asyncio.FIRST_COMPLETED
            )
            if running in first:
                break
            found.append(getting.result() - added)
    finally:
        worker.stop()
        await running
    return found
