"""`send`: one command from the command line, or many from a file of JSON lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remuda.cli import output
from remuda.cli.devices.fleets import Config, FleetName, Where, opened_fleet
from remuda.cli.exits import ExitCode, fail, run
from remuda.cli.options import DURATION, AsJson, Url, duration
from remuda.cli.reading import read_bytes
from remuda.cli.times import span
from remuda.devices.command import CommandType, Outcome, Phase, Protocol
from remuda.errors import ConfigurationError

if TYPE_CHECKING:
    from remuda.cli.devices.asking import Ask
    from remuda.devices.command import Command
    from remuda.devices.fleet import Fleet, Sent
    from remuda.devices.sending import NewCommand

CHUNK = 500
_LOOK_EVERY_S = 0.25

# What a script learns from `--wait`.
EXITS = {
    Outcome.EXECUTED: ExitCode.OK,
    Outcome.REFUSED: ExitCode.REFUSED,
    Outcome.NOT_EXECUTED: ExitCode.NOT_EXECUTED,
    Outcome.UNKNOWN: ExitCode.UNKNOWN,
}

Expect = "Proof that a token was applied: "


def command_type(text: str) -> CommandType:
    """A type as people write it: in any case, with - or _."""
    try:
        return CommandType(text.upper().replace("-", "_"))
    except ValueError:
        known = ", ".join(each.value for each in CommandType)
        raise typer.BadParameter(f"{text!r} is no command; there are {known}") from None


def send(
    kind: Annotated[
        CommandType | None,
        typer.Argument(
            metavar="TYPE",
            parser=command_type,
            help="READ_CREDIT, TURN_OFF, TOP_UP …; with --from, that of lines without one.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", "-d", metavar="SERIAL", help="The device's serial.")
    ] = None,
    protocol: Annotated[
        Protocol | None,
        typer.Option(
            "--protocol", "-p", metavar="PROTOCOL", help="LORAWAN, API_V1 or API_V2.", case_sensitive=False
        ),
    ] = None,
    gateway: Annotated[
        str | None, typer.Option("--gateway", metavar="ID", help="The gateway that reaches it.")
    ] = None,
    grid: Annotated[str | None, typer.Option("--grid", metavar="GRID", help="The grid it is in.")] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="TEXT", help="A date or a time, say; JSON where it begins with {."),
    ] = None,
    token_stdin: Annotated[
        bool, typer.Option("--token-stdin", help="Read the token from standard input.")
    ] = False,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="A file with the token.")
    ] = None,
    phase: Annotated[
        Phase | None,
        typer.Option("--phase", metavar="A|B|C", help="Of a voltage or current.", case_sensitive=False),
    ] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", metavar="N", help="0 to 100, higher is sooner.")
    ] = None,
    person: Annotated[
        bool, typer.Option("--person", help="Somebody waits for it: before what programs send.")
    ] = False,
    expires: Annotated[
        timedelta | None,
        typer.Option("--expires", parser=duration, metavar=DURATION, help="Not sent (again) after: 30m."),
    ] = None,
    correlation_id: Annotated[
        str | None, typer.Option("--correlation-id", metavar="ID", help="Your own name for it.")
    ] = None,
    rises_by: Annotated[
        float | None, typer.Option("--rises-by", metavar="N", help=Expect + "the read rises by so much.")
    ] = None,
    falls_by: Annotated[
        float | None, typer.Option("--falls-by", metavar="N", help=Expect + "it falls by so much.")
    ] = None,
    at_least: Annotated[
        float | None, typer.Option("--at-least", metavar="N", help=Expect + "it is at least this.")
    ] = None,
    at_most: Annotated[
        float | None, typer.Option("--at-most", metavar="N", help=Expect + "it is at most this.")
    ] = None,
    read: Annotated[
        CommandType | None,
        typer.Option(
            "--read", metavar="TYPE", parser=command_type, help="Which read; usually the one that fits."
        ),
    ] = None,
    dev_eui: Annotated[
        str | None, typer.Option("--dev-eui", metavar="EUI", help="Where it is not the serial with zeros.")
    ] = None,
    snr: Annotated[
        float | None,
        typer.Option("--snr", metavar="DB", help="How well the gateway hears it: tells its air time."),
    ] = None,
    spreading_factor: Annotated[
        int | None,
        typer.Option(
            "--spreading-factor", min=7, max=12, metavar="N", help="Where it is known; else by SNR."
        ),
    ] = None,
    wait: Annotated[
        timedelta | None,
        typer.Option("--wait", parser=duration, metavar=DURATION, help="Follow it so long: 60s."),
    ] = None,
    from_file: Annotated[
        str | None, typer.Option("--from", metavar="FILE", help="A command for each line; - reads stdin.")
    ] = None,
    by_gateway: Annotated[
        bool | None,
        typer.Option(
            "--lanes-by-gateway/--lanes-by-network", help="As the engine's settings say.", show_default=False
        ),
    ] = None,
    url: Url = None,
    fleet: FleetName = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Send a command to a device, or many with --from. Prints the id.

    With --wait it is followed to its end, and the exit code says what the device did.

    \b
    remuda devices send READ_CREDIT --device 47003333771 --protocol LORAWAN --grid lagos-7 --wait 60s
    remuda devices send TOP_UP -d 47003333771 -p LORAWAN --token-stdin --rises-by 50 < token
    remuda devices send --from commands.jsonl
    """
    from remuda.cli.devices.asking import Ask

    ask = Ask(
        type=kind,
        device=device,
        protocol=protocol,
        gateway=gateway,
        grid=grid,
        data=_data(kind, data, token_file, from_stdin=token_stdin),
        phase=phase,
        priority=priority,
        person=person or None,
        expires=None if expires is None else f"{expires.total_seconds():f}s",
        correlation_id=correlation_id,
        read=read,
        rises_by=rises_by,
        falls_by=falls_by,
        at_least=at_least,
        at_most=at_most,
        dev_eui=dev_eui,
        snr=snr,
        spreading_factor=spreading_factor,
    )
    where = Where(url, fleet, config)
    if snr is not None and gateway is None:
        raise typer.BadParameter("--snr says how well a gateway hears the device: give --gateway, too")
    if from_file is not None:
        if wait is not None or ask.data is not None:
            raise typer.BadParameter("--wait, --data and tokens are for one command, not for --from")
        run(lambda: _send_lines(where, ask, from_file, by_gateway, as_json=as_json))
        return
    code = run(lambda: _send_one(where, ask, wait, by_gateway, as_json=as_json))
    raise typer.Exit(code)


