"""Messages that no handler should see: unreadable, too large, without a handler."""

from __future__ import annotations

import msgspec

from remuda import Constant, Job, NoRetry, PayloadFormat, Queue, Reason, State
from remuda.clock import VirtualClock
from remuda.message import JobRecord
from tests.contract.workbench import SECOND, add_raw, make_worker, raw_job, record_of

NOT_MSGPACK = b"\xc1 this is no msgpack"


async def end_of(queue: Queue, **options: object) -> JobRecord:
    """Let a worker have a go at the one job that is there, beside a good one; what became of it."""
    good = await queue.add("good", {"n": 1})
    worker = make_worker(queue, **options)
    ran: list[str] = []

    @worker.handler()
    async def anything(job: Job) -> None:
        ran.append(job.id)

    await worker.step()
    assert ran == [good]
    return await record_of(queue, "bad")


async def test_bytes_that_are_no_msgpack_are_a_dead_letter(queue: Queue) -> None:
    await add_raw(queue, raw_job(queue, "bad", NOT_MSGPACK))
    record = await end_of(queue)
    assert (record.state, record.reason) == (State.FAILED, Reason.DECODE_FAIL)
    assert (record.attempts, record.deliveries) == (0, 1)
    assert record.payload == NOT_MSGPACK
    assert record.error_message is not None
    assert "msgpack" in record.error_message


async def test_bytes_that_are_not_what_their_content_type_says_are_a_dead_letter(queue: Queue) -> None:
    headers = '{"content-type":"application/json"}'
    await add_raw(queue, raw_job(queue, "bad", b"{broken", headers=headers))
    record = await end_of(queue)
    assert (record.reason, record.attempts) == (Reason.DECODE_FAIL, 0)


async def test_headers_that_are_no_object_are_a_dead_letter(queue: Queue) -> None:
    await add_raw(queue, raw_job(queue, "bad", headers="[1, 2]"))
    record = await end_of(queue)
    assert (record.state, record.reason) == (State.FAILED, Reason.MALFORMED)
    assert (record.attempts, record.headers) == (0, {})


async def test_a_content_type_that_is_no_text_does_not_end_the_worker(queue: Queue) -> None:
    kinds = ("5", "null", "[]", "{}", "true")
    for kind in kinds:
        await add_raw(queue, raw_job(queue, kind, NOT_MSGPACK, headers=f'{{"content-type":{kind}}}'))
    await add_raw(queue, raw_job(queue, "bad", NOT_MSGPACK))
    await end_of(queue)
    for kind in kinds:
        record = await record_of(queue, kind)
        assert (record.state, record.attempts) == (State.FAILED, 0), kind
        assert record.reason in (Reason.MALFORMED, Reason.DECODE_FAIL), kind


async def test_a_payload_larger_than_the_worker_takes_is_a_dead_letter(queue: Queue) -> None:
    await queue.add_unique("bad", b"x" * 5_000, job_id="bad")
    record = await end_of(queue, max_payload_bytes=1_000)
    assert (record.state, record.reason, record.attempts) == (State.FAILED, Reason.OVERSIZE, 0)


async def test_a_payload_nested_without_end_is_a_dead_letter(queue: Queue) -> None:
    await add_raw(queue, raw_job(queue, "bad", b"\x91" * 100_000 + b"\xc0"))
    record = await end_of(queue)
    assert (record.reason, record.attempts) == (Reason.DECODE_FAIL, 0)


async def test_a_retry_override_that_cannot_be_read_ends_the_job_after_its_attempt(queue: Queue) -> None:
    await add_raw(queue, raw_job(queue, "bad", retry=b"\xc1garbage"))
    worker = make_worker(queue)

    @worker.handler()
    async def anything(job: Job) -> None:
        raise ValueError("no")

    await worker.step()
    record = await record_of(queue, "bad")
    assert (record.state, record.reason) == (State.FAILED, Reason.RETRIES_EXHAUSTED)
    assert record.attempts == 1


async def test_a_job_that_nobody_handles_is_retried_by_the_policy(queue: Queue, clock: VirtualClock) -> None:
    worker = make_worker(queue, retry=Constant(every=SECOND, max_attempts=2))

    @worker.handler("known")
    async def known(job: Job) -> None: ...

    job_id = await queue.add("unknown")
    await worker.step()
    assert (await record_of(queue, job_id)).state is State.RETRYABLE
    clock.advance(SECOND)
    await worker.step()
    record = await record_of(queue, job_id)
    assert (record.state, record.reason) == (State.FAILED, Reason.RETRIES_EXHAUSTED)
    assert record.error_type is not None
    assert record.error_type.endswith("NoHandlerError")
    assert record.error_message is not None
    assert "'known'" in record.error_message


async def test_unknown_content_is_handed_over_as_bytes_and_text_as_text(queue: Queue) -> None:
    kinds = {"image/png": b"\x89PNG", "text/plain; charset=utf-8": "grüezi".encode()}
    for kind, payload in kinds.items():
        headers = msgspec.json.encode({"content-type": kind}).decode()
        await add_raw(queue, raw_job(queue, kind, payload, headers=headers))
    worker = make_worker(queue, retry=NoRetry())
    seen: dict[str, object] = {}

    @worker.handler()
    async def anything(job: Job) -> None:
        seen[job.id] = job.payload

    await worker.step()
    assert seen == {"image/png": b"\x89PNG", "text/plain; charset=utf-8": "grüezi"}


async def test_a_header_of_the_callers_cannot_make_a_payload_unreadable(queue: Queue) -> None:
    """The queue writes msgpack; a content type that says otherwise must not make a dead letter of it."""
    job_id = await queue.add("greet", {"n": 1}, headers={"content-type": "application/json"})
    assert (await record_of(queue, job_id)).value() == {"n": 1}
    json_queue = Queue(queue.name, queue.store, payload_format=PayloadFormat.JSON)
    job_id = await json_queue.add("greet", {"n": 1}, headers={"content-type": "application/msgpack"})
    assert (await record_of(queue, job_id)).value() == {"n": 1}
