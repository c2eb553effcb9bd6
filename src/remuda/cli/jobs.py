"""`jobs list|show|log|cancel|expire|retry`: single jobs, and what becomes of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from remuda.cli import output
from remuda.cli.asking import confirm
from remuda.cli.exits import ExitCode, fail, run
from remuda.cli.opening import opened_queue
from remuda.cli.options import DURATION, TIME, AsJson, QueueName, Url, Yes, duration, instant
from remuda.cli.output import Cell, Column
from remuda.cli.queues import note_if_unknown
from remuda.cli.times import local, relative, span
from remuda.lifecycle import CommandStatus, State, meaning_of

if TYPE_CHECKING:
    from remuda.message import JobRecord, LogLine
    from remuda.queue import Queue
    from remuda.transition import Transition


app = typer.Typer(no_args_is_help=True)

STATES = [each for each in State if each is not State.REMOVED]
MAX_LINES = 10_000
LAST_WORDS = 10
LOOK_EVERY_S = 0.5


@app.command("list")
def list_jobs(
    queue: QueueName,
    url: Url = None,
    state: Annotated[
        State | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help=f"Only jobs in this state: {', '.join(STATES)}.",
            case_sensitive=False,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Only jobs of this name.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="At most so many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List jobs.

    Live ones come in the order in which they would run, then ended ones, newest first.
    """
    run(lambda: _jobs(queue, url, state, name, limit, as_json=as_json))


async def _jobs(
    queue_name: str, url: str | None, state: State | None, name: str | None, limit: int, *, as_json: bool
) -> None:
    from remuda.cli.records import job_fields

    async with opened_queue(queue_name, url) as queue:
        found = await queue.jobs(state=state, name=name, limit=limit)
        if not found:
            await note_if_unknown(queue, await queue.stats())
        now = queue.store.now()
    if as_json:
        output.emit({"queue": queue_name, "jobs": [job_fields(each) for each in found]})
        return
    if found:
        output.table(_COLUMNS, [_row(each, now) for each in found])
        if len(found) == limit and output.on_terminal():
            output.note(f"the first {limit}; --limit shows more")
    else:
        output.note("no jobs")


_COLUMNS = (
    Column("id"),
    Column("name"),
    Column("state"),
    Column("attempts", right=True),
    Column("added"),
    Column("what next", flexible=True),
)


def _row(job: JobRecord, now: datetime) -> output.Cells:
    return (
        output.printable(job.id),
        output.printable(job.name),
        state_cell(job.state),
        str(job.attempts),
        relative(job.created_at, now),
        output.printable(_what_next(job, now)),
    )


def state_cell(state: State | CommandStatus) -> Cell:
    """A state in its colour."""
    return Cell(state.value, output.STATE_STYLES[state.value])


def _what_next(job: JobRecord, now: datetime) -> str:
    """What the job waits for, or how it ended."""
    if job.state is State.PROCESSING:
        since = "" if job.acquired_at is None else f"for {span(max(now - job.acquired_at, now - now))} "
        return f"runs {since}on {job.worker or 'another program'}"
    if job.ended_at is not None:
        error = "" if job.error_type is None else f", {job.error_type}: {job.error_message}"
        return f"{relative(job.ended_at, now)}{f': {job.reason}' if job.reason else ''}{error}"
    due = job.next_attempt_at
    waits = "due now" if due is None or due <= now else f"due {relative(due, now)}"
    return f"{waits}, after {job.error_message}" if job.error_message else waits


# -- one job


