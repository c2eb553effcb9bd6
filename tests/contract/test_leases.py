"""Leases: only the holder of the latest delivery can say what became of a job."""

from __future__ import annotations

from datetime import timedelta

import pytest

from remuda import Queue, Reason, State
from remuda.clock import VirtualClock
from remuda.stores.contract import Delivery, Settlement
from tests.contract.workbench import (
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
)

OUTCOMES = ["acked", "nacked", "dead"]


def outcome(word: str, delivery: Delivery) -> Settlement:
    if word == "acked":
        return acked(delivery)
    if word == "nacked":
        return nacked(delivery, delivery.acquired_at + HOUR)
    return dead(delivery)


async def recovered_and_fetched_again(queue: Queue, clock: VirtualClock) -> tuple[Delivery, Delivery]:
    """A job whose first holder went silent: the old delivery and the new one."""
    await queue.add("job")
    old = await fetch_one(queue, who="slow")
    clock.advance(LEASE)
    assert await recover(queue) == [old.id]
    return old, await fetch_one(queue, who="quick")


async def test_settling_twice_ends_the_job_once_and_reports_the_second(queue: Queue) -> None:
    await queue.add("job")
    delivery = await fetch_one(queue)
    first, second, third = acked(delivery), dead(delivery), nacked(delivery, delivery.acquired_at)
    assert await settle(queue, first) == []
    assert await settle(queue, second) == [second]
    assert await settle(queue, third) == [third]
    assert (await record_of(queue, delivery.id)).state is State.COMPLETED
    stats = await queue.stats()
    assert (stats.live, stats.completed, stats.failed) == (0, 1, 0)
    assert len(await checked_trail(queue)) == 3


async def test_two_outcomes_of_one_delivery_in_one_batch_count_once(queue: Queue) -> None:
    await queue.add("job")
    delivery = await fetch_one(queue)
    first, second = acked(delivery), acked(delivery)
    assert await settle(queue, first, second) == [second]
    assert (await queue.stats()).completed == 1
    assert len(await checked_trail(queue)) == 3


@pytest.mark.parametrize("word", OUTCOMES)
async def test_a_late_outcome_changes_nothing_and_is_reported(
    queue: Queue, clock: VirtualClock, word: str
) -> None:
    old, new = await recovered_and_fetched_again(queue, clock)
    before = await record_of(queue, old.id)

    late = outcome(word, old)
    assert await settle(queue, late) == [late]

    assert await record_of(queue, old.id) == before
    assert await settle(queue, acked(new)) == []
    record = await record_of(queue, old.id)
    assert (record.state, record.attempts, record.deliveries) == (State.COMPLETED, 1, 2)
    await checked_trail(queue)


@pytest.mark.parametrize("word", OUTCOMES)
async def test_a_late_outcome_beside_the_holders_own_in_one_batch_is_reported(
    queue: Queue, clock: VirtualClock, word: str
) -> None:
    """A worker that lost a job may be the one that fetched it again: both outcomes can wait together."""
    old, new = await recovered_and_fetched_again(queue, clock)
    late, right = outcome(word, old), dead(new, Reason.UNRECOVERABLE)
    assert await settle(queue, late, right) == [late]
    record = await record_of(queue, old.id)
    assert (record.state, record.reason, record.attempts) == (State.FAILED, Reason.UNRECOVERABLE, 1)
    await checked_trail(queue)


async def test_a_late_outcome_among_good_ones_is_the_only_one_reported(
    queue: Queue, clock: VirtualClock
) -> None:
    old, new = await recovered_and_fetched_again(queue, clock)
    for _ in range(3):
        await queue.add("job")
    good = [acked(each) for each in await fetch(queue)]
    late = acked(old)
    assert await settle(queue, *good[:2], late, *good[2:]) == [late]
    assert (await queue.stats()).completed == 3
    assert await settle(queue, acked(new)) == []


async def test_a_late_release_changes_nothing(queue: Queue, clock: VirtualClock) -> None:
    old, _ = await recovered_and_fetched_again(queue, clock)
    before = await record_of(queue, old.id)
    await release(queue, old)
    await release(queue, old, counted=True)
    assert await record_of(queue, old.id) == before
    await checked_trail(queue)


async def test_a_late_extension_is_reported_and_extends_nothing(queue: Queue, clock: VirtualClock) -> None:
    old, new = await recovered_and_fetched_again(queue, clock)
    before = await record_of(queue, old.id)
    assert await queue.store.extend(queue.name, [old], lease=10 * LEASE) == [old]
    assert await record_of(queue, old.id) == before
    assert await queue.store.extend(queue.name, [old, new], lease=LEASE) == [old]


async def test_a_released_job_can_be_settled_only_by_the_next_holder(queue: Queue) -> None:
    await queue.add("job")
    old = await fetch_one(queue)
    await release(queue, old)
    late = acked(old)
    assert await settle(queue, late) == [late]
    assert (await record_of(queue, old.id)).state is State.PENDING
    new = await fetch_one(queue)
    assert await settle(queue, late) == [late]
    assert await settle(queue, acked(new)) == []


async def test_an_unstarted_job_goes_back_as_if_it_had_never_been_delivered(
    queue: Queue, clock: VirtualClock
) -> None:
    job_id = await queue.add("job", priority=1)
    before = await record_of(queue, job_id)
    clock.advance(SECOND)
    await release(queue, await fetch_one(queue))
    assert await record_of(queue, job_id) == before


