"""Expiry of a job that waits: sooner, later or never."""

from __future__ import annotations

import pytest

from remuda import InvalidJobError, NoRetry, Queue, State
from remuda.clock import VirtualClock
from tests.contract.workbench import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    checked_trail,
    dead,
    fetch,
    fetch_one,
    make_worker,
    nacked,
    record_of,
    settle,
)


async def test_a_job_that_waits_can_be_given_more_time_or_less_or_all_of_it(
    queue: Queue, clock: VirtualClock
) -> None:
    worker = make_worker(queue)
    ran: list[str] = []
    worker.handler("job")(lambda job: ran.append(job.id))
    longer = await queue.add("job", expires_in=MINUTE, priority=1, headers={"k": "v"}, retry=NoRetry())
    shorter = await queue.add("job", expires_in=DAY, delay=HOUR)
    never = await queue.add("job", expires_in=MINUTE)
    new = await queue.add("job")
    assert await queue.expire(longer, after=DAY)
    assert await queue.expire(shorter, at=clock.now() + MINUTE)
    assert await queue.expire(never)
    assert await queue.expire(new, after=MINUTE)
    assert (await record_of(queue, longer)).expires_at == clock.now() + DAY
    assert (await record_of(queue, never)).expires_at is None
    clock.advance(2 * HOUR)
    await worker.step()
    assert sorted(ran) == sorted([longer, never])
    for expired in (shorter, new):
        record = await record_of(queue, expired)
        assert (record.state, record.reason) == (State.FAILED, "expired")
    kept = await record_of(queue, longer)
    assert (kept.headers, kept.priority) == ({"k": "v"}, 1)
    await checked_trail(queue)


async def test_also_one_that_waits_for_its_retry_or_was_put_back(queue: Queue, clock: VirtualClock) -> None:
    again = await queue.add("again", expires_in=DAY)
    await settle(queue, nacked(await fetch_one(queue), clock.now() + HOUR))
    back = await queue.add("back", expires_in=DAY)
    (delivery,) = await fetch(queue, limit=1)
    await queue.store.release(queue.name, [delivery], who="w", counted=True)
    moment = clock.now() + 2 * HOUR
    for job_id in (again, back):
        assert await queue.expire(job_id, at=moment)
        record = await record_of(queue, job_id)
        assert (record.expires_at, record.deliveries) == (moment, 1)
    clock.advance(HOUR + SECOND)
    assert {each.expires_at for each in await fetch(queue, limit=5)} == {moment}


async def test_what_does_not_wait_stays_as_it_is(queue: Queue) -> None:
    runs = await queue.add("runs", expires_in=HOUR)
    delivery = await fetch_one(queue)
    assert not await queue.expire(runs, after=DAY)
    assert (await record_of(queue, runs)).expires_at == delivery.expires_at
    await settle(queue, dead(delivery))
    assert not await queue.expire(runs, after=DAY)
    assert not await queue.expire("no such job")


async def test_a_moment_that_cannot_be_is_refused(queue: Queue, clock: VirtualClock) -> None:
    job_id = await queue.add("job", expires_in=HOUR)
    before = (await record_of(queue, job_id)).expires_at
    with pytest.raises(InvalidJobError, match="both after and at"):
        await queue.expire(job_id, after=HOUR, at=clock.now())
    with pytest.raises(InvalidJobError, match="after"):
        await queue.expire(job_id, after=-HOUR)
    with pytest.raises(InvalidJobError, match="time zone"):
        await queue.expire(job_id, at=clock.now().replace(tzinfo=None))
    assert (await record_of(queue, job_id)).expires_at == before
