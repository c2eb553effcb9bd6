"""The other programs, ready to be run."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.interop.environments import EnvironmentUnavailableError, python_with

FASTSTREAM = ("faststream-sqlbroker==0.1.0a11", "faststream<0.8", "sqlalchemy[asyncio]<2.2", "asyncpg<1")


CHASQUIMQ = ("chasquimq==1.3.0",)


class Programs:
    """Runs one of the programs beside this file: to its end, or beside the test."""

    program: ClassVar[str]

    def __init__(self, python: Path, url: str, directory: Path) -> None:
        self._python = python
        self._url = url
        self._directory = directory
        self.running: list[Running] = []

    def run(self, do: str, **request: Any) -> Running:
        program = self.start(do, **request)
        program.process.wait(30)
        assert program.process.returncode == 0, program.errors()
        return program

    def start(self, do: str, **request: Any) -> Running:
        asked = json.dumps({"do": do, "url": self._url, "queue": "shared", **request})
        place = self._directory / f"{self.program}-{len(self.running)}"
        started = Running(self._python, Path(__file__).with_name(f"{self.program}_program.py"), asked, place)
        self.running.append(started)
        return started


class FastStream(Programs):
    """Programs of FastStream's SQL broker."""

    program = "faststream"

    def __init__(self, python: Path, url: str, directory: Path) -> None:
        super().__init__(python, url.replace("postgresql://", "postgresql+asyncpg://"), directory)


class ChasquiMQ(Programs):
    """Programs of ChasquiMQ's Python package."""

    program = "chasquimq"


class Running:
    """One run of a program, and what it has said so far."""

    def __init__(self, python: Path, program: Path, asked: str, place: Path) -> None:
        self._said, self._errors = place.with_suffix(".out"), place.with_suffix(".err")
        with self._said.open("w") as said, self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [python, program, asked],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=errors,
                env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            )

    def said(self, event: str) -> list[dict[str, Any]]:
        assert self.process.poll() in (None, 0, -9), self.errors()
        lines = self._said.read_text().splitlines(keepends=True)
        return [
            said for line in lines if line.endswith("\n") and (said := json.loads(line))["event"] == event
        ]

    def errors(self) -> str:
        return self._errors.read_text()

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        self.process.terminate()
        assert self.process.wait(30) == 0, self.errors()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="session")
def faststream_python() -> Path:
    """The interpreter that has FastStream."""
    return _python_with("faststream", *FASTSTREAM)


@pytest.fixture
def faststream(faststream_python: Path, postgres_url: str, tmp_path: Path) -> Iterator[FastStream]:
    """FastStream on a fresh, empty PostgreSQL database."""
    faststream = FastStream(faststream_python, postgres_url, tmp_path)
    yield faststream
    for program in faststream.running:
        program.kill()


@pytest.fixture(scope="session")
def chasquimq_python() -> Path:
    """The interpreter that has ChasquiMQ."""
    return _python_with("chasquimq", *CHASQUIMQ)


@pytest.fixture
def chasquimq(chasquimq_python: Path, redis8_url: str, tmp_path: Path) -> Iterator[ChasquiMQ]:
    """ChasquiMQ on an empty Redis 8, the only one that it runs on."""
    chasquimq = ChasquiMQ(chasquimq_python, redis8_url, tmp_path)
    yield chasquimq
    for program in chasquimq.running:
        program.kill()


def _python_with(name: str, *requirements: str) -> Path:
    """Where they cannot be had, their tests are left out, or fail in CI."""
    try:
        return python_with(name, *requirements)
    except EnvironmentUnavailableError as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
