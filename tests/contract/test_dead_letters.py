"""Dead letters: counted, looked at in pages, exported, dropped."""

from __future__ import annotations

import logging
from datetime import datetime

import pytest

from remuda import ConfigurationError, Constant, Job, NewJob, NoRetry, Queue, Reason, State, StoreError
from remuda.clock import VirtualClock
from remuda.stores.contract import Failure
from tests.contract.workbench import (
    ALL,
    MINUTE,
    SECOND,
    bury,
    checked_trail,
    dead,
    fetch,
    make_worker,
    moves_of,
    record_of,
    settle,
)


async def test_dead_letters_are_counted_by_reason(queue: Queue, other_queue: Queue) -> None:
    await bury(queue, "a", "b", reason=Reason.REJECTED)
    await bury(queue, "a", reason=Reason.PANIC)
    await bury(other_queue, "a", reason=Reason.EXPIRED)
    await queue.add("alive")
    assert await queue.dead.count() == {"rejected": 2, "panic": 1}
    assert await queue.dead.count(name="a") == {"rejected": 1, "panic": 1}
    assert await queue.dead.count(reason="panic") == {"panic": 1}
    assert await queue.dead.count(reason=Reason.EXPIRED) == {}


async def test_a_dead_letter_tells_what_its_handler_raised(queue: Queue, clock: VirtualClock) -> None:
    worker = make_worker(queue, retry=NoRetry())

    class MailError(Exception):
        pass

    @worker.handler("greet")
    async def greet(job: Job) -> None:
        raise MailError("no such mailbox")

    job_id = await queue.add("greet", {"to": "a"}, headers={"h": 1}, priority=1)
    await worker.step()

    (letter,) = await queue.dead.peek()
    assert (letter.id, letter.name, letter.state) == (job_id, "greet", State.FAILED)
    assert letter.reason == Reason.RETRIES_EXHAUSTED
    assert letter.error_type is not None
    assert letter.error_type.endswith("MailError")
    assert letter.error_message == "no such mailbox"
    assert letter.error_trace is not None
    assert 'raise MailError("no such mailbox")' in letter.error_trace
    assert (letter.value(), letter.headers, letter.priority) == ({"to": "a"}, {"h": 1}, 1)
    assert letter.died_at == letter.ended_at == clock.now()


async def test_peek_gives_the_newest_first(queue: Queue, clock: VirtualClock) -> None:
    ids: list[str] = []
    for name in ("first", "second", "third"):
        ids += await bury(queue, name)
        clock.advance(SECOND)
    assert [each.id for each in await queue.dead.peek()] == ids[::-1]
    assert [each.id for each in await queue.dead.peek(limit=2)] == [ids[2], ids[1]]
    assert len(await queue.dead.peek()) == 3


async def test_every_filter_narrows_and_all_of_them_together(queue: Queue, clock: VirtualClock) -> None:
    start = clock.now()
    (early,) = await bury(queue, "a", reason=Reason.PANIC)
    clock.advance(MINUTE)
    middle_a, middle_b = await bury(queue, "a", "b", reason=Reason.PANIC)
    clock.advance(MINUTE)
    (late,) = await bury(queue, "a", reason=Reason.EXPIRED)

    async def found(**which: object) -> set[str]:
        return {each.id for each in await queue.dead.peek(**which)}  # type: ignore[arg-type]

    assert await found(name="a") == {early, middle_a, late}
    assert await found(reason="panic") == {early, middle_a, middle_b}
    assert await found(since=start + MINUTE) == {middle_a, middle_b, late}
    assert await found(until=start + MINUTE) == {early, middle_a, middle_b}
    assert await found(since=start + SECOND, until=start + MINUTE) == {middle_a, middle_b}
    assert await found(ids=[early, late, "not there"]) == {early, late}
    assert await found(ids=[]) == set()
    assert await found(
        name="a", reason="panic", since=start + SECOND, until=start + MINUTE, ids=[early, middle_a, late]
    ) == {middle_a}
    assert sum((await queue.dead.count(since=start + MINUTE)).values()) == 3


async def test_pages_of_equal_times_miss_nothing_and_repeat_nothing(queue: Queue) -> None:
    await queue.add_many([NewJob("job", n) for n in range(1_234)])
    await settle(queue, *(dead(each) for each in await fetch(queue, 1_234)))

    exported = [each.id async for each in queue.dead.export()]
    assert len(exported) == len(set(exported)) == 1_234

    for oldest_first in (True, False):
        paged: list[str] = []
        after = None
        while page := await queue.store.peek_dead(
            queue.name, ALL, limit=100, after=after, oldest_first=oldest_first
        ):
            paged += [each.id for each in page]
            after = page[-1].cursor
        assert paged == (exported if oldest_first else exported[::-1])


