"""The trail: every state change once, in order, numbered without a gap."""

from __future__ import annotations

import asyncio

from remuda import NewJob, Queue, Reason, State
from remuda.clock import VirtualClock
from tests.contract.workbench import (
    DAY,
    HOUR,
    LEASE,
    MINUTE,
    SECOND,
    acked,
    checked_trail,
    dead,
    fetch,
    fetch_one,
    moves_of,
    nacked,
    record_of,
    recover,
    release,
    settle,
    trail,
)


async def test_every_way_through_the_lifecycle_is_recorded(queue: Queue, clock: VirtualClock) -> None:
    job_id = await queue.add("job")
    clock.advance(SECOND)
    await release(queue, await fetch_one(queue))
    clock.advance(SECOND)
    await fetch_one(queue)
    clock.advance(LEASE)
    await recover(queue)
    clock.advance(SECOND)
    await settle(queue, nacked(await fetch_one(queue), clock.now() + MINUTE))
    clock.advance(MINUTE)
    await settle(queue, dead(await fetch_one(queue), Reason.UNRECOVERABLE))
    clock.advance(HOUR)
    await queue.dead.replay()
    clock.advance(2 * SECOND)
    await queue.purge()

    transitions = await checked_trail(queue)
    assert [(each.entered, each.dwell, each.attempt, each.reason) for each in transitions] == [
        (State.PENDING, None, 0, None),
        (State.PROCESSING, SECOND, 0, None),
        (State.PENDING, 0 * SECOND, 0, "unstarted"),
        (State.PROCESSING, SECOND, 0, None),
        (State.PENDING, LEASE, 0, "lease_expired"),
        (State.PROCESSING, SECOND, 0, None),
        (State.RETRYABLE, 0 * SECOND, 1, None),
        (State.PROCESSING, MINUTE, 1, None),
        (State.FAILED, 0 * SECOND, 2, "unrecoverable"),
        (State.PENDING, HOUR, 0, "replay"),
        (State.REMOVED, 2 * SECOND, 0, "purged"),
    ]
    assert {each.message for each in transitions} == {job_id}
    total = sum((each.dwell for each in transitions if each.dwell is not None), 0 * SECOND)
    assert total == clock.now() - transitions[0].at


async def test_each_queue_has_a_trail_of_its_own(queue: Queue, other_queue: Queue) -> None:
    for n in range(3):
        mine = await queue.add("job", n)
        theirs = await other_queue.add("job", n)
    assert [each.seq for each in await checked_trail(queue)] == [1, 2, 3]
    assert [each.seq for each in await checked_trail(other_queue)] == [1, 2, 3]
    assert (await trail(queue))[-1].message == mine
    assert (await trail(other_queue))[-1].message == theirs


async def test_a_reader_goes_on_from_where_it_was(queue: Queue) -> None:
    assert await trail(queue) == []
    await queue.add("job")
    first = await trail(queue)
    assert await trail(queue, after=first[-1].seq) == []
    await queue.add("job")
    second = await trail(queue, after=first[-1].seq)
    assert [each.seq for each in second] == [2]
    assert await trail(queue) == first + second


async def test_a_trail_is_read_in_pages_from_any_offset(queue: Queue) -> None:
    """Offsets in the middle of what was written together, and at its edges."""
    await queue.add_many([NewJob("job", n) for n in range(60)])
    await queue.add("job")
    for batch in (10, 25, 26):
        await settle(queue, *(acked(each) for each in await fetch(queue, batch)))
    whole = await checked_trail(queue)
    assert len(whole) == 183
    for after in (0, 1, 30, 59, 60, 61, 62, 70, 71, 80, 100, 146, 182, 183):
        page = await queue.store.transitions(queue.name, after=after, limit=7)
        assert page.transitions == whole[after : after + len(page.transitions)]
        assert page.next_offset == after + len(page.transitions)
        assert len(page.transitions) >= min(7, 183 - after)
    for limit in (1, 3, 50, 1_000):
        paged, after = [], 0
        while (page := await queue.store.transitions(queue.name, after=after, limit=limit)).transitions:
            paged += page.transitions
            after = page.next_offset
        assert paged == whole


async def test_beyond_the_end_there_is_nothing_and_the_offset_stays(queue: Queue) -> None:
    await queue.add("job")
    page = await queue.store.transitions(queue.name, after=5, limit=10)
    assert (page.transitions, page.next_offset) == ([], 5)


async def test_a_batch_beyond_one_entry_is_read_from_every_part(queue: Queue) -> None:
    ids = await queue.add_many([NewJob("job", n) for n in range(12_000)])
    for after in (0, 1, 4_999, 5_000, 5_001, 9_999, 11_999):
        page = await queue.store.transitions(queue.name, after=after, limit=3)
        assert [each.message for each in page.transitions[:3]] == ids[after : after + 3]
        assert page.transitions[0].seq == after + 1


