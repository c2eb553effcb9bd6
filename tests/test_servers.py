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
from sqlalchemy.engine import make_url

from tests.servers import Server, alive

MAKE_A_SERVER = """
from tests.servers import {server_class}
server = {server_class}()
server.start()
print(server.directory, server._process.pid, flush=True)
input()
"""


@pytest.fixture(params=["postgres", "mariadb"])
def server(request: pytest.FixtureRequest) -> Server:
    found = request.getfixturevalue(f"{request.param}_server")
    assert isinstance(found, Server)
    return found


@pytest.mark.faults
def test_a_commit_survives_a_kill(server: Server) -> None:
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
def test_a_restart_keeps_the_url(server: Server) -> None:
    with server.database() as url:
        server.restart()
        _connect(url).close()


def test_a_database_is_dropped_although_a_transaction_is_open_in_it(server: Server) -> None:
    with server.database() as url:
        connection = _connect(url)
        connection.cursor().execute("CREATE TABLE held (id INTEGER PRIMARY KEY)")
        connection.commit()
        connection.cursor().execute("SELECT id FROM held")
    connection.close()


@pytest.mark.faults
def test_a_server_and_its_folder_go_with_the_process_that_made_them(
    server: Server, pytestconfig: pytest.Config
) -> None:
    script = MAKE_A_SERVER.format(server_class=type(server).__name__)
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
