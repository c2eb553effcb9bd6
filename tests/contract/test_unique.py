"""Ids of the caller's own: one job of an id at a time, and for a while after it."""

from __future__ import annotations

import asyncio

from remuda import NewJob, Queue, Reason, State
from remuda.clock import VirtualClock
from tests.contract.workbench import (
    DAY,
    HOUR,
    SECOND,
    acked,
    checked_trail,
    dead,
    fetch_one,
    moves_of,
    nacked,
    record_of,
    settle,
)


async def test_a_second_job_with_a_live_id_is_not_added(queue: Queue, clock: VirtualClock) -> None:
    first = await queue.add_unique("invoice", {"n": 1}, job_id="invoice-42")
    second = await queue.add_unique("invoice", {"n": 2}, job_id="invoice-42")
    assert (first.id, first.new) == ("invoice-42", True)
    assert (second.id, second.new) == ("invoice-42", False)
    assert (await record_of(queue, "invoice-42")).value() == {"n": 1}

    delivery = await fetch_one(queue)
    assert not (await queue.add_unique("invoice", job_id="invoice-42")).new
    await settle(queue, nacked(delivery, clock.now() + HOUR))
    assert not (await queue.add_unique("invoice", job_id="invoice-42")).new
    assert (await queue.stats()).total == 1
    assert moves_of(await checked_trail(queue), "invoice-42") == [
        (None, State.PENDING),
        (State.PENDING, State.PROCESSING),
        (State.PROCESSING, State.RETRYABLE),
    ]


async def test_an_id_without_unique_for_is_free_once_its_job_has_ended(queue: Queue) -> None:
    await queue.add_unique("invoice", job_id="a")
    await settle(queue, acked(await fetch_one(queue)))
    assert (await queue.add_unique("invoice", job_id="a")).new
    await settle(queue, dead(await fetch_one(queue)))
    assert (await queue.add_unique("invoice", job_id="a")).new
    await checked_trail(queue)


async def test_an_id_is_held_for_unique_for_after_the_end_and_free_afterwards(
    queue: Queue, clock: VirtualClock
) -> None:
    for end in (acked, dead):
        assert (await queue.add_unique("invoice", job_id="a", unique_for=HOUR)).new
        clock.advance(DAY)  # it is counted from the end, not from the adding
        await settle(queue, end(await fetch_one(queue)))
        assert not (await queue.add_unique("invoice", job_id="a", unique_for=HOUR)).new
        clock.advance(HOUR - SECOND)
        assert not (await queue.add_unique("invoice", job_id="a")).new
        clock.advance(SECOND)
    assert (await queue.add_unique("invoice", job_id="a")).new


async def test_an_id_is_held_although_the_completed_job_is_not_kept(
    queue: Queue, clock: VirtualClock
) -> None:
    await queue.add_unique("invoice", job_id="a", unique_for=HOUR)
    await settle(queue, acked(await fetch_one(queue), keep=False))
    assert not (await queue.add_unique("invoice", job_id="a")).new
    clock.advance(HOUR)
    assert (await queue.add_unique("invoice", job_id="a")).new


async def test_a_held_id_outlives_pruning(queue: Queue, clock: VirtualClock) -> None:
    await queue.add_unique("invoice", job_id="done", unique_for=DAY)
    await settle(queue, acked(await fetch_one(queue)))
    await queue.add_unique("invoice", job_id="dead", unique_for=DAY)
    await settle(queue, dead(await fetch_one(queue)))
    clock.advance(HOUR)
    await queue.prune(completed_before=clock.now(), failed_before=clock.now())
    assert not (await queue.add_unique("invoice", job_id="done")).new
    assert not (await queue.add_unique("invoice", job_id="dead")).new
    clock.advance(DAY)
    assert await queue.prune(completed_before=clock.now(), failed_before=clock.now()) == 2
    assert (await queue.stats()).total == 0


async def test_an_id_is_held_in_its_own_queue_only(queue: Queue, other_queue: Queue) -> None:
    assert (await queue.add_unique("invoice", job_id="a", unique_for=HOUR)).new
    assert (await other_queue.add_unique("invoice", job_id="a", unique_for=HOUR)).new
    await settle(queue, acked(await fetch_one(queue)))
    assert not (await other_queue.add_unique("invoice", job_id="a")).new


async def test_of_many_concurrent_adds_of_one_id_exactly_one_is_new(store_url: str) -> None:
    queues = [Queue("orders", store_url) for _ in range(4)]
    try:
        for each in queues:
            await each.open()
        for round_number in range(5):
            answers = await asyncio.gather(
                *(
                    each.add_unique("invoice", job_id=f"{round_number}-{n}")
                    for n in range(10)
                    for each in queues
                )
            )
            new = [each.id for each in answers if each.new]
            assert sorted(new) == sorted({each.id for each in answers})
        assert (await queues[0].stats()).pending == 50
        await checked_trail(queues[0])
    finally:
        for each in queues:
            await each.close()


async def test_concurrent_batches_that_name_the_same_ids_in_another_order_do_not_fail(store_url: str) -> None:
    async with Queue("orders", store_url) as one, Queue("orders", store_url) as two:
        for _ in range(5):
            ids = [f"id-{n}" for n in range(100)]
            await asyncio.gather(
                one.add_many([NewJob("job", job_id=each) for each in ids]),
                two.add_many([NewJob("job", job_id=each) for each in reversed(ids)]),
            )
            assert (await one.stats()).pending == 100
            assert await one.purge() == 100
        await checked_trail(one)


async def test_an_id_twice_in_one_batch_is_added_once(queue: Queue) -> None:
    ids = await queue.add_many(
        [
            NewJob("first", job_id="a"),
            NewJob("plain"),
            NewJob("second", job_id="a"),
            NewJob("other", job_id="b"),
        ]
    )
    assert ids[0] == ids[2] == "a"
    assert (await queue.stats()).pending == 3
    assert (await record_of(queue, "a")).name == "first"
    encoded = queue.encode([NewJob("x", job_id="c"), NewJob("y", job_id="a"), NewJob("z", job_id="c")])
    assert await queue.store.add(queue.name, encoded, who="test") == [True, False, False]
    assert len(await checked_trail(queue)) == 4


async def test_a_batch_with_recent_ids_adds_the_others(queue: Queue, clock: VirtualClock) -> None:
    await queue.add_unique("invoice", job_id="recent", unique_for=HOUR)
    await settle(queue, acked(await fetch_one(queue)))
    encoded = queue.encode([NewJob("x"), NewJob("y", job_id="recent"), NewJob("z", job_id="fresh")])
    assert await queue.store.add(queue.name, encoded, who="test") == [True, False, True]
    assert (await queue.stats()).pending == 2
    assert len(await checked_trail(queue)) == 5


async def test_the_latest_life_of_an_id_is_the_one_that_is_seen(queue: Queue, clock: VirtualClock) -> None:
    for name in ("first", "second"):
        await queue.add_unique(name, job_id="a")
        clock.advance(SECOND)
        await settle(queue, dead(await fetch_one(queue), Reason.REJECTED))
    assert (await record_of(queue, "a")).name == "second"
    await queue.add_unique("third", job_id="a")
    assert (await record_of(queue, "a")).name == "third"