async def test_an_export_is_oldest_first_and_filtered(queue: Queue, clock: VirtualClock) -> None:
    wanted: list[str] = []
    for _ in range(3):
        wanted += await bury(queue, "a")
        await bury(queue, "b")
        clock.advance(SECOND)
    assert [each.id async for each in queue.dead.export(name="a")] == wanted


async def test_a_cursor_that_is_none_is_refused(queue: Queue) -> None:
    with pytest.raises(StoreError, match="nonsense"):
        await queue.store.peek_dead(queue.name, ALL, limit=1, after="nonsense")


async def test_dropped_letters_are_gone_and_the_trail_says_so(queue: Queue, clock: VirtualClock) -> None:
    ids: list[str] = []
    for name in ("a", "b", "a", "a"):
        ids += await bury(queue, name)
        clock.advance(SECOND)
    assert await queue.dead.drop(name="a", limit=2) == [ids[0], ids[2]]
    assert await queue.get(ids[0]) is None
    assert await queue.dead.count() == {"rejected": 2}
    assert await queue.dead.drop(ids=[ids[3]]) == [ids[3]]
    assert await queue.dead.drop(ids=["not there"]) == []
    transitions = await checked_trail(queue)
    assert moves_of(transitions, ids[0])[-1] == (State.FAILED, State.REMOVED)
    assert (transitions[-1].reason, transitions[-1].who) == ("dropped", queue.who)
    assert transitions[-1].dwell == SECOND


async def test_an_unknown_reason_is_refused_with_the_known_ones(queue: Queue) -> None:
    with pytest.raises(ConfigurationError, match="retries_exhausted"):
        await queue.dead.count(reason="bad luck")


async def test_a_naive_moment_is_refused(queue: Queue) -> None:
    naive = datetime(2030, 1, 1)  # noqa: DTZ001 - that is the point
    for method in (queue.dead.count, queue.dead.peek, queue.dead.replay, queue.dead.drop):
        with pytest.raises(ConfigurationError, match="time zone"):
            await method(since=naive)
        with pytest.raises(ConfigurationError, match="time zone"):
            await method(until=naive)


async def test_any_text_of_an_error_can_be_kept(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "remuda.worker")  # pytest-xdist cannot report such a text
    worker = make_worker(queue, retry=NoRetry())
    text = "nul \x00 surrogate \ud800 horse 🐎 quote ' \" \\ percent %s {}"

    @worker.handler("greet")
    async def greet(job: Job) -> None:
        raise ValueError(text)

    job_id = await queue.add("greet")
    await worker.step()
    record = await record_of(queue, job_id)
    assert record.reason == Reason.RETRIES_EXHAUSTED
    assert record.error_message == "nul \\0 surrogate \\ud800 horse 🐎 quote ' \" \\ percent %s {}"
    assert record.error_trace is not None
    assert record.error_trace.endswith("percent %s {}\n")


async def test_an_error_text_without_end_is_cut(queue: Queue) -> None:
    worker = make_worker(queue, retry=NoRetry())

    @worker.handler("greet")
    async def greet(job: Job) -> None:
        raise ValueError("begin" + "🐎" * 100_000 + "end")

    job_id = await queue.add("greet")
    await worker.step()
    record = await record_of(queue, job_id)
    assert record.error_message is not None
    assert record.error_trace is not None
    assert record.error_message.startswith("begin🐎")
    assert len(record.error_message) <= 4_000
    assert record.error_trace.endswith("end\n")
    assert len(record.error_trace) <= 32_000


async def test_the_error_of_the_last_attempt_is_the_one_that_is_kept(
    queue: Queue, clock: VirtualClock
) -> None:
    worker = make_worker(queue, retry=Constant(every=SECOND, max_attempts=2))

    @worker.handler("greet")
    async def greet(job: Job) -> None:
        raise ValueError("the first") if job.attempt == 1 else KeyError("the last")

    await queue.add("greet")
    await worker.step()
    clock.advance(SECOND)
    await worker.step()
    (letter,) = await queue.dead.peek()
    assert (letter.error_type, letter.error_message) == ("KeyError", "'the last'")


async def test_a_dead_letter_without_an_error_says_nothing_of_one(queue: Queue) -> None:
    await bury(queue, "a", failure=None)
    (letter,) = await queue.dead.peek()
    assert (letter.error_type, letter.error_message, letter.error_trace) == (None, None, None)
    await bury(queue, "b", failure=Failure("ValueError", "", None))
    (letter,) = await queue.dead.peek(name="b")
    assert (letter.error_type, letter.error_message, letter.error_trace) == ("ValueError", "", None)
