"""Replaying dead letters: back to the queue with a fresh budget, once each."""

from __future__ import annotations

import asyncio

from remuda import Constant, Job, NewJob, Queue, Reason, State
from remuda.clock import VirtualClock
from tests.contract.workbench import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    acked,
    bury,
    checked_trail,
    dead,
    fetch,
    fetch_one,
    make_worker,
    record_of,
    settle,
)


async def test_a_replayed_job_keeps_what_it_is_and_starts_afresh(queue: Queue, clock: VirtualClock) -> None:
    override = Constant(every=MINUTE, max_attempts=2)
    job_id = await queue.add(
        "greet", {"to": "a"}, headers={"h": 1}, priority=2, retry=override, expires_in=HOUR
    )
    created = clock.now()
    delivery = await fetch_one(queue)
    await settle(queue, dead(delivery))
    clock.advance(DAY)

    replayed = await queue.dead.replay()

    assert (replayed.ids, replayed.still_live) == ([job_id], [])
    record = await record_of(queue, job_id)
    assert (record.state, record.attempts, record.deliveries) == (State.PENDING, 0, 0)
    assert (record.name, record.value(), record.headers, record.priority) == (
        "greet",
        {"to": "a"},
        {"h": 1},
        2,
    )
    assert record.created_at == created
    assert record.next_attempt_at == clock.now()
    assert (record.first_attempt_at, record.last_attempt_at, record.ended_at) == (None, None, None)
    assert (record.reason, record.error_type, record.error_message) == (None, None, None)
    assert record.expires_at is None  # its time was over already: it is run on somebody's word
    again = await fetch_one(queue)
    assert (again.retry, again.attempts, again.deliveries) == (delivery.retry, 0, 1)
    assert await queue.dead.count() == {}
    transitions = await checked_trail(queue)
    back = next(each for each in transitions if each.left is State.FAILED)
    assert (back.entered, back.dwell, back.attempt, back.who) == (State.PENDING, DAY, 0, queue.who)


async def test_a_replayed_job_has_its_whole_budget_of_attempts_again(
    queue: Queue, clock: VirtualClock
) -> None:
    worker = make_worker(queue, retry=Constant(every=SECOND, max_attempts=3), max_deliveries=3)
    attempts: list[int] = []

    @worker.handler("greet")
    async def greet(job: Job) -> None:
        attempts.append(job.attempt)
        raise ValueError("still broken")

    job_id = await queue.add("greet")
    for _ in range(2):
        for _ in range(4):
            await worker.step()
            clock.advance(SECOND)
        assert (await record_of(queue, job_id)).reason == Reason.RETRIES_EXHAUSTED
        assert (await queue.dead.replay()).ids == [job_id]
    assert attempts == [1, 2, 3, 1, 2, 3]


async def test_a_replay_takes_the_oldest_up_to_its_limit(queue: Queue, clock: VirtualClock) -> None:
    ids: list[str] = []
    for _ in range(5):
        ids += await bury(queue, "a")
        clock.advance(SECOND)
    assert (await queue.dead.replay(limit=2)).ids == ids[:2]
    assert (await queue.dead.replay(limit=0)).ids == []
    assert (await queue.dead.replay(limit=2)).ids == ids[2:4]
    assert await queue.dead.count() == {"rejected": 1}


async def test_a_replay_takes_only_what_its_filter_names(queue: Queue, clock: VirtualClock) -> None:
    start = clock.now()
    (a_panic,) = await bury(queue, "a", reason=Reason.PANIC)
    (b_panic,) = await bury(queue, "b", reason=Reason.PANIC)
    clock.advance(HOUR)
    (a_late,) = await bury(queue, "a", reason=Reason.EXPIRED)
    (b_late,) = await bury(queue, "b", reason=Reason.EXPIRED)
    (c_late,) = await bury(queue, "c", reason=Reason.EXPIRED)
    assert (await queue.dead.replay(reason="panic", name="b")).ids == [b_panic]
    assert (await queue.dead.replay(since=start + MINUTE, name="b")).ids == [b_late]
    assert (await queue.dead.replay(until=start + MINUTE)).ids == [a_panic]
    assert (await queue.dead.replay(ids=[c_late, b_panic])).ids == [c_late]
    assert [each.id for each in await queue.dead.peek()] == [a_late]


async def test_a_dry_run_tells_what_would_go_back_and_changes_nothing(
    queue: Queue, clock: VirtualClock
) -> None:
    ids: list[str] = []
    for name in ("a", "b", "a"):
        ids += await bury(queue, name)
        clock.advance(SECOND)
    before = await checked_trail(queue)
    assert (await queue.dead.replay(name="a", dry_run=True)).ids == [ids[0], ids[2]]
    assert (await queue.dead.replay(limit=1, dry_run=True)).ids == [ids[0]]
    assert await queue.dead.count() == {"rejected": 3}
    assert await checked_trail(queue) == before
    assert (await queue.dead.replay(name="a")).ids == [ids[0], ids[2]]


