"""Results: what a handler returned, kept for a time on a worker that was told to."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from remuda import Constant, Job, JobFailedError, NewJob, NoResultError, NoRetry, Queue, Result, State
from remuda.clock import VirtualClock
from remuda.stores.sql.store import SqlStore
from tests.contract.workbench import (
    DAY,
    HOUR,
    LEASE,
    MINUTE,
    SECOND,
    acked,
    fetch_one,
    make_worker,
    record_of,
    recover,
    settle,
)


@dataclasses.dataclass
class Total:
    sum: int
    note: str


@pytest.mark.parametrize(
    ("returned", "kept"),
    [
        (None, None),
        (0, 0),
        ("", ""),
        ([1, "two", None], [1, "two", None]),
        ({"a": b"bytes"}, {"a": b"bytes"}),
        (Total(3, "café"), {"sum": 3, "note": "café"}),
    ],
    ids=repr,
)
async def test_what_a_handler_returns_is_kept(queue: Queue, returned: Any, kept: Any) -> None:
    worker = make_worker(queue, store_results=True)
    worker.handler("plain")(lambda _job: returned)

    @worker.handler("coroutine")
    async def run(_job: Job) -> Any:
        return returned

    ids = await queue.add_many([NewJob("plain"), NewJob("coroutine")])
    assert await worker.step() == 2
    assert [await queue.result(each) for each in ids] == [Result(kept)] * 2


async def test_no_result_is_kept_unless_the_worker_is_told_to(queue: Queue) -> None:
    worker = make_worker(queue)
    worker.handler()(lambda _job: 42)
    job_id = await queue.add("job")
    await worker.step()
    assert (await record_of(queue, job_id)).state is State.COMPLETED
    assert await queue.result(job_id) is None
    assert await queue.result("nobody") is None


async def test_there_is_no_result_before_the_job_is_done(queue: Queue, clock: VirtualClock) -> None:
    worker = make_worker(queue, store_results=True, retry=Constant(every=MINUTE, max_attempts=5))

    @worker.handler()
    def third_time(job: Job) -> int:
        if job.attempt < 3:
            raise ConnectionError
        return job.attempt

    job_id = await queue.add("job")
    for _ in range(2):
        assert await queue.result(job_id) is None
        await worker.step()
        clock.advance(MINUTE)
    assert await queue.result(job_id) is None
    await worker.step()
    assert await queue.result(job_id) == Result(3)


@pytest.mark.parametrize("store_results", [True, False])
async def test_the_result_of_a_dead_letter_says_why(queue: Queue, store_results: bool) -> None:
    worker = make_worker(queue, store_results=store_results)

    @worker.handler()
    def reject(job: Job) -> str:
        job.reject("no")
        return "not wanted"

    job_id = await queue.add("job")
    await worker.step()
    assert (await record_of(queue, job_id)).state is State.FAILED
    with pytest.raises(JobFailedError) as failed:
        await queue.result(job_id)
    assert (failed.value.job_id, failed.value.reason) == (job_id, "rejected")
    assert failed.value.error_message == "no"
    assert str(failed.value) == f"job {job_id} failed (rejected), remuda.errors.JobRejectedError: no"
    with pytest.raises(JobFailedError):
        await queue.result(job_id, timeout=10)
    # Replayed, it is a job like any other: nothing is known of it yet.
    await queue.dead.replay()
    assert await queue.result(job_id) is None


async def test_a_result_is_kept_for_its_time(queue: Queue, clock: VirtualClock) -> None:
    worker = make_worker(queue, store_results=True, result_ttl=timedelta(minutes=10))
    worker.handler()(lambda _job: 42)
    job_id = await queue.add("job")
    await worker.step()
    clock.advance(9 * MINUTE)
    assert await queue.result(job_id) == Result(42)
    clock.advance(MINUTE)
    assert await queue.result(job_id) is None


async def test_a_result_outlives_the_job_s_own_record(queue: Queue) -> None:
    worker = make_worker(queue, store_results=True, archive_completed=False)
    worker.handler()(lambda _job: 42)
    job_id = await queue.add("job")
    await worker.step()
    assert await queue.get(job_id) is None
    assert await queue.result(job_id) == Result(42)


async def test_a_result_that_cannot_be_encoded_is_an_error_in_the_log_and_the_job_is_done(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    worker = make_worker(queue, store_results=True)
    worker.handler("strange")(lambda _job: object())
    worker.handler("large")(lambda _job: b"x" * (queue.max_payload_bytes + 1))
    worker.handler("good")(lambda _job: 42)
    strange, large, good = await queue.add_many([NewJob("strange"), NewJob("large"), NewJob("good")])
    await worker.step()
    for job_id in (strange, large):
        assert (await record_of(queue, job_id)).state is State.COMPLETED
        assert await queue.result(job_id) is None
    assert await queue.result(good) == Result(42)
    told = [each for each in caplog.records if getattr(each, "action", None) == "result_refused"]
    assert [(each.levelname, each.job) for each in told] == [("ERROR", strange), ("ERROR", large)]  # type: ignore[attr-defined]


async def test_an_ack_by_hand_keeps_what_is_returned_after_it(queue: Queue) -> None:
    worker = make_worker(queue, store_results=True, ack_policy="manual")

    @worker.handler("returns")
    def returns(job: Job) -> int:
        job.ack()
        return 42

    @worker.handler("raises")
    def raises(job: Job) -> int:
        job.ack()
        raise ValueError

    returned, raised = await queue.add_many([NewJob("returns"), NewJob("raises")])
    await worker.step()
    assert (await queue.stats()).completed == 2
    assert await queue.result(returned) == Result(42)
    assert await queue.result(raised) is None


async def test_a_job_acked_before_it_ran_has_no_result(queue: Queue) -> None:
    worker = make_worker(queue, store_results=True, ack_policy="ack_first")
    worker.handler()(lambda _job: 42)
    job_id = await queue.add("job")
    await worker.step()
    assert await queue.result(job_id) is None


async def test_middleware_need_not_pass_the_result_on(queue: Queue) -> None:
    worker = make_worker(queue, store_results=True, handler_timeout=HOUR)
    seen: list[Any] = []

    @worker.middleware
    async def around(job: Job, call_next: Callable[[], Awaitable[Any]]) -> None:
        if job.name != "skipped":
            seen.append(await call_next())

    worker.handler()(lambda _job: 42)
    ran, skipped = await queue.add_many([NewJob("job"), NewJob("skipped")])
    await worker.step()
    assert seen == [42]
    assert await queue.result(ran) == Result(42)
    assert (await record_of(queue, skipped)).state is State.COMPLETED
    assert await queue.result(skipped) is None


async def test_an_outcome_that_came_too_late_leaves_no_result(queue: Queue, clock: VirtualClock) -> None:
    job_id = await queue.add("job")
    late = await fetch_one(queue)
    clock.advance(2 * LEASE)
    await recover(queue)
    holder = await fetch_one(queue)
    assert len(await settle(queue, acked(late, result=b"\x01"))) == 1
    assert await queue.result(job_id) is None
    assert await settle(queue, acked(holder, result=b"\x02")) == []
    assert await queue.result(job_id) == Result(2)


async def test_the_last_run_of_an_id_has_the_result(queue: Queue, clock: VirtualClock) -> None:
    for number in (b"\x01", b"\x02"):
        await queue.add_unique("job", job_id="a")
        await settle(queue, acked(await fetch_one(queue), result=number))
        clock.advance(SECOND)
    assert await queue.result("a") == Result(2)


async def test_results_are_of_one_queue(queue: Queue, other_queue: Queue) -> None:
    for each, number in ((queue, b"\x01"), (other_queue, b"\x02")):
        await each.add_unique("job", job_id="a")
        await settle(each, acked(await fetch_one(each), result=number))
    assert [await queue.result("a"), await other_queue.result("a")] == [Result(1), Result(2)]


async def test_results_with_and_without_come_in_one_batch(queue: Queue) -> None:
    ids = await queue.add_many([NewJob("job", n) for n in range(300)])
    deliveries = [await fetch_one(queue) for _ in ids]
    outcomes = [
        acked(each, keep=bool(n % 3), result=b"\x05" if n % 2 else None) for n, each in enumerate(deliveries)
    ]
    assert await settle(queue, *outcomes) == []
    found = [await queue.result(each.id) for each in deliveries]
    assert found == [Result(5) if n % 2 else None for n in range(300)]


async def test_results_whose_time_is_over_are_pruned(sql_store_url: str, clock: VirtualClock) -> None:
    async with Queue("orders", sql_store_url, clock=clock) as queue:
        for moment in range(3):
            await queue.add_unique("job", job_id=f"{moment}")
            await settle(queue, acked(await fetch_one(queue), result=b"\x05"))
            clock.advance(30 * MINUTE)
        store = queue.store
        assert isinstance(store, SqlStore)

        async def kept() -> list[str]:
            rows = await store.run_sync(
                lambda connection: connection.exec_driver_sql("SELECT job_id FROM message_result").all()
            )
            return sorted(row[0] for row in rows)

        assert await kept() == ["0", "1", "2"]
        assert await queue.prune() == 0
        assert await kept() == ["2"]
        clock.advance(DAY)
        assert await queue.prune() == 0
        assert await kept() == []
        assert (await queue.stats()).completed == 3


# -- waiting


async def test_who_waits_is_woken_when_the_job_ends(
    queue: Queue, store_url: str, clock: VirtualClock
) -> None:
    """Also by a worker on another connection; None is a result."""
    async with Queue(queue.name, store_url, clock=clock) as elsewhere:
        worker = make_worker(elsewhere, store_results=True, retry=NoRetry())

        @worker.handler()
        async def run(job: Job) -> Any:
            if job.payload == "fail":
                raise ValueError("as it was asked to")
            return job.payload

        ids = await queue.add_many([NewJob("job", each) for each in (1, None, "fail")])
        waiting = [asyncio.create_task(queue.result(each, timeout=30)) for each in (*ids, ids[0])]
        await asyncio.sleep(0.05)
        assert not any(each.done() for each in waiting)
        await worker.step()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert (ended[0], ended[1], ended[3]) == (Result(1), Result(None), Result(1))
    assert isinstance(ended[2], JobFailedError)
    assert (ended[2].reason, ended[2].error_type) == ("retries_exhausted", "ValueError")


async def test_a_result_that_is_there_is_not_waited_for(queue: Queue) -> None:
    worker = make_worker(queue, store_results=True)
    worker.handler()(lambda _job: 42)
    job_id = await queue.add("job")
    await worker.step()
    assert await queue.result(job_id, timeout=timedelta(seconds=10)) == Result(42)


async def test_a_result_that_does_not_come_in_time(queue: Queue) -> None:
    job_id = await queue.add("job")
    with pytest.raises(TimeoutError, match=f"job {job_id} has no result after 0:00:00.050000"):
        await queue.result(job_id, timeout=0.05)


async def test_a_result_that_cannot_come_is_not_waited_for_to_the_end(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remuda.results._FIRST_DOUBT_S", 0.05)
    monkeypatch.setattr("remuda.results._MISSED_WORD", timedelta(milliseconds=50))
    worker = make_worker(queue)
    worker.handler()(lambda _job: 42)
    job_id = await queue.add("job")
    await worker.step()
    with pytest.raises(NoResultError, match="it completed without store_results"):
        await queue.result(job_id, timeout=60)
    with pytest.raises(NoResultError, match="there is no such job"):
        await queue.result("nobody", timeout=60)


async def test_a_thousand_wait_at_once(queue: Queue) -> None:
    worker = make_worker(queue, store_results=True, fetch_batch_size=1_000)
    worker.handler()(lambda job: job.payload)
    ids = await queue.add_many([NewJob("job", number) for number in range(1_000)])
    waiting = [asyncio.create_task(queue.result(each, timeout=60)) for each in ids]
    while await worker.step():
        pass
    assert [each.value for each in await asyncio.gather(*waiting)] == list(range(1_000))
