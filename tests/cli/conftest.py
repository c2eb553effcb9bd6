"""The command on a store, in this process or in one of its own; and programs for its workers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from typer.testing import CliRunner

import remuda as package
from remuda import Constant, Job, NewJob, Queue, UnrecoverableError, Worker
from remuda.cli.app import app
from remuda.stores.contract import EncodedJob
from tests.servers import alive

PATIENCE_S = 30.0
PACKAGE_HOME = str(Path(package.__file__).parents[1])  # the very code under test, installed or not


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


class Started:
    """A command that runs. What it says on standard error can be read meanwhile."""

    def __init__(self, command: list[str], directory: Path, env: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                command,
                cwd=directory,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def readline(self) -> str:
        """The next line of its output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def log(self) -> str:
        return self._log.read_text()

    def logs(self, text: str, times: int = 1) -> None:
        """Wait until it has said something, so many times."""
        try:
            until(lambda: self.log().count(text) >= times or self.process.poll() is not None, text)
        except AssertionError:
            raise AssertionError(f"not said {times} times: {text!r} in\n{self.log()}") from None
        assert self.log().count(text) >= times, self.log()

    def children(self) -> dict[int, psutil.Process]:
        """Its worker processes that live, by id."""
        found = psutil.Process(self.process.pid).children()
        return {each.pid: each for each in found if alive(each)}

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def finish(self, within_s: float = PATIENCE_S) -> Ended:
        """Wait for its end."""
        try:
            out, _ = self.process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end in {within_s} s:\n{self.log()}") from None
        return Ended(self.process.returncode, out, self.log())

    def close(self) -> None:
        if self.process.poll() is None:
            family = self.children()
            self.process.kill()
            for each in family.values():
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Remuda:
    """The command on one store. Called, it runs in this process; `start` gives it one of its own."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self.directory = directory
        self._runner = CliRunner()
        self._started: list[Started] = []

    def __call__(self, *arguments: str, stdin: str | None = None, env: dict[str, str] | None = None) -> Ended:
        result = self._runner.invoke(
            app, arguments, input=stdin, env={"REMUDA_URL": self.url, "REMUDA_DEBUG": None, **(env or {})}
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ended(result.exit_code, result.stdout, result.stderr)

    def ok(self, *arguments: str, stdin: str | None = None) -> str:
        """What it printed, if it went well."""
        ended = self(*arguments, stdin=stdin)
        assert ended.code == 0, ended
        return ended.out

    def json(self, *arguments: str, stdin: str | None = None) -> Any:
        """What it printed as JSON."""
        return json.loads(self.ok(*arguments, "--json", stdin=stdin))

    def start(self, *arguments: str, **env: str) -> Started:
        """The command in a process of its own, in the test's folder."""
        started = Started(
            [sys.executable, "-m", "remuda.cli", *arguments],
            self.directory,
            {**os.environ, "PYTHONPATH": PACKAGE_HOME, "REMUDA_URL": self.url, **env},
            Path(self.directory, f"{len(self._started)}.err"),
        )
        self._started.append(started)
        return started

    def run(self, *arguments: str, **env: str) -> Ended:
        """In a process of its own, to the end."""
        return self.start(*arguments, **env).finish()

    def close(self) -> None:
        for started in self._started:
            started.close()

    # -- the store behind it

    def do(self, act: Callable[[Queue], Any], queue: str = "emails") -> Any:
        """Something with a queue through the Python API."""

        async def doing() -> Any:
            async with Queue(queue, self.url) as opened:
                return await act(opened)

        return asyncio.run(doing())

    def add(self, *jobs: NewJob, queue: str = "emails") -> list[str]:
        ids: list[str] = self.do(lambda opened: opened.add_many(jobs), queue)
        return ids

    def add_undecodable(self) -> str:
        """A job whose payload is not what it says it is, as a program with another encoder would add it."""
        job = EncodedJob(id="broken", name="n", payload=b"\xc1", next_attempt_at=datetime.now(UTC))
        self.do(lambda opened: opened.store.add("emails", [job], who="another program"))
        return job.id

    def count(self, state: str, queue: str = "emails") -> int:
        return self.counts(state, queue=queue)[0]

    def counts(self, *states: str, queue: str = "emails") -> tuple[int, ...]:
        """How many there are in each of some states."""
        stats = self.do(lambda opened: opened.stats(), queue)
        return tuple(getattr(stats, state) for state in states)

    def work(self, *rounds: Sequence[NewJob]) -> None:
        """Run all that is due: `fail` fails three times, `bad` is beyond help, the rest succeeds.

        With `rounds`, add and run one after the other.
        """
        self.do(lambda opened: _work(opened, rounds or ((),)))


async def _work(queue: Queue, rounds: Sequence[Sequence[NewJob]]) -> None:
    worker = Worker(queue, retry=Constant(every=timedelta(0), max_attempts=3))

    @worker.handler("fail")
    async def fail(job: Job) -> None:
        raise ConnectionError(f"no connection for {job.payload}")

    @worker.handler("bad")
    async def bad(job: Job) -> None:
        raise UnrecoverableError("no such customer")

    @worker.handler()
    async def good(job: Job) -> None: ...

    for jobs in rounds:
        await queue.add_many(jobs)
        while await worker.step():
            pass


def until(condition: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> Any:
    """The first value of `condition` that is true; fails when there is none in time."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{within_s} s have passed without this: {what}"
        time.sleep(0.02)
    return value


@contextlib.contextmanager
def _closing(made: Remuda) -> Iterator[Remuda]:
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def remuda(family_store_url: str, tmp_path: Path) -> Iterator[Remuda]:
    """The command on a fresh store, once for each family of stores."""
    with _closing(Remuda(family_store_url, tmp_path)) as made:
        yield made


@pytest.fixture
def everywhere(store_url: str, tmp_path: Path) -> Iterator[Remuda]:
    """The command on a fresh store, once for each kind, with every server."""
    with _closing(Remuda(store_url, tmp_path)) as made:
        yield made


@pytest.fixture
def on_tables(sql_store_url: str, tmp_path: Path) -> Iterator[Remuda]:
    """The command on a fresh store in a database, once for each kind."""
    with _closing(Remuda(sql_store_url, tmp_path)) as made:
        yield made


@pytest.fixture
def on_redis(redis_store_url: str, tmp_path: Path) -> Iterator[Remuda]:
    """The command on a fresh store on Redis or Valkey, once for each kind."""
    with _closing(Remuda(redis_store_url, tmp_path)) as made:
        yield made


@pytest.fixture
def on_valkey(valkey_url: str, tmp_path: Path) -> Iterator[Remuda]:
    """The command on Valkey."""
    with _closing(Remuda(valkey_url, tmp_path)) as made:
        yield made


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Remuda]:
    """The command on a private server that is not there yet."""
    with _closing(Remuda(f"valkey+embedded:///{tmp_path}/data", tmp_path)) as made:
        yield made


@pytest.fixture
def on_sqlite(sqlite_url: str, tmp_path: Path) -> Iterator[Remuda]:
    """The command on a file, where the store does not matter."""
    with _closing(Remuda(sqlite_url, tmp_path)) as made:
        yield made


@pytest.fixture
def on_postgres(postgres_url: str, tmp_path: Path) -> Iterator[Remuda]:
    """The command on PostgreSQL."""
    with _closing(Remuda(postgres_url, tmp_path)) as made:
        yield made
