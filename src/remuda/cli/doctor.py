"""`doctor`: what the store is, whether it is in order, and what will be slow."""

from __future__ import annotations

import platform
import statistics
import time
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from remuda.cli import output
from remuda.cli.exits import ExitCode, run
from remuda.cli.findings import Finding, Level, ok, problem, warning
from remuda.cli.opening import check_there, given, opening, sql_store
from remuda.cli.options import AsJson, Url
from remuda.cli.output import Cell
from remuda.errors import SchemaError
from remuda.stores import open_store

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from remuda.stores.contract import Capabilities, Store
    from remuda.stores.sql.store import SqlStore

ROUND_TRIPS = 21
SLOW_ROUND_TRIP = timedelta(milliseconds=5)
LARGE_OFFSET = timedelta(seconds=1)

_WAKES = {
    "notify": "the server tells idle workers of new jobs",
    "watch": "idle workers look at the file's version, every few milliseconds",
    "poll": "idle workers look for due jobs, every 20 to 200 ms",
    "redis": "idle workers wait on the streams, and the server answers when there is a job (XREAD)",
    "valkey": "idle workers wait on the streams, and the server answers when there is a job (XREAD)",
}


def doctor(url: Url = None, as_json: AsJson = False) -> None:
    """Say what the store can do, and what is wrong or slow.

    Each finding comes with what to do about it. Ends with 1 if something is wrong, with 4 if that is the
    tables. Warnings alone are no error.
    """
    report = run(lambda: _examine(given(url)))
    if as_json:
        output.emit({**report, "findings": [each._asdict() for each in report["findings"]]})
    else:
        _show(report)
    if not report["schema"]["ok"]:
        raise typer.Exit(ExitCode.SCHEMA)
    if not report["ok"]:
        raise typer.Exit(ExitCode.ERROR)


class Examined(NamedTuple):
    """What only one family of stores can say."""

    schema: dict[str, Any]
    trips: list[float]
    findings: list[Finding]


async def _examine(url: str) -> dict[str, Any]:
    check_there(url)
    store = open_store(url)
    sql = sql_store(store)
    try:
        with opening(store):
            capabilities = await (store.open() if sql is None else sql.open_unchecked())
        offset = store.now() - datetime.now(UTC)
        examined = await (_examine_redis(store, url) if sql is None else _examine_sql(sql, url))
    finally:
        await store.close()
    findings = [
        _python(),
        _schema_finding(examined.schema),
        _clock(offset),
        _wake(capabilities),
        _latency(examined.trips),
        *examined.findings,
    ]
    return {
        "ok": all(each.level is not Level.PROBLEM for each in findings),
        "store": store.url,
        "backend": capabilities.backend,
        "version": capabilities.version,
        "wake": capabilities.wake,
        "transactional": capabilities.transactional,
        "features": capabilities.features,
        "schema": examined.schema,
        "clock_offset_seconds": offset.total_seconds(),
        "round_trip_seconds": statistics.median(examined.trips),
        "python": platform.python_version(),
        "uvloop": find_spec("uvloop") is not None,
        "findings": findings,
    }


async def _examine_sql(store: SqlStore, url: str) -> Examined:
    from remuda.cli.sql_findings import look_into

    trips = await store.run_sync(_ask_often)
    return Examined(await store.run_sync(_schema), trips, await look_into(store, url))


async def _examine_redis(store: Store, url: str) -> Examined:
    from remuda.cli.redis_findings import look_into

    found, trips = await look_into(store, url, ROUND_TRIPS)
    return Examined({"ok": True, "version": None, "wanted": None, "trouble": None}, trips, found)


def _ask_often(connection: Connection) -> list[float]:
    from sqlalchemy import text

    trips = []
    for _ in range(ROUND_TRIPS):
        began = time.perf_counter()
        connection.execute(text("SELECT 1")).all()
        trips.append(time.perf_counter() - began)
    return trips


