"""Standard output: for a person with colours and bars, for a pipe as plain lines, for a program as JSON.

Rich is only used, and only imported, on a terminal. Whatever comes out of a store is shown through
`printable`: a payload must not be able to steer the terminal.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

BAR_WIDTH = 30

STATE_STYLES = {
    "PENDING": "cyan",
    "PROCESSING": "yellow",
    "RETRYABLE": "magenta",
    "COMPLETED": "green",
    "FAILED": "red",
    "REMOVED": "bright_black",
}
FAINT = "bright_black"


class Cell(NamedTuple):
    """Text with a style that a terminal shows and a pipe does not."""

    text: str
    style: str = ""


class Column(NamedTuple):
    """One column. A `flexible` one is cut where the terminal ends; the others are always shown whole."""

    title: str
    right: bool = False
    flexible: bool = False


Cells = Sequence[str | Cell]


def on_terminal() -> bool:
    """Whether a person is looking."""
    return sys.stdout.isatty()


def say(text: str = "", style: str = "") -> None:
    """A line of output."""
    if style and on_terminal():
        console().print(styled(Cell(text, style)))
    else:
        typer.echo(text)


def note(text: str) -> None:
    """A line for people, beside the output."""
    typer.echo(text, err=True)


def emit(value: Any) -> None:
    """One JSON document."""
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def emit_line(value: Any) -> None:
    """One line of JSON, sent at once."""
    import msgspec

    typer.echo(msgspec.json.encode(value).decode())


def printable(text: str) -> str:
    """The text on one line, with control characters spelt out."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _spelt_out(each) for each in text)


def printable_lines(text: str) -> str:
    """The text on its own lines, with other control characters spelt out."""
    return "\n".join(printable(line.expandtabs(4)) for line in text.splitlines())


def _spelt_out(character: str) -> str:
    return " " if character in "\n\t\r" else ascii(character)[1:-1]


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """`1 job`, `2,000 jobs`."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def console(*, stderr: bool = False) -> Console:
    """The terminal. Made for each use, for the streams may have been replaced."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=False)


def styled(cell: str | Cell) -> Text:
    """For Rich; never read as markup."""
    from rich.text import Text

    return Text(cell) if isinstance(cell, str) else Text(cell.text, style=cell.style)


# -- tables


def table(columns: Sequence[Column], rows: Sequence[Cells]) -> None:
    """A table; in a pipe aligned text, one line for each row, nothing cut."""
    if on_terminal():
        console().print(rich_table(columns, rows))
    else:
        for line in plain_table(columns, rows):
            typer.echo(line)


def rich_table(columns: Sequence[Column], rows: Sequence[Cells]) -> RenderableType:
    """The table for a terminal."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, column in enumerate(columns):
        widest = max((len(_text(row[place])) for row in rows), default=0)
        made.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=True,
            overflow="ellipsis",
            min_width=None if column.flexible else max(widest, len(column.title)),
        )
    for row in rows:
        made.add_row(*map(styled, row))
    return made


def plain_table(columns: Sequence[Column], rows: Sequence[Cells]) -> Iterator[str]:
    """The table for a pipe."""
    texts = [[column.title.upper() for column in columns], *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(row[place]) for row in texts) for place in range(len(columns))]
    for row in texts:
        cells = (
            cell.rjust(width) if column.right else cell.ljust(width)
            for column, cell, width in zip(columns, row, widths, strict=True)
        )
        yield "  ".join(cells).rstrip()


def _text(cell: str | Cell) -> str:
    return cell if isinstance(cell, str) else cell.text


# -- facts and bars


def facts(pairs: Sequence[tuple[str, str | Cell]]) -> None:
    """Names and values, one below the other."""
    width = max(len(name) for name, _ in pairs)
    if not on_terminal():
        for name, value in pairs:
            typer.echo(f"{name.ljust(width)}  {_text(value)}".rstrip())
        return
    from rich.table import Table

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style=FAINT, no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(name, styled(value))
    console().print(grid)


def bars(counts: Mapping[str, int], styles: Mapping[str, str], *, default: str = "red") -> None:
    """A histogram; in a pipe the numbers alone."""
    if not on_terminal():
        names = max(map(len, counts), default=0)
        numbers = max((len(str(count)) for count in counts.values()), default=0)
        for name, count in counts.items():
            typer.echo(f"{name.ljust(names)}  {str(count).rjust(numbers)}")
        return
    console().print(rich_bars(counts, styles, default=default))


def rich_bars(
    counts: Mapping[str, int], styles: Mapping[str, str], *, default: str = "red"
) -> RenderableType:
    """The histogram for a terminal."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(no_wrap=True)
    largest = max(counts.values(), default=0)
    for name, count in counts.items():
        style = styles.get(name, default)
        grid.add_row(styled(name), f"{count:,}", styled(Cell(_bar(count, largest), style)))
    return grid


_EIGHTHS = ("", *"▏▎▍▌▋▊▉")


def _bar(count: int, largest: int) -> str:
    """A bar in eighths of a character; what is there at all is seen."""
    if not count:
        return ""
    eighths = max(1, round(BAR_WIDTH * 8 * count / largest))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8]


# -- progress


@contextlib.contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A function to call with what was done since the last time; on a terminal it moves a bar on stderr."""
    if not sys.stderr.isatty():
        yield lambda _done: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=total)
        yield lambda done: shown.advance(task, done)


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """Something is going on, of unknown length."""
    if not sys.stderr.isatty():
        yield
        return
    with console(stderr=True).status(what):
        yield
