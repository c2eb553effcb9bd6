"""`watch`: a queue as it changes, with deltas and rates."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from remuda.cli import output
from remuda.cli.exits import one_line, run
from remuda.cli.limits import limits_text
from remuda.cli.opening import opened_queue
from remuda.cli.options import DURATION, AsJson, QueueName, Url, duration
from remuda.cli.output import Cell, Column
from remuda.cli.queues import most_first, note_if_unknown, oldest_due_cell, status_cell
from remuda.cli.times import span
from remuda.errors import StoreUnavailableError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from remuda.message import Stats
    from remuda.queue import Queue
    from remuda.rate import RateLimits

_STATES = ("pending", "retryable", "delayed", "processing", "completed", "failed")
_REMEMBERED = 40
_SPARKS = "▁▂▃▄▅▆▇█"


class Look(NamedTuple):
    """What was seen at one tick."""

    at: datetime
    clock: float
    stats: Stats
    dead: dict[str, int]
    limits: RateLimits

    def count(self, state: str) -> int:
        number: int = getattr(self.stats, state)
        return number


def watch(
    queue: QueueName,
    url: Url = None,
    interval: Annotated[
        timedelta,
        typer.Option("--interval", "-i", parser=duration, metavar=DURATION, help="Time between two looks."),
    ] = "2s",  # type: ignore[assignment]  # Typer parses the default as well
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, metavar="N", help="End after so many looks.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a queue as it changes, with deltas and rates.

    On a terminal the picture is renewed in place; in a pipe there is a line for each look, with --json
    an object for each. Ctrl-C ends it.
    """
    with contextlib.suppress(KeyboardInterrupt):
        run(lambda: _watch(queue, url, interval, count, as_json=as_json))


async def _watch(
    name: str, url: str | None, interval: timedelta, count: int | None, *, as_json: bool
) -> None:
    import asyncio

    async with opened_queue(name, url) as queue:
        first = await _look(queue)
        await note_if_unknown(queue, first.stats)
        with _showing(first, as_json=as_json) as show:
            show(first)
            ticks = 1
            while count is None or ticks < count:
                await asyncio.sleep(interval.total_seconds())
                show(await _look_patiently(queue, interval))
                ticks += 1


async def _look(queue: Queue) -> Look:
    stats, dead, limits = await queue.stats(), await queue.dead.count(), await queue.rate_limits()
    return Look(datetime.now(UTC), time.monotonic(), stats, dead, limits)


async def _look_patiently(queue: Queue, interval: timedelta) -> Look:
    """A watch outlives an outage of the store."""
    import asyncio

    told = False
    while True:
        try:
            return await _look(queue)
        except StoreUnavailableError as error:
            if not told:
                output.note(one_line(f"still trying: {error}"))
                told = True
            await asyncio.sleep(interval.total_seconds())


class Show:
    """Looks, each against the one before and the first."""

    def __init__(self, first: Look) -> None:
        self.first = self.last = self.now = first
        self.completed: deque[float] = deque(maxlen=_REMEMBERED)
        self.failed: deque[float] = deque(maxlen=_REMEMBERED)

    def __call__(self, look: Look) -> None:
        self.last, self.now = self.now, look
        if look is not self.last:
            self.completed.append(self.rate("completed"))
            self.failed.append(self.rate("failed"))
        self.draw()

    def draw(self) -> None:
        """Put it where people or programs see it."""
        raise NotImplementedError

    def delta(self, state: str) -> int:
        """Since the last look."""
        return self.now.count(state) - self.last.count(state)

    def rate(self, state: str) -> float:
        """Per second, since the last look."""
        elapsed = self.now.clock - self.last.clock
        return self.delta(state) / elapsed if elapsed > 0 else 0.0


class _Json(Show):
    def draw(self) -> None:
        from remuda.cli.records import stats_fields

        now = self.now
        fields: dict[str, Any] = {"at": now.at, **stats_fields(now.stats, now.dead, now.limits)}
        fields["deltas"] = {state: self.delta(state) for state in _STATES}
        fields["per_second"] = {state: round(self.rate(state), 3) for state in _STATES}
        output.emit_line(fields)


class _Lines(Show):
    def draw(self) -> None:
        numbers = " ".join(f"{state}={self.now.count(state)}({self.delta(state):+d})" for state in _STATES)
        lag = self.now.stats.oldest_due
        output.say(
            f"{self.now.at.isoformat(timespec='seconds')} {numbers}"
            f" completed/s={self.rate('completed'):.1f}"
            f" oldest_due={'-' if lag is None else f'{lag.total_seconds():.1f}s'}"
            f"{' paused' if self.now.stats.paused else ''}"
        )


class _Live(Show):
    """In place, on a terminal."""

    def __init__(self, first: Look, live: Any) -> None:
        super().__init__(first)
        self._live = live

    def draw(self) -> None:
        self._live.update(self._picture(), refresh=True)

    def _picture(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        stats = self.now.stats
        head = Text.assemble(
            (stats.queue, "bold"),
            "  ",
            output.styled(status_cell(stats)),
            "  oldest due: ",
            output.styled(oldest_due_cell(stats)),
            (f"  watched for {span(self.now.at - self.first.at)}", output.FAINT),
        )
        if self.now.limits:
            head.append(f"\n{limits_text(self.now.limits)}", style=output.FAINT)
        parts: list[RenderableType] = [head, "", *output.rich_table(_COLUMNS, self._rows()), ""]
        parts += [_sparks("completed/s", self.completed, "green"), _sparks("failed/s", self.failed, "red")]
        if self.now.dead:
            parts += ["", Text("dead letters by reason", style="bold"), *self._dead()]
        return Group(*parts)

    def _rows(self) -> list[output.Cells]:
        styles = {state.lower(): style for state, style in output.STATE_STYLES.items()}
        return [
            (
                Cell(state, styles.get(state, "blue")),
                f"{self.now.count(state):,}",
                _signed(self.delta(state)),
                f"{self.rate(state):+,.1f}" if self.delta(state) else Cell("0", output.FAINT),
                _signed(self.now.count(state) - self.first.count(state)),
            )
            for state in _STATES
        ]

    def _dead(self) -> list[Text]:
        rows: list[output.Cells] = [
            (reason, f"{count:,}", _signed(count - self.first.dead.get(reason, 0)))
            for reason, count in most_first(self.now.dead).items()
        ]
        columns = (Column("reason"), Column("now", right=True), Column("since start", right=True))
        return output.rich_table(columns, rows)


_COLUMNS = (
    Column("state"),
    Column("now", right=True),
    Column("change", right=True),
    Column("per second", right=True),
    Column("since start", right=True),
)


def _signed(number: int) -> Cell:
    return Cell(f"{number:+,}", "bold") if number else Cell("0", output.FAINT)


def _sparks(title: str, rates: deque[float], style: str) -> RenderableType:
    from rich.text import Text

    largest = max(rates, default=0.0)
    heights = (max(0, min(7, round(7 * rate / largest))) if largest > 0 else 0 for rate in rates)
    line = "".join(_SPARKS[height] for height in heights)
    return Text.assemble((f"{title:<12}", output.FAINT), (line, style), f" {rates[-1]:,.1f}" if rates else "")


@contextlib.contextmanager
def _showing(first: Look, *, as_json: bool) -> Iterator[Show]:
    if as_json:
        yield _Json(first)
    elif not output.on_terminal():
        yield _Lines(first)
    else:
        from rich.live import Live

        with Live(console=output.console(), auto_refresh=False) as live:
            yield _Live(first, live)
