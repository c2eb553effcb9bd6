"""What ChasquiMQ's own tests ask of it, asked of this store: one test for each behaviour."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from remuda import (
    Constant,
    Exponential,
    Job,
    NewJob,
    NoRetry,
    Queue,
    QueueClosedError,
    Reason,
    State,
    StoreUnavailableError,
    UnrecoverableError,
    Worker,
)
from remuda.clock import VirtualClock
from remuda.errors import EncodeError, InvalidJobError
from remuda.publishing import MAX_DELAY
from remuda.rate import RateLimit
from remuda.stores.contract import Delivery, Failure, Settlement
from remuda.stores.redis import wire
from remuda.stores.redis.keys import GROUP, keys_of
from remuda.stores.redis.link import Link
from tests.contract.workbench import (
    HOUR,
    LEASE,
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
    recover,
    release,
    running,
    settle,
    trail,
    within,
)
from tests.redis.conftest import QUEUE
from tests.redis.links import linked
from tests.redis_servers import ValkeyServer

KEYS = keys_of(QUEUE)
STREAM = KEYS.streams[2]
AT_ONCE = timedelta(0)


@asynccontextmanager
async def queues(url: str, number: int, clock: VirtualClock | None = None) -> AsyncIterator[list[Queue]]:
    """The same queue, as so many programs have it."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Queue(QUEUE, url, clock=clock)) for _ in range(number)]


async def contents(link: Link) -> dict[bytes, Any]:
    """Every key of every server, byte for byte."""
    keys = sorted({key async for key in link.scan("*")})
    return {key: await link.call("DUMP", key) for key in keys}


async def envelope_of(link: Link) -> wire.Envelope:
    """Of the only entry in the stream."""
    ((_, flat),) = await link.call("XRANGE", STREAM, "-", "+")
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    return wire.open_envelope(fields[b"d"])


# -- adding


async def test_the_same_id_is_added_once(queue: Queue, redis_store_url: str, raw: Link) -> None:
    assert (await queue.add_unique("job", 1, job_id="a")).new
    async with Queue(QUEUE, redis_store_url, clock=VirtualClock(queue.store.now())) as other:
        assert not (await other.add_unique("job", 2, job_id="a")).new
        assert not (await other.add_unique("job", 3, job_id="a", delay=HOUR)).new
        assert await other.add_many([NewJob("job", 4, job_id="a"), NewJob("job", 5, job_id="b")]) == [
            "a",
            "b",
        ]
    assert await raw.call("XLEN", STREAM) == 2
    assert await raw.call("ZCARD", KEYS.delayed) == 0


async def test_a_batch_of_which_one_cannot_be_encoded_writes_nothing(queue: Queue, raw: Link) -> None:
    before = await contents(raw)
    with pytest.raises(EncodeError):
        await queue.add_many([NewJob("job", 1), NewJob("job", object()), NewJob("job", 3, delay=HOUR)])
    assert await contents(raw) == before == {}


async def test_a_delay_that_is_too_long_is_refused(queue: Queue, raw: Link) -> None:
    with pytest.raises(InvalidJobError, match="3650 days"):
        await queue.add("job", delay=MAX_DELAY + SECOND)
    assert await contents(raw) == {}
    await queue.add("job", delay=MAX_DELAY)
    assert (await queue.stats()).delayed == 1


# -- working


async def test_two_consumers_split_the_work(redis_store_url: str) -> None:
    everybody_works = asyncio.Barrier(2)
    ran: list[list[str]] = [[], []]

    def consumer(queue: Queue, mine: list[str]) -> Worker:
        worker = make_worker(queue, concurrency=2, fetch_batch_size=5, overfetch_factor=1.0)

        @worker.handler()
        async def handle(job: Job) -> None:
            mine.append(job.id)
            if len(mine) == 1:
                await within(everybody_works.wait())

        return worker

    async with queues(redis_store_url, 2) as both, AsyncExitStack() as stack:
        for worker in map(consumer, both, ran):
            await stack.enter_async_context(running(worker))
        ids = await both[0].add_many([NewJob("job") for _ in range(60)])
        await eventually(lambda: len(ran[0]) + len(ran[1]) >= 60)
    assert sorted(ran[0] + ran[1]) == sorted(ids)
    assert min(map(len, ran)) > 0


