"""Dead letters in the lake: fingerprints, and each death once with what the store says of it."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from remuda import Exponential, Queue, Reason
from remuda.clock import VirtualClock
from remuda.devices.command import CommandType, Device, Gateway, Protocol
from remuda.devices.fleet import Fleet
from remuda.devices.happenings import CallFailed, Dispatched
from remuda.devices.sending import NewCommand
from remuda.devices.timings import Timings
from remuda.lake.deaths import Captured, capture_deaths
from remuda.lake.fingerprint import fault_of, fingerprint, functions_of
from remuda.lake.ingest import ingest_round
from remuda.lake.place import Lake
from remuda.stores.contract import Failure
from tests.contract.workbench import HOUR, SECOND
from tests.lake.dead_workbench import (
    METER,
    SOURCE,
    START,
    die,
    fail_command,
    gather,
    killed_at,
    rows_of,
    succeed,
)

# -- fingerprints


@pytest.mark.parametrize(
    ("error_type", "message", "fault"),
    [
        (
            "ConnectionError",
            "no answer from 10.0.0.7:5432 after 30 s",
            "ConnectionError: no answer from # after # s",
        ),
        (
            "ValueError",
            "order 01J8XKQ5V0A1 of 'Smith' costs 1,234.50 €",
            "ValueError: order # of '…' costs # €",
        ),
        ("E", "7b1f3c1e-1111-4222-8333-123456789abc of 2030-01-01T10:00:00.5+00:00", "E: # of #"),
        ("E", "from fe80::abcd:1 and ::1", "E: from # and #"),
        ("E", "until Mon, 01 Jan 2030 10:00:00 GMT, since Jan 1 2030", "E: until #, since #"),
        (
            "E",
            "https://example.org/x?y=1 for a.b+c@example.org: can't, don't",
            "E: <url> for <email>: can't, don't",
        ),
        (
            "E",
            r"/var/lib/app/42/x.csv or C:\Users\me\x.txt or in/2030/x.csv",
            "E: <path> or <path> or <path>",
        ),
        ("E", "ids [1, 2, 3] of {'a': 1, 'b': {'c': 2}}, text/html", "E: ids [#] of {…}, text/html"),
        ("E", "first line\nsecond line 2", "E: first line"),
        # What is no part of a message, but of the code, the tables or the protocol, tells faults apart.
        ("KeyError", "'email'", "KeyError: 'email'"),
        ("KeyError", "'order-42'", "KeyError: '…'"),
        (
            "AttributeError",
            "'Order' object has no attribute 'total'",
            "AttributeError: 'Order' object has no attribute 'total'",
        ),
        (
            "E",
            'violates unique constraint "users_email_key"',
            'E: violates unique constraint "users_email_key"',
        ),
        (
            "E",
            "HTTP 503, status code 404, [Errno 111], attempt 3",
            "E: HTTP 503, status code 404, [Errno 111], attempt #",
        ),
        (
            "E",
            "Server error '503 Service Unavailable' for '42'",
            "E: Server error '503 Service Unavailable' for '…'",
        ),
    ],
)
def test_a_fault_is_told_without_what_varies(error_type: str, message: str, fault: str) -> None:
    assert fault_of("retries_exhausted", error_type, message) == fault


def test_a_fault_without_an_error_is_told_by_its_reason() -> None:
    assert fault_of("expired", None, None) == "its time was over before a handler could start"
    assert fault_of("max_age", None, "") == fault_of("max_age", "", None) != "max_age"
    assert fault_of("of_another_program", None, None) == "of_another_program"
    assert fault_of(None, None, None) == "nothing is known of it"
    assert len(fault_of(None, "E", "word " * 1_000)) == 200
    assert fault_of(None, "E", f"said '{'a word ' * 1_000}' at last") == "E: said '…'"


TRACE = """\
Traceback (most recent call last):
  File "/app/a.py", line 1, in earlier
ValueError: first

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/app/run.py", line 10, in run
    handler(job)
  File "/app/orders.py", line {line}, in charge
    return [pay(each) for each in items]
  File "/app/orders.py", line {line}, in <listcomp>
  File "/app/pay.py", line 3, in pay
  File "/app/pay.py", line 4, in pay
  File "/app/net.py", line 5, in call
