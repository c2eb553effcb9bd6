"""The settler: batches by size and by time, outages without loss, a refused outcome on its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

import remuda.backoff
from remuda.errors import StoreUnavailableError
from remuda.lifecycle import State
from remuda.stores.contract import Delivery, Failure, Settlement
from remuda.worker.settler import Settler

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


class FakeStore:
    """Writes what it is given, unless it is down, slow, or told that an outcome is bad or late."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.written: list[str] = []
        self.outages = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.refuses: Callable[[Settlement], bool] = lambda settlement: False
        self.late: set[str] = set()

    async def settle(self, queue: str, settlements: Sequence[Settlement], *, who: str) -> list[Settlement]:
        self.calls.append([each.delivery.id for each in settlements])
        await self.gate.wait()
        if self.outages:
            self.outages -= 1
            raise StoreUnavailableError("gone")
        if any(map(self.refuses, settlements)):
            raise ValueError("one of them cannot be stored")
        lost = [each for each in settlements if each.delivery.id in self.late]
        self.written += [each.delivery.id for each in settlements if each not in lost]
        return lost


def outcome(job_id: str, failure: Failure | None = None) -> Settlement:
    delivery = Delivery(
        key=job_id,
        lease=1,
        id=job_id,
        name="job",
        payload=b"",
        headers=None,
        attempts=0,
        deliveries=1,
        priority=0,
        created_at=NOW,
        acquired_at=NOW,
        next_attempt_at=NOW,
    )
    return Settlement(delivery=delivery, state=State.COMPLETED, failure=failure)


class Bench:
    """A settler over a fake store, and what it reported."""

    def __init__(self, *, interval: timedelta = timedelta(0), batch_size: int = 100) -> None:
        self.store = FakeStore()
        self.told: list[str] = []
        self.lost: list[str] = []
        self.settler = Settler(
            self.store,  # type: ignore[arg-type]
            "orders",
            "me",
            interval=interval,
            batch_size=batch_size,
            on_written=self._note,
        )

    def _note(self, settlements: Sequence[Settlement], lost: Sequence[Settlement]) -> None:
        self.told += [each.delivery.id for each in settlements]
        self.lost += [each.delivery.id for each in lost]

    def put(self, *ids: str) -> None:
        for each in ids:
            self.settler.put(outcome(each))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.settler.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(5):
            while len(self.told) < count:  # noqa: ASYNC110 - the settler knows of no event
                await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remuda.backoff, "FIRST_S", 0.001)
    monkeypatch.setattr(remuda.backoff, "LONGEST_S", 0.002)


async def test_outcomes_wait_for_company_until_a_batch_is_full() -> None:
    bench = Bench(interval=HOUR, batch_size=3)
    async with bench.running():
        bench.put("a", "b")
        await asyncio.sleep(0.02)
        assert bench.store.calls == []
        bench.put("c")
        await bench.until(3)
    assert bench.store.calls == [["a", "b", "c"]]


async def test_outcomes_wait_for_company_no_longer_than_the_interval() -> None:
    bench = Bench(interval=timedelta(milliseconds=10), batch_size=1_000)
    async with bench.running():
        bench.put("a", "b")
        await bench.until(2)
    assert bench.store.calls == [["a", "b"]]


async def test_without_an_interval_they_go_as_soon_as_the_store_is_free() -> None:
    bench = Bench()
    bench.store.gate.clear()
    async with bench.running():
        bench.put("a")
        await asyncio.sleep(0.01)
        bench.put("b", "c")
        assert bench.settler.unwritten == 3
        bench.store.gate.set()
        await bench.until(3)
    assert bench.store.calls == [["a"], ["b", "c"]]
    assert bench.settler.unwritten == 0


