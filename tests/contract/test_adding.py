"""Adding jobs: what is kept of them, and what is refused before anything is written."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from remuda import (
    ConfigurationError,
    EncodeError,
    InvalidJobError,
    NewJob,
    OversizeError,
    PayloadFormat,
    Queue,
    QueueClosedError,
    State,
)
from remuda.clock import VirtualClock
from tests.contract.workbench import (
    DAY,
    HOUR,
    MINUTE,
    QUEUE,
    fetch,
    fetch_one,
    make_worker,
    record_of,
    trail,
)

HEADERS = {
    "text": "plain",
    "unicode": "Zürich 🐎 Ω",
    "escapes": 'quote " back \\ slash \n line \x00 nul \x1f',
    "number": 42,
    "negative": -(2**53),
    "fraction": 0.1,
    "yes": True,
    "no": False,
    "nothing": None,
    "": "an empty key",
}


async def test_payload_headers_and_options_come_back_as_they_were_given(
    queue: Queue, clock: VirtualClock
) -> None:
    payload = {"list": [1, 2.5, None, "x"], "bytes": b"\x00\xff", "big": 2**63, "text": "\x00🐎"}
    job_id = await queue.add("greet", payload, headers=HEADERS, priority=-1, expires_in=DAY, delay=HOUR)

    waiting = await record_of(queue, job_id)
    assert waiting.value() == payload
    assert waiting.headers == HEADERS
    assert (waiting.name, waiting.queue, waiting.priority) == ("greet", QUEUE, -1)
    assert waiting.expires_at == clock.now() + DAY
    assert waiting.next_attempt_at == clock.now() + HOUR
    assert waiting.created_at == clock.now()
    assert not waiting.foreign

    clock.advance(HOUR)
    worker = make_worker(queue)
    seen: list[tuple[Any, Any]] = []

    @worker.handler("greet")
    async def greet(job: Any) -> None:
        seen.append((job.payload, job.headers))

    await worker.step()
    assert seen == [(payload, HEADERS)]
    ended = await record_of(queue, job_id)
    assert (ended.value(), ended.headers) == (payload, HEADERS)


async def test_a_json_queue_writes_json_and_says_so(store_url: str) -> None:
    async with Queue(QUEUE, store_url, payload_format=PayloadFormat.JSON) as queue:
        job_id = await queue.add("greet", {"to": "a"}, headers={"mine": 1})
        record = await record_of(queue, job_id)
    assert record.payload == b'{"to":"a"}'
    assert record.headers == {"mine": 1, "content-type": "application/json"}
    assert record.value() == {"to": "a"}


async def test_both_formats_are_read_from_one_queue(queue: Queue) -> None:
    json_queue = Queue(QUEUE, queue.store, payload_format="json")
    await queue.add("greet", {"n": 1})
    await json_queue.add("greet", {"n": 2})
    worker = make_worker(queue)
    seen: list[Any] = []

    @worker.handler("greet")
    async def greet(payload: Any) -> None:
        seen.append(payload)

    await worker.step()
    assert sorted(each["n"] for each in seen) == [1, 2]


async def test_a_moment_in_any_time_zone_is_the_same_moment(queue: Queue, clock: VirtualClock) -> None:
    moment = (clock.now() + HOUR).astimezone(timezone(timedelta(hours=-7)))
    job_id = await queue.add("greet", next_attempt_at=moment)
    assert (await record_of(queue, job_id)).next_attempt_at == clock.now() + HOUR


async def test_a_future_job_is_not_delivered_before_its_time(queue: Queue, clock: VirtualClock) -> None:
    by_delay = await queue.add("greet", delay=HOUR)
    by_moment = await queue.add("greet", next_attempt_at=clock.now() + 2 * HOUR)
    assert await fetch(queue) == []
    clock.advance(HOUR - timedelta(microseconds=1))
    assert await fetch(queue) == []
    clock.advance(timedelta(microseconds=1))
    assert [each.id for each in await fetch(queue)] == [by_delay]
    clock.advance(HOUR)
    assert [each.id for each in await fetch(queue)] == [by_moment]


async def test_many_adds_at_once_are_all_added(queue: Queue) -> None:
    ids = await asyncio.gather(*(queue.add("greet", n) for n in range(200)))
    assert len(set(ids)) == 200
    assert (await queue.stats()).pending == 200


async def test_an_add_under_way_is_finished_by_close(store_url: str) -> None:
    queue = Queue(QUEUE, store_url)
    await queue.open()
    adding = [asyncio.create_task(queue.add("greet", n)) for n in range(5)]
    await asyncio.sleep(0)
    await queue.close()
    ids = await asyncio.wait_for(asyncio.gather(*adding), 10)
    async with Queue(QUEUE, store_url) as again:
        assert sorted(each.id for each in await again.jobs()) == sorted(ids)


async def test_ids_are_given_in_the_order_of_the_jobs(queue: Queue) -> None:
    ids = await queue.add_many([NewJob("a"), NewJob("b", job_id="mine"), NewJob("c")])
    assert [(await record_of(queue, each)).name for each in ids] == ["a", "b", "c"]
    assert ids[1] == "mine"


async def test_a_mix_of_options_travels_in_one_batch(queue: Queue, clock: VirtualClock) -> None:
    ids = await queue.add_many(
        [
            NewJob("a", 1),
            NewJob("b", 2, delay=MINUTE),
            NewJob("c", 3, priority=2, headers={"h": "x"}),
            NewJob("d", 4, expires_in=HOUR, job_id="mine", unique_for=HOUR),
        ]
    )
    records = [await record_of(queue, each) for each in ids]
    assert [each.value() for each in records] == [1, 2, 3, 4]
    assert [each.priority for each in records] == [0, 0, 2, 0]
    assert [each.headers for each in records] == [{}, {}, {"h": "x"}, {}]
    assert [each.next_attempt_at == clock.now() for each in records] == [True, False, True, True]
    assert [each.expires_at for each in records] == [None, None, None, clock.now() + HOUR]


NAIVE = datetime(2031, 1, 1)  # noqa: DTZ001 - that is the point
BAD_JOBS: dict[str, tuple[NewJob, type[Exception]]] = {
    "empty name": (NewJob(""), InvalidJobError),
    "NUL in the name": (NewJob("a\x00b"), InvalidJobError),
    "control character in the name": (NewJob("a\tb"), InvalidJobError),
    "line break in the name": (NewJob("a\nb"), InvalidJobError),
    "blank at the end of the name": (NewJob("a "), InvalidJobError),
    "over-long name": (NewJob("n" * 256), InvalidJobError),
    "name over-long in bytes": (NewJob("é" * 128), InvalidJobError),
    "lone surrogate in the name": (NewJob("\ud800"), InvalidJobError),
    "NUL in the id": (NewJob("a", job_id="a\x00b"), InvalidJobError),
    "empty id": (NewJob("a", job_id=""), InvalidJobError),
    "over-long id": (NewJob("a", job_id="i" * 256), InvalidJobError),
    "blank at the end of the id": (NewJob("a", job_id="i "), InvalidJobError),
    "priority too high": (NewJob("a", priority=3), InvalidJobError),
    "priority too low": (NewJob("a", priority=-3), InvalidJobError),
    "priority not a number": (NewJob("a", priority="1"), InvalidJobError),  # type: ignore[arg-type]
    "naive next_attempt_at": (NewJob("a", next_attempt_at=NAIVE), InvalidJobError),
    "naive expires_at": (NewJob("a", expires_at=NAIVE), InvalidJobError),
    "negative delay": (NewJob("a", delay=timedelta(seconds=-1)), InvalidJobError),
    "both delay and moment": (
        NewJob("a", delay=HOUR, next_attempt_at=datetime(2031, 1, 1, tzinfo=UTC)),
        InvalidJobError,
    ),
    "centuries away": (NewJob("a", next_attempt_at=datetime(2300, 1, 1, tzinfo=UTC)), InvalidJobError),
    "unique_for without an id": (NewJob("a", unique_for=HOUR), InvalidJobError),
    "retry that cannot be stored": (NewJob("a", retry=lambda n, e: None), InvalidJobError),  # type: ignore[arg-type]
    "payload that cannot be encoded": (NewJob("a", object()), EncodeError),
    "number beyond 64 bits": (NewJob("a", 2**64), EncodeError),
    "payload too large": (NewJob("a", b"x" * 2_000), OversizeError),
    "headers that are nested": (NewJob("a", headers={"h": [1]}), EncodeError),
    "headers with a number as key": (NewJob("a", headers={1: "x"}), EncodeError),  # type: ignore[dict-item]
    "headers too large": (NewJob("a", headers={"h": "x" * 70_000}), OversizeError),
    "lone surrogate in a header": (NewJob("a", headers={"h": "\ud800"}), EncodeError),
    "not a job": ({"name": "a"}, InvalidJobError),  # type: ignore[dict-item]
}


async def test_one_bad_job_in_a_batch_is_refused_and_nothing_is_written(store_url: str) -> None:
    async with Queue(QUEUE, store_url, max_payload_bytes=1_000) as queue:
        for what, (bad, error) in BAD_JOBS.items():
            with pytest.raises(error):
                await queue.add_many([NewJob("good"), bad, NewJob("good")])
            assert (await queue.stats()).total == 0, what
        assert await trail(queue) == []


async def test_names_at_the_limit_are_taken_as_they_are(queue: Queue) -> None:
    for name in ("n" * 255, "é" * 127, "🐎" * 63, "with blanks in it", "a/b:c%d_e'f\"g\\h"):
        job_id = await queue.add(name)
        await queue.add_unique("job", None, job_id=name)
        assert (await record_of(queue, job_id)).name == name
        assert (await record_of(queue, name)).id == name


async def test_names_that_differ_by_case_or_accent_are_different(store_url: str) -> None:
    async with Queue("jobs", store_url) as lower, Queue("JOBS", lower.store) as upper:
        for job_id in ("a", "A", "é", "e", "e\u0301"):
            assert (await lower.add_unique("job", None, job_id=job_id)).new
        assert (await lower.stats()).pending == 5
        assert (await upper.stats()).pending == 0
        assert await upper.get("a") is None
        assert (await record_of(lower, "A")).id == "A"


@pytest.mark.parametrize("name", ["", "a\x00b", "a\nb", " a", "q" * 256, "\ud800"])
def test_a_queue_with_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError):
        Queue(name, "sqlite://")


async def test_a_closed_queue_refuses_everything(store_url: str) -> None:
    queue = Queue(QUEUE, store_url)
    job_id = await queue.add("greet")
    await queue.close()
    calls = [
        queue.add("greet"),
        queue.add_unique("greet", job_id="x"),
        queue.add_many([NewJob("greet")]),
        queue.stats(),
        queue.get(job_id),
        queue.jobs(),
        queue.pause(),
        queue.resume(),
        queue.purge(),
        queue.prune(),
        queue.dead.count(),
        queue.dead.peek(),
        queue.dead.replay(),
        queue.dead.drop(),
    ]
    for call in calls:
        with pytest.raises(QueueClosedError):
            await call
    async with Queue(QUEUE, store_url) as again:
        assert [each.id for each in await again.jobs()] == [job_id]


async def test_adding_nothing_writes_nothing(queue: Queue) -> None:
    assert await queue.add_many([]) == []
    assert await trail(queue) == []


async def test_a_delivery_carries_what_a_handler_needs(queue: Queue, clock: VirtualClock) -> None:
    created = clock.now()
    job_id = await queue.add("greet", {"n": 1}, headers={"h": 1}, priority=1, expires_in=HOUR)
    clock.advance(MINUTE)
    delivery = await fetch_one(queue)
    assert (delivery.id, delivery.name, delivery.priority) == (job_id, "greet", 1)
    assert (delivery.attempts, delivery.deliveries) == (0, 1)
    assert (delivery.created_at, delivery.next_attempt_at) == (created, created)
    assert delivery.acquired_at == clock.now()
    assert delivery.expires_at == created + HOUR
    assert delivery.first_attempt_at is None
    assert (await record_of(queue, job_id)).state is State.PROCESSING
