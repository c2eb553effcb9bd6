"""The commands put together, and what holds for all of them."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from remuda import __version__
from remuda.cli import (
    adding,
    bench,
    dlq,
    doctor,
    events,
    jobs,
    limits,
    queues,
    repeatable,
    schema,
    watch,
    work,
)
from remuda.cli.devices.app import app as devices
from remuda.cli.exits import MEANINGS, Traces
from remuda.cli.lake.app import app as lake

_CODES = "\n".join(f"{code.value}  {meaning}" for code, meaning in MEANINGS.items())

app = typer.Typer(
    name="remuda",
    no_args_is_help=True,
    # Frames and colours are for a terminal.
    rich_markup_mode="rich" if sys.stdout.isatty() else None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    epilog=f"Exit codes:\n\n\b\n{_CODES}",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"remuda {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and end.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", envvar="REMUDA_DEBUG", help="Show the trace of an error.")
    ] = False,
) -> None:
    """Queues of jobs: set up, add, work, look, and bring dead letters back. And commands to devices.

    Every command that touches a store takes --url, or the variable REMUDA_URL.
    """
    Traces.shown = debug


app.command()(schema.init)
app.command()(schema.migrate)
app.command()(work.worker)
app.command()(adding.add)
app.command()(queues.inspect)
app.command()(watch.watch)
app.command()(events.events)
app.add_typer(jobs.app, name="jobs", help="Single jobs: list, show, log, cancel, expire, try again.")
app.add_typer(dlq.app, name="dlq", help="Dead letters: peek, replay, drop, export.")
app.add_typer(repeatable.app, name="repeatable", help="Repeatable jobs: list, add, remove, run now.")
app.command()(queues.pause)
app.command()(queues.resume)
app.command()(limits.limit)
app.command()(queues.drain)
app.command()(queues.purge)
app.command()(queues.obliterate)
app.add_typer(devices, name="devices", help="Commands to devices: send, follow, operate, simulate.")
app.add_typer(
    lake,
    name="lake",
    help="The lake: every transition in tables, and answers from them.\n\n"
    "Begin with `remuda lake ingest`, which fills a folder from the store of --url; then `report` shows it "
    "all, `triage` what dies and what to do, `audit` whether anything is missing. It needs "
    "pip install 'remuda[lake]'; Spark and Java come with it.",
    short_help="The lake: every transition in tables, and answers from them.",
)
app.command()(bench.bench)
app.command()(doctor.doctor)


def run() -> None:
    """The command line of this process."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot write is no error
    app(prog_name="remuda")
