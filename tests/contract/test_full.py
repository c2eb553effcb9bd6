"""A full queue refuses, and drops nothing."""

from __future__ import annotations

import asyncio
import re

import pytest
from sqlalchemy import create_engine

from remuda import ConfigurationError, NewJob, Queue, QueueFullError, SyncQueue
from remuda.clock import VirtualClock
from tests.contract.test_sql_transactions import SYNC_DRIVERS, WAYS, address, transaction
from tests.contract.workbench import (
    HOUR,
    QUEUE,
    acked,
    bury,
    checked_trail,
    fetch,
    fetch_one,
    nacked,
    settle,
    within,
)


def bounded(queue: Queue, max_live: int) -> Queue:
    """The same queue as a program sees it that may only add so much."""
    return Queue(queue.name, queue.store, max_live=max_live)


async def test_a_job_too_many_is_refused_and_nothing_is_written(queue: Queue) -> None:
    small = bounded(queue, 3)
    ids = [await small.add("job", n) for n in range(3)]
    with pytest.raises(QueueFullError, match=rf"\b{QUEUE}\b"):
        await small.add("job")
    assert [each.id for each in await queue.jobs()] == ids
    assert len(await checked_trail(queue)) == 3


async def test_the_error_says_how_many_there_are(queue: Queue) -> None:
    await queue.add_many([NewJob("job") for _ in range(7)])
    with pytest.raises(QueueFullError) as refused:
        await bounded(queue, 10).add_many([NewJob("job") for _ in range(4)])
    assert {"7", "10", "4"} <= set(re.findall(r"\d+", str(refused.value)))


async def test_of_a_batch_that_does_not_fit_nothing_is_added(queue: Queue) -> None:
    small = bounded(queue, 5)
    await small.add_many([NewJob("job") for _ in range(3)])
    with pytest.raises(QueueFullError):
        await small.add_many([NewJob("job") for _ in range(3)])
    assert (await queue.stats()).live == 3
    await small.add_many([NewJob("job") for _ in range(2)])
    assert (await queue.stats()).live == 5


async def test_what_has_not_ended_counts_and_what_has_does_not(queue: Queue, clock: VirtualClock) -> None:
    small = bounded(queue, 3)
    await bury(queue, "dead", "dead")
    await small.add("later", delay=HOUR)
    await small.add("again")
    await settle(queue, nacked(await fetch_one(queue), clock.now() + HOUR))
    await small.add("running")
    running = await fetch_one(queue)
    with pytest.raises(QueueFullError):
        await small.add("job")
    await settle(queue, acked(running))
    await small.add("job")
    with pytest.raises(QueueFullError):
        await small.add("job")


async def test_a_job_that_is_there_already_needs_no_room(queue: Queue) -> None:
    small = bounded(queue, 2)
    for name in "ab":
        assert (await small.add_unique("job", job_id=name)).new
    assert not (await small.add_unique("job", job_id="a")).new
    assert await small.add_many([NewJob("job", job_id="a"), NewJob("job", job_id="b")]) == ["a", "b"]
    with pytest.raises(QueueFullError):
        await small.add_unique("job", job_id="c")
    with pytest.raises(QueueFullError):
        await small.add_many([NewJob("job", job_id="a"), NewJob("job", job_id="c")])
    assert {each.id for each in await queue.jobs()} == {"a", "b"}
    assert len(await checked_trail(queue)) == 2
    # What was refused was not there for a moment either: its id is free.
    assert (await queue.add_unique("job", job_id="c")).new


async def test_an_id_that_is_held_after_its_end_needs_no_room(queue: Queue) -> None:
    small = bounded(queue, 1)
    await small.add_unique("job", job_id="a", unique_for=HOUR)
    await settle(queue, acked(await fetch_one(queue)))
    await small.add("job")
    assert not (await small.add_unique("job", job_id="a")).new


