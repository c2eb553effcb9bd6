"""Worker processes for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import SQL_STORES
from tests.faults.stable import Processes, Stable


@pytest.fixture(scope="session")
def stable() -> Iterator[Stable]:
    """Where processes come from."""
    stable = Stable()
    yield stable
    stable.close()


@pytest.fixture
def processes(stable: Stable, tmp_path: Path) -> Iterator[Processes]:
    """The processes of this test; they are killed at its end, whatever becomes of it."""
    directory = tmp_path / "processes"
    directory.mkdir()
    with Processes(stable, directory) as processes:
        yield processes


@pytest.fixture(params=[*SQL_STORES, "valkey"])
def worked_store_url(request: pytest.FixtureRequest) -> str:
    """The URL of a fresh, empty store for worker processes: each database, and one of the Redis kind."""
    return str(request.getfixturevalue(f"{request.param}_url"))