async def test_a_job_cut_off_in_its_handler_goes_back_with_its_delivery_counted(queue: Queue) -> None:
    job_id = await queue.add("job")
    await release(queue, await fetch_one(queue), counted=True)
    record = await record_of(queue, job_id)
    assert (record.state, record.deliveries, record.attempts) == (State.PENDING, 1, 0)
    assert (record.acquired_at, record.worker, record.lease_expires_at) == (None, None, None)
    reasons = [each.reason for each in await checked_trail(queue)]
    assert reasons[-1] == "cancelled_at_stop"


async def test_a_lease_ends_at_its_time_and_not_before(queue: Queue, clock: VirtualClock) -> None:
    job_id = await queue.add("job")
    await fetch_one(queue)
    clock.advance(LEASE - timedelta(microseconds=1))
    assert await recover(queue) == []
    clock.advance(timedelta(microseconds=1))
    assert await recover(queue) == [job_id]
    assert await recover(queue) == []
    record = await record_of(queue, job_id)
    assert (record.state, record.deliveries, record.attempts) == (State.PENDING, 1, 0)
    assert (record.acquired_at, record.worker, record.lease_expires_at) == (None, None, None)
    last = (await checked_trail(queue))[-1]
    assert (last.reason, last.who, last.dwell) == ("lease_expired", "recoverer", LEASE)


async def test_a_lease_that_was_extended_is_not_recovered_at_its_first_end(
    queue: Queue, clock: VirtualClock
) -> None:
    await queue.add("job")
    delivery = await fetch_one(queue)
    for _ in range(5):
        clock.advance(LEASE - SECOND)
        assert await queue.store.extend(queue.name, [delivery], lease=LEASE) == []
        assert await recover(queue) == []
    assert await settle(queue, acked(delivery)) == []
    # Renewals are no state changes: what is told is how long it was held in all.
    last = (await checked_trail(queue))[-1]
    assert last.dwell == 5 * (LEASE - SECOND)


async def test_a_lease_that_is_over_but_not_recovered_can_still_be_settled(
    queue: Queue, clock: VirtualClock
) -> None:
    await queue.add("job")
    delivery = await fetch_one(queue)
    clock.advance(2 * LEASE)
    assert await settle(queue, acked(delivery)) == []


async def test_each_delivery_has_a_lease_of_its_own_length(queue: Queue, clock: VirtualClock) -> None:
    await queue.add("job")
    await queue.add("job")
    short = await fetch_one(queue, lease=SECOND)
    await fetch_one(queue, lease=HOUR)
    clock.advance(MINUTE)
    # The timeout is for messages without a lease; these have one.
    assert await recover(queue, timeout=SECOND) == [short.id]


async def test_recovery_leaves_other_queues_alone(
    queue: Queue, other_queue: Queue, clock: VirtualClock
) -> None:
    mine = await queue.add("job")
    theirs = await other_queue.add("job")
    await fetch(queue)
    await fetch(other_queue)
    clock.advance(2 * LEASE)
    assert await recover(queue) == [mine]
    assert (await record_of(other_queue, theirs)).state is State.PROCESSING


async def test_a_recovered_job_keeps_its_place_in_the_queue(queue: Queue, clock: VirtualClock) -> None:
    first = await queue.add("job")
    clock.advance(SECOND)
    second = await queue.add("job")
    assert (await fetch_one(queue)).id == first
    clock.advance(LEASE)
    await recover(queue)
    assert [each.id for each in await fetch(queue)] == [first, second]


async def test_a_retried_job_is_fenced_like_any_other(queue: Queue, clock: VirtualClock) -> None:
    await queue.add("job")
    first = await fetch_one(queue)
    await settle(queue, nacked(first, clock.now()))
    second = await fetch_one(queue)
    assert second.attempts == 1
    assert second.first_attempt_at == first.acquired_at
    late = dead(first)
    assert await settle(queue, late) == [late]
    assert await settle(queue, acked(second)) == []
    transitions = await checked_trail(queue)
    assert moves_of(transitions, first.id)[-1] == (State.PROCESSING, State.COMPLETED)
    assert transitions[-1].attempt == 2


async def test_an_outcome_for_a_job_that_is_gone_is_reported(queue: Queue, clock: VirtualClock) -> None:
    await queue.add("job")
    old = await fetch_one(queue)
    clock.advance(LEASE)
    await recover(queue)
    await queue.purge()
    late = acked(old)
    assert await settle(queue, late) == [late]
    assert await queue.store.extend(queue.name, [old], lease=LEASE) == [old]
    await release(queue, old)
    assert (await queue.stats()).total == 0
    await checked_trail(queue)


async def test_no_outcomes_and_no_leases_are_fine(queue: Queue) -> None:
    assert await settle(queue) == []
    assert await queue.store.extend(queue.name, [], lease=LEASE) == []
    await release(queue)


async def test_an_outcome_without_a_run_counts_no_attempt(queue: Queue, clock: VirtualClock) -> None:
    job_id = await queue.add("job")
    for state in (State.RETRYABLE, State.FAILED):
        delivery = await fetch_one(queue)
        unrun = Settlement(delivery=delivery, state=state, next_attempt_at=clock.now(), reason="rejected")
        assert await settle(queue, unrun) == []
    record = await record_of(queue, job_id)
    assert (record.state, record.attempts, record.deliveries) == (State.FAILED, 0, 2)
    assert (record.first_attempt_at, record.last_attempt_at) == (None, None)
    assert {each.attempt for each in await checked_trail(queue)} == {0}
