"""`dlq peek`, `replay`, `drop`, `export`: dead letters."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from remuda.cli import output
from remuda.cli.asking import confirm
from remuda.cli.exits import ExitCode, fail, run
from remuda.cli.opening import opened_queue
from remuda.cli.options import AsJson, ByIds, ByName, ByReason, DryRun, QueueName, Since, Until, Url, Yes
from remuda.cli.output import Cell, Column
from remuda.cli.queues import most_first, note_if_unknown
from remuda.cli.times import Moment, relative
from remuda.lifecycle import PRODUCER_REASONS, Reason

if TYPE_CHECKING:
    from remuda.message import DeadLetter
    from remuda.queue import Queue

app = typer.Typer(no_args_is_help=True)

HANDFUL = 10  # a replay of no more than this is a trial, and does not ask
CHUNK = 500
FAULTS_FROM = 20_000  # letters that are read to tell their faults apart
FAULTS_SHOWN = 10
PAGE = 200

Limit = Annotated[
    int | None,
    typer.Option(
        "--limit", "-n", min=1, metavar="N", help="At most so many, oldest first; without it, all that match."
    ),
]


class Which(NamedTuple):
    """The filter as it came from the command line."""

    reason: Reason | None
    name: str | None
    since: Moment | None
    until: Moment | None
    ids: list[str] | None

    def on(self, now: datetime, *, frozen: bool = False) -> dict[str, Any]:
        """As the dead letters take it. `frozen`: nothing that dies from `now` on."""
        until = None if self.until is None else self.until.on(now)
        if frozen:
            until = now if until is None else min(until, now)
        return {
            "reason": self.reason,
            "name": self.name,
            "since": None if self.since is None else self.since.on(now),
            "until": until,
            "ids": self.ids,
        }


# -- peek


@app.command()
def peek(
    queue: QueueName,
    url: Url = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="Show so many.")] = 20,
    reason: ByReason = None,
    name: ByName = None,
    since: Since = None,
    until: Until = None,
    job_id: ByIds = None,
    trace: Annotated[bool, typer.Option("--trace", help="Show the trace of each error.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show how many there are by reason and by fault, and the latest.

    A fault is what letters have in common once numbers, ids and other details are taken out of their errors:
    one line for each thing to mend, with a fingerprint that stays the same. Nothing is changed.
    """
    which = Which(reason, name, since, until, job_id)
    run(lambda: _peek(queue, url, which, limit, trace=trace, as_json=as_json))


async def _peek(name: str, url: str | None, which: Which, limit: int, *, trace: bool, as_json: bool) -> None:
    from remuda.cli.records import job_fields

    async with opened_queue(name, url) as queue:
        now = queue.store.now()
        counts = await queue.dead.count(**which.on(now))
        letters = await queue.dead.peek(limit=limit, **which.on(now)) if counts else []
        faults = await _faults(queue, which.on(now), sum(counts.values()))
        if not counts:
            await note_if_unknown(queue, await queue.stats())
    if as_json:
        fields = [job_fields(each) for each in letters]
        output.emit(
            {
                "queue": name,
                "total": sum(counts.values()),
                "by_reason": most_first(counts),
                "by_fault": [_fault_fields(each) for each in faults],
                "letters": fields,
            }
        )
    elif not counts:
        output.note("no dead letters")
    else:
        output.say("by reason", "bold")
        output.bars(most_first(counts), {})
        output.say()
        _show_faults(faults)
        output.say()
        _show_letters(letters, now, trace=trace)
        hidden = sum(counts.values()) - len(letters)
        if hidden > 0:
            output.note(f"and {output.plural(hidden, 'older one')} (--limit)")


class Fault(NamedTuple):
    """Letters that died of the same thing."""

    fingerprint: str
    words: str
    name: str
    letters: int
    latest: datetime | None


