"""A program that was started anew gets back what it holds, from the numbers of its leases alone."""

from __future__ import annotations

from remuda import NewJob, Queue, State
from remuda.clock import VirtualClock
from remuda.retry import Constant
from remuda.stores.contract import Delivery
from tests.contract.workbench import (
    HOUR,
    LEASE,
    SECOND,
    acked,
    checked_trail,
    fetch,
    fetch_one,
    nacked,
    record_of,
    recover,
    release,
    settle,
)


async def held(queue: Queue, *leases: int) -> list[Delivery]:
    return await queue.store.held(queue.name, leases)


def told(delivery: Delivery) -> dict[str, object]:
    """All that a delivery says but where its store has it."""
    return {name: getattr(delivery, name) for name in delivery.__struct_fields__ if name != "key"}


async def test_what_is_held_comes_back_as_it_was_fetched(queue: Queue, clock: VirtualClock) -> None:
    await queue.add("plain", {"a": 1})
    await queue.add("urgent", b"x", priority=2)
    await queue.add(
        "rich", None, headers={"k": "v"}, expires_in=HOUR, retry=Constant(every=SECOND, max_attempts=7)
    )
    clock.advance(SECOND)
    fetched = await fetch(queue)
    clock.advance(SECOND)
    again = await held(queue, fetched[0].lease)
    assert [each.name for each in again] == ["urgent", "plain", "rich"]
    assert [told(each) for each in again] == [told(each) for each in fetched]


async def test_the_outcomes_of_what_came_back_are_taken(queue: Queue, clock: VirtualClock) -> None:
    ids = await queue.add_many([NewJob(name="job", payload=number) for number in range(3)])
    lease = (await fetch(queue))[0].lease
    first, second, third = await held(queue, lease)
    assert await settle(queue, acked(first), nacked(second, clock.now())) == []
    await release(queue, third)
    assert [(await record_of(queue, each)).state for each in ids] == [
        State.COMPLETED,
        State.RETRYABLE,
        State.PENDING,
    ]
    assert await held(queue, lease) == []
    await checked_trail(queue)


async def test_only_the_latest_of_two_copies_is_heard(queue: Queue) -> None:
    await queue.add("job")
    fetched = await fetch_one(queue)
    (again,) = await held(queue, fetched.lease)
    assert await settle(queue, acked(again)) == []
    late = acked(fetched)
    assert await settle(queue, late) == [late]
    assert (await queue.stats()).completed == 1


async def test_a_lease_that_was_extended_in_part_is_held_whole(queue: Queue, clock: VirtualClock) -> None:
    await queue.add_many([NewJob(name="job", payload=number) for number in range(3)])
    fetched = await fetch(queue)
    clock.advance(SECOND)
    assert await queue.store.extend(queue.name, fetched[:1], lease=HOUR) == []
    again = {each.id: each.leased_until for each in await held(queue, fetched[0].lease)}
    assert again == {each.id: each.leased_until for each in fetched}


async def test_what_was_recovered_or_is_under_another_lease_is_not_held(
    queue: Queue, other_queue: Queue, clock: VirtualClock
) -> None:
    await queue.add("job")
    old = await fetch_one(queue, who="slow")
    assert await held(other_queue, old.lease) == []
    clock.advance(LEASE)
    assert len(await held(queue, old.lease)) == 1  # over, but nobody took it back yet
    assert await recover(queue) == [old.id]
    assert await held(queue, old.lease) == []
    new = await fetch_one(queue, who="quick")
    assert await held(queue, old.lease) == []
    assert [each.id for each in await held(queue, old.lease, new.lease)] == [new.id]
    assert await held(queue) == []


async def test_a_retry_that_is_held_says_its_attempts(queue: Queue, clock: VirtualClock) -> None:
    await queue.add("job")
    assert await settle(queue, nacked(await fetch_one(queue), clock.now() + SECOND)) == []
    clock.advance(SECOND)
    fetched = await fetch_one(queue)
    (again,) = await held(queue, fetched.lease)
    assert (again.attempts, again.deliveries) == (1, 2)
    assert again.next_attempt_at == fetched.next_attempt_at
