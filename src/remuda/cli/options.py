"""The arguments and options that several commands share, each written once."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from remuda.cli.completing import queue_names
from remuda.cli.times import Moment, parse_instant, parse_moment
from remuda.durations import parse_duration
from remuda.lifecycle import Reason

DURATION = "DURATION"
TIME = "TIME"


def duration(text: str) -> timedelta:
    """For Typer, which wants errors of its own kind."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def instant(text: str) -> object:
    """As above."""
    try:
        return parse_instant(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def moment(text: str) -> Moment:
    """As above."""
    try:
        return parse_moment(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


QueueName = Annotated[
    str,
    typer.Argument(metavar="QUEUE", help="The queue's name.", show_default=False, autocompletion=queue_names),
]

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        "-u",
        envvar="REMUDA_URL",
        metavar="URL",
        help="The store: sqlite:///app.db, postgresql://…, mysql://…, redis://…, valkey+embedded:///data",
        show_default=False,
    ),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, with fields that stay.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")]

# Which dead letters. Every condition that is given must hold.
ByReason = Annotated[
    Reason | None,
    typer.Option(
        "--reason",
        metavar="REASON",
        help=f"Only those that died of this: {', '.join(Reason)}.",
        case_sensitive=False,
    ),
]
ByName = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Only jobs of this name.")]
Since = Annotated[
    Moment | None,
    typer.Option(
        "--since", parser=moment, metavar=TIME, help="Only those that died since: 2h, 1d, or an ISO time."
    ),
]
Until = Annotated[
    Moment | None,
    typer.Option("--until", parser=moment, metavar=TIME, help="Only those that died until then."),
]
ByIds = Annotated[
    list[str] | None, typer.Option("--id", metavar="ID", help="Only this one. May be given again.")
]
