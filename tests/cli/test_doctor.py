"""`doctor`: what it says of a healthy store, and what it finds."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
from sqlalchemy.engine import make_url

from remuda.cli import doctor, sql_findings
from remuda.cli.exits import ExitCode
from remuda.cli.findings import Level
from tests.cli.conftest import Remuda
from tests.servers import MariaDBServer, PostgresServer

WAKES = {
    "sqlite": "the file's version",
    "postgresql": "tells idle workers",
    "mysql": "every 20 to 200 ms",
    "redis": "wait on the streams",
    "valkey": "wait on the streams",
}


def _found(report: Any, level: str) -> dict[str, str]:
    return {each["check"]: each["message"] for each in report["findings"] if each["level"] == level}


def test_a_healthy_store(everywhere: Remuda) -> None:
    remuda = everywhere
    remuda.ok("init")
    report = remuda.json("doctor")
    assert report["ok"]
    has_tables = report["backend"] not in ("redis", "valkey")
    version = 5 if has_tables else None
    assert report["schema"] == {"ok": True, "version": version, "wanted": version, "trouble": None}
    assert abs(report["clock_offset_seconds"]) < 1
    assert 0 < report["round_trip_seconds"] < 1
    assert not _found(report, "problem")
    # Before Redis 7.0 no user can ask what they may do.
    assert set(_found(report, "unknown")) <= ({"rights"} if report["version"].startswith("6.") else set())
    told = remuda.ok("doctor")
    assert ("version 5, complete" if has_tables else "this store needs none") in told
    assert WAKES[report["backend"]] in told
    assert report["version"] in told


def test_every_warning_comes_with_a_suggestion(remuda: Remuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda _name: None)
    monkeypatch.setattr(doctor, "SLOW_ROUND_TRIP", timedelta(0))
    remuda.ok("init")
    report = remuda.json("doctor")
    warnings = _found(report, "warning")
    assert "without uvloop" in warnings["python"]
    assert "round trip" in warnings
    assert ("wake-up" in warnings) == (report["backend"] == "mysql")
    for each in report["findings"]:
        assert (each["suggestion"] is None) == (each["level"] == Level.OK)
    assert "-> pip install uvloop" in remuda.ok("doctor")


def test_missing_tables_are_a_problem(on_tables: Remuda) -> None:
    if on_tables.url.startswith("sqlite"):
        Path(on_tables.directory, "remuda.db").touch()
    ended = on_tables("doctor")
    assert ended.code == ExitCode.SCHEMA
    assert "there are no tables yet" in ended.out
    assert "run `remuda init`" in ended.out


def test_a_store_that_cannot_be_reached(on_sqlite: Remuda) -> None:
    assert on_sqlite("doctor", "-u", "postgresql://nobody@127.0.0.1:1/x").code == ExitCode.UNAVAILABLE


def test_a_long_transaction_on_postgresql(on_postgres: Remuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_findings, "LONG_TRANSACTION", timedelta(0))
    on_postgres.ok("init")
    with psycopg.connect(on_postgres.url, application_name="report") as connection:
        connection.execute("SELECT 1")
        report = on_postgres.json("doctor")
    pid = connection.info.backend_pid if not connection.closed else ""
    told = _found(report, "warning")["transactions"]
    assert "(idle in transaction, report)" in told
    assert "holds back vacuum" in told
    assert str(pid) in told


def test_dead_rows_and_settings_of_postgresql(
    on_postgres: Remuda, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_findings, "MANY_DEAD_ROWS", -1)
    monkeypatch.setattr(sql_findings, "MANY_CONNECTIONS", 0.0)
    on_postgres.ok("init")
    warnings = _found(on_postgres.json("doctor"), "warning")
    assert "fsync is off" in warnings["settings"]  # as the tests have it
    assert "connections are in use" in warnings["connections"]


def test_the_settings_of_mariadb(
    mariadb_server: MariaDBServer, mariadb_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_findings, "LONG_TRANSACTION", timedelta(seconds=-1))
    remuda = Remuda(mariadb_url, tmp_path)
    remuda.ok("init")
    url = make_url(mariadb_url)
    with pymysql.connect(
        host=url.host, port=url.port or 0, user="root", database=url.database, ssl_disabled=True
    ) as other:
        with other.cursor() as cursor:
            cursor.execute("SELECT * FROM message FOR UPDATE")
        warnings = _found(remuda.json("doctor"), "warning")
    assert "innodb_flush_log_at_trx_commit is 2" in warnings["settings"]  # as the tests have it
    assert "has had a transaction open" in warnings["transactions"]


def test_sqlite_on_a_network_filesystem(on_sqlite: Remuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_findings, "filesystem_of", lambda _path: "nfs4")
    on_sqlite.ok("init")
    told = next(each for each in on_sqlite.json("doctor")["findings"] if each["level"] == "warning")
    assert "is on a network filesystem (nfs4)" in told["message"]
    assert "move it to a local disk" in told["suggestion"]
    assert on_sqlite("doctor").code == 0


def test_the_filesystem_of_a_path_is_the_nearest_mount() -> None:
    assert sql_findings.filesystem_of(Path("/proc/self")) == "proc"
