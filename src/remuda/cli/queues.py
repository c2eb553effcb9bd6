"""`inspect`, `pause`, `resume`, `drain`, `purge`, `obliterate`: queues as a whole."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from remuda.cli import output
from remuda.cli.asking import confirm
from remuda.cli.completing import queue_names
from remuda.cli.exits import ExitCode, fail, run
from remuda.cli.limits import limits_text
from remuda.cli.opening import opened_queue, opened_store
from remuda.cli.options import DURATION, AsJson, QueueName, Url, Yes, duration
from remuda.cli.output import Cell, Column
from remuda.cli.times import relative, span

if TYPE_CHECKING:
    from remuda.message import Stats
    from remuda.queue import Queue
    from remuda.rate import RateLimits

PROGRESS_EVERY_S = 0.3

SomeQueue = Annotated[
    str | None,
    typer.Argument(
        metavar="QUEUE", help="One queue; without it, all.", show_default=False, autocompletion=queue_names
    ),
]


def inspect(queue: SomeQueue = None, url: Url = None, as_json: AsJson = False) -> None:
    """Show how much waits, runs, is done and is dead.

    With QUEUE also how long the oldest due job has waited, the repeatable jobs, and why letters are dead.
    """
    if queue is None:
        run(lambda: _inspect_all(url, as_json=as_json))
    else:
        run(lambda: _inspect_one(queue, url, as_json=as_json))


async def _inspect_one(name: str, url: str | None, *, as_json: bool) -> None:
    from remuda.cli.records import stats_fields

    async with opened_queue(name, url) as queue:
        stats, dead, limits = await _look(queue)
        specs = await queue.repeats.list()
        await note_if_unknown(queue, stats)
        place, now = queue.store.url, queue.store.now()
    if as_json:
        coming = specs[0].next_at if specs else None
        told = stats_fields(stats, dead, limits)
        output.emit(told | {"repeatables": len(specs), "next_repeatable_at": coming})
        return
    output.facts(
        [
            ("queue", Cell(name, "bold")),
            ("store", place),
            ("status", status_cell(stats)),
            ("oldest due", oldest_due_cell(stats)),
            *([("rate limit", limits_text(limits))] if limits else []),
            *([("repeatable", f"{len(specs)}, next {relative(specs[0].next_at, now)}")] if specs else []),
        ]
    )
    output.say()
    output.bars(_by_state(stats), _STYLES)
    if dead:
        output.say()
        output.say("dead letters by reason", "bold")
        output.bars(most_first(dead), {})


async def _look(queue: Queue) -> tuple[Stats, dict[str, int], RateLimits]:
    return await queue.stats(), await queue.dead.count(), await queue.rate_limits()


async def _inspect_all(url: str | None, *, as_json: bool) -> None:
    from remuda.cli.records import stats_fields
    from remuda.queue import Queue

    async with opened_store(url) as store:
        seen = [await _look(Queue(name, store)) for name in await store.queues()]
    if as_json:
        output.emit({"queues": [stats_fields(*each) for each in seen]})
    elif not seen:
        output.note(f"no queues yet in {store.url}")
    else:
        output.table(_OVERVIEW, [_overview_row(*each) for each in seen])


_STYLES = {state.lower(): style for state, style in output.STATE_STYLES.items()} | {"delayed": "blue"}
_OVERVIEW = (
    Column("queue"),
    Column("pending", right=True),
    Column("delayed", right=True),
    Column("processing", right=True),
    Column("retryable", right=True),
    Column("completed", right=True),
    Column("failed", right=True),
    Column("oldest due", right=True),
    Column("status", flexible=True),
)


def _overview_row(stats: Stats, dead: dict[str, int], limits: RateLimits) -> output.Cells:
    reasons = ", ".join(f"{count} {reason}" for reason, count in most_first(dead).items())
    word = "paused" if stats.paused else ""
    return (
        Cell(output.printable(stats.queue), "bold"),
        _number(stats.pending, "cyan"),
        _number(stats.delayed, "blue"),
        _number(stats.processing, "yellow"),
        _number(stats.retryable, "magenta"),
        _number(stats.completed, "green"),
        _number(stats.failed, "red"),
        "-" if stats.oldest_due is None else span(stats.oldest_due),
        Cell(
            "; ".join(filter(None, (word, limits_text(limits), reasons))),
            "yellow" if stats.paused else output.FAINT,
        ),
    )


def _number(count: int, style: str) -> Cell:
    return Cell(f"{count:,}" if output.on_terminal() else str(count), style if count else output.FAINT)


def _by_state(stats: Stats) -> dict[str, int]:
    return {
        "pending": stats.pending,
        "retryable": stats.retryable,
        "  delayed": stats.delayed,
        "processing": stats.processing,
        "completed": stats.completed,
        "failed": stats.failed,
    }


def status_cell(stats: Stats) -> Cell:
    """Whether the queue is paused, in a word."""
    return Cell("paused", "bold yellow") if stats.paused else Cell("open", "green")


def oldest_due_cell(stats: Stats) -> Cell:
    """How long the first job that could run has waited."""
    if stats.oldest_due is None:
        return Cell("nothing is due", output.FAINT)
    idle = not stats.processing and not stats.paused
    return Cell(f"{span(stats.oldest_due)}{', and nothing is running' if idle else ''}")


def most_first(counts: dict[str, int]) -> dict[str, int]:
    """By number, then by name."""
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


async def note_if_unknown(queue: Queue, stats: Stats) -> None:
    """An empty queue is no error, but a mistyped name looks just like one: say what there is."""
    if stats.total or stats.paused:
        return
    known = await queue.store.queues()
    if queue.name not in known:
        others = f"it has: {', '.join(known)}" if known else "it has no queues yet"
        output.note(f"nothing is known of a queue {queue.name!r} in this store; {others}")


# -- operating


def pause(queue: QueueName, url: Url = None, as_json: AsJson = False) -> None:
    """Hand out no more jobs of a queue until it is resumed.

    It holds for every worker and outlives restarts. What runs goes on.
    """
    run(lambda: _set_pause(queue, url, paused=True, as_json=as_json))


def resume(queue: QueueName, url: Url = None, as_json: AsJson = False) -> None:
    """End a pause."""
    run(lambda: _set_pause(queue, url, paused=False, as_json=as_json))


async def _set_pause(name: str, url: str | None, *, paused: bool, as_json: bool) -> None:
    async with opened_queue(name, url) as queue:
        await (queue.pause() if paused else queue.resume())
        stats = await queue.stats()
    number = stats.pending + stats.retryable
    waiting = output.plural(number, "job")
    if as_json:
        output.emit({"queue": name, "paused": paused, "waiting": number, "running": stats.processing})
    elif paused:
        output.say(f"paused {name}: {waiting} waiting, {stats.processing} still running")
    else:
        output.say(f"resumed {name}: {waiting} waiting")


def drain(
    queue: QueueName,
    url: Url = None,
    delayed: Annotated[
        bool, typer.Option("--delayed", help="Wait for jobs that are due later, too.")
    ] = False,
    timeout: Annotated[
        timedelta | None,
        typer.Option(
            "--timeout", parser=duration, metavar=DURATION, help="Give up after this, with exit code 1."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Wait until the workers have done all that is due.

    That is, until nothing that is due waits and nothing runs. Changes nothing; to remove what waits, see
    purge. For scripts: stop adding, drain, deploy.
    """
    run(lambda: _drain(queue, url, timeout, delayed=delayed, as_json=as_json))


