"""A worker at work: in parallel, woken, stopped, and robbed of its leases."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta

import pytest

from remuda import AckPolicy, ConfigurationError, Job, NewJob, Queue, State
from remuda.clock import VirtualClock
from tests.contract.workbench import (
    HOUR,
    LEASE,
    acked,
    checked_trail,
    eventually,
    fetch_one,
    make_worker,
    moves_of,
    record_of,
    recover,
    running,
    settle,
    within,
)


class Gate:
    """A handler that waits until it is let through; tells who is inside."""

    def __init__(self) -> None:
        self.entered: list[str] = []
        self.left: list[str] = []
        self.cancelled: list[str] = []
        self.open = asyncio.Event()

    async def __call__(self, job: Job) -> None:
        self.entered.append(job.id)
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled.append(job.id)
            raise
        self.left.append(job.id)

    async def holds(self, count: int) -> None:
        await eventually(lambda: len(self.entered) == count)

    async def let_through(self) -> None:
        """Those who are inside now; the next ones wait again."""
        before, self.open = self.open, asyncio.Event()
        before.set()


async def test_eight_jobs_on_four_runners_go_four_at_a_time(queue: Queue) -> None:
    gate = Gate()
    worker = make_worker(queue, concurrency=4)
    worker.handler("job")(gate.__call__)
    await queue.add_many([NewJob("job", n) for n in range(8)])
    async with running(worker):
        await gate.holds(4)
        await asyncio.sleep(0.05)  # no fifth one slips in
        assert (len(gate.entered), len(gate.left)) == (4, 0)
        await gate.let_through()
        await gate.holds(8)
        assert len(gate.left) == 4
        await gate.let_through()
        await eventually(lambda: len(gate.left) == 8)
    assert (await queue.stats()).completed == 8
    assert worker.counts.completed == 8


async def test_plain_functions_run_side_by_side_in_threads(queue: Queue) -> None:
    worker = make_worker(queue, concurrency=4)
    together = threading.Barrier(4)
    worker.handler("job")(lambda job: together.wait(10) and None)
    await queue.add_many([NewJob("job", n) for n in range(8)])
    await within(worker.run(until_empty=True, signals=False))
    assert (await queue.stats()).completed == 8


async def test_more_is_fetched_as_soon_as_there_is_room(queue: Queue) -> None:
    """With hardly a poll between, jobs beyond the buffer come when some of it is free."""
    worker = make_worker(
        queue, concurrency=2, fetch_batch_size=4, overfetch_factor=1.0, max_fetch_interval=HOUR
    )
    worker.handler("job")(lambda job: None)
    await queue.add_many([NewJob("job", n) for n in range(30)])
    async with running(worker):
        await eventually(lambda: worker.counts.completed == 30)


async def test_no_more_is_fetched_than_runners_and_buffer_hold(queue: Queue) -> None:
    gate = Gate()
    worker = make_worker(queue, concurrency=2, fetch_batch_size=4, overfetch_factor=1.5)
    worker.handler("job")(gate.__call__)
    await queue.add_many([NewJob("job", n) for n in range(50)])
    async with running(worker):
        await gate.holds(2)
        await asyncio.sleep(0.1)
        assert (await queue.stats()).processing <= 2 + 6
        await gate.let_through()
        gate.open.set()


async def test_an_idle_worker_waits_out_its_interval_unless_it_is_woken(queue: Queue) -> None:
    fetches: list[float] = []
    real_fetch = queue.store.fetch

    async def noted_fetch(*arguments: object, **options: object) -> object:
        fetches.append(time.monotonic())
        return await real_fetch(*arguments, **options)  # type: ignore[arg-type]

    queue.store.fetch = noted_fetch  # type: ignore[method-assign,assignment]
    worker = make_worker(queue, max_fetch_interval=HOUR)
    worker.handler("job")(lambda job: None)
    async with running(worker):
        await eventually(lambda: len(fetches) >= 1)
        await asyncio.sleep(0.3)
        settled_down = len(fetches)  # a listener that has just connected may wake it once
        await asyncio.sleep(0.3)
        assert len(fetches) == settled_down <= 2
        await queue.add("job")
        await eventually(lambda: worker.counts.completed == 1)


async def test_an_idle_worker_polls_at_its_interval(queue: Queue, clock: VirtualClock) -> None:
    """A job that becomes due announces nothing: only polling finds it."""
    worker = make_worker(queue, max_fetch_interval=timedelta(milliseconds=30))
    worker.handler("job")(lambda job: None)
    await queue.add("job", delay=HOUR)
    async with running(worker):
        await asyncio.sleep(0.1)
        assert worker.counts.fetched == 0
        clock.advance(HOUR)
        await eventually(lambda: worker.counts.completed == 1)


async def test_a_paused_queue_feeds_no_worker_until_it_is_resumed(queue: Queue) -> None:
    worker = make_worker(queue)
    worker.handler("job")(lambda job: None)
    await queue.pause()
    await queue.add("job")
    async with running(worker):
        await asyncio.sleep(0.1)
        assert worker.counts.fetched == 0
        await queue.resume()
        await eventually(lambda: worker.counts.completed == 1)


async def test_on_stop_running_jobs_finish_and_unstarted_ones_go_back_uncounted(queue: Queue) -> None:
    gate = Gate()
    worker = make_worker(queue, concurrency=2, fetch_batch_size=10)
    worker.handler("job")(gate.__call__)
    ids = await queue.add_many([NewJob("job", n) for n in range(6)])
    task = asyncio.create_task(worker.run(signals=False))
    await gate.holds(2)
    await eventually(lambda: worker.counts.fetched == 6)
    worker.stop()
    await eventually(lambda: worker.counts.released == 4)
    assert not task.done()
    gate.open.set()
    await within(task)

    stats = await queue.stats()
    assert (stats.completed, stats.pending, stats.processing) == (2, 4, 0)
    for job_id in ids[2:]:
        record = await record_of(queue, job_id)
        assert (record.state, record.deliveries, record.attempts) == (State.PENDING, 0, 0)
    await checked_trail(queue)


async def test_an_outcome_that_waits_for_company_is_written_on_stop(queue: Queue) -> None:
    worker = make_worker(queue, flush_interval=HOUR)
    done = asyncio.Event()

    @worker.handler("job")
    async def job(job: Job) -> None:
        done.set()

    job_id = await queue.add("job")
    async with running(worker):
        await within(done.wait())
    assert (await record_of(queue, job_id)).state is State.COMPLETED


async def test_past_the_graceful_time_out_a_handler_is_cancelled_and_its_job_goes_back(queue: Queue) -> None:
    gate = Gate()
    worker = make_worker(queue, graceful_timeout=timedelta(milliseconds=50))
    worker.handler("job")(gate.__call__)
    job_id = await queue.add("job")
    task = asyncio.create_task(worker.run(signals=False))
    await gate.holds(1)
    worker.stop()
    await within(task)
    record = await record_of(queue, job_id)
    assert gate.cancelled == [job_id]
    assert (record.state, record.deliveries, record.attempts) == (State.PENDING, 1, 0)
    assert (record.acquired_at, record.worker) == (None, None)


async def test_a_second_stop_ends_at_once(queue: Queue) -> None:
    gate = Gate()
    worker = make_worker(queue, graceful_timeout=HOUR)
    worker.handler("job")(gate.__call__)
    job_id = await queue.add("job")
    task = asyncio.create_task(worker.run(signals=False))
    await gate.holds(1)
    worker.stop()
    worker.stop()
    await within(task)
    assert (await record_of(queue, job_id)).state is State.PENDING


async def test_a_cancelled_run_gives_everything_back(queue: Queue) -> None:
    gate = Gate()
    worker = make_worker(queue, concurrency=1)
    worker.handler("job")(gate.__call__)
    await queue.add_many([NewJob("job", n) for n in range(3)])
    task = asyncio.create_task(worker.run(signals=False))
    await gate.holds(1)
    await eventually(lambda: worker.counts.fetched == 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(task)
    assert (await queue.stats()).pending == 3


async def test_a_worker_can_run_again(queue: Queue) -> None:
    worker = make_worker(queue)
    worker.handler("job")(lambda job: None)
    for completed in (1, 2):
        await queue.add("job")
        async with running(worker):
            await eventually(lambda completed=completed: worker.counts.completed == completed)  # type: ignore[misc]
    assert (await queue.stats()).completed == 2


async def test_a_worker_does_not_run_twice_at_once(store_url: str) -> None:
    async with Queue("orders", store_url) as queue:
        worker = make_worker(queue)
        worker.handler("job")(lambda job: None)
        first = asyncio.create_task(worker.run(signals=False))
        await asyncio.sleep(0)  # it is still opening the store
        with pytest.raises(ConfigurationError, match="running already"):
            await within(worker.run(until_empty=True, signals=False))
        await queue.add("job")
        await eventually(lambda: worker.counts.completed == 1)
        worker.stop()
        await within(first)


async def test_a_stop_is_heard_while_the_store_is_being_opened(store_url: str) -> None:
    async with Queue("orders", store_url) as queue:
        worker = make_worker(queue)
        worker.handler("job")(lambda job: None)
        task = asyncio.create_task(worker.run(signals=False))
        await asyncio.sleep(0)
        worker.stop()
        await within(task, 5)


async def test_until_empty_ends_when_nothing_is_due(queue: Queue) -> None:
    worker = make_worker(queue)
    worker.handler("job")(lambda job: None)
    await queue.add_many([NewJob("job", n) for n in range(100)])
    future = await queue.add("job", delay=HOUR)
    await within(worker.run(until_empty=True, signals=False))
    assert (await queue.stats()).completed == 100
    assert (await record_of(queue, future)).state is State.PENDING


async def test_a_job_that_is_added_by_a_handler_is_run_too(queue: Queue) -> None:
    worker = make_worker(queue)

    @worker.handler("parent")
    async def parent(job: Job) -> None:
        if job.payload:
            await queue.add("parent", job.payload - 1)

    await queue.add("parent", 5)
    await within(worker.run(until_empty=True, signals=False))
    assert (await queue.stats()).completed == 6


async def test_a_long_handler_keeps_its_lease(queue: Queue, clock: VirtualClock) -> None:
    gate = Gate()
    worker = make_worker(queue, release_stuck_timeout=timedelta(milliseconds=90))
    worker.handler("job")(gate.__call__)
    job_id = await queue.add("job")
    async with running(worker):
        await gate.holds(1)
        for _ in range(3):
            clock.advance(timedelta(milliseconds=80))
            expected = clock.now() + timedelta(milliseconds=90)

            async def renewed(expected: object = expected) -> bool:
                return (await record_of(queue, job_id)).lease_expires_at == expected

            await eventually(renewed)
            assert await recover(queue) == []
        gate.open.set()
    record = await record_of(queue, job_id)
    assert (record.state, record.deliveries) == (State.COMPLETED, 1)


async def test_a_job_that_another_worker_has_taken_is_cancelled_here(
    queue: Queue, clock: VirtualClock
) -> None:
    gate = Gate()
    worker = make_worker(
        queue, release_stuck_timeout=timedelta(milliseconds=150), release_stuck_interval=HOUR
    )
    worker.handler("job")(gate.__call__)
    job_id = await queue.add("job")
    async with running(worker):
        await gate.holds(1)
        await queue.pause()  # or this worker would fetch it again itself

        async def robbed() -> bool:  # the lease keeper may renew between the two
            clock.advance(HOUR)
            return await recover(queue) == [job_id]

        await eventually(robbed)
        await eventually(lambda: gate.cancelled == [job_id])
        assert worker.counts.lost == 1
        await queue.resume()
        gate.open.set()
        await eventually(lambda: worker.counts.completed == 1)
    record = await record_of(queue, job_id)
    assert (record.state, record.deliveries, record.attempts) == (State.COMPLETED, 2, 1)
    assert len(moves_of(await checked_trail(queue), job_id)) == 5


async def test_the_outcome_of_a_robbed_worker_does_not_count(queue: Queue, clock: VirtualClock) -> None:
    """Its handler ends before the lease keeper looks: the outcome comes too late and is reported."""
    gate = Gate()
    worker = make_worker(queue, release_stuck_timeout=LEASE, release_stuck_interval=HOUR)
    worker.handler("job")(gate.__call__)
    job_id = await queue.add("job")
    async with running(worker):
        await gate.holds(1)
        clock.advance(HOUR)
        await queue.pause()
        assert await recover(queue) == [job_id]
        await queue.resume()
        # Here as in life, whoever comes first: the second holder may be this very worker.
        await eventually(lambda: worker.counts.fetched == 2)
        gate.open.set()
        await eventually(lambda: worker.counts.completed + worker.counts.lost == 2)
    assert (worker.counts.completed, worker.counts.lost) == (1, 1)
    record = await record_of(queue, job_id)
    assert (record.state, record.attempts, record.deliveries) == (State.COMPLETED, 1, 2)
    await checked_trail(queue)


async def test_a_robbed_worker_under_ack_first_does_not_start_its_handler(
    queue: Queue, clock: VirtualClock
) -> None:
    job_id = await queue.add("job")
    worker = make_worker(queue, ack_policy=AckPolicy.ACK_FIRST)
    ran: list[str] = []
    worker.handler("job")(lambda job: ran.append(job.id))
    real_settle = queue.store.settle

    async def robbed_settle(*arguments: object, **options: object) -> object:
        clock.advance(HOUR)
        await recover(queue)
        other = await fetch_one(queue)
        queue.store.settle = real_settle  # type: ignore[method-assign]
        await settle(queue, acked(other))
        return await real_settle(*arguments, **options)  # type: ignore[arg-type]

    queue.store.settle = robbed_settle  # type: ignore[method-assign,assignment]
    await worker.step()
    assert ran == []
    assert (await record_of(queue, job_id)).deliveries == 2


async def test_a_worker_recovers_what_dead_ones_left(
    queue: Queue, other_queue: Queue, clock: VirtualClock
) -> None:
    stuck = await queue.add("job")
    elsewhere = await other_queue.add("job")
    await fetch_one(queue, who="killed")
    await fetch_one(other_queue, who="killed")
    worker = make_worker(queue, release_stuck_interval=timedelta(milliseconds=20))
    worker.handler("job")(lambda job: None)
    async with running(worker):
        await asyncio.sleep(0.1)
        assert worker.counts.recovered == 0
        clock.advance(2 * LEASE)
        await eventually(lambda: worker.counts.completed == 1)
    assert worker.counts.recovered == 1
    assert (await record_of(queue, stuck)).deliveries == 2
    assert (await record_of(other_queue, elsewhere)).state is State.PROCESSING


async def test_two_workers_in_one_program_share_the_work(queue: Queue) -> None:
    seen: list[str] = []
    workers = [make_worker(queue, fetch_batch_size=5) for _ in range(2)]

    async def note(job: Job) -> None:
        seen.append(job.id)
        await asyncio.sleep(0)

    for worker in workers:
        worker.handler("job")(note)
    ids = await queue.add_many([NewJob("job", n) for n in range(200)])
    async with running(workers[0]), running(workers[1]):
        await eventually(lambda: sum(each.counts.completed for each in workers) == 200)
    assert sorted(seen) == sorted(ids)
    await checked_trail(queue)


async def test_a_job_on_its_last_delivery_runs_alone(queue: Queue, clock: VirtualClock) -> None:
    """It may have killed its worker before: if it does so again, it takes nobody's last delivery with it."""
    suspects = set(await queue.add_many([NewJob("job", n) for n in range(3)]))
    await queue.store.fetch(queue.name, limit=3, lease=LEASE, who="killed")
    clock.advance(LEASE)
    assert len(await recover(queue)) == 3
    ordinary = set(await queue.add_many([NewJob("job", n) for n in range(10)]))
    inside: set[str] = set()
    company: dict[str, int] = {}
    worker = make_worker(queue, max_deliveries=2, concurrency=4)

    @worker.handler("job")
    async def job(job: Job) -> None:
        inside.add(job.id)
        await asyncio.sleep(0.005)
        company[job.id] = len(inside)
        inside.remove(job.id)

    await within(worker.run(until_empty=True, signals=False))
    assert set(company) == suspects | ordinary
    assert {company[each] for each in suspects} == {1}
    assert max(company.values()) > 1
    assert (await queue.stats()).completed == 13


async def test_a_worker_sleeps_until_the_next_job_is_due(store_url: str) -> None:
    """On a real clock: sooner than its longest interval, without being told."""
    async with Queue("orders", store_url) as queue:
        await queue.open()
        worker = make_worker(queue, max_fetch_interval=HOUR)
        worker.handler("job")(lambda job: None)
        await queue.add("job", delay=timedelta(milliseconds=300))
        async with running(worker):
            await eventually(lambda: worker.counts.completed == 1)