async def test_a_stopped_worker_finishes_what_runs_and_gives_back_the_rest(queue: Queue, raw: Link) -> None:
    worker = make_worker(queue, concurrency=2, fetch_batch_size=10)
    begun: list[str] = []
    go_on = asyncio.Event()

    @worker.handler()
    async def wait(job: Job) -> None:
        begun.append(job.id)
        await go_on.wait()

    await queue.add_many([NewJob("job") for _ in range(10)])
    async with running(worker):
        await eventually(lambda: len(begun) == 2)
        worker.stop()
        await eventually(lambda: waiting(queue, 8))
        go_on.set()
    stats = await queue.stats()
    assert (stats.completed, stats.pending, stats.processing) == (2, 8, 0)
    assert {each.deliveries for each in await queue.jobs(state="PENDING")} == {0}
    assert await raw.call("ZCARD", KEYS.leases) == 0
    await checked_trail(queue)


async def waiting(queue: Queue, count: int) -> bool:
    return (await queue.stats()).pending == count


async def test_closing_a_queue_while_its_worker_runs_loses_nothing(redis_store_url: str) -> None:
    begun = asyncio.Event()
    queue = Queue(QUEUE, redis_store_url)
    await queue.open()
    worker = make_worker(queue, concurrency=1, graceful_timeout=SECOND)

    @worker.handler()
    async def handle(job: Job) -> None:
        begun.set()
        await asyncio.sleep(0.05)

    working = asyncio.create_task(worker.run(signals=False))
    await queue.add_many([NewJob("job") for _ in range(5)])
    await within(begun.wait())
    await queue.close()
    await queue.close()
    with pytest.raises(QueueClosedError):
        await queue.add("job")
    worker.stop()
    await asyncio.wait({working}, timeout=20)
    assert working.done()
    working.exception()  # that its store is gone is no secret, but not what is asked here
    async with Queue(QUEUE, redis_store_url) as again:
        stats = await again.stats()
        assert stats.live + stats.completed == 5
        assert await again.dead.count() == {}


# -- attempts and budgets


async def test_the_attempt_survives_promotion(queue: Queue, raw: Link, clock: VirtualClock) -> None:
    worker = make_worker(queue, retry=Constant(every=MINUTE, max_attempts=9))
    seen: list[tuple[int, int]] = []

    @worker.handler()
    async def fail(job: Job) -> None:
        seen.append((job.attempt, (await envelope_of(raw)).attempt))
        raise ValueError

    await queue.add("job", {"a": 1})
    for _ in range(4):
        await worker.step()
        assert await raw.call("XLEN", STREAM) == 0
        clock.advance(MINUTE)
    assert seen == [(1, 0), (2, 1), (3, 2), (4, 3)]
    await checked_trail(queue)


@pytest.mark.parametrize(("own", "workers"), [(2, 5), (5, 2)], ids=["smaller", "larger"])
async def test_a_job_s_own_budget_beats_the_worker_s(
    queue: Queue, clock: VirtualClock, own: int, workers: int
) -> None:
    worker = make_worker(queue, retry=Constant(every=SECOND, max_attempts=workers))
    runs = 0

    @worker.handler()
    async def fail(job: Job) -> None:
        nonlocal runs
        runs += 1
        raise ValueError

    job_id = await queue.add("job", retry=Constant(every=SECOND, max_attempts=own))
    for _ in range(8):
        await worker.step()
        clock.advance(MINUTE)
    assert runs == own
    assert (await record_of(queue, job_id)).reason == Reason.RETRIES_EXHAUSTED


