"""Random lifecycles, made by the real engine on a virtual clock, as rows of the table of transitions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa

from remuda import NewJob, Queue, Reason, Transition
from remuda.clock import Clock, VirtualClock
from remuda.devices.engine import Engine
from remuda.devices.fleet import Fleet
from remuda.devices.simulator.rehearsal import START
from remuda.devices.simulator.traffic import Traffic
from remuda.devices.simulator.virtual_time import run_virtually
from remuda.devices.simulator.world import World, WorldOptions
from remuda.devices.timings import Timings
from remuda.lake.schemas import TRANSITIONS
from remuda.lifecycle import ENDED_STATUSES, CommandStatus
from remuda.retry import Exponential
from remuda.stores.contract import Delivery
from remuda.stores.memory_commands import MemoryCommands
from remuda.transition import from_ms, to_ms
from tests.contract.workbench import LEASE, acked, dead, nacked

Row = dict[str, Any]
WHO = "worker-1"
SECONDS = (0, 0, 0, 0.007, 0.4, 3, 3, 11, 61, 61, 900, 20_000)
PAUSES = [timedelta(seconds=seconds) for seconds in SECONDS]


# -- jobs, in a real store


class JobLives:
    """Does anything to a queue that can be done to one."""

    def __init__(self, queue: Queue, clock: VirtualClock, rng: random.Random) -> None:
        self.queue = queue
        self.clock = clock
        self.rng = rng
        self.ids = [f"unique-{number}" for number in range(12)]
        self.held: list[Delivery] = []

    async def step(self) -> None:
        moves: list[tuple[int, Callable[[], Coroutine[Any, Any, None]]]] = [
            (6, self.add),
            (8, self.fetch),
            (8, self.settle),
            (2, self.release),
            (2, self.recover),
            (2, self.cancel),
            (3, self.replay),
            (2, self.drop),
        ]
        (move,) = self.rng.choices([move for _, move in moves], [weight for weight, _ in moves])
        await move()
        self.clock.advance(self.rng.choice(PAUSES))

    async def add(self) -> None:
        await self.queue.add_many(
            [
                NewJob(
                    self.rng.choice(["welcome", "invoice", "reminder"]),
                    # An id that is given may be used again once its job has ended.
                    job_id=self.rng.choice([None, None, self.rng.choice(self.ids)]),
                    priority=self.rng.randint(-2, 2),
                )
                for _ in range(self.rng.randint(1, 6))
            ]
        )

    async def fetch(self) -> None:
        limit = self.rng.randint(1, 8)
        lease = LEASE if self.rng.random() < 0.9 else timedelta(seconds=1)
        self.held += await self.queue.store.fetch(self.queue.name, limit=limit, lease=lease, who=WHO)

    async def settle(self) -> None:
        """Some of what is held, also what was recovered meanwhile; each with any outcome."""
        chosen = [self.taken() for _ in range(self.rng.randint(1, 8)) if self.held]
        until = self.clock.now() + self.rng.choice(PAUSES)
        outcomes = [
            self.rng.choice(
                [
                    acked(each),
                    acked(each),
                    acked(each, keep=False),
                    nacked(each, until),
                    dead(each, self.rng.choice(list(Reason)), ran=self.rng.random() < 0.7),
                ]
            )
            for each in chosen
        ]
        await self.queue.store.settle(self.queue.name, outcomes, who=WHO)

    def taken(self) -> Delivery:
        return self.held.pop(self.rng.randrange(len(self.held)))

    async def release(self) -> None:
        if self.held:
            back = [self.taken()]
            await self.queue.store.release(self.queue.name, back, who=WHO, counted=self.rng.random() < 0.5)

    async def recover(self) -> None:
        await self.queue.store.recover(self.queue.name, timeout=LEASE, who="recoverer")

    async def cancel(self) -> None:
        waiting = await self.queue.jobs(limit=50)
        if waiting:
            await self.queue.cancel(self.rng.choice(waiting).id)

    async def replay(self) -> None:
        await self.queue.dead.replay(limit=self.rng.randint(1, 3))

    async def drop(self) -> None:
        await self.queue.dead.drop(limit=1)


def job_trail(seed: int, *, steps: int = 250, queue: str = "orders") -> list[Transition]:
    """The trail of a queue in SQLite after so many random steps."""

    async def live() -> list[Transition]:
        clock = VirtualClock(START)
        async with Queue(queue, "sqlite://", clock=clock) as opened:
            lives = JobLives(opened, clock, random.Random(f"{seed}/jobs"))
            for _ in range(steps):
                await lives.step()
            return [each async for each in opened.transitions()]

    return asyncio.run(live())


# -- commands, sent by the engine into a simulated world


def command_trail(seed: int, *, meters: int = 16, fleet: str = "devices") -> list[Transition]:
    """The trail of a fleet that lost frames, cancellations and replays have hit for some hours."""
    return run_virtually(lambda clock: _commanded(clock, seed, meters, fleet), start=START)


async def _commanded(clock: Clock, seed: int, meters: int, name: str) -> list[Transition]:
    rng = random.Random(f"{seed}/commands")
    world = World(WorldOptions(meters=meters, seed=seed, loss=0.3, refuse=0.1, gateways=2), clock)
    retry = Exponential(initial=timedelta(seconds=2), max_attempts=2)
    store = MemoryCommands(fleet=name, clock=clock)
    fleet = Fleet(store, name=name, timings=Timings(retry=retry), rng=rng, who="engine")
    engine = Engine(fleet, world.networks())
    world.connect(engine.keep)
    world.start()
    try:
        async with engine:
            for _ in range(4):
                new = Traffic(top_ups=6, switches=6).commands(world, rng=rng, last=timedelta(hours=1))
                sent = await fleet.send_many(new)
                await asyncio.sleep(rng.choice([1, 20]))
                await fleet.cancel(rng.choice(sent).id)
                await asyncio.sleep(rng.choice([60, 3_600]))
                await _replayed(fleet, rng)
        return (await store.transitions(after=0, limit=1_000_000)).transitions
    finally:
        await world.stop()
        await fleet.close()


async def _replayed(fleet: Fleet, rng: random.Random) -> None:
    """Some commands that failed are sent again."""
    ended = [each for each in (await fleet.commands(limit=1_000)) if each.status in ENDED_STATUSES]
    for each in ended:
        if each.status is CommandStatus.DELIVERY_FAILED and rng.random() < 0.4:
            await fleet.replay(each.id, not_applied=True)


# -- as rows


def rows_of(trail: Sequence[Transition], *, source: str = "main", batch: int = 1) -> list[Row]:
    """Rows of `TRANSITIONS`."""
    millisecond = timedelta(milliseconds=1)
    return [
        {
            "source": source,
            "queue": each.queue,
            "seq": each.seq,
            "message": each.message,
            "left": None if each.left is None else str(each.left),
            "entered": str(each.entered),
            "at": from_ms(to_ms(each.at)),  # as a trail keeps it
            "dwell_ms": None if each.dwell is None else each.dwell // millisecond,
            "attempt": each.attempt,
            "reason": each.reason,
            "who": each.who,
            "name": each.name,
            **{name: (each.about or {}).get(name) for name in ("device", "lane", "gateway", "grid")},
            "batch": batch,
        }
        for each in trail
    ]


def arrow_of(rows: Sequence[Row]) -> pa.Table:
    """The same for Arrow, and so for Spark, DuckDB and Parquet."""
    return pa.Table.from_pylist(list(rows), schema=TRANSITIONS.arrow_schema())
