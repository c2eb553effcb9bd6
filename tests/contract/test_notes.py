"""Progress and logs: what handlers say while they run, and who can read it."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from remuda import ConfigurationError, EncodeError, Job, OversizeError, Queue
from remuda.clock import VirtualClock
from remuda.errors import StoreUnavailableError
from remuda.message import LogLine
from remuda.stores.contract import Note
from remuda.worker.notes import MAX_LINE_CHARACTERS, MAX_LINES, NoteTaker
from tests.contract.workbench import DAY, HOUR, MINUTE, SECOND, eventually, make_worker, within

WEEK = 7 * DAY


def line(text: str, clock: VirtualClock, attempt: int = 1) -> LogLine:
    return LogLine(clock.now(), attempt, text)


async def test_the_last_word_of_progress_counts_and_every_line(queue: Queue, clock: VirtualClock) -> None:
    begun = clock.now()
    first = [Note("a", b"\x01", [line("one", clock), line("two", clock)]), Note("b", b"\x07", [])]
    await queue.store.note(queue.name, first, ttl=WEEK)
    clock.advance(SECOND)
    await queue.store.note(queue.name, [Note("a", b"\x02", [line("three", clock, 2)])], ttl=WEEK)
    await queue.store.note(queue.name, [Note("a", None, [line("vier: äöü \x00", clock, 2)])], ttl=WEEK)

    progress = await queue.progress("a")
    assert progress is not None
    assert (progress.value, progress.at) == (2, begun + SECOND)
    lines = await queue.log("a")
    assert [each.text for each in lines] == ["one", "two", "three", "vier: äöü \x00"]
    assert [(each.at, each.attempt) for each in lines[1:3]] == [(begun, 1), (begun + SECOND, 2)]
    assert [each.text for each in await queue.log("a", after=1, limit=2)] == ["two", "three"]
    assert await queue.log("a", after=4) == []
    assert set(await queue.store.progress(queue.name, ["a", "b", "c"])) == {"a", "b"}
    assert await queue.log("b") == []
    assert await queue.progress("c") is None


async def test_another_queue_has_notes_of_its_own(
    queue: Queue, other_queue: Queue, clock: VirtualClock
) -> None:
    await queue.store.note(queue.name, [Note("a", b"\x01", [line("here", clock)])], ttl=WEEK)
    assert await other_queue.progress("a") is None
    assert await other_queue.log("a") == []


async def test_notes_are_kept_for_their_time(queue: Queue, clock: VirtualClock) -> None:
    await queue.store.note(queue.name, [Note("a", b"\x01", [line("old", clock)])], ttl=HOUR)
    clock.advance(HOUR - SECOND)
    await queue.store.note(queue.name, [Note("b", b"\x01", [line("new", clock)])], ttl=HOUR)
    assert await queue.progress("a") is not None
    clock.advance(2 * SECOND)
    for _ in range(2):
        assert await queue.progress("a") is None
        assert await queue.log("a") == []
        assert await queue.progress("b") is not None
        assert [each.text for each in await queue.log("b")] == ["new"]
        await queue.prune()


async def test_a_log_is_kept_as_a_whole(queue: Queue, clock: VirtualClock) -> None:
    """Whoever follows it asks for what comes after so many lines: none may go from under them."""
    for number in range(3):
        await queue.store.note(queue.name, [Note("long", None, [line(f"line {number}", clock)])], ttl=HOUR)
        clock.advance(50 * MINUTE)
    await queue.prune()
    assert [each.text for each in await queue.log("long")] == ["line 0", "line 1", "line 2"]
    assert [each.text for each in await queue.log("long", after=2)] == ["line 2"]
    clock.advance(11 * MINUTE)
    assert await queue.log("long") == []


async def test_many_notes_go_together(queue: Queue, clock: VirtualClock) -> None:
    notes = [Note(f"job-{n}", b"\x01", [line(f"{n}", clock)] * 3) for n in range(1_200)]
    notes.append(Note("long", None, [line(f"{n}", clock) for n in range(2_500)]))
    await queue.store.note(queue.name, notes, ttl=WEEK)
    assert len(await queue.store.progress(queue.name, [each.job_id for each in notes])) == 1_200
    assert [each.text for each in await queue.log("job-1199")] == ["1199"] * 3
    assert [each.text for each in await queue.log("long", limit=3_000)] == [f"{n}" for n in range(2_500)]


async def test_nothing_noted_is_nothing(queue: Queue) -> None:
    await queue.store.note(queue.name, [], ttl=WEEK)
    assert await queue.store.progress(queue.name, []) == {}


@pytest.mark.parametrize(("after", "limit"), [(-1, 5), (0, 0)])
async def test_lines_that_cannot_be_are_refused(queue: Queue, after: int, limit: int) -> None:
    with pytest.raises(ConfigurationError, match="lines"):
        await queue.log("a", after=after, limit=limit)


# -- from handlers


async def test_handlers_say_how_far_they_are_from_coroutines_and_threads(queue: Queue) -> None:
    worker = make_worker(queue)
    seen: dict[str, object] = {}
    let_go = threading.Event()

    @worker.handler("slow")
    async def slow(job: Job) -> None:
        for done in range(5):
            job.progress({"done": done, "of": 5})
        job.log("half way")

        async def known() -> bool:
            progress = await queue.progress(job.id)
            return progress is not None and progress.value == {"done": 4, "of": 5}

        await eventually(known)  # while it runs
        seen["while"] = [each.text for each in await queue.log(job.id)]
        let_go.set()

    @worker.handler("plain")
    def plain(job: Job) -> None:
        let_go.wait(10)
        job.progress(0.5)
        for number in range(3):
            job.log(number)

    coroutine, thread = await queue.add("slow"), await queue.add("plain")
    await within(worker.run(until_empty=True, signals=False))
    assert seen["while"] == ["half way"]
    assert [each.text for each in await queue.log(coroutine)] == ["half way"]
    progress = await queue.progress(thread)
    assert progress is not None
    assert progress.value == 0.5
    assert [(each.text, each.attempt) for each in await queue.log(thread)] == [("0", 1), ("1", 1), ("2", 1)]


async def test_what_was_said_is_in_the_store_when_the_outcome_is(queue: Queue, clock: VirtualClock) -> None:
    worker = make_worker(queue)

    @worker.handler("job")
    async def job(job: Job) -> None:
        job.log(f"run {job.attempt}")
        if job.attempt == 1:
            raise RuntimeError("not yet")

    job_id = await queue.add("job")
    await worker.step()
    assert [each.text for each in await queue.log(job_id)] == ["run 1"]
    clock.advance(DAY)
    await worker.step()
    assert [(each.text, each.attempt) for each in await queue.log(job_id)] == [("run 1", 1), ("run 2", 2)]


@pytest.mark.parametrize(("value", "error"), [(object(), EncodeError), ("x" * 70_000, OversizeError)])
async def test_progress_that_cannot_be_kept_is_an_error_of_the_handler(
    queue: Queue, value: object, error: type[Exception]
) -> None:
    taker = NoteTaker(queue.store, queue.name, ttl=WEEK)
    with pytest.raises(error, match="the progress of job j-1"):
        taker.notebook("j-1", 1).progress(value)
    await taker.write()
    assert await queue.progress("j-1") is None


async def test_what_is_said_has_its_limits(queue: Queue) -> None:
    taker = NoteTaker(queue.store, queue.name, ttl=WEEK)
    notebook = taker.notebook("j-1", 1)
    notebook.log("x" * 100_000)
    notebook.log("half a pair: \ud800")
    for number in range(2 * MAX_LINES):
        notebook.log(str(number))
    await taker.write()
    lines = [each.text for each in await queue.log("j-1", limit=5_000)]
    assert len(lines) == MAX_LINES
    assert lines[0] == "x" * MAX_LINE_CHARACTERS + " …"
    assert lines[1] == "half a pair: \\ud800"
    assert "the rest is not kept" in lines[-1]


async def test_without_the_store_notes_wait_for_it(
    queue: Queue, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    taker = NoteTaker(queue.store, queue.name, ttl=WEEK)
    write = queue.store.note
    fails = True

    async def note(name: str, notes: list[Note], *, ttl: timedelta) -> None:
        if fails:
            notebook.progress(2)
            notebook.log("meanwhile")
            raise StoreUnavailableError("down")
        await write(name, notes, ttl=ttl)

    monkeypatch.setattr(queue.store, "note", note)
    notebook = taker.notebook("j-1", 1)
    notebook.progress(1)
    notebook.log("before")
    await taker.write()
    assert "cannot be written: down" in caplog.text
    notebook.log("after")
    fails = False
    await taker.write()
    assert [each.text for each in await queue.log("j-1")] == ["before", "meanwhile", "after"]
    progress = await queue.progress("j-1")
    assert progress is not None
    assert progress.value == 2


def test_a_job_without_a_worker_says_things_to_nobody(clock: VirtualClock) -> None:
    job = Job(
        id="a",
        name="n",
        payload=None,
        headers={},
        queue="q",
        attempt=1,
        deliveries=1,
        priority=0,
        created_at=clock.now(),
        expires_at=None,
        worker="w",
    )
    job.progress(1)
    job.log("nothing")
