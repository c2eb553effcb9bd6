"""The harness itself: a wrong figure must not get through it.  pytest bench/test_harness.py"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bench import __main__ as program
from bench import aims, catalogue, measures, report, run, tally
from bench.catalogue import PeerFile, parse_peer
from bench.complaints import ROOT, last_line, without_paths
from bench.crew import crew
from bench.measures import Order
from bench.peer import BenchError, Handled, Peer, stamp_age_ms, stamped_payload
from bench.report import Row
from bench.run import Run, run_peer
from bench.stores import redis as redis_store
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
    return (await measures._drain(peer, Tally(jobs))).seconds


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


async def test_a_worker_is_timed_from_its_call_or_from_the_moment_it_names() -> None:
    class Late(InMemory):
        @asynccontextmanager
        async def worker(self, handled: Handled) -> AsyncIterator[float]:
            async with super().worker(handled):
                yield time.perf_counter() + 60

    peer = Late("memory://", "settle", "")
    await peer.open()
    assert -61 < await drain(peer, 100) < -59
    assert 0 < await drain(await opened(), 100) < 59


async def test_a_rate_counts_from_the_first_job_so_that_a_slow_start_costs_nothing() -> None:
    counted = Tally(1_000)
    await asyncio.sleep(0)
    before = time.perf_counter()
    counted(stamped_payload())
    after = time.perf_counter()
    assert 1_000 / (after + 2 - before) <= counted.rate_until(after + 2) <= 1_000 / 2


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

    store: str = "sqlite"

    def add(self, peer: str, *rates: float, variant: str = "", failure: str = "", **marks: bool) -> None:
        runs = [Run(figures={"rate": rate, "jobs": 10}) for rate in rates]
        runs += [Run(failure=failure)] if failure else []
        row = Row(self.store, self.measure, peer, variant, marks.pop("bare", False), runs, **marks)
        self.rows.append(row)


def test_rows_show_the_median_its_spread_and_both_ratios() -> None:
    table = Rows()
    table.add("remuda", 100, 300, 200)
    table.add("slow", 50, acks=False)
    table.add("bare", 400, bare=True)
    lines = report.tables(table.rows).splitlines()
    assert lines[2].split() == ["remuda", "200", "100-300", "10", "yes", "1.00x", "0.50x"]
    assert lines[3].split() == ["slow", "50", "10", "NO", "0.25x", "0.12x"]


def test_a_failed_peer_shows_its_reason_and_the_others_stay() -> None:
    table = Rows()
    table.add("remuda", 100)
    table.add("broken", failure="ValueError: no")
    table.add("shaky", 90, failure="ValueError: once")
    text = report.tables(table.rows)
    assert "broken: 1 of 1 failed: ValueError: no" in text
    assert "shaky: 1 of 2 failed: ValueError: once" in text
    assert table.rows[1].as_json()["failures"] == ["ValueError: no"]


def reached(rows: list[Row]) -> dict[str, tuple[float | None, bool | None, str]]:
    return {each.aim: (each.reached, each.met, each.beside) for each in aims.outcomes(rows)}


def test_the_best_peer_of_an_aim_is_one_in_pure_python_that_acks() -> None:
    table = Rows(store="redis")
    table.add("remuda", 4_000)
    table.add("loses-jobs", 3_000, acks=False)
    table.add("chasquimq", 500, native=True)
    table.add("bare-redis-py", 10_000, bare=True)
    table.add("slow", 100)
    table.add("slow", 160, variant="tuned")
    found = reached(table.rows)
    assert found["drain beside the best pure-Python peer with acks"] == (25.0, True, "slow (tuned)")
    assert found["drain beside chasquimq with its events"] == (8.0, True, "chasquimq")
    assert found["drain beside the bare loop"] == (0.4, False, "bare-redis-py")


def test_an_aim_compares_medians_and_shows_the_spread_of_runs_taken_together() -> None:
    table = Rows(store="valkey")
    table.add("remuda", 100, 100, 100, variant="processes-1")
    table.add("remuda", 150, 200, 170, variant="processes-2")
    (outcome,) = [each for each in aims.outcomes(table.rows) if each.reached is not None]
    assert (outcome.reached, outcome.spread, outcome.met) == (1.7, (1.5, 2.0), True)


def test_figures_of_our_own_have_limits_and_what_was_not_measured_is_neither_met_nor_missed() -> None:
    latency = Run(figures={"p50_ms": 1.0, "p99_ms": 12.0, "rate": 1_000})
    memory = Run(figures={"start_mib": 50.0, "tenth_mib": 60.0, "end_mib": 61.0, "jobs": 1_000_000})
    rows = [
        Row("redis", "latency", "remuda", "", False, [latency]),
        Row("redis", "memory", "remuda", "", False, [memory]),
    ]
    found = reached(rows)
    assert found["add to handler, p99"] == (12.0, False, "")
    assert found["memory at the end, of that at a tenth"][:2] == (1.02, True)
    assert found["bulk add beside chasquimq"] == (None, None, "")
    assert "bulk add" not in aims.table(aims.outcomes(rows))
    assert aims.outcomes([Row("sqlite", "latency", "remuda", "", False, [latency])]) == []


def test_the_error_of_a_traceback_is_the_reason() -> None:
    complaint = "Traceback:\n  File x\nsqlite3.OperationalError: locked\n[SQL: x]\n(Background on this)\n"
    assert last_line(complaint) == "sqlite3.OperationalError: locked"
    assert last_line("") == "it said nothing"


def test_a_reason_does_not_tell_where_it_happened() -> None:
    assert without_paths(f"no file {ROOT}/bench/x") == "no file ./bench/x"


class Nowhere:
    """A store whose databases are only names."""

    latency_rate = 200

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


def test_a_peer_that_needs_a_newer_server_is_left_out_with_a_word() -> None:
    modern = PeerFile("modern", "bench.peers.modern", ("redis",), needs={"redis": "8.6"})
    modest = PeerFile("modest", "bench.peers.modest", ("redis",))
    fit, unfit = program._sorted_out([modern, modest], "redis", {"version": "7.0.15"})
    assert fit == [modest]
    assert unfit == {"without modern": "(it needs redis 8.6 or newer, and this is 7.0.15)"}
    assert program._sorted_out([modern, modest], "redis", {"version": "8.10.1"}) == ([modern, modest], {})


def test_jobs_are_added_at_the_rate_of_the_store_unless_another_is_asked_for() -> None:
    row = Row("sqlite", "latency", "remuda", "", False)
    assert program._order(row, program.parse([]), Nowhere())[0].rate == 200
    assert program._order(row, program.parse(["--rate", "50"]), Nowhere())[0].rate == 50


def test_quick_only_fills_in_what_was_not_said() -> None:
    options = program.parse(["--quick", "--jobs", "7", "--peers", "remuda,huey"])
    assert (options.jobs, options.repeats, options.peers) == (7, 1, ["remuda", "huey"])
    with pytest.raises(SystemExit):
        program.parse(["--peers", "rabbits"])


def made_program(path: Path, said: str) -> Path:
    path.write_text(f"#!/bin/sh\necho '{said}'\n")
    path.chmod(0o755)
    return path


def test_the_newest_redis_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = made_program(tmp_path / "old", "Redis server v=8.6.3 sha=0")
    new = made_program(tmp_path / "new", "Redis server v=8.10.0 sha=0")
    other = made_program(tmp_path / "other", "Valkey server v=9.1.2 sha=0")
    monkeypatch.setenv(redis_store.NAMED_SERVERS, f"{old}:{new},{other}")
    monkeypatch.setenv("PATH", "")
    assert redis_store.newest_program() == new
    monkeypatch.setenv(redis_store.NAMED_SERVERS, str(other))
    with pytest.raises(RuntimeError, match="Redis needs a redis-server"):
        redis_store.newest_program()
    monkeypatch.setenv(redis_store.NAMED_SERVERS, str(made_program(tmp_path / "cat", "meow")))
    with pytest.raises(RuntimeError, match="is no Redis or Valkey server"):
        redis_store.newest_program()


@pytest.mark.parametrize("store", ["redis", "valkey"])
def test_a_server_keeps_what_it_is_told_and_is_handed_out_empty(store: str, tmp_path: Path) -> None:
    redis = pytest.importorskip("redis")
    try:
        serving = catalogue.serve(store, tmp_path)
        server = serving.__enter__()
    except RuntimeError as unusable:
        pytest.skip(str(unusable))
    try:
        assert server.facts["server"] == store
        assert (server.facts["appendonly"], server.facts["appendfsync"]) == ("yes", "everysec")
        for _ in range(2):
            with server.fresh() as url, redis.Redis.from_url(url) as client:
                assert client.dbsize() == 0
                client.set("left", "behind")
    finally:
        serving.__exit__(None, None, None)


MEMBER = """
import asyncio, signal, time
from bench.crew import Member

