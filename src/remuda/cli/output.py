"""Standard output: for a person with colours and bars, for a pipe as plain lines, for a program as JSON.

Rich is only used, and only imported, on a terminal. Whatever comes out of a store is shown through
`printable`: a payload must not be able to steer the terminal.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

BAR_WIDTH = 30
ROOM_BESIDE = 30  # columns of a terminal; with less a flexible column goes below its row

STATE_STYLES = {
    "PENDING": "cyan",
    "PROCESSING": "yellow",
    "RETRYABLE": "magenta",
    "COMPLETED": "green",
    "FAILED": "red",
    "REMOVED": "bright_black",
    "QUEUED": "cyan",
    "SENT_TO_NS": "yellow",
    "DELIVERED_TO_NS": "yellow",
    "SENT_TO_DEVICE": "bright_yellow",
    "TO_RETRY": "magenta",
    "DELIVERY_SUCCESSFUL": "green",
    "DELIVERY_FAILED": "red",
}
FAINT = "bright_black"


class Cell(NamedTuple):
    """Text with a style that a terminal shows and a pipe does not."""

    text: str
    style: str = ""


class Column(NamedTuple):
    """One column. A `flexible` one comes last, and is cut where the terminal ends; the others are not."""

    title: str
    right: bool = False
    flexible: bool = False


Cells = Sequence[str | Cell]


def on_terminal() -> bool:
    """Whether a person is looking."""
    return sys.stdout.isatty()


def say(text: str = "", style: str = "") -> None:
    """A line of output; a long one is left to the terminal to wrap."""
    if style and on_terminal():
        console().print(styled(Cell(text, style)), soft_wrap=True)
    else:
        typer.echo(text)


def note(text: str) -> None:
    """A line for people, beside the output."""
    typer.echo(printable(text), err=True)


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


def size(count: int) -> str:
    """`200 bytes`, `1.5 MiB`."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 2**power:
            return f"{count / 2**power:,.1f} {unit}"
    return f"{count} bytes"


def console(*, stderr: bool = False) -> Console:
    """The terminal. Made for each use, for the streams may have been replaced."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=False)


def styled(cell: str | Cell) -> Text:
    """For Rich; never read as markup."""
    from rich.text import Text

    return Text(cell) if isinstance(cell, str) else Text(cell.text, style=cell.style)


def line(cells: Cells, widths: Sequence[int]) -> None:
    """One row of a table that has no end: each cell at least as wide as said."""
    texts = [each if isinstance(each, str) else each.text for each in cells]
    padded = [text.ljust(width) for text, width in zip(texts, widths, strict=True)]
    if not on_terminal():
        typer.echo("  ".join(padded).rstrip())
        return
    styles = ["" if isinstance(each, str) else each.style for each in cells]
    parts = [styled(Cell(text + "  ", style)) for text, style in zip(padded, styles, strict=True)]
    console().print(*parts, sep="", soft_wrap=True)


# -- tables


def table(columns: Sequence[Column], rows: Sequence[Cells]) -> None:
    """A table; in a pipe aligned text, one line for each row, nothing cut."""
    if on_terminal():
        console().print(*rich_table(columns, rows), sep="\n")
    else:
        for line in plain_table(columns, rows):
            typer.echo(line)


def plain_table(columns: Sequence[Column], rows: Sequence[Cells]) -> Iterator[str]:
    """The lines of a table for a pipe."""
    titles = [column.title.upper() for column in columns]
    widths = _widths(columns, [titles, *rows])
    for row in [titles, *rows]:
        yield "  ".join(_aligned(columns, row, widths)).rstrip()


def rich_table(columns: Sequence[Column], rows: Sequence[Cells]) -> list[Text]:
    """The lines of a table for a terminal. What does not fit beside the rest goes below its row."""
    fixed = [place for place, column in enumerate(columns) if not column.flexible]
    flexible = [place for place, column in enumerate(columns) if column.flexible]
    width = console().width
    taken = sum(
        _widths([columns[place] for place in fixed], [[row[place] for place in fixed] for row in rows])
    )
    room = width - taken - 2 * len(fixed)
    beside = fixed + flexible if room >= ROOM_BESIDE else fixed
    shown = [columns[place] for place in beside]
    widths = _widths(shown, [[row[place] for place in beside] for row in rows])
    lines = [_line(shown, [Cell(column.title, "bold") for column in shown], widths, width)]
    for row in rows:
        lines.append(_line(shown, [row[place] for place in beside], widths, width))
        below = [row[place] for place in flexible if place not in beside and _text(row[place])]
        lines += [_cut(styled(Cell(f"    {_text(cell)}", FAINT)), width) for cell in below]
    return lines


def _widths(columns: Sequence[Column], rows: Sequence[Cells]) -> list[int]:
    return [
        max(cell_width(text) for text in (column.title, *(_text(row[place]) for row in rows)))
        for place, column in enumerate(columns)
    ]


def _line(columns: Sequence[Column], row: Cells, widths: Sequence[int], width: int) -> Text:
    from rich.text import Text

    cells = zip(_aligned(columns, row, widths), map(styled, row), strict=True)
    line = Text("  ").join(Text(text, style=cell.style) for text, cell in cells)
    line.rstrip()
    return _cut(line, width)


def _aligned(columns: Sequence[Column], row: Cells, widths: Sequence[int]) -> Iterator[str]:
    for column, cell, width in zip(columns, row, widths, strict=True):
        blanks = " " * (width - cell_width(_text(cell)))
        yield blanks + _text(cell) if column.right else _text(cell) + blanks


def cut_line(cells: Iterable[str | Cell]) -> None:
    """Cells on one line, two blanks apart; what is too long for the terminal is cut, in a pipe nothing is."""
    if on_terminal():
        from rich.text import Text

        shown = console()
        shown.print(_cut(Text("  ").join(map(styled, cells)), shown.width))
    else:
        typer.echo("  ".join(map(_text, cells)))


def _cut(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    return line


def _text(cell: str | Cell) -> str:
    return cell if isinstance(cell, str) else cell.text


def cell_width(text: str) -> int:
    """How many columns a text takes on a terminal."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(each) else 2 if east_asian_width(each) in "WF" else 1 for each in text)


# -- facts and bars


def facts(pairs: Sequence[tuple[str | Cell, str | Cell]]) -> None:
    """Names and values, one below the other."""
    width = max(len(_text(name)) for name, _ in pairs)
    for name, value in pairs:
        head = _text(name).ljust(width)
        if on_terminal():
            shown = styled(Cell(head, FAINT) if isinstance(name, str) else Cell(head, name.style))
            # Joined, not added: what is added to a text takes on its style.
            console().print(styled("  ").join((shown, styled(value))), soft_wrap=True)
        else:
            typer.echo(f"{head}  {_text(value)}".rstrip())


def bars(counts: Mapping[str, int], styles: Mapping[str, str], *, default: str = "red") -> None:
    """A histogram; in a pipe the numbers alone."""
    largest = max(counts.values(), default=0)
    names = max(map(len, counts), default=0)
    numbers = max((len(f"{count:,}") for count in counts.values()), default=0)
    for name, count in counts.items():
        if on_terminal():
            bar = styled(Cell(_bar(count, largest), styles.get(name.strip(), default)))
            console().print(styled(f"{name.ljust(names)}  {count:>{numbers},}  ") + bar)
        else:
            typer.echo(f"{name.ljust(names)}  {count:>{numbers}}")


_EIGHTHS: tuple[str, ...] = ("", *"▏▎▍▌▋▊▉")


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
