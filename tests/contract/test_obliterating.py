"""Obliterating a queue: nothing of it is left but the record, and a queue of the same name begins anew."""

from __future__ import annotations

from datetime import timedelta

import pytest

from remuda import NewJob, Queue, QueueBusyError, State
from remuda.clock import VirtualClock
from remuda.rate import RateLimit, RateLimits
from remuda.stores.contract import Note
from tests.contract.workbench import (
    HOUR,
    SECOND,
    acked,
    checked_trail,
    dead,
    fetch,
    fetch_one,
    nacked,
    settle,
)


async def fill(queue: Queue, clock: VirtualClock) -> None:
    """Something of everything that a queue can hold; nothing runs."""
    await queue.add("done")
    await settle(queue, acked(await fetch_one(queue)))
    await queue.add_unique("held", job_id="held", unique_for=10 * HOUR)
    await settle(queue, acked(await fetch_one(queue)))
    await queue.add("dead")
    await settle(queue, dead(await fetch_one(queue)))
    await queue.add("again")
    await settle(queue, nacked(await fetch_one(queue), clock.now() + HOUR))
    await queue.add_many([NewJob(name="due", priority=2), NewJob(name="later", delay=HOUR)])
    await queue.add_unique("own", job_id="own")
    await queue.repeats.put("daily", every=HOUR)
    await queue.limit_rate(queue=RateLimit(1_000, HOUR), key=RateLimit(5, HOUR))
    await queue.store.book(queue.name, ["k"])
    await queue.store.ask_to_cancel(queue.name, ["x"])
    await queue.store.note(queue.name, [Note("x", b"\x01", [])], ttl=HOUR)


async def test_nothing_is_left_but_the_record(queue: Queue, other_queue: Queue, clock: VirtualClock) -> None:
    await fill(queue, clock)
    await other_queue.add("stays")
    before, before_stats = await checked_trail(queue), await queue.stats()
    assert await queue.obliterate() == before_stats.total == 7
    stats = await queue.stats()
    assert (stats.total, stats.paused) == (0, False)
    assert await queue.jobs() == []
    assert await queue.get("held") is None
    assert await queue.repeats.list() == []
    assert await queue.rate_limits() == RateLimits(queue=None, key=None)
    assert await queue.store.asked_to_cancel(queue.name) == {}
    assert await queue.progress("x") is None
    assert await queue.store.queues() == ["other"]
    assert (await other_queue.stats()).pending == 1
    trail = await checked_trail(queue)
    assert trail[: len(before)] == before
    assert [move.entered for move in trail[len(before) :]] == [State.REMOVED] * 5
    assert queue.name in await queue.store.trails()


async def test_a_queue_of_the_same_name_begins_anew_and_its_numbers_go_on(
    queue: Queue, clock: VirtualClock
) -> None:
    await fill(queue, clock)
    await queue.obliterate()
    last = (await checked_trail(queue))[-1].seq
    for job_id in ("held", "own"):  # no id is taken any more
        assert (await queue.add_unique("job", job_id=job_id)).new
    assert await queue.store.queues() == [queue.name]
    for _ in range(2):
        await settle(queue, acked(await fetch_one(queue)))
    assert (await queue.stats()).completed == 2
    assert (await checked_trail(queue))[-1].seq == last + 6
    assert await queue.obliterate() == 2


async def test_what_runs_is_in_the_way(queue: Queue) -> None:
    await queue.add("job")
    delivery = await fetch_one(queue)
    await queue.add("waits")
    with pytest.raises(QueueBusyError, match="1 jobs of the queue"):
        await queue.obliterate()
    stats = await queue.stats()
    assert (stats.processing, stats.pending, stats.paused) == (1, 1, False)
    await queue.pause()
    with pytest.raises(QueueBusyError):
        await queue.obliterate()
    assert (await queue.stats()).paused
    assert await settle(queue, acked(delivery)) == []
    assert await queue.obliterate() == 2


async def test_by_force_what_runs_goes_too_and_its_outcome_does_not_count(
    queue: Queue, clock: VirtualClock
) -> None:
    await queue.add_many([NewJob(name="job", priority=p) for p in (-1, 0, 2) for _ in range(3)])
    deliveries = await fetch(queue, limit=9)
    assert len(deliveries) == 9
    clock.advance(SECOND)
    assert await queue.obliterate(force=True) == 9
    assert (await queue.stats()).total == 0
    assert len(await settle(queue, *(acked(each) for each in deliveries))) == 9
    assert (await queue.stats()).total == 0
    moves = (await checked_trail(queue))[-18:]
    assert [(move.entered, move.reason) for move in moves[:9]] == [(State.PENDING, "taken_back")] * 9
    assert {move.entered for move in moves[9:]} == {State.REMOVED}


async def test_what_any_worker_holds_can_be_taken_back(queue: Queue) -> None:
    ids = [await queue.add("job") for _ in range(3)]
    deliveries = await fetch(queue, limit=2)
    assert sorted(await queue.store.take_back(queue.name, who="operator")) == sorted(ids[:2])
    assert await queue.store.take_back(queue.name, who="operator") == []
    assert len(await queue.store.extend(queue.name, deliveries, lease=timedelta(minutes=1))) == 2
    again = await fetch(queue, limit=5)
    assert sorted(each.id for each in again) == sorted(ids)
    assert {each.deliveries for each in again} == {1, 2}


async def test_an_empty_queue_can_be_obliterated_too(queue: Queue) -> None:
    assert await queue.obliterate() == 0
    assert await queue.store.queues() == []


async def test_of_a_queue_that_is_never_used_again_the_record_can_go_too(
    queue: Queue, other_queue: Queue, clock: VirtualClock
) -> None:
    await fill(queue, clock)
    await other_queue.add("stays")
    await queue.obliterate()
    assert sorted(await queue.store.trails()) == sorted(["other", queue.name])
    await queue.store.forget_trail(queue.name)
    assert await queue.store.trails() == ["other"]
    assert await queue.store.queues() == ["other"]
    assert len(await checked_trail(other_queue)) == 1
    await queue.add("anew")
    assert [move.seq for move in await checked_trail(queue)] == [1]
