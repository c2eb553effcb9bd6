"""`repeatable list|add|remove|run`: the recipes from which workers make jobs at their times."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remuda.cli import output
from remuda.cli.asking import confirm
from remuda.cli.exits import ExitCode, fail, run
from remuda.cli.opening import opened_queue
from remuda.cli.options import DURATION, TIME, AsJson, QueueName, Url, Yes, duration, instant
from remuda.cli.output import Column
from remuda.cli.reading import read_payload
from remuda.cli.times import local, relative, span
from remuda.schedule import Missed

if TYPE_CHECKING:
    from remuda.schedule import Repeat, Repeating

app = typer.Typer(no_args_is_help=True)

Key = Annotated[
    str, typer.Argument(metavar="KEY", help="The spec's key, as `list` shows it.", show_default=False)
]

_COLUMNS = (
    Column("key"),
    Column("when", flexible=True),
    Column("next run"),
    Column("made", right=True),
    Column("until"),
)


@app.command("list")
def list_specs(
    queue: QueueName,
    url: Url = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="At most so many.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List the repeatable jobs of a queue, the next one first."""
    run(lambda: _list(queue, url, limit, as_json=as_json))


async def _list(name: str, url: str | None, limit: int, *, as_json: bool) -> None:
    async with opened_queue(name, url) as queue:
        found = await queue.repeats.list(limit=limit)
        now = queue.store.now()
    if as_json:
        output.emit({"queue": name, "repeatables": [spec_fields(each) for each in found]})
    elif found:
        output.table(_COLUMNS, [_row(each, now) for each in found])
    else:
        output.note("no repeatable jobs")


def _row(each: Repeating, now: datetime) -> output.Cells:
    spec = each.spec
    return (
        output.printable(each.key),
        output.printable(when_text(spec)),
        f"{relative(each.next_at, now)} ({local(each.next_at)})",
        str(each.fired) if spec.limit is None else f"{each.fired} of {spec.limit}",
        "" if spec.end is None else local(spec.end),
    )


def when_text(spec: Repeat) -> str:
    """When it runs, for people."""
    when = f"every {span(spec.every)}" if spec.every is not None else f"{spec.cron} ({spec.zone})"
    if spec.missed is Missed.SKIP:
        return when
    return f"{when}, missed: {spec.missed}" + (f" {spec.most}" if spec.most else "")


def spec_fields(each: Repeating) -> dict[str, Any]:
    """What `--json` prints of a spec."""
    spec = each.spec
    return {
        "key": each.key,
        "name": spec.name,
        "every_seconds": None if spec.every is None else spec.every.total_seconds(),
        "cron": spec.cron,
        "zone": spec.zone if spec.cron is not None else None,
        "next_at": each.next_at,
        "fired": each.fired,
        "limit": spec.limit,
        "start": spec.start,
        "end": spec.end,
        "missed": spec.missed,
        "most": spec.most,
    }


@app.command()
def add(
    queue: QueueName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of its jobs.", show_default=False)],
    url: Url = None,
    every: Annotated[
        timedelta | None,
        typer.Option("--every", parser=duration, metavar=DURATION, help="So often: 30s, 5m, 1h."),
    ] = None,
    cron: Annotated[
        str | None,
        typer.Option(
            "--cron",
            metavar="PATTERN",
            help="By the calendar: minute hour day month weekday, or six fields with seconds first.",
        ),
    ] = None,
    zone: Annotated[
        str, typer.Option("--tz", metavar="ZONE", help="The pattern's time zone, such as Europe/Berlin.")
    ] = "UTC",
    payload: Annotated[
        str | None,
        typer.Option("--payload", "-p", metavar="JSON", help="What each job carries; - for stdin."),
    ] = None,
    payload_file: Annotated[
        str | None, typer.Option("--payload-file", metavar="FILE", help="The same from a file.")
    ] = None,
    start: Annotated[
        Any, typer.Option("--start", parser=instant, metavar=TIME, help="Not before.", show_default=False)
    ] = None,
    end: Annotated[
        Any, typer.Option("--end", parser=instant, metavar=TIME, help="Not after.", show_default=False)
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, metavar="N", help="So many jobs in all, then it is removed."),
    ] = None,
    missed: Annotated[
        Missed,
        typer.Option(
            "--missed",
            metavar="RULE",
            help="For times that pass while no worker runs: skip, fire-once, fire-all.",
        ),
    ] = Missed.SKIP,
    most: Annotated[
        int | None,
        typer.Option("--most", min=1, metavar="N", help="With fire-all: make up for the last N at most."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="A key of your own, instead of NAME::PATTERN."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add a repeatable job, or change the one of the same key. Prints the key.

    \b
    remuda repeatable add reports daily --cron "0 9 * * MON-FRI" --tz Europe/Berlin
    remuda repeatable add health ping --every 30s --payload '{"deep": true}'
    """
    options = {
        "every": every,
        "cron": cron,
        "zone": zone,
        "start": start,
        "end": end,
        "limit": limit,
        "missed": missed,
        "most": most,
        "key": key,
    }
    value = read_payload(payload, payload_file)
    run(lambda: _add(queue, name, value, options, url, as_json=as_json))


async def _add(
    queue_name: str, name: str, payload: Any, options: dict[str, Any], url: str | None, *, as_json: bool
) -> None:
    async with opened_queue(queue_name, url) as queue:
        put = await queue.repeats.put(name, payload, **options)
        now = queue.store.now()
    if as_json:
        output.emit(spec_fields(put))
        return
    output.say(put.key)
    output.note(f"{when_text(put.spec)}; next {relative(put.next_at, now)} ({local(put.next_at)})")


@app.command()
def remove(queue: QueueName, key: Key, url: Url = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove a repeatable job. Jobs that it has made stay as they are."""
    run(lambda: _remove(queue, key, url, yes=yes, as_json=as_json))


async def _remove(name: str, key: str, url: str | None, *, yes: bool, as_json: bool) -> None:
    async with opened_queue(name, url) as queue:
        found = await queue.repeats.get(key)
        if found is None:
            fail(f"{name} has no repeatable job {key!r}", ExitCode.NOT_FOUND)
        confirm(f"Remove {key} ({when_text(found.spec)}) from {name}?", yes=yes)
        removed = await queue.repeats.remove(key)
    if as_json:
        output.emit({"queue": name, "key": key, "removed": removed})
    else:
        output.say(f"removed {key}")


@app.command("run")
def run_now(queue: QueueName, key: Key, url: Url = None, as_json: AsJson = False) -> None:
    """Make a job of it now, beside its times. Prints the job's id."""
    run(lambda: _run(queue, key, url, as_json=as_json))


async def _run(name: str, key: str, url: str | None, *, as_json: bool) -> None:
    async with opened_queue(name, url) as queue:
        if await queue.repeats.get(key) is None:
            fail(f"{name} has no repeatable job {key!r}", ExitCode.NOT_FOUND)
        job_id = await queue.repeats.run(key)
    if as_json:
        output.emit({"queue": name, "key": key, "id": job_id})
    else:
        output.say(job_id)
