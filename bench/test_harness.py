"""The harness itself: a wrong figure must not get through it.  No servers: pytest bench/test_harness.py"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bench import __main__ as program
from bench import catalogue, measures, report, run, tally
from bench.catalogue import PeerFile, parse_peer
from bench.complaints import ROOT, last_line, without_paths
from bench.measures import Order
from bench.peer import BenchError, Handled, Peer, stamp_age_ms, stamped_payload
from bench.report import Row
from bench.run import Run, run_peer
from bench.tally import MemoryTally, Tally


class InMemory(Peer):
    """A queue that can be told to lose a job, to handle one twice, or to leave one unsettled."""

    fault = ""

    def settings(self, measure: str, variant: str) -> dict[str, Any]:
        return {"variant": variant}

    async def create(self) -> None: ...

    async def open(self) -> None:
        self.waiting: list[bytes] = []
        self.unsettled = 0

    async def close(self) -> None: ...

    async def add(self, payload: bytes) -> None:
        self.waiting.append(payload)

    async def add_many(self, payloads: list[bytes]) -> None:
        self.waiting.extend(payloads[1:] if self.fault == "loses" else payloads)

    async def left(self) -> int:
        return len(self.waiting) + self.unsettled

    @asynccontextmanager
    async def worker(self, handled: Handled) -> AsyncIterator[None]:
        self.unsettled = 1 if self.fault == "leaves" else 0
        for payload in [*self.waiting, *self.waiting[:1]] if self.fault == "repeats" else self.waiting:
            handled(payload)
        self.waiting.clear()
        yield


async def opened(fault: str = "") -> InMemory:
    peer = InMemory("memory://", "settle", "")
    peer.fault = fault
    await peer.open()
    return peer


def order(**changes: Any) -> Order:
    values = {"measure": "settle", "url": "", "variant": "", "jobs": 3_000, "seconds": 1.0, "rate": 200}
    return Order(**values | changes)


async def drain(peer: InMemory, jobs: int) -> float:
    await peer.add_many([stamped_payload() for _ in range(jobs)])
    return await measures._drain(peer, Tally(jobs))


async def test_an_honest_queue_is_drained() -> None:
    assert await drain(await opened(), 100) > 0


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ("loses", "no job for 0.01 s, after 99 of 100"),
        ("repeats", "100 jobs were added, 101 were handled"),
        ("leaves", "every job was handled, but 1 stay unsettled"),
    ],
)
async def test_a_queue_that_cheats_gets_no_figure(
    fault: str, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tally, "PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(measures, "PATIENCE_SECONDS", 0.01)
    with pytest.raises(BenchError, match=complaint):
        await drain(await opened(fault), 100)


async def test_publishing_is_checked_against_what_the_store_holds() -> None:
    figures = await measures.publish_bulk(await opened(), order(measure="publish-bulk"))
    assert figures["jobs"] == 3_000
    with pytest.raises(BenchError, match="the store holds"):
        await measures.publish_bulk(await opened("loses"), order(measure="publish-bulk"))


async def test_memory_is_noted_at_the_first_job_a_tenth_and_the_last() -> None:
    resident = MemoryTally(50)
    await asyncio.to_thread(lambda: [resident(stamped_payload()) for _ in range(50)])
    await resident.reached()
    assert list(resident.resident) == ["start_mib", "tenth_mib", "end_mib"]


def test_a_payload_is_a_hundred_bytes_and_knows_its_age() -> None:
    payload = stamped_payload()
    assert len(payload) == 100
    assert 0 <= stamp_age_ms(payload) < 1_000


def test_an_order_survives_the_command_line() -> None:
    assert Order.parse(order(variant="no-archive").arguments()) == order(variant="no-archive")


def test_every_peer_says_what_it_needs_and_names_stores_that_exist() -> None:
    peers = catalogue.peers()
    assert peers[0].name == "remuda"
    assert peers[-1].bare
    for peer in peers:
        assert set(peer.stores) <= set(catalogue.stores())
        assert all("==" in dependency for dependency in peer.dependencies), f"{peer.name} is not pinned"
        assert {measure for named in peer.variants.values() for measure in named} <= set(measures.MEASURES)


def test_a_peer_without_metadata_is_named() -> None:
    with pytest.raises(ValueError, match=r"bench/peers/new_one\.py has no metadata"):
        parse_peer("new_one", "import new_one\n")


@dataclass
class Rows:
    """A table of one measure, filled by hand."""

    measure: str = "settle"
    rows: list[Row] = field(default_factory=list)

    def add(self, peer: str, *rates: float, bare: bool = False, failure: str = "") -> None:
        runs = [Run(figures={"rate": rate, "jobs": 10}) for rate in rates]
        runs += [Run(failure=failure)] if failure else []
        self.rows.append(Row("sqlite", self.measure, peer, "", bare, runs))


def test_rows_show_the_median_its_spread_and_both_ratios() -> None:
    table = Rows()
    table.add("remuda", 100, 300, 200)
    table.add("slow", 50)
    table.add("bare", 400, bare=True)
    lines = report.tables(table.rows).splitlines()
    assert lines[2].split() == ["remuda", "200", "100-300", "10", "1.00x", "0.50x"]
    assert lines[3].split() == ["slow", "50", "10", "0.25x", "0.12x"]


def test_a_failed_peer_shows_its_reason_and_the_others_stay() -> None:
    table = Rows()
    table.add("remuda", 100)
    table.add("broken", failure="ValueError: no")
    table.add("shaky", 90, failure="ValueError: once")
    text = report.tables(table.rows)
    assert "broken: 1 of 1 failed: ValueError: no" in text
    assert "shaky: 1 of 2 failed: ValueError: once" in text
    assert table.rows[1].as_json()["failures"] == ["ValueError: no"]


def test_the_error_of_a_traceback_is_the_reason() -> None:
    complaint = "Traceback:\n  File x\nsqlite3.OperationalError: locked\n[SQL: x]\n(Background on this)\n"
    assert last_line(complaint) == "sqlite3.OperationalError: locked"
    assert last_line("") == "it said nothing"


def test_a_reason_does_not_tell_where_it_happened() -> None:
    assert without_paths(f"no file {ROOT}/bench/x") == "no file ./bench/x"


class Nowhere:
    """A store whose databases are only names."""

    def __init__(self) -> None:
        self.facts: dict[str, str] = {}

    @contextmanager
    def fresh(self) -> Iterator[str]:
        yield "nowhere://"


def test_a_peer_that_dies_or_hangs_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "python_for", lambda peer: Path(sys.executable))
    gone = PeerFile("gone", "bench.peers.gone", ("sqlite",))
    assert "No module named bench.peers.gone" in run_peer(gone, Nowhere(), order(), 20).failure
    slow = PeerFile("slow", "http.server", ("sqlite",))
    monkeypatch.setattr(Order, "arguments", lambda self: ["0"])
    assert run_peer(slow, Nowhere(), order(), 0.3).failure == "not done within 0.3 s"


def test_quick_only_fills_in_what_was_not_said() -> None:
    options = program.parse(["--quick", "--jobs", "7", "--peers", "remuda,huey"])
    assert (options.jobs, options.repeats, options.peers) == (7, 1, ["remuda", "huey"])
    with pytest.raises(SystemExit):
        program.parse(["--peers", "rabbits"])
