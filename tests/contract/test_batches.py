"""Batches of a size at which parameter limits, packet limits and half-done work would show."""

from __future__ import annotations

import pytest

from remuda import EncodeError, NewJob, OversizeError, Queue, Reason, State
from remuda.clock import VirtualClock
from remuda.stores.contract import Failure
from tests.contract.workbench import (
    ALL,
    HOUR,
    LEASE,
    SECOND,
    acked,
    checked_trail,
    dead,
    fetch,
    nacked,
    record_of,
    recover,
    release,
    settle,
    trail,
)


async def test_a_hundred_thousand_jobs_are_added_in_one_call(queue: Queue) -> None:
    ids = await queue.add_many([NewJob("job", n) for n in range(100_000)])
    assert len(set(ids)) == 100_000
    assert (await queue.stats()).pending == 100_000
    assert (await record_of(queue, ids[99_999])).value() == 99_999
    transitions = await trail(queue)
    assert [each.message for each in transitions] == ids
    assert transitions[-1].seq == 100_000


@pytest.mark.parametrize(
    ("bad", "error"),
    [(object(), EncodeError), (b"x" * 2_000, OversizeError)],
    ids=["unencodable", "oversize"],
)
async def test_a_bad_one_in_the_middle_of_many_writes_nothing(
    store_url: str, bad: object, error: type[Exception]
) -> None:
    async with Queue("orders", store_url, max_payload_bytes=1_000) as queue:
        jobs = [NewJob("job", n) for n in range(10_000)]
        jobs[5_000] = NewJob("the bad one", bad)
        with pytest.raises(error, match="the bad one"):
            await queue.add_many(jobs)
        assert (await queue.stats()).total == 0
        assert await trail(queue) == []


async def test_thousands_of_unique_ids_are_told_new_from_old(queue: Queue) -> None:
    await queue.add_many([NewJob("job", job_id=f"id-{n}") for n in range(0, 6_000, 3)])
    encoded = queue.encode([NewJob("job", job_id=f"id-{n}") for n in range(6_000)])
    new = await queue.store.add(queue.name, encoded, who="test")
    assert new == [n % 3 != 0 for n in range(6_000)]
    assert (await queue.stats()).pending == 6_000


async def test_five_thousand_outcomes_are_settled_in_one_call(queue: Queue, clock: VirtualClock) -> None:
    await queue.add_many([NewJob("job", n) for n in range(5_000)])
    deliveries = await fetch(queue, 5_000)
    assert len(deliveries) == 5_000
    assert await queue.store.extend(queue.name, deliveries, lease=2 * LEASE) == []
    ends = [
        acked(each) if n % 5 else nacked(each, clock.now() + HOUR) if n % 2 else dead(each, Reason.REJECTED)
        for n, each in enumerate(deliveries)
    ]
    assert await settle(queue, *ends) == []
    stats = await queue.stats()
    assert (stats.completed, stats.retryable, stats.failed) == (4_000, 500, 500)
    assert await settle(queue, *ends) == ends
    assert len(await checked_trail(queue)) == 15_000


async def test_a_batch_of_long_error_texts_is_settled(queue: Queue) -> None:
    """Hundreds of traces of the largest size: more than a server may take in one packet."""
    await queue.add_many([NewJob("job", n) for n in range(400)])
    deliveries = await fetch(queue, 400)
    failure = Failure("ValueError", "é" * 4_000, "ü" * 32_000)
    assert await settle(queue, *(dead(each, Reason.UNRECOVERABLE, failure) for each in deliveries)) == []
    assert await queue.dead.count() == {"unrecoverable": 400}
    (letter,) = await queue.dead.peek(limit=1)
    assert letter.error_message == "é" * 4_000
    assert letter.error_trace == "ü" * 32_000


async def test_a_batch_of_large_payloads_is_added_and_delivered(queue: Queue) -> None:
    payload = bytes(range(256)) * 4_000
    await queue.add_many([NewJob("job", payload, headers={"n": n}) for n in range(24)])
    deliveries = await fetch(queue, 24)
    assert {len(each.payload) for each in deliveries} == {len(payload) + 5}
    assert await settle(queue, *(acked(each) for each in deliveries)) == []
    assert (await queue.jobs(state=State.COMPLETED, limit=1))[0].value() == payload


async def test_thousands_are_released_and_recovered(queue: Queue, clock: VirtualClock) -> None:
    await queue.add_many([NewJob("job", n) for n in range(3_000)])
    await release(queue, *await fetch(queue, 3_000))
    assert (await queue.stats()).pending == 3_000
    assert len(await fetch(queue, 3_000)) == 3_000
    clock.advance(LEASE)
    assert len(set(await recover(queue))) == 3_000
    assert (await queue.stats()).pending == 3_000
    assert len(await checked_trail(queue)) == 15_000


async def test_thousands_of_dead_letters_are_replayed_and_dropped(queue: Queue, clock: VirtualClock) -> None:
    ids = await queue.add_many([NewJob("job", n) for n in range(3_000)])
    await settle(queue, *(dead(each) for each in await fetch(queue, 3_000)))
    clock.advance(SECOND)
    replayed = await queue.dead.replay(limit=1_700)
    assert len(set(replayed.ids)) == 1_700
    assert len(await queue.dead.drop(limit=700)) == 700
    assert await queue.dead.count() == {"rejected": 600}
    assert sorted(await _all_ids(queue)) == sorted(set(ids) - set(await _dropped(queue)))


async def _all_ids(queue: Queue) -> list[str]:
    live = [each.id for each in await queue.jobs(state=State.PENDING, limit=10_000)]
    return live + [each.id async for each in queue.dead.export()]


async def _dropped(queue: Queue) -> list[str]:
    return [each.message for each in await trail(queue) if each.entered is State.REMOVED]


async def test_tens_of_thousands_of_ids_can_be_asked_for(queue: Queue) -> None:
    """More ids than a statement of PostgreSQL takes parameters."""
    await queue.add_many([NewJob("job", job_id=f"id-{n}") for n in range(10)])
    await settle(queue, *(dead(each) for each in await fetch(queue, 5)))
    wanted = [f"id-{n}" for n in range(40_000)]
    assert await queue.dead.count(ids=wanted) == {"rejected": 5}
    assert len((await queue.dead.replay(limit=3, ids=wanted)).ids) == 3
    assert len(await queue.dead.drop(ids=wanted)) == 2


async def test_thousands_of_waiting_jobs_are_purged(queue: Queue) -> None:
    await queue.add_many([NewJob("job", n) for n in range(2_500)])
    running = await fetch(queue, 100)
    assert await queue.purge() == 2_400
    assert (await queue.stats()).processing == 100
    assert await settle(queue, *(acked(each) for each in running)) == []
    assert await queue.store.count_dead(queue.name, ALL) == {}
    await checked_trail(queue)
