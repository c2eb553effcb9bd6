"""The measures, taken by the same code of every peer, and the program that a peer's file becomes.

Runs inside the peers' own environments, hence the standard library only.  A run prints one line of JSON
on stdout; a failed run prints a traceback on stderr and exits with a code other than zero.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any, NamedTuple

from bench.complaints import last_line
from bench.peer import BenchError, Peer, stamped_payload
from bench.tally import PATIENCE_SECONDS, LatencyTally, MemoryTally, Tally

BULK = 1_000
WARM_UP_JOBS = 1_000
LEAST_JOBS = 2_000
LATENCY_SECONDS_UNCOUNTED = 1.0


@dataclass(frozen=True)
class Order:
    """One run: what to measure, where, and how much of it."""

    measure: str
    url: str
    variant: str
    jobs: int
    """No measure uses more jobs than this; a companion adds exactly so many."""
    seconds: float
    """About how long the timed part may take."""
    rate: int
    """Jobs added a second for ``latency``."""

    def arguments(self) -> list[str]:
        """The command line that ``parse`` turns back into this order."""
        return [f"--{name}={value}" for name, value in dataclasses.asdict(self).items()]

    @classmethod
    def parse(cls, arguments: list[str]) -> Order:
        parser = argparse.ArgumentParser()
        for field, kind in (
            ("measure", str),
            ("url", str),
            ("variant", str),
            ("jobs", int),
            ("seconds", float),
            ("rate", int),
        ):
            parser.add_argument(f"--{field}", type=kind, required=True)
        return cls(**vars(parser.parse_args(arguments)))


Figures = dict[str, Any]
Measure = Callable[[Peer, Order], Awaitable[Figures]]


async def publish_one(peer: Peer, order: Order) -> Figures:
    """One caller adds job after job, each committed before the next."""
    await peer.add(stamped_payload())
    return await _publish(peer, order, already=1, batch=1)


async def publish_bulk(peer: Peer, order: Order) -> Figures:
    """One caller adds batches of 1,000, each committed before the next."""
    await peer.add_many(_payloads(BULK))
    return await _publish(peer, order, already=BULK, batch=BULK)


async def _publish(peer: Peer, order: Order, *, already: int, batch: int) -> Figures:
    added = 0
    started = time.perf_counter()
    deadline = started + order.seconds
    while added < order.jobs and time.perf_counter() < deadline:
        if batch == 1:
            await peer.add(stamped_payload())
        else:
            await peer.add_many(_payloads(batch))
        added += batch
    seconds = time.perf_counter() - started
    if (left := await peer.left()) != added + already:
        raise BenchError(f"{added + already} jobs were added, but the store holds {left}")
    return {"jobs": added, "seconds": round(seconds, 3), "rate": round(added / seconds, 1)}


async def settle(peer: Peer, order: Order) -> Figures:
    """A worker drains a preloaded queue: from its start until the store holds no unsettled job."""
    jobs = await _calibrate(peer, order)
    await _companion(order, "preload", jobs)
    seconds = (await _drain(peer, Tally(jobs))).seconds
    return {"jobs": jobs, "seconds": round(seconds, 3), "rate": round(jobs / seconds, 1)}


async def memory(peer: Peer, order: Order) -> Figures:
    """Resident memory of a worker process that has handled many jobs; they are added by another."""
    jobs = await _calibrate(peer, order)
    await _companion(order, "preload", jobs)
    tally = MemoryTally(jobs)
    seconds = (await _drain(peer, tally)).seconds
    return {"jobs": jobs, "seconds": round(seconds, 3), **tally.resident}


async def latency(peer: Peer, order: Order) -> Figures:
    """From the call that adds a job in one process to its handler's start in another, at a steady rate."""
    uncounted = int(order.rate * LATENCY_SECONDS_UNCOUNTED)
    jobs = uncounted + int(order.rate * order.seconds)
    tally = LatencyTally(jobs)
    async with peer.worker(tally):
        paced = await _companion(order, "pace", jobs)
        await tally.reached()
        await _emptied(peer)
    _check(tally)
    waits = tally.waits_ms[uncounted:]
    percentiles = statistics.quantiles(waits, n=100, method="inclusive")
    return {
        "jobs": len(waits),
        "rate": paced["rate"],
        "p50_ms": round(percentiles[49], 2),
        "p99_ms": round(percentiles[98], 2),
        "max_ms": round(max(waits), 2),
    }


