"""Repeatable jobs: specs are kept, each window is taken once, whoever looks at it and however often."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from remuda import Queue
from remuda.clock import VirtualClock
from remuda.errors import ConfigurationError, InvalidJobError
from remuda.schedule import Missed, Repeating
from remuda.stores.contract import Firing
from remuda.worker.scheduler import Scheduler
from tests.contract.workbench import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    checked_trail,
    eventually,
    fetch,
    make_worker,
    raw_job,
    running,
)


def scheduler(queue: Queue, who: str = "worker-1") -> Scheduler:
    return Scheduler(queue.store, queue.name, who)


async def made(queue: Queue) -> list[str]:
    """The names of the jobs that wait, in order."""
    return [record.name for record in await queue.jobs()]


# -- specs


async def test_a_spec_is_kept_with_all_it_says(queue: Queue, clock: VirtualClock) -> None:
    start, end = clock.now() + HOUR, clock.now() + 9 * DAY
    put = await queue.repeats.put(
        "report",
        {"to": "Zoë"},
        cron="0  9 * *   MON-FRI",
        zone="Europe/Berlin",
        start=start,
        end=end,
        limit=7,
        missed="fire-all",
        most=3,
    )
    assert put.key == "report::cron:0 9 * * MON-FRI:Europe/Berlin"
    assert await queue.repeats.list() == [put]
    assert await queue.repeats.get(put.key) == put
    spec = put.spec
    assert (spec.start, spec.end, spec.limit, spec.missed, spec.most) == (start, end, 7, Missed.FIRE_ALL, 3)
    assert (put.fired, put.next_at) == (0, spec.first_window(clock.now()))
    assert await made(queue) == []  # a recipe is no job
    assert (await queue.stats()).live == 0


async def test_specs_come_by_their_next_windows(queue: Queue, other_queue: Queue) -> None:
    await queue.repeats.put("slow", every=DAY)
    await queue.repeats.put("quick", every=MINUTE)
    await queue.repeats.put("quick", every=HOUR)
    await other_queue.repeats.put("elsewhere", every=SECOND)
    keys = ["quick::every:60000", "quick::every:3600000", "slow::every:86400000"]
    assert [each.key for each in await queue.repeats.list()] == keys
    assert [each.key for each in await queue.repeats.list(limit=2)] == keys[:2]


async def test_put_again_a_spec_changes_and_keeps_its_windows(queue: Queue, clock: VirtualClock) -> None:
    first = await queue.repeats.put("ping", 1, every=HOUR)
    clock.advance(59 * MINUTE)
    again = await queue.repeats.put("ping", 2, every=HOUR, limit=5)
    assert again.next_at == first.next_at  # else a program that starts often would put it off for ever
    assert (again.spec.limit, again.spec.payload) != (first.spec.limit, first.spec.payload)
    clock.advance(MINUTE)
    await scheduler(queue).tick()
    assert (await queue.repeats.put("ping", 3, every=HOUR)).fired == 1
    moved = await queue.repeats.put("ping", 3, every=HOUR, start=clock.now() + DAY)
    assert (moved.next_at, moved.fired) == (clock.now() + DAY, 0)
    assert len(await queue.repeats.list()) == 1


async def test_a_spec_under_a_key_of_its_own_may_change_its_pattern(
    queue: Queue, clock: VirtualClock
) -> None:
    await queue.repeats.put("ping", every=HOUR, key="mine")
    changed = await queue.repeats.put("ping", every=MINUTE, key="mine")
    assert (changed.key, changed.next_at) == ("mine", clock.now() + MINUTE)
    assert len(await queue.repeats.list()) == 1


async def test_a_removed_spec_makes_no_more_jobs(queue: Queue, clock: VirtualClock) -> None:
    spec = await queue.repeats.put("ping", every=HOUR)
    clock.advance(HOUR)
    await scheduler(queue).tick()
    assert await queue.repeats.remove(spec.key) is True
    assert await queue.repeats.remove(spec.key) is False
    assert await queue.repeats.get(spec.key) is None
    clock.advance(DAY)
    assert await scheduler(queue).tick() is None
    assert await made(queue) == ["ping"]


async def test_a_spec_can_be_run_now_beside_its_windows(queue: Queue, clock: VirtualClock) -> None:
    spec = await queue.repeats.put("ping", {"a": 1}, every=HOUR)
    job_id = await queue.repeats.run(spec.key)
    record = await queue.get(job_id)
    assert record is not None
    assert record.name == "ping"
    assert await queue.repeats.get(spec.key) == spec
    with pytest.raises(ConfigurationError, match="no repeatable job 'nothing'"):
        await queue.repeats.run("nothing")


async def test_what_is_no_spec_changes_nothing(queue: Queue, clock: VirtualClock) -> None:
    faulty: list[dict[str, Any]] = [
        {"cron": "every day"},
        {"every": HOUR, "missed": "perhaps"},
        {"every": HOUR, "end": clock.now() + MINUTE},
        {"every": HOUR, "start": clock.now().replace(tzinfo=None)},
        {"every": HOUR, "key": "k" * 256},
    ]
    for options in faulty:
        with pytest.raises(ConfigurationError):
            await queue.repeats.put("ping", **options)
    with pytest.raises(InvalidJobError):
        await queue.repeats.put("", every=HOUR)
    with pytest.raises(InvalidJobError):
        await queue.repeats.put("ping", object(), every=HOUR)
    assert await queue.repeats.list() == []


# -- windows


async def test_each_window_makes_a_fresh_job_with_the_payload(queue: Queue, clock: VirtualClock) -> None:
    await queue.repeats.put("ping", {"a": 1}, every=HOUR)
    assert await scheduler(queue).tick() == clock.now() + HOUR
    for _ in range(3):
        clock.advance(HOUR)
        assert await scheduler(queue).tick() == clock.now() + HOUR
    deliveries = await fetch(queue)
    assert len({each.id for each in deliveries}) == 3
    assert {(each.name, each.payload, each.attempts) for each in deliveries} == {
        ("ping", deliveries[0].payload, 0)
    }
    (spec,) = await queue.repeats.list()
    assert (spec.fired, spec.next_at) == (3, clock.now() + HOUR)
    await checked_trail(queue)


async def test_many_specs_are_due_at_once(queue: Queue, clock: VirtualClock) -> None:
    for number in range(250):
        await queue.repeats.put(f"n{number}", number, every=HOUR)
    clock.advance(HOUR)
    await scheduler(queue).tick()
    assert (await queue.stats()).live == 250
    assert {each.fired for each in await queue.repeats.list()} == {1}


async def test_a_limit_removes_the_spec(queue: Queue, clock: VirtualClock) -> None:
    await queue.repeats.put("ping", every=HOUR, limit=2)
    for _ in range(4):
        clock.advance(HOUR)
        await scheduler(queue).tick()
    assert await made(queue) == ["ping", "ping"]
    assert await queue.repeats.list() == []


async def test_an_end_removes_the_spec(queue: Queue, clock: VirtualClock) -> None:
    await queue.repeats.put("ping", cron="0 * * * *", end=clock.now() + 150 * MINUTE)
    for _ in range(4):
        clock.advance(HOUR)
        await scheduler(queue).tick()
    assert len(await made(queue)) == 2
    assert await queue.repeats.list() == []


@pytest.mark.parametrize(
    ("missed", "most", "jobs"), [("skip", None, 0), ("fire-once", None, 1), ("fire-all", 4, 4)]
)
async def test_windows_that_passed_while_nobody_looked(
    queue: Queue, clock: VirtualClock, missed: str, most: int | None, jobs: int
) -> None:
    await queue.repeats.put("ping", cron="0 3 * * *", zone="Europe/Berlin", missed=missed, most=most)
    clock.advance(10 * DAY)
    coming = await scheduler(queue).tick()
    assert coming is not None
    assert clock.now() < coming <= clock.now() + DAY
    assert len(await made(queue)) == jobs


# -- competing


def firing(spec: Repeating, queue: Queue, now: datetime, job_id: str) -> Firing:
    job = raw_job(queue, job_id)
    return Firing(spec.key, spec.next_at, spec.next_at + HOUR, [job])


async def test_a_window_is_taken_once(queue: Queue, clock: VirtualClock) -> None:
    spec = await queue.repeats.put("ping", every=HOUR)
    other = await queue.repeats.put("pong", every=HOUR)
    clock.advance(HOUR)
    first = firing(spec, queue, clock.now(), "first")
    assert await queue.store.fire(queue.name, [first], who="one") == [True]
    # The ex-leader goes on with what it had in mind; what is still to be taken is taken.
    late = [firing(spec, queue, clock.now(), "late"), firing(other, queue, clock.now(), "other")]
    assert await queue.store.fire(queue.name, late, who="two") == [False, True]
    assert {record.id for record in await queue.jobs()} == {"first", "other"}
    gone = Firing("no such key", clock.now(), None, [raw_job(queue, "nobody's")])
    assert await queue.store.fire(queue.name, [gone], who="two") == [False]
    assert await queue.store.fire(queue.name, [], who="two") == []
    await checked_trail(queue)


async def test_of_three_schedulers_one_fires_each_window(
    queue: Queue, store_url: str, clock: VirtualClock
) -> None:
    """On connections of their own; one of them is stopped between looking and firing, and goes on later."""
    await queue.repeats.put("ping", every=HOUR, missed="fire-all")
    async with (
        Queue(queue.name, store_url, clock=clock) as second,
        Queue(queue.name, store_url, clock=clock) as third,
    ):
        frozen = scheduler(third, "frozen")
        seen: list[Repeating] = []
        for _ in range(8):
            clock.advance(HOUR)
            stopped = seen
            seen = await third.store.repeats(third.name, limit=10)
            if stopped:  # what it saw a window ago
                assert not any(await frozen._fire(stopped, clock.now() - HOUR))
            await asyncio.gather(
                *(scheduler(each, str(place)).tick() for place, each in enumerate((queue, second, third)))
            )
    assert len(await made(queue)) == 8
    (spec,) = await queue.repeats.list()
    assert spec.fired == 8
    await checked_trail(queue)


# Four days around a leap day and around both changes of the clock in Berlin; between them nobody works.
LEAP_YEAR = [datetime(2032, *day, 12, tzinfo=UTC) for day in ((2, 27), (3, 26), (10, 29))]
IN_BERLIN = [
    ("daily", "2032-02-28T02:30+01:00"),
    ("leap", "2032-02-29T01:00+01:00"),
    ("daily", "2032-02-29T02:30+01:00"),
    ("monthly", "2032-02-29T06:00+01:00"),
    ("daily", "2032-03-01T02:30+01:00"),
    ("daily", "2032-03-02T02:30+01:00"),
    ("daily", "2032-03-27T02:30+01:00"),
    ("daily", "2032-03-28T03:00+02:00"),  # half past two is leapt over
    ("daily", "2032-03-29T02:30+02:00"),
    ("daily", "2032-03-30T02:30+02:00"),
    ("daily", "2032-10-30T02:30+02:00"),
    ("daily", "2032-10-31T02:30+02:00"),  # and comes twice
    ("monthly", "2032-10-31T06:00+01:00"),
    ("daily", "2032-11-01T02:30+01:00"),
    ("daily", "2032-11-02T02:30+01:00"),
]


async def test_three_schedulers_in_a_leap_year_miss_nothing_and_double_nothing(
    queue: Queue, store_url: str, clock: VirtualClock
) -> None:
    """One of them is stopped before each window and goes on after it, with what it had in mind."""
    clock.advance(LEAP_YEAR[0] - clock.now())
    await queue.repeats.put("daily", cron="30 2 * * *", zone="Europe/Berlin")
    await queue.repeats.put("monthly", cron="0 6 L * *", zone="Europe/Berlin")
    await queue.repeats.put("leap", cron="0 0 29 2 *")
    async with (
        Queue(queue.name, store_url, clock=clock) as second,
        Queue(queue.name, store_url, clock=clock) as third,
    ):
        frozen = scheduler(third, "frozen")
        for start in LEAP_YEAR:
            clock.advance(start - clock.now())
            await scheduler(queue).tick()  # what passed meanwhile is skipped
            while (specs := await queue.repeats.list())[0].next_at <= start + 4 * DAY:
                clock.advance(specs[0].next_at - clock.now())
                rivals = (scheduler(each, str(place)) for place, each in enumerate((queue, second, third)))
                await asyncio.gather(*(each.tick() for each in rivals))
                assert not any(await frozen._fire(specs[:1], clock.now()))
    found = sorted((job.created_at, job.name) for job in await queue.jobs())
    assert found == [(datetime.fromisoformat(moment), name) for name, moment in IN_BERLIN]
    await checked_trail(queue)


async def test_a_scheduler_whose_clock_is_ahead_or_behind_doubles_nothing(
    queue: Queue, store_url: str, clock: VirtualClock
) -> None:
    await queue.repeats.put("ping", every=MINUTE, missed="fire-all")
    ahead, behind = VirtualClock(clock.now() + 20 * SECOND), VirtualClock(clock.now() - 20 * SECOND)
    async with (
        Queue(queue.name, store_url, clock=ahead) as early,
        Queue(queue.name, store_url, clock=behind) as late,
    ):
        for _ in range(30):
            for hands in (ahead, clock, behind):
                hands.advance(10 * SECOND)
            for each in (late, queue, early):
                await scheduler(each).tick()
    assert len(await made(queue)) == 5  # 300 seconds, and the one that is ahead has seen 320


async def test_workers_make_the_jobs_and_do_them(queue: Queue, clock: VirtualClock) -> None:
    done: list[str] = []
    worker = make_worker(queue)

    @worker.handler("ping")
    async def ping(job: object) -> None:
        done.append("ping")

    await queue.repeats.put("ping", every=HOUR)
    clock.advance(HOUR)
    async with running(worker):
        await eventually(lambda: done == ["ping"])
    clock.advance(HOUR)
    idle = make_worker(queue, schedule=False)
    idle.handler("ping")(ping)
    async with running(idle):
        await queue.add("ping")
        await eventually(lambda: len(done) == 2)
    assert [each.fired for each in await queue.repeats.list()] == [1]
