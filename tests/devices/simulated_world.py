"""A small simulated network for tests: meters, a gateway, a ChirpStack, and the events that it told."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from remuda.clock import Clock
from remuda.devices.codecs.dlt645 import Dlt645
from remuda.devices.command import CommandType, Device, Protocol
from remuda.devices.simulator.chirpstack import SimulatedChirpStack
from remuda.devices.simulator.events import Event
from remuda.devices.simulator.gateway import Gateway
from remuda.devices.simulator.meter import Meter
from remuda.devices.simulator.radio import Weather
from remuda.devices.simulator.virtual_time import run_virtually

T = TypeVar("T")

START = datetime(2030, 1, 1, tzinfo=UTC)
NO_DELAY = (timedelta(0), timedelta(0))


class World:
    """`told` holds each event with the moment and its kind, in order."""

    def __init__(
        self,
        clock: Clock,
        *,
        meters: int = 1,
        weather: Weather | None = None,
        meter: dict[str, Any] | None = None,
        duty: float = 1.0,
        deliver: Callable[[str, Event], None] | None = None,
        **core: Any,
    ) -> None:
        self.clock = clock
        self.weather = weather or Weather(1)
        self.meters = [
            Meter(f"4700{number:07}", rng=self.weather.source(f"meter/{number}"), **(meter or {}))
            for number in range(meters)
        ]
        self.gateway = Gateway("0016c001f1500812", "grid-7", rng=random.Random(1), duty=duty)
        self.told: list[tuple[datetime, str, Event]] = []
        self._deliver = deliver
        self.core = SimulatedChirpStack(
            self.meters, [self.gateway], self.weather, clock, deliver=self._note, **core
        )
        self.core.start()

    def _note(self, kind: str, event: Event) -> None:
        self.told.append((self.clock.now(), kind, event))
        if self._deliver is not None:
            self._deliver(kind, event)

    @property
    def meter(self) -> Meter:
        return self.meters[0]

    def kinds(self) -> list[str]:
        return [kind for _, kind, _ in self.told]

    def events(self, wanted: str) -> list[Event]:
        return [event for _, kind, event in self.told if kind == wanted]

    def command(
        self, kind: CommandType, data: object = None, *, meter: Meter | None = None, **item: Any
    ) -> str:
        """Enqueue a command's frame for a meter."""
        meter = meter or self.meter
        item = {"confirmed": True, "f_port": 1, "data": frame(meter, kind, data), **item}
        return self.core.enqueue(meter.dev_eui, **item)

    async def wait(self, seconds: float) -> None:
        await self.clock.sleep(timedelta(seconds=seconds))


def device_of(meter: Meter) -> Device:
    return Device(reference=meter.serial, protocol=Protocol.LORAWAN)


def frame(meter: Meter, kind: CommandType, data: object = None) -> bytes:
    return Dlt645().encode(device_of(meter), kind, data=data, phase=None, now=START).data


def in_world(story: Callable[[World], Awaitable[T]], **options: Any) -> T:
    """Run a story in a new world, in virtual time."""

    async def main(clock: Clock) -> T:
        world = World(clock, **options)
        try:
            return await story(world)
        finally:
            world.core.stop()

    return run_virtually(main, start=START)