@pytest.mark.parametrize(("own", "workers"), [(2, 5), (5, 2)], ids=["smaller", "larger"])
async def test_a_job_s_own_budget_holds_after_its_worker_died(
    queue: Queue, clock: VirtualClock, own: int, workers: int
) -> None:
    worker = make_worker(queue, retry=Constant(every=SECOND, max_attempts=workers))
    attempts: list[int] = []

    @worker.handler()
    async def fail(job: Job) -> None:
        attempts.append(job.attempt)
        raise ValueError

    job_id = await queue.add("job", retry=Constant(every=SECOND, max_attempts=own))
    for _ in range(8):
        if await fetch(queue):  # and dies with it
            clock.advance(2 * LEASE)
            assert await recover(queue) == [job_id]
        await worker.step()
        clock.advance(MINUTE)
    assert attempts == list(range(1, own + 1))
    record = await record_of(queue, job_id)
    assert (record.reason, record.attempts, record.deliveries) == (Reason.RETRIES_EXHAUSTED, own, 2 * own)
    await checked_trail(queue)


# -- one gate for every outcome


def twin(delivery: Delivery) -> Delivery:
    """The same delivery in the hands of another program."""
    return copy.deepcopy(delivery)


async def test_three_settlers_of_one_delivery_write_one_dead_letter(
    redis_store_url: str, raw: Link, clock: VirtualClock
) -> None:
    async with queues(redis_store_url, 3, clock) as three:
        ids = await three[0].add_many([NewJob("job") for _ in range(20)])
        for _ in ids:
            delivery = await fetch_one(three[0])
            each_his_own = [dead(twin(delivery), Reason.RETRIES_EXHAUSTED) for _ in three]
            lost = await asyncio.gather(*map(settle, three, each_his_own))
            assert sorted(map(len, lost)) == [0, 1, 1]
        assert await raw.call("XLEN", KEYS.dlq) == 20
        ends = [each.message for each in await checked_trail(three[0]) if each.entered is State.FAILED]
        assert ends == ids


@pytest.mark.parametrize("outcome", ["completed", "retried", "dead"])
@pytest.mark.parametrize("fate", ["waits again", "held by another", "ended"])
async def test_a_lost_gate_writes_nothing(
    queue: Queue, raw: Link, clock: VirtualClock, outcome: str, fate: str
) -> None:
    failure = Failure("ValueError", "no")
    outcomes = {
        "completed": lambda delivery: acked(delivery, result=b"\x01"),
        "retried": lambda delivery: nacked(delivery, clock.now() + HOUR, failure),
        "dead": lambda delivery: dead(delivery, Reason.UNRECOVERABLE, failure),
    }
    await queue.add_unique("job", job_id="a", headers={"a": 1}, unique_for=HOUR)
    late = await fetch_one(queue)
    clock.advance(2 * LEASE)
    await recover(queue)
    if fate != "waits again":
        holder = await fetch_one(queue)
        if fate == "ended":
            assert await settle(queue, acked(holder)) == []
    before = await contents(raw)
    settlement: Settlement = outcomes[outcome](late)
    assert await settle(queue, settlement) == [settlement]
    assert await contents(raw) == before


async def test_a_holder_never_ends_another_s_lease(queue: Queue, raw: Link, clock: VirtualClock) -> None:
    job_id = await queue.add("job")
    late = await fetch_one(queue)
    clock.advance(2 * LEASE)
    await recover(queue)
    holder = await fetch_one(queue)
    before = await contents(raw)
    await release(queue, late)
    assert await queue.store.extend(QUEUE, [late], lease=HOUR) == [late]
    assert await contents(raw) == before
    clock.advance(LEASE / 2)
    assert await recover(queue) == []
    assert await settle(queue, acked(holder)) == []
    assert (await record_of(queue, job_id)).state is State.COMPLETED


# -- errors


@pytest.mark.parametrize("own", [None, Constant(every=AT_ONCE, max_attempts=9), Exponential()], ids=repr)
async def test_an_unrecoverable_error_beats_any_override(
    queue: Queue, own: Constant | Exponential | None
) -> None:
    worker = make_worker(queue)

    @worker.handler()
    async def fail(job: Job) -> None:
        raise UnrecoverableError("never")

    job_id = await queue.add("job", retry=own)
    await worker.step()
    record = await record_of(queue, job_id)
    assert (record.state, record.reason, record.attempts) == (State.FAILED, Reason.UNRECOVERABLE, 1)


