"""The whole way over real sockets: two replicas as processes, one of them killed, in bad weather.

The network servers are simulated, but spoken to by gRPC and HTTP; what they tell comes by webhooks. When all
is over, every record is held against what the meters did.
"""

from __future__ import annotations

import asyncio
import faulthandler
import importlib.util
import itertools
import os
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Self

import msgspec
import pytest

import remuda
from remuda.clock import SystemClock
from remuda.devices import (
    Command,
    CommandType,
    Device,
    Expectation,
    Fleet,
    Gateway,
    NewCommand,
    Outcome,
    Protocol,
)
from remuda.devices.command import Family
from remuda.devices.networks.calin_words import V2_PROCESSING
from remuda.devices.simulator import gateway as simulated
from remuda.devices.simulator.calin import SimulatedCalin
from remuda.devices.simulator.calin_http import CalinServer
from remuda.devices.simulator.chirpstack import SimulatedChirpStack
from remuda.devices.simulator.chirpstack_grpc import ChirpStackServer
from remuda.devices.simulator.events import Event
from remuda.devices.simulator.meter import Deed, Meter
from remuda.devices.simulator.radio import Weather
from remuda.devices.simulator.webhooks import WebhookSender
from remuda.lifecycle import COMMAND_MOVES, ENDED_STATUSES
from remuda.stores.commands import CommandStats
from remuda.transition import Transition
from tests.devices.replica import COMPANY, PASSWORD, SECRET, TOKEN, USER, Replica, quick_timings

pytestmark = pytest.mark.faults

ROOT = Path(__file__).parents[2]
LONGEST_S = 300  # on a machine that has much else to do
READY_WITHIN_S = 30
METERS_PER_GATEWAY = 10
METERS_PER_CONCENTRATOR = 30
LOSS = 0.15
CREDIT = CommandType.READ_CREDIT


def _ms(least: int, most: int) -> tuple[timedelta, timedelta]:
    return timedelta(milliseconds=least), timedelta(milliseconds=most)


def bad_weather(seed: str) -> Weather:
    return Weather(
        seed,
        downlink_loss=LOSS,
        uplink_loss=LOSS,
        delay=_ms(5, 30),
        answer_delay=_ms(40, 120),
        webhook_delay=_ms(1, 10),
        webhook_loss=0.03,
        webhook_duplicates=0.1,
        webhook_reorder=0.1,
        webhook_reorder_by=timedelta(milliseconds=600),
        accept_delay=_ms(5, 60),
        slow_calls=0.005,
        slow_call=timedelta(seconds=1.8),  # longer than the accept may take
        failures_before=0.01,
        failures_after=0.01,
    )


