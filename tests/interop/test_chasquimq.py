"""ChasquiMQ's released package and Remuda on the same queue: each takes what the other has written."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
import redis

from remuda import Constant, Exponential, Job, NewJob, NoRetry, Queue, UnrecoverableError, Worker
from tests.faults.waiting import until
from tests.interop.conftest import ChasquiMQ, Running
from tests.redis_servers import RedisServer

pytestmark = pytest.mark.interop

QUICK = timedelta(milliseconds=50)
LATER = timedelta(hours=1)
AT_ONCE = {"kind": "fixed", "delay_ms": 1, "jitter_ms": 0}
CREATED_AT = re.compile(rb"\xcf\x00\x00\x01[\x80-\xff].{4}", re.DOTALL)  # the milliseconds of this decade
STREAM, DELAYED, DLQ = ("{chasqui:shared}:" + key for key in ("stream", "delayed", "dlq"))


@pytest.fixture
async def queue(redis8_url: str) -> AsyncIterator[Queue]:
    """A queue that others read along."""
    async with Queue("shared", redis8_url) as queue:
        yield queue


@asynccontextmanager
async def working(queue: Queue, **options: Any) -> AsyncIterator[list[Job]]:
    """A worker of ours that does what a job's payload wishes, as `chasquimq_program` does; what it began."""
    worker = Worker(queue, **{"max_fetch_interval": QUICK, "release_stuck_interval": QUICK, **options})
    begun: list[Job] = []

    @worker.handler()
    async def handle(job: Job) -> Any:
        begun.append(job)
        wish = job.payload if isinstance(job.payload, dict) else {}
        await asyncio.sleep(wish.get("hold_s", 0))
        if wish.get("fail", 0) >= job.attempt:
            raise ValueError("as it was asked to")
        if wish.get("hopeless"):
            raise UnrecoverableError("as it was asked to")
        return wish.get("returns")

    running = asyncio.create_task(worker.run(signals=False))
    try:
        yield begun
    finally:
        worker.stop()
        await running


async def their(chasquimq: ChasquiMQ, do: str, **request: Any) -> Running:
    """One of their programs, run to its end."""
    return await asyncio.to_thread(chasquimq.run, do, **request)


async def they_add(chasquimq: ChasquiMQ, *jobs: dict[str, Any]) -> list[str]:
    """Jobs that their program adds one by one; the ids."""
    program = await their(chasquimq, "add", jobs=list(jobs))
    return [said["id"] for said in program.said("added")]


@asynccontextmanager
async def them_working(chasquimq: ChasquiMQ, **options: Any) -> AsyncIterator[Running]:
    """A worker of theirs, at work; it ends in order, unless it has ended before."""
    worker = chasquimq.start("work", options=options)
    yield worker
    if worker.process.poll() is None:
        await asyncio.to_thread(worker.stop)


async def nothing_lives(queue: Queue) -> bool:
    return (await queue.stats()).live == 0


def begun_by(worker: Running) -> list[tuple[str, int]]:
    """The ids that their worker has begun, each with the number of the run, from 1 as ours."""
    return [(said["id"], said["attempt"] + 1) for said in worker.said("start")]


# -- adding and running


async def test_a_worker_runs_what_chasquimq_adds(queue: Queue, chasquimq: ChasquiMQ) -> None:
    payloads = [{"to": "ä@example.org", "items": [1, 2.5, None, -7, 2**63]}, "text", None, []]
    program = await their(
        chasquimq,
        "add",
        jobs=[
            *({"name": f"n{number}", "data": payload} for number, payload in enumerate(payloads)),
            {"name": "", "data": "nameless"},
            {"name": "sénd", "data": "own id", "job_id": "order/42"},
            {"name": "later", "data": "later", "delay_ms": 1_000},
        ],
        bulk=[{"name": "bulk", "data": number} for number in range(100)],
    )
    ids = [said["id"] for said in program.said("added")]

    async with working(queue) as begun:
        await until(lambda: len(begun) == 107, "all jobs are run")
        await until(lambda: nothing_lives(queue), "all outcomes are written")

    assert sorted(job.id for job in begun) == sorted(ids)
    assert {(job.attempt, job.deliveries) for job in begun} == {(1, 1)}
    by_name = {job.name: job.payload for job in begun if job.name != "bulk"}
    expected = {f"n{number}": payload for number, payload in enumerate(payloads)}
    assert by_name == {**expected, "": "nameless", "sénd": "own id", "later": "later"}
    assert sorted(job.payload for job in begun if job.name == "bulk") == list(range(100))


