"""Single adds that come at the same time share a transaction, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from remuda.errors import QueueFullError, StoreError, StoreUnavailableError
from remuda.merging import MERGED_AT_MOST, MergingAdder
from remuda.stores.contract import EncodedJob

NOW = datetime(2030, 1, 1, tzinfo=UTC)


class FakeStore:
    """Takes one batch at a time, and only when it is let; refuses what is called `bad`, or is too much."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate = asyncio.Event()
        self.down = False
        self.live = 0

    async def add(
        self,
        queue: str,
        jobs: Sequence[EncodedJob],
        *,
        who: str,
        connection: Any = None,
        max_live: int | None = None,
    ) -> list[bool]:
        ids = [job.id for job in jobs]
        self.batches.append(ids)
        await self.gate.wait()
        if self.down:
            raise StoreUnavailableError("gone")
        if any(each.startswith("bad") for each in ids):
            raise StoreError("one of them is bad")
        new = [not each.startswith("old") for each in ids]
        if max_live is not None and sum(new) and self.live + sum(new) > max_live:
            raise QueueFullError("no room")
        self.live += sum(new)
        return new

    @property
    def added(self) -> list[str]:
        return [each for batch in self.batches for each in batch]


def job(job_id: str) -> EncodedJob:
    unique = job_id.startswith("old")
    return EncodedJob(id=job_id, name="job", payload=b"", next_attempt_at=NOW, unique=unique)


def start(adder: MergingAdder, *ids: str) -> list[asyncio.Task[bool]]:
    return [asyncio.create_task(adder.add(job(each))) for each in ids]


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def adder(store: FakeStore) -> MergingAdder:
    return MergingAdder(store, "orders", "me")  # type: ignore[arg-type]


async def test_the_first_goes_at_once_and_those_behind_it_together(
    store: FakeStore, adder: MergingAdder
) -> None:
    tasks = start(adder, "a", "b", "old-c", "d")
    await asyncio.sleep(0)
    assert store.batches == [["a"]]
    store.gate.set()
    assert await asyncio.gather(*tasks) == [True, True, False, True]
    assert store.batches == [["a"], ["b", "old-c", "d"]]


async def test_when_all_is_quiet_again_the_next_goes_at_once(store: FakeStore, adder: MergingAdder) -> None:
    store.gate.set()
    await asyncio.gather(*start(adder, "a", "b"))
    assert await adder.add(job("c"))
    assert store.batches[-1] == ["c"]


async def test_a_merged_batch_has_a_largest_size(store: FakeStore, adder: MergingAdder) -> None:
    tasks = start(adder, *(f"id-{n}" for n in range(2 * MERGED_AT_MOST + 2)))
    await asyncio.sleep(0)
    store.gate.set()
    assert all(await asyncio.gather(*tasks))
    assert [len(batch) for batch in store.batches] == [1, MERGED_AT_MOST, MERGED_AT_MOST, 1]
    assert store.added == [f"id-{n}" for n in range(2 * MERGED_AT_MOST + 2)]


async def test_an_outage_is_told_to_everyone_and_is_not_for_ever(
    store: FakeStore, adder: MergingAdder
) -> None:
    store.down = True
    tasks = start(adder, "a", "b", "c")
    await asyncio.sleep(0)
    store.gate.set()
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in errors] == [StoreUnavailableError] * 3
    store.down = False
    assert await adder.add(job("d"))


async def test_a_job_that_the_store_refuses_fails_alone(store: FakeStore, adder: MergingAdder) -> None:
    """Callers that share nothing but a moment do not share their errors."""
    tasks = start(adder, "a", "b", "bad", "c")
    await asyncio.sleep(0)
    store.gate.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [each if isinstance(each, bool) else type(each) for each in answers] == [
        True,
        True,
        StoreError,
        True,
    ]


async def test_a_refused_first_does_not_hold_up_those_behind_it(
    store: FakeStore, adder: MergingAdder
) -> None:
    tasks = start(adder, "bad", "b", "c")
    await asyncio.sleep(0)
    store.gate.set()
    first, *others = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(first, StoreError)
    assert others == [True, True]


async def test_a_caller_that_gives_up_takes_nobody_with_it(store: FakeStore, adder: MergingAdder) -> None:
    tasks = start(adder, "a", "b", "c")
    await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[1].cancel()
    await asyncio.sleep(0)
    store.gate.set()
    assert await tasks[2]
    assert await adder.add(job("d"))
    for each in tasks[:2]:
        with pytest.raises(asyncio.CancelledError):
            await each


async def test_a_full_queue_takes_what_it_has_room_for_and_refuses_the_rest(store: FakeStore) -> None:
    adder = MergingAdder(store, "orders", "me", max_live=4)  # type: ignore[arg-type]
    tasks = start(adder, *(f"id-{n}" for n in range(400)), "old-a", "old-b")
    await asyncio.sleep(0)
    store.gate.set()
    *plain, first_old, second_old = await asyncio.gather(*tasks, return_exceptions=True)
    assert plain[:4] == [True] * 4
    assert {type(each) for each in plain[4:]} == {QueueFullError}
    assert [first_old, second_old] == [False, False]  # there already: they need no room
    assert len(store.batches) < 40  # not one by one


async def test_a_full_queue_takes_jobs_again_when_some_have_ended(store: FakeStore) -> None:
    adder = MergingAdder(store, "orders", "me", max_live=1)  # type: ignore[arg-type]
    store.gate.set()
    assert await adder.add(job("a"))
    with pytest.raises(QueueFullError):
        await adder.add(job("b"))
    store.live = 0
    assert await adder.add(job("b"))
