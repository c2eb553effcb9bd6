"""`replay`: a plan of dead letters, shown first, then carried out."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from remuda.cli import output
from remuda.cli.asking import confirm
from remuda.cli.exits import ExitCode, run, told_in_one_line
from remuda.cli.lake.options import (
    DEFAULT_LAKE,
    LakePath,
    Master,
    Memory,
    Remote,
    SparkWhere,
    existing_lake,
    opened_spark,
)
from remuda.cli.opening import check_there, given
from remuda.cli.options import TIME, AsJson, DryRun, Url, Yes, moment
from remuda.cli.output import Column
from remuda.cli.times import Moment, local

if TYPE_CHECKING:
    from remuda.lake.place import Lake
    from remuda.lake.replay import Plan, Report, Selection


def replay(
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="QUEUE", help="Of this queue (or devices:FLEET).")
    ] = None,
    fingerprint: Annotated[
        str | None, typer.Option("--fingerprint", metavar="HEX", help="Of this fault, as `triage` shows it.")
    ] = None,
    reason: Annotated[
        str | None,
        typer.Option("--reason", metavar="REASON", help="That died of this, such as retries_exhausted."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Jobs of this name, or commands of this type."),
    ] = None,
    since: Annotated[
        Moment | None,
        typer.Option("--since", parser=moment, metavar=TIME, help="That died since: 2d, or an ISO time."),
    ] = None,
    until: Annotated[
        Moment | None, typer.Option("--until", parser=moment, metavar=TIME, help="That died until then.")
    ] = None,
    sql: Annotated[
        str | None,
        typer.Option(
            "--sql", metavar="QUERY", help="That a query over the lake names: columns queue, message."
        ),
    ] = None,
    source: Annotated[
        str | None, typer.Option("--source", metavar="NAME", help="Of this store, by its name in the lake.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", min=1, metavar="N", help="The oldest so many.", show_default=False),
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="PLAN", help="Go on with a plan that was made before.")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", metavar="N", help="At most so many a second.", show_default=False),
    ] = None,
    url: Url = None,
    lake: LakePath = DEFAULT_LAKE,
    dry_run: DryRun = False,
    yes: Yes = False,
    master: Master = None,
    remote: Remote = None,
    memory: Memory = None,
    as_json: AsJson = False,
) -> None:
    """Bring dead letters back, by a plan that is shown first.

    The plan is made from the lake and carried out on the store of --url. Each of its letters is put back
    once, however often it is stopped and resumed. Ingest before, and try few first:

    \b
    remuda lake replay --fingerprint 1f0c… --limit 10
    """
    with told_in_one_line():
        place = existing_lake(lake)
        if resume is None:
            from remuda.lake.replay import Selection

            now = datetime.now(UTC)
            selection = Selection(
                source=source,
                queue=queue,
                name=name,
                reason=reason,
                fingerprint=fingerprint,
                since=None if since is None else since.on(now),
                until=None if until is None else until.on(now),
                sql=sql,
                limit=limit,
            )
            plan = _planned(place, selection, SparkWhere(master, remote, memory), now)
        else:
            from remuda.lake.replay import load_plan

            plan = load_plan(place, resume)
    _show_plan(plan, as_json=as_json and dry_run)
    if not plan.letters:
        raise typer.Exit(ExitCode.NOT_FOUND)
    if dry_run:
        output.note(f"nothing was changed; `remuda lake replay --resume {plan.id}` carries it out")
        return
    with told_in_one_line():
        check_there(given(url))
    confirm(f"Replay {output.plural(plan.letters, 'dead letter')}?", yes=yes)
    done = run(lambda: _carry(place, plan, given(url), rate))
    _show_done(done, as_json=as_json)


def _planned(lake: Lake, selection: Selection, where: SparkWhere, now: datetime) -> Plan:
    from remuda.lake.replay import make_plan

    with opened_spark(where) as spark, output.waiting("planning …"):
        return make_plan(lake, spark, selection, now=now)


async def _carry(lake: Lake, plan: Plan, url: str, rate: float | None) -> Report:
    from remuda.lake.replay import carry_out, report_of

    before = report_of(lake, plan).done
    with output.progress("replaying", plan.letters) as advance:
        told = before
        advance(before)

        def on_progress(report: Report) -> None:
            nonlocal told
            advance(report.done - told)
            told = report.done

        return await carry_out(lake, plan, url, rate=rate, on_progress=on_progress)


def _show_plan(plan: Plan, *, as_json: bool) -> None:
    if as_json:
        output.emit(plan)
        return
    if not plan.letters:
        output.note("nothing that was asked for is dead now")
        return
    output.note(f"plan {plan.id}: {output.plural(plan.letters, 'dead letter')} of {plan.source}")
    for title, counts in (("queue", plan.by_queue), ("reason", plan.by_reason), ("name", plan.by_name)):
        named = ", ".join(f"{output.printable(each)} {count:,}" for each, count in list(counts.items())[:5])
        output.note(f"  by {title}: {named}")
    if plan.oldest is not None and plan.newest is not None:
        output.note(f"  died from {local(plan.oldest)} to {local(plan.newest)}")
    for caution in plan.cautions:
        output.note(f"  mind: {caution}")


def _show_done(report: Report, *, as_json: bool) -> None:
    if as_json:
        output.emit(report)
        return
    left_alone = {
        "still live": report.still_live,
        "died again": report.died_again,
        "gone": report.gone,
        "refused": report.refused,
    }
    others = ", ".join(f"{count:,} {what}" for what, count in left_alone.items() if count)
    output.say(
        f"replayed {report.replayed:,} of {report.letters:,}" + (f"; left alone: {others}" if others else "")
    )
    if report.left:
        output.note(f"{report.left:,} to go: remuda lake replay --resume {report.plan}")


def plans(lake: LakePath = DEFAULT_LAKE, as_json: AsJson = False) -> None:
    """List the replay plans, newest first, and how far each has come."""
    with told_in_one_line():
        from remuda.lake.replay import list_plans, report_of

        place = existing_lake(lake)
        found = [(plan, report_of(place, plan)) for plan in list_plans(place)]
    if as_json:
        output.emit([{"plan": plan, "report": report} for plan, report in found])
        return
    output.table(
        (
            Column("plan"),
            Column("letters", right=True),
            Column("done", right=True),
            Column("replayed", right=True),
        ),
        [
            (plan.id, f"{plan.letters:,}", f"{report.done:,}", f"{report.replayed:,}")
            for plan, report in found
        ],
    )