class World:
    """Meters behind a ChirpStack and behind Calin, over sockets; events go to every ingress in turn."""

    def __init__(self, meters: int) -> None:
        pushed, weather = meters * 2 // 5, bad_weather("push")
        gateways = [
            simulated.Gateway(f"{number:016x}", f"grid-{number}", rng=random.Random(number), duty=1.0)
            for number in range(-(-pushed // METERS_PER_GATEWAY))
        ]
        self.pushed = [
            Meter(
                f"4700{number:07}",
                rng=random.Random(number),
                gateway=gateways[number % len(gateways)].id,
                spreading_factor=7,
                refuse=0.05,
            )
            for number in range(pushed)
        ]
        self.pulled = [
            Meter(f"5700{number:07}", rng=random.Random(number), refuse=0.05)
            for number in range(meters - pushed)
        ]
        self.weather = weather
        self.senders: list[WebhookSender] = []
        self._next = itertools.count()
        self.chirpstack = SimulatedChirpStack(
            self.pushed,
            gateways,
            weather,
            SystemClock(),
            deliver=self._tell,
            schedule_every=timedelta(milliseconds=50),
            confirmed_timeout=timedelta(seconds=2.5),
            silence=timedelta(seconds=2),
        )
        self.grpc = ChirpStackServer(self.chirpstack, token=TOKEN)
        self.calin = SimulatedCalin(
            {each.serial: each for each in self.pulled},
            SystemClock(),
            weather=bad_weather("pull"),
            latency=timedelta(milliseconds=500),
            company=COMPANY,
            user=USER,
            password=PASSWORD,
        )
        self.http = CalinServer(self.calin, revocations=0.002)

    def _tell(self, kind: str, event: Event) -> None:
        if self.senders:
            self.senders[next(self._next) % len(self.senders)](kind, event)

    def listen_to(self, ingress: str) -> None:
        """From now on tell this ingress, too."""
        url, headers = f"{ingress}/chirpstack", {"X-Remuda-Secret": SECRET}
        self.senders.append(WebhookSender(url, self.weather, headers=headers, concurrency=8))

    async def forget(self, number: int) -> None:
        """Tell this ingress no more. What was on its way to it is lost."""
        await self.senders.pop(number).close()

    async def __aenter__(self) -> Self:
        self.chirpstack.start()
        await self.grpc.start()
        await self.http.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.chirpstack.stop()
        for sender in self.senders:
            await sender.close()
        await self.grpc.stop()
        await self.http.stop()

    def is_at_rest(self) -> bool:
        """Nothing is left that could still reach a meter."""
        tasks = any(each.status == V2_PROCESSING for each in self.calin.tasks.values())
        return not tasks and not any(self.chirpstack.queue(each.dev_eui) for each in self.pushed)

    def commands(self) -> Iterator[NewCommand]:
        """Five for each meter, each of another type: what the meter did names the command."""
        for number, meter in enumerate(self.pushed):
            near = Gateway(id=str(meter.gateway), snr=8.0)
            device = Device(
                reference=meter.serial, protocol=Protocol.LORAWAN, gateway=near, spreading_factor=7
            )
            yield from five_for(device, f"grid-{int(near.id, 16)}", number)
        for number, meter in enumerate(self.pulled):
            via = Protocol.API_V1 if number % 2 else Protocol.API_V2
            near = Gateway(id=f"concentrator-{number // METERS_PER_CONCENTRATOR}")
            device = Device(reference=meter.serial, protocol=via, gateway=near, customer="1")
            yield from five_for(device, None, number)

    def deeds(self, command: Command) -> list[Deed]:
        """What a meter did because of a command."""
        meters = self.pushed if command.is_push else self.pulled
        meter = meters[int(command.device.reference[4:])]
        return [each for each in meter.deeds if each.type is command.type]


def five_for(device: Device, grid: str | None, number: int) -> Iterator[NewCommand]:
    proof = Expectation(read=CREDIT, rises_by=50.0) if number % 2 else None
    switch = CommandType.TURN_ON if number % 3 else CommandType.TURN_OFF
    day = (date(2031, 1, 1) + timedelta(days=number % 1000)).isoformat()
    yield NewCommand(type=CommandType.READ_VOLTAGE, device=device, grid=grid)
    yield NewCommand(type=CommandType.READ_POWER, device=device, grid=grid)
    yield NewCommand(type=switch, device=device, grid=grid)
    yield NewCommand(type=CommandType.SET_DATE, device=device, grid=grid, data=day)
    token = f"9{number:015d}0500"
    yield NewCommand(type=CommandType.TOP_UP, device=device, grid=grid, data=token, expectation=proof)


class Replicas:
    """Processes of `tests.devices.replica`; none outlives the block."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.running: list[subprocess.Popen[str]] = []

    def _spawn(self) -> subprocess.Popen[str]:
        paths = (str(Path(remuda.__file__).parents[1]), str(ROOT), os.environ.get("PYTHONPATH", ""))
        return subprocess.Popen(
            [sys.executable, "-m", "tests.devices.replica", msgspec.json.encode(self._replica).decode()],
            stdin=subprocess.PIPE,  # closed, it ends the process, however ours ends
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )

    async def start(self) -> str:
        """One more; the URL of its ingress."""
        process = self._spawn()
        self.running.append(process)
        assert process.stdout is not None
        async with asyncio.timeout(READY_WITHIN_S):
            said = await asyncio.to_thread(process.stdout.readline)
        assert said.startswith("READY"), f"a replica did not start; it logged:\n{self.log()}"
        return said.split()[1]

    def kill(self, number: int) -> None:
        self.running[number].kill()
        self.running[number].wait()

    def ends(self) -> Counter[str]:
        """How often each command's end was told, in all processes."""
        files = Path(self._replica.directory).glob("*.ends")
        return Counter(line.split()[0] for each in files for line in each.read_text().splitlines())

    def log(self) -> str:
        files = sorted(Path(self._replica.directory).glob("*.log"))
        return "\n".join(f"-- {each.name}\n{each.read_text()[-3000:]}" for each in files)

    def complaints(self) -> list[str]:
        files = Path(self._replica.directory).glob("*.log")
        return [line for each in files for line in each.read_text().splitlines() if " ERROR " in line]

    def close(self) -> None:
        for process in self.running:
            process.terminate()
        for process in self.running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


@asynccontextmanager
async def replicas(store: str, world: World, directory: Path) -> AsyncIterator[Replicas]:
    replica = Replica(
        store=store, chirpstack=world.grpc.address, calin=world.http.url, directory=str(directory)
    )
    running = Replicas(replica)
    try:
        yield running
    finally:
        await asyncio.to_thread(running.close)


class Audit:
    """The records and the trail, held against the meters' deeds."""

    def __init__(self, world: World, told: Counter[str]) -> None:
        self._world = world
        self._told = told
        self._table: Counter[tuple[str, ...]] = Counter()
        self._seen: list[tuple[Command, list[Transition]]] = []
        self._devices: dict[str, None] = {}
        self.faults: list[str] = []

    def check(self, command: Command, trail: list[Transition]) -> None:
        self._seen.append((command, trail))
        deeds = self._world.deeds(command)
        applied = sum(each.applied for each in deeds)
        how = "applied" if applied else "answered" if deeds else "-"
        row = (command.device.protocol, command.family, command.status, command.reason, command.outcome, how)
        self._table[tuple(str(each) for each in row)] += 1
        self._demand(command.has_ended, "has not ended", command, trail)
        self._demand(command.id in self._told, "was told to nobody", command, trail)
        if command.family is Family.TOKEN:
            self._demand(applied <= 1, f"was applied {applied} times", command, trail)
        if command.outcome is Outcome.EXECUTED:
            is_true = bool(deeds) if command.family is Family.READ else applied > 0
            self._demand(is_true, "was not executed", command, trail)
        if command.outcome in (Outcome.REFUSED, Outcome.NOT_EXECUTED):
            self._demand(applied == 0, "was executed", command, trail)
        self._demand(command.outcome is not None or not command.has_ended, "has no outcome", command, trail)
        left = None
        for move in trail:
            self._demand(move.left == left, f"has a gap in its trail before {move.entered}", command, trail)
            self._demand((move.left, move.entered) in COMMAND_MOVES, "has an illegal move", command, trail)
            left = move.entered
        self._demand(left == command.status, "has a trail that ends elsewhere", command, trail)

    def _demand(self, is_so: bool, otherwise: str, command: Command, trail: list[Transition]) -> None:
        if not is_so:
            self.faults.append(f"{command.id} of {command.device.key} {otherwise}")
            self._devices.setdefault(command.device.key)

    def summary(self) -> str:
        rows = [f"{count:6} {'  '.join(row)}" for row, count in sorted(self._table.items())]
        stories = (line for device in list(self._devices)[:3] for line in self._story(device))
        return "\n".join(["", *rows, f"{len(self.faults)} faults:", *self.faults[:20], *stories])

    def _story(self, device: str) -> Iterator[str]:
        """Everything that is known of a device, in the order in which it happened."""
        events: list[tuple[datetime, str]] = []
        for command, trail in self._seen:
            if command.device.key != device:
                continue
            name = f"{command.type} {command.id[-6:]}"
            events += [(each.at, f"{name} {each.entered} {each.reason or ''}") for each in trail]
            for each in command.attempts:
                said = (
                    f"{name} attempt {each.number} {each.purpose}, now {each.fate}, named {each.external_id}"
                )
                events.append((each.sent_at, f"{said}, acked {each.acked}, looked {each.looked}"))
            events += [
                (each.at, f"{name} DEED {each.accepted} {each.applied}")
                for each in self._world.deeds(command)
            ]
        return (f"{at:%H:%M:%S.%f} {what}" for at, what in sorted(events))


async def audit(fleet: Fleet, ids: list[str], world: World, told: Counter[str]) -> Audit:
    trails: dict[str, list[Transition]] = defaultdict(list)
    after = 0
    while (page := await fleet.store.transitions(after=after, limit=5_000)).transitions:
        for each in page.transitions:
            trails[each.message].append(each)
        after = page.next_offset
    result = Audit(world, told)
    for start in range(0, len(ids), 500):
        batch = ids[start : start + 500]
        records = await fleet.ledger.load(batch)
        for command_id in batch:
            if command_id in records:
                result.check(records[command_id], trails[command_id])
            else:
                result.faults.append(f"{command_id} is gone")
    return result


async def until(condition: Callable[[CommandStats], bool], fleet: Fleet, what: str) -> None:
    """Wait for something to be true of the fleet, with a look now and then: looking costs something, too."""
    deadline = time.monotonic() + LONGEST_S
    while not condition(stats := await fleet.stats()):
        assert time.monotonic() < deadline, f"{LONGEST_S} s have passed without this: {what}; {stats}"
        await asyncio.sleep(0.5)


def ended(stats: CommandStats) -> int:
    return sum(count for status, count in stats.by_status.items() if status in ENDED_STATUSES)


@pytest.fixture
def no_sniffio(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is not installed, httpcore looks for it on the disk several times for every request."""
    if importlib.util.find_spec("sniffio") is None:
        monkeypatch.setitem(sys.modules, "sniffio", None)


@pytest.fixture(params=[("valkey", 1000), ("postgres", 60)], ids=lambda each: f"{each[0]}-{each[1] * 5}")
def store_and_meters(request: pytest.FixtureRequest) -> tuple[str, int]:
    store, meters = request.param
    return str(request.getfixturevalue(f"{store}_url")), meters


@pytest.mark.long
async def test_every_record_is_true_after_losses_failures_and_a_killed_replica(
    store_and_meters: tuple[str, int], tmp_path: Path, no_sniffio: None
) -> None:
    faulthandler.cancel_dump_traceback_later()  # longer than other tests may take
    faulthandler.dump_traceback_later(3 * LONGEST_S, exit=True)
    store, meters = store_and_meters
    async with (
        World(meters) as world,
        replicas(store, world, tmp_path) as running,
        Fleet(store, timings=quick_timings()) as fleet,
    ):
        for _ in range(2):
            world.listen_to(await running.start())
        sent = await fleet.send_many(list(world.commands()))
        ids = [each.id for each in sent]
        assert len(set(ids)) == meters * 5

        some, all_of_them = len(ids) // 8, len(ids)
        await until(lambda stats: ended(stats) >= some, fleet, "an eighth of the commands has ended")
        running.kill(0)
        await world.forget(0)
        world.listen_to(await running.start())
        try:
            await until(
                lambda stats: ended(stats) == all_of_them and not stats.unpublished,
                fleet,
                "every command has ended, and its end was told",
            )
            await until(lambda _: world.is_at_rest(), fleet, "nothing is under way in the world")
        finally:
            result = await audit(fleet, ids, world, running.ends())
            report = f"{result.summary()}\n{running.log()}"
        assert not result.faults, report
        assert not running.complaints(), report
