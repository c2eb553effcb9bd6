"""Looking into a queue and operating it: numbers, lists, single jobs, purging, pruning."""

from __future__ import annotations

from datetime import timedelta

from remuda import NewJob, Queue, Retention, State, Stats
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
    eventually,
    fetch,
    fetch_one,
    make_worker,
    moves_of,
    nacked,
    record_of,
    running,
    settle,
)


async def test_an_unknown_queue_is_empty(queue: Queue) -> None:
    assert await queue.stats() == Stats(queue=queue.name)
    assert await queue.jobs() == []
    assert await queue.get("nothing") is None
    assert await queue.dead.count() == {}
    assert await queue.purge() == 0
    assert await fetch(queue) == []


async def test_the_numbers_count_every_state(queue: Queue, other_queue: Queue, clock: VirtualClock) -> None:
    await other_queue.add("elsewhere")
    await queue.add_many([NewJob("job", n) for n in range(10)])
    running = await fetch(queue, 6)
    await settle(
        queue,
        acked(running[0]),
        acked(running[1]),
        dead(running[2]),
        nacked(running[3], clock.now() + HOUR),
    )
    await queue.add("job", delay=2 * HOUR)
    clock.advance(MINUTE)
    stats = await queue.stats()
    assert stats == Stats(
        queue=queue.name,
        pending=5,
        retryable=1,
        processing=2,
        delayed=2,
        completed=2,
        failed=1,
        oldest_due=MINUTE,
    )
    assert (stats.live, stats.total) == (8, 11)
    clock.advance(HOUR)
    assert (await queue.stats()).delayed == 1


async def test_nothing_due_has_no_age(queue: Queue, clock: VirtualClock) -> None:
    await queue.add("job", delay=HOUR)
    assert (await queue.stats()).oldest_due is None
    clock.advance(HOUR)
    assert (await queue.stats()).oldest_due == timedelta(0)


async def test_jobs_are_listed_in_the_order_in_which_they_would_run(
    queue: Queue, clock: VirtualClock
) -> None:
    later = await queue.add("job", delay=HOUR)
    sooner = await queue.add("other", delay=MINUTE)
    urgent = await queue.add("job", delay=2 * HOUR, priority=1)
    assert [each.id for each in await queue.jobs()] == [urgent, sooner, later]
    assert [each.id for each in await queue.jobs(limit=2)] == [urgent, sooner]
    assert [each.id for each in await queue.jobs(name="job")] == [urgent, later]
    assert [each.id for each in await queue.jobs(state="PENDING")] == [urgent, sooner, later]
    assert await queue.jobs(state=State.PROCESSING) == []


async def test_ended_jobs_are_listed_newest_first(queue: Queue, clock: VirtualClock) -> None:
    done: list[str] = []
    for n in range(3):
        done.append(await queue.add("job", n))
        await settle(queue, acked(await fetch_one(queue)))
        clock.advance(SECOND)
    (failed,) = await bury(queue, "job")
    assert [each.id for each in await queue.jobs(state=State.COMPLETED)] == done[::-1]
    assert [each.id for each in await queue.jobs(state=State.COMPLETED, limit=1)] == [done[2]]
    assert [each.id for each in await queue.jobs(state=State.FAILED)] == [failed]
    waiting = await queue.add("job")
    assert [each.id for each in await queue.jobs()] == [waiting, failed, *done[::-1]]
    assert [each.id for each in await queue.jobs(limit=2)] == [waiting, failed]


async def test_a_job_is_found_in_every_state(queue: Queue, clock: VirtualClock) -> None:
    job_id = await queue.add("job", {"n": 1})
    assert (await record_of(queue, job_id)).state is State.PENDING
    delivery = await fetch_one(queue)
    assert (await record_of(queue, job_id)).state is State.PROCESSING
    await settle(queue, nacked(delivery, clock.now()))
    assert (await record_of(queue, job_id)).state is State.RETRYABLE
    await settle(queue, dead(await fetch_one(queue)))
    record = await record_of(queue, job_id)
    assert (record.state, record.ended_at) == (State.FAILED, clock.now())
    assert record.value() == {"n": 1}


