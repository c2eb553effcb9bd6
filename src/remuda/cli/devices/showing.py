"""`show`: one command with its whole story."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from remuda.cli import output
from remuda.cli.devices.fleets import Config, FleetName, Where, opened_fleet
from remuda.cli.devices.looking import COLUMNS, OUTCOME_STYLES, row, value_text
from remuda.cli.exits import ExitCode, fail, run
from remuda.cli.jobs import state_cell
from remuda.cli.options import AsJson, Url
from remuda.cli.output import Cell, Column
from remuda.cli.times import local, relative, span

if TYPE_CHECKING:
    from remuda.cli.devices.stories import Moment
    from remuda.devices.command import Command, Expectation
    from remuda.transition import Transition

MOST_AT_ONCE = 3  # more than this are listed, and not told in full


def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="Its id, the network server's id of an attempt, or your correlation id.",
            show_default=False,
        ),
    ],
    url: Url = None,
    fleet: FleetName = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Show a command with its whole story.

    Every state, every attempt, everything that went wrong. Of a token only the last digits are shown.
    """
    run(lambda: _show(Where(url, fleet, config), name, as_json=as_json))


async def _show(where: Where, name: str, *, as_json: bool) -> None:
    from remuda.cli.devices.records import command_fields
    from remuda.cli.records import transition_fields

    async with opened_fleet(where) as fleet:
        found = await fleet.find(name)
        if not found:
            fail(f"there is no command {name!r} in the fleet {fleet.store.fleet}", ExitCode.NOT_FOUND)
        told = found if as_json or len(found) <= MOST_AT_ONCE else []
        with output.waiting("reading the trail"):
            trails = [await fleet.story(each) for each in told]
        now = fleet.store.now()
    if as_json:
        output.emit(
            {
                "commands": [
                    {**command_fields(each), "history": [transition_fields(one) for one in trail]}
                    for each, trail in zip(told, trails, strict=True)
                ]
            }
        )
    elif not told:
        output.table(COLUMNS, [row(each, now) for each in found])
        output.note(f"{len(found)} commands are called so; show one of them by its id")
    else:
        for place, (command, trail) in enumerate(zip(told, trails, strict=True)):
            if place:
                output.say()
            _show_command(command, now)
            _show_story(command, trail)


def _show_command(command: Command, now: datetime) -> None:
    output.facts([(name, value) for name, value in _facts(command, now) if _said(value)])


def _said(value: str | Cell) -> bool:
    return bool(value if isinstance(value, str) else value.text)


def _facts(command: Command, now: datetime) -> list[tuple[str, str | Cell]]:
    from remuda.cli.devices.records import masked

    def moment(at: datetime | None) -> str:
        return "" if at is None else f"{local(at)}  ({relative(at, now)})"

    data = masked(command.data) if command.is_single_use else command.data
    names = [each for each in (command.correlation_id, *command.joined) if each is not None]
    ended = command.has_ended
    return [
        ("id", Cell(command.id, "bold")),
        ("type", f"{command.type}{f' (phase {command.phase})' if command.phase else ''}"),
        ("data", "" if data is None else output.printable(value_text(data))),
        ("device", output.printable(_device_text(command))),
        ("lane", output.printable(command.lane)),
        ("priority", str(command.priority)),
        ("status", state_cell(command.status)),
        ("outcome", _outcome_cell(command)),
        ("reason", Cell(_reason_text(command), "red")),
        ("response", output.printable(_response_text(command))),
        ("stop", "" if ended or command.stop is None else f"{command.stop}: no further attempt is made"),
        ("expects", _expectation_text(command.expectation, command.baseline)),
        ("called", output.printable(", ".join(names))),
        ("attempts", _attempts_text(command)),
        ("replays", str(command.replays or "")),
        ("added", moment(command.created_at)),
        ("looked at", "" if ended else moment(command.due_at)),
        ("expires", "" if ended else moment(command.expires_at)),
        ("ended", moment(command.status_since) + _took(command) if ended else ""),
    ]


def _device_text(command: Command) -> str:
    device = command.device
    told = [f"{device.reference} by {device.protocol}"]
    if device.gateway is not None:
        told.append(f"gateway {device.gateway.id}")
    if command.grid is not None:
        told.append(f"grid {command.grid}")
    return ", ".join(told)


def _outcome_cell(command: Command) -> Cell:
    if command.outcome is None:
        return Cell("")
    return Cell(command.outcome.value, OUTCOME_STYLES[command.outcome.value])


def _reason_text(command: Command) -> str:
    from remuda.lifecycle import END_REASON_MEANINGS

    return "" if command.reason is None else f"{command.reason}: {END_REASON_MEANINGS[command.reason]}"


def _response_text(command: Command) -> str:
    response = command.response
    if response is None:
        return ""
    data = "" if response.data is None else f": {value_text(response.data)}"
    return f"{response.execution}{data} (by {response.source})"


def _expectation_text(expectation: Expectation | None, baseline: float | None) -> str:
    if expectation is None:
        return ""
    words = (
        ("at_least", "is at least"),
        ("at_most", "is at most"),
        ("rises_by", "rises by"),
        ("falls_by", "falls by"),
    )
    said = [
        f"{text} {getattr(expectation, field):g}"
        for field, text in words
        if getattr(expectation, field) is not None
    ]
    before = "" if baseline is None else f", from {baseline:g}"
    return f"that {expectation.read} {' and '.join(said)}{before}"


def _attempts_text(command: Command) -> str:
    attempts = command.attempts
    if not attempts:
        return "none yet" if not command.has_ended else "none"
    reads = sum(each.purpose != "send" for each in attempts)
    return f"{len(attempts)}{f', {reads} of them reads' if reads else ''}"


def _took(command: Command) -> str:
    return f", {span(command.status_since - command.created_at)} after it was added"


# -- the story


def _show_story(command: Command, trail: list[Transition]) -> None:
    from remuda.cli.devices.stories import story

    moments = story(command, trail)
    if not moments:
        return
    output.say()
    output.say("story", "bold")
    output.table(_STORY, [_step(each) for each in moments])


_STORY = (
    Column("when"),
    Column("state"),
    Column("attempt", right=True),
    Column("after"),
    Column("what", flexible=True),
)


def _step(moment: Moment) -> output.Cells:
    after = "" if moment.dwell is None else f"{span(moment.dwell)} {moment.left or ''}".rstrip()
    return (
        Cell(local(moment.at, zone=False), output.FAINT),
        "" if moment.status is None else state_cell(moment.status),
        "" if moment.attempt is None else str(moment.attempt),
        after,
        Cell(output.printable(moment.words), "red" if moment.is_trouble else ""),
    )
