"""Rate limits: for a queue and for each key, shared by all workers, and never at the cost of a job."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from remuda import (
    ConfigurationError,
    Constant,
    Job,
    NewJob,
    Queue,
    RateLimit,
    State,
    StoreUnavailableError,
    Worker,
)
from remuda.clock import VirtualClock
from remuda.rate import NO_LIMITS, RateLimits
from tests.contract.workbench import (
    DAY,
    HOUR,
    LEASE,
    MINUTE,
    SECOND,
    acked,
    checked_trail,
    dead,
    defer,
    eventually,
    fetch,
    fetch_one,
    make_worker,
    nacked,
    record_of,
    recover,
    running,
    settle,
    within,
)

THREE_A_MINUTE = RateLimit(3, MINUTE)  # a turn every 20 s


async def take(queue: Queue, wanted: int) -> int:
    return await queue.store.take_turns(queue.name, wanted=wanted)


async def book(queue: Queue, *keys: str) -> list[float]:
    """Turns for these keys, in seconds from now."""
    now = queue.store.now()
    return [(at - now).total_seconds() for at in await queue.store.book(queue.name, keys)]


def counting(queue: Queue, **options: Any) -> tuple[Worker, Counter[str | None]]:
    """A worker that counts what it has run, by payload."""
    worker = make_worker(queue, **options)
    ran: Counter[str | None] = Counter()

    @worker.handler()
    async def run(job: Job) -> None:
        ran[job.payload] += 1

    return worker, ran


async def run_due(worker: Worker) -> int:
    """Step until there is nothing to be had at this moment."""
    handled = 0
    while count := await worker.step():
        handled += count
    return handled


# -- what is set


async def test_there_is_no_limit_until_one_is_set(queue: Queue) -> None:
    assert await queue.rate_limits() == NO_LIMITS
    assert await take(queue, 1_000) == 1_000
    assert await book(queue, "a", "a", "b") == [0, 0, 0]


async def test_limits_outlive_the_program_that_set_them(
    queue: Queue, store_url: str, clock: VirtualClock
) -> None:
    limits = RateLimits(queue=THREE_A_MINUTE, key=RateLimit(7, HOUR))
    await queue.limit_rate(queue=limits.queue, key=limits.key)
    async with Queue(queue.name, store_url, clock=clock) as again:
        assert await again.rate_limits() == limits
        assert await take(again, 5) == 3


async def test_a_limit_that_is_not_named_is_taken_away(queue: Queue) -> None:
    await queue.limit_rate(queue=THREE_A_MINUTE, key=THREE_A_MINUTE)
    await queue.limit_rate(key=THREE_A_MINUTE)
    assert await queue.rate_limits() == RateLimits(key=THREE_A_MINUTE)
    await queue.limit_rate()
    assert await queue.rate_limits() == NO_LIMITS


async def test_limits_are_of_one_queue(queue: Queue, other_queue: Queue) -> None:
    await queue.limit_rate(queue=THREE_A_MINUTE, key=THREE_A_MINUTE)
    assert await other_queue.rate_limits() == NO_LIMITS
    await other_queue.limit_rate(queue=THREE_A_MINUTE, key=THREE_A_MINUTE)
    assert await take(queue, 5) == 3
    assert await take(other_queue, 5) == 3
    assert await book(queue, *"aaaa") == await book(other_queue, *"aaaa") == [0, 0, 0, 20]


async def test_what_is_no_limit_is_refused(queue: Queue) -> None:
    with pytest.raises(ConfigurationError, match="RateLimit"):
        await queue.limit_rate(queue=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="RateLimit"):
        await queue.limit_rate(key="5/s")  # type: ignore[arg-type]


async def test_a_new_limit_does_not_pay_the_debts_of_the_old_one(queue: Queue) -> None:
    await queue.limit_rate(queue=RateLimit(1, DAY), key=RateLimit(1, DAY))
    assert await take(queue, 1) == 1
    assert await book(queue, "a", "a") == [0, DAY.total_seconds()]
    await queue.limit_rate(queue=THREE_A_MINUTE, key=THREE_A_MINUTE)
    assert await take(queue, 5) == 3
    assert await book(queue, *"aaaa") == [0, 0, 0, 20]


async def test_setting_the_same_limit_again_gives_no_new_turns(queue: Queue) -> None:
    """As a program does whenever it starts."""
    for expected in ([0, 0, 0, 20], [40]):
        await queue.limit_rate(queue=THREE_A_MINUTE, key=THREE_A_MINUTE)
        assert await book(queue, *"a" * len(expected)) == expected
        assert await take(queue, 5) == (3 if len(expected) == 4 else 0)


# -- turns of the queue


async def test_turns_come_back_evenly(queue: Queue, clock: VirtualClock) -> None:
    await queue.limit_rate(queue=THREE_A_MINUTE)
    assert [await take(queue, 2), await take(queue, 2), await take(queue, 2)] == [2, 1, 0]
    clock.advance(19 * SECOND)
    assert await take(queue, 5) == 0
    clock.advance(SECOND)
    assert await take(queue, 5) == 1
    clock.advance(DAY)
    assert await take(queue, 5) == 3


async def test_a_limit_that_does_not_divide_evenly_still_grants_all_its_turns(queue: Queue) -> None:
    await queue.limit_rate(queue=RateLimit(7, SECOND), key=RateLimit(6, SECOND))
    assert await take(queue, 10) == 7
    assert (await book(queue, *"a" * 7)).count(0) == 6


async def test_turns_that_were_not_used_can_be_given_back(queue: Queue) -> None:
    await queue.limit_rate(queue=THREE_A_MINUTE)
    assert await take(queue, 3) == 3
    assert await take(queue, -2) == 0
    assert await take(queue, 3) == 2
    assert await take(queue, -100) == 0
    assert await take(queue, 100) == 3


async def test_programs_that_take_turns_at_once_never_get_more_than_there_are(
    store_url: str, clock: VirtualClock
) -> None:
    queues = [Queue("orders", store_url, clock=clock) for _ in range(4)]
    try:
        await queues[0].limit_rate(queue=RateLimit(10, HOUR))
        taken = await asyncio.gather(*(take(each, 1) for each in queues * 10))
        assert sum(taken) == 10
    finally:
        for each in queues:
            await each.close()


# -- turns of a key


async def test_each_key_has_turns_of_its_own_booked_one_after_another(
    queue: Queue, clock: VirtualClock
) -> None:
    await queue.limit_rate(key=THREE_A_MINUTE)
    assert await book(queue, *"aabaab") == [0, 0, 0, 0, 20, 0]
    assert await book(queue, *"abba") == [40, 0, 20, 60]
    clock.advance(30 * SECOND)
    assert await book(queue, *"ac") == [50, 0]
    clock.advance(DAY)
    assert await book(queue, *"aaaa") == [0, 0, 0, 20]


async def test_programs_that_book_at_once_never_share_a_turn(store_url: str, clock: VirtualClock) -> None:
    queues = [Queue("orders", store_url, clock=clock) for _ in range(4)]
    try:
        await queues[0].limit_rate(key=RateLimit(1, MINUTE))
        booked = await asyncio.gather(*(book(each, "a", "b") for each in queues * 3))
        for place in (0, 1):
            assert sorted(each[place] for each in booked) == [60.0 * n for n in range(12)]
    finally:
        for each in queues:
            await each.close()


async def test_many_keys_are_booked_in_one_call(queue: Queue) -> None:
    await queue.limit_rate(key=RateLimit(1, MINUTE))
    keys = [f"key-{n}" for n in range(3_000)]
    assert set(await book(queue, *keys)) == {0}
    assert set(await book(queue, *keys)) == {60}


# -- put back until its turn


async def test_a_job_put_back_until_its_turn_comes_then_and_knows_it(
    queue: Queue, clock: VirtualClock
) -> None:
    first, second = await queue.add_many([NewJob("job", rate_key="a"), NewJob("job", rate_key="b")])
    deliveries = await fetch(queue)
    assert [(each.rate_key, each.slot_at) for each in deliveries] == [("a", None), ("b", None)]
    slots = [clock.now() + MINUTE, clock.now() + HOUR]
    clock.advance(SECOND)
    await defer(queue, deliveries, slots)
    for job_id, slot in zip((first, second), slots, strict=True):
        record = await record_of(queue, job_id)
        assert (record.state, record.deliveries, record.attempts) == (State.PENDING, 0, 0)
        assert record.next_attempt_at == slot
        assert record.worker is None
    assert (await queue.stats()).delayed == 2
    assert await fetch(queue) == []
    clock.advance(MINUTE)
    again = await fetch_one(queue)
    assert (again.id, again.rate_key, again.slot_at) == (first, "a", slots[0])
    assert again.deliveries == 1
    reasons = [each.reason for each in await checked_trail(queue) if each.message == first]
    assert reasons == [None, None, "rate_limited", None]


async def test_a_delivery_that_was_lost_meanwhile_is_not_put_back(queue: Queue, clock: VirtualClock) -> None:
    job_id = await queue.add("job", rate_key="a")
    late = await fetch_one(queue)
    clock.advance(2 * LEASE)
    await recover(queue)
    holder = await fetch_one(queue, who="worker-2")
    await defer(queue, [late], [clock.now() + DAY])
    assert (await record_of(queue, job_id)).state is State.PROCESSING
    assert await settle(queue, acked(holder)) == []


async def test_a_worker_that_dies_before_it_puts_a_job_back_loses_a_turn_and_no_job(
    queue: Queue, clock: VirtualClock
) -> None:
    await queue.limit_rate(key=THREE_A_MINUTE)
    job_id = await queue.add("job", "a", rate_key="a")
    await fetch_one(queue)
    await book(queue, "a")
    clock.advance(2 * LEASE)
    assert await recover(queue) == [job_id]
    worker, ran = counting(queue)
    assert await run_due(worker) == 1
    assert ran == {"a": 1}


async def test_another_attempt_has_to_take_another_turn(queue: Queue, clock: VirtualClock) -> None:
    await queue.add("job", rate_key="a")
    await defer(queue, [await fetch_one(queue)], [clock.now() + SECOND])
    clock.advance(SECOND)
    delivery = await fetch_one(queue)
    assert delivery.slot_at is not None
    await settle(queue, nacked(delivery, clock.now()))
    again = await fetch_one(queue)
    assert (again.rate_key, again.slot_at) == ("a", None)


@pytest.mark.parametrize("rate_key", ["a", None])
async def test_a_turn_is_not_for_another_moment(
    queue: Queue, clock: VirtualClock, rate_key: str | None
) -> None:
    job_id = await queue.add("job", rate_key=rate_key)
    await defer(queue, [await fetch_one(queue)], [clock.now() + HOUR])
    assert await queue.reschedule(job_id, at=clock.now() + SECOND)
    clock.advance(SECOND)
    again = await fetch_one(queue)
    assert (again.rate_key, again.slot_at) == (rate_key, None)


async def test_the_rate_key_stays_with_the_job_to_its_end_and_beyond(queue: Queue) -> None:
    job_id = await queue.add("job", rate_key="customer 7")
    assert (await record_of(queue, job_id)).rate_key == "customer 7"
    await settle(queue, dead(await fetch_one(queue)))
    assert (await record_of(queue, job_id)).rate_key == "customer 7"
    (letter,) = await queue.dead.peek()
    assert letter.rate_key == "customer 7"
    await queue.dead.replay()
    again = await fetch_one(queue)
    assert (again.rate_key, again.slot_at) == ("customer 7", None)
    assert (await queue.add_unique("job", job_id="mine", rate_key="b")).new
    assert (await record_of(queue, "mine")).rate_key == "b"


# -- workers


async def test_a_worker_runs_as_many_as_the_queue_s_limit_allows(queue: Queue, clock: VirtualClock) -> None:
    await queue.limit_rate(queue=THREE_A_MINUTE)
    await queue.add_many([NewJob("job", str(n)) for n in range(6)])
    worker, ran = counting(queue)
    handled = [await run_due(worker)]
    for _ in range(4):
        clock.advance(20 * SECOND)
        handled.append(await run_due(worker))
    assert handled == [3, 1, 1, 1, 0]
    assert set(ran.values()) == {1}


async def test_looking_in_vain_costs_no_turns(queue: Queue) -> None:
    await queue.limit_rate(queue=THREE_A_MINUTE)
    worker, _ = counting(queue)
    for _ in range(10):
        assert await worker.step() == 0
    await queue.add_many([NewJob("job") for _ in range(5)])
    assert await run_due(worker) == 3


async def test_workers_share_the_turns(queue: Queue, store_url: str, clock: VirtualClock) -> None:
    await queue.limit_rate(queue=RateLimit(10, HOUR), key=RateLimit(4, HOUR))
    jobs = [NewJob("job", "a", rate_key="a"), NewJob("job", "b", rate_key="b"), NewJob("job")]
    await queue.add_many(jobs * 10)
    async with Queue(queue.name, store_url, clock=clock) as elsewhere:
        crew = [counting(each, fetch_batch_size=4) for each in (queue, elsewhere)]
        await asyncio.gather(*(run_due(worker) for worker, _ in crew))
        together = sum((ran for _, ran in crew), Counter[str | None]())
    assert together.total() <= 10
    assert together["a"] <= 4
    assert together["b"] <= 4
    assert together.total() >= 8  # what one had in hand, and gave back, the other may not have seen


async def test_one_key_s_limit_does_not_hold_up_the_others(queue: Queue, clock: VirtualClock) -> None:
    await queue.limit_rate(key=RateLimit(2, MINUTE))
    jobs = [NewJob("job", key, rate_key=key) for key in "aaaaab"]
    await queue.add_many([*jobs, NewJob("job"), NewJob("job"), NewJob("job")])
    worker, ran = counting(queue)
    await run_due(worker)
    assert ran == {"a": 2, "b": 1, None: 3}
    clock.advance(30 * SECOND)
    await run_due(worker)
    assert ran["a"] == 3
    clock.advance(MINUTE)
    await run_due(worker)
    assert ran["a"] == 5
    await checked_trail(queue)


async def test_a_fetch_that_was_put_back_whole_does_not_end_the_search(queue: Queue) -> None:
    await queue.limit_rate(key=RateLimit(1, HOUR))
    await queue.add_many([NewJob("job", "a", rate_key="a") for _ in range(40)])
    await queue.add("job", "b", rate_key="b")
    worker, ran = counting(queue, fetch_batch_size=5)
    assert await worker.step() == 1
    assert await worker.step() == 1
    assert ran == {"a": 1, "b": 1}
    assert await worker.step() == 0


async def test_what_a_key_s_limit_puts_back_costs_the_queue_no_turns(
    queue: Queue, clock: VirtualClock
) -> None:
    await queue.limit_rate(queue=RateLimit(4, HOUR), key=RateLimit(1, DAY))
    await queue.add_many([NewJob("job", "a", rate_key="a") for _ in range(10)])
    await queue.add_many([NewJob("job") for _ in range(10)])
    worker, ran = counting(queue)
    await run_due(worker)
    assert ran == {"a": 1, None: 3}


async def test_every_attempt_takes_a_turn(queue: Queue, clock: VirtualClock) -> None:
    await queue.limit_rate(key=RateLimit(1, MINUTE))
    worker = make_worker(queue, retry=Constant(every=SECOND, max_attempts=3))
    ran: list[float] = []
    start = clock.now()

    @worker.handler("fail")
    async def fail(_job: Job) -> None:
        ran.append((clock.now() - start).total_seconds())
        raise ConnectionError

    await queue.add("fail", rate_key="a")
    for _ in range(150):
        await run_due(worker)
        clock.advance(SECOND)
    assert ran == [0, 60, 120]


async def test_turns_that_nobody_used_do_not_pile_up(queue: Queue, clock: VirtualClock) -> None:
    """After a night without workers, all that had been put back is due at once, and must not run at once."""
    await queue.limit_rate(key=THREE_A_MINUTE)
    await queue.add_many([NewJob("job", "a", rate_key="a") for _ in range(30)])
    worker, ran = counting(queue)
    await run_due(worker)
    assert ran["a"] == 3
    clock.advance(DAY)
    await run_due(worker)
    assert ran["a"] == 6
    clock.advance(20 * SECOND)
    await run_due(worker)
    assert ran["a"] == 7


async def test_a_job_that_is_put_back_until_after_its_time_expires(queue: Queue, clock: VirtualClock) -> None:
    await queue.limit_rate(key=RateLimit(1, HOUR))
    for _ in range(2):
        await queue.add("job", "a", rate_key="a", expires_in=MINUTE)
    worker, ran = counting(queue)
    await run_due(worker)
    clock.advance(HOUR)
    await run_due(worker)
    assert ran == {"a": 1}
    assert await queue.dead.count() == {"expired": 1}


async def test_a_suspect_takes_a_turn_like_any_other(queue: Queue, clock: VirtualClock) -> None:
    suspect = await queue.add("job", "suspect", rate_key="a")
    for _ in range(2):  # two workers died with it
        await fetch(queue)
        clock.advance(2 * LEASE)
        await recover(queue)
    await queue.limit_rate(queue=RateLimit(2, HOUR), key=RateLimit(1, DAY))
    await book(queue, "a")
    await queue.add_many([NewJob("job") for _ in range(4)])
    worker, ran = counting(queue, max_deliveries=3)
    await run_due(worker)
    assert ran == {None: 2}  # the suspect's key has no turn before tomorrow
    record = await record_of(queue, suspect)
    assert (record.state, record.deliveries) == (State.PENDING, 2)
    clock.advance(DAY)
    await run_due(worker)
    assert ran.total() == 4
    clock.advance(HOUR)
    await run_due(worker)
    assert ran == {None: 4, "suspect": 1}


@pytest.mark.parametrize("step", ["book", "release", "take_turns"])
async def test_an_outage_in_the_middle_of_it_all_loses_no_job(
    queue: Queue, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """What could not be put back comes again when its lease is over; what is in hand is run."""
    await queue.limit_rate(queue=RateLimit(100, HOUR), key=RateLimit(2, HOUR))
    await queue.add_many([NewJob("job", "a", rate_key="a") for _ in range(4)])
    await queue.add_many([NewJob("job") for _ in range(3)])
    working = getattr(queue.store, step)

    async def down(*arguments: Any, **options: Any) -> Any:
        if options.get("wanted", 0) > 0:
            return await working(*arguments, **options)  # those that are wanted are had, but not given back
        raise StoreUnavailableError("gone")

    worker, ran = counting(queue)
    with monkeypatch.context() as patch:
        patch.setattr(queue.store, step, down)
        await worker.step()
    assert ran[None] == 3
    assert ran["a"] == (0 if step == "book" else 2)
    for _ in range(5):
        clock.advance(HOUR)
        await recover(queue)
        await run_due(worker)
    assert ran == {None: 3, "a": 4}
    assert (await queue.stats()).completed == 7
    await checked_trail(queue)


async def test_a_running_worker_waits_for_turns_and_goes_on_when_they_come(
    queue: Queue, clock: VirtualClock
) -> None:
    await queue.limit_rate(queue=RateLimit(2, HOUR), key=RateLimit(1, DAY))
    await queue.add_many([NewJob("job", "a", rate_key="a") for _ in range(2)])
    await queue.add_many([NewJob("job") for _ in range(3)])
    worker, ran = counting(queue)
    async with running(worker):
        await eventually(lambda: ran.total() == 2)
        clock.advance(HOUR / 2)
        await eventually(lambda: ran.total() == 3)
        clock.advance(DAY)
        await eventually(lambda: ran.total() == 5)
    assert ran == {"a": 2, None: 3}


@pytest.mark.parametrize("paused", [False, True], ids=["empty", "paused"])
async def test_an_idle_worker_of_a_limited_queue_leaves_the_store_alone(
    store_url: str, monkeypatch: pytest.MonkeyPatch, paused: bool
) -> None:
    """Turns that it took and gave back could wake it, to take and give back some more."""
    async with Queue("orders", store_url) as queue:
        await queue.limit_rate(queue=RateLimit(1_000, SECOND))
        worker, ran = counting(queue, max_fetch_interval=MINUTE)
        taking = queue.store.take_turns
        taken: list[int] = []

        async def noted(name: str, *, wanted: int) -> int:
            taken.append(wanted)
            return await taking(name, wanted=wanted)

        await queue.add("job")
        async with running(worker):
            await eventually(lambda: ran.total() == 1)
            if paused:
                await queue.pause()
                await queue.add("job")
            monkeypatch.setattr(queue.store, "take_turns", noted)
            await asyncio.sleep(0.5)  # for nothing to happen
            assert len(taken) <= 6
            if paused:
                return
            await queue.add("job")
            await eventually(lambda: ran.total() == 2)


async def test_a_running_worker_notices_a_limit_that_is_taken_away(queue: Queue) -> None:
    await queue.limit_rate(queue=RateLimit(1, DAY))
    await queue.add_many([NewJob("job") for _ in range(5)])
    worker, ran = counting(queue)
    async with running(worker):
        await eventually(lambda: ran.total() == 1)
        await queue.limit_rate()
        await eventually(lambda: ran.total() == 5)


async def test_a_worker_that_runs_until_empty_waits_for_turns(store_url: str) -> None:
    async with Queue("orders", store_url) as queue:
        await queue.limit_rate(queue=RateLimit(2, SECOND / 5))
        await queue.add_many([NewJob("job") for _ in range(6)])
        worker, ran = counting(queue)
        await within(worker.run(until_empty=True, signals=False))
        assert ran.total() == 6
