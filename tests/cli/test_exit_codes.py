"""How a command ends: one line and a code that scripts can use."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from remuda.cli.exits import MEANINGS, ExitCode
from tests.cli.conftest import Remuda
from tests.servers import PostgresServer


def test_without_a_store_it_says_where_to_name_one(on_sqlite: Remuda) -> None:
    ended = on_sqlite("inspect", env={"REMUDA_URL": ""})
    assert ended.code == ExitCode.USAGE
    assert ended.err == "remuda: which store? Give --url URL or set REMUDA_URL, such as sqlite:///app.db\n"


def test_the_option_goes_before_the_variable(on_sqlite: Remuda) -> None:
    on_sqlite.ok("init")
    assert on_sqlite("inspect", "--url", on_sqlite.url, env={"REMUDA_URL": "nonsense"}).code == 0


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("oracle://host/db", "no store is known"),
        ("postgresql+psycopg://h/d", "through asyncpg"),
        ("redis://host/db", "db=db in the store's URL: a whole number"),
        ("redis://host?retries=5", "'retries' is no parameter of a Redis store's URL"),
        ("redis://one,two", "names several servers; write redis+sentinel:// or redis+cluster://"),
    ],
)
def test_a_url_that_makes_no_sense_is_a_matter_of_usage(on_sqlite: Remuda, url: str, told: str) -> None:
    ended = on_sqlite("inspect", "-u", url)
    assert ended.code == ExitCode.USAGE
    assert told in ended.err


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:secret@127.0.0.1:1/x",
        "mysql://u:secret@127.0.0.1:1/x",
        "redis://u:secret@127.0.0.1:1",
        "redis+cluster://u:secret@127.0.0.1:1,127.0.0.1:2",
        "redis+sentinel://u:secret@127.0.0.1:1,127.0.0.1:2/service",
        "redis+unix://u:secret@/nowhere/redis.sock",
    ],
)
def test_a_server_that_is_not_there_is_unavailable(on_sqlite: Remuda, url: str) -> None:
    ended = on_sqlite("inspect", "-u", url)
    assert ended.code == ExitCode.UNAVAILABLE
    assert ended.err.count("\n") == 1
    assert "secret" not in ended.err


@pytest.mark.parametrize("command", [("inspect",), ("init",), ("doctor",)])
def test_a_wrong_password_is_unavailable(on_valkey: Remuda, command: tuple[str, ...]) -> None:
    ended = on_valkey(*command, "-u", on_valkey.url.replace("://", "://clerk:secret@"))
    assert ended.code == ExitCode.UNAVAILABLE
    assert "does not let the user 'clerk' in" in ended.err
    assert "secret" not in ended.err


def test_an_unknown_database_is_unavailable(on_sqlite: Remuda, postgres_server: PostgresServer) -> None:
    ended = on_sqlite("inspect", "-u", postgres_server.url("nowhere"))
    assert ended.code == ExitCode.UNAVAILABLE
    assert 'database "nowhere" does not exist' in ended.err


@pytest.mark.parametrize(
    "command", [("inspect",), ("jobs", "list", "q"), ("dlq", "peek", "q"), ("purge", "q"), ("doctor",)]
)
def test_looking_makes_no_file(on_sqlite: Remuda, command: tuple[str, ...]) -> None:
    ended = on_sqlite(*command)
    assert ended.code == ExitCode.UNAVAILABLE
    assert "there is no file" in ended.err
    assert not list(on_sqlite.directory.iterdir())


@pytest.mark.parametrize(
    "command",
    [("inspect",), ("jobs", "list", "q"), ("dlq", "peek", "q"), ("migrate", "--dry-run"), ("doctor",)],
)
def test_looking_makes_no_folder(embedded: Remuda, command: tuple[str, ...]) -> None:
    ended = embedded(*command)
    assert ended.code == ExitCode.UNAVAILABLE
    assert "there is no store in the folder" in ended.err
    assert not list(embedded.directory.iterdir())


def test_looking_makes_no_tables(on_tables: Remuda) -> None:
    if on_tables.url.startswith("sqlite"):
        Path(on_tables.directory, "remuda.db").touch()
    ended = on_tables("inspect")
    assert ended.code == ExitCode.SCHEMA
    assert ended.err == "remuda: there are no tables yet; `remuda init` makes them\n"
    assert on_tables("inspect").code == ExitCode.SCHEMA


def test_tables_of_a_newer_remuda_are_a_schema_problem(on_sqlite: Remuda) -> None:
    on_sqlite.ok("init")
    engine = create_engine(on_sqlite.url)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO message_schema VALUES (99, '2030-01-01 00:00:00')"))
    engine.dispose()
    for command in (("inspect",), ("migrate",), ("add", "q", "n"), ("init",)):
        ended = on_sqlite(*command)
        assert ended.code == ExitCode.SCHEMA
        assert "version 99" in ended.err


def test_a_job_that_makes_no_sense_is_a_matter_of_usage(on_sqlite: Remuda) -> None:
    ended = on_sqlite("add", "emails", "welcome", "--priority", "7")
    assert ended.code == ExitCode.USAGE
    assert "from -2 to 2, not 7" in ended.err


def test_debug_shows_the_trace_of_an_error(on_sqlite: Remuda) -> None:
    ended = on_sqlite("--debug", "inspect")
    assert ended.code == ExitCode.UNAVAILABLE
    assert "Traceback" in ended.err
    assert ended.err.splitlines()[-1].startswith("remuda: there is no file")
    assert "Traceback" not in on_sqlite("inspect").err


def test_an_error_that_nobody_foresaw_is_one_line_too(
    on_sqlite: Remuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*_: object) -> None:
        raise ZeroDivisionError("far away")

    monkeypatch.setattr("remuda.cli.opening.open_store", explode)
    ended = on_sqlite("inspect")
    assert ended.code == ExitCode.ERROR
    assert ended.err == "remuda: ZeroDivisionError: far away (`remuda --debug …` shows where)\n"


def test_the_codes_are_in_the_help(on_sqlite: Remuda) -> None:
    told = on_sqlite.ok("--help")
    for code, meaning in MEANINGS.items():
        assert f"{code.value}  {meaning}" in told


def test_the_version(on_sqlite: Remuda) -> None:
    from remuda import __version__

    assert on_sqlite.ok("--version") == f"remuda {__version__}\n"
