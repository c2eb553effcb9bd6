"""`events`: every state change of a queue's jobs, as it is recorded."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from remuda.cli import output
from remuda.cli.exits import one_line, run
from remuda.cli.jobs import state_cell
from remuda.cli.opening import opened_queue
from remuda.cli.options import TIME, AsJson, QueueName, Url, moment
from remuda.cli.output import Cell
from remuda.cli.queues import note_if_unknown
from remuda.cli.times import Moment, local, span
from remuda.errors import StoreUnavailableError
from remuda.lifecycle import State, meaning_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from remuda.queue import Queue
    from remuda.transition import Transition

LOOK_EVERY = timedelta(seconds=1)  # at least; stores that can wake the command earlier
NAMES_KEPT = 10_000


def events(
    queue: QueueName,
    url: Url = None,
    since: Annotated[
        Moment | None,
        typer.Option(
            "--since", parser=moment, metavar=TIME, help="Begin there: 10m, 2h, an ISO time. Otherwise now."
        ),
    ] = None,
    state: Annotated[
        list[State] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help=f"Only moves into this state: {', '.join(State)}. May be given again.",
            case_sensitive=False,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Only jobs of this name.")
    ] = None,
    job_id: Annotated[str | None, typer.Option("--id", metavar="ID", help="Only this job.")] = None,
    reason: Annotated[
        str | None,
        typer.Option("--reason", metavar="REASON", help="Only with this reason, such as lease_expired."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Go on with what comes, until Ctrl-C.")
    ] = True,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, metavar="N", help="End after so many.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Follow what happens to the jobs of a queue.

    One line for each state change; with --json each line is an object. What is shown is the trail, so
    nothing is missed.

    \b
    remuda events emails --state FAILED
    remuda events emails --since 1h --no-follow --json
    """
    wanted = _Wanted(frozenset(state or ()), name, job_id, reason)
    with contextlib.suppress(KeyboardInterrupt):
        run(lambda: _events(queue, url, since, wanted, follow=follow, count=count, as_json=as_json))


class _Wanted:
    """What was asked for, and the names of the jobs that were seen: only the first record of a job has it."""

    def __init__(
        self, states: frozenset[State], name: str | None, job_id: str | None, reason: str | None
    ) -> None:
        self._states, self._name, self._id, self._reason = states, name, job_id, reason
        self._names: OrderedDict[str, str | None] = OrderedDict()

    def matches(self, each: Transition) -> bool:
        """All but the name, which may have to be looked up."""
        return (
            (not self._states or each.entered in self._states)
            and (self._id is None or each.message == self._id)
            and (self._reason is None or each.reason == self._reason)
        )

    def remember(self, each: Transition) -> None:
        """Whatever was asked for: a job may be gone from the store when its name is wanted."""
        if each.name is not None:
            self._keep(each.message, each.name)

    async def named(self, queue: Queue, each: Transition) -> str | None:
        """The name of a transition's job, as far as it can be known."""
        if each.message not in self._names:
            record = await queue.get(each.message)
            self._keep(each.message, None if record is None else record.name)
        self._names.move_to_end(each.message)
        return self._names[each.message]

    def _keep(self, job_id: str, name: str | None) -> None:
        self._names[job_id] = name
        if len(self._names) > NAMES_KEPT:
            self._names.popitem(last=False)

    def has_name(self, name: str | None) -> bool:
        return self._name is None or name == self._name


async def _events(
    queue_name: str,
    url: str | None,
    since: Moment | None,
    wanted: _Wanted,
    *,
    follow: bool,
    count: int | None,
    as_json: bool,
) -> None:
    shown = 0
    async with opened_queue(queue_name, url) as queue:
        if not (await queue.store.trail_span(queue_name)).last:
            await note_if_unknown(queue, await queue.stats())
        now = queue.store.now()
        after = await queue.store.trail_offset(queue_name, since=now if since is None else since.on(now))
        async for each in _trail(queue, after, follow=follow):
            wanted.remember(each)
            if not wanted.matches(each):
                continue
            name = await wanted.named(queue, each)
            if not wanted.has_name(name):
                continue
            _show(each, name, as_json=as_json)
            shown += 1
            if shown == count:
                return
    if not shown and not as_json:
        output.note("no such events")


async def _trail(queue: Queue, after: int, *, follow: bool) -> AsyncIterator[Transition]:
    """What is recorded after a number, and with `follow` what comes then; an outage is outlived."""
    wakeup = queue.store.watch_results(queue.name)
    told = False
    try:
        while True:
            try:
                async for each in queue.transitions(after=after):
                    after = each.seq
                    yield each
                told = False
            except StoreUnavailableError as error:
                if not told:
                    output.note(one_line(f"still trying: {error}"))
                    told = True
            if not follow:
                return
            await wakeup.wait(LOOK_EVERY)
    finally:
        wakeup.close()


def _show(each: Transition, name: str | None, *, as_json: bool) -> None:
    from remuda.cli.records import transition_fields

    if as_json:
        output.emit_line({"id": each.message, "name": name, **transition_fields(each)})
        return
    after = "" if each.dwell is None else f"after {span(each.dwell)} {each.left}"
    parts = (
        Cell(local(each.at, zone=False), output.FAINT),
        state_cell(each.entered),
        output.printable(each.message),
        output.printable(name or "?"),
        f"attempt {each.attempt}",
        after,
        Cell(output.printable(each.reason or meaning_of(each.left, each.entered)), output.FAINT),
    )
    output.line(parts, (23, 10, 26, 16, 10, 26, 0))