async def _faults(queue: Queue, which: dict[str, Any], total: int) -> list[Fault]:
    """What the letters died of, most first; of many letters the latest tell."""
    from remuda.dead_letters import make_filter
    from remuda.lake.fingerprint import fault_of, fingerprint

    found: dict[str, Fault] = {}
    after: str | None = None
    read = 0
    with output.progress("sorting by fault", min(total, FAULTS_FROM)) as advance:
        while read < min(total, FAULTS_FROM):
            page = await queue.store.peek_dead(queue.name, make_filter(**which), limit=PAGE, after=after)
            for letter in page:
                words = fault_of(letter.reason, letter.error_type, letter.error_message)
                mark = fingerprint(queue.name, letter.name, letter.reason, words, letter.error_trace)
                known = found.get(mark) or Fault(mark, words, letter.name, 0, letter.died_at)
                found[mark] = known._replace(letters=known.letters + 1)
            read += len(page)
            advance(len(page))
            if len(page) < PAGE:
                break
            after = page[-1].cursor
    return sorted(found.values(), key=lambda fault: (-fault.letters, fault.fingerprint))


def _fault_fields(fault: Fault) -> dict[str, Any]:
    return {
        "fingerprint": fault.fingerprint,
        "fault": fault.words,
        "name": fault.name,
        "letters": fault.letters,
        "latest_at": fault.latest,
    }


def _show_faults(faults: list[Fault]) -> None:
    output.say("by fault", "bold")
    shown = faults[:FAULTS_SHOWN]
    output.table(
        _FAULTS,
        [
            (
                Cell(each.fingerprint, output.FAINT),
                f"{each.letters:,}" if output.on_terminal() else str(each.letters),
                output.printable(each.name) or "-",
                output.printable(each.words),
            )
            for each in shown
        ],
    )
    read = sum(each.letters for each in faults)
    if read >= FAULTS_FROM:
        output.note(f"of the latest {read:,}; the lake (`remuda lake triage`) counts all")
    if len(faults) > len(shown):
        output.note(f"and {len(faults) - len(shown):,} rarer faults (--json shows all)")


_FAULTS = (
    Column("fingerprint"),
    Column("letters", right=True),
    Column("name"),
    Column("fault", flexible=True),
)


def _show_letters(letters: list[DeadLetter], now: datetime, *, trace: bool) -> None:
    if trace or output.on_terminal():
        for letter in letters:
            _show_card(letter, now, trace=trace)
    else:
        output.table(_COLUMNS, [_row(each, now) for each in letters])


_COLUMNS = (
    Column("id"),
    Column("name"),
    Column("reason"),
    Column("attempts", right=True),
    Column("died"),
    Column("error"),
    Column("payload"),
)


def _row(letter: DeadLetter, now: datetime) -> output.Cells:
    return (
        output.printable(letter.id),
        output.printable(letter.name) or "-",
        output.printable(letter.reason or "unknown"),
        str(letter.attempts),
        _died(letter, now),
        _error(letter) or "-",
        _payload(letter),
    )


def _show_card(letter: DeadLetter, now: datetime, *, trace: bool) -> None:
    """A few lines for one letter; what is too long for the terminal is cut."""
    head = (
        letter.id,
        letter.name or "(no name)",
        letter.reason or "unknown",
        _attempts(letter),
        _died(letter, now),
    )
    styles = ("bold", "cyan", "red", "", output.FAINT)
    output.cut_line(map(Cell, map(output.printable, head), styles))
    if _error(letter) and not (trace and letter.error_trace):
        output.cut_line([f"  {_error(letter)}"])
    output.cut_line([f"  {_payload(letter)}"])
    if trace and letter.error_trace:
        for line in output.printable_lines(letter.error_trace).splitlines():
            output.say(f"    {line}", output.FAINT)
        output.say()


def _attempts(letter: DeadLetter) -> str:
    return output.plural(letter.attempts, "attempt")


def _died(letter: DeadLetter, now: datetime) -> str:
    return "-" if letter.died_at is None else relative(letter.died_at, now)


def _error(letter: DeadLetter) -> str:
    return output.printable(": ".join(filter(None, (letter.error_type, letter.error_message))))


def _payload(letter: DeadLetter) -> str:
    from remuda.cli.records import payload_text

    return output.printable(payload_text(letter))


# -- replay and drop