async def test_purging_removes_what_waits_and_nothing_else(
    queue: Queue, other_queue: Queue, clock: VirtualClock
) -> None:
    await other_queue.add("job")
    (letter,) = await bury(queue, "job")
    running_id = await queue.add("job")
    delivery = await fetch_one(queue)
    retried = await queue.add("job")
    await settle(queue, nacked(await fetch_one(queue), clock.now() + HOUR))
    waiting = await queue.add("job")
    future = await queue.add("job", delay=DAY)

    assert await queue.purge() == 3

    for gone in (retried, waiting, future):
        assert await queue.get(gone) is None
    assert (await record_of(queue, letter)).state is State.FAILED
    assert (await record_of(queue, running_id)).state is State.PROCESSING
    assert (await other_queue.stats()).pending == 1
    assert await settle(queue, acked(delivery)) == []
    transitions = await checked_trail(queue)
    assert moves_of(transitions, retried)[-1] == (State.RETRYABLE, State.REMOVED)
    assert moves_of(transitions, waiting)[-1] == (State.PENDING, State.REMOVED)
    assert {each.who for each in transitions if each.entered is State.REMOVED} == {queue.who}


async def test_a_purged_id_is_free_again(queue: Queue) -> None:
    await queue.add_unique("job", job_id="a", unique_for=HOUR)
    await queue.purge()
    assert (await queue.add_unique("job", job_id="a")).new


async def test_pruning_removes_what_ended_before_a_moment(queue: Queue, clock: VirtualClock) -> None:
    async def end_one_each() -> tuple[str, str]:
        done = await queue.add("job")
        await settle(queue, acked(await fetch_one(queue)))
        (failed,) = await bury(queue, "job")
        return done, failed

    old_done, old_failed = await end_one_each()
    clock.advance(HOUR)
    new_done, new_failed = await end_one_each()

    assert await queue.prune() == 0
    assert await queue.prune(completed_before=clock.now()) == 1
    assert await queue.get(old_done) is None
    assert (await record_of(queue, old_failed)).state is State.FAILED
    assert await queue.prune(failed_before=clock.now()) == 1
    assert await queue.get(old_failed) is None
    # What ended at that very moment did not end before it.
    assert (await record_of(queue, new_done)).state is State.COMPLETED
    assert (await record_of(queue, new_failed)).state is State.FAILED
    transitions = await checked_trail(queue)
    assert moves_of(transitions, old_failed)[-1] == (State.FAILED, State.REMOVED)
    assert transitions[-1].reason == "retention"


async def test_pruning_goes_on_until_all_of_it_is_gone(queue: Queue, clock: VirtualClock) -> None:
    await queue.add_many([NewJob("job", n) for n in range(1_200)])
    await settle(queue, *(acked(each) for each in await fetch(queue, 1_200)))
    clock.advance(SECOND)
    assert (
        await queue.store.prune(
            queue.name, completed_before=clock.now(), failed_before=None, who="test", limit=100
        )
        == 100
    )
    assert await queue.prune(completed_before=clock.now(), failed_before=clock.now()) == 1_100
    assert (await queue.stats()).total == 0


async def test_a_worker_prunes_by_its_retention(queue: Queue, clock: VirtualClock) -> None:
    done = await queue.add("job")
    await settle(queue, acked(await fetch_one(queue)))
    (failed,) = await bury(queue, "job")
    clock.advance(2 * HOUR)
    recent = await queue.add("job")
    await settle(queue, acked(await fetch_one(queue)))

    async def gone(job_id: str) -> bool:
        return await queue.get(job_id) is None

    for retention, removed in ((Retention(completed=HOUR), done), (Retention(failed=HOUR), failed)):
        worker = make_worker(queue, retention=retention)
        worker.handlers.register(None, lambda job: None)
        async with running(worker):
            await eventually(lambda removed=removed: gone(removed))  # type: ignore[misc]
    assert (await record_of(queue, recent)).state is State.COMPLETED


async def test_every_queue_that_holds_anything_is_named(queue: Queue, other_queue: Queue) -> None:
    assert await queue.store.queues() == []
    await queue.add("job")
    assert await queue.store.queues() == [queue.name]
    await bury(other_queue, "job")
    assert await queue.store.queues() == sorted([queue.name, other_queue.name])


async def test_a_new_job_a_resume_and_a_recovery_wake_whoever_watches(
    queue: Queue, clock: VirtualClock
) -> None:
    wakeup = queue.store.watch(queue.name)
    try:
        await queue.add("job")
        assert await wakeup.wait(10 * SECOND)
        await fetch_one(queue)
        await queue.pause()
        await queue.resume()
        assert await wakeup.wait(10 * SECOND)
        clock.advance(HOUR)
        await queue.store.recover(queue.name, timeout=HOUR, who="test")
        assert await wakeup.wait(10 * SECOND)
    finally:
        wakeup.close()


async def test_the_store_says_what_it_is(queue: Queue) -> None:
    capabilities = await queue.open()
    assert capabilities.wake in ("notify", "watch", "poll")
    assert capabilities.version
    assert capabilities.backend
