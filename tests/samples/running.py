"""Runs the samples of one document in the order in which a reader meets them, in the current folder.

They share one namespace, which is the main module of this process, and one terminal, and may await at the
top. One that begins with `# app.py` is written to that file too. A sample that works until it is told to
stop is told so, by SIGTERM, as `remuda worker` would be.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib
import inspect
import io
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from remuda import Worker
from tests.samples.steps import Step
from tests.samples.terminal import Terminal, compare, exchanges_of, with_known_ids

_RUNS_ON = "await worker.run()"
_WAITS_FOR_EVER = "await asyncio.Event().wait()"
RUNS_FOR_S = 0.3

# What a command takes its time to import.
_OF_A_COMMAND = ("remuda.cli.app", "remuda.stores.sql")


class TakesCommands(Protocol):
    """A terminal, or what stands for one."""

    def give(self, command: str, shown: str = "") -> str: ...

    def close(self) -> None: ...


class Reader:
    """Somebody who tries what a document shows, step by step."""

    def __init__(self, document: str, scope: dict[str, Any], terminal: TakesCommands) -> None:
        self._document = document
        self._scope = scope
        self._terminal = terminal
        self._runner = asyncio.Runner()  # one loop for all: what a sample opened the next may use
        self._ids: dict[str, str] = {}
        self._printed = ""

    def close(self) -> None:
        self._terminal.close()
        self._runner.close()

    def take(self, step: Step) -> None:
        if step["language"] == "python":
            self._run(step["line"], step["source"])
        else:
            for command, shown in exchanges_of(step["source"], is_script=step["language"] == "sh"):
                self._give(command, shown if step["is_compared"] else "")

    def _give(self, command: str, shown: str) -> None:
        command = with_known_ids(command, self._ids, self._printed)
        said = self._terminal.give(command, shown)
        self._printed += f"{said}\n"
        if shown:
            try:
                compare(shown, said, self._ids)
            except AssertionError as error:
                raise AssertionError(f"{self._document}: $ {command}\n{error}") from None

    def _run(self, line: int, source: str) -> None:
        if name := re.match(r"# (\w+\.py)\n", source):
            Path(name[1]).write_text(source)
        # Lines are counted as in the document, for traces.
        code = compile(
            "\n" * line + source,
            self._document,
            "exec",
            flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
            dont_inherit=True,
        )
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            if not code.co_flags & inspect.CO_COROUTINE:
                exec(code, self._scope)  # it may have a loop of its own
            else:
                running = eval(code, self._scope)
                if _RUNS_ON in source:
                    running = _until_stopped(running, self._scope)
                elif _WAITS_FOR_EVER in source:
                    running = _for_a_moment(running)
                self._runner.run(running)
        self._printed += printed.getvalue()


async def _until_stopped(running: Coroutine[Any, Any, None], scope: dict[str, Any]) -> None:
    """Let workers do what is due, then stop them as an operator would."""
    task = asyncio.ensure_future(running)
    while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and not task.done():
        await asyncio.wait({task}, timeout=0.01)  # nobody would hear it yet
    await asyncio.wait({task}, timeout=RUNS_FOR_S)
    while await _is_due(scope) and not task.done():
        await asyncio.wait({task}, timeout=0.01)
    if task.done():
        await task  # says what went wrong
        raise AssertionError("a worker that runs until it is stopped has ended by itself")
    os.kill(os.getpid(), signal.SIGTERM)
    await task


async def _for_a_moment(running: Coroutine[Any, Any, None]) -> None:
    """Let it come up and work, then go on as if its program had been stopped."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(running, RUNS_FOR_S)


async def _is_due(scope: dict[str, Any]) -> bool:
    queues = [each.queue for each in scope.values() if isinstance(each, Worker)]
    found = [await queue.stats() for queue in queues]
    return any(stats.live > stats.delayed for stats in found)


def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    for name in _OF_A_COMMAND:
        importlib.import_module(name)
    sys.path[0] = ""
    sys.modules["__main__"] = module = ModuleType("__main__")
    with contextlib.closing(Reader(sys.argv[1], vars(module), Terminal(quick=True))) as reader:
        for step in json.load(sys.stdin):
            reader.take(step)


if __name__ == "__main__":
    main()