def _data(kind: CommandType | None, text: str | None, token_file: Path | None, *, from_stdin: bool) -> Any:
    from remuda.cli.devices.asking import is_token

    ways = (text is not None) + (token_file is not None) + from_stdin
    if ways > 1:
        raise typer.BadParameter("give one of --data, --token-stdin and --token-file")
    if text is not None:
        if is_token(kind):
            raise typer.BadParameter(
                "everybody on this machine can see a token that stands on the command line: "
                "use --token-stdin or --token-file"
            )
        return _decoded(text)
    if not from_stdin and token_file is None:
        return None
    if not is_token(kind):
        raise typer.BadParameter(f"{kind or 'this'} carries no token")
    token = (sys.stdin.read() if from_stdin else read_bytes(str(token_file)).decode(errors="replace")).strip()
    if not token:
        raise typer.BadParameter("there is no token there")
    return token


def _decoded(text: str) -> Any:
    if not text.lstrip().startswith("{"):
        return text
    import msgspec

    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise typer.BadParameter(f"the data is not JSON: {error}", param_hint="--data") from None


# -- one


async def _send_one(
    where: Where, ask: Ask, wait: timedelta | None, by_gateway: bool | None, *, as_json: bool
) -> int:
    from remuda.cli.devices.asking import new_command
    from remuda.devices.sending import InvalidCommandError

    new = new_command(ask)
    async with opened_fleet(where, create=True, lanes_by_gateway=by_gateway) as fleet:
        try:
            sent = await fleet.send(new)
        except InvalidCommandError as error:
            raise ConfigurationError(str(error)) from error
        if wait is None:
            _say_sent(sent, as_json=as_json)
            return ExitCode.OK
        if not as_json:
            _say_sent(sent, as_json=False)
        command = await _follow(fleet, sent.id, wait)
    return _say_end(sent, command, wait, as_json=as_json)


def _sent_fields(sent: Sent) -> dict[str, Any]:
    return {"id": sent.id, "new": sent.is_new, "superseded": list(sent.superseded)}