async def test_a_foreign_exception_of_the_same_name_is_retried(queue: Queue) -> None:
    foreign = type("UnrecoverableError", (Exception,), {"__module__": "remuda.errors"})
    worker = make_worker(queue, retry=Constant(every=HOUR, max_attempts=2))

    @worker.handler()
    async def fail(job: Job) -> None:
        raise foreign("of somebody else's making")

    job_id = await queue.add("job")
    await worker.step()
    assert (await record_of(queue, job_id)).state is State.RETRYABLE


# -- dead letters


async def test_a_replay_resets_the_attempt_and_keeps_name_and_override(
    queue: Queue, raw: Link, clock: VirtualClock
) -> None:
    own = Exponential(initial=SECOND, multiplier=3.0, cap=MINUTE, jitter=SECOND, max_attempts=2)
    worker = make_worker(queue)

    @worker.handler("särvice")
    async def fail(job: Job) -> None:
        raise ValueError

    job_id = await queue.add("särvice", {"a": 1}, retry=own, headers={"trace": "t"}, priority=0)
    for _ in range(2):
        await worker.step()
        clock.advance(HOUR)
    assert await queue.dead.count() == {"retries_exhausted": 1}
    assert (await queue.dead.replay()).ids == [job_id]
    envelope = await envelope_of(raw)
    assert (envelope.id, envelope.attempt) == (job_id, 0)
    assert envelope.retry == [2, ["exponential", 1000, 60_000, 3.0, 1000]]
    delivery = await fetch_one(queue)
    assert (delivery.name, delivery.attempts, delivery.deliveries) == ("särvice", 0, 1)
    assert delivery.headers == '{"trace":"t"}'
    assert await raw.call("XLEN", KEYS.dlq) == 0


async def test_concurrent_replays_never_duplicate(
    redis_store_url: str, raw: Link, clock: VirtualClock
) -> None:
    async with queues(redis_store_url, 3, clock) as three:
        ids = await bury(three[0], *["job"] * 60)
        answers = await asyncio.gather(*(queue.dead.replay(limit=60) for queue in three for _ in range(2)))
        assert sorted(job_id for answer in answers for job_id in answer.ids) == sorted(ids)
        assert await raw.call("XLEN", STREAM) == 60
        assert await raw.call("XLEN", KEYS.dlq) == 0
        assert sorted(each.id for each in await fetch(three[0])) == sorted(ids)
        await checked_trail(three[0])


# -- delayed jobs


async def test_delayed_jobs_survive_a_restart(valkey_server: ValkeyServer, clock: VirtualClock) -> None:
    async with Queue(QUEUE, valkey_server.fresh(), clock=clock) as queue:
        ids = await queue.add_many([NewJob("job", number, delay=HOUR) for number in range(20)])
        await queue.add_unique("mine", job_id="mine", delay=HOUR, priority=1, headers={"a": 1})
        valkey_server.kill()
        valkey_server.start()
        clock.advance(2 * HOUR)
        found: list[Delivery] = []

        async def come_back() -> bool:
            try:
                found.extend(await fetch(queue))
            except StoreUnavailableError:
                return False
            return bool(found)

        await eventually(come_back)
        assert [each.id for each in found] == ["mine", *ids]
        assert (found[0].headers, found[0].priority) == ('{"a":1}', 1)


async def test_forgotten_scripts_are_sent_again(queue: Queue, raw: Link, clock: VirtualClock) -> None:
    async def forgotten() -> None:
        await raw.everywhere("SCRIPT", "FLUSH")

    await forgotten()
    await queue.add("job")
    await forgotten()
    delivery = await fetch_one(queue)
    await forgotten()
    assert await queue.store.extend(QUEUE, [delivery], lease=LEASE) == []
    await forgotten()
    assert await settle(queue, dead(delivery)) == []
    await forgotten()
    assert len((await queue.dead.replay()).ids) == 1
    await forgotten()
    assert await queue.cancel(delivery.id) == [delivery.id]
    await checked_trail(queue)


