"""`init` and `migrate`: tables where a store has them, and nothing to do where it has none."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Column, Engine, MetaData, Table, create_engine, inspect, text
from sqlalchemy.engine import make_url

from remuda.cli.exits import ExitCode
from remuda.stores.sql.schema import archive, message
from tests.cli.conftest import Remuda

_DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}


def _engine(remuda: Remuda) -> Engine:
    url = make_url(remuda.url)
    return create_engine(url.set(drivername=_DRIVERS[url.get_backend_name()]))


def _tables(remuda: Remuda) -> set[str]:
    engine = _engine(remuda)
    try:
        return set(inspect(engine).get_table_names())
    finally:
        engine.dispose()


def _make_reference_tables(remuda: Remuda) -> None:
    """The tables as the reference broker makes them: the first columns of ours."""
    metadata = MetaData()
    for table, count in ((message, 12), (archive, 12)):
        columns = [
            Column(each.name, each.type, primary_key=each.primary_key, nullable=each.nullable)
            for each in list(table.columns)[:count]
        ]
        Table(table.name, metadata, *columns)
    engine = _engine(remuda)
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO message (id, queue, payload, state, attempts_count, deliveries_count, "
                "created_at, next_attempt_at) VALUES (1, 'emails', :payload, 'PENDING', 0, 0, "
                "'2020-01-01 00:00:00', '2020-01-01 00:00:00')"
            ),
            {"payload": b"hello"},
        )
    engine.dispose()


def test_init_makes_the_tables_once(on_tables: Remuda) -> None:
    made = on_tables.ok("init")
    assert made.startswith("made the tables, version 5, in ")
    assert {"message", "message_archive", "message_transition"} <= _tables(on_tables)
    assert on_tables.ok("init").startswith("the tables are there already, version 5, in ")
    assert on_tables.json("init")["created"] is False
    assert on_tables.ok("inspect") == ""


def test_migrate_makes_the_tables_where_there_are_none(on_tables: Remuda) -> None:
    if on_tables.url.startswith("sqlite"):
        assert on_tables("migrate", "--dry-run").code == ExitCode.UNAVAILABLE
        Path(on_tables.directory, "remuda.db").touch()
    report = on_tables.json("migrate", "--dry-run")
    assert (report["before"], report["pending"], report["applied"]) == (None, [5], [])
    assert not _tables(on_tables)
    assert on_tables.json("migrate")["applied"] == [5]
    assert "nothing to do" in on_tables.ok("migrate")


def test_migrate_takes_over_the_tables_of_the_reference_broker(on_tables: Remuda) -> None:
    _make_reference_tables(on_tables)
    refused = on_tables("jobs", "list", "emails")
    assert refused.code == ExitCode.SCHEMA
    assert "`remuda migrate` adds what is missing" in refused.err

    told = on_tables.ok("migrate", "--dry-run")
    assert "0: tables that another program made" in told
    assert "column message.job_id is missing" in told
    assert "would apply: 1, 2, 3, 4" in told
    assert on_tables("jobs", "list", "emails").code == ExitCode.SCHEMA

    assert "applied: 1, 2, 3, 4" in on_tables.ok("migrate")
    (job,) = on_tables.json("jobs", "list", "emails")["jobs"]
    assert (job["id"], job["payload_encoding"], job["payload"]) == ("1", "base64", "aGVsbG8=")


def test_doctor_finds_old_tables(on_tables: Remuda) -> None:
    _make_reference_tables(on_tables)
    ended = on_tables("doctor")
    assert ended.code == ExitCode.SCHEMA
    assert "run `remuda migrate`" in ended.out


def test_where_there_are_no_tables_there_is_nothing_to_do(on_redis: Remuda) -> None:
    assert on_redis.ok("init") == f"nothing to make: {on_redis.url} is there, and needs no tables\n"
    assert on_redis.ok("migrate") == f"nothing to migrate: {on_redis.url} is there, and needs no tables\n"
    assert on_redis.json("init") == {"store": on_redis.url, "created": False, "version": None}
    assert on_redis.json("migrate", "--dry-run") == {
        "store": on_redis.url,
        "before": None,
        "wanted": None,
        "pending": [],
        "missing": None,
        "applied": [],
        "dry_run": True,
    }
    assert on_redis.ok("inspect") == ""


def test_without_tables_a_server_must_be_there_all_the_same(on_sqlite: Remuda) -> None:
    for command in ("init", "migrate"):
        assert on_sqlite(command, "-u", "redis://127.0.0.1:1").code == ExitCode.UNAVAILABLE
