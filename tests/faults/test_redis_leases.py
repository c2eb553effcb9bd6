"""Leases that are renewed and recovered while their holder is busy, or its clock is behind."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from remuda import NewJob, Queue, State, StoreUnavailableError
from remuda.clock import VirtualClock
from remuda.stores.redis.keys import PRIORITIES, keys_of
from remuda.stores.redis.working import RECOVERED_AT_ONCE
from tests.contract.workbench import LEASE, acked, checked_trail, fetch, recover, settle
from tests.faults.trail import audited
from tests.redis_servers import ValkeyServer

pytestmark = pytest.mark.faults

JOBS = RECOVERED_AT_ONCE + 100


async def test_a_holder_that_is_behind_is_refused_what_was_recovered_of_its_jobs(
    valkey_server: ValkeyServer,
) -> None:
    """Many jobs are recovered in several steps; somebody may take the first ones before the last are back."""
    url = valkey_server.fresh()
    slow_clock = VirtualClock()
    fast_clock = VirtualClock(slow_clock.now() + timedelta(seconds=1))
    async with Queue("jobs", url, clock=slow_clock) as holder, Queue("jobs", url, clock=fast_clock) as other:
        await holder.add_many([NewJob("job", number) for number in range(JOBS)])
        held = await fetch(holder, JOBS)
        assert len(held) == JOBS
        for clock in (slow_clock, fast_clock):
            clock.advance(LEASE - timedelta(milliseconds=500))

        await _break_after_a_step(other)
        taken = await fetch(other, JOBS)
        assert len(taken) >= RECOVERED_AT_ONCE
        refused = await settle(holder, *map(acked, held))

        assert {each.delivery.id for each in refused} >= {each.id for each in taken}
        assert await settle(other, *map(acked, taken)) == []
        await recover(other)
        assert await settle(other, *map(acked, await fetch(other, JOBS))) == []
        await checked_trail(other)
        trail = await audited(other)
        assert all(
            [each.entered for each in history].count(State.COMPLETED) == 1 for history in trail.values()
        )


async def _break_after_a_step(queue: Queue) -> None:
    """Recover, but lose the connection after the first of several steps."""
    link = queue.store._link  # type: ignore[attr-defined]
    run = link.run

    async def run_once(*args: object) -> object:
        await run(*args)
        raise StoreUnavailableError("cut")

    link.run = run_once
    with pytest.raises(StoreUnavailableError):
        await recover(queue)
    link.run = run


async def test_outcomes_that_overtake_the_answer_to_a_renewal_are_written(valkey_url: str) -> None:
    """Also where a program without leases is at work, and everything is looked at closely."""
    async with Queue("jobs", valkey_url) as queue:
        await queue.add_many([NewJob("job", number) for number in range(20)])
        deliveries = await fetch(queue, 20)
        await _another_kind_of_program_reads(queue)
        # Both scripts are known to the server from here on: it gets their calls in the order they are made.
        assert await queue.store.extend("jobs", deliveries, lease=LEASE) == []
        assert await settle(queue, acked(deliveries.pop())) == []
        part = deliveries[::2]  # as when the outcomes of the others are just being written

        _, refused = await asyncio.gather(
            queue.store.extend("jobs", part, lease=LEASE), settle(queue, *map(acked, part))
        )

        assert refused == []
        assert (await queue.stats()).completed == 1 + len(part)
        await audited(queue)


async def _another_kind_of_program_reads(queue: Queue) -> None:
    keys = keys_of("jobs")
    stream = keys.streams[PRIORITIES.index(0)]
    link = queue.store._link  # type: ignore[attr-defined]
    await link.call("XGROUP", "CREATECONSUMER", stream, "default", "chasqui-1")
    assert await recover(queue) == []
    assert await link.call("HEXISTS", keys.meta, "foreign") == 1
