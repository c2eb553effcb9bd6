"""A small fleet at work: meters behind a simulated ChirpStack and Calin, over real gRPC and HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from remuda.clock import SystemClock
from remuda.devices import (
    Command,
    CommandType,
    Device,
    DutyCycle,
    Engine,
    Expectation,
    Fleet,
    NewCommand,
    Protocol,
    Timings,
)
from remuda.devices.ingress import IngressServer
from remuda.devices.networks.calin_v1 import CalinV1
from remuda.devices.networks.calin_v2 import CalinV2
from remuda.devices.networks.chirpstack import ChirpStack
from remuda.devices.simulator.calin_http import CalinServer
from remuda.devices.simulator.chirpstack_grpc import ChirpStackServer
from remuda.devices.simulator.rehearsal import rehearse
from remuda.devices.simulator.truth import lies
from remuda.devices.simulator.webhooks import WebhookSender
from remuda.devices.simulator.world import World, WorldOptions
from remuda.retry import Exponential

METERS, PATIENCE_S = 40, 120
SECRET = "demo-secret"  # noqa: S105  # of a demo on loopback
# The seed's deadlines, for people who do not want to wait: everything is about eight times as quick.
QUICK = Timings(
    accept=timedelta(seconds=3),
    gateway=timedelta(seconds=6),
    device=timedelta(seconds=4),
    correlation=timedelta(seconds=2),
    polls=((timedelta.max, timedelta(seconds=1)),),
    sweep=timedelta(milliseconds=500),
    reap=timedelta(milliseconds=250),
    call=timedelta(seconds=8),
    look_again=timedelta(seconds=2),
    late_result=timedelta(seconds=10),
    retry=Exponential(
        initial=timedelta(milliseconds=300), cap=timedelta(seconds=5), jitter=0.5, max_attempts=12
    ),
)


def some_commands(world: World) -> list[NewCommand]:
    """A read for every meter, switchings and top-ups for some."""
    rng = random.Random(7)
    commands = []
    for serial, device in world.devices.items():
        grid = world.grids.get(serial)
        commands.append(NewCommand(type=CommandType.READ_CREDIT, device=device, grid=grid))
        if rng.random() < 0.4:
            switch = rng.choice([CommandType.TURN_ON, CommandType.TURN_OFF])
            commands.append(NewCommand(type=switch, device=device, grid=grid, by_person=True))
        if rng.random() < 0.5:
            commands.append(_top_up(device, grid, rng))
    return commands


def _top_up(device: Device, grid: str | None, rng: random.Random) -> NewCommand:
    token = f"9{rng.randrange(10**15):015}0500"  # 50 kWh
    expectation = Expectation(read=CommandType.READ_CREDIT, rises_by=50.0) if rng.random() < 0.5 else None
    return NewCommand(type=CommandType.TOP_UP, device=device, grid=grid, data=token, expectation=expectation)


async def tell_of_a_fleet(folder: Path, out: Console) -> bool:
    """Send, lose, retry, settle; then compare every record with what the meters did."""
    world = World(
        WorldOptions(
            meters=METERS,
            seed=11,
            loss=0.15,
            api_v1=0.15,
            api_v2=0.15,
            calin_latency=timedelta(seconds=2),
            slow_calin=False,
            gateways=6,
        ),
        SystemClock(),
    )
    ended: dict[str, Command] = {}
    async with contextlib.AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(
            Fleet(f"sqlite:///{folder / 'fleet.db'}", timings=QUICK, lanes_by_gateway=True)
        )
        engine = await _start(stack, world, fleet)
        engine.subscribe(lambda command: ended.__setitem__(command.id, command))
        out.print(
            f"\n[bold]6. Commands to {METERS} meters[/] through a simulated ChirpStack (gRPC, webhooks) "
            "and Calin V1 and V2 (HTTP);\n  every leg loses 15 %, webhooks come twice, late or never"
        )
        sent = await fleet.send_many(some_commands(world))
        await _watch(ended, {each.id for each in sent}, out)
        _show_ends(ended, out)
        await _show_a_story(fleet, ended, out)
    untrue = lies(world, ended.values())
    colour = "red" if untrue else "green"
    out.print(
        f"\n[bold {colour}]{len(ended)} records compared with what the meters did: {len(untrue)} untrue[/]"
    )
    # In a thread: virtual time needs an event loop of its own.
    return not untrue and await asyncio.to_thread(_tell_of_a_day, out)


async def _start(stack: contextlib.AsyncExitStack, world: World, fleet: Fleet) -> Engine:
    """The network servers on loopback ports, and an engine with its ingress in front of them."""
    chirpstack = await stack.enter_async_context(ChirpStackServer(world.chirpstack, token="demo"))  # noqa: S106
    calin = CalinServer(world.calin)
    await calin.start()
    stack.push_async_callback(calin.stop)
    networks = [
        ChirpStack(address=chirpstack.address, token="demo", call_deadline=timedelta(seconds=6)),  # noqa: S106
        *(
            kind(calin.url, company=world.calin.company, user=world.calin.user, password=world.calin.password)
            for kind in (CalinV1, CalinV2)
        ),
    ]
    engine = Engine(fleet, networks, airtime=DutyCycle(share=0.5))
    ingress = IngressServer(engine.keep, secret=SECRET, host="127.0.0.1", port=0)
    await ingress.start()
    stack.push_async_callback(ingress.stop)
    sender = WebhookSender(f"{ingress.url}/chirpstack", world.weather, headers={"X-Remuda-Secret": SECRET})
    stack.push_async_callback(sender.close)
    world.deliver_by(sender)
    world.start()
    stack.push_async_callback(world.stop)
    return await stack.enter_async_context(engine)


async def _watch(ended: dict[str, Command], sent: set[str], out: Console) -> None:
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    deadline = time.monotonic() + PATIENCE_S
    with Progress(*columns, console=out) as progress:
        bar = progress.add_task("ended", total=len(sent))
        while len(ended) < len(sent):
            if time.monotonic() > deadline:
                raise SystemExit(f"{len(sent) - len(ended)} commands did not end in time")
            await asyncio.sleep(0.1)
            progress.update(bar, completed=len(ended))


def _show_ends(ended: dict[str, Command], out: Console) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    for heading in ("", "commands", "reached by", "status", "what the device did"):
        table.add_column(heading, no_wrap=True)
    counts = Counter(
        (each.device.protocol.value, each.family.value, each.status.value, f"{each.outcome}")
        for each in ended.values()
    )
    for (protocol, family, status, outcome), count in sorted(counts.items()):
        style = "yellow" if outcome == "unknown" else "red" if "FAILED" in status else ""
        table.add_row("", f"{count:3} {family}", protocol, status, outcome, style=style)
    out.print(table)


async def _show_a_story(fleet: Fleet, ended: dict[str, Command], out: Console) -> None:
    """The command that had the hardest way and still arrived."""
    arrived = [
        each
        for each in ended.values()
        if each.response is not None and each.device.protocol is Protocol.LORAWAN
    ]
    hardest = max(arrived, key=lambda each: len(each.attempts))
    out.print(
        f"\n  The hardest way: {hardest.type} to {hardest.device.reference}, {len(hardest.attempts)} attempts"
    )
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    for heading in ("", "at", "status", "after", "why"):
        table.add_column(heading, no_wrap=True)
    for each in (await fleet.story(hardest))[-12:]:
        dwell = "" if each.dwell is None else f"{each.dwell.total_seconds():.3f} s"
        table.add_row("", f"{each.at:%H:%M:%S.%f}"[:-3], str(each.entered), dwell, each.reason or "")
    out.print(table)


def _tell_of_a_day(out: Console) -> bool:
    out.print(
        "\n[bold]7. A day of 100 meters[/] in virtual time, with the real deadlines and the same engine"
    )
    told = rehearse(WorldOptions(meters=100, seed=7, loss=0.15), lasting=timedelta(hours=24))
    unknown = sum(f"{each.outcome}" == "unknown" for each in told.ended)
    holds = not told.lies and not told.unended
    out.print(
        f"  {told.sent} commands, {len(told.ended)} ended, {unknown} with an outcome that nobody can know;"
        f"\n  {told.lasted.total_seconds() / 3600:.0f} hours in {told.took.total_seconds():.1f} s"
    )
    colour = "green" if holds else "red"
    out.print(f"[bold {colour}]{len(told.ended)} records compared: {len(told.lies)} untrue[/]")
    return holds