ConnectionError: refused
"""


def test_fingerprints_keep_their_values() -> None:
    """They are kept in lakes: a change here would tear apart what belongs together."""
    fault = fault_of("retries_exhausted", "ConnectionError", "no answer from 10.0.0.7:5432 after 30 s")
    assert fingerprint("orders", "charge", "retries_exhausted", fault) == "8b9288cbf19bd71e"
    assert (
        fingerprint("orders", "charge", "retries_exhausted", fault, TRACE.format(line=7))
        == "2ae53c9442f29243"
    )
    assert fingerprint("devices:meters", None, None, "häufig") == "65a3e259fe899c6b"


def test_a_trace_counts_by_its_innermost_functions_and_not_by_its_lines() -> None:
    assert functions_of(TRACE.format(line=7)) == ["charge", "pay", "call"]
    assert functions_of(None) == functions_of("thread 'main' panicked at src/main.rs:4:5") == []
    values = {fingerprint("q", "n", "r", "f", TRACE.format(line=line)) for line in (7, 8_000)}
    assert len(values) == 1
    assert fingerprint("q", "n", "r", "f", TRACE.format(line=7).replace("in call", "in dial")) not in values


def test_what_tells_faults_apart_tells_fingerprints_apart() -> None:
    usual = ("orders", "charge", "panic", "E: x")
    others = [("emails", *usual[1:]), ("orders", "refund", *usual[2:]), (*usual[:2], "rejected", "E: x")]
    others.append((*usual[:3], "F: x"))
    assert len({fingerprint(*each) for each in [usual, *others]}) == 5


_ids = st.one_of(
    st.integers().map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda value: f"{value:.3f}"),
    st.uuids().map(str),
    st.binary(min_size=8, max_size=20).map(bytes.hex).filter(lambda text: re.search(r"\d", text)),
    st.datetimes().map(lambda moment: moment.isoformat()),
    st.ip_addresses().map(str).filter(lambda text: re.search(r"\d", text)),
    st.from_regex(r"[A-Z0-9]{10}[0-9][A-Z0-9]{15}", fullmatch=True),
    st.from_regex(r"[a-z]{2,5}[-_][0-9]{1,6}", fullmatch=True),
)


@settings(max_examples=300)
@given(
    _ids,
    _ids,
    st.sampled_from(["item {} is gone", "{}", "no {}, please", "({}) of [{}]", "a={} b={}", "x: {}."]),
)
def test_a_number_or_id_in_a_message_never_changes_its_fault(one: str, other: str, words: str) -> None:
    fault = fault_of("panic", "ValueError", words.format(one, one))
    assert fault == fault_of("panic", "ValueError", words.format(other, other))
    assert fault != fault_of("panic", "TypeError", words.format(one, one))


# -- capturing


async def _first_day(url: str, clock: VirtualClock) -> None:
    async with Queue("orders", url, clock=clock) as orders, Queue("mails", url, clock=clock) as mails:
        await die(orders, ["a", "b"], clock=clock)
        await die(orders, ["c"], lambda _: Failure("KeyError", "'email'"), reason=Reason.PANIC, clock=clock)
        await die(mails, ["m"], lambda _: None, name="welcome", reason=Reason.EXPIRED)
        await die(orders, ["gone", "again"], clock=clock)
        await orders.dead.replay(ids=["gone", "again"])
        assert await succeed(orders, 1) == ["gone"]
        await orders.add("lives")


async def _second_day(url: str, clock: VirtualClock) -> None:
    clock.advance(timedelta(days=1))
    async with Queue("orders", url, clock=clock) as orders:
        await die(orders, ["again"], lambda _: Failure("OSError", "[Errno 28] disk full"))
        await succeed(orders)


@pytest.mark.parametrize("kind", ["sqlite", "valkey", "postgres"])
def test_each_death_is_captured_once_with_what_its_store_says(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession
) -> None:
    url = request.getfixturevalue(f"{kind}_url")
    lake, clock = Lake(str(tmp_path / "lake")), VirtualClock(START)
    asyncio.run(_first_day(url, clock))
    ingest_round(lake, spark, url, source=SOURCE, tasks=1)
    assert capture_deaths(lake, spark, url, source=SOURCE) == Captured(batch=1, deaths=6, described=4)
    assert capture_deaths(lake, spark, url, source=SOURCE).deaths == 0
    asyncio.run(_second_day(url, clock))
    gather(lake, spark, url)

    rows = rows_of(lake, spark)
    assert [(row["queue"], row["message"], row["described"]) for row in rows] == [
        ("mails", "m", True),
        ("orders", "a", True),
        ("orders", "b", True),
        ("orders", "c", True),
        ("orders", "gone", False),
        ("orders", "again", False),  # its first letter was replayed before it could be read
        ("orders", "again", True),
    ]
    mail, a, b, c, gone, _, again = rows
    assert (mail["name"], mail["reason"], mail["error_type"], mail["fault"]) == (
        "welcome",
        "expired",
        None,
        "its time was over before a handler could start",
    )
    assert (a["name"], a["reason"], a["attempts"], a["worker"]) == (
        "charge",
        "retries_exhausted",
        1,
        "worker-1",
    )
    assert (a["error_type"], a["error_message"]) == ("ConnectionError", "order 1 refused by 10.0.0.1:443")
    assert a["error_trace"].startswith("Traceback")
    assert a["payload_bytes"] > 0
    assert (a["died_at"], b["died_at"], a["batch"], again["batch"]) == (START, START + SECOND, 1, 2)
    assert a["fault"] == b["fault"] == "ConnectionError: order # refused by #"
    assert a["fingerprint"] == b["fingerprint"] != c["fingerprint"]
    assert (gone["name"], gone["error_type"], gone["payload_bytes"]) == ("charge", None, None)
    assert (again["fault"], str(again["day"])) == ("OSError: [Errno 28] disk full", "2030-01-02")


def test_failed_commands_tell_their_last_failure(
    sqlite_url: str, tmp_path: Path, spark: SparkSession
) -> None:
    lake, clock = Lake(str(tmp_path / "lake")), VirtualClock(START)

    async def story() -> tuple[str, str, str]:
        async with Fleet(sqlite_url, name="meters", clock=clock) as fleet:
            unknown = await fail_command(fleet)
            clock.advance(HOUR)
            assert await fleet.replay(unknown)
            (cancelled,) = [each.id for each in [await fleet.cancel(unknown)] if each is not None]
            near = Device(reference="57000000001", protocol=Protocol.API_V1, gateway=Gateway(id="gw1"))
            worn = (await fleet.send(NewCommand(type=CommandType.READ_CREDIT, device=near))).id
            once = Timings(retry=Exponential(max_attempts=1))
            async with Fleet(fleet.store, timings=once) as impatient:
                lost = CallFailed(attempt=1, code="UNAVAILABLE", details="no route")
                await impatient.ledger.happen({worn: [Dispatched(), lost]})
            return unknown, cancelled, worn

    unknown, cancelled, worn = asyncio.run(story())
    assert unknown == cancelled
    gather(lake, spark, sqlite_url)
    first, second, third = rows_of(lake, spark)
    assert [each["message"] for each in (first, second, third)] == [unknown, unknown, worn]
    assert (first["queue"], first["name"], first["reason"]) == (
        "devices:meters",
        "READ_CREDIT",
        "unknown_device",
    )
    assert (first["error_type"], first["error_message"]) == (
        "unknown_device",
        "NOT_FOUND: device 47 is unknown",
    )
    assert (first["device"], first["lane"]) == (METER.key, "lorawan_network:lagos-7")
    assert (second["reason"], second["error_type"]) == ("cancelled", "cancelled")
    assert (third["reason"], third["error_message"]) == ("retries_exhausted", "UNAVAILABLE: no route")
    assert (third["gateway"], third["lane"], third["described"]) == ("gw1", "gateway:gw1", True)


def test_killed_between_any_two_steps_it_captures_each_death_once(
    sqlite_url: str, tmp_path: Path, spark: SparkSession
) -> None:
    asyncio.run(_first_day(sqlite_url, VirtualClock(START)))
    lake = Lake(str(tmp_path / "lake"))
    ingest_round(lake, spark, sqlite_url, source=SOURCE, tasks=1)
    steps: list[str] = []
    for step in range(1, 6):
        with killed_at(step) as on_step:
            capture_deaths(lake, spark, sqlite_url, source=SOURCE, on_step=on_step)
            steps.append("not killed")
        assert lake.dead_letters.progress("dead_letters:shop") == (0 if step < 5 else 1)
    assert steps == []
    capture_deaths(lake, spark, sqlite_url, source=SOURCE)
    assert [row["message"] for row in rows_of(lake, spark)] == ["m", "a", "b", "c", "gone", "again"]


def test_without_a_store_deaths_are_named_by_the_lake_and_by_source(
    sqlite_url: str, tmp_path: Path, spark: SparkSession
) -> None:
    """Two stores in one lake: neither capture touches the other's deaths, whatever batches lie between."""
    clock = VirtualClock(START)
    other_url = f"sqlite:///{tmp_path}/other.db"
    lake = Lake(str(tmp_path / "lake"))
    asyncio.run(_first_day(sqlite_url, clock))
    ingest_round(lake, spark, sqlite_url, source=SOURCE, tasks=1)

    async def elsewhere() -> None:
        async with Queue("orders", other_url, clock=clock) as orders:
            await die(orders, ["a"])

    asyncio.run(elsewhere())
    gather(lake, spark, other_url, source="other")
    assert capture_deaths(lake, spark, None, source=SOURCE) == Captured(batch=2, deaths=6, described=0)
    rows = rows_of(lake, spark)
    assert [(row["source"], row["described"]) for row in rows] == [("other", True), *[(SOURCE, False)] * 6]
    assert [row["name"] for row in rows[1:]] == ["welcome", *["charge"] * 5]