async def test_chasquimq_runs_what_a_queue_adds(queue: Queue, chasquimq: ChasquiMQ) -> None:
    payloads = [{"to": "ä@example.org", "items": [1, 2.5, None, -7, 2**63]}, "text", None, []]
    ids = [await queue.add(f"n{number}", payload) for number, payload in enumerate(payloads)]
    ids.append(await queue.add("headed", "headed", headers={"trace": "t-1"}, expires_in=LATER))
    ids.append((await queue.add_unique("own id", "own id", job_id="order/42")).id)
    ids.append(await queue.add("later", "later", delay=timedelta(seconds=1)))
    ids += await queue.add_many([NewJob("bulk", number) for number in range(100)])

    async with them_working(chasquimq) as worker:
        await until(lambda: len(worker.said("end")) == 107, "all jobs are run")

    assert sorted(begun_by(worker)) == sorted((job_id, 1) for job_id in ids)
    by_name = {said["name"]: said["data"] for said in worker.said("start") if said["name"] != "bulk"}
    expected = {f"n{number}": payload for number, payload in enumerate(payloads)}
    assert by_name == {**expected, "headed": "headed", "own id": "own id", "later": "later"}
    assert await nothing_lives(queue)
    assert await queue.dead.count() == {}


async def test_both_work_on_one_queue_and_every_job_runs_once(queue: Queue, chasquimq: ChasquiMQ) -> None:
    async with them_working(chasquimq, concurrency=10, read_count=10) as worker:
        await queue.add("first", {"number": 0})
        await until(lambda: worker.said("end"), "ChasquiMQ is at work")
        async with working(queue, concurrency=10, fetch_batch_size=10) as begun:
            payloads = [{"number": number, "hold_s": 0.005} for number in range(1_101)]
            ours = [NewJob("ours", payload) for payload in payloads[1:501]]
            theirs = [{"name": "theirs", "data": payload} for payload in payloads[501:1_001]]
            late = [NewJob("ours", payload, delay=QUICK) for payload in payloads[1_001:]]
            await asyncio.gather(their(chasquimq, "add", bulk=theirs), queue.add_many([*ours, *late]))
            await until(lambda: len(begun) + len(worker.said("start")) >= 1_101, "all are begun", within_s=60)
            await until(lambda: nothing_lives(queue), "all are done")

    run_here = [job.payload["number"] for job in begun]
    run_there = [said["data"]["number"] for said in worker.said("start")]
    assert sorted(run_here + run_there) == list(range(1_101))
    assert run_here
    assert len(run_there) > 1


async def test_a_job_of_ours_and_the_same_one_of_theirs_are_the_same_bytes(
    queue: Queue, chasquimq: ChasquiMQ, redis8_server: RedisServer
) -> None:
    payload = {"to": "ä@example.org", "items": [1, 2.5, None, -7]}
    policy = Exponential(
        initial=timedelta(seconds=1),
        cap=timedelta(seconds=5),
        jitter=timedelta(milliseconds=10),
        max_attempts=4,
    )
    backoff = {
        "kind": "exponential",
        "delay_ms": 1_000,
        "max_delay_ms": 5_000,
        "multiplier": 2.0,
        "jitter_ms": 10,
    }
    theirs = {"name": "send", "data": payload}
    with redis8_server.client() as client:
        await they_add(
            chasquimq,
            {**theirs, "job_id": "plain"},
            {**theirs, "job_id": "retried", "attempts": 4, "backoff": backoff},
            {**theirs, "job_id": "later", "delay_ms": 3_600_000},
        )
        written = _written(client)
        client.flushall()
        await queue.add_many(
            [
                NewJob("send", payload, job_id="plain"),
                NewJob("send", payload, job_id="retried", retry=policy),
                NewJob("send", payload, job_id="later", delay=LATER),
            ]
        )
        assert _written(client) == written
        assert len(written) == 3