@app.command()
def show(
    queue: QueueName,
    job_id: Annotated[str, typer.Argument(metavar="ID", help="The job's id.", show_default=False)],
    url: Url = None,
    history: Annotated[
        bool, typer.Option("--history/--no-history", help="Read the trail; it may be long.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Show one job with its whole history.

    All facts, the payload, how far its handler says it is and its last words, the error with its trace, and
    every state it was in, for how long and why.
    """
    run(lambda: _show(queue, job_id, url, history=history, as_json=as_json))


async def _show(queue_name: str, job_id: str, url: str | None, *, history: bool, as_json: bool) -> None:
    from remuda.cli.records import job_fields, line_fields, transition_fields, value_text

    async with opened_queue(queue_name, url) as queue:
        record = await queue.get(job_id)
        progress = await queue.progress(job_id)
        lines = await queue.log(job_id, limit=MAX_LINES)
        trail = await _history(queue, job_id) if history else []
        now = queue.store.now()
    if record is None and not trail:
        fail(f"there is no job {job_id!r} in {queue_name}", ExitCode.NOT_FOUND)
    if as_json:
        job = None if record is None else job_fields(record)
        output.emit(
            {
                "job": job,
                "progress": None if progress is None else {"value": progress.value, "at": progress.at},
                "log": [line_fields(each) for each in lines],
                "history": [transition_fields(each) for each in trail],
            }
        )
    else:
        if record is not None:
            _show_record(record, now)
        if progress is not None:
            _section("progress", f"{value_text(progress.value)}  ({relative(progress.at, now)})")
        if lines:
            _section("log", "\n".join(map(line_text, lines[-LAST_WORDS:])))
            if len(lines) > LAST_WORDS:
                output.note(f"the last {LAST_WORDS} of {len(lines):,} lines; `remuda jobs log` shows all")
        if trail:
            _show_history(trail)
    if record is None:
        fail(f"the job {job_id!r} is gone; the trail is what is left of it", ExitCode.NOT_FOUND)


async def _history(queue: Queue, job_id: str) -> list[Transition]:
    with output.waiting("reading the trail"):
        return await queue.history(job_id)


def _show_record(job: JobRecord, now: datetime) -> None:
    from remuda.cli.records import payload_text

    output.facts([(name, value) for name, value in _facts(job, now) if value not in ("", Cell("", "red"))])
    _section("payload", output.printable_lines(payload_text(job, indent=2)))
    if job.error_type or job.error_message:
        error = ": ".join(filter(None, (job.error_type, job.error_message)))
        _section("last error", output.printable_lines(job.error_trace or error))


def _facts(job: JobRecord, now: datetime) -> list[tuple[str, str | Cell]]:
    def moment(at: datetime | None) -> str:
        return "" if at is None else f"{local(at)}  ({relative(at, now)})"

    headers = ", ".join(f"{key}={value}" for key, value in job.headers.items())
    return [
        ("id", Cell(output.printable(job.id), "bold")),
        ("name", output.printable(job.name)),
        ("queue", output.printable(job.queue)),
        ("state", state_cell(job.state)),
        ("reason", Cell(output.printable(job.reason or ""), "red")),
        ("priority", str(job.priority)),
        ("rate key", output.printable(job.rate_key or "")),
        ("attempts", str(job.attempts)),
        ("deliveries", str(job.deliveries)),
        ("worker", output.printable(job.worker or "")),
        ("headers", output.printable(headers)),
        ("added", moment(job.created_at)),
        ("next attempt", moment(job.next_attempt_at) if job.ended_at is None else ""),
        ("first attempt", moment(job.first_attempt_at)),
        ("last attempt", moment(job.last_attempt_at)),
        ("acquired", moment(job.acquired_at)),
        ("lease ends", moment(job.lease_expires_at)),
        ("expires", moment(job.expires_at)),
        ("ended", moment(job.ended_at)),
        ("written by", "another program" if job.foreign else ""),
    ]


def _section(title: str, text: str) -> None:
    output.say()
    output.say(title, "bold")
    output.say("\n".join(f"  {line}" for line in text.splitlines()))


def _show_history(trail: Sequence[Transition]) -> None:
    output.say()
    output.say("history", "bold")
    output.table(_TIMELINE, [_step(each) for each in trail])


_TIMELINE = (
    Column("when"),
    Column("state"),
    Column("attempt", right=True),
    Column("after"),
    Column("who"),
    Column("why", flexible=True),
)


def _step(transition: Transition) -> output.Cells:
    meaning = meaning_of(transition.left, transition.entered)
    after = "" if transition.dwell is None else f"{span(transition.dwell)} {transition.left}"
    return (
        Cell(local(transition.at, zone=False), output.FAINT),
        state_cell(transition.entered),
        str(transition.attempt),
        after,
        Cell(output.printable(transition.who or ""), output.FAINT),
        output.printable(transition.reason or meaning),
    )


# -- what its handler says


@app.command()
def log(
    queue: QueueName,
    job_id: Annotated[str, typer.Argument(metavar="ID", help="The job's id.", show_default=False)],
    url: Url = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as it says more, until it has ended.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a job's handler said with `job.log`.

    A line for each: the time, the attempt, the words. With --follow it goes on until the job has ended.
    """
    run(lambda: _log(queue, job_id, url, follow=follow, as_json=as_json))


async def _log(queue_name: str, job_id: str, url: str | None, *, follow: bool, as_json: bool) -> None:
    import asyncio

    from remuda.cli.records import line_fields

    async with opened_queue(queue_name, url) as queue:
        said = 0
        while True:
            record = await queue.get(job_id)  # first: what it said before it ended is there then
            lines = await queue.log(job_id, after=said)
            for line in lines:
                if as_json:
                    output.emit_line(line_fields(line))
                else:
                    output.say(line_text(line))
            said += len(lines)
            if not lines and (not follow or record is None or record.ended_at is not None):
                break
            if not lines:
                await asyncio.sleep(LOOK_EVERY_S)
        if not said and record is None:
            fail(f"there is no job {job_id!r} in {queue_name}", ExitCode.NOT_FOUND)
    if not said and not as_json:
        output.note(f"the handler of {job_id} has said nothing")


def line_text(line: LogLine) -> str:
    """One line of a log, for a person."""
    head = f"{local(line.at, zone=False)}  {line.attempt}  "
    first, *others = output.printable_lines(line.text).splitlines() or [""]
    return "\n".join([head + first, *(" " * len(head) + each for each in others)])


# -- cancelling


Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="The jobs' ids.", show_default=False)]


@app.command()
def cancel(
    queue: QueueName,
    ids: Ids,
    url: Url = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Cancel jobs that wait or run.

    Those that wait are removed, those that run are told to end: a coroutine is cancelled within a second, a
    plain function when it looks; then it is a dead letter. A job that has ended or is unknown is named, and
    the exit code is 5. The trail keeps what was done.
    """
    run(lambda: _cancel(queue, ids, url, yes=yes, as_json=as_json))


async def _cancel(queue_name: str, ids: list[str], url: str | None, *, yes: bool, as_json: bool) -> None:
    async with opened_queue(queue_name, url) as queue:
        confirm(f"Cancel {output.plural(len(set(ids)), 'job')} of {queue_name}?", yes=yes)
        cancelled = await queue.cancel(*ids, running=False)
        others = [each for each in dict.fromkeys(ids) if each not in set(cancelled)]
        told = await queue.cancel(*others)
        if not cancelled and not told:
            await note_if_unknown(queue, await queue.stats())
    neither = [each for each in others if each not in set(told)]
    if as_json:
        output.emit({"queue": queue_name, "cancelled": cancelled, "told": told, "not_waiting": neither})
    else:
        if cancelled:
            output.say(f"cancelled {output.plural(len(cancelled), 'job')} of {queue_name}")
        if told:
            output.say(f"told the workers of {output.plural(len(told), 'running job')} of {queue_name}")
    if neither:
        fail(f"neither waiting nor running in {queue_name}: {', '.join(neither)}", ExitCode.NOT_FOUND)


# -- another end


@app.command()
def expire(
    queue: QueueName,
    ids: Ids,
    url: Url = None,
    after: Annotated[
        timedelta | None,
        typer.Option("--in", parser=duration, metavar=DURATION, help="So long from now: 90s, 2h, 1d."),
    ] = None,
    at: Annotated[
        datetime | None,
        typer.Option("--at", parser=instant, metavar=TIME, help="At this time, such as 2030-01-31T08:00Z."),
    ] = None,
    never: Annotated[bool, typer.Option("--never", help="Let them wait as long as it takes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Let jobs that wait expire sooner, later or never.

    One whose time is over before a worker takes it becomes a dead letter, `expired`. A job that does not wait
    is named, and the exit code is 5.
    """
    if never + (at is not None) + (after is not None) != 1:
        fail("when? Give one of --in, --at and --never", ExitCode.USAGE)
    run(lambda: _expire(queue, list(dict.fromkeys(ids)), url, after, at, as_json=as_json))


async def _expire(
    queue_name: str,
    ids: list[str],
    url: str | None,
    after: timedelta | None,
    at: datetime | None,
    *,
    as_json: bool,
) -> None:
    async with opened_queue(queue_name, url) as queue:
        moment = at if after is None else queue.store.now() + after
        changed = [each for each in ids if await queue.expire(each, at=moment)]
        if not changed:
            await note_if_unknown(queue, await queue.stats())
    neither = [each for each in ids if each not in set(changed)]
    if as_json:
        output.emit({"queue": queue_name, "expires_at": moment, "changed": changed, "not_waiting": neither})
    elif changed:
        when = "never" if moment is None else f"at {local(moment)}"
        many = "expire" if len(changed) > 1 else "expires"
        output.say(f"{output.plural(len(changed), 'job')} of {queue_name} {many} {when}")
    if neither:
        fail(f"not waiting in {queue_name}: {', '.join(neither)}", ExitCode.NOT_FOUND)


# -- trying again


@app.command()
def retry(queue: QueueName, ids: Ids, url: Url = None, as_json: AsJson = False) -> None:
    """Let jobs run now, also dead letters.

    A dead letter is replayed, a job that waits for its time is due at once. One that is running, is done or
    is unknown is named, and the exit code is 5.
    """
    run(lambda: _retry(queue, list(dict.fromkeys(ids)), url, as_json=as_json))


async def _retry(queue_name: str, ids: list[str], url: str | None, *, as_json: bool) -> None:
    async with opened_queue(queue_name, url) as queue:
        replayed = (await queue.dead.replay(ids=ids, limit=len(ids))).ids
        now = queue.store.now()
        hurried = [each for each in ids if each not in set(replayed) and await queue.reschedule(each, at=now)]
        if not replayed and not hurried:
            await note_if_unknown(queue, await queue.stats())
    neither = [each for each in ids if each not in {*replayed, *hurried}]
    if as_json:
        told = {"replayed": list(replayed), "due_now": hurried, "not_waiting": neither}
        output.emit({"queue": queue_name, **told})
    else:
        if replayed:
            output.say(f"replayed {output.plural(len(replayed), 'dead letter')} of {queue_name}")
        if hurried:
            output.say(f"{output.plural(len(hurried), 'job')} of {queue_name} due now")
    if neither:
        fail(f"neither waiting nor dead in {queue_name}: {', '.join(neither)}", ExitCode.NOT_FOUND)
