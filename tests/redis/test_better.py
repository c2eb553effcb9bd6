"""Where ChasquiMQ is weak and this store must not be; and that nothing costs or leaves more than needed."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from remuda import Constant, Exponential, Job, NewJob, Queue, QueueFullError, Result, State, Worker
from remuda.clock import VirtualClock
from remuda.rate import RateLimit
from remuda.stores.redis import wire
from remuda.stores.redis.keys import GROUP, keys_of
from remuda.stores.redis.link import Link
from remuda.transition import to_ms
from tests.contract.workbench import (
    DAY,
    HOUR,
    LEASE,
    MINUTE,
    SECOND,
    acked,
    bury,
    checked_trail,
    dead,
    defer,
    eventually,
    fetch,
    fetch_one,
    make_worker,
    nacked,
    record_of,
    recover,
    release,
    running,
    settle,
    trail,
)
from tests.faults.journal import runs_of
from tests.faults.stable import Processes
from tests.redis.conftest import QUEUE
from tests.redis.monitoring import monitored
from tests.redis_servers import ValkeyServer

KEYS = keys_of(QUEUE)
STREAM = KEYS.streams[2]
SHORT = timedelta(milliseconds=300)
INSTANT = timedelta(milliseconds=10)


@asynccontextmanager
async def queues(url: str, number: int, clock: VirtualClock | None = None) -> AsyncIterator[list[Queue]]:
    """The same queue, as so many programs have it."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Queue(QUEUE, url, clock=clock)) for _ in range(number)]


async def keys_left(link: Link) -> set[str]:
    return {key.decode().removeprefix(KEYS.prefix) async for key in link.scan("*")}


async def consumers(link: Link) -> list[bytes]:
    """Of all streams."""
    found = []
    for stream in KEYS.streams:
        if await link.call("EXISTS", stream):
            found += [each[1] for each in await link.call("XINFO", "CONSUMERS", stream, GROUP)]
    return found


# -- leases


async def test_a_slow_handler_is_never_run_twice(redis_store_url: str) -> None:
    async with queues(redis_store_url, 2) as both, AsyncExitStack() as stack:
        begun: list[str] = []
        for queue in both:
            worker = make_worker(queue, release_stuck_timeout=SHORT, release_stuck_interval=INSTANT)

            @worker.handler("async")
            async def slow(job: Job) -> None:
                begun.append(job.id)
                await asyncio.sleep(4 * SHORT.total_seconds())

            @worker.handler("plain")
            def plain(job: Job) -> None:
                begun.append(job.id)
                time.sleep(4 * SHORT.total_seconds())

            await stack.enter_async_context(running(worker))
        ids = await both[0].add_many([NewJob("async"), NewJob("plain"), NewJob("async", priority=2)])
        await eventually(lambda: has_completed(both[0], 3))
        assert sorted(begun) == sorted(ids)


async def has_completed(queue: Queue, count: int) -> bool:
    return (await queue.stats()).completed >= count


async def test_prefetched_jobs_are_not_taken_by_another_worker(valkey_url: str) -> None:
    async with queues(valkey_url, 2) as (mine, theirs):
        lease = {"release_stuck_timeout": SHORT, "release_stuck_interval": INSTANT}
        ran: list[str] = []
        stolen: list[str] = []
        go_on = asyncio.Event()
        slow, idle = make_worker(mine, concurrency=1, **lease), make_worker(theirs, **lease)

        @slow.handler()
        async def wait(job: Job) -> None:
            ran.append(job.id)
            await go_on.wait()

        @idle.handler()
        async def steal(job: Job) -> None:
            stolen.append(job.id)

        ids = await mine.add_many([NewJob("job") for _ in range(10)])
        async with running(slow):
            await eventually(lambda: len(ran) == 1)
            async with running(idle):
                await asyncio.sleep(4 * SHORT.total_seconds())  # what is tested is that time passes
                assert stolen == []
                assert (await mine.stats()).processing == 10
                go_on.set()
                await eventually(lambda: has_completed(mine, 10))
        assert ran == ids
        assert stolen == []
        await checked_trail(mine)


# -- unique ids


