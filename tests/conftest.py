"""Fixtures for every kind of test: real servers for the session, and a fresh store for each test."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings

from remuda.stores import open_store
from tests.redis_servers import RedisCluster, RedisServer, ValkeyServer, named_server, named_servers
from tests.servers import MariaDBServer, PostgresServer, Server, ServerUnavailableError

AnyServer = TypeVar("AnyServer", bound=Server | RedisCluster)

REQUIRED = os.environ.get("REMUDA_TEST_REQUIRE", "").split(",")
SQL_STORES = ["sqlite", "postgres", "mariadb"]
# Newer and older servers, by label: those that the environment names, and those that it requires.
OTHERS = {*named_servers(), *(label for label in REQUIRED if re.fullmatch(r"(redis|valkey)\d+", label))}
OTHERS -= {"redis7"}  # is tested in any case
REDIS_STORES = ["valkey", "redis7", *sorted(OTHERS), "cluster"]
# Tests of the lake that start no Spark in their own process.
WITHOUT_SPARK = {"test_cluster.py", "test_java.py", "test_trails.py"}

# The same examples in every run, however busy the machine is: a time limit would tell of its neighbours.
settings.register_profile(
    "repeatable", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


def pytest_report_header() -> list[str]:
    if "redis8" in REDIS_STORES:
        return []
    return ["The tests for Redis 8 are left out: REMUDA_TEST_REDIS_SERVERS names no such server."]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, so that no process is left with one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """One test after another to whoever is free, but those that need Spark in two halves to two processes.

    Each process that starts Spark pays for that, and again until its code is compiled.
    """
    from xdist.scheduler import LoadScopeScheduling

    class SparkTogether(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if not file.startswith("tests/lake/") or Path(file).name in WITHOUT_SPARK:
                return nodeid
            return "first half" if Path(file).name < "test_histories" else "second half"

    return SparkTogether(config, log)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server of this test process alone. A test may stop or kill it: the next one starts it."""
    with _serving("postgres", PostgresServer) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDBServer]:
    """A MariaDB server of this test process alone. A test may stop or kill it: the next one starts it."""
    with _serving("mariadb", MariaDBServer) as server:
        yield server


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[ValkeyServer]:
    """A Valkey server of this test process alone. A test may stop or freeze it: the next one starts it."""
    with _serving("valkey", ValkeyServer) as server:
        yield server


@pytest.fixture(scope="session")
def redis7_server() -> Iterator[RedisServer]:
    """A server of this machine's own Redis, of this test process alone, like `valkey_server`."""
    named = named_servers().get("redis7")
    with _serving("redis7", lambda: RedisServer(named and named.program)) as server:
        yield server


@pytest.fixture(scope="session")
def redis_tls_server() -> Iterator[RedisServer]:
    """A server of this machine's own Redis that takes TLS alone, like `valkey_server`."""
    with _serving("redis7", lambda: RedisServer(tls=True)) as server:
        yield server


@pytest.fixture(scope="session")
def named_redis() -> Iterator[Callable[[str], RedisServer]]:
    """Gives the server that REMUDA_TEST_REDIS_SERVERS names, of this test process alone, by its label."""
    servers: dict[str, RedisServer] = {}
    with ExitStack() as stack:

        def labelled(label: str) -> RedisServer:
            if label not in servers:
                servers[label] = stack.enter_context(_serving(label, lambda: named_server(label)))
            return servers[label]

        yield labelled


@pytest.fixture(scope="session")
def redis8_server(named_redis: Callable[[str], RedisServer]) -> RedisServer:
    """A Redis 8 server of this test process alone, like `valkey_server`."""
    return named_redis("redis8")


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    """A cluster of three primaries, of this test process alone, like `valkey_server`."""
    with _serving("valkey", RedisCluster) as cluster:
        yield cluster


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a store in a file that is not there yet."""
    return f"sqlite:///{tmp_path}/remuda.db"


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of a fresh, empty PostgreSQL database."""
    with postgres_server.database() as url:
        yield url


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> str:
    """A database with the tables of a store: to make them costs as much as most tests do besides."""
    name = "template_of_a_store"
    postgres_server.start()
    postgres_server.create_database(name)

    async def make() -> None:
        async with open_store(postgres_server.url(name)):
            pass

    asyncio.run(make())
    return name


@pytest.fixture
def postgres_store_url(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """The URL of a PostgreSQL database with the tables of a store, and nothing in them."""
    with postgres_server.database(postgres_template) as url:
        yield url


@pytest.fixture
def mariadb_url(mariadb_server: MariaDBServer) -> Iterator[str]:
    """The URL of a fresh, empty MariaDB database."""
    with mariadb_server.database() as url:
        yield url


@pytest.fixture
def valkey_url(valkey_server: ValkeyServer) -> str:
    """The URL of an empty Valkey server."""
    return valkey_server.fresh()


@pytest.fixture
def redis7_url(redis7_server: RedisServer) -> str:
    """The URL of an empty server of this machine's own Redis."""
    return redis7_server.fresh()


@pytest.fixture
def redis8_url(redis8_server: RedisServer) -> str:
    """The URL of an empty Redis 8 server."""
    return redis8_server.fresh()


@pytest.fixture
def cluster_url(redis_cluster: RedisCluster) -> str:
    """The URL of an empty cluster."""
    return redis_cluster.fresh()


@pytest.fixture(params=[*SQL_STORES, *REDIS_STORES])
def store_url(request: pytest.FixtureRequest) -> str:
    """The URL of a fresh, empty store: the test runs once for each kind. Pick one with `-k sqlite`."""
    return _store_url(request, with_tables=True)


@pytest.fixture(params=[*SQL_STORES, "valkey"])
def family_store_url(request: pytest.FixtureRequest) -> str:
    """The same, once for each family: where only the contract stands between the test and the store."""
    return _store_url(request, with_tables=True)


@pytest.fixture(params=SQL_STORES)
def sql_store_url(request: pytest.FixtureRequest) -> str:
    """The URL of a fresh, empty store in a database, once for each kind."""
    return _store_url(request)


@pytest.fixture(params=REDIS_STORES)
def redis_store_url(request: pytest.FixtureRequest) -> str:
    """The URL of a fresh, empty store on Redis or Valkey, once for each kind."""
    return _store_url(request)


def _store_url(request: pytest.FixtureRequest, *, with_tables: bool = False) -> str:
    """`with_tables`: where making them takes long, they may be there already."""
    if request.param in OTHERS:
        return str(request.getfixturevalue("named_redis")(request.param).fresh())
    is_copied = with_tables and request.param == "postgres"
    return str(request.getfixturevalue("postgres_store_url" if is_copied else f"{request.param}_url"))


@contextmanager
def _serving(kind: str, make: Callable[[], AnyServer]) -> Iterator[AnyServer]:
    """A running server. Where none can be had, its tests are left out, or fail if they are required."""
    try:
        server = make()
    except ServerUnavailableError as missing:
        if kind in REQUIRED:
            raise
        pytest.skip(str(missing))
    with server:
        yield server