def _say_sent(sent: Sent, *, as_json: bool) -> None:
    if as_json:
        output.emit(_sent_fields(sent))
        return
    # In a pipe the id alone, so that a script can take it; what else there is to say goes beside it.
    output.say(f"sent {sent.id}" if output.on_terminal() and sent.is_new else sent.id)
    if not sent.is_new:
        output.note("joined: a command of the same kind waits already, and answers for both")
    for each in sent.superseded:
        output.note(f"supersedes {each}, which it makes redundant")


async def _follow(fleet: Fleet, command_id: str, wait: timedelta) -> Command | None:
    """The command when it has ended, or when the wait is over."""
    import asyncio

    until = time.monotonic() + wait.total_seconds()
    with output.waiting(f"waiting for {command_id}"):
        while True:
            command = await fleet.get(command_id)
            left = until - time.monotonic()
            if command is None or command.has_ended or left <= 0:
                return command
            await asyncio.sleep(min(left, _LOOK_EVERY_S))


def _say_end(sent: Sent, command: Command | None, wait: timedelta, *, as_json: bool) -> int:
    from remuda.cli.devices.records import command_fields

    if command is None:
        fail(f"the command {sent.id} is gone", ExitCode.NOT_FOUND)
    if as_json:
        output.emit({**_sent_fields(sent), "command": command_fields(command)})
    else:
        output.say(end_text(command, wait))
    if not command.has_ended or command.outcome is None:
        return ExitCode.UNDER_WAY
    return EXITS[command.outcome]


def end_text(command: Command, wait: timedelta) -> str:
    """What became of a command, in one line."""
    from remuda.cli.devices.looking import value_text

    if not command.has_ended or command.outcome is None:
        return f"still {command.status} after {span(wait)}; `remuda devices show {command.id}` tells more"
    took = span(command.status_since - command.started_at)
    words = {
        Outcome.EXECUTED: "executed",
        Outcome.REFUSED: "refused by the device",
        Outcome.NOT_EXECUTED: "not executed",
        Outcome.UNKNOWN: "unknown: it may have been carried out, or not",
    }[command.outcome]
    why = f" ({command.reason})" if command.reason is not None else ""
    answer = command.response.data if command.response is not None else None
    told = "" if answer is None else f": {output.printable(value_text(answer))}"
    return f"{words}{why} after {took}{told}"


# -- many


async def _send_lines(where: Where, usual: Ask, file: str, by_gateway: bool | None, *, as_json: bool) -> None:
    """All lines are checked before the first is sent, so that a mistake in the last one sends nothing."""
    lines = read_bytes(file).splitlines()
    async with opened_fleet(where, create=True, lanes_by_gateway=by_gateway) as fleet:
        new = _checked(fleet, lines, usual, file)
        with output.progress("sending", len(new)) as advance:
            sent = await _send_in_chunks(fleet, new, advance)
    added = sum(each.is_new for each in sent)
    superseded = sum(len(each.superseded) for each in sent)
    if as_json:
        output.emit({"sent": added, "joined": len(sent) - added, "commands": [_sent_fields(s) for s in sent]})
        return
    more = "".join(
        f", {count:,} {what}"
        for count, what in ((len(sent) - added, "joined others that wait"), (superseded, "superseded"))
        if count
    )
    output.say(f"sent {output.plural(added, 'command')}{more}")


def _checked(fleet: Fleet, lines: list[bytes], usual: Ask, file: str) -> list[NewCommand]:
    from remuda.cli.devices.asking import new_command, on_top_of, read_line
    from remuda.devices.sending import InvalidCommandError, make_command

    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            new = new_command(on_top_of(read_line(line), usual))
            make_command(
                new,
                command_id="-",
                now=fleet.store.now(),
                codecs=fleet.codecs,
                by_gateway=fleet.lanes_by_gateway,
            )
        except (ConfigurationError, InvalidCommandError) as error:
            raise ConfigurationError(f"line {number} of {file}: {error}; nothing was sent") from error
        found.append(new)
    return found


async def _send_in_chunks(fleet: Fleet, new: list[NewCommand], advance: Callable[[int], None]) -> list[Sent]:
    sent: list[Sent] = []
    remaining = iter(new)
    try:
        while chunk := list(islice(remaining, CHUNK)):
            sent += await fleet.send_many(chunk)
            advance(len(chunk))
    except BaseException:
        output.note(f"{output.plural(len(sent), 'command')} had been sent by then: the first lines of it")
        raise
    return sent
