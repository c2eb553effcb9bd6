"""Fetching: what is due, in which order, and for whom."""

from __future__ import annotations

import asyncio
import random

from remuda import NewJob, Queue, State
from remuda.clock import VirtualClock
from remuda.stores.contract import Suspects
from tests.contract.workbench import (
    HOUR,
    LEASE,
    MINUTE,
    SECOND,
    checked_trail,
    fetch,
    nacked,
    record_of,
    recover,
    release,
    settle,
)


async def test_past_jobs_come_in_the_order_of_their_time(queue: Queue, clock: VirtualClock) -> None:
    late = await queue.add("job", next_attempt_at=clock.now() - SECOND)
    early = await queue.add("job", next_attempt_at=clock.now() - HOUR)
    middle = await queue.add("job", next_attempt_at=clock.now() - MINUTE)
    assert [each.id for each in await fetch(queue)] == [early, middle, late]


async def test_a_higher_priority_comes_first_and_within_one_the_earlier(
    queue: Queue, clock: VirtualClock
) -> None:
    wanted = [(priority, minutes) for priority in (2, 1, 0, -1, -2) for minutes in (30, 20, 10)]
    shuffled = random.Random(7).sample(wanted, len(wanted))
    await queue.add_many(
        [
            NewJob("job", list(each), priority=each[0], next_attempt_at=clock.now() - each[1] * MINUTE)
            for each in shuffled
        ]
    )
    found = []
    while batch := await fetch(queue, 4):
        found += [(each.priority, (clock.now() - each.next_attempt_at) // MINUTE) for each in batch]
    assert found == wanted


async def test_a_future_job_of_high_priority_does_not_hold_up_the_others(queue: Queue) -> None:
    await queue.add("job", priority=2, delay=HOUR)
    due = await queue.add("job", priority=-2)
    assert [each.id for each in await fetch(queue)] == [due]


async def test_jobs_of_one_moment_come_in_the_order_of_adding(queue: Queue) -> None:
    ids = await queue.add_many([NewJob("job", n) for n in range(300)])
    assert [each.id for each in await fetch(queue, 300)] == ids


async def test_a_fetch_gives_no_more_than_it_was_asked_for(queue: Queue) -> None:
    await queue.add_many([NewJob("job", n, priority=n % 5 - 2) for n in range(20)])
    sizes = [len(await fetch(queue, 7)) for _ in range(4)]
    assert sizes == [7, 7, 6, 0]


async def test_other_queues_are_left_alone(queue: Queue, other_queue: Queue) -> None:
    mine = await queue.add("job")
    theirs = await other_queue.add("job")
    assert [each.id for each in await fetch(queue)] == [mine]
    assert (await record_of(other_queue, theirs)).state is State.PENDING
    assert await queue.get(theirs) is None


async def test_a_fetched_job_is_marked_and_leased(queue: Queue, clock: VirtualClock) -> None:
    job_id = await queue.add("job")
    clock.advance(SECOND)
    await fetch(queue, who="worker-7")
    record = await record_of(queue, job_id)
    assert (record.state, record.deliveries, record.attempts) == (State.PROCESSING, 1, 0)
    assert record.acquired_at == clock.now()
    assert record.lease_expires_at == clock.now() + LEASE
    assert record.worker == "worker-7"


async def test_concurrent_fetches_never_share_a_job(store_url: str) -> None:
    queues = [Queue("orders", store_url) for _ in range(3)]
    try:
        await queues[0].add_many([NewJob("job", n) for n in range(600)])

        async def take_all(each: Queue) -> list[str]:
            taken: list[str] = []
            empty = 0
            while empty < 3:
                batch = await fetch(each, 20)
                taken += [delivery.id for delivery in batch]
                empty = 0 if batch else empty + 1
            return taken

        parts = await asyncio.gather(*(take_all(each) for each in queues))
        taken = [job_id for part in parts for job_id in part]
        assert len(taken) == len(set(taken)) == 600
        assert (await queues[0].stats()).processing == 600
        await checked_trail(queues[0])
    finally:
        for each in queues:
            await each.close()


async def test_nothing_is_fetched_while_paused_and_a_pause_outlives_the_program(
    store_url: str, clock: VirtualClock
) -> None:
    async with Queue("orders", store_url, clock=clock) as queue:
        job_id = await queue.add("job")
        await queue.pause()
        assert await fetch(queue) == []
    async with Queue("orders", store_url, clock=clock) as queue:
        assert await fetch(queue) == []
        assert (await queue.stats()).paused
        assert (await record_of(queue, job_id)).state is State.PENDING
        await queue.resume()
        assert not (await queue.stats()).paused
        assert [each.id for each in await fetch(queue)] == [job_id]


async def test_a_pause_holds_one_queue_and_takes_new_jobs(queue: Queue, other_queue: Queue) -> None:
    await queue.pause()
    await queue.pause()
    await queue.add("job")
    job_id = await other_queue.add("job")
    assert await fetch(queue) == []
    assert [each.id for each in await fetch(other_queue)] == [job_id]
    await queue.resume()
    await queue.resume()
    assert len(await fetch(queue)) == 1


async def test_suspects_are_left_out_or_asked_for(queue: Queue, clock: VirtualClock) -> None:
    """A suspect was delivered and never settled; a job whose deliveries all ended is none."""
    ids = await queue.add_many([NewJob("stuck", n) for n in range(2)])
    await fetch(queue, 2)
    clock.advance(LEASE)
    await recover(queue)
    retried = await queue.add("retried", priority=1)
    await settle(queue, nacked((await fetch(queue, 1))[0], clock.now()))
    fresh = await queue.add("fresh")

    async def found(suspects: Suspects, limit: int = 10) -> set[str]:
        deliveries = await queue.store.fetch(
            queue.name, limit=limit, lease=LEASE, who="test", suspects=suspects
        )
        await release(queue, *deliveries)
        return {each.id for each in deliveries}

    assert await found(Suspects(delivered=1, only=False)) == {retried, fresh}
    assert await found(Suspects(delivered=1, only=True)) == set(ids)
    assert len(await found(Suspects(delivered=1, only=True), limit=1)) == 1
    assert await found(Suspects(delivered=2, only=True)) == set()
    assert await found(Suspects(delivered=2, only=False)) == {retried, fresh, *ids}


async def test_the_next_due_time_is_that_of_the_first_that_waits(queue: Queue, clock: VirtualClock) -> None:
    assert await queue.store.next_due(queue.name) is None
    await queue.add("job", delay=HOUR)
    await queue.add("job", delay=MINUTE, priority=-2)
    assert await queue.store.next_due(queue.name) == clock.now() + MINUTE
    clock.advance(MINUTE)
    await fetch(queue)
    assert await queue.store.next_due(queue.name) == clock.now() - MINUTE + HOUR