async def test_an_id_is_held_for_its_time_whoever_adds_it_and_whatever_is_restarted(
    valkey_server: ValkeyServer, clock: VirtualClock
) -> None:
    url = valkey_server.fresh()
    async with Queue(QUEUE, url, clock=clock) as queue:
        assert (await queue.add_unique("job", job_id="a", unique_for=HOUR)).new
        clock.advance(DAY)  # as long as it lives, in any case
        async with Queue(QUEUE, url, clock=clock) as other:
            assert not (await other.add_unique("job", job_id="a", unique_for=HOUR)).new
            assert await settle(queue, acked(await fetch_one(queue))) == []
            clock.advance(HOUR - SECOND)
            assert not (await other.add_unique("job", job_id="a", unique_for=HOUR)).new
    valkey_server.kill()
    valkey_server.start()
    async with Queue(QUEUE, url, clock=clock) as queue:
        assert not (await queue.add_unique("job", job_id="a", delay=MINUTE)).new
        clock.advance(SECOND)
        assert (await queue.add_unique("job", job_id="a")).new


async def test_more_than_a_thousand_other_ids_do_not_make_one_forgotten(valkey_queue: Queue) -> None:
    """ChasquiMQ's server remembers a hundred of a producer."""
    await valkey_queue.add_unique("job", job_id="first", unique_for=HOUR)
    await valkey_queue.add_many([NewJob("job", job_id=f"{n}") for n in range(1_200)])
    assert not (await valkey_queue.add_unique("job", job_id="first")).new


async def test_a_large_batch_of_ids_that_are_all_taken_adds_nothing(valkey_queue: Queue) -> None:
    jobs = [NewJob("job", job_id=f"{n}") for n in range(9_000)]
    ids = await valkey_queue.add_many(jobs)
    assert await valkey_queue.add_many(jobs) == ids
    assert (await valkey_queue.stats()).live == 9_000


# -- adding


async def test_a_batch_of_any_mix_is_one_round_trip(valkey_server: ValkeyServer) -> None:
    async with Queue(QUEUE, valkey_server.fresh()) as queue:
        await queue.add("first", headers={"a": 1})
        kinds: list[dict[str, Any]] = [
            {},
            {"delay": HOUR},
            {"priority": 2},
            {"headers": {"a": 1}},
            {"job_id": "mine", "unique_for": HOUR},
            {"job_id": "mine and delayed", "delay": HOUR},
            {"retry": Exponential(max_attempts=3)},
            {"expires_in": HOUR},
            {"rate_key": "key"},
            {"priority": -2, "delay": HOUR, "retry": Constant(every=SECOND), "headers": {"b": 2}},
        ]
        async with monitored(valkey_server) as asked:
            await queue.add_many([NewJob("job", **kind) for kind in kinds] + [NewJob("job")] * 500)
        assert asked.commands == ["EVALSHA"]
        assert (await queue.stats()).live == 511


async def test_a_full_queue_refuses_and_drops_nothing(redis_store_url: str) -> None:
    async with AsyncExitStack() as stack:
        producers = [
            await stack.enter_async_context(Queue(QUEUE, redis_store_url, max_live=100)) for _ in range(3)
        ]
        accepted: list[str] = []
        refused = 0
        for number in range(60):
            job = NewJob("job", priority=number % 3, delay=INSTANT if number % 2 else None)
            try:
                accepted += await producers[number % 3].add_many([job] * 3)
            except QueueFullError:
                refused += 1
        assert (len(accepted), refused) == (99, 27)
        ran: list[str] = []
        worker = make_worker(producers[0])

        @worker.handler()
        async def note(job: Job) -> None:
            ran.append(job.id)

        async with running(worker):
            await eventually(lambda: has_completed(producers[0], 99))
        assert sorted(ran) == sorted(accepted)
        assert len(await producers[1].add_many([NewJob("job")] * 3)) == 3


# -- promoting


async def test_promoters_at_the_same_time_never_double_a_job(
    redis_store_url: str, raw: Link, clock: VirtualClock
) -> None:
    async with queues(redis_store_url, 3, clock) as three:
        ids = await three[0].add_many([NewJob("job", delay=HOUR, priority=n % 2) for n in range(1_200)])
        clock.advance(HOUR)
        found: list[str] = []
        while len(found) < 1_200:
            batches = await asyncio.gather(*(fetch(queue, 70) for queue in three for _ in range(2)))
            assert any(batches)
            found += [each.id for batch in batches for each in batch]
        assert sorted(found) == sorted(ids)
        assert await raw.call("ZCARD", KEYS.delayed) == 0


