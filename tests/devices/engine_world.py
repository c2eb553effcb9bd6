"""Engines and a simulated world in one process, in virtual time; every deed is traced to its command."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec

from remuda.clock import Clock
from remuda.devices.airtime import DutyCycle
from remuda.devices.command import (
    Command,
    CommandType,
    Device,
    Expectation,
    Family,
    Gateway,
    Outcome,
    Protocol,
)
from remuda.devices.engine import Engine
from remuda.devices.fleet import Fleet
from remuda.devices.networks.contract import Network, Order
from remuda.devices.networks.signals import Signal
from remuda.devices.sending import NewCommand
from remuda.devices.simulator import gateway as simulated
from remuda.devices.simulator.calin import SimulatedCalin, VendorTask
from remuda.devices.simulator.calin_network import InProcessCalin
from remuda.devices.simulator.chirpstack import SimulatedChirpStack
from remuda.devices.simulator.chirpstack_network import InProcessChirpStack, SignalCourier
from remuda.devices.simulator.meter import Deed, Meter, Reply
from remuda.devices.simulator.radio import Weather
from remuda.devices.simulator.session import Item, Session
from remuda.devices.simulator.virtual_time import run_virtually
from remuda.devices.timings import Timings
from remuda.errors import StoreUnavailableError
from remuda.lifecycle import CommandStatus
from remuda.stores.commands import Change
from remuda.stores.memory_commands import MemoryCommands

T = TypeVar("T")

START = datetime(2030, 1, 1, tzinfo=UTC)
CREDIT = CommandType.READ_CREDIT
PULLS = (Protocol.API_V1, Protocol.API_V2)
BY_READ = Expectation(read=CREDIT, rises_by=50.0)

_cause: ContextVar[Order | None] = ContextVar("cause", default=None)


class Handover(msgspec.Struct, frozen=True):
    """An order on its way to a network server, and how many items wait there for its device."""

    at: datetime
    order: Order
    waiting: int = 0


class Trace:
    """What was sent, and what meters did because of it."""

    def __init__(self) -> None:
        self.handovers: list[Handover] = []
        self.polls: list[tuple[datetime, str]] = []
        self.deeds: dict[str, list[Deed]] = defaultdict(list)
        self.items: dict[str, Order | None] = {}

    def done(self, order: Order | None, kind: CommandType | None, deeds: Sequence[Deed]) -> None:
        """A meter did something for an order; a read on a token's behalf is not the token's deed."""
        if order is not None:
            self.deeds[order.command_id] += [each for each in deeds if each.type is kind or kind is None]


class TracedChirpStack(SimulatedChirpStack):
    """Knows which order every item came from."""

    trace: Trace

    def enqueue(self, dev_eui: str, **item: Any) -> str:
        item_id = super().enqueue(dev_eui, **item)
        self.trace.items[item_id] = _cause.get()
        return item_id

    def _at_meter(self, device: Session, item: Item, counter: int) -> None:
        before = len(device.meter.deeds)
        super()._at_meter(device, item, counter)
        order = self.trace.items.get(item.id)
        self.trace.done(order, None if order is None else order.type, device.meter.deeds[before:])


class TracedCalin(SimulatedCalin):
    """Knows which order every task came from: it runs in the order's own context."""

    trace: Trace

    def _transmit(self, task: VendorTask) -> Reply | None:
        meter = self.meters[task.meter]
        before = len(meter.deeds)
        reply = super()._transmit(task)
        order = _cause.get()
        self.trace.done(order, None if order is None else order.type, meter.deeds[before:])
        return reply


class TracedPush(InProcessChirpStack):
    def __init__(self, world: EngineWorld, **options: Any) -> None:
        super().__init__(world.core, **options)
        self._world = world

    async def send(self, order: Order) -> str:
        world = self._world
        waiting = len(world.core.queue(order.device.address)) if order.device.address in world.euis else 0
        world.trace.handovers.append(Handover(world.clock.now(), order, waiting))
        _cause.set(order)
        return await super().send(order)