async def _drain(
    name: str, url: str | None, timeout: timedelta | None, *, delayed: bool, as_json: bool
) -> None:
    import asyncio

    began = time.monotonic()
    async with opened_queue(name, url) as queue:
        stats = await queue.stats()
        await note_if_unknown(queue, stats)
        at_first = left = _to_do(stats, delayed=delayed)
        if left:
            output.note(f"waiting for {output.plural(left, 'job')} of {name}")
        with output.progress("draining", at_first) as advance:
            while left:
                elapsed = time.monotonic() - began
                if timeout is not None and elapsed >= timeout.total_seconds():
                    idle = "" if stats.processing else "; nothing is running: is there a worker?"
                    fail(
                        f"{output.plural(left, 'job')} of {name} left after {span(timeout)}{idle}",
                        ExitCode.ERROR,
                    )
                await asyncio.sleep(PROGRESS_EVERY_S)
                stats = await queue.stats()
                before, left = left, _to_do(stats, delayed=delayed)
                advance(max(0, before - left))
    waited = timedelta(seconds=time.monotonic() - began)
    if as_json:
        output.emit({"queue": name, "jobs": at_first, "waited_seconds": waited.total_seconds()})
    else:
        later = f"; {output.plural(stats.delayed, 'job')} due later" if stats.delayed else ""
        output.say(f"nothing is left to do in {name}{later}")