async def test_a_worker_does_not_notice_that_scripts_are_forgotten(redis_store_url: str, raw: Link) -> None:
    async with Queue(QUEUE, redis_store_url) as queue:
        worker = make_worker(queue, concurrency=5, fetch_batch_size=5)
        ran: list[str] = []

        @worker.handler()
        async def note(job: Job) -> None:
            ran.append(job.id)
            if len(ran) % 20 == 0:
                await raw.everywhere("SCRIPT", "FLUSH")

        ids = await queue.add_many([NewJob("job") for _ in range(100)])
        async with running(worker):
            await eventually(lambda: len(ran) == 100)
        assert sorted(ran) == sorted(ids)
        assert (await queue.stats()).completed == 100
        await checked_trail(queue)


async def test_of_cancelling_and_promoting_exactly_one_wins(
    redis_store_url: str, clock: VirtualClock
) -> None:
    fates: dict[str, int] = {"cancelled": 0, "fetched": 0}
    async with queues(redis_store_url, 2, clock) as (ours, theirs):
        for number in range(60):
            job_id = await ours.add("job", delay=HOUR)
            clock.advance(HOUR)

            async def fetched(head_start: int = number % 5) -> list[Delivery]:
                for _ in range(head_start):
                    await asyncio.sleep(0)
                    await theirs.store.rate_limits(QUEUE)
                return await fetch(theirs)

            cancelled, deliveries = await asyncio.gather(ours.cancel(job_id, running=False), fetched())
            won = [*cancelled, *(each.id for each in deliveries)]
            assert won == [job_id]
            fates["cancelled" if cancelled else "fetched"] += 1
            if deliveries:
                assert await settle(theirs, acked(deliveries[0])) == []
            ends = (State.REMOVED,) if cancelled else (State.PROCESSING, State.COMPLETED)
            moves = moves_of(await trail(ours, after=await last_number(ours) - len(ends)), job_id)
            assert [entered for _, entered in moves] == list(ends)
        assert (await ours.stats()).live == 0
    assert all(fates.values()), fates


async def last_number(queue: Queue) -> int:
    return max(each.seq for each in await trail(queue))


async def test_schedule_cancel_schedule_again(queue: Queue, raw: Link, clock: VirtualClock) -> None:
    assert (await queue.add_unique("job", 1, job_id="a", delay=HOUR)).new
    assert await queue.cancel("a") == ["a"]
    assert await queue.cancel("a") == []
    assert await raw.call("EXISTS", KEYS.held_id("a"), KEYS.delayed_member("a"), KEYS.delayed) == 0
    assert (await queue.add_unique("job", 2, job_id="a", delay=HOUR)).new
    assert await queue.reschedule("a", delay=MINUTE)
    clock.advance(MINUTE)
    delivery = await fetch_one(queue)
    assert (delivery.id, delivery.payload) == ("a", b"\x02")
    assert await raw.call("ZCARD", KEYS.delayed) == 0
    assert await raw.call("EXISTS", KEYS.delayed_member("a")) == 0
    await checked_trail(queue)


# -- memory


@asynccontextmanager
async def out_of_memory(link: Link) -> AsyncIterator[None]:
    """No server takes anything more."""
    await link.everywhere("CONFIG", "SET", "maxmemory-policy", "noeviction")
    try:
        await link.everywhere("CONFIG", "SET", "maxmemory", "1")
        yield
    finally:
        await link.everywhere("CONFIG", "SET", "maxmemory", "0")


async def test_a_queue_can_be_drained_when_the_server_is_out_of_memory(redis_store_url: str) -> None:
    async with Queue(QUEUE, redis_store_url) as queue, linked(redis_store_url) as link:
        worker = make_worker(queue, store_results=True, retry=Constant(every=AT_ONCE, max_attempts=2))

        @worker.handler()
        async def handle(job: Job) -> int:
            if job.payload == "hopeless" or (job.payload == "once more" and job.attempt == 1):
                raise ValueError
            return 1

        await queue.add_many(
            [
                *(NewJob("job", number) for number in range(50)),
                NewJob("job", "hopeless"),
                NewJob("job", "once more"),
                NewJob("job", "delayed", delay=timedelta(milliseconds=20), headers={"a": 1}),
                NewJob("job", "mine", job_id="mine", priority=1),
            ]
        )
        async with out_of_memory(link):
            with pytest.raises(StoreUnavailableError, match="OOM"):
                await queue.add("job")
            with pytest.raises(StoreUnavailableError, match="OOM"):
                await queue.add_unique("job", job_id="b", delay=HOUR)
            async with running(worker):
                await eventually(lambda: nothing_lives(queue))
            stats = await queue.stats()
        assert (stats.completed, stats.failed) == (53, 1)
        assert (await queue.add_unique("job", job_id="b")).new
        await checked_trail(queue)


