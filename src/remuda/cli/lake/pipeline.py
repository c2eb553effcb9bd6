"""`ingest`, `build`, `status`, `upkeep`: the lake is filled, brought up to date, looked at and kept tidy."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remuda.cli import output
from remuda.cli.asking import confirm
from remuda.cli.exits import told_in_one_line
from remuda.cli.lake.options import (
    DEFAULT_LAKE,
    DEFAULT_SOURCE,
    LakePath,
    Master,
    Memory,
    Remote,
    Source,
    SparkWhere,
    existing_lake,
    made_lake,
    opened_spark,
)
from remuda.cli.opening import check_there, given
from remuda.cli.options import DURATION, AsJson, Url, Yes, duration
from remuda.cli.output import Cell, Column
from remuda.cli.times import span
from remuda.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from remuda.lake.build import Built
    from remuda.lake.ingest import Round
    from remuda.lake.place import Lake
    from remuda.lake.status import LakeStatus


def ingest(
    url: Url = None,
    lake: LakePath = DEFAULT_LAKE,
    source: Source = DEFAULT_SOURCE,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            metavar="QUEUE",
            help="Only this queue (or devices:FLEET). May be given again. Without it all of the store.",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until SIGINT or SIGTERM.")
    ] = False,
    every: Annotated[
        timedelta,
        typer.Option("--every", parser=duration, metavar=DURATION, help="With --follow: time between looks."),
    ] = "10s",  # type: ignore[assignment]  # Typer parses the default as well
    then_build: Annotated[
        bool, typer.Option("--build/--no-build", help="Build the other tables afterwards.")
    ] = True,
    trim: Annotated[
        bool, typer.Option("--trim", help="Forget in the store what the lake has now; never anything else.")
    ] = False,
    pass_over: Annotated[
        bool,
        typer.Option("--pass-over-unreadable", help="Leave out entries that cannot be read: a gap shows."),
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=1, metavar="N", help="At most so many transitions to a round.")
    ] = 4_000_000,
    master: Master = None,
    remote: Remote = None,
    memory: Memory = None,
    as_json: AsJson = False,
) -> None:
    """Carry new transitions over from a store, and build the tables.

    It can be stopped at any moment, killed too, and goes on where it was: every transition is in the lake
    exactly once. With --json, one line for each round.
    """
    with told_in_one_line():
        check_there(given(url))
        place = made_lake(lake)
        with opened_spark(SparkWhere(master, remote, memory)) as spark, _stoppable() as stop:
            while True:
                _carry(
                    place,
                    spark,
                    given(url),
                    {"source": source, "trails": queue, "limit": limit, "pass_over": pass_over},
                    stop,
                    as_json=as_json,
                )
                if then_build and not stop.is_set():
                    _build(place, spark, as_json=as_json)
                if trim:
                    _trim(place, given(url), source, queue, as_json=as_json)
                if not follow or stop.wait(every.total_seconds()):
                    break


@contextlib.contextmanager
def _stoppable() -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets; the round under way is finished first."""
    stop = threading.Event()
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}

    def told(number: int, _frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt  # the second one: at once
        output.note("stopping after this round; once more stops at once")
        stop.set()

    for each in before:
        signal.signal(each, told)
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _carry(
    lake: Lake, spark: SparkSession, url: str, how: dict[str, Any], stop: threading.Event, *, as_json: bool
) -> None:
    """Rounds until nothing is left that was there, with the errors of each store as they are."""
    from remuda.lake.deaths import capture_deaths
    from remuda.lake.delta import LakeConflictError
    from remuda.lake.ingest import ingest_round

    carried = 0
    with output.progress("ingesting", None) as advance:
        while not stop.is_set():
            try:
                done = ingest_round(lake, spark, url, **how)
            except LakeConflictError as conflict:
                output.note(f"remuda: {conflict}")
                continue
            if done is None:
                break
            # The store may lose a dead letter at any time (a replay): its error is fetched at once.
            capture_deaths(lake, spark, url, source=how["source"])
            carried += done.transitions
            advance(done.transitions)
            _tell_round(done, as_json=as_json)
            if not done.behind:
                break
    if not carried and not as_json:
        output.note("nothing new")


def _tell_round(done: Round, *, as_json: bool) -> None:
    if as_json:
        output.emit_line({"round": done})
        return
    rate = done.transitions / done.seconds if done.seconds else 0
    behind = f", {done.behind:,} to go" if done.behind else ""
    output.say(
        f"batch {done.batch}: {output.plural(done.transitions, 'transition')} of "
        f"{output.plural(len(done.trails), 'trail')} in {done.seconds:.1f} s ({rate:,.0f}/s){behind}"
    )


def _trim(lake: Lake, url: str, source: str, trails: list[str] | None, *, as_json: bool) -> None:
    from remuda.lake.ingest import trim as forget

    gone = forget(lake, url, source=source, trails=trails)
    if as_json:
        output.emit_line({"trimmed": gone})
    elif total := sum(gone.values()):
        output.say(f"trimmed {output.plural(total, 'transition')} in the store")


def build(
    lake: LakePath = DEFAULT_LAKE,
    master: Master = None,
    remote: Remote = None,
    memory: Memory = None,
    as_json: AsJson = False,
) -> None:
    """Bring histories, measures and anomalies up to what was ingested."""
    with told_in_one_line():
        place = existing_lake(lake)
        with opened_spark(SparkWhere(master, remote, memory)) as spark:
            _build(place, spark, as_json=as_json)


def _build(lake: Lake, spark: SparkSession, *, as_json: bool) -> Built:
    from remuda.lake.build import build as make

    with output.waiting("building …"):
        made = make(lake, spark, now=datetime.now(UTC))
    if as_json:
        output.emit_line({"build": made})
    elif made.histories or made.days:
        output.say(
            f"built to batch {made.batch}: {output.plural(made.histories, 'history', 'histories')} written, "
            f"measures of {output.plural(len(made.days), 'day')}, "
            f"{output.plural(made.anomalies, 'new anomaly', 'new anomalies')}, in {made.seconds:.1f} s"
        )
    return made


# -- looking and tidying, for which no Spark is needed


def status(
    lake: LakePath = DEFAULT_LAKE,
    url: Url = None,
    source: Source = DEFAULT_SOURCE,
    as_json: AsJson = False,
) -> None:
    """Show the tables, and how far they are behind the store of --url."""
    with told_in_one_line():
        from remuda.lake.status import status as look

        if url:
            check_there(url)
        found = look(existing_lake(lake), url=url, source=source)
        if as_json:
            output.emit(found)
        else:
            _show_status(found)


_TABLE_COLUMNS = (
    Column("table"),
    Column("rows", right=True),
    Column("files", right=True),
    Column("size", right=True),
    Column("built to", right=True),
    Column("from"),
    Column("to"),
)
_TRAIL_COLUMNS = (
    Column("trail"),
    Column("ingested", right=True),
    Column("recorded", right=True),
    Column("behind", right=True),
    Column("lost", right=True),
)


def _show_status(found: LakeStatus) -> None:
    output.facts([("lake", found.place), ("batches", f"{found.batches:,}")])
    output.say()
    output.table(
        _TABLE_COLUMNS,
        [
            (
                each.table,
                f"{each.rows:,}",
                f"{each.files:,}",
                output.size(each.bytes),
                Cell(str(each.built), "yellow" if each.built < found.batches else ""),
                each.oldest or "",
                each.newest or "",
            )
            for each in found.tables
        ],
    )
    if found.trails:
        output.say()
        output.table(
            _TRAIL_COLUMNS,
            [
                (
                    output.printable(each.trail),
                    f"{each.ingested:,}",
                    f"{each.recorded:,}",
                    Cell(f"{each.behind:,}", "yellow" if each.behind else ""),
                    Cell(f"{each.lost:,}", "red" if each.lost else ""),
                )
                for each in found.trails
            ],
        )


def upkeep(
    lake: LakePath = DEFAULT_LAKE,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep",
            metavar="TABLE=AGE",
            help="Let days that are older expire, such as transitions=90d. May be given again.",
        ),
    ] = None,
    grace: Annotated[
        timedelta,
        typer.Option(
            "--grace",
            parser=duration,
            metavar=DURATION,
            help="How long files that no longer count are left to readers that may be at work on them.",
        ),
    ] = "7d",  # type: ignore[assignment]  # as above
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Join small files, let old days expire, sweep the rest.

    Nothing expires without --keep, and what expires is gone for good: it asks before.

    \b
    remuda lake upkeep --keep transitions=90d --keep histories=730d
    """
    with told_in_one_line():
        from remuda.lake.upkeep import check_rules
        from remuda.lake.upkeep import upkeep as tidy

        place, rules = existing_lake(lake), _rules(keep or [])
        check_rules(place, rules, grace)
        if rules:
            older = ", ".join(f"{table} older than {span(age)}" for table, age in rules.items())
            confirm(f"Let {older} expire for good?", yes=yes)
        done = tidy(place, now=datetime.now(UTC), keep=rules, grace=grace)
        if as_json:
            output.emit(done)
            return
        for each in done:
            output.say(
                f"{each.table}: {each.files_before:,} files now {each.files_after:,} "
                f"({output.plural(each.days_compacted, 'day')} put together), "
                f"{output.plural(each.days_expired, 'day')} expired "
                f"({output.plural(each.rows_expired, 'row')}), {each.files_swept:,} old files swept away"
            )


def _rules(texts: list[str]) -> dict[str, timedelta]:
    from remuda.durations import parse_duration

    rules = {}
    for text in texts:
        table, given_age, age = text.partition("=")
        if not given_age:
            raise ConfigurationError(f"--keep wants TABLE=AGE, such as transitions=90d, not {text!r}")
        try:
            rules[table] = parse_duration(age)
        except ValueError as error:
            raise ConfigurationError(f"--keep {text}: {error}") from error
    return rules
