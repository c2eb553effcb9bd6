"""The other programs, ready to be run."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.environments import EnvironmentUnavailableError, python_with

FASTSTREAM = ("faststream-sqlbroker==0.1.0a11", "faststream<0.8", "sqlalchemy[asyncio]<2.2", "asyncpg<1")


class FastStream:
    """Runs `faststream_program`: to its end, or beside the test."""

    def __init__(self, python: Path, url: str, directory: Path) -> None:
        self._python = python
        self._url = url.replace("postgresql://", "postgresql+asyncpg://")
        self._directory = directory
        self.running: list[Running] = []

    def run(self, do: str, **request: Any) -> None:
        program = self.start(do, **request)
        program.process.wait(30)
        assert program.process.returncode == 0, program.errors()

    def start(self, do: str, **request: Any) -> Running:
        asked = json.dumps({"do": do, "url": self._url, "queue": "shared", **request})
        program = Running(self._python, asked, self._directory / f"faststream-{len(self.running)}")
        self.running.append(program)
        return program


class Running:
    """One run of the program, and what it has said so far."""

    def __init__(self, python: Path, asked: str, place: Path) -> None:
        self._said, self._errors = place.with_suffix(".out"), place.with_suffix(".err")
        with self._said.open("w") as said, self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [python, Path(__file__).with_name("faststream_program.py"), asked],
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

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="session")
def faststream_python() -> Path:
    """The interpreter that has FastStream; where it cannot be had, its tests are left out, or fail in CI."""
    try:
        return python_with("faststream", *FASTSTREAM)
    except EnvironmentUnavailableError as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


@pytest.fixture
def faststream(faststream_python: Path, postgres_url: str, tmp_path: Path) -> Iterator[FastStream]:
    """FastStream on a fresh, empty PostgreSQL database."""
    faststream = FastStream(faststream_python, postgres_url, tmp_path)
    yield faststream
    for program in faststream.running:
        program.kill()
