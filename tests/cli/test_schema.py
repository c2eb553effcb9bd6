"""`init` and `migrate` on every store."""

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


def test_init_makes_the_tables_once(remuda: Remuda) -> None:
    made = remuda.ok("init")
    assert made.startswith("made the tables, version 2, in ")
    assert {"message", "message_archive", "message_transition"} <= _tables(remuda)
    assert remuda.ok("init").startswith("the tables are there already, version 2, in ")
    assert remuda.json("init")["created"] is False
    assert remuda.ok("inspect") == ""


def test_migrate_makes_the_tables_where_there_are_none(remuda: Remuda) -> None:
    if remuda.url.startswith("sqlite"):
        assert remuda("migrate", "--dry-run").code == ExitCode.UNAVAILABLE
        Path(remuda.directory, "remuda.db").touch()
    report = remuda.json("migrate", "--dry-run")
    assert (report["before"], report["pending"], report["applied"]) == (None, [2], [])
    assert not _tables(remuda)
    assert remuda.json("migrate")["applied"] == [2]
    assert "nothing to do" in remuda.ok("migrate")


def test_migrate_takes_over_the_tables_of_the_reference_broker(remuda: Remuda) -> None:
    _make_reference_tables(remuda)
    refused = remuda("jobs", "emails")
    assert refused.code == ExitCode.SCHEMA
    assert "`remuda migrate` adds what is missing" in refused.err

    told = remuda.ok("migrate", "--dry-run")
    assert "0: tables that another program made" in told
    assert "column message.job_id is missing" in told
    assert "would apply: 1, 2" in told
    assert remuda("jobs", "emails").code == ExitCode.SCHEMA

    assert "applied: 1, 2" in remuda.ok("migrate")
    (job,) = remuda.json("jobs", "emails")["jobs"]
    assert (job["id"], job["payload_encoding"], job["payload"]) == ("1", "base64", "aGVsbG8=")


def test_doctor_finds_old_tables(remuda: Remuda) -> None:
    _make_reference_tables(remuda)
    ended = remuda("doctor")
    assert ended.code == ExitCode.SCHEMA
    assert "run `remuda migrate`" in ended.out