async def test_a_queue_that_is_fuller_than_it_may_be_refuses_too(queue: Queue) -> None:
    await queue.add_many([NewJob("job", job_id=str(n)) for n in range(20)])
    small = bounded(queue, 5)
    with pytest.raises(QueueFullError):
        await small.add("job")
    assert not (await small.add_unique("job", job_id="7")).new


async def test_other_queues_have_room_of_their_own(queue: Queue, other_queue: Queue) -> None:
    await other_queue.add_many([NewJob("job") for _ in range(50)])
    await bounded(queue, 1).add("job")
    assert (await queue.stats()).live == 1


async def test_adds_that_share_a_transaction_take_what_room_there_is(queue: Queue) -> None:
    small = bounded(queue, 10)
    answers = await asyncio.gather(*(small.add("job", n) for n in range(60)), return_exceptions=True)
    refused = [each for each in answers if not isinstance(each, str)]
    assert {type(each) for each in refused} == {QueueFullError}
    assert len(refused) == 50
    assert {each.id for each in await queue.jobs()} == {each for each in answers if isinstance(each, str)}


async def test_programs_that_add_at_once_never_overfill_it(store_url: str) -> None:
    queues = [Queue(QUEUE, store_url, max_live=20) for _ in range(4)]
    try:
        await asyncio.gather(*(each.open() for each in queues))
        batches = [[NewJob("job")] * 3, [NewJob("job", job_id="a"), NewJob("job")]]
        answers = await asyncio.gather(
            *(each.add_many(batch) for each in queues for batch in batches * 3), return_exceptions=True
        )
        live = (await queues[0].stats()).live
        assert {type(each) for each in answers if not isinstance(each, list)} == {QueueFullError}
        assert 18 <= live <= 20  # a batch of three may not fit any more
        assert len(await checked_trail(queues[0])) == live
    finally:
        for each in queues:
            await each.close()


async def test_the_bound_must_make_sense(queue: Queue) -> None:
    with pytest.raises(ConfigurationError, match="max_live"):
        bounded(queue, 0)


# -- inside a caller's transaction


@pytest.mark.parametrize(("store", "way"), WAYS)
async def test_a_refused_job_leaves_the_caller_s_transaction_as_it_was(
    request: pytest.FixtureRequest, clock: VirtualClock, store: str, way: str
) -> None:
    """The caller may catch the error and commit the rest."""
    url = request.getfixturevalue(f"{store}_url")
    async with Queue(QUEUE, url, clock=clock, max_live=2) as queue:
        await queue.add_unique("job", job_id="a")
        async with transaction(url, way) as connection:
            inside = await queue.add("job", connection=connection)
            with pytest.raises(QueueFullError):
                await queue.add("job", connection=connection)
            with pytest.raises(QueueFullError):
                await queue.add_unique("job", job_id="b", connection=connection)
            assert not (await queue.add_unique("job", job_id="a", connection=connection)).new
        assert {each.id for each in await queue.jobs()} == {"a", inside}
        assert len(await checked_trail(queue)) == 2


def test_a_sync_program_is_refused_as_well(sql_store_url: str) -> None:
    engine = create_engine(address(sql_store_url, SYNC_DRIVERS))
    with SyncQueue(QUEUE, sql_store_url, max_live=1) as queue:
        with engine.begin() as connection:
            queue.add("job", connection=connection)
            with pytest.raises(QueueFullError):
                queue.add("job", connection=connection)
        with pytest.raises(QueueFullError):
            queue.add("job")
        assert queue.stats().live == 1
    engine.dispose()


@pytest.mark.parametrize("store", ["postgres", "mariadb"])
async def test_a_long_transaction_of_a_caller_holds_up_nobody(
    request: pytest.FixtureRequest, store: str
) -> None:
    """Where transactions write side by side at all."""
    url = request.getfixturevalue(f"{store}_url")
    async with Queue(QUEUE, url, max_live=5) as queue:
        async with transaction(url, "async connection") as connection:
            await queue.add("inside", connection=connection)
            await within(queue.add("outside"), 5)
            assert [each.name for each in await fetch(queue)] == ["outside"]
        assert (await queue.stats()).live == 2