def _to_do(stats: Stats, *, delayed: bool) -> int:
    waiting = stats.pending + stats.retryable
    return (waiting if delayed else waiting - stats.delayed) + stats.processing


def purge(queue: QueueName, url: Url = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove every waiting job of a queue for good. Running jobs and dead letters stay."""
    run(lambda: _purge(queue, url, yes=yes, as_json=as_json))


async def _purge(name: str, url: str | None, *, yes: bool, as_json: bool) -> None:
    async with opened_queue(name, url) as queue:
        stats = await queue.stats()
        waiting = stats.pending + stats.retryable
        if waiting:
            confirm(f"Remove {output.plural(waiting, 'waiting job')} of {name} for good?", yes=yes)
            removed = await _purge_with_progress(queue, waiting)
        else:
            await note_if_unknown(queue, stats)
            removed = 0
    if as_json:
        output.emit({"queue": name, "removed": removed})
    else:
        output.say(f"removed {output.plural(removed, 'job')} of {name}")


async def _purge_with_progress(queue: Queue, waiting: int) -> int:
    """Purge, and look now and then how far it has come."""
    import asyncio

    with output.progress("removing", waiting) as advance:
        purging = asyncio.create_task(queue.purge())
        left = waiting
        while not (await asyncio.wait({purging}, timeout=PROGRESS_EVERY_S))[0]:
            stats = await queue.stats()
            still = min(left, stats.pending + stats.retryable)
            advance(left - still)
            left = still
        return await purging


def obliterate(
    queue: QueueName,
    url: Url = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also take away what runs; its outcome will not count.")
    ] = False,
    records: Annotated[
        bool, typer.Option("--records", help="Also forget the record of what happened in it.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Remove a queue with all that is in it, for good.

    Jobs in every state, dead letters, results, notes, repeatable jobs, limits and a pause. Stop its producers
    and workers first. The record of what happened stays for the lake, until retention or --records takes it.
    """
    run(lambda: _obliterate(queue, url, force=force, records=records, yes=yes, as_json=as_json))


async def _obliterate(
    name: str, url: str | None, *, force: bool, records: bool, yes: bool, as_json: bool
) -> None:
    async with opened_queue(name, url) as queue:
        stats = await queue.stats()
        known = name in await queue.store.queues()
        if not known:
            await note_if_unknown(queue, stats)
        removed = forgotten = 0
        if known or records:
            confirm(f"Remove {name} for good, with {_holds(stats)}?", yes=yes)
            removed = await queue.obliterate(force=force)
            if records:
                span_of = await queue.store.trail_span(name)
                forgotten = await queue.store.trim_transitions(name, up_to=span_of.last)
    if as_json:
        output.emit({"queue": name, "removed": removed, "records_forgotten": forgotten})
    else:
        also = f", and {output.plural(forgotten, 'record')}" if records else ""
        output.say(f"obliterated {name}: {output.plural(removed, 'job')}{also}")


def _holds(stats: Stats) -> str:
    counts = {
        "waiting": stats.pending + stats.retryable,
        "running": stats.processing,
        "completed": stats.completed,
        "dead": stats.failed,
    }
    return ", ".join(f"{count:,} {word}" for word, count in counts.items() if count) or "nothing in it"
