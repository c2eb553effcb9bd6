"""`audit`, `triage`, `whatif`, `report`: what the tables say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    existing_lake,
    made_lake,
    opened_spark,
)
from remuda.cli.opening import check_there, given
from remuda.cli.options import TIME, AsJson, Url, moment
from remuda.cli.output import Cell, Column
from remuda.cli.times import Moment, local, relative, span

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from remuda.lake.audit import Audit
    from remuda.lake.place import Lake
    from remuda.lake.triage import Group
    from remuda.lake.whatif import Side, WhatIf

_SPARKS = "▁▂▃▄▅▆▇█"
_SHOWN = 20

Since = Annotated[
    Moment | None,
    typer.Option("--since", parser=moment, metavar=TIME, help="Only what ended since: 7d, or an ISO time."),
]
Until = Annotated[
    Moment | None, typer.Option("--until", parser=moment, metavar=TIME, help="Only what ended until then.")
]
QueueFilter = Annotated[
    str | None,
    typer.Option("--queue", metavar="QUEUE", help="Only this queue (or devices:FLEET).", show_default=False),
]


# -- audit


def audit(
    url: Url = None,
    lake: LakePath = DEFAULT_LAKE,
    source: Source = DEFAULT_SOURCE,
    master: Master = None,
    remote: Remote = None,
    memory: Memory = None,
    as_json: AsJson = False,
) -> None:
    """Check that everything adds up, or name what is missing.

    For each queue: added = delivered + dead + removed + live. Ingests, looks at the store, and ingests
    again, so that what moves meanwhile is not called missing. Exit code 1 when something is found.
    """
    with told_in_one_line():
        check_there(given(url))
        place = made_lake(lake)
        with opened_spark(SparkWhere(master, remote, memory)) as spark, output.waiting("auditing …"):
            found = _audited(place, spark, given(url), source)
        if as_json:
            output.emit({"clean": found.is_clean, **_fields(found)})
        else:
            _show_audit(found)
        if not found.is_clean:
            raise typer.Exit(ExitCode.ERROR)


def _fields(found: Audit) -> dict[str, object]:
    balances = [{**_struct(each), "adds_up": each.adds_up} for each in found.balances]
    return {"queues": balances, "found": found.found, "counts": found.counts}


def _struct(value: object) -> dict[str, object]:
    import msgspec

    plain: dict[str, object] = msgspec.to_builtins(value)
    return plain


def _audited(lake: Lake, spark: SparkSession, url: str, source: str) -> Audit:
    from pyspark.sql import functions as F

    from remuda.lake.audit import audit as compare
    from remuda.lake.audit import look, offsets
    from remuda.lake.build import build
    from remuda.lake.ingest import ingest
    from remuda.lake.sources import register

    register(spark)

    def brought_up() -> None:
        ingest(lake, spark, url, source=source, on_round=lambda _: None)
        build(lake, spark, now=datetime.now(UTC))

    brought_up()
    before = offsets(lake, url, source)
    seen = look(spark, url)
    brought_up()
    own = F.col("source") == source
    return compare(
        spark,
        transitions=lake.transitions.read(spark).where(own),
        histories=lake.histories.read(spark).where(own),
        snapshot=seen,
        before=before,
    )


_BALANCE_COLUMNS = (
    Column("queue"),
    *(
        Column(name, right=True)
        for name in ("added", "unborn", "delivered", "dead", "removed", "live", "in store")
    ),
    Column(""),
)


def _show_audit(found: Audit) -> None:
    from remuda.lake.audit import FINDING_MEANINGS, Finding

    output.table(
        _BALANCE_COLUMNS,
        [
            (
                output.printable(each.queue),
                *(
                    f"{number:,}"
                    for number in (
                        each.added,
                        each.unborn,
                        each.delivered,
                        each.dead,
                        each.removed,
                        each.live,
                        each.in_store,
                    )
                ),
                Cell("adds up", "green") if each.adds_up else Cell("does not add up", "bold red"),
            )
            for each in found.balances
        ],
    )
    for kind, count in sorted(found.counts.items()):
        output.say()
        output.say(f"{kind}: {count:,} ({FINDING_MEANINGS[Finding(kind)]})", "red")
        named = [each for each in found.found if each.finding == kind]
        for each in named[:_SHOWN]:
            states = f"lake {each.lake_state or '—'}, store {each.store_state or '—'}"
            output.say(f"  {output.printable(each.queue)}  {output.printable(each.message)}  {states}")
        if count > _SHOWN:
            output.say(f"  … and {count - _SHOWN:,} more; --json names up to 1,000 of each queue")
    if found.is_clean:
        output.say("nothing is missing", "green")


# -- triage


def triage(
    lake: LakePath = DEFAULT_LAKE,
    queue: QueueFilter = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, metavar="N", help="At most so many faults.")
    ] = 20,
    all_groups: Annotated[
        bool, typer.Option("--all", help="Also faults of which nothing is dead any more.")
    ] = False,
    master: Master = None,
    remote: Remote = None,
    memory: Memory = None,
    as_json: AsJson = False,
) -> None:
    """Show dead letters by fault, with what to do about each.

    For each fault: how many, since when, more or fewer than the day before, and what replays did so far.
    """
    with told_in_one_line():
        from remuda.lake.triage import triage as group

        place = existing_lake(lake)
        now = datetime.now(UTC)
        with opened_spark(SparkWhere(master, remote, memory)) as spark, output.waiting("grouping …"):
            frames = place.frames(spark)
            frames["dead_letters"] = _of_queue(frames["dead_letters"], queue)
            groups = group(frames, now, limit=limit, all_groups=all_groups)
    if as_json:
        output.emit([{**_struct(each), "fixed_share": each.fixed_share} for each in groups])
    elif groups:
        for each in groups:
            _show_group(each, now)
    else:
        output.say("no dead letters", "green")


def _of_queue(frame: DataFrame, queue: str | None) -> DataFrame:
    return frame if queue is None else frame.where(frame["queue"] == queue)


_VERDICT_STYLES = {"replay": "green", "try_few": "green", "nothing": "bright_black", "look": "yellow"}


def _show_group(group: Group, now: datetime) -> None:
    what = f"{group.queue}/{group.name}" if group.name else group.queue
    output.say(
        f"{group.fingerprint}  {output.printable(what)}  {group.reason}: {output.printable(group.fault)}",
        "bold",
    )
    facts: list[tuple[str | Cell, str | Cell]] = [
        (
            "  dead now",
            f"{group.dead_now:,} (deaths {group.count:,}, messages {group.messages:,} in all)",
        ),
        ("  seen", f"{relative(group.first_seen, now)} to {relative(group.last_seen, now)}"),
        (
            "  trend",
            f"{_sparkline(group.history)}  {group.last_day:,} in 24 h, {group.day_before:,} the day before",
        ),
    ]
    if group.fixed_share is not None:
        facts.append(("  replays", f"{group.replayed:,}, of which {group.fixed_share:.0%} were fixed by it"))
    facts.append(("  example", output.printable(group.example)))
    if group.suggestion is not None:
        style = _VERDICT_STYLES.get(group.suggestion.verdict, "red")
        facts.append(("  do", Cell(group.suggestion.words, style)))
        facts += [("  mind", group.suggestion.caution)] if group.suggestion.caution else []
        facts += [("  next", group.suggestion.next)] if group.suggestion.next else []
    output.facts(facts)
    output.say()


def _sparkline(values: list[int]) -> str:
    top = max(values, default=0)
    return "".join(_SPARKS[min(7, value * 8 // (top + 1))] if value else "·" for value in values)


# -- what if


class ModelName(StrEnum):
    ATTEMPT = "attempt"
    TIME = "time"


def whatif(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue (or devices:FLEET).")],
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="POLICY",
            help="For jobs: exponential:initial=2s,cap=1h,max_attempts=8, constant:…, linear:… or none.",
            show_default=False,
        ),
    ] = None,
    timings: Annotated[
        list[str] | None,
        typer.Option(
            "--timing",
            metavar="NAME=TIME",
            help="For commands: device=30s, gateway=5m, … May be given again.",
        ),
    ] = None,
    model: Annotated[
        ModelName,
        typer.Option(
            "--model",
            help="For jobs: an attempt goes as the one of its number went, or as one went about that moment.",
        ),
    ] = ModelName.ATTEMPT,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="For what is drawn by lot.")] = 0,
    since: Since = None,
    until: Until = None,
    lake: LakePath = DEFAULT_LAKE,
    master: Master = None,
    remote: Remote = None,
    memory: Memory = None,
    as_json: AsJson = False,
) -> None:
    """Play records again under another retry policy, or deadlines.

    \b
    remuda lake whatif emails --policy exponential:initial=5s,max_attempts=8
    remuda lake whatif devices:devices --timing device=30s --timing accept=10s
    """
    with told_in_one_line():
        if (policy is None) == (not timings):
            fail("say --policy for jobs, or --timing for commands", ExitCode.USAGE)
        place = existing_lake(lake)
        with opened_spark(SparkWhere(master, remote, memory)) as spark, output.waiting("playing …"):
            answer = _played(place, spark, queue, policy, timings or [], model.value, seed, since, until)
        if as_json:
            output.emit(answer.figures())
        else:
            _show_what_if(answer)


def _played(
    lake: Lake,
    spark: SparkSession,
    queue: str,
    policy: str | None,
    timings: list[str],
    model: str,
    seed: int,
    since: Moment | None,
    until: Moment | None,
) -> WhatIf:
    from remuda.lake.whatif import parse_policy, parse_timings, what_if_commands, what_if_jobs

    histories = _between(_of_queue(lake.histories.read(spark), queue), "ended_at", since, until)
    transitions = _of_queue(lake.transitions.read(spark), queue)
    if policy is not None:
        return what_if_jobs(histories, transitions, policy=parse_policy(policy), model=model, seed=seed)
    return what_if_commands(histories, transitions, timings=parse_timings(timings), seed=seed)


def _between(frame: DataFrame, column: str, since: Moment | None, until: Moment | None) -> DataFrame:
    now = datetime.now(UTC)
    if since is not None:
        frame = frame.where(frame[column] >= since.on(now))
    if until is not None:
        frame = frame.where(frame[column] <= until.on(now))
    return frame


_SIDE_ROWS = (
    ("messages", "messages"),
    ("delivered", "delivered"),
    ("dead", "dead"),
    ("delivery rate", "delivery_rate"),
    ("latency p50", "latency_p50_ms"),
    ("latency p90", "latency_p90_ms"),
    ("latency p99", "latency_p99_ms"),
    ("attempts", "attempts"),
    ("per message", "attempts_per_message"),
    ("retries", "retries"),
    ("peak/minute", "peak_per_minute"),
)


def _show_what_if(answer: WhatIf) -> None:
    if not answer.recorded.messages:
        output.note("no message to ask about: none has ended in that queue and time")
        return
    columns = (Column(""), Column("recorded", right=True), Column("what if", right=True))
    output.table(
        columns,
        [
            (name, _figure(answer.recorded, field), _figure(answer.what_if, field))
            for name, field in _SIDE_ROWS
        ],
    )
    output.say()
    output.say(
        f"delivered: {answer.delivered_at_least:,} at least, {answer.delivered_at_most:,} at most; "
        f"{answer.estimated:,} by estimate, {answer.between:,} between two attempts, "
        f"{answer.no_data:,} without data"
    )
    if any(answer.left_out.values()):
        left_out = ", ".join(f"{count:,} {why}" for why, count in answer.left_out.items() if count)
        output.say(f"left out: {left_out}")
    for change in answer.changes[:5]:
        output.say(
            f"  {output.printable(change.queue)}/{output.printable(change.name or '')}: delivered "
            f"{change.recorded_delivered:,} → {change.delivered:,}, attempts {change.recorded_attempts:,} → "
            f"{change.attempts:,}"
        )


def _figure(side: Side, field: str) -> str:
    value = getattr(side, field)
    if value is None:
        return "—"
    if field == "delivery_rate":
        return f"{value:.2%}"
    if field.endswith("_ms"):
        return span(timedelta(milliseconds=value))
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"


# -- report


def report(
    to: Annotated[Path, typer.Argument(metavar="FILE", help="The page to write.")] = Path("report.html"),
    lake: LakePath = DEFAULT_LAKE,
    queue: QueueFilter = None,
    since: Since = None,
    until: Until = None,
    master: Master = None,
    remote: Remote = None,
    memory: Memory = None,
    as_json: AsJson = False,
) -> None:
    """Write one page with plots and the tables behind them.

    The page is one file, which any browser shows, on paper too; it needs no network.
    """
    with told_in_one_line():
        from remuda.lake.report import gather, render

        place = existing_lake(lake)
        now = datetime.now(UTC)
        with opened_spark(SparkWhere(master, remote, memory)) as spark, output.waiting("gathering …"):
            data = gather(
                place.frames(spark),
                since=None if since is None else since.on(now),
                until=None if until is None else until.on(now),
                queue=queue,
            )
        to.write_text(render(data, made_at=now), encoding="utf-8")
    if as_json:
        output.emit({"file": str(to), "made_at": now})
    else:
        output.say(f"written to {to} ({local(now)})")
