"""Handlers: plain and async, typed, injected, wrapped, timed out, in batches."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import pydantic
import pytest

from remuda import AckPolicy, ConfigurationError, Constant, Job, NewJob, NoRetry, Queue, Reason, State
from remuda.clock import VirtualClock
from remuda.message import JobRecord
from tests.contract.workbench import MINUTE, make_worker, record_of


class MailStruct(msgspec.Struct):
    to: str
    copies: int = 1


@dataclass
class MailClass:
    to: str
    copies: int = 1


class MailModel(pydantic.BaseModel):
    to: str
    copies: int = 1


@dataclass
class Fussy:
    to: str

    def __post_init__(self) -> None:
        raise KeyError("neither a ValueError nor a TypeError")


class FussyModel(pydantic.BaseModel):
    to: str

    @pydantic.field_validator("to")
    @classmethod
    def look(cls, value: str) -> str:
        raise KeyError("neither a ValueError nor a TypeError")


class Mailer:
    def __init__(self) -> None:
        self.sent: list[Any] = []


async def test_a_plain_function_runs_in_a_thread_and_its_error_is_its_outcome(queue: Queue) -> None:
    worker = make_worker(queue, retry=NoRetry())
    threads: list[threading.Thread] = []

    @worker.handler("good")
    def good(job: Job) -> None:
        threads.append(threading.current_thread())

    @worker.handler("bad")
    def bad(job: Job) -> None:
        raise ValueError("from a thread")

    good_id, bad_id = await queue.add("good"), await queue.add("bad")
    await worker.step()
    assert threads[0] is not threading.main_thread()
    assert (await record_of(queue, good_id)).state is State.COMPLETED
    record = await record_of(queue, bad_id)
    assert (record.reason, record.error_message) == (Reason.RETRIES_EXHAUSTED, "from a thread")
    assert record.error_trace is not None
    assert "def bad" not in record.error_trace
    assert 'raise ValueError("from a thread")' in record.error_trace
    assert record.error_trace.count('File "') == 1  # none of the worker's own, or the pool's


@pytest.mark.parametrize("kind", [MailStruct, MailClass, MailModel])
async def test_a_typed_payload_is_converted_and_a_mismatch_is_a_dead_letter(queue: Queue, kind: Any) -> None:
    worker = make_worker(queue)
    seen: list[Any] = []

    async def mail(mail: Any) -> None:
        seen.append(mail)

    mail.__annotations__["mail"] = kind
    worker.handler("mail")(mail)
    good = await queue.add("mail", {"to": "a", "copies": 2})
    bad = await queue.add("mail", {"to": 5, "copies": "many"})
    await worker.step()

    assert seen == [kind(to="a", copies=2)]
    assert (await record_of(queue, good)).state is State.COMPLETED
    record = await record_of(queue, bad)
    assert (record.state, record.reason, record.attempts) == (State.FAILED, Reason.DECODE_FAIL, 0)
    assert record.error_message is not None
    assert "'mail'" in record.error_message


async def test_a_value_of_a_type_is_added_as_it_is(queue: Queue) -> None:
    worker = make_worker(queue)
    seen: list[MailStruct] = []

    @worker.handler("mail")
    async def mail(mail: MailStruct) -> None:
        seen.append(mail)

    for payload in (MailStruct("a"), MailClass("b"), MailModel(to="c")):
        await queue.add("mail", payload)
    await worker.step()
    assert sorted(each.to for each in seen) == ["a", "b", "c"]


@pytest.mark.parametrize("kind", [Fussy, FussyModel])
async def test_a_payload_type_that_raises_anything_does_not_end_the_worker(queue: Queue, kind: Any) -> None:
    worker = make_worker(queue, retry=NoRetry())

    async def mail(mail: Any) -> None: ...

    mail.__annotations__["mail"] = kind
    worker.handler("mail")(mail)
    worker.handler("good")(lambda job: None)
    bad, good = await queue.add("mail", {"to": "a"}), await queue.add("good")
    await worker.step()
    assert (await record_of(queue, good)).state is State.COMPLETED
    assert (await record_of(queue, bad)).state is State.FAILED


async def test_parameters_are_filled_by_what_they_are(queue: Queue) -> None:
    worker = make_worker(queue)
    mailer = Mailer()
    worker.provide(Mailer, mailer)

    @worker.handler("all")
    async def everything(mail: MailStruct, job: Job, mailer: Mailer) -> None:
        mailer.sent.append((mail.to, job.name))

    @worker.handler("payload")
    def by_name(payload: Any, mailer: Mailer) -> None:
        mailer.sent.append(payload)

    @worker.handler("nothing")
    async def nothing() -> None:
        mailer.sent.append("nothing")

    @worker.handler("bare")
    async def bare(job):  # type: ignore[no-untyped-def]
        mailer.sent.append(job.payload)

    await queue.add("all", {"to": "a"})
    await queue.add("payload", [1, 2])
    await queue.add("nothing")
    await queue.add("bare", 7)
    await worker.step()
    assert sorted(mailer.sent, key=repr) == sorted([("a", "all"), [1, 2], "nothing", 7], key=repr)
    assert (await queue.stats()).completed == 4


def test_a_parameter_that_nothing_can_fill_is_refused_at_once() -> None:
    worker = make_worker(Queue("orders", "sqlite://"))
    with pytest.raises(ConfigurationError, match="'what'"):

        @worker.handler("a")
        async def unclear(job: Job, what) -> None: ...  # type: ignore[no-untyped-def]


def test_a_second_handler_for_a_name_is_refused() -> None:
    worker = make_worker(Queue("orders", "sqlite://"))
    worker.handler("a")(lambda job: None)
    worker.handler()(lambda job: None)
    with pytest.raises(ConfigurationError, match="'a'"):
        worker.handler("a")(lambda job: None)
    with pytest.raises(ConfigurationError, match="all names"):
        worker.handler()(lambda job: None)


async def test_a_handler_without_a_name_takes_what_no_other_takes(queue: Queue) -> None:
    worker = make_worker(queue)
    taken: list[tuple[str, str]] = []
    worker.handler("a")(lambda job: taken.append(("a", job.name)))
    worker.handler()(lambda job: taken.append(("any", job.name)))
    await queue.add("a")
    await queue.add("b")
    await worker.step()
    assert sorted(taken) == [("a", "a"), ("any", "b")]


async def test_middleware_wraps_in_the_order_of_its_making(queue: Queue) -> None:
    worker = make_worker(queue)
    order: list[str] = []

    def named(name: str) -> Any:
        async def around(job: Job, call_next: Any) -> None:
            order.append(f"{name} before")
            await call_next()
            order.append(f"{name} after")

        return around

    worker.middleware(named("outer"))
    worker.middleware(named("inner"))
    worker.handler("async")(_noting(order))
    await queue.add("async")
    await worker.step()
    assert order == ["outer before", "inner before", "handler", "inner after", "outer after"]


def _noting(order: list[str]) -> Any:
    async def handle(job: Job) -> None:
        order.append("handler")

    return handle


async def test_middleware_may_answer_for_the_handler_and_sees_its_error(queue: Queue) -> None:
    worker = make_worker(queue, retry=NoRetry())
    ran: list[str] = []

    @worker.middleware
    async def guard(job: Job, call_next: Any) -> None:
        if job.name == "skipped":
            job.reject("not today")
            return
        try:
            await call_next()
        except ValueError:
            ran.append("error seen")
            job.ack()

    @worker.handler()
    def anything(job: Job) -> None:
        ran.append(job.name)
        raise ValueError("no")

    skipped, forgiven = await queue.add("skipped"), await queue.add("forgiven")
    await worker.step()
    assert ran == ["forgiven", "error seen"]
    assert (await record_of(queue, skipped)).reason == Reason.REJECTED
    assert (await record_of(queue, forgiven)).state is State.COMPLETED


async def test_a_handler_past_its_time_out_is_cancelled_and_has_failed(queue: Queue) -> None:
    worker = make_worker(queue, retry=NoRetry(), handler_timeout=timedelta(hours=1))
    cancelled: list[str] = []

    @worker.handler("slow", timeout=timedelta(milliseconds=20))
    async def slow(job: Job) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(job.id)
            raise

    job_id = await queue.add("slow")
    await worker.step()
    record = await record_of(queue, job_id)
    assert cancelled == [job_id]
    assert (record.state, record.reason, record.attempts) == (State.FAILED, Reason.RETRIES_EXHAUSTED, 1)
    assert record.error_type is not None
    assert record.error_type.endswith("HandlerTimeoutError")


async def test_a_time_out_of_the_handlers_own_is_told_as_such(queue: Queue) -> None:
    worker = make_worker(queue, retry=NoRetry(), handler_timeout=timedelta(hours=1))

    @worker.handler("slow")
    async def slow(job: Job) -> None:
        raise TimeoutError("the mail server's, not ours")

    job_id = await queue.add("slow")
    await worker.step()
    record = await record_of(queue, job_id)
    assert (record.error_type, record.error_message) == ("TimeoutError", "the mail server's, not ours")


async def by_number(queue: Queue) -> dict[int, JobRecord]:
    return {each.value(): each for each in await queue.jobs(limit=1_000)}


async def test_each_job_of_a_batch_has_a_verdict_of_its_own(queue: Queue) -> None:
    worker = make_worker(queue, retry=Constant(every=MINUTE))
    sizes: list[int] = []

    @worker.batch_handler("many", max_size=4)
    async def many(jobs: list[Job]) -> None:
        sizes.append(len(jobs))
        for job in jobs:
            if job.payload % 4 == 1:
                job.nack()
            elif job.payload % 4 == 2:
                job.reject("bad luck")
            elif job.payload % 4 == 3:
                job.ack()

    await queue.add_many([NewJob("many", n) for n in range(10)])
    await worker.step()
    assert sizes == [4, 4, 2]
    states = {n: each.state for n, each in (await by_number(queue)).items()}
    wanted = [State.COMPLETED, State.RETRYABLE, State.FAILED, State.COMPLETED]
    assert states == {n: wanted[n % 4] for n in range(10)}


async def test_an_error_of_a_batch_counts_for_those_without_a_word(queue: Queue) -> None:
    worker = make_worker(queue, retry=NoRetry())

    @worker.batch_handler("many")
    def many(jobs: list[Job]) -> None:
        jobs[0].ack()
        jobs[1].reject("by hand")
        raise ValueError("the rest")

    await queue.add_many([NewJob("many", n) for n in range(4)])
    await worker.step()
    records = await by_number(queue)
    assert records[0].state is State.COMPLETED
    assert [records[n].reason for n in (1, 2, 3)] == ["rejected", "retries_exhausted", "retries_exhausted"]
    assert records[3].error_message == "the rest"


async def test_an_unreadable_job_is_left_out_of_its_batch(queue: Queue, clock: VirtualClock) -> None:
    worker = make_worker(queue)
    seen: list[int] = []

    @worker.batch_handler("many")
    async def many(jobs: list[Job]) -> None:
        seen.extend(job.payload for job in jobs)

    await queue.add("many", 1)
    expired = await queue.add("many", 2, expires_in=timedelta(0))
    await queue.add("many", 3)
    await worker.step()
    assert seen == [1, 3]
    assert (await record_of(queue, expired)).reason == Reason.EXPIRED


async def test_a_batch_under_ack_first_is_done_before_it_runs(queue: Queue) -> None:
    worker = make_worker(queue, ack_policy=AckPolicy.ACK_FIRST)
    seen: list[int] = []

    @worker.batch_handler("many")
    async def many(jobs: list[Job]) -> None:
        seen.append((await queue.stats()).completed)
        raise ValueError("too late to matter")

    await queue.add_many([NewJob("many", n) for n in range(3)])
    await worker.step()
    assert seen == [3]
    assert (await queue.stats()).completed == 3


async def test_a_worker_without_handlers_does_not_start(queue: Queue) -> None:
    with pytest.raises(ConfigurationError, match="no handlers"):
        await make_worker(queue).run()