async def test_what_is_on_its_way_is_told_from_what_waits() -> None:
    bench = Bench()
    bench.store.gate.clear()
    async with bench.running():
        on_its_way, waiting = outcome("a"), outcome("b")
        bench.settler.put(on_its_way)
        await asyncio.sleep(0.01)
        bench.settler.put(waiting)
        assert bench.settler.being_written() == {id(on_its_way.delivery)}
        bench.store.gate.set()
        await bench.until(2)
        assert bench.settler.being_written() == set()


async def test_an_outage_is_waited_out_and_nothing_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.store.outages = 5
    with caplog.at_level(logging.INFO):
        async with bench.running():
            bench.put("a", "b")
            await bench.until(2)
            bench.put("c")
            await bench.until(3)
    assert bench.store.written == ["a", "b", "c"]
    assert len(bench.store.calls) == 7
    # One line when it goes, one when it is back.
    assert [each.__dict__.get("action") for each in caplog.records] == ["store_lost", "store_back"]


async def test_a_settler_that_is_cancelled_in_an_outage_keeps_what_it_has() -> None:
    bench = Bench()
    bench.store.outages = 10**9
    async with bench.running():
        bench.put("a")
        await asyncio.sleep(0.02)
        bench.put("b")
    assert bench.settler.unwritten == 2
    bench.store.outages = 0
    while bench.settler.unwritten:
        await bench.settler.flush()
    assert bench.store.written == ["a", "b"]


async def test_late_outcomes_are_reported() -> None:
    bench = Bench()
    bench.store.late = {"b"}
    bench.put("a", "b", "c")
    await bench.settler.flush()
    assert (bench.told, bench.lost) == (["a", "b", "c"], ["b"])


async def test_an_outcome_that_cannot_be_stored_does_not_hold_up_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.store.refuses = lambda settlement: settlement.delivery.id == "bad"
    bench.put("a", "b", "bad", "c", "d", "e")
    await bench.settler.flush()
    assert sorted(bench.store.written) == ["a", "b", "c", "d", "e"]
    assert bench.lost == ["bad"]
    assert sorted(bench.told) == ["a", "b", "bad", "c", "d", "e"]
    assert "outcome_refused" in [each.__dict__.get("action") for each in caplog.records]


async def test_an_error_text_that_cannot_be_stored_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.store.refuses = lambda settlement: settlement.failure is not None
    bench.settler.put(outcome("a", Failure("ValueError", "unstorable")))
    bench.put("b")
    await bench.settler.flush()
    assert sorted(bench.store.written) == ["a", "b"]
    assert bench.lost == []
    assert "failure_text_refused" in [each.__dict__.get("action") for each in caplog.records]


async def test_a_result_that_cannot_be_stored_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.store.refuses = lambda settlement: settlement.result is not None
    refused = outcome("a")
    refused.result = b"too much for this store"
    bench.settler.put(refused)
    bench.put("b")
    await bench.settler.flush()
    assert sorted(bench.store.written) == ["a", "b"]
    assert bench.lost == []
    assert "result_refused" in [each.__dict__.get("action") for each in caplog.records]


async def test_whoever_waits_for_an_outcome_learns_whether_it_counted() -> None:
    bench = Bench()
    bench.store.late = {"late"}
    async with bench.running():
        answers = await asyncio.gather(
            bench.settler.written(outcome("in time")), bench.settler.written(outcome("late"))
        )
    assert answers == [True, False]


async def test_a_flush_of_nothing_asks_nothing() -> None:
    bench = Bench()
    await bench.settler.flush()
    assert bench.store.calls == []


async def test_concurrent_flushes_write_each_outcome_once() -> None:
    bench = Bench()
    bench.store.gate.clear()
    bench.put("a", "b")
    flushes = [asyncio.create_task(bench.settler.flush()) for _ in range(3)]
    await asyncio.sleep(0.01)
    bench.put("c")
    bench.store.gate.set()
    await asyncio.gather(*flushes)
    await bench.settler.flush()
    assert sorted(bench.store.written) == ["a", "b", "c"]
