"""`campaign`: one command for many devices, in waves, at a rate, stopped when too many fail."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remuda.cli import output
from remuda.cli.asking import confirm
from remuda.cli.exits import ExitCode, fail, run, told_in_one_line
from remuda.cli.lake.options import (
    DEFAULT_LAKE,
    LakePath,
    Master,
    Memory,
    Remote,
    SparkWhere,
    made_lake,
    opened_spark,
)
from remuda.cli.opening import check_there, given
from remuda.cli.options import DURATION, AsJson, Url, Yes, duration
from remuda.cli.output import Column
from remuda.cli.times import local
from remuda.devices.command import CommandType

if TYPE_CHECKING:
    from remuda.lake.campaign import Status
    from remuda.lake.place import Lake

app = typer.Typer(no_args_is_help=True)

_LOOK_AGAIN = timedelta(seconds=2)

CampaignName = Annotated[str, typer.Argument(metavar="NAME", help="The campaign's name.", show_default=False)]


@app.command()
def start(
    name: CampaignName,
    type_: Annotated[CommandType, typer.Argument(metavar="TYPE", help="The command, such as READ_CREDIT.")],
    devices: Annotated[
        Path | None,
        typer.Option("--devices", metavar="FILE", help="A CSV or Parquet file: device, protocol, gateway, …"),
    ] = None,
    sql: Annotated[
        str | None,
        typer.Option("--sql", metavar="QUERY", help="Instead: a query over the lake that gives them."),
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", metavar="JSON", help="The same data for all whose row has none.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="N/UNIT", help="At most so many: 10/s, 100/m, 1000/h.")
    ] = None,
    waves: Annotated[
        str, typer.Option("--waves", metavar="LIST", help="Numbers, shares or rest, such as 10,5%,rest.")
    ] = "rest",
    proceed: Annotated[
        float,
        typer.Option("--proceed", metavar="SHARE", help="The next wave begins when so many have ended."),
    ] = 0.9,
    abort_at: Annotated[
        float, typer.Option("--abort-at", metavar="SHARE", help="Aborted when so many of them have failed …")
    ] = 0.2,
    abort_after: Annotated[
        int, typer.Option("--abort-after", min=1, metavar="N", help="… and at least this many have ended.")
    ] = 10,
    expires_in: Annotated[
        timedelta | None,
        typer.Option("--expires-in", parser=duration, metavar=DURATION, help="Not sent any more after this."),
    ] = None,
    fleet: Annotated[str, typer.Option("--fleet", metavar="NAME", help="The fleet.")] = "devices",
    lake: LakePath = DEFAULT_LAKE,
    master: Master = None,
    remote: Remote = None,
    memory: Memory = None,
    as_json: AsJson = False,
) -> None:
    """Check a campaign and keep it; `campaign run` sends it.

    \b
    remuda lake campaign start clock-2030 SET_TIME --devices meters.csv \\
      --waves 10,5%,rest --rate 100/m
    """
    with told_in_one_line():
        from remuda.lake.campaign import Campaign, parse_rate
        from remuda.lake.campaign import start as begin

        if (devices is None) == (sql is None):
            fail("say --devices FILE or --sql QUERY", ExitCode.USAGE)
        place = made_lake(lake)
        campaign = Campaign(
            name=name,
            type=type_,
            data=_data(data),
            rate=None if rate is None else parse_rate(rate),
            waves=tuple(each.strip() for each in waves.split(",")),
            proceed_share=proceed,
            abort_share=abort_at,
            abort_after=abort_after,
            expires_in=expires_in,
            fleet=fleet,
        )
        rows = _rows(place, devices, sql, SparkWhere(master, remote, memory))
        begun = begin(place, campaign, rows, now=datetime.now(UTC))
    if as_json:
        output.emit({"name": begun.name, "devices": begun.devices, "waves": begun.waves})
    else:
        output.say(f"{begun.name}: {output.plural(begun.devices, 'device')}, waves up to {begun.waves}")
        output.note(f"nothing was sent yet: remuda lake campaign run {begun.name}")


def _data(text: str | None) -> Any:
    import msgspec

    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text  # a token, or a word


def _rows(lake: Lake, devices: Path | None, sql: str | None, where: SparkWhere) -> Any:
    from remuda.lake.campaign import rows_from_file, rows_from_sql

    if devices is not None:
        return rows_from_file(devices)
    lake.check_there()
    with opened_spark(where) as spark:
        return rows_from_sql(lake, spark, sql or "")


@app.command("run")
def run_campaign(
    name: CampaignName,
    url: Url = None,
    lake: LakePath = DEFAULT_LAKE,
    once: Annotated[bool, typer.Option("--once", help="One step, and end.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Send a campaign until every command has ended.

    It may be stopped, killed too, and run again. An engine (`remuda devices run`) has to be at work. Exit
    code 1 when it was aborted. With --json, one line for each step.
    """
    with told_in_one_line():
        from remuda.lake.campaign import load_campaign

        check_there(given(url))
        place = made_lake(lake)
        begun = load_campaign(place, name)
    confirm(f"Send {begun.campaign.type} to {output.plural(begun.devices, 'device')}?", yes=yes)
    last = run(lambda: _run(place, name, given(url), begun.campaign.fleet, once=once, as_json=as_json))
    if not as_json:
        _show(last)
    if last.state == "aborted":
        raise typer.Exit(ExitCode.ERROR)