def _schema(connection: Connection) -> dict[str, Any]:
    from remuda.stores.sql import migrations
    from remuda.stores.sql.schema import SCHEMA_VERSION

    version = migrations.installed_version(connection)
    trouble = None
    if version is None:
        trouble = "there are no tables yet"
    else:
        try:
            migrations.check(connection)
        except SchemaError as error:
            trouble = str(error)
    return {"ok": trouble is None, "version": version, "wanted": SCHEMA_VERSION, "trouble": trouble}


# -- findings that hold for every store


def _schema_finding(schema: dict[str, Any]) -> Finding:
    if schema["wanted"] is None:
        return ok("tables", "this store needs none")
    if schema["ok"]:
        return ok("tables", f"version {schema['version']}, complete")
    remedy = "remuda init" if schema["version"] is None else "remuda migrate"
    return problem("tables", schema["trouble"], f"run `{remedy}`")


def _python() -> Finding:
    version = platform.python_version()
    if find_spec("uvloop") is None and platform.system() != "Windows":
        return warning("python", f"Python {version} without uvloop: workers run slower", "pip install uvloop")
    return ok("python", f"Python {version} with uvloop")


def _clock(offset: timedelta) -> Finding:
    milliseconds = offset / timedelta(milliseconds=1)
    side = "ahead of" if milliseconds > 0 else "behind"
    told = f"the server's clock is {abs(milliseconds):,.1f} ms {side} ours"
    if abs(offset) > LARGE_OFFSET:
        return warning(
            "clock", f"{told}; Remuda reckons with it, other programs may not", "keep both in step with NTP"
        )
    return ok("clock", told if abs(milliseconds) >= 0.1 else "the same as ours")


def _wake(capabilities: Capabilities) -> Finding:
    told = _WAKES.get(capabilities.backend) or _WAKES.get(capabilities.wake, capabilities.wake)
    if capabilities.wake == "poll":
        return warning(
            "wake-up",
            f"{told}: a new job may wait that long",
            "where that matters use PostgreSQL, which tells them at once",
        )
    return ok("wake-up", told)


def _latency(trips: list[float]) -> Finding:
    median_ms, longest_ms = statistics.median(trips) * 1e3, max(trips) * 1e3
    told = f"{median_ms:.2f} ms (median of {len(trips)}, the longest {longest_ms:.2f} ms)"
    if median_ms > SLOW_ROUND_TRIP / timedelta(milliseconds=1):
        return warning(
            "round trip",
            f"{told}: every batch of jobs waits for several of them",
            "run the workers nearer to the server, or raise fetch_batch_size and flush_interval",
        )
    return ok("round trip", told)


# -- showing


_SIGNS = {
    Level.OK: Cell("ok", "green"),
    Level.UNKNOWN: Cell("?", "yellow"),
    Level.WARNING: Cell("warn", "yellow"),
    Level.PROBLEM: Cell("BAD", "bold red"),
}


def _show(report: dict[str, Any]) -> None:
    findings: list[Finding] = report["findings"]
    transactional = "with your own data" if report["transactional"] else "on its own"
    output.facts(
        [
            ("store", Cell(report["store"], "bold")),
            ("server", f"{report['backend']} {report['version']}"),
            ("a job commits", transactional),
        ]
    )
    output.say()
    rows: list[tuple[str | Cell, str | Cell]] = []
    for each in findings:
        sign, style = _SIGNS[each.level]
        rows.append((Cell(f"{sign:<4}  {each.check}", style), output.printable(each.message)))
        if each.suggestion:
            rows.append(("", Cell(f"-> {each.suggestion}", "bold")))
    output.facts(rows)
    output.say()
    problems, warnings = (
        sum(each.level is level for each in findings) for level in (Level.PROBLEM, Level.WARNING)
    )
    if problems or warnings:
        output.say(f"{output.plural(problems, 'problem')}, {output.plural(warnings, 'warning')}")
    else:
        output.say("all in order", "green")
