"""The queue for programs without an event loop, on every store."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from remuda import (
    Added,
    EncodeError,
    NewJob,
    Queue,
    QueueClosedError,
    QueueFullError,
    RateLimit,
    State,
    SyncQueue,
    Worker,
)
from remuda.dead_letters import DeadLetters
from remuda.rate import RateLimits
from remuda.repeats import Repeats
from remuda.sync import SyncDeadLetters, SyncRepeats

HOUR = timedelta(hours=1)


def test_a_sync_program_adds_and_looks(store_url: str) -> None:
    with SyncQueue("emails", store_url) as emails:
        job_id = emails.add("welcome", {"to": "a"}, headers={"tenant": "t"}, priority=1)
        assert emails.add_unique("invoice", job_id="i-1") == Added("i-1", new=True)
        assert emails.add_unique("invoice", job_id="i-1") == Added("i-1", new=False)
        emails.add_many([NewJob("row", n) for n in range(5)])
        assert emails.stats().pending == 7
        record = emails.get(job_id)
        assert record is not None
        assert (record.name, record.value(), record.headers) == ("welcome", {"to": "a"}, {"tenant": "t"})
        assert [job.name for job in emails.jobs(limit=2)] == ["welcome", "invoice"]
        emails.pause()
        assert emails.stats().paused
        emails.resume()
        assert emails.purge() == 7
        assert emails.stats().live == 0


def test_a_sync_program_changes_its_mind(store_url: str) -> None:
    with SyncQueue("emails", store_url, max_live=2) as emails:
        soon, later = (emails.add("welcome", delay=HOUR, rate_key="a") for _ in range(2))
        with pytest.raises(QueueFullError):
            emails.add("welcome")
        assert emails.cancel(soon, "nobody") == [soon]
        assert emails.reschedule(later, delay=2 * HOUR)
        assert not emails.reschedule(soon, delay=HOUR)
        record = emails.get(later)
        assert record is not None
        assert record.next_attempt_at is not None
        assert record.next_attempt_at - record.created_at > HOUR
        assert record.rate_key == "a"
        assert emails.result(later) is None
        limit = RateLimit(5, HOUR)
        emails.limit_rate(queue=limit)
        assert emails.rate_limits() == RateLimits(queue=limit)


async def test_its_dead_letters_are_those_of_the_queue(store_url: str) -> None:
    async with Queue("emails", store_url) as queue:
        worker = Worker(queue, ack_policy="reject_on_error")

        @worker.handler()
        async def fail() -> None:
            raise ValueError("no")

        await queue.add_many([NewJob("x", n) for n in range(3)])
        await worker.run(until_empty=True, signals=False)

    def look() -> None:
        with SyncQueue("emails", store_url) as emails:
            assert emails.dead.count() == {"rejected": 3}
            assert [letter.value() for letter in emails.dead.export()] == [0, 1, 2]
            assert emails.dead.peek(limit=1)[0].error_message == "no"
            assert len(emails.dead.replay(limit=2, dry_run=True).ids) == 2
            assert len(emails.dead.replay(limit=2).ids) == 2
            assert len(emails.dead.drop()) == 1
            assert emails.stats().pending == 2

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    async with Queue("emails", store_url) as queue:
        stats = await queue.stats()
        assert (stats.pending, stats.failed) == (2, 0)


def test_threads_may_share_it(sqlite_url: str) -> None:
    with SyncQueue("emails", sqlite_url) as emails:
        threads = [threading.Thread(target=lambda: [emails.add("x") for _ in range(20)]) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert emails.stats().pending == 100


def test_errors_are_those_of_the_queue(sqlite_url: str) -> None:
    with SyncQueue("emails", sqlite_url) as emails:
        with pytest.raises(EncodeError, match="'bad'"):
            emails.add("bad", object())
        assert emails.stats().pending == 0
    with pytest.raises(QueueClosedError):
        emails.add("late")


INNER = {"add_encoded", "check_open", "encode"}  # for the package itself


@pytest.mark.parametrize(
    ("plain", "sync"), [(Queue, SyncQueue), (DeadLetters, SyncDeadLetters), (Repeats, SyncRepeats)]
)
def test_it_has_all_that_a_queue_has(plain: type, sync: type) -> None:
    public = {name for name in dir(plain) if not name.startswith("_")}
    assert public - INNER <= set(dir(sync))


def test_a_sync_program_repeats_jobs_and_reads_what_happened(sqlite_url: str) -> None:
    with SyncQueue("orders", sqlite_url) as queue:
        assert queue.open().backend == "sqlite"
        spec = queue.repeats.put("ping", {"n": 1}, every=timedelta(hours=1))
        assert [each.key for each in queue.repeats.list()] == [spec.key]
        made = queue.repeats.run(spec.key)
        assert queue.repeats.get(spec.key) == spec
        assert queue.repeats.remove(spec.key)
        assert [each.entered for each in queue.history(made)] == [State.PENDING]
        assert [each.message for each in queue.transitions()] == [made]
        assert queue.progress(made) is None
        assert queue.log(made) == []
        assert queue.expire(made, after=timedelta(hours=1))
        record = queue.get(made)
        assert record is not None
        assert record.expires_at is not None
        assert queue.prune() == 0
        assert queue.obliterate() == 1
        assert queue.stats().total == 0