async def _run(lake: Lake, name: str, url: str, fleet_name: str, *, once: bool, as_json: bool) -> Status:
    import asyncio

    from remuda.devices.fleet import Fleet
    from remuda.lake.campaign import advance

    async with Fleet(url, name=fleet_name) as fleet:
        with output.progress(name, None) as tick:
            while True:
                now = datetime.now(UTC)
                status = await advance(lake, name, fleet, now=now)
                tick(status.sent_now)
                if as_json and (once or status.sent_now or status.is_over):
                    output.emit_line(_fields(status))
                if once or status.is_over:
                    return status
                if not status.sent_now:
                    wait = _LOOK_AGAIN if status.next_at is None else min(_LOOK_AGAIN, status.next_at - now)
                    await asyncio.sleep(max(0.05, wait.total_seconds()))


@app.command()
def status(name: CampaignName, lake: LakePath = DEFAULT_LAKE, as_json: AsJson = False) -> None:
    """Show how a campaign stands."""
    with told_in_one_line():
        from remuda.lake.campaign import status as look

        found = look(made_lake(lake), name)
    if as_json:
        output.emit(_fields(found))
    else:
        _show(found)


@app.command("list")
def list_all(lake: LakePath = DEFAULT_LAKE, as_json: AsJson = False) -> None:
    """List the campaigns, newest first."""
    with told_in_one_line():
        from remuda.lake.campaign import list_campaigns
        from remuda.lake.campaign import status as look

        place = made_lake(lake)
        found = [(each, look(place, each.name)) for each in list_campaigns(place)]
    if as_json:
        output.emit([{"begun_at": begun.begun_at, **_fields(each)} for begun, each in found])
        return
    columns = (
        Column("name"),
        Column("begun"),
        Column("state"),
        Column("sent", right=True),
        Column("of", right=True),
    )
    output.table(
        columns,
        [
            (each.name, local(begun.begun_at), each.state, f"{each.counts.sent:,}", f"{each.counts.total:,}")
            for begun, each in found
        ],
    )


@app.command()
def pause(name: CampaignName, lake: LakePath = DEFAULT_LAKE, as_json: AsJson = False) -> None:
    """Send nothing more until it is resumed; what was sent goes its way."""
    with told_in_one_line():
        from remuda.lake.campaign import pause as stop

        stop(made_lake(lake), name, now=datetime.now(UTC), why="paused by an operator")
    _tell(lake, name, f"{name} is paused", as_json=as_json)


@app.command()
def resume(name: CampaignName, lake: LakePath = DEFAULT_LAKE, as_json: AsJson = False) -> None:
    """End a pause."""
    with told_in_one_line():
        from remuda.lake.campaign import resume as go_on

        go_on(made_lake(lake), name, now=datetime.now(UTC))
    words = f"{name} goes on with `remuda lake campaign run {name}`, where that does not run already"
    _tell(lake, name, words, as_json=as_json)


@app.command()
def abort(
    name: CampaignName, lake: LakePath = DEFAULT_LAKE, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Send nothing more, and cancel what is under way. It is final.

    The next step of `campaign run` cancels what has not reached its device.
    """
    confirm(f"Abort the campaign {name}?", yes=yes)
    with told_in_one_line():
        from remuda.lake.campaign import abort as stop

        stop(made_lake(lake), name, now=datetime.now(UTC), why="aborted by an operator")
    _tell(lake, name, f"{name} is aborted", as_json=as_json)
    output.note(f"`remuda lake campaign run {name}` cancels what is under way")


def _tell(lake: str, name: str, words: str, *, as_json: bool) -> None:
    """What was done, in words, or as how the campaign stands now."""
    from remuda.lake.campaign import status as look

    if as_json:
        output.emit(_fields(look(made_lake(lake), name)))
    else:
        output.say(words)


def _fields(found: Status) -> dict[str, object]:
    import msgspec

    plain: dict[str, object] = msgspec.to_builtins(found)
    return {**plain, "is_over": found.is_over, "failed_share": found.counts.failed_share}


def _show(found: Status) -> None:
    counts = found.counts
    failed = ", ".join(f"{count:,} {why}" for why, count in counts.failed.items())
    facts: list[tuple[str | output.Cell, str | output.Cell]] = [
        ("campaign", found.name),
        ("state", f"{found.state}" + (f": {found.why}" if found.why else "")),
        ("wave", f"{found.wave} of {len(found.waves)}"),
        ("sent", f"{counts.sent:,} of {counts.total:,}"),
        ("under way", f"{counts.under_way:,}"),
        ("executed", f"{counts.executed:,}"),
        ("refused", f"{counts.refused:,}"),
        ("unknown", f"{counts.unknown:,}"),
        ("called off", f"{counts.called_off:,}"),
        ("failed", failed or "0"),
    ]
    output.facts(facts)