async def nothing_lives(queue: Queue) -> bool:
    return (await queue.stats()).live == 0


async def test_a_queue_with_a_rate_limit_can_be_drained_when_the_server_is_out_of_memory(
    valkey_url: str,
) -> None:
    async with Queue(QUEUE, valkey_url) as queue, linked(valkey_url) as link:
        await queue.limit_rate(queue=RateLimit(1000, SECOND), key=RateLimit(1000, SECOND))
        await queue.add_many([NewJob("job", rate_key="a") for _ in range(20)])
        worker = make_worker(queue)
        worker.handler()(lambda _job: None)
        async with out_of_memory(link), running(worker):
            await eventually(lambda: nothing_lives(queue), within_s=3)


async def test_waiting_jobs_can_be_taken_away_when_the_server_is_out_of_memory(
    queue: Queue, raw: Link
) -> None:
    ids = await queue.add_many([NewJob("job", delay=HOUR), NewJob("job"), NewJob("job", headers={"a": 1})])
    await bury(queue)
    async with out_of_memory(raw):
        assert await queue.cancel(*ids[:2]) == ids[:2]
        if raw.server.has_flags:
            await queue.pause()
            await queue.resume()
        else:  # Redis 6.2 lets a script add something only after it has taken something away
            with pytest.raises(StoreUnavailableError):
                await queue.pause()
        assert await queue.purge() == 1
    await checked_trail(queue)


# -- events


async def events(link: Link) -> list[tuple[str, str]]:
    """What the events stream says, in order: the word, and of which job."""
    found = []
    for _, flat in await link.call("XRANGE", KEYS.prefix + "events", "-", "+"):
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        found.append((fields[b"e"].decode(), fields[b"id"].decode()))
    return found


@asynccontextmanager
async def telling(url: str, clock: VirtualClock) -> AsyncIterator[Queue]:
    async with Queue(QUEUE, f"{url}?events=true", clock=clock) as queue:
        yield queue


async def test_events_of_a_success_are_told_in_order(
    redis_store_url: str, raw: Link, clock: VirtualClock
) -> None:
    async with telling(redis_store_url, clock) as queue:
        ids = await queue.add_many([NewJob("job"), NewJob("job")])
        for delivery in await fetch(queue):
            await settle(queue, acked(delivery))
        words = await events(raw)
        for job_id in ids:
            assert [word for word, of in words if of == job_id] == ["active", "completed"]
        assert words[-1] == ("drained", "")
        assert [word for word, _ in words].count("drained") == 1  # only from full to empty


async def test_events_of_a_retry_and_a_death_are_told_in_order(
    redis_store_url: str, raw: Link, clock: VirtualClock
) -> None:
    async with telling(redis_store_url, clock) as queue:
        worker = make_worker(queue, retry=Constant(every=MINUTE, max_attempts=2))

        @worker.handler()
        async def fail(job: Job) -> None:
            raise ValueError("no")

        job_id = await queue.add("job")
        for _ in range(2):
            await worker.step()
            clock.advance(HOUR)
        words = [word for word, of in await events(raw) if of == job_id]
        assert words == ["active", "failed", "retry-scheduled", "waiting", "active", "failed", "dlq"]


async def test_nothing_is_told_unless_it_is_asked_for(queue: Queue, raw: Link) -> None:
    await queue.add("job")
    await settle(queue, acked(await fetch_one(queue)))
    assert await events(raw) == []


# -- the group


async def test_the_group_is_chasquimq_s(queue: Queue, raw: Link) -> None:
    assert GROUP == "default"
    await queue.add("job", retry=NoRetry())
    await fetch_one(queue)
    ((_, name, *_),) = await raw.call("XINFO", "GROUPS", STREAM)
    assert name == b"default"