def _written(client: redis.Redis) -> list[list[Any]]:
    """The waiting jobs as they lie on the wire, without the moments at which they were added."""
    entries = [fields for _, fields in client.xrange(STREAM)]
    members = client.zrange(DELAYED, 0, -1)
    return [
        [CREATED_AT.sub(b"", part) for part in found] for found in (*(e.values() for e in entries), members)
    ]


# -- leases


async def test_a_slow_handler_of_ours_is_not_run_a_second_time_by_chasquimq(
    queue: Queue, chasquimq: ChasquiMQ
) -> None:
    """Their workers take what has been idle for a while, 30 s unless told otherwise, from anyone."""
    renew_within = (await queue.open()).renew_within
    assert renew_within is not None
    assert renew_within < timedelta(seconds=30)
    slow = [await queue.add("slow", {"hold_s": 2.5}) for _ in range(2)]
    async with working(queue, concurrency=1, release_stuck_timeout=timedelta(seconds=1)) as begun:
        await until(lambda: begun, "the first one has begun")
        async with them_working(chasquimq, claim_min_idle_ms=1_500) as worker:
            await until(lambda: worker.said("working"), "ChasquiMQ is at work")
            extra = await queue.add("quick", {})
            await until(lambda: nothing_lives(queue), "all are done")

    run_here, run_there = [job.id for job in begun], [job_id for job_id, _ in begun_by(worker)]
    assert sorted(run_here + run_there) == sorted([*slow, extra])


async def test_a_job_in_a_killed_program_of_theirs_is_taken_over(queue: Queue, chasquimq: ChasquiMQ) -> None:
    job_id = await queue.add("stuck", {"hold_s": 2})
    async with them_working(chasquimq) as worker:
        await until(lambda: worker.said("start"), "ChasquiMQ has the job")
        worker.kill()

    async with working(queue, release_stuck_timeout=timedelta(seconds=1)) as begun:
        await until(lambda: len(begun) == 1, "the worker has it")
        await until(lambda: nothing_lives(queue), "it is done")

    assert [(job.id, job.attempt, job.deliveries) for job in begun] == [(job_id, 1, 2)]


async def test_a_job_whose_worker_of_ours_froze_is_taken_over_by_theirs_and_its_late_outcome_is_refused(
    queue: Queue, chasquimq: ChasquiMQ
) -> None:
    job_id = await queue.add("stuck", {})
    store = queue.store
    (late,) = await store.fetch("shared", limit=1, lease=QUICK, who="a worker that freezes")

    async with them_working(chasquimq, claim_min_idle_ms=200) as worker:
        await until(lambda: worker.said("end"), "ChasquiMQ has claimed and run it")
    assert begun_by(worker) == [(job_id, 1)]

    assert await store.extend("shared", [late], lease=LATER) == [late]
    assert await nothing_lives(queue)


# -- delayed and unique jobs