@pytest.mark.faults
async def test_a_promoter_that_froze_doubles_nothing_when_it_goes_on(
    valkey_url: str, processes: Processes
) -> None:
    async with Queue(QUEUE, valkey_url) as queue:
        options = {"max_fetch_interval": 0.02, "fetch_batch_size": 20}
        two = [processes.worker(valkey_url, QUEUE, **options) for _ in range(2)]
        await queue.add_many([NewJob("sleep", 0) for _ in range(50)])
        await eventually(lambda: has_completed(queue, 50))
        late = timedelta(milliseconds=150)
        step = timedelta(milliseconds=1)
        await queue.add_many([NewJob("sleep", 0, delay=late + number * step) for number in range(300)])
        for number in range(6):
            frozen = two[number % 2]
            await asyncio.sleep(0.03)
            frozen.signal(signal.SIGSTOP)
            await asyncio.sleep(0.03)
            frozen.signal(signal.SIGCONT)
        await eventually(lambda: has_completed(queue, 350))
        counts = Counter(run.job for run in runs_of(two))
        assert len(counts) == 350
        assert set(counts.values()) == {1}
        await checked_trail(queue)


# -- results and errors


async def test_a_result_of_none_is_a_result(queue: Queue, raw: Link) -> None:
    worker = make_worker(queue, store_results=True)
    worker.handler()(lambda _job: None)
    job_id = await queue.add("job")
    assert await queue.result(job_id) is None
    await worker.step()
    assert await queue.result(job_id) == Result(None)
    assert await raw.call("GET", KEYS.result(job_id)) == b"\xc0"  # which is None to ChasquiMQ, too


class TariffError(Exception):
    """An error of a user's own."""


async def test_a_dead_letter_has_the_error_s_type_message_and_trace(queue: Queue, raw: Link) -> None:
    worker = make_worker(queue, ack_policy="reject_on_error")

    @worker.handler()
    async def charge(job: Job) -> None:
        raise TariffError("no such tariff: ä")

    await queue.add("job")
    await worker.step()
    (letter,) = await queue.dead.peek()
    assert letter.error_type == f"{__name__}.TariffError"
    assert letter.error_message == "no such tariff: ä"
    assert letter.error_trace is not None
    assert "in charge" in letter.error_trace
    ((_, flat),) = await raw.call("XRANGE", KEYS.dlq, "-", "+")
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    assert fields[b"detail"].decode() == f"{__name__}.TariffError: no such tariff: ä"
    assert fields[b"reason"] == b"rejected"


# -- delayed jobs of anybody's

STRANGE = ["a*", "[a-z]", "a\\b", "ö?", "a", "ab", "01M7A3F9QZ0123456789ABCDEF"]


async def put_delayed(link: Link, job_id: str, at: Any, *, noted: bool = False) -> bytes:
    """As ChasquiMQ adds it: without an id of the caller's there is no note of it."""
    member = wire.pack_member("job", wire.pack_envelope(job_id, b"\xc0", to_ms(at), 0))
    await link.call("ZADD", KEYS.delayed, to_ms(at), member)
    if noted:
        await link.call("SET", KEYS.held_id(job_id), "1", "EX", 7200)
        await link.call("SET", KEYS.delayed_member(job_id), member, "EX", 7200)
    return member


async def test_a_delayed_job_is_cancelled_by_id_whoever_made_the_id(
    queue: Queue, raw: Link, clock: VirtualClock
) -> None:
    ours = await queue.add("job", delay=HOUR)
    callers = [(await queue.add_unique("job", job_id=f"mine {n}", delay=HOUR)).id for n in range(2)]
    for job_id in STRANGE:
        await put_delayed(raw, job_id, clock.now() + HOUR)
    await put_delayed(raw, "noted", clock.now() + HOUR, noted=True)
    for job_id in [ours, *callers, *STRANGE, "noted"]:
        assert await queue.cancel(job_id) == [job_id], job_id
        assert await queue.get(job_id) is None
    assert await raw.call("ZCARD", KEYS.delayed) == 0
    assert not {key for key in await keys_left(raw) if key.startswith(("didx:", "dlid:"))}
    assert [each.reason for each in await trail(queue) if each.entered is State.REMOVED] == ["cancelled"] * 11


