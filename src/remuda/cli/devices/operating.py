"""`hold`, `release`, `cancel`, `replay`: what an operator does with lanes and commands."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remuda.cli import output
from remuda.cli.asking import confirm
from remuda.cli.devices.fleets import Config, FleetName, Where, opened_fleet
from remuda.cli.exits import ExitCode, fail, run
from remuda.cli.options import DURATION, AsJson, Url, Yes, duration
from remuda.cli.times import local
from remuda.lifecycle import CommandStatus

if TYPE_CHECKING:
    from remuda.devices.command import Command
    from remuda.devices.fleet import Fleet

LaneName = Annotated[
    str,
    typer.Argument(metavar="LANE", help="As `lanes` shows it: lorawan_network:grid-7.", show_default=False),
]
Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="The commands' ids.", show_default=False)]


def hold(
    lane: LaneName,
    lasting: Annotated[
        timedelta | None,
        typer.Option("--for", parser=duration, metavar=DURATION, help="So long; else until released."),
    ] = None,
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="Shown beside the lane.")] = "held",
    url: Url = None,
    fleet: FleetName = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Send nothing from a lane for a while. What is on its way goes on; what is sent meanwhile waits."""
    run(lambda: _hold(Where(url, fleet, config), lane, lasting, why, as_json=as_json))


async def _hold(where: Where, lane: str, lasting: timedelta | None, why: str, *, as_json: bool) -> None:
    _check_lane(lane)
    async with opened_fleet(where) as fleet:
        until = None if lasting is None else fleet.store.now() + lasting
        await fleet.hold_lane(lane, until=until, why=why)
        waiting = await _waiting(fleet, lane)
    if as_json:
        output.emit({"lane": lane, "held_until": until, "held_why": why, "waiting": waiting})
    else:
        end = "until it is released" if until is None else f"until {local(until)}"
        output.say(f"held {lane} {end}: {output.plural(waiting, 'command')} waiting")


def _check_lane(lane: str) -> None:
    kinds = ("lorawan_network:", "lorawan_gateway:", "gateway:")
    if not lane.startswith(kinds):
        raise typer.BadParameter(f"a lane's name begins with {', '.join(kinds)}; {lane!r} does not")


async def _waiting(fleet: Fleet, lane: str) -> int:
    return next((each.waiting for each in await fleet.lanes() if each.lane == lane), 0)


def release(
    lane: LaneName, url: Url = None, fleet: FleetName = None, config: Config = None, as_json: AsJson = False
) -> None:
    """End the hold of a lane."""
    run(lambda: _release(Where(url, fleet, config), lane, as_json=as_json))


async def _release(where: Where, lane: str, *, as_json: bool) -> None:
    _check_lane(lane)
    async with opened_fleet(where) as fleet:
        was_held = any(each.lane == lane and each.held_why is not None for each in await fleet.lanes())
        await fleet.release_lane(lane)
        waiting = await _waiting(fleet, lane)
    if as_json:
        output.emit({"lane": lane, "was_held": was_held, "waiting": waiting})
    else:
        told = f"released {lane}" if was_held else f"{lane} was not held"
        output.say(f"{told}: {output.plural(waiting, 'command')} waiting")


# -- commands


def cancel(
    ids: Ids,
    url: Url = None,
    fleet: FleetName = None,
    config: Config = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Stop commands, and say what may already have happened.

    One that waits is ended. One that is on its way is not tried again; it ends with what becomes of the
    attempt under way. An unknown id is named, and the exit code is 5.
    """
    run(lambda: _cancel(Where(url, fleet, config), ids, yes=yes, as_json=as_json))


async def _cancel(where: Where, ids: list[str], *, yes: bool, as_json: bool) -> None:
    told: list[dict[str, Any]] = []
    missing: list[str] = []
    async with opened_fleet(where) as fleet:
        confirm(f"Cancel {output.plural(len(set(ids)), 'command')}?", yes=yes)
        for each in dict.fromkeys(ids):
            cancelled = await fleet.cancel(each)
            if cancelled is None:
                missing.append(each)
                continue
            told.append({field: getattr(cancelled, field) for field in cancelled.__struct_fields__})
    if as_json:
        output.emit({"commands": told, "missing": missing})
    else:
        for one in told:
            output.say(f"{one['id']}  {one['words']}")
    end_if_missing(missing)


def end_if_missing(missing: list[str]) -> None:
    """Ids that name nothing are worth an exit code."""
    if missing:
        fail(f"there is no command {' or '.join(map(repr, missing))}", ExitCode.NOT_FOUND)


def replay(
    ids: Ids,
    not_applied: Annotated[
        bool,
        typer.Option("--not-applied", help="You have made sure that the token was not applied."),
    ] = False,
    expires: Annotated[
        timedelta | None,
        typer.Option("--expires", parser=duration, metavar=DURATION, help="Not sent (again) after this."),
    ] = None,
    url: Url = None,
    fleet: FleetName = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Begin failed commands anew, each with a fresh budget of retries.

    A token that may have been applied is refused unless a read can tell, or you say --not-applied.
    """
    where = Where(url, fleet, config)
    run(lambda: _replay(where, ids, not_applied=not_applied, expires=expires, as_json=as_json))


async def _replay(
    where: Where, ids: list[str], *, not_applied: bool, expires: timedelta | None, as_json: bool
) -> None:
    replayed: list[str] = []
    refused: dict[str, str] = {}
    missing: list[str] = []
    async with opened_fleet(where) as fleet:
        for each in dict.fromkeys(ids):
            command = await fleet.get(each)
            if command is None:
                missing.append(each)
                continue
            until = None if expires is None else fleet.store.now() + expires
            if await fleet.replay(each, not_applied=not_applied, expires_at=until):
                replayed.append(each)
            else:
                refused[each] = why_not(command, await fleet.successor(command))
    if as_json:
        output.emit({"replayed": replayed, "refused": refused, "missing": missing})
    else:
        for one in replayed:
            output.say(f"{one}  queued again")
        for one, why in refused.items():
            output.say(f"{one}  not replayed: {why}")
    end_if_missing(missing)
    if refused:
        raise typer.Exit(ExitCode.ERROR)


def why_not(command: Command, successor: str | None = None) -> str:
    """Why a command cannot be replayed."""
    if command.status is CommandStatus.DELIVERY_SUCCESSFUL:
        return "it was delivered; send a new one"
    if command.status is not CommandStatus.DELIVERY_FAILED:
        return f"it has not ended, and stands at {command.status}"
    if successor is not None:
        return f"{successor} stands in its place, and would be undone by it; cancel that one first"
    return (
        "its token may have been applied, and no read can tell; look at the device, "
        "and say --not-applied if it was not"
    )