async def test_each_cancels_what_the_other_has_delayed(queue: Queue, chasquimq: ChasquiMQ) -> None:
    theirs = await they_add(
        chasquimq,
        {"name": "named", "data": 1, "delay_ms": 3_600_000, "job_id": "theirs"},
        {"name": "unnamed", "data": 1, "delay_ms": 3_600_000},
    )
    ours = [
        await queue.add("unnamed", 1, delay=LATER),
        (await queue.add_unique("named", 1, job_id="ours", delay=LATER)).id,
    ]
    assert (await queue.stats()).delayed == 4

    program = await their(chasquimq, "cancel", ids=[*ours, "nobody's"])
    assert [said["removed"] for said in program.said("cancelled")] == [True, True, False]
    assert sorted(await queue.cancel(*theirs, *ours)) == sorted(theirs)

    assert await nothing_lives(queue)
    # A cancelled id is free again, for both.
    assert (await queue.add_unique("again", 1, job_id="theirs", delay=LATER)).new
    await they_add(chasquimq, {"name": "again", "data": 1, "delay_ms": 3_600_000, "job_id": "ours"})
    assert (await queue.stats()).delayed == 2


async def test_an_id_that_one_has_delayed_is_taken_for_the_other(queue: Queue, chasquimq: ChasquiMQ) -> None:
    await they_add(chasquimq, {"name": "theirs", "data": 1, "delay_ms": 3_600_000, "job_id": "a"})
    await queue.add_unique("ours", 1, job_id="b", delay=LATER)
    await queue.add_unique("ours", 1, job_id="c")

    assert not (await queue.add_unique("ours", 2, job_id="a")).new
    assert not (await queue.add_unique("ours", 2, job_id="a", delay=LATER)).new
    again = [{"name": "theirs", "data": 2, "delay_ms": 3_600_000, "job_id": job_id} for job_id in "abc"]
    await they_add(chasquimq, *again)

    assert sorted((job.id, job.value()) for job in await queue.jobs()) == [("a", 1), ("b", 1), ("c", 1)]


async def test_an_id_is_free_again_when_chasquimq_has_run_its_job(queue: Queue, chasquimq: ChasquiMQ) -> None:
    assert (await queue.add_unique("ours", 1, job_id="order/42")).new
    async with them_working(chasquimq) as worker:
        await until(lambda: worker.said("end"), "ChasquiMQ has run it")
    await until(lambda: nothing_lives(queue), "it is gone")

    assert (await queue.add_unique("ours", 2, job_id="order/42")).new
    assert not (await queue.add_unique("ours", 3, job_id="order/42")).new


# -- retries


async def test_a_worker_honours_the_attempts_and_the_backoff_that_chasquimq_gave_a_job(
    queue: Queue, chasquimq: ChasquiMQ
) -> None:
    twice, once, many = await they_add(
        chasquimq,
        {"name": "twice", "data": {"fail": 9}, "attempts": 2, "backoff": AT_ONCE},
        {"name": "once", "data": {"fail": 9}, "attempts": 1},
        {"name": "many", "data": {"fail": 4}, "attempts": 5, "backoff": AT_ONCE},
    )

    async with working(queue, retry=Constant(every=LATER, max_attempts=3)) as begun:
        await until(lambda: nothing_lives(queue), "all have ended")

    runs = {name: [job.attempt for job in begun if job.name == name] for name in ("twice", "once", "many")}
    assert runs == {"twice": [1, 2], "once": [1], "many": [1, 2, 3, 4, 5]}
    dead = {letter.id: (letter.reason, letter.attempts) for letter in await queue.dead.peek()}
    assert dead == {twice: ("retries_exhausted", 2), once: ("retries_exhausted", 1)}
    assert many not in dead


