"""The trail: every state change once, in order, numbered without a gap."""

from __future__ import annotations

import asyncio

from remuda import NewJob, Queue, Reason, State
from remuda.clock import VirtualClock
from remuda.lifecycle import CommandStatus
from remuda.stores.command_trail import trail_name
from remuda.stores.contract import Store
from remuda.stores.opening_commands import open_commands
from remuda.stores.redis.store import RedisStore
from remuda.transition import Transition, unpack
from tests.commands.workbench import move, new, put
from tests.commands.workbench import trail as commands_trail
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

ADDED = move(None, CommandStatus.QUEUED)


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


# -- packed entries, by the numbers that there are


async def opened(store: Store, name: str, *, after: int, up_to: int, limit: int) -> list[Transition]:
    """What a call gives, unpacked and cut to the numbers that were asked for."""
    found = await store.trail_entries(name, after=after, up_to=up_to, limit=limit)
    unpacked = [unpack(each.entry, queue=name, first_seq=each.first_seq) for each in found]
    assert [len(each) for each in unpacked] == [each.count for each in found]
    return [each for one in unpacked for each in one if after < each.seq <= up_to]


async def test_a_span_tells_which_numbers_there_are(queue: Queue, other_queue: Queue) -> None:
    store = queue.store
    assert await store.trail_span(queue.name) == (1, 0)
    await queue.add_many([NewJob("job", n) for n in range(10)])
    await other_queue.add("job")
    assert await store.trail_span(queue.name) == (1, 10)
    await fetch(queue)
    assert await store.trail_span(queue.name) == (1, 20)
    await store.trim_transitions(queue.name, up_to=10)
    assert await store.trail_span(queue.name) == (11, 20)
    await store.trim_transitions(queue.name, up_to=20)
    assert await store.trail_span(queue.name) == (21, 20)
    await queue.add("job")
    assert await store.trail_span(queue.name) == (21, 21)
    assert await store.trail_span(other_queue.name) == (1, 1)


async def test_entries_are_found_from_every_number_to_every_other(queue: Queue, other_queue: Queue) -> None:
    """Offsets in the middle of what was written together, and at its edges."""
    store = queue.store
    for size in (10, 1, 25):
        await queue.add_many([NewJob("job", n) for n in range(size)])
        await other_queue.add("job")
    whole = await checked_trail(queue)
    for after in (0, 1, 9, 10, 11, 12, 30, 35, 36, 50):
        for up_to in (0, 1, 10, 11, 12, 35, 36, 50):
            for limit in (1, 7, 100):
                found = await opened(store, queue.name, after=after, up_to=up_to, limit=limit)
                assert found == whole[after : after + len(found)]
                assert len(found) >= min(limit, len(whole[after:up_to]), 1)
                if limit >= 36:
                    assert found == whole[after:up_to]
    entries = await store.trail_entries(queue.name, after=5, up_to=11, limit=100)
    assert [(each.first_seq, each.count) for each in entries] == [(1, 10), (11, 1)]
    assert [type(each.entry) for each in entries] == [bytes, bytes]


async def test_entries_are_read_in_pages_of_about_the_limit(queue: Queue) -> None:
    for n in range(30):
        await queue.add_many([NewJob("job", n) for _ in range(10)])
    span = await queue.store.trail_span(queue.name)
    for limit in (1, 25, 100, 1_000):
        numbers: list[int] = []
        while found := await queue.store.trail_entries(
            queue.name, after=len(numbers), up_to=span.last, limit=limit
        ):
            page = [each.first_seq + n for each in found for n in range(each.count)]
            numbers += page
            assert len(page) <= limit + 10
            assert len(page) > limit - 10 or len(numbers) == 300
        assert numbers == list(range(1, 301))


async def test_an_entry_that_is_longer_than_the_limit_is_given_whole(queue: Queue) -> None:
    await queue.add_many([NewJob("job", n) for n in range(12_000)])
    assert await queue.store.trail_span(queue.name) == (1, 12_000)
    for after, first_seq in ((0, 1), (4_999, 1), (5_000, 5_001), (11_999, 10_001)):
        (found, *_) = await queue.store.trail_entries(queue.name, after=after, up_to=12_000, limit=1)
        assert found.first_seq == first_seq
        assert len(unpack(found.entry, queue=queue.name, first_seq=first_seq)) == found.count