async def test_a_delayed_job_is_rescheduled_by_id_whoever_made_the_id(
    queue: Queue, raw: Link, clock: VirtualClock
) -> None:
    ids = [await queue.add("job", delay=HOUR), (await queue.add_unique("job", job_id="mine", delay=HOUR)).id]
    for job_id in STRANGE:
        await put_delayed(raw, job_id, clock.now() + HOUR)
    await put_delayed(raw, "noted", clock.now() + HOUR, noted=True)
    ids += [*STRANGE, "noted"]
    for place, job_id in enumerate(reversed(ids)):
        assert await queue.reschedule(job_id, delay=(place + 1) * SECOND), job_id
    clock.advance(MINUTE)
    assert [each.id for each in await fetch(queue)] == ids[::-1]
    assert await raw.call("ZCARD", KEYS.delayed) == 0


# -- what it costs


async def test_the_number_of_commands_goes_by_batches_not_by_jobs(valkey_server: ValkeyServer) -> None:
    async with Queue(QUEUE, valkey_server.fresh()) as queue:
        worker = make_worker(
            queue, concurrency=100, fetch_batch_size=250, flush_interval=INSTANT, store_results=True
        )
        seen = 0

        @worker.handler()
        async def handle(job: Job) -> int:
            nonlocal seen
            seen += 1
            if job.payload % 10 == 0:
                job.reject("no")
            elif job.payload % 10 == 1 and job.attempt == 1:
                job.nack(delay=timedelta(0))
            return job.payload

        async with running(worker):
            await asyncio.sleep(0.05)  # so that it is idle
            async with monitored(valkey_server) as asked:
                jobs = [NewJob("job", n, headers={"n": n} if n % 4 == 0 else None) for n in range(1_000)]
                await queue.add_many(jobs)
                await eventually(lambda: seen == 1_100)
                await eventually(lambda: has_completed(queue, 900))
        # `has_completed` asks, too: what counts is that it is far from one for each job.
        assert len(asked.commands) < 150, Counter(asked.commands)


async def test_consumers_do_not_pile_up(queue: Queue, raw: Link, clock: VirtualClock) -> None:
    for number in range(100):
        await queue.add_many([NewJob("job", priority=number % 5 - 2), NewJob("job")])
        for delivery in await fetch(queue, who=f"worker-{number % 7}"):
            outcome = [acked, dead, lambda each: nacked(each, clock.now())][number % 3]
            assert await settle(queue, outcome(delivery)) == []
    for delivery in await fetch(queue):
        await settle(queue, acked(delivery))
    assert (await queue.stats()).live == 0
    assert set(await consumers(raw)) <= {b"remuda-returned"}


async def test_idle_workers_leave_no_consumers(queue: Queue, raw: Link) -> None:
    await queue.add("job")
    await settle(queue, acked(await fetch_one(queue)))
    for number in range(20):
        assert await fetch(queue, who=f"worker-{number}") == []
    assert await consumers(raw) == []
    assert await raw.call("ZCARD", KEYS.leases) == 0


async def test_consumers_of_dead_workers_hold_nothing_for_long(valkey_queue: Queue, valkey: Link) -> None:
    """What they held goes to the one consumer of what was put back."""
    await valkey_queue.add_many([NewJob("job") for _ in range(20)])
    for _ in range(20):
        await fetch_one(valkey_queue, lease=timedelta(0))
    await recover(valkey_queue)
    (summary,) = [each for each in await valkey.call("XPENDING", STREAM, GROUP) if isinstance(each, list)]
    assert summary == [[b"remuda-returned", b"20"]]
    assert await valkey.call("ZCARD", KEYS.leases) == 0


# -- what it leaves


