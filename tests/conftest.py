"""Fixtures for every kind of test: real servers for the session, and a fresh store for each test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tests.servers import MariaDBServer, PostgresServer, Server, ServerUnavailableError

AnyServer = TypeVar("AnyServer", bound=Server)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server of this test process alone. A test may stop or kill it: the next one starts it."""
    with _serving(PostgresServer) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDBServer]:
    """A MariaDB server of this test process alone. A test may stop or kill it: the next one starts it."""
    with _serving(MariaDBServer) as server:
        yield server


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a store in a file that is not there yet."""
    return f"sqlite:///{tmp_path}/remuda.db"


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of a fresh, empty PostgreSQL database."""
    with postgres_server.database() as url:
        yield url


@pytest.fixture
def mariadb_url(mariadb_server: MariaDBServer) -> Iterator[str]:
    """The URL of a fresh, empty MariaDB database."""
    with mariadb_server.database() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def store_url(request: pytest.FixtureRequest) -> str:
    """The URL of a fresh, empty store: the test runs once for each kind. Pick one with `-k sqlite`."""
    url = request.getfixturevalue(f"{request.param}_url")
    assert isinstance(url, str)
    return url


@contextmanager
def _serving(server_class: type[AnyServer]) -> Iterator[AnyServer]:
    """A running server. Where none can be had, its tests are left out, or fail if they are required."""
    try:
        server = server_class()
    except ServerUnavailableError as missing:
        required = os.environ.get("REMUDA_TEST_REQUIRE", "").split(",")
        if server_class.kind in required:
            raise
        pytest.skip(str(missing))
    with server:
        yield server