async def test_entries_after_a_trimmed_stretch_are_found(queue: Queue) -> None:
    store = queue.store
    for _ in range(3):
        await queue.add_many([NewJob("job", n) for n in range(3_000)])
    await store.trail_span(queue.name)
    await store.trim_transitions(queue.name, up_to=6_000)
    found = await store.trail_entries(queue.name, after=0, up_to=9_000, limit=10)
    assert [(each.first_seq, each.count) for each in found] == [(6_001, 3_000)]
    assert await store.trail_entries(queue.name, after=0, up_to=6_000, limit=10) == []
    assert await store.trail_entries(queue.name, after=0, up_to=6_000, limit=10_000) == []
    assert await store.trail_entries(queue.name, after=9_000, up_to=9_000, limit=10) == []
    assert await store.trail_entries("nobody", after=0, up_to=10, limit=10) == []


async def test_entries_read_while_many_write_have_no_gap_and_no_double(store_url: str) -> None:
    """Two readers in stores of their own, as two programs have them."""
    queues = [Queue("orders", store_url) for _ in range(3)]
    try:
        done = asyncio.Event()

        async def work(each: Queue) -> None:
            for n in range(15):
                await each.add_many([NewJob("job", n) for _ in range(3)])
                await settle(each, *(acked(delivery) for delivery in await fetch(each, 5)))

        async def read(each: Queue) -> list[Transition]:
            seen: list[Transition] = []
            while True:
                was_done = done.is_set()
                last = (await each.store.trail_span(each.name)).last
                while len(seen) < last:
                    more = await opened(each.store, each.name, after=len(seen), up_to=last, limit=20)
                    assert more
                    seen += more
                if was_done:
                    return seen
                await asyncio.sleep(0)

        readers = [asyncio.create_task(read(each)) for each in queues[:2]]
        await asyncio.gather(*(work(each) for each in queues))
        done.set()
        read_by_one, read_by_two = await asyncio.gather(*readers)
        assert read_by_one == read_by_two == await checked_trail(queues[2])
    finally:
        for each in queues:
            await each.close()


# -- trails by their names


async def test_every_trail_has_its_name(store_url: str, clock: VirtualClock) -> None:
    async with Queue("orders", store_url, clock=clock) as queue:
        store = queue.store
        assert await store.trails() == []
        await store.pause("paused")
        assert await store.trails() == []
        await queue.add("job")
        for name in ("log", "a:log", "remuda:log", "żółw"):
            async with Queue(name, store) as other:
                await other.add("job", name)
        for fleet in ("devices", "others", "log"):
            async with open_commands(store_url, fleet=fleet, clock=clock) as commands:
                await put(commands, new("A", moves=(ADDED,)))
        names = ["a:log", "devices:devices", "devices:log", "devices:others", "log", "orders", "remuda:log"]
        assert await store.trails() == [*names, "żółw"]
        await store.trail_span("orders")
        await store.trim_transitions("orders", up_to=1)
        assert await store.trails() == [*names, "żółw"]


async def test_what_only_looks_like_a_trail_is_none(redis_store_url: str) -> None:
    async with RedisStore(redis_store_url) as store:
        for key in (
            "{chasqui:nobody}:result:log",
            "{chasqui:nobody}:log",
            "{remuda:nobody}:queue:log",
            "{remuda:no fleet}:log",
            "{other}:log",
        ):
            await store.link.call("SET", key, "1")
        assert await store.trails() == []


async def test_the_trail_of_a_fleet_is_read_by_its_name(store_url: str, clock: VirtualClock) -> None:
    async with (
        Queue("devices", store_url, clock=clock) as queue,
        open_commands(store_url, fleet="meters", clock=clock) as commands,
    ):
        store, name = queue.store, trail_name("meters")
        assert await store.trail_span(name) == (1, 0)
        await queue.add_many([NewJob("job", n) for n in range(7)])
        for n in range(4):
            await put(commands, new(f"A{n}", moves=(ADDED,)), new(f"B{n}", moves=(ADDED,)))
            clock.advance(HOUR)
        whole = await commands_trail(commands)
        assert len(whole) == 8
        assert await store.trail_span(name) == (1, 8)
        assert await opened(store, name, after=0, up_to=8, limit=100) == whole
        assert await opened(store, name, after=3, up_to=7, limit=100) == whole[3:7]
        page = await store.transitions(name, after=5, limit=100)
        assert (page.transitions, page.next_offset) == (whole[5:], 8)
        since = clock.now() - 2.5 * HOUR
        assert await store.trail_offset(name, since=since) == await commands.trail_offset(since=since) == 4
        assert await store.trim_transitions(name, up_to=5) == 4
        assert await commands_trail(commands) == whole[4:]
        assert await store.trail_span(name) == (5, 8)
        assert await store.trail_span(queue.name) == (1, 7)