async def preload(peer: Peer, order: Order) -> Figures:
    """Not a measure: adds the jobs that another process will drain."""
    for start in range(0, order.jobs, BULK):
        await peer.add_many(_payloads(min(BULK, order.jobs - start)))
    return {"jobs": order.jobs}


async def pace(peer: Peer, order: Order) -> Figures:
    """Not a measure: adds jobs at the rate asked for, and says which rate that came to."""
    started = time.perf_counter()
    for number in range(order.jobs):
        await asyncio.sleep(started + number / order.rate - time.perf_counter())
        await peer.add(stamped_payload())
    reached = order.jobs / (time.perf_counter() - started)
    if reached < order.rate / 2:
        raise BenchError(f"jobs could be added at {reached:.0f}/s only, not {order.rate}/s")
    return {"jobs": order.jobs, "rate": round(reached, 1)}


MEASURES: dict[str, Measure] = {
    "publish-one": publish_one,
    "publish-bulk": publish_bulk,
    "settle": settle,
    "latency": latency,
    "memory": memory,
}
COMPANIONS: dict[str, Measure] = {"preload": preload, "pace": pace}


def _payloads(number: int) -> list[bytes]:
    return [stamped_payload() for _ in range(number)]


async def _calibrate(peer: Peer, order: Order) -> int:
    """Warm the peer up with a few jobs, and say how many it needs to be busy for the time asked for."""
    await _companion(order, "preload", WARM_UP_JOBS)
    warm_up = Tally(WARM_UP_JOBS)
    drained = await _drain(peer, warm_up)
    busy_for = int(warm_up.rate_until(drained.emptied_at) * order.seconds)
    return min(max(LEAST_JOBS, round(busy_for, -3)), order.jobs)


class Drained(NamedTuple):
    """When a worker started and when the store was empty, by ``time.perf_counter``."""

    started_at: float
    emptied_at: float

    @property
    def seconds(self) -> float:
        return self.emptied_at - self.started_at


async def _drain(peer: Peer, tally: Tally) -> Drained:
    """Run a worker until the store is empty."""
    called_at = time.perf_counter()
    async with peer.worker(tally) as at_work_at:
        await tally.reached()
        await _emptied(peer)
        emptied_at = time.perf_counter()
    _check(tally)
    return Drained(at_work_at or called_at, emptied_at)


async def _emptied(peer: Peer) -> None:
    """Return once every job is settled in the store.  Asked only at the end, so as not to cost the peer."""
    patience = time.perf_counter() + PATIENCE_SECONDS
    while left := await peer.left():
        if time.perf_counter() > patience:
            raise BenchError(f"every job was handled, but {left} stay unsettled")
        await asyncio.sleep(0.001)


def _check(tally: Tally) -> None:
    if tally.count != tally.expected:
        raise BenchError(f"{tally.expected} jobs were added, {tally.count} were handled")


async def _companion(order: Order, role: str, jobs: int) -> Figures:
    """Run this peer's file again as another process that adds jobs, and wait for its figures."""
    module = sys.modules["__main__"].__spec__
    if module is None:
        raise BenchError("a peer's file must be run with python -m, as the harness does")
    companion = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        module.name,
        *dataclasses.replace(order, measure=role, jobs=jobs).arguments(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    answer, complaint = await companion.communicate()
    if companion.returncode != 0:
        sys.stderr.buffer.write(complaint)
        raise BenchError(f"the process that adds the jobs failed: {last_line(complaint.decode())}")
    figures: Figures = json.loads(answer.splitlines()[-1])["figures"]
    return figures


async def _run(peer: Peer, order: Order) -> Figures:
    if order.measure in MEASURES:
        await peer.create()
    await peer.open()
    try:
        return await (MEASURES | COMPANIONS)[order.measure](peer, order)
    finally:
        await peer.close()


def _event_loop() -> tuple[str, Callable[[], asyncio.AbstractEventLoop] | None]:
    """uvloop where the peer's requirements name it: the asynchronous ones all do, so as to be alike."""
    try:
        import uvloop
    except ImportError:
        return "asyncio", None
    return "uvloop", uvloop.new_event_loop


def main(peer_class: type[Peer]) -> None:
    """Run the order on the command line and print its figures, with the settings they were reached at."""
    order = Order.parse(sys.argv[1:])
    peer = peer_class(order.url, order.measure, order.variant)
    loop_name, loop_factory = _event_loop()
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        figures = runner.run(_run(peer, order))
    report = {
        "figures": figures,
        "settings": peer.tune | {"loop": loop_name},
        "versions": {package: metadata.version(package) for package in peer.packages},
    }
    print(json.dumps(report), flush=True)