async def test_a_trimmed_trail_keeps_its_numbers(queue: Queue) -> None:
    await queue.add_many([NewJob("job", n) for n in range(10)])
    deliveries = await fetch(queue)
    whole = await checked_trail(queue)
    # Only what was written together goes together: the first ten end at 10, the next at 20.
    assert await queue.store.trim_transitions(queue.name, up_to=15) == 10
    assert await trail(queue) == whole[10:]
    assert await queue.store.trim_transitions(queue.name, up_to=15) == 0
    await settle(queue, *(acked(each) for each in deliveries))
    assert [each.seq for each in await trail(queue)] == list(range(11, 31))
    assert await queue.store.trim_transitions(queue.name, up_to=30) == 20
    assert await trail(queue) == []
    await queue.add("job")
    assert [each.seq for each in await trail(queue)] == [31]


async def test_a_trail_that_nobody_has_read_is_not_trimmed(queue: Queue) -> None:
    await queue.add("job")
    assert await queue.store.trim_transitions(queue.name, up_to=0) == 0
    assert len(await trail(queue)) == 1


async def test_trimming_leaves_other_queues_alone(queue: Queue, other_queue: Queue) -> None:
    await queue.add("job")
    await other_queue.add("job")
    await trail(queue)
    await trail(other_queue)
    assert await queue.store.trim_transitions(queue.name, up_to=100) == 1
    assert len(await trail(other_queue)) == 1


async def test_a_trail_read_while_many_write_has_no_gap_and_no_double(store_url: str) -> None:
    queues = [Queue("orders", store_url) for _ in range(3)]
    try:
        done = asyncio.Event()

        async def work(each: Queue) -> None:
            for n in range(15):
                await each.add_many([NewJob("job", n) for _ in range(3)])
                await settle(each, *(acked(delivery) for delivery in await fetch(each, 5)))

        async def read(each: Queue) -> list[int]:
            numbers: list[int] = []
            while not done.is_set():
                numbers += [one.seq for one in await trail(each, after=numbers[-1] if numbers else 0)]
                await asyncio.sleep(0)
            numbers += [one.seq for one in await trail(each, after=numbers[-1] if numbers else 0)]
            return numbers

        readers = [asyncio.create_task(read(each)) for each in queues[:2]]
        await asyncio.gather(*(work(each) for each in queues))
        done.set()
        read_by_one, read_by_two = await asyncio.gather(*readers)
        whole = await checked_trail(queues[2])
        assert read_by_one == read_by_two == [each.seq for each in whole]
        stats = await queues[0].stats()
        assert len(whole) == 135 + stats.completed * 2
    finally:
        for each in queues:
            await each.close()


async def test_a_live_job_is_where_the_trail_says(queue: Queue, clock: VirtualClock) -> None:
    await queue.add_many([NewJob("job", n) for n in range(9)])
    running = await fetch(queue, 6)
    await settle(queue, acked(running[0]), dead(running[1]), nacked(running[2], clock.now() + HOUR))
    transitions = await checked_trail(queue)
    for job_id in {each.message for each in transitions}:
        assert (await record_of(queue, job_id)).state is moves_of(transitions, job_id)[-1][1]


async def test_the_history_of_one_job_is_found_without_the_rest(queue: Queue, clock: VirtualClock) -> None:
    for _ in range(3):
        await queue.add("earlier")
        clock.advance(DAY)
    job_id = await queue.add("job")
    await queue.add("neighbour")
    clock.advance(SECOND)
    for delivery in await fetch(queue):
        await settle(queue, acked(delivery))
    clock.advance(DAY)
    await queue.add("later")
    moves = [(each.left, each.entered) for each in await queue.history(job_id)]
    assert moves == [
        (None, State.PENDING),
        (State.PENDING, State.PROCESSING),
        (State.PROCESSING, State.COMPLETED),
    ]
    assert await queue.store.trail_offset(queue.name, since=clock.now() - 2 * DAY) >= 3
    assert await queue.store.trail_offset(queue.name, since=clock.now() + DAY) == len(
        [each async for each in queue.transitions()]
    )
    assert await queue.history("nobody") == []


async def test_an_ack_records_the_time_since_the_fetch(queue: Queue, clock: VirtualClock) -> None:
    job_id = await queue.add("job")
    clock.advance(MINUTE)
    delivery = await fetch_one(queue)
    clock.advance(HOUR)
    await settle(queue, acked(delivery))
    assert [each.dwell for each in await queue.history(job_id)] == [None, MINUTE, HOUR]
