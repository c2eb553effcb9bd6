"""What the other tests rely on from their servers."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import psycopg
import pymysql
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from sqlalchemy.engine import make_url

from tests.redis_servers import RedisCluster, RedisServer, Sentinel, ValkeyServer, named_servers
from tests.servers import Server, alive

MAKE_A_SERVER = """
from {module} import {server_class}
server = {server_class}()
server.start()
print(server.directory, server._process.pid, flush=True)
input()
"""


@pytest.fixture(params=["postgres", "mariadb", "valkey", "redis7"])
def server(request: pytest.FixtureRequest) -> Server:
    found = request.getfixturevalue(f"{request.param}_server")
    assert isinstance(found, Server)
    return found


@pytest.fixture(params=["postgres", "mariadb"])
def database_server(request: pytest.FixtureRequest) -> Server:
    found = request.getfixturevalue(f"{request.param}_server")
    assert isinstance(found, Server)
    return found


@pytest.fixture(params=["valkey", "redis7"])
def redis_server(request: pytest.FixtureRequest) -> RedisServer:
    found = request.getfixturevalue(f"{request.param}_server")
    assert isinstance(found, RedisServer)
    return found


@pytest.mark.faults
def test_a_commit_survives_a_kill(database_server: Server) -> None:
    server = database_server
    with server.database() as url:
        with _connect(url) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE kept (id INTEGER PRIMARY KEY)")
            cursor.execute("INSERT INTO kept VALUES (42)")
            connection.commit()
            server.kill()
        assert not server.running

        server.start()

        with _connect(url) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id FROM kept")
            assert list(cursor.fetchall()) == [(42,)]


@pytest.mark.faults
def test_a_restart_keeps_the_url(database_server: Server) -> None:
    with database_server.database() as url:
        database_server.restart()
        _connect(url).close()


def test_a_database_is_dropped_although_a_transaction_is_open_in_it(database_server: Server) -> None:
    with database_server.database() as url:
        connection = _connect(url)
        connection.cursor().execute("CREATE TABLE held (id INTEGER PRIMARY KEY)")
        connection.commit()
        connection.cursor().execute("SELECT id FROM held")
    connection.close()


@pytest.mark.faults
def test_a_server_and_its_folder_go_with_the_process_that_made_them(
    server: Server, pytestconfig: pytest.Config
) -> None:
    script = MAKE_A_SERVER.format(module=type(server).__module__, server_class=type(server).__name__)
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=pytestconfig.rootpath,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        directory, pid = owner.stdout.readline().split()
        orphan = psutil.Process(int(pid))
        owner.send_signal(signal.SIGKILL)

    _eventually(lambda: not alive(orphan))
    _eventually(lambda: not Path(directory).exists())


@pytest.mark.faults
def test_what_redis_acknowledged_survives_a_kill(redis_server: RedisServer) -> None:
    redis_server.fresh()
    with redis_server.client() as client:
        for number in range(100):
            client.rpush("kept", number)
    redis_server.kill()
    assert not redis_server.running

    redis_server.start()

    with redis_server.client() as client:
        assert client.llen("kept") == 100


@pytest.mark.faults
@pytest.mark.parametrize("leave", [Server.stop, Server.kill, RedisServer.freeze])
def test_the_next_test_has_an_empty_redis_whatever_the_last_one_left(
    redis_server: RedisServer, leave: Callable[[RedisServer], None]
) -> None:
    first = redis_server.fresh()
    with redis_server.client() as client:
        client.set("left", "behind")
    leave(redis_server)

    assert redis_server.fresh() == first

    with redis_server.client() as client:
        assert client.dbsize() == 0


@pytest.mark.faults
def test_a_frozen_redis_answers_nothing_until_it_is_thawed(redis_server: RedisServer) -> None:
    redis_server.fresh()
    redis_server.freeze()
    with redis_server.client(socket_timeout=0.1) as client, pytest.raises(redis.TimeoutError):
        client.ping()

    redis_server.thaw()

    with redis_server.client() as client:
        assert client.ping()


def test_a_redis_takes_settings_in_its_own_words() -> None:
    with (
        ValkeyServer(maxmemory="64mb", **{"maxmemory-policy": "noeviction"}) as server,
        server.client() as client,
    ):
        assert client.config_get("maxmemory") == {"maxmemory": str(64 * 2**20)}


def test_a_redis_with_a_password_takes_the_one_in_its_url() -> None:
    with ValkeyServer(password="pä/ss", requirepass="pä/ss") as server:
        with _redis(server.url().replace("valkey:", "redis:")) as client:
            assert client.ping()
        with server.client(password=None) as client, pytest.raises(redis.AuthenticationError):
            client.ping()


def test_a_redis_with_an_acl_file_knows_its_user(tmp_path: Path) -> None:
    acl = tmp_path / "users.acl"
    acl.write_text("user default off\nuser app on >secret ~{chasqui:*}:* &* +@all\n")
    with ValkeyServer(user="app", password="secret", aclfile=str(acl)) as server, server.client() as client:
        assert client.acl_whoami() == "app"
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.set("elsewhere", 1)


def test_a_redis_with_tls_takes_nothing_else(redis_tls_server: RedisServer) -> None:
    with _redis(redis_tls_server.url()) as client:
        assert client.ping()
    plain = f"redis://127.0.0.1:{redis_tls_server.port}"
    with pytest.raises(redis.ConnectionError), _redis(plain) as client:
        client.ping()


def test_a_redis_on_a_socket_has_no_port() -> None:
    with ValkeyServer(socket=True) as server:
        with _redis(server.url()) as client:
            assert client.ping()
        with pytest.raises(redis.ConnectionError), _redis(f"redis://127.0.0.1:{server.port}") as client:
            client.ping()


def test_a_replica_has_what_its_primary_has_and_refuses_writes() -> None:
    with ValkeyServer() as primary, ValkeyServer() as replica:
        with primary.client() as client:
            client.set("kept", "here")
        replica.replica_of(primary)
        with replica.client() as client:
            assert client.get("kept") == b"here"
            with pytest.raises(redis.exceptions.ReadOnlyError):
                client.set("kept", "there")
            replica.replica_of(None)
            assert client.set("kept", "there")


@pytest.mark.faults
def test_a_cluster_serves_every_slot_and_does_so_again_when_a_node_was_lost(
    redis_cluster: RedisCluster,
) -> None:
    redis_cluster.fresh()
    _write_everywhere(redis_cluster)
    keys = [_size(node) for node in redis_cluster.nodes]
    assert sum(keys) == 100
    assert all(keys)
    lost = redis_cluster.node_of("{chasqui:orders}:stream")
    lost.kill()

    redis_cluster.fresh()

    assert lost.running
    assert [_size(node) for node in redis_cluster.nodes] == [0, 0, 0]
    _write_everywhere(redis_cluster)


@pytest.mark.faults
def test_a_sentinel_makes_the_replica_the_primary_when_the_first_one_is_gone() -> None:
    with Sentinel() as watched:
        first, second = watched.servers
        assert watched.primary is first
        first.kill()
        _eventually(lambda: watched.primary is second)
        with second.client() as client:
            _eventually(lambda: client.info("replication")["role"] == "master")


def test_servers_are_named_by_their_maker_and_major_version(monkeypatch: pytest.MonkeyPatch) -> None:
    named_servers.cache_clear()
    valkey = ValkeyServer.default_program()
    monkeypatch.setenv("REMUDA_TEST_REDIS_SERVERS", f"{valkey}:{valkey}")
    try:
        (named,) = named_servers().values()
    finally:
        named_servers.cache_clear()
    assert (named.label, str(named.program)) == (f"valkey{named.version.split('.')[0]}", valkey)


@pytest.mark.parametrize("program", ["/nowhere/redis-server", sys.executable])
def test_a_named_server_that_is_none_is_an_error(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    named_servers.cache_clear()
    monkeypatch.setenv("REMUDA_TEST_REDIS_SERVERS", program)
    try:
        with pytest.raises(RuntimeError, match="REMUDA_TEST_REDIS_SERVERS"):
            named_servers()
    finally:
        named_servers.cache_clear()


def _redis(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0))


def _write_everywhere(cluster: RedisCluster) -> None:
    with redis.RedisCluster("127.0.0.1", cluster.nodes[0].port) as client:
        for number in range(100):
            client.set(f"key {number}", number)


def _size(node: RedisServer) -> int:
    with node.client() as client:
        return int(client.dbsize())


def _connect(url: str) -> psycopg.Connection | pymysql.Connection:
    if url.startswith("postgresql:"):
        return psycopg.connect(url)
    address = make_url(url)
    return pymysql.connect(
        host=address.host, port=address.port or 0, user=address.username, database=address.database
    )


def _eventually(holds: Callable[[], bool], within_s: float = 10) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.05)