async def test_chasquimq_honours_the_retry_policy_that_a_job_of_ours_has(
    queue: Queue, chasquimq: ChasquiMQ
) -> None:
    soon = Constant(every=timedelta(milliseconds=1), max_attempts=2)
    twice = await queue.add("twice", {"fail": 9}, retry=soon)
    once = await queue.add("once", {"fail": 9}, retry=NoRetry())
    many = await queue.add(
        "many", {"fail": 4}, retry=Constant(every=timedelta(milliseconds=1), max_attempts=5)
    )
    paced = await queue.add("paced", {"fail": 1}, retry=Constant(every=LATER, max_attempts=5))

    async with them_working(chasquimq, max_attempts=3) as worker:
        await until(lambda: len(worker.said("start")) >= 9, "all runs but the last are begun")
        await until(lambda: _is_retryable(queue, paced), "only the slow one is left")

    runs = begun_by(worker)
    assert [run for job_id, run in runs if job_id == twice] == [1, 2]
    assert [run for job_id, run in runs if job_id == once] == [1]
    assert [run for job_id, run in runs if job_id == many] == [1, 2, 3, 4, 5]
    assert [run for job_id, run in runs if job_id == paced] == [1]
    dead = {letter.id: letter.reason for letter in await queue.dead.peek()}
    assert dead == {twice: "retries_exhausted", once: "retries_exhausted"}


async def _is_retryable(queue: Queue, job_id: str) -> bool:
    """Whether it is the only one that lives, and waits for its second run in an hour."""
    live = await queue.jobs()
    if [job.id for job in live if job.ended_at is None] != [job_id]:
        return False
    (record,) = (job for job in live if job.id == job_id)
    return record.next_attempt_at is not None and record.next_attempt_at - queue.store.now() > LATER / 2


async def test_a_retry_begun_by_one_is_continued_by_the_other(queue: Queue, chasquimq: ChasquiMQ) -> None:
    """The attempts go on counting, and headers outlive a run by a program that does not know of them."""
    soon = Constant(every=timedelta(seconds=1), max_attempts=5)
    ours = await queue.add("ours", {"fail": 2}, retry=soon, headers={"trace": "t-1"})
    async with them_working(chasquimq) as worker:
        await until(lambda: worker.said("start"), "the first run is ChasquiMQ's")
        await until(lambda: _waits_for_its_retry(queue), "it failed there")
        worker.kill()

    async with working(queue) as begun:
        await until(lambda: begun, "the second run is ours")
        await until(lambda: _waits_for_its_retry(queue), "it failed here")
    async with them_working(chasquimq) as other:
        await until(lambda: other.said("end"), "the third run is ChasquiMQ's, and succeeds")

    assert begun_by(worker) == [(ours, 1)]
    assert [(job.id, job.attempt, job.headers.get("trace")) for job in begun] == [(ours, 2, "t-1")]
    assert begun_by(other) == [(ours, 3)]
    assert await nothing_lives(queue)


async def _waits_for_its_retry(queue: Queue) -> bool:
    stats = await queue.stats()
    return stats.processing == 0 and stats.live == 1


# -- dead letters


async def test_dead_letters_of_chasquimq_are_counted_filtered_and_replayed(
    queue: Queue, chasquimq: ChasquiMQ, redis8_server: RedisServer
) -> None:
    hopeless, worn_out, too_big = await they_add(
        chasquimq,
        {"name": "hopeless", "data": {"hopeless": True}},
        {"name": "worn out", "data": {"fail": 2}, "attempts": 2, "backoff": AT_ONCE},
        {"name": "too big", "data": {"text": "x" * 2_000}},
    )
    with redis8_server.client() as client:
        client.xadd(STREAM, {"d": b"\xc1", "n": "no envelope"})
        client.xadd(STREAM, {"n": "no d"})
        async with them_working(chasquimq, max_payload_bytes=1_000):
            await until(lambda: client.xlen(DLQ) == 5, "all of them are dead")

    assert await queue.dead.count() == {
        "unrecoverable": 1,
        "retries_exhausted": 1,
        "oversize": 1,
        "decode_fail": 1,
        "malformed": 1,
    }
    (letter,) = await queue.dead.peek(reason="oversize")
    assert (letter.id, letter.name, letter.value()) == (too_big, "too big", {"text": "x" * 2_000})
    (letter,) = await queue.dead.peek(name="worn out")
    assert (letter.id, letter.reason, letter.value()) == (worn_out, "retries_exhausted", {"fail": 2})

    assert (await queue.dead.replay(reason="oversize")).ids == [too_big]
    assert (await queue.dead.replay(ids=[worn_out])).ids == [worn_out]
    async with working(queue) as begun:
        await until(lambda: nothing_lives(queue), "they have run")
    # The attempts begin anew, and the job's own policy is still with it.
    assert [(job.id, job.attempt) for job in begun if job.id == too_big] == [(too_big, 1)]
    assert [job.attempt for job in begun if job.id == worn_out] == [1, 2]
    assert {letter.id for letter in await queue.dead.peek(reason="unrecoverable")} == {hopeless}