@app.command()
def replay(
    queue: QueueName,
    url: Url = None,
    limit: Limit = None,
    reason: ByReason = None,
    name: ByName = None,
    since: Since = None,
    until: Until = None,
    job_id: ByIds = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Put dead letters back into the queue, oldest first.

    They get a fresh retry budget. More than 10 at once ask first: try your fix on a few, watch the queue,
    then replay the rest.
    """
    which = Which(reason, name, since, until, job_id)
    run(lambda: _replay(queue, url, which, limit, dry_run=dry_run, yes=yes, as_json=as_json))


async def _replay(
    name: str, url: str | None, which: Which, limit: int | None, *, dry_run: bool, yes: bool, as_json: bool
) -> None:
    still_live: set[str] = set()
    async with opened_queue(name, url) as queue:
        chosen = await _choose(queue, which, limit)
        _warn_of_producers(chosen)
        if dry_run:
            would = await queue.dead.replay(limit=max(1, chosen.total), dry_run=True, **chosen.filter)
            ids = would.ids
            still_live.update(would.still_live)
        else:
            if chosen.total > HANDFUL:
                confirm(f"Replay {_described(chosen, name)}?", yes=yes)

            async def some(ask: int) -> list[str]:
                replayed = await queue.dead.replay(limit=ask, **chosen.filter)
                still_live.update(replayed.still_live)
                return replayed.ids

            ids = await _in_chunks("replaying", chosen.total, some)
        stayed = sorted(still_live.difference(ids))
    if as_json:
        output.emit(
            {"queue": name, "dry_run": dry_run, "replayed": len(ids), "ids": ids, "still_live": stayed}
        )
    elif dry_run:
        _say_what_would(ids, f"would replay {output.plural(len(ids), 'dead letter')} of {name}")
    else:
        output.say(f"replayed {output.plural(len(ids), 'dead letter')} of {name}")
    if stayed and not as_json:
        output.note(
            f"{len(stayed)} cannot go back, for a job with the same id lives: {', '.join(stayed[:10])}"
        )
    elif len(ids) < chosen.total and not as_json:
        output.note(f"{chosen.total - len(ids)} stayed: no job can be made of them, or somebody was quicker")
    _end_if_missing(which, chosen, name)


@app.command()
def drop(
    queue: QueueName,
    url: Url = None,
    limit: Limit = None,
    reason: ByReason = None,
    name: ByName = None,
    since: Since = None,
    until: Until = None,
    job_id: ByIds = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Remove dead letters for good, oldest first. The trail keeps that it happened."""
    which = Which(reason, name, since, until, job_id)
    run(lambda: _drop(queue, url, which, limit, dry_run=dry_run, yes=yes, as_json=as_json))


async def _drop(
    name: str, url: str | None, which: Which, limit: int | None, *, dry_run: bool, yes: bool, as_json: bool
) -> None:
    async with opened_queue(name, url) as queue:
        chosen = await _choose(queue, which, limit)
        if dry_run:
            ids = await _oldest(queue, chosen)
        else:
            if chosen.total:
                confirm(f"Drop {_described(chosen, name)} for good?", yes=yes)
            ids = await _in_chunks(
                "dropping", chosen.total, lambda ask: queue.dead.drop(limit=ask, **chosen.filter)
            )
    if as_json:
        output.emit({"queue": name, "dry_run": dry_run, "dropped": len(ids), "ids": ids})
    elif dry_run:
        _say_what_would(ids, f"would drop {output.plural(len(ids), 'dead letter')} of {name}")
    else:
        output.say(f"dropped {output.plural(len(ids), 'dead letter')} of {name}")
    _end_if_missing(which, chosen, name)


class Chosen(NamedTuple):
    """What a command is about to touch. Nothing that dies after it was counted is among it."""

    filter: dict[str, Any]
    counts: dict[str, int]
    total: int


async def _choose(queue: Queue, which: Which, limit: int | None) -> Chosen:
    narrowed = which.on(queue.store.now(), frozen=True)
    counts = await queue.dead.count(**narrowed)
    if not counts:
        await note_if_unknown(queue, await queue.stats())
    total = sum(counts.values())
    return Chosen(narrowed, counts, total if limit is None else min(limit, total))


def _described(chosen: Chosen, name: str) -> str:
    matching = sum(chosen.counts.values())
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in most_first(chosen.counts).items())
    of_all = f" (the oldest of {matching:,})" if chosen.total < matching else ""
    return f"{output.plural(chosen.total, 'dead letter')} of {name}{of_all}: {reasons}".rstrip(": ")


