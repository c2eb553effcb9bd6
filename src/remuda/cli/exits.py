"""How a command ends: the exit codes that scripts rely on, and errors told in one line."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Coroutine, Iterator
from enum import IntEnum
from typing import Any, NoReturn, TypeVar

import typer

from remuda.cli.output import note
from remuda.errors import (
    ConfigurationError,
    InvalidJobError,
    RemudaError,
    SchemaError,
    StoreUnavailableError,
)

T = TypeVar("T")


class ExitCode(IntEnum):
    """What a script may test for."""

    OK = 0
    ERROR = 1
    USAGE = 2
    UNAVAILABLE = 3
    SCHEMA = 4
    NOT_FOUND = 5
    NOT_CONFIRMED = 6
    REFUSED = 7
    NOT_EXECUTED = 8
    UNKNOWN = 9
    UNDER_WAY = 10


MEANINGS = {
    ExitCode.OK: "done",
    ExitCode.ERROR: "an error that has no code of its own",
    ExitCode.USAGE: "the command line, settings, a store URL, a job or a command does not make sense",
    ExitCode.UNAVAILABLE: "the store cannot be reached",
    ExitCode.SCHEMA: "the tables are missing, too old or too new",
    ExitCode.NOT_FOUND: "there is no such job, dead letter or command",
    ExitCode.NOT_CONFIRMED: "not confirmed: nothing was changed",
    ExitCode.REFUSED: "the device refused the command",
    ExitCode.NOT_EXECUTED: "the command did not reach its device",
    ExitCode.UNKNOWN: "the device may have carried the command out, or not: nobody knows",
    ExitCode.UNDER_WAY: "the command is still on its way",
}

_CODES: tuple[tuple[type[RemudaError], ExitCode], ...] = (
    (StoreUnavailableError, ExitCode.UNAVAILABLE),
    (SchemaError, ExitCode.SCHEMA),
    (ConfigurationError, ExitCode.USAGE),
    (InvalidJobError, ExitCode.USAGE),
)


class Traces:
    """Whether `--debug` was given."""

    shown = False


def code_of(error: BaseException) -> ExitCode:
    """The exit code of an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.ERROR)


def fail(message: str, code: ExitCode) -> NoReturn:
    """End the command with one line."""
    note(f"remuda: {one_line(message)}")
    raise typer.Exit(code)


def one_line(text: str) -> str:
    """Many lines as one."""
    return " ".join(text.split())


@contextlib.contextmanager
def told_in_one_line() -> Iterator[None]:
    """Errors end the command with one line and their exit code; with `--debug` after their trace."""
    try:
        yield
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except RemudaError as error:
        _show_trace()
        fail(str(error), code_of(error))
    except BrokenPipeError:
        raise  # the reader has seen enough (`| head`); Typer ends quietly
    except Exception as error:  # noqa: BLE001 - a person gets one line, whatever it was
        _show_trace()
        hint = "" if Traces.shown else " (`remuda --debug …` shows where)"
        fail(f"{type(error).__name__}: {error}{hint}", ExitCode.ERROR)


def _show_trace() -> None:
    if Traces.shown:
        typer.echo(traceback.format_exc(), err=True, nl=False)


def run(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a command's coroutine to its end."""
    import asyncio

    with told_in_one_line():
        return asyncio.run(make())