async def test_dead_letters_of_ours_are_seen_and_replayed_by_chasquimq(
    queue: Queue, chasquimq: ChasquiMQ
) -> None:
    hopeless = await queue.add("hopeless", {"hopeless": True}, headers={"trace": "t-1"})
    worn_out = await queue.add("worn out", {"fail": 1}, retry=NoRetry())
    async with working(queue):
        await until(lambda: nothing_lives(queue), "both are dead")

    program = await their(chasquimq, "peek")
    letters = {said["name"]: said["reason"] for said in program.said("letter")}
    assert letters == {"hopeless": "unrecoverable", "worn out": "retries_exhausted"}
    program = await their(chasquimq, "replay")
    assert [said["count"] for said in program.said("replayed")] == [2]
    assert await queue.dead.count() == {}
    assert sorted(job.id for job in await queue.jobs(state="PENDING")) == sorted([hopeless, worn_out])

    async with them_working(chasquimq) as worker:
        await until(lambda: _dead(queue, 2), "both are dead again")
    assert sorted(begun_by(worker)) == sorted([(hopeless, 1), (worn_out, 1)])


async def _dead(queue: Queue, count: int) -> bool:
    return (await queue.stats()).failed == count


# -- results and events


async def test_each_reads_the_results_of_the_other(queue: Queue, chasquimq: ChasquiMQ) -> None:
    answer = {"sum": 3, "ü": [1.5, None]}
    there = await queue.add("job", {"returns": answer})
    async with them_working(chasquimq, store_results=True) as worker:
        await until(lambda: worker.said("end"), "ChasquiMQ has run it")
    (here,) = await they_add(chasquimq, {"name": "job", "data": {"returns": answer}})
    async with working(queue, store_results=True):
        await until(lambda: nothing_lives(queue), "the worker has run it")

    result = await queue.result(there)
    assert result is not None
    assert result.value == answer
    program = await their(chasquimq, "results", ids=[here, "nobody's"])
    assert [said["value"] for said in program.said("result")] == [answer, None]


async def test_tools_of_chasquimq_see_the_events_of_our_jobs(redis8_url: str, chasquimq: ChasquiMQ) -> None:
    soon = Constant(every=timedelta(milliseconds=1), max_attempts=2)
    async with Queue("shared", f"{redis8_url}?events=true") as queue, working(queue):
        good = await queue.add("good", {})
        await until(lambda: nothing_lives(queue), "it is done")
        bad = await queue.add("bad", {"fail": 9}, retry=soon)
        await until(lambda: nothing_lives(queue), "it is dead")

    wanted = {good: ["active", "completed"]}
    wanted[bad] = ["active", "failed", "retry-scheduled", "waiting", "active", "failed", "dlq"]
    watcher = chasquimq.start("events", count=1_000_000)
    seen = await until(lambda: _enough(watcher, wanted), "every event has come")
    assert seen == wanted
    (dead,) = (said for said in watcher.said("seen") if said["kind"] == "dlq")
    assert (dead["name"], dead["fields"]["attempt"], dead["fields"]["reason"]) == (
        "bad",
        2,
        "retries_exhausted",
    )