class TracedPull(InProcessCalin):
    def __init__(self, world: EngineWorld, protocol: Protocol) -> None:
        super().__init__(world.calin, protocol)
        self._world = world

    async def send(self, order: Order) -> str:
        self._world.trace.handovers.append(Handover(self._world.clock.now(), order))
        _cause.set(order)
        return await super().send(order)

    async def poll(self, order: Order, external_id: str) -> Any:
        self._world.trace.polls.append((self._world.clock.now(), external_id))
        return await super().poll(order, external_id)


class CountingGateway(simulated.Gateway):
    """Counts its refusals by their reason."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.reasons: dict[str, int] = defaultdict(int)

    def transmit(self, now: datetime, airtime: timedelta, *, at: datetime | None = None) -> str | None:
        refusal = super().transmit(now, airtime, at=at)
        if refusal is not None:
            self.reasons[refusal] += 1
        return refusal


class FailingStore(MemoryCommands):
    """A store that goes away: `is_down` for all calls, `loses_answers` for writes that were done."""

    is_down = False
    loses_answers = False

    def _check_open(self) -> None:
        if self.is_down:
            raise StoreUnavailableError("the store is away")
        super()._check_open()

    async def write(self, changes: Sequence[Change], *, who: str, whole: bool = False) -> list[bool]:
        written = await super().write(changes, who=who, whole=whole)
        if self.loses_answers:
            raise StoreUnavailableError("the store went away before it answered")
        return written


class EngineWorld:
    """`meters` are reached by LoRaWAN, `pulled` by Calin's APIs; `ended` is what subscribers were told."""

    def __init__(
        self,
        clock: Clock,
        *,
        meters: int = 1,
        pulled: int = 0,
        gateways: int = 1,
        duty: float = 1.0,
        weather: Weather | None = None,
        vendor: Weather | None = None,
        meter: dict[str, Any] | None = None,
        timings: Timings | None = None,
        airtime: DutyCycle | None = None,
        by_gateway: bool = False,
        engines: int = 1,
        call_deadline: timedelta = timedelta(seconds=45),
        **core: Any,
    ) -> None:
        self.clock = clock
        self.trace = Trace()
        self.weather = weather or Weather(1)
        self.gateways = [
            CountingGateway(f"gw{number}", f"grid{number}", rng=random.Random(number), duty=duty)
            for number in range(gateways)
        ]
        self.meters = [
            Meter(
                f"4700{number:07}",
                rng=self.weather.source(f"meter/{number}"),
                gateway=f"gw{number % gateways}",
                **(meter or {}),
            )
            for number in range(meters)
        ]
        self.pulled = [
            Meter(f"5700{number:07}", rng=self.weather.source(f"pulled/{number}"), **(meter or {}))
            for number in range(pulled)
        ]
        self.euis = {each.dev_eui for each in self.meters}
        self.core = TracedChirpStack(
            self.meters,
            self.gateways,
            self.weather,
            clock,
            deliver=SignalCourier(self.weather, self._keep),
            **core,
        )
        self.calin = TracedCalin({each.serial: each for each in self.pulled}, clock, weather=vendor)
        self.core.trace = self.calin.trace = self.trace
        self.store = FailingStore(clock=clock)
        self.ended: list[Command] = []
        self._settings = {"timings": timings, "lanes_by_gateway": by_gateway}
        self._airtime = airtime
        self._call_deadline = call_deadline
        self.fleet = self._new_fleet()
        self.engines = [self.new_engine() for _ in range(engines)]

    def _new_fleet(self) -> Fleet:
        return Fleet(self.store, rng=random.Random(3), **self._settings)  # type: ignore[arg-type]

    def networks(self) -> list[Network]:
        return [
            TracedPush(self, call_deadline=self._call_deadline),
            TracedPull(self, Protocol.API_V1),
            TracedPull(self, Protocol.API_V2),
        ]

    def new_engine(self) -> Engine:
        engine = Engine(self._new_fleet(), self.networks(), airtime=self._airtime)
        engine.subscribe(self.ended.append)
        return engine

    async def _keep(self, told: list[Signal]) -> None:
        """As an ingress would: whichever engine takes it, it is in the store, or it is lost."""
        if not self.store.is_down:
            await self.engines[-1].keep(told)

    def crash(self, engine: Engine) -> None:
        """End an engine as a killed process ends: nothing is finished, nothing is written."""
        for task in [*engine._tasks, *engine._caller._tasks]:
            task.cancel()
        engine._tasks.clear()
        engine._told.clear()

    # -- what tests ask for

    def device(self, meter: Meter, protocol: Protocol = Protocol.LORAWAN, **more: Any) -> Device:
        near = None if meter.gateway is None else Gateway(id=meter.gateway, snr=8.0)
        near = near if protocol.is_push else Gateway(id="concentrator")
        return Device(
            reference=meter.serial,
            protocol=protocol,
            gateway=near,
            spreading_factor=meter.spreading_factor,
            **more,
        )

    def new(
        self, kind: CommandType, meter: Meter | None = None, *, via: Protocol = Protocol.LORAWAN, **more: Any
    ) -> NewCommand:
        meter = meter or (self.meters if via.is_push else self.pulled)[0]
        index = self.meters.index(meter) if via.is_push else 0
        grid = f"grid{index % len(self.gateways)}"
        return NewCommand(type=kind, device=self.device(meter, via), grid=grid, **more)

    async def send(self, kind: CommandType, meter: Meter | None = None, **more: Any) -> str:
        return (await self.fleet.send(self.new(kind, meter, **more))).id

    async def wait(self, seconds: float) -> None:
        await self.clock.sleep(timedelta(seconds=seconds))

    async def get(self, command_id: str) -> Command:
        command = await self.fleet.get(command_id)
        assert command is not None
        return command

    async def until(self, command_id: str, *statuses: CommandStatus, within_s: float = 4000) -> Command:
        """The command when it is in one of the statuses (none named: when it has ended)."""
        until = self.clock.now() + timedelta(seconds=within_s)
        while True:
            command = await self.get(command_id)
            if command.status in statuses or (not statuses and command.has_ended):
                return command
            assert self.clock.now() < until, f"still {command.status} after {within_s} s"
            await self.wait(0.05 if statuses else 0.5)

    async def all_end(self, ids: Sequence[str], *, within_s: float = 20_000) -> list[Command]:
        """All of them, ended and published; each tells the truth."""
        for each in ids:
            await self.until(each, within_s=within_s)
        while (await self.fleet.stats()).unpublished:
            await self.wait(1)
        commands = [await self.get(each) for each in ids]
        await self.check_truth(commands)
        return commands

    async def check_truth(self, commands: Sequence[Command]) -> None:
        """Every end is told, and says of the device only what the device did."""
        told = {each.id for each in self.ended}
        for command in commands:
            deeds = self.trace.deeds[command.id]
            applied = sum(each.applied for each in deeds)
            seen = f"{command.id} {command.type}: {command.outcome}, {deeds}"
            assert command.id in told, f"nobody was told of {seen}"
            if command.family is Family.TOKEN:
                assert applied <= 1, seen
            if command.outcome is Outcome.EXECUTED:
                assert any(each.accepted for each in deeds), seen
            if command.outcome in (Outcome.REFUSED, Outcome.NOT_EXECUTED):
                assert applied == 0, seen
            await self.check_chain(command)

    async def check_chain(self, command: Command) -> None:
        """The trail leads from nowhere to the command's status without a gap."""
        left: CommandStatus | None = None
        story = await self.fleet.story(command)
        for each in story:
            assert each.left == left, [(each.left, each.entered) for each in story]
            left = CommandStatus(each.entered)
        assert left is command.status

    async def steps(self, command: Command) -> list[str]:
        return [str(each.entered) for each in await self.fleet.story(command)]


def token(number: int, kwh_tenths: int = 500) -> str:
    return f"9{number:015d}{kwh_tenths:04d}"


def in_engine_world(story: Callable[[EngineWorld], Awaitable[T]], **options: Any) -> T:
    """Run a story with running engines, in virtual time."""

    async def main(clock: Clock) -> T:
        world = EngineWorld(clock, **options)
        world.core.start()
        for engine in world.engines:
            await engine.start()
        try:
            return await story(world)
        finally:
            for engine in world.engines:
                await engine.stop(timedelta(0))
            world.core.stop()
            await world.calin.close()
            await asyncio.sleep(0)

    return run_virtually(main, start=START)