async def live_a_life(queue: Queue, clock: VirtualClock) -> None:
    """Jobs of every kind, each of them to its end."""
    await queue.limit_rate(key=RateLimit(1000, SECOND))
    soon = timedelta(milliseconds=50)
    await queue.add_many(
        [
            NewJob("plain"),
            NewJob("delayed", delay=MINUTE),
            NewJob("unique", job_id="unique"),
            NewJob("held", job_id="held", unique_for=soon),
            NewJob("held, delayed", job_id="held, delayed", unique_for=soon, delay=MINUTE, priority=2),
            NewJob("rich", priority=1, headers={"a": 1}, retry=Constant(every=SECOND), rate_key="k"),
            NewJob("cancelled", job_id="cancelled", delay=HOUR, headers={"a": 1}),
            NewJob("rescheduled", job_id="rescheduled", delay=HOUR, headers={"a": 1}),
            NewJob("moved", job_id="moved", headers={"a": 1}),
            NewJob("purged", job_id="purged", delay=DAY),
        ]
    )
    assert await queue.cancel("cancelled") == ["cancelled"]
    assert await queue.reschedule("rescheduled", delay=MINUTE)
    assert await queue.reschedule("moved", delay=MINUTE)
    clock.advance(2 * MINUTE)
    deliveries = await fetch(queue)
    assert len(deliveries) == 8
    await release(queue, *deliveries[:3], counted=True)
    await defer(queue, deliveries[3:5], [clock.now() + SECOND] * 2)
    clock.advance(2 * LEASE)
    await recover(queue)  # the other three
    deliveries = await fetch(queue)
    assert len(deliveries) == 8
    await settle(queue, *(nacked(each, clock.now() + SECOND) for each in deliveries))
    clock.advance(MINUTE)
    deliveries = await fetch(queue)
    await settle(queue, *(dead(each) for each in deliveries))
    assert len((await queue.dead.replay()).ids) == 8
    deliveries = await fetch(queue)
    results = [
        acked(each, keep=bool(n % 3), result=b"\x01") if n % 2 else dead(each)
        for n, each in enumerate(deliveries)
    ]
    for settlement in results:
        settlement.result_ttl = soon
    assert await settle(queue, *results) == []
    assert await queue.purge() == 1
    assert (await queue.stats()).live == 0
    await checked_trail(queue)


async def test_what_has_ended_leaves_only_the_keys_of_the_queue(
    queue: Queue, raw: Link, clock: VirtualClock
) -> None:
    await live_a_life(queue, clock)
    clock.advance(DAY)
    now = queue.store.now()
    await queue.prune(completed_before=now, failed_before=now)
    streams = {key.removeprefix(KEYS.prefix) for key in KEYS.streams}
    lasting = {"dlq", "remuda:done", "remuda:log", "remuda:meta", "remuda:wake", *streams}

    await asyncio.sleep(0.1)  # what is held and kept for a moment goes by itself
    assert await keys_left(raw) - lasting == set()
    for stream in (*KEYS.streams, KEYS.dlq, KEYS.done):
        assert await raw.call("XLEN", stream) == 0
    # Besides, the consumer of the hold that was recovered: it is empty, and forgotten when it is old.
    assert len(set(await consumers(raw)) - {b"remuda-returned"}) <= 1
    counters = {name.decode() for name in await raw.call("HKEYS", KEYS.meta)}
    assert counters <= {"seq", "done", "done_bytes", "key_jobs", "key_per", "key_interval"}


async def test_turns_that_are_over_are_forgotten(
    valkey_queue: Queue, valkey: Link, clock: VirtualClock
) -> None:
    await valkey_queue.limit_rate(key=RateLimit(1, SECOND))
    for number in range(10):
        await valkey_queue.store.book(QUEUE, [f"customer-{number}-{n}" for n in range(20)])
    clock.advance(DAY)
    await valkey_queue.prune()
    assert await valkey.call("HLEN", KEYS.rates) == 0


async def test_every_key_of_a_queue_is_on_one_slot(queue: Queue, raw: Link, clock: VirtualClock) -> None:
    await live_a_life(queue, clock)
    await queue.add_unique("job", job_id="a}b{c", delay=HOUR, unique_for=HOUR)
    await bury(queue, "job")
    found = {key async for key in raw.scan("*")}
    assert len(found) > 10
    slots = {await raw.call("CLUSTER", "KEYSLOT", key) for key in found} if await is_cluster(raw) else {0}
    assert len(slots) == 1
    assert {key[: key.index(b"}") + 1] for key in found} == {b"{chasqui:orders}"}


async def is_cluster(link: Link) -> bool:
    return link.address.mode == "cluster"


@pytest.mark.parametrize("job_id", ["a}:b", "}:", "x}:stream"])
async def test_an_id_that_looks_like_a_key_makes_no_queue(valkey_queue: Queue, job_id: str) -> None:
    await valkey_queue.add_unique("job", job_id=job_id, delay=HOUR)
    assert await valkey_queue.store.queues() == [QUEUE]


