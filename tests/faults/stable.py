"""A stable of processes: starting Python takes most of a second, forking one that is ready takes a moment.

The stable itself is a process without threads or an event loop, so that a fork of it is as good as a fresh
one. Run as a program it reads requests from its standard input, one JSON object to a line, and answers each.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import msgspec

import remuda
from tests.faults.programs import Program, gate, run

READY_MADE = (
    "asyncpg",
    "asyncmy",
    "sqlalchemy.dialects.postgresql.asyncpg",
    "sqlalchemy.dialects.mysql.asyncmy",
    "remuda.stores.redis.store",
)
ROOT = Path(__file__).parents[2]


class Stable:
    """Starts programs, each in a process of its own."""

    def __init__(self) -> None:
        paths = (str(Path(remuda.__file__).parents[1]), str(ROOT), os.environ.get("PYTHONPATH", ""))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.stable"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )

    def close(self) -> None:
        """End every process that is left, and the stable."""
        self._process.communicate()

    def start(self, program: Program) -> Running:
        pid = self._ask(start=msgspec.to_builtins(program))
        return Running(self, pid, Path(program.directory))

    def exit_code(self, pid: int) -> int | None:
        """How a process ended: its code, or minus the signal; None while it runs."""
        code: int | None = self._ask(poll=pid)
        return code

    def _ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


class Running:
    """A process that was started, and what it leaves behind."""

    def __init__(self, stable: Stable, pid: int, directory: Path) -> None:
        self._stable = stable
        self._code: int | None = None
        self.pid = pid
        self.directory = directory
        self.died_at_ns: int | None = None

    @property
    def exit_code(self) -> int | None:
        if self._code is None:
            self._code = self._stable.exit_code(self.pid)
        return self._code

    def signal(self, number: signal.Signals) -> None:
        if self.exit_code is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone for certain."""
        self.signal(signal.SIGKILL)
        while self.exit_code is None:
            time.sleep(0.001)
        self.died_at_ns = time.monotonic_ns()

    def open_gate(self) -> None:
        gate(self.directory, self.pid).touch()

    def log(self, action: str | None = None) -> list[dict[str, Any]]:
        """What it has logged so far: all of it, or the lines of one action."""
        file = self.directory / f"{self.pid}.log"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        entries = [json.loads(line) for line in lines if line.endswith("\n")]
        return [each for each in entries if action is None or each.get("action") == action]

    def complaints(self) -> list[dict[str, Any]]:
        """What it has logged that should never be: errors, and exceptions that nobody took."""
        return [
            each
            for each in self.log()
            if each["level"] in ("ERROR", "CRITICAL") or each["logger"] == "asyncio"
        ]


class Processes:
    """The processes of one test; none outlives it."""

    def __init__(self, stable: Stable, directory: Path) -> None:
        self._stable = stable
        self.directory = directory
        self.started: list[Running] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.started:
            each.kill()

    def worker(self, url: str, queue: str = "jobs", **options: Any) -> Running:
        """A worker; durations in seconds."""
        return self.start(
            Program(role="worker", url=url, queue=queue, directory=str(self.directory), options=options)
        )

    def program(self, role: str, url: str, queue: str = "jobs", **arguments: Any) -> Running:
        """One of the other `programs`."""
        return self.start(
            Program(role=role, url=url, queue=queue, directory=str(self.directory), arguments=arguments)
        )

    def start(self, program: Program) -> Running:
        running = self._stable.start(program)
        self.started.append(running)
        return running


def _main() -> None:
    """The stable's own process."""
    for module in READY_MADE:
        importlib.import_module(module)
    ended: dict[int, int] = {}
    living: set[int] = set()
    for line in sys.stdin:
        request = json.loads(line)
        if "start" in request:
            answer: int | None = _fork(msgspec.convert(request["start"], Program))
            living.add(answer)
        else:
            answer = _poll(request["poll"], ended)
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()
    for pid in living - ended.keys():
        os.kill(pid, signal.SIGKILL)


def _fork(program: Program) -> int:
    pid = os.fork()
    if pid:
        return pid
    nothing = os.open(os.devnull, os.O_RDWR)
    errors = os.open(Path(program.directory, f"{os.getpid()}.stderr"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream, replacement in ((0, nothing), (1, nothing), (2, errors)):
        os.dup2(replacement, stream)
    run(program)
    sys.exit()


def _poll(pid: int, ended: dict[int, int]) -> int | None:
    if pid not in ended:
        gone, status = os.waitpid(pid, os.WNOHANG)
        if gone:
            ended[pid] = os.waitstatus_to_exitcode(status)
    return ended.get(pid)


if __name__ == "__main__":
    _main()
