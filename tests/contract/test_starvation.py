"""Priorities without starvation: the highest first, and now and then another."""

from __future__ import annotations

import random

import pytest

from remuda import Job, NewJob, Queue, Worker
from remuda.clock import VirtualClock
from remuda.stores.contract import Delivery
from remuda.worker.intake import LOWER_FIRST_EVERY
from tests.contract.workbench import LEASE, MINUTE, checked_trail, make_worker


async def fetch_from(queue: Queue, priority: int, limit: int) -> list[Delivery]:
    return await queue.store.fetch(queue.name, limit=limit, lease=LEASE, who="worker-1", begin_with=priority)


def noting(queue: Queue, batch: int) -> tuple[Worker, list[int]]:
    """A worker that fetches a batch at a time, and notes the priorities of what it runs."""
    worker = make_worker(queue, fetch_batch_size=batch, concurrency=1)
    ran: list[int] = []

    @worker.handler()
    async def run(job: Job) -> None:
        ran.append(job.priority)

    return worker, ran


@pytest.mark.parametrize(
    ("first", "order"),
    [(2, (2, 1, 0, -1, -2)), (1, (1, 0, -1, -2, 2)), (-1, (-1, -2, 2, 1, 0)), (-2, (-2, 2, 1, 0, -1))],
)
async def test_a_fetch_may_begin_with_any_priority_and_goes_on_downwards(
    queue: Queue, clock: VirtualClock, first: int, order: tuple[int, ...]
) -> None:
    wanted = [(priority, minutes) for priority in order for minutes in (30, 20, 10)]
    shuffled = random.Random(7).sample(wanted, len(wanted))
    await queue.add_many(
        [
            NewJob("job", list(each), priority=each[0], next_attempt_at=clock.now() - each[1] * MINUTE)
            for each in shuffled
        ]
    )
    batch = await fetch_from(queue, first, 15)
    assert [(each.priority, (clock.now() - each.next_attempt_at) // MINUTE) for each in batch] == wanted
    await checked_trail(queue)


async def test_no_level_starves_though_all_the_others_have_enough(queue: Queue) -> None:
    worker, ran = noting(queue, batch=5)
    await queue.add_many([NewJob("job", priority=priority) for priority in (-2, -1, 0, 1) for _ in range(9)])
    for _ in range(4 * LOWER_FIRST_EVERY):
        await queue.add_many([NewJob("high", priority=2) for _ in range(5)])
        assert await worker.step() == 5
    assert {priority: ran.count(priority) for priority in (-2, -1, 0, 1)} == {-2: 5, -1: 5, 0: 5, 1: 5}


async def test_a_low_priority_gets_somewhere_however_much_of_a_high_one_there_is(queue: Queue) -> None:
    await queue.add_many([NewJob("low", priority=-2) for _ in range(10)])
    worker, ran = noting(queue, batch=5)
    for _ in range(2 * LOWER_FIRST_EVERY):
        await queue.add_many([NewJob("high", priority=2) for _ in range(5)])
        assert await worker.step() == 5
    assert ran.count(-2) == 10
    assert ran.count(2) == 10 * (LOWER_FIRST_EVERY - 1)


async def test_with_little_to_do_the_highest_always_comes_first(queue: Queue) -> None:
    """A fetch that was not full has left nothing behind, so nothing can be starving."""
    worker, ran = noting(queue, batch=5)
    for _ in range(3 * LOWER_FIRST_EVERY):
        await queue.add_many([NewJob("job", priority=priority) for priority in (-2, 0, 2)])
        ran.clear()
        assert await worker.step() == 3
        assert ran == [2, 0, -2]