def _warn_of_producers(chosen: Chosen) -> None:
    """These were dead before a handler saw them, and will be again."""
    hopeless = {reason: count for reason, count in chosen.counts.items() if reason in PRODUCER_REASONS}
    if hopeless:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in most_first(hopeless).items())
        output.note(
            f"warning: {reasons}: no handler can read these, so a replay leads straight back; "
            "mend the program that adds them, then drop them"
        )


async def _oldest(queue: Queue, chosen: Chosen) -> list[str]:
    ids: list[str] = []
    letters = queue.dead.export(**chosen.filter)
    async with contextlib.aclosing(letters):  # type: ignore[type-var]  # an async generator
        async for letter in letters:
            if len(ids) >= chosen.total:
                break
            ids.append(letter.id)
    return ids


async def _in_chunks(what: str, total: int, some: Callable[[int], Awaitable[list[str]]]) -> list[str]:
    """Up to `total`, a chunk at a time, with a bar that tells the truth."""
    ids: list[str] = []
    try:
        with output.progress(what, total) as advance:
            while len(ids) < total:
                ask = min(CHUNK, total - len(ids))
                chunk = await some(ask)
                ids += chunk
                advance(len(chunk))
                if len(chunk) < ask:
                    break
    except BaseException:
        output.note(f"stopped {what} after {len(ids):,} of {total:,}")
        raise
    return ids


def _say_what_would(ids: list[str], summary: str) -> None:
    for each in ids:
        output.say(output.printable(each))
    output.note(summary)


def _end_if_missing(which: Which, chosen: Chosen, name: str) -> None:
    """Ids that were asked for by name and are not there are worth an exit code."""
    if which.ids and not chosen.counts:
        fail(f"no dead letter of {name} has the id {' or '.join(which.ids)}", ExitCode.NOT_FOUND)


# -- export


@app.command()
def export(
    queue: QueueName,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Where to; - is standard output.", show_default=False)
    ] = "-",
    url: Url = None,
    reason: ByReason = None,
    name: ByName = None,
    since: Since = None,
    until: Until = None,
    job_id: ByIds = None,
    yes: Yes = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was written where as JSON; the letters always are.")
    ] = False,
) -> None:
    """Write dead letters as JSON lines, oldest first.

    An object for each, with everything that is known of it: payload, headers, error, trace, times.
    """
    which = Which(reason, name, since, until, job_id)
    run(lambda: _export(queue, url, which, file, yes=yes, as_json=as_json))


async def _export(name: str, url: str | None, which: Which, file: str, *, yes: bool, as_json: bool) -> None:
    import msgspec

    from remuda.cli.records import job_fields

    async with opened_queue(name, url) as queue:
        chosen = await _choose(queue, which, None)
        if _is_there(file):
            confirm(f"{file} exists. Overwrite it?", yes=yes)
        written = 0
        with _written_to(file) as stream, output.progress("exporting", chosen.total) as advance:
            async for letter in queue.dead.export(**chosen.filter):
                stream.write(msgspec.json.encode(job_fields(letter)) + b"\n")
                written += 1
                advance(1)
    if file != "-" and as_json:
        output.emit({"queue": name, "file": file, "written": written})
    elif file != "-":
        output.note(f"wrote {output.plural(written, 'dead letter')} of {name} to {file}")
    _end_if_missing(which, chosen, name)


def _is_there(file: str) -> bool:
    return file != "-" and Path(file).exists()


@contextlib.contextmanager
def _written_to(file: str) -> Iterator[IO[bytes]]:
    """A stream to the file. It has its name only when it is complete."""
    if file == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    part = Path(f"{file}.part")
    try:
        with part.open("wb") as stream:
            yield stream
        os.replace(part, file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
