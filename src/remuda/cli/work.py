"""`worker`: runs the workers of a program, in this process or in several."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remuda.cli.exits import ExitCode, told_in_one_line
from remuda.cli.logs import LogLevel, set_up
from remuda.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from remuda.worker import Worker
    from remuda.worker.processes import Lifeline


LAST_MOMENTS_S = 10.0  # for exit hooks and other threads of the program, after the last job


def worker(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:ATTR",
            help="A Worker, a list of them, or a function that returns either.",
            show_default=False,
        ),
    ],
    processes: Annotated[
        int, typer.Option("--processes", min=1, metavar="N", help="Processes, each with all the workers.")
    ] = 1,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", min=1, metavar="N", help="Handlers at a time, in each worker."),
    ] = None,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End when nothing is due and nothing runs.")
    ] = False,
    log_level: Annotated[
        LogLevel,
        typer.Option(
            "--log-level", metavar="LEVEL", help="debug, info, warning or error.", case_sensitive=False
        ),
    ] = LogLevel.INFO,
    log_json: Annotated[bool, typer.Option("--log-json", "--json", help="Log as JSON lines.")] = False,
    lifeline: Annotated[int | None, typer.Option("--lifeline", hidden=True)] = None,
) -> None:
    """Run workers until SIGTERM or SIGINT.

    The first signal drains: running handlers finish, the rest goes back. The second ends at once.

    \b
    remuda worker app.jobs:worker
    remuda worker app.jobs:workers --processes 4 --log-json
    """
    set_up(log_level, as_json=log_json)
    with told_in_one_line():
        if processes > 1:
            options = _child_options(concurrency, log_level, until_empty=until_empty, log_json=log_json)
            code = _supervise([target, *options], processes, ends_by_itself=until_empty)
        else:
            code = _run_here(target, concurrency, lifeline, until_empty=until_empty)
    raise typer.Exit(code)


def _child_options(
    concurrency: int | None, log_level: LogLevel, *, until_empty: bool, log_json: bool
) -> list[str]:
    options = ["--log-level", log_level.value]
    if concurrency is not None:
        options += ["--concurrency", str(concurrency)]
    return options + ["--until-empty"] * until_empty + ["--log-json"] * log_json


def _supervise(arguments: list[str], processes: int, *, ends_by_itself: bool) -> int:
    import asyncio

    from remuda.worker.processes import Supervisor

    command = [sys.executable, "-m", "remuda.cli", "worker", *arguments]
    return asyncio.run(Supervisor(command, processes, ends_by_itself=ends_by_itself).run())


def _run_here(target: str, concurrency: int | None, lifeline: int | None, *, until_empty: bool) -> int:
    """All workers in this process. Does not return if handlers in threads would keep it from ending."""
    import asyncio

    from remuda.cli.crew import leave_now, leave_threads_behind, leave_within
    from remuda.worker.processes import Lifeline

    line = None if lifeline is None else Lifeline(lifeline, end_now=lambda: leave_now(ExitCode.ERROR))
    loaded = load(target)
    runner = asyncio.Runner(loop_factory=loop_factory())
    code: int = ExitCode.ERROR
    try:
        code = runner.run(_run_crew(loaded, concurrency, line, until_empty=until_empty))
        leave_threads_behind()
        return code
    finally:
        leave_within(LAST_MOMENTS_S, code)
        runner.close()


async def _run_crew(loaded: Any, concurrency: int | None, line: Lifeline | None, *, until_empty: bool) -> int:
    import asyncio

    from remuda.cli.crew import AT_ONCE_S, Crew, StopSignals, leave_within

    crew = Crew(with_concurrency(await workers_of(loaded), concurrency))
    StopSignals(crew, counted=line is None)
    if line is not None:
        loop = asyncio.get_running_loop()

        def hurry() -> None:
            leave_within(AT_ONCE_S, ExitCode.ERROR)
            loop.call_soon_threadsafe(crew.drain)
            loop.call_soon_threadsafe(crew.stop)

        line.listen(drain=lambda: loop.call_soon_threadsafe(crew.drain), hurry=hurry)
    await crew.run(until_empty=until_empty, on_ready=line.say_ready if line is not None else lambda: None)
    return ExitCode.ERROR if crew.at_once else ExitCode.OK


def loop_factory() -> Callable[[], Any] | None:
    """uvloop's where it is installed, otherwise Python's own."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], Any] = uvloop.new_event_loop
    return factory


# -- finding the workers


def load(target: str) -> Any:
    """What `MODULE:ATTR` names; the current directory is looked in first."""
    module_name, colon, path = target.partition(":")
    if not module_name or not colon or not path:
        raise ConfigurationError(f"{target!r} does not name workers; write MODULE:ATTR: app.jobs:worker")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, but something it imports is not
        raise ConfigurationError(f"there is no module {module_name!r} here or on Python's path") from error
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise ConfigurationError(f"{module_name} has no {path!r}") from None
    return found


async def workers_of(found: Any) -> list[Worker]:
    """The workers behind what was loaded: itself, a list, or what a function returns."""
    from remuda.worker import Worker

    if not isinstance(found, Worker) and callable(found):
        found = found()
        if inspect.isawaitable(found):
            found = await found
    workers = [found] if isinstance(found, Worker) else found
    if not isinstance(workers, list | tuple) or not workers:
        raise ConfigurationError(f"a Worker or a list of Workers is wanted, not {found!r:.100}")
    for each in workers:
        if not isinstance(each, Worker):
            raise ConfigurationError(f"a Worker is wanted, not {each!r:.100}")
    return list(workers)


def with_concurrency(workers: Sequence[Worker], concurrency: int | None) -> Sequence[Worker]:
    """The same workers, with another number of handlers at a time."""
    import msgspec

    if concurrency is not None:
        for each in workers:
            each.options = msgspec.structs.replace(each.options, concurrency=concurrency)
    return workers