async def test_a_dead_letter_whose_id_lives_again_stays_and_is_reported(queue: Queue) -> None:
    await queue.add_unique("invoice", {"n": 1}, job_id="a")
    await settle(queue, dead(await fetch_one(queue)))
    (other,) = await bury(queue, "b")
    await queue.add_unique("invoice", {"n": 2}, job_id="a")

    tried = await queue.dead.replay(dry_run=True)
    assert (tried.ids, tried.still_live) == ([other], ["a"])
    replayed = await queue.dead.replay()
    assert (replayed.ids, replayed.still_live) == ([other], ["a"])
    assert (await record_of(queue, "a")).value() == {"n": 2}
    assert await queue.dead.count() == {"rejected": 1}

    await settle(queue, *(acked(each) for each in await fetch(queue)))
    assert (await queue.dead.replay()).ids == ["a"]
    assert (await record_of(queue, "a")).value() == {"n": 1}


async def test_letters_that_stay_do_not_keep_others_from_a_replay(queue: Queue, clock: VirtualClock) -> None:
    for n in range(3):
        await queue.add_unique("invoice", job_id=f"id-{n}")
    await settle(queue, *(dead(each) for each in await fetch(queue)))
    for n in range(3):
        await queue.add_unique("invoice", job_id=f"id-{n}")
    clock.advance(SECOND)
    await fetch(queue)
    (other,) = await bury(queue, "b")
    assert (await queue.dead.replay(limit=1)).ids == [other]


async def test_of_two_dead_letters_of_one_id_only_one_comes_back(queue: Queue, clock: VirtualClock) -> None:
    for _ in range(2):
        await queue.add_unique("invoice", job_id="a")
        await settle(queue, dead(await fetch_one(queue)))
        clock.advance(SECOND)
    assert (await queue.dead.replay()).ids == ["a"]
    stats = await queue.stats()
    assert (stats.pending, stats.failed) == (1, 1)
    assert (await queue.dead.replay()).still_live == ["a"]


async def test_what_dies_again_is_not_replayed_twice_by_one_call(queue: Queue, clock: VirtualClock) -> None:
    """More letters than one step of a replay takes, and a worker that fails at once."""
    await queue.add_many([NewJob("job", n) for n in range(700)])
    await settle(queue, *(dead(each) for each in await fetch(queue, 700)))
    clock.advance(SECOND)
    replaying = asyncio.create_task(queue.dead.replay(limit=10_000))
    await asyncio.sleep(0)  # it has begun; what dies from here on dies later
    clock.advance(SECOND)
    while not replaying.done():
        await settle(queue, *(dead(each) for each in await fetch(queue, 700)))
    assert len((await replaying).ids) == 700


async def test_concurrent_replays_never_replay_one_letter_twice(store_url: str) -> None:
    queues = [Queue("orders", store_url) for _ in range(3)]
    try:
        ids = await queues[0].add_many([NewJob("job", n) for n in range(1_500)])
        await settle(queues[0], *(dead(each) for each in await fetch(queues[0], 1_500)))
        answers = await asyncio.gather(*(each.dead.replay(limit=10_000) for each in queues))
        replayed = [job_id for answer in answers for job_id in answer.ids]
        assert sorted(replayed) == sorted(ids)
        stats = await queues[0].stats()
        assert (stats.pending, stats.failed) == (1_500, 0)
        assert len(await checked_trail(queues[0])) == 4 * 1_500
    finally:
        for each in queues:
            await each.close()


async def test_a_replay_beside_a_drop_gives_each_letter_one_fate(store_url: str) -> None:
    async with Queue("orders", store_url) as one, Queue("orders", store_url) as two:
        ids = await one.add_many([NewJob("job", n) for n in range(1_000)])
        await settle(one, *(dead(each) for each in await fetch(one, 1_000)))
        replayed, dropped = await asyncio.gather(one.dead.replay(limit=10_000), two.dead.drop(limit=10_000))
        assert not set(replayed.ids) & set(dropped)
        stats = await one.stats()
        assert stats.pending == len(replayed.ids)
        assert stats.failed == len(ids) - len(replayed.ids) - len(dropped)
        await checked_trail(one)


async def test_a_replay_wakes_an_idle_worker(queue: Queue) -> None:
    await bury(queue, "a")
    wakeup = queue.store.watch(queue.name)
    await queue.dead.replay()
    assert await wakeup.wait(10 * SECOND)
    wakeup.close()