def _enough(watcher: Running, wanted: dict[str, list[str]]) -> dict[str, list[str]] | None:
    """The kinds of events of each job, once there are as many as wanted."""
    seen = {
        job_id: [each["kind"] for each in watcher.said("seen") if each["id"] == job_id] for job_id in wanted
    }
    enough = all(len(seen[job_id]) >= len(kinds) for job_id, kinds in wanted.items())
    return seen if enough else None


# -- repeatable jobs


REPEAT = "{chasqui:shared}:repeat"
SPECS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"name": "a", "payload": {"n": 1}, "every": timedelta(seconds=90)},
        {"name": "a", "data": {"n": 1}, "repeat": {"kind": "every", "interval_ms": 90_000}},
    ),
    (
        {"name": "b", "payload": None, "cron": "0 9 * * 1-5", "zone": "Europe/Berlin", "missed": "fire-once"},
        {
            "name": "b",
            "data": None,
            "repeat": {"kind": "cron", "expression": "0 9 * * 1-5", "tz": "Europe/Berlin"},
            "missed": {"kind": "fire-once"},
        },
    ),
    (
        {"name": "c", "payload": ["x"], "cron": "*/5 0 9 * * *", "limit": 7, "missed": "fire-all", "most": 3},
        {
            "name": "c",
            "data": ["x"],
            "limit": 7,
            "repeat": {"kind": "cron", "expression": "*/5 0 9 * * *"},
            "missed": {"kind": "fire-all", "max_catchup": 3},
        },
    ),
]


async def test_specs_are_the_same_bytes(queue: Queue, chasquimq: ChasquiMQ, redis8_url: str) -> None:
    client = redis.Redis.from_url(redis8_url)
    ours = []
    for spec, _ in SPECS:
        put = await queue.repeats.put(**spec)
        ours.append(client.hgetall(f"{REPEAT}:spec:{put.key}"))
    listed = (await their(chasquimq, "repeat")).said("spec")
    assert {each["key"]: each["name"] for each in listed} == {
        each.key: each.spec.name for each in await queue.repeats.list()
    }
    client.flushdb()
    program = await their(chasquimq, "repeat", specs=[spec for _, spec in SPECS])
    keys = [each["key"] for each in program.said("put")]
    assert [client.hgetall(f"{REPEAT}:spec:{key}") for key in keys] == ours
    assert {each.key for each in await queue.repeats.list()} == set(keys)


async def test_each_makes_the_jobs_of_the_others_specs(queue: Queue, chasquimq: ChasquiMQ) -> None:
    often = {"kind": "every", "interval_ms": 100}
    await their(
        chasquimq, "repeat", specs=[{"name": "theirs", "data": {"n": 1}, "repeat": often, "limit": 2}]
    )
    async with working(queue) as begun:
        await until(lambda: len(begun) == 2, "our worker has made two")
    assert {(job.name, str(job.payload)) for job in begun} == {("theirs", "{'n': 1}")}
    assert await queue.repeats.list() == []

    await queue.repeats.put("ours", {"n": 2}, every=timedelta(milliseconds=300), limit=2, missed="fire-all")
    async with them_working(chasquimq) as worker:
        await until(lambda: len(worker.said("end")) == 2, "theirs has made two", within_s=30)
    assert [(said["name"], said["data"]) for said in worker.said("start")] == [("ours", {"n": 2})] * 2


async def test_with_schedulers_of_both_kinds_each_window_fires_once(
    queue: Queue, chasquimq: ChasquiMQ
) -> None:
    await queue.repeats.put("both", every=timedelta(milliseconds=250), limit=12, missed="fire-all")
    async with them_working(chasquimq) as theirs, working(queue) as begun:
        await until(lambda: len(begun) + len(theirs.said("start")) >= 12, "all are begun", within_s=30)
        assert await queue.repeats.list() == []
        await asyncio.sleep(1)  # one that fired twice would show
    assert len(begun) + len(theirs.said("start")) == 12
