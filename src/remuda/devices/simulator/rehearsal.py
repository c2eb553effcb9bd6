"""Days of a fleet in seconds: engine, world and traffic in one process, in virtual time.

told = rehearse(WorldOptions(meters=600, seed=7, loss=0.15), lasting=timedelta(hours=24))
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec

from remuda.clock import Clock
from remuda.devices.airtime import DutyCycle
from remuda.devices.command import Command
from remuda.devices.engine import Engine
from remuda.devices.fleet import Fleet
from remuda.devices.simulator.traffic import Traffic
from remuda.devices.simulator.truth import Lie, lies
from remuda.devices.simulator.virtual_time import run_virtually
from remuda.devices.simulator.world import Deeds, World, WorldOptions
from remuda.devices.timings import Timings
from remuda.lifecycle import ENDED_STATUSES
from remuda.stores.commands import CommandStats
from remuda.stores.memory_commands import MemoryCommands

START = datetime(2030, 1, 1, tzinfo=UTC)
_PARTS = 12  # what is asked in a stretch of time is spread over it
_LOOK_EVERY = timedelta(minutes=1)
_PATIENCE = timedelta(hours=72)  # pull: a task without a result ends after 48 h


class Rehearsed(msgspec.Struct, frozen=True, kw_only=True):
    """What became of it all.

    asked    commands that were to be sent; `sent` were new, the others joined one that waited
    ended    every command that ended, as its subscribers were told; `told_again`: told more than once
    unended  commands that had no end when nobody would wait any longer
    lasted   virtual time until the last end, `took` the real time of it
    """

    asked: int
    sent: int
    ended: tuple[Command, ...]
    told_again: int
    unended: int
    lies: tuple[Lie, ...]
    deeds: Deeds
    lasted: timedelta
    took: timedelta


def rehearse(
    options: WorldOptions,
    *,
    lasting: timedelta,
    traffic: Traffic | None = None,
    timings: Timings | None = None,
    airtime: DutyCycle | None = DutyCycle(),  # noqa: B008  # frozen
    on_progress: Callable[[timedelta], None] = lambda _: None,
) -> Rehearsed:
    """Let a world live for so long under traffic, wait until every command has ended, and compare.

    `on_progress` is told now and then how much virtual time has passed since the last time.
    """
    begun = time.perf_counter()
    stage = _Stage(options, lasting, traffic or Traffic(), timings or Timings(), airtime, on_progress)
    told = run_virtually(stage.play, start=START)
    return msgspec.structs.replace(told, took=timedelta(seconds=time.perf_counter() - begun))


class _Stage:
    def __init__(
        self,
        options: WorldOptions,
        lasting: timedelta,
        traffic: Traffic,
        timings: Timings,
        airtime: DutyCycle | None,
        on_progress: Callable[[timedelta], None],
    ) -> None:
        self._options = options
        self._lasting = lasting
        self._traffic = traffic
        self._timings = timings
        self._airtime = airtime
        self._on_progress = on_progress
        self._ended: dict[str, Command] = {}
        self._told = 0

    async def play(self, clock: Clock) -> Rehearsed:
        world = World(self._options, clock)
        fleet = Fleet(
            MemoryCommands(clock=clock),
            timings=self._timings,
            lanes_by_gateway=self._airtime is not None,
            rng=random.Random(f"{self._options.seed}/fleet"),
            who="rehearsal",
        )
        engine = Engine(fleet, world.networks(), airtime=self._airtime)
        engine.subscribe(self._end)
        world.connect(engine.keep)
        world.start()
        try:
            async with engine:
                asked, sent = await self._send_all(world, fleet)
                unended = await self._wait(fleet, clock)
        finally:
            await world.stop()
            await fleet.close()
        ended = tuple(self._ended.values())
        last = max((each.status_since for each in ended), default=START)
        return Rehearsed(
            asked=asked,
            sent=sent,
            ended=ended,
            told_again=self._told - len(ended),
            unended=unended,
            lies=tuple(lies(world, ended)),
            deeds=world.deeds(),
            lasted=max(last - START, self._lasting),
            took=timedelta(0),
        )

    def _end(self, command: Command) -> None:
        self._told += 1
        self._ended[command.id] = command

    async def _send_all(self, world: World, fleet: Fleet) -> tuple[int, int]:
        rng = random.Random(f"{self._options.seed}/traffic")
        every = min(self._traffic.reads_every, self._lasting)
        asked = sent = 0
        passed = timedelta(0)
        while passed < self._lasting:
            stretch = min(every, self._lasting - passed)
            new = self._traffic.commands(world, rng=rng, last=stretch)
            for part in range(_PARTS):
                told = await fleet.send_many(new[part::_PARTS])
                asked += len(told)
                sent += sum(each.is_new for each in told)
                await asyncio.sleep((stretch / _PARTS).total_seconds())
                self._on_progress(stretch / _PARTS)
            passed += stretch
        return asked, sent

    async def _wait(self, fleet: Fleet, clock: Clock) -> int:
        """Until every command has ended and is known to have; how many never did."""
        until = clock.now() + _PATIENCE
        while True:
            stats = await fleet.stats()
            live = _live(stats)
            if (not live and not stats.unpublished) or clock.now() >= until:
                return live
            await asyncio.sleep(_LOOK_EVERY.total_seconds())


def _live(stats: CommandStats) -> int:
    return sum(count for status, count in stats.by_status.items() if status not in ENDED_STATUSES)