async def work():
    member = Member()
    await member.gate()
    for _ in range(JOBS):
        member.count()
    await asyncio.sleep(60)

signal.signal(signal.SIGTERM, lambda *_: exit())
asyncio.run(work())
"""
CREW = """
import signal, subprocess, sys
children = [subprocess.Popen([sys.executable, "-c", sys.argv[1]]) for _ in range(2)]

def end(*_):
    for child in children:
        child.terminate()

signal.signal(signal.SIGTERM, end)
for child in children:
    child.wait()
"""


async def test_what_other_processes_handle_is_counted_from_the_moment_all_have_started() -> None:
    counted = Tally(2_000)
    command = [sys.executable, "-c", CREW, MEMBER.replace("JOBS", "1000")]
    called_at = time.perf_counter()
    async with crew(command, 2, counted, {"PYTHONPATH": str(ROOT)}) as at_work_at:
        assert called_at < at_work_at
        await counted.reached()
    assert counted.count == 2_000


async def test_a_crew_that_handles_a_job_twice_is_found_out() -> None:
    counted = Tally(1_999)
    command = [sys.executable, "-c", CREW, MEMBER.replace("JOBS", "1000")]
    async with crew(command, 2, counted, {"PYTHONPATH": str(ROOT)}):
        await counted.reached()
    with pytest.raises(BenchError, match="1999 jobs were added, 2000 were handled"):
        measures._check(counted)


async def test_a_crew_that_does_not_start_is_an_error() -> None:
    with pytest.raises(BenchError, match="ended at once, with exit code 3"):
        async with crew([sys.executable, "-c", "exit(3)"], 2, Tally(1), {}):
            pass