# -- caps


async def test_the_trail_is_capped_by_length_and_its_numbers_show_the_gap(
    redis_store_url: str, raw: Link, clock: VirtualClock
) -> None:
    async with Queue(QUEUE, f"{redis_store_url}?trail_max=500", clock=clock) as queue:
        for _ in range(100):
            await queue.add_many([NewJob("job") for _ in range(5)])
            deliveries = await fetch(queue)
            await settle(queue, *map(acked, deliveries))
        found = await trail(queue)
        assert found[-1].seq == 1_500
        assert found[0].seq > 1
        # A server cuts whole pages of a stream: of 100 entries here, or 4 KiB.
        assert 500 <= len(found) <= 500 + 5 * 100
        assert [each.seq for each in found] == list(range(found[0].seq, 1_501))
        page = await queue.store.transitions(QUEUE, after=0, limit=10)
        assert page.transitions[0].seq == found[0].seq
        assert await raw.call("XLEN", KEYS.log) <= 200


async def test_the_trail_is_capped_by_age(redis_store_url: str, clock: VirtualClock) -> None:
    async with Queue(QUEUE, f"{redis_store_url}?trail_age=2h", clock=clock) as queue:
        for _ in range(5):
            await queue.add_many([NewJob("job") for _ in range(3)])
            clock.advance(HOUR)
        assert len(await trail(queue)) == 15
        await queue.prune()
        found = await trail(queue)
        assert [each.seq for each in found] == list(range(10, 16))
        clock.advance(DAY)
        await queue.prune()
        assert await trail(queue) == []
        job_id = await queue.add("job")
        assert [(each.seq, each.message) for each in await trail(queue)] == [(16, job_id)]


async def test_dead_letters_over_the_cap_go_the_oldest_first_and_that_is_recorded(
    redis_store_url: str, raw: Link, clock: VirtualClock
) -> None:
    async with Queue(QUEUE, f"{redis_store_url}?dlq_max=5", clock=clock) as queue:
        ids = []
        for _ in range(4):
            ids += await bury(queue, *["job"] * 3)
            clock.advance(MINUTE)
        assert [each.id for each in await queue.dead.peek()] == ids[:-6:-1]
        assert await raw.call("XLEN", KEYS.dlq) == 5
        removed = [each for each in await checked_trail(queue) if each.entered is State.REMOVED]
        assert [each.message for each in removed] == ids[:7]
        assert {each.reason for each in removed} == {"over_the_cap"}
        assert removed[0].dwell == MINUTE
        assert await queue.get(ids[0]) is None


async def test_completed_jobs_over_the_cap_go_the_oldest_first(
    redis_store_url: str, clock: VirtualClock
) -> None:
    async with Queue(QUEUE, f"{redis_store_url}?done_max=10", clock=clock) as queue:
        assert (await queue.open()).completed_kept == 10
        ids = []
        for _ in range(8):
            ids += await queue.add_many([NewJob("job") for _ in range(3)])
            await settle(queue, *map(acked, await fetch(queue)))
        kept = await queue.jobs(state="COMPLETED")
        assert [each.id for each in kept] == ids[:-10:-1]
        assert (await queue.stats()).completed == 9
        assert await queue.get(ids[0]) is None
        assert (await record_of(queue, ids[-1])).state is State.COMPLETED


async def test_an_archive_of_nothing_keeps_nothing(valkey_url: str, valkey: Link) -> None:
    async with Queue(QUEUE, f"{valkey_url}?done_max=0") as queue:
        worker: Worker = make_worker(queue)
        worker.handler()(lambda _job: None)
        await queue.add("job")
        await worker.step()
        assert (await queue.stats()).completed == 0
        assert await valkey.call("XLEN", KEYS.done) == 0


async def test_a_batch_larger_than_the_archive_fills_it(valkey_url: str) -> None:
    """What is kept is the latest of what was done, not nothing."""
    async with Queue(QUEUE, f"{valkey_url}?done_max=10") as queue:
        await queue.add_many([NewJob("job") for _ in range(50)])
        await settle(queue, *map(acked, await fetch(queue)))
        assert 0 < (await queue.stats()).completed <= 10
