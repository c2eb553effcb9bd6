"""`generate`: a lake of realistic records, to try the rest out, with faults whose number is known."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remuda.cli import output
from remuda.cli.exits import ExitCode, fail, told_in_one_line
from remuda.cli.lake.options import (
    DEFAULT_LAKE,
    DEFAULT_SOURCE,
    LakePath,
    Master,
    Memory,
    Remote,
    Source,
    SparkWhere,
    made_lake,
    opened_spark,
)
from remuda.cli.options import DURATION, AsJson, duration

if TYPE_CHECKING:
    from remuda.lake.place import Lake


def generate(
    transitions: Annotated[
        int, typer.Option("--transitions", "-n", min=1_000, metavar="N", help="About how many records.")
    ] = 100_000,
    days: Annotated[
        timedelta,
        typer.Option("--span", parser=duration, metavar=DURATION, help="The time they are made in."),
    ] = "7d",  # type: ignore[assignment]  # Typer parses the default as well
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Another one gives other records.")] = 0,
    faults: Annotated[
        list[str] | None,
        typer.Option(
            "--fault",
            metavar="KIND=N",
            help="Plant so many: illegal_move, after_end, broken_chain, clock_backwards, duplicate, gap, "
            "stopped. May be given again.",
        ),
    ] = None,
    build: Annotated[
        bool, typer.Option("--build/--no-build", help="Build the other tables afterwards.")
    ] = True,
    lake: LakePath = DEFAULT_LAKE,
    source: Source = DEFAULT_SOURCE,
    master: Master = None,
    remote: Remote = None,
    memory: Memory = None,
    as_json: AsJson = False,
) -> None:
    """Make a lake of realistic records, to try things out.

    As if a week of jobs and commands had been ingested. The place must not hold a lake yet. Says how many
    faults of each kind are in it.
    """
    with told_in_one_line():
        place = made_lake(lake)
        if place.transitions.exists():
            fail(f"there is a lake at {place.root.uri} already: nothing was made", ExitCode.USAGE)
        wish = {
            "transitions": transitions,
            "seed": seed,
            "span": days,
            "start": datetime.now(UTC).replace(microsecond=0) - days,
            "source": source,
            "batch": 1,
        }
        planted = _faults(faults or [])
        with opened_spark(SparkWhere(master, remote, memory)) as spark:
            with output.waiting("generating …"):
                rows = _made(place, spark, {**wish, "faults": planted})
            if build:
                _build(place, spark, source)
    if as_json:
        output.emit({"place": place.root.uri, "transitions": rows, "faults": planted.counts})
        return
    output.say(f"{output.plural(rows, 'transition')} in {place.root.uri}")
    for kind, count in planted.counts.items():
        if count:
            output.say(f"  planted {kind}: {count:,}")


def _faults(texts: list[str]) -> Any:
    from remuda.lake.generate import Faults

    known = set(Faults.__struct_fields__)
    counts: dict[str, int] = {}
    for text in texts:
        kind, _, number = text.partition("=")
        if kind not in known or not number.isdigit():
            fail(f"--fault wants KIND=N with one of {', '.join(sorted(known))}, not {text!r}", ExitCode.USAGE)
        counts[kind] = int(number)
    return Faults(**counts)


def _made(lake: Lake, spark: Any, wish: dict[str, Any]) -> int:
    from remuda.lake.generate import generate as make
    from remuda.lake.ingest import BATCHES

    table = lake.transitions
    looked_at = table.version()
    files = table.write(make(spark, **wish))
    table.commit(files, progress={BATCHES: 1}, since=looked_at, what="generated")
    return sum(each.records for each in files)


def _build(lake: Lake, spark: Any, source: str) -> None:
    from remuda.lake.build import build
    from remuda.lake.deaths import capture_deaths

    with output.waiting("building …"):
        capture_deaths(lake, spark, None, source=source)
        build(lake, spark, now=datetime.now(UTC))
