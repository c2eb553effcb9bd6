"""`init` and `migrate`: the tables of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from remuda.cli import output
from remuda.cli.exits import run
from remuda.cli.opening import check_there, given, opening, sql_store
from remuda.cli.options import AsJson, DryRun, Url
from remuda.errors import SchemaError
from remuda.stores import open_store

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from remuda.stores.contract import Store
    from remuda.stores.sql.store import SqlStore


def init(url: Url = None, as_json: AsJson = False) -> None:
    """Make the tables. Where they are there already, they are checked and nothing is changed.

    A queue also makes them at its first use; `init` is for setting up with the rights that takes.
    On Redis and Valkey there are none: the server is reached and looked at, and that is all.
    """
    report = run(lambda: _init(given(url)))
    if as_json:
        output.emit(report)
    elif report["version"] is None:
        output.say(f"nothing to make: {report['store']} is there, and needs no tables")
    elif report["created"]:
        output.say(f"made the tables, version {report['version']}, in {report['store']}")
    else:
        output.say(f"the tables are there already, version {report['version']}, in {report['store']}")


async def _init(url: str) -> dict[str, Any]:
    store = open_store(url)
    sql = sql_store(store)
    try:
        if sql is None:
            await _reach(store)
            made: dict[str, Any] = {"created": False, "version": None}
        else:
            made = await _make_tables(sql)
    finally:
        await store.close()
    return {"store": store.url, **made}


async def _reach(store: Store) -> None:
    """A store without tables is set up when it answers."""
    with opening(store):
        await store.open()


async def _make_tables(store: SqlStore) -> dict[str, Any]:
    from remuda.stores.sql import migrations

    with opening(store):
        await store.open_unchecked()
    before = await store.run_on_schema(_made_if_missing)
    version = await store.run_sync(migrations.installed_version)
    return {"created": before is None, "version": version}


def _made_if_missing(connection: Connection) -> int | None:
    from remuda.stores.sql import migrations

    before = migrations.installed_version(connection)
    migrations.ensure(connection)
    return before


def migrate(url: Url = None, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Bring the tables to the version that this Remuda works with.

    Stop the workers first. Tables of the reference broker (version 0) keep their rows.
    On Redis and Valkey there are none, and nothing is to be done.
    """
    report = run(lambda: _migrate(given(url), dry_run=dry_run))
    if as_json:
        output.emit(report)
    elif report["wanted"] is None:
        output.say(f"nothing to migrate: {report['store']} is there, and needs no tables")
    else:
        _show(report)


def _show(report: dict[str, Any]) -> None:
    output.facts(
        [
            ("store", report["store"]),
            ("version found", _version_text(report["before"])),
            ("version wanted", str(report["wanted"])),
            ("missing", report["missing"] or "nothing"),
        ]
    )
    pending = ", ".join(map(str, report["pending"]))
    if report["dry_run"]:
        output.say(f"would apply: {pending or 'nothing'}")
    elif report["applied"]:
        output.say(f"applied: {pending}")
    else:
        output.say("completed the tables" if report["missing"] else "nothing to do")


def _version_text(version: int | None) -> str:
    if version is None:
        return "none: there are no tables"
    return "0: tables that another program made" if version == 0 else str(version)


async def _migrate(url: str, *, dry_run: bool) -> dict[str, Any]:
    if dry_run:
        check_there(url)
    store = open_store(url)
    sql = sql_store(store)
    try:
        if sql is None:
            await _reach(store)
            report: dict[str, Any] = {**_NO_TABLES, "applied": []}
        else:
            report = await _bring_up(sql, dry_run=dry_run)
    finally:
        await store.close()
    return {"store": store.url, **report, "dry_run": dry_run}


_NO_TABLES: dict[str, Any] = {"before": None, "wanted": None, "pending": [], "missing": None}


async def _bring_up(store: SqlStore, *, dry_run: bool) -> dict[str, Any]:
    from remuda.stores.sql import migrations

    with opening(store):
        await store.open_unchecked()
    report = await store.run_sync(_look)
    applied = [] if dry_run else await store.run_on_schema(migrations.migrate)
    return {**report, "applied": applied}


def _look(connection: Connection) -> dict[str, Any]:
    """What is there, what is wanted, and what is missing."""
    from remuda.stores.sql import migrations
    from remuda.stores.sql.schema import SCHEMA_VERSION

    before = migrations.installed_version(connection)
    if before is None:
        return {
            "before": None,
            "wanted": SCHEMA_VERSION,
            "pending": [SCHEMA_VERSION],
            "missing": "all tables",
        }
    if before > SCHEMA_VERSION:
        migrations.check(connection)  # says what to do
    missing = None
    try:
        migrations.check(connection)
    except SchemaError as error:
        missing = str(error)
    pending = list(range(before + 1, SCHEMA_VERSION + 1))
    return {"before": before, "wanted": SCHEMA_VERSION, "pending": pending, "missing": missing}
