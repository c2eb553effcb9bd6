"""What people and programs ask of a simulated fleet: reads by the hour, switchings, top-ups."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta

import msgspec

from remuda.devices.command import CommandType, Device, Expectation
from remuda.devices.sending import NewCommand
from remuda.devices.simulator.world import World

_DIGITS = "0123456789"


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """How much is asked, per meter.

    reads_every  each meter's credit is read so often
    top_ups      a day; `provable` is the share of them whose effect a read can tell
    switches     a day, on or off
    settings     a day: the clock's date is set
    """

    reads_every: timedelta = timedelta(hours=1)
    top_ups: float = 1.0
    switches: float = 1.0
    settings: float = 0.2
    provable: float = 0.7

    def commands(self, world: World, *, rng: random.Random, last: timedelta) -> list[NewCommand]:
        """What is asked of a world in one stretch of time, in the order of asking."""
        days = last / timedelta(days=1)
        asked: list[NewCommand] = []
        for serial, device in world.devices.items():
            grid = world.grids.get(serial)
            asked.append(NewCommand(type=CommandType.READ_CREDIT, device=device, grid=grid))
            asked.extend(self._by_chance(world, device, grid, rng, days))
        rng.shuffle(asked)
        return asked

    def _by_chance(
        self, world: World, device: Device, grid: str | None, rng: random.Random, days: float
    ) -> Iterator[NewCommand]:
        if rng.random() < self.top_ups * days:
            yield self._top_up(device, grid, rng)
        if rng.random() < self.switches * days:
            kind = rng.choice((CommandType.TURN_ON, CommandType.TURN_OFF))
            yield NewCommand(type=kind, device=device, grid=grid, by_person=True)
        if rng.random() < self.settings * days:
            today = world.clock.now().date().isoformat()
            yield NewCommand(type=CommandType.SET_DATE, device=device, grid=grid, data=today)

    def _top_up(self, device: Device, grid: str | None, rng: random.Random) -> NewCommand:
        kwh = rng.randrange(10, 500)
        token = make_token(rng, tenths=kwh * 10)
        told = Expectation(read=CommandType.READ_CREDIT, rises_by=float(kwh))
        return NewCommand(
            type=CommandType.TOP_UP,
            device=device,
            grid=grid,
            data=token,
            by_person=True,
            expectation=told if rng.random() < self.provable else None,
        )


def make_token(rng: random.Random, *, tenths: int) -> str:
    """A token of 20 digits that tops a simulated meter up by so many tenths of a kWh."""
    return "9" + "".join(rng.choice(_DIGITS) for _ in range(15)) + f"{tenths:04}"
