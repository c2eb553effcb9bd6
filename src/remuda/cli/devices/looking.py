"""`list`, `stats`, `lanes`: the commands of a fleet, and where they wait."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from remuda.cli import output
from remuda.cli.devices.fleets import Config, FleetName, Where, opened_fleet
from remuda.cli.exits import run
from remuda.cli.jobs import state_cell
from remuda.cli.options import AsJson, Url
from remuda.cli.output import Cell, Column
from remuda.cli.times import local, relative
from remuda.devices.command import Protocol
from remuda.lifecycle import CommandStatus

if TYPE_CHECKING:
    from remuda.devices.command import Command
    from remuda.devices.fleet import Fleet
    from remuda.stores.commands import LaneStats

OUTCOME_STYLES = {"executed": "green", "refused": "yellow", "not_executed": "red", "unknown": "bold red"}


def list_commands(
    status: Annotated[
        CommandStatus | None,
        typer.Option(
            "--status",
            metavar="STATUS",
            help=f"Only commands that stand here: {', '.join(CommandStatus)}.",
            case_sensitive=False,
        ),
    ] = None,
    lane: Annotated[
        str | None, typer.Option("--lane", metavar="LANE", help="Only commands of this lane.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="SERIAL", help="Only commands for this device (or PROTOCOL:ID)."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="At most so many.")] = 50,
    url: Url = None,
    fleet: FleetName = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """List commands, newest first."""
    where = Where(url, fleet, config)
    run(lambda: _list(where, status, lane, device, limit, as_json=as_json))


async def _list(
    where: Where,
    status: CommandStatus | None,
    lane: str | None,
    device: str | None,
    limit: int,
    *,
    as_json: bool,
) -> None:
    from remuda.cli.devices.records import command_fields

    async with opened_fleet(where) as fleet:
        found: list[Command] = []
        for key in device_keys(device):
            found += await fleet.commands(status=status, lane=lane, device=key, limit=limit)
        found = sorted(found, key=lambda each: each.id, reverse=True)[:limit]
        now = fleet.store.now()
        if not found:
            await note_if_empty(fleet)
    if as_json:
        output.emit({"fleet": fleet.store.fleet, "commands": [command_fields(each) for each in found]})
    elif found:
        output.table(COLUMNS, [row(each, now) for each in found])
        if len(found) == limit and output.on_terminal():
            output.note(f"the newest {limit}; --limit shows more")
    else:
        output.note("no commands")


def device_keys(device: str | None) -> list[str | None]:
    """How a store may know a device that a person names by its serial, its EUI or its key."""
    if device is None:
        return [None]
    if ":" in device:
        return [device]
    from remuda.devices.command import Device

    keys = [Device(reference=device, protocol=each).key for each in Protocol]
    return list(dict.fromkeys(keys))


COLUMNS = (
    Column("id"),
    Column("type"),
    Column("device"),
    Column("status"),
    Column("since"),
    Column("tries", right=True),
    Column("what became of it", flexible=True),
)


def row(command: Command, now: datetime) -> output.Cells:
    """A command on one line."""
    return (
        command.id,
        command.type.value,
        output.printable(command.device.reference),
        state_cell(command.status),
        relative(command.status_since, now),
        str(len(command.attempts)),
        output.printable(_became(command, now)),
    )


def _became(command: Command, now: datetime) -> str:
    """How it ended, or what it waits for."""
    if command.has_ended:
        told = [command.outcome.value if command.outcome is not None else ""]
        if command.reason is not None:
            told.append(command.reason.value)
        if command.response is not None and command.response.data is not None:
            told.append(value_text(command.response.data))
        return ": ".join(filter(None, told))
    recent = [each.reason for each in command.failures if each.at >= command.started_at]
    why = f" after {recent[0]}" if recent else ""
    if command.status is CommandStatus.QUEUED:
        return f"waits in {command.lane}{why}"
    due = "" if command.due_at is None else f", looked at {relative(command.due_at, now)}"
    if command.status is CommandStatus.TO_RETRY:
        return f"again {'now' if command.due_at is None else relative(command.due_at, now)}{why}"
    return f"on its way{due}{why}"


def value_text(data: object) -> str:
    """What a device answered, for people."""
    import msgspec

    if isinstance(data, str | int | float):
        return str(data)
    if isinstance(data, dict):
        return ", ".join(f"{name} {value_text(value)}" for name, value in data.items() if value is not None)
    return msgspec.json.encode(data, enc_hook=str).decode()


# -- the whole fleet


def stats(url: Url = None, fleet: FleetName = None, config: Config = None, as_json: AsJson = False) -> None:
    """Show how many commands stand where, and what waits."""
    run(lambda: _stats(Where(url, fleet, config), as_json=as_json))


async def _stats(where: Where, *, as_json: bool) -> None:
    from remuda.cli.devices.records import stats_fields

    async with opened_fleet(where) as fleet:
        told = await fleet.stats()
        place, name = fleet.store.url, fleet.store.fleet
        if not any(told.by_status.values()):
            await note_if_empty(fleet)
    if as_json:
        output.emit(stats_fields(name, told))
        return
    output.facts(
        [
            ("fleet", Cell(name, "bold")),
            ("store", place),
            ("signals", f"{told.signals:,} wait to be read"),
            ("ends", f"{told.unpublished:,} wait to be told to subscribers"),
        ]
    )
    output.say()
    counts = {each.value: told.by_status.get(each, 0) for each in CommandStatus}
    output.bars(counts, output.STATE_STYLES)


async def note_if_empty(fleet: Fleet) -> None:
    """An empty fleet is no error, but a mistyped name looks just like one."""
    if not await fleet.commands(limit=1):
        output.note(f"nothing is known of a fleet {fleet.store.fleet!r} in this store")


# -- lanes


def lanes(url: Url = None, fleet: FleetName = None, config: Config = None, as_json: AsJson = False) -> None:
    """Show the lanes in which commands wait, and those that are held."""
    run(lambda: _lanes(Where(url, fleet, config), as_json=as_json))


async def _lanes(where: Where, *, as_json: bool) -> None:
    from remuda.cli.devices.records import lane_fields

    async with opened_fleet(where) as fleet:
        found = await fleet.lanes()
        now = fleet.store.now()
    if as_json:
        output.emit({"fleet": fleet.store.fleet, "lanes": [lane_fields(each) for each in found]})
    elif found:
        output.table(_LANES, [_lane_row(each, now) for each in found])
    else:
        output.note("nothing waits, and no lane is held")


_LANES = (
    Column("lane"),
    Column("waiting", right=True),
    Column("in use", right=True),
    Column("opens"),
    Column("held", flexible=True),
)


def _lane_row(lane: LaneStats, now: datetime) -> output.Cells:
    opens = "now" if lane.opens_at is None or lane.opens_at <= now else relative(lane.opens_at, now)
    return (
        Cell(output.printable(lane.lane), "bold"),
        str(lane.waiting),
        str(lane.slots_used) if lane.slots_used else "-",
        Cell("-", output.FAINT) if lane.held_why is not None else opens,
        Cell(output.printable(held_text(lane)), "yellow"),
    )


def held_text(lane: LaneStats) -> str:
    """Why a lane is held and until when; empty if it is not."""
    if lane.held_why is None:
        return ""
    until = "until it is released" if lane.held_until is None else f"until {local(lane.held_until)}"
    return f"{until}: {lane.held_why}"
