"""A connection that is cut in the middle of a batch: the request, or the reply to what was done, is lost."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from remuda import NewJob, Queue, Reason, State, StoreUnavailableError
from remuda.clock import VirtualClock
from remuda.stores.contract import Delivery, Settlement
from remuda.stores.redis import scripts
from remuda.stores.redis.link import Script
from tests.contract.workbench import (
    LEASE,
    acked,
    checked_trail,
    dead,
    fetch,
    moves_of,
    nacked,
    record_of,
    recover,
    settle,
)
from tests.faults.journal import by_job, overlaps, runs_of
from tests.faults.stable import Processes
from tests.faults.trail import audited, states
from tests.faults.waiting import until
from tests.faults.wire import Kept, Wire
from tests.redis_servers import ValkeyServer

pytestmark = pytest.mark.faults

MOMENT = timedelta(seconds=1)
BATCH = 20
COMPLETED_ONCE = [State.PENDING, State.PROCESSING, State.COMPLETED]

anywhere = pytest.mark.parametrize(
    "kept",
    [
        pytest.param(lambda _: 0, id="nothing comes through"),
        pytest.param(lambda _: 1, id="one byte"),
        pytest.param(lambda length: length // 2, id="half"),
        pytest.param(lambda length: length - 1, id="all but one byte"),
    ],
)


class Bench:
    """Two queues that are the same one: `queue` over a wire that is cut, `watcher` over another."""

    def __init__(self, wire: Wire, queue: Queue, watcher: Queue, clock: VirtualClock) -> None:
        self.wire = wire
        self.queue = queue
        self.watcher = watcher
        self.clock = clock

    def lose_request(self, script: Script, kept: Kept) -> None:
        self.wire.lose_request(_marker(script), kept)

    def lose_reply(self, script: Script, kept: Kept = lambda _: 0) -> None:
        self.wire.lose_reply(_marker(script), kept)

    async def taken(self, count: int = BATCH) -> list[Delivery]:
        """So many jobs, in our hands."""
        await self.watcher.add_many([NewJob("job", number) for number in range(count)])
        deliveries = await fetch(self.queue, count)
        assert len(deliveries) == count
        return deliveries


def _marker(script: Script) -> bytes:
    return script.form(has_flags=True).sha.encode()


@pytest.fixture
async def bench(valkey_server: ValkeyServer) -> AsyncIterator[Bench]:
    url = valkey_server.fresh()
    async with _benched(url, valkey_server.port) as bench:
        yield bench


@asynccontextmanager
async def _benched(url: str, port: int) -> AsyncIterator[Bench]:
    clock = VirtualClock()
    async with (
        Wire(port) as wire,
        Queue("jobs", url, clock=clock) as watcher,
        Queue("jobs", wire.url(), clock=clock) as queue,
    ):
        await _know_the_scripts(watcher)
        yield Bench(wire, queue, watcher, clock)
        await checked_trail(watcher)
        await audited(watcher)
        assert wire.cuts, "nothing was cut: this proves nothing"


async def _know_the_scripts(queue: Queue) -> None:
    """Have every script known to the server, so that a wire can tell them by their names."""
    for script in (scripts.ADD, scripts.FETCH, scripts.SETTLE, scripts.EXTEND, scripts.RELEASE):
        await queue.store._link.call("SCRIPT", "LOAD", script.form(has_flags=True).body)  # type: ignore[attr-defined]


# -- fetch


@anywhere
async def test_a_fetch_that_did_not_arrive_takes_nothing(bench: Bench, kept: Kept) -> None:
    ids = await bench.watcher.add_many([NewJob("job", number) for number in range(BATCH)])
    bench.lose_request(scripts.FETCH, kept)
    with pytest.raises(StoreUnavailableError):
        await fetch(bench.queue)
    assert (await bench.watcher.stats()).pending == BATCH

    deliveries = await fetch(bench.queue)
    assert [each.id for each in deliveries] == ids
    assert {each.deliveries for each in deliveries} == {1}


@anywhere
async def test_jobs_whose_fetch_was_not_answered_are_back_when_their_lease_ends(
    bench: Bench, kept: Kept
) -> None:
    ids = await bench.watcher.add_many([NewJob("job", number) for number in range(BATCH)])
    bench.lose_reply(scripts.FETCH, kept)
    with pytest.raises(StoreUnavailableError):
        await fetch(bench.queue)
    assert (await bench.watcher.stats()).processing == BATCH
    assert await fetch(bench.queue) == []
    assert await recover(bench.queue) == []

    bench.clock.advance(LEASE)
    assert sorted(await recover(bench.queue)) == sorted(ids)
    deliveries = await fetch(bench.queue)
    assert [each.id for each in deliveries] == ids
    assert {(each.deliveries, each.attempts) for each in deliveries} == {(2, 0)}
    assert await settle(bench.queue, *map(acked, deliveries)) == []
    assert (await bench.watcher.stats()).completed == BATCH


# -- settle


def _every_outcome(bench: Bench, deliveries: list[Delivery]) -> list[Settlement]:
    later = bench.clock.now() + MOMENT
    outcomes = [
        lambda each: acked(each, result=b"\xc0"),
        lambda each: nacked(each, later),
        lambda each: dead(each, Reason.RETRIES_EXHAUSTED),
    ]
    return [outcomes[place % 3](each) for place, each in enumerate(deliveries)]


@anywhere
async def test_outcomes_that_did_not_arrive_are_written_when_they_are_sent_again(
    bench: Bench, kept: Kept
) -> None:
    outcomes = _every_outcome(bench, await bench.taken())
    bench.lose_request(scripts.SETTLE, kept)
    with pytest.raises(StoreUnavailableError):
        await settle(bench.queue, *outcomes)
    assert (await bench.watcher.stats()).processing == BATCH

    assert await settle(bench.queue, *outcomes) == []
    await _each_was_settled_once(bench, outcomes)


@anywhere
async def test_outcomes_whose_writing_was_not_answered_are_written_once(bench: Bench, kept: Kept) -> None:
    outcomes = _every_outcome(bench, await bench.taken())
    bench.lose_reply(scripts.SETTLE, kept)
    with pytest.raises(StoreUnavailableError):
        await settle(bench.queue, *outcomes)
    await _each_was_settled_once(bench, outcomes)

    await settle(bench.queue, *outcomes)
    await _each_was_settled_once(bench, outcomes)
    bench.clock.advance(LEASE)
    assert await recover(bench.queue) == []
    again = {each.delivery.id for each in outcomes if each.state is State.RETRYABLE}
    assert {each.id for each in await fetch(bench.queue)} == again


async def test_unanswered_outcomes_do_not_hold_up_those_that_come_later(bench: Bench) -> None:
    first, second = [await bench.taken() for _ in range(2)]
    early = [acked(each) for each in (*first[::2], *second[::2])]
    late = [acked(each) for each in (*first[1::2], *second[1::2])]
    bench.lose_reply(scripts.SETTLE)
    with pytest.raises(StoreUnavailableError):
        await settle(bench.queue, *early)

    refused = await settle(bench.queue, *early, *late)
    assert not {each.delivery.id for each in refused} & {each.delivery.id for each in late}
    await _each_was_settled_once(bench, early + late)


async def _each_was_settled_once(bench: Bench, outcomes: list[Settlement]) -> None:
    trail = await checked_trail(bench.watcher)
    for each in outcomes:
        assert moves_of(trail, each.delivery.id) == [
            (None, State.PENDING),
            (State.PENDING, State.PROCESSING),
            (State.PROCESSING, each.state),
        ]
        record = await record_of(bench.watcher, each.delivery.id)
        assert (record.state, record.attempts, record.deliveries) == (each.state, 1, 1)


# -- extend and release


async def test_leases_whose_renewal_was_not_answered_are_still_ours(bench: Bench) -> None:
    deliveries = await bench.taken()
    part = deliveries[::2]
    bench.lose_reply(scripts.EXTEND)
    with pytest.raises(StoreUnavailableError):
        await bench.queue.store.extend("jobs", part, lease=2 * LEASE)

    assert await bench.queue.store.extend("jobs", part, lease=2 * LEASE) == []
    assert await settle(bench.queue, *map(acked, deliveries)) == []
    bench.clock.advance(3 * LEASE)
    assert await recover(bench.queue) == []


async def test_outcomes_are_ours_to_write_after_a_renewal_that_was_not_answered(bench: Bench) -> None:
    """Also when they have to be sent twice, and then are looked at closely."""
    deliveries = await bench.taken()
    part = deliveries[::2]
    bench.lose_reply(scripts.EXTEND)
    with pytest.raises(StoreUnavailableError):
        await bench.queue.store.extend("jobs", part, lease=LEASE)
    bench.lose_request(scripts.SETTLE, lambda length: length // 2)
    with pytest.raises(StoreUnavailableError):
        await settle(bench.queue, *map(acked, part))

    assert await settle(bench.queue, *map(acked, part)) == []
    assert (await bench.watcher.stats()).completed == len(part)


@anywhere
async def test_jobs_whose_return_was_not_answered_are_back_once(bench: Bench, kept: Kept) -> None:
    deliveries = await bench.taken()
    bench.lose_reply(scripts.RELEASE, kept)
    with pytest.raises(StoreUnavailableError):
        await bench.queue.store.release("jobs", deliveries, who="worker-1", counted=False)

    again = await fetch(bench.queue)
    assert sorted(each.id for each in again) == sorted(each.id for each in deliveries)
    assert {each.deliveries for each in again} == {1}
    await bench.queue.store.release("jobs", deliveries, who="worker-1", counted=False)
    assert (await bench.watcher.stats()).processing == BATCH
    assert len(await settle(bench.queue, *map(acked, deliveries))) == BATCH
    assert await settle(bench.queue, *map(acked, again)) == []


# -- add


def _a_mixed_batch(clock: VirtualClock) -> list[NewJob]:
    return [
        NewJob("plain", job_id="plain"),
        NewJob("urgent", job_id="urgent", priority=2),
        NewJob("later", job_id="later", delay=MOMENT),
        NewJob("unique", job_id="unique", unique_for=timedelta(hours=1)),
        NewJob("long", "x" * 100_000, job_id="long"),
    ]


@anywhere
async def test_a_batch_that_did_not_arrive_whole_is_not_there_at_all(bench: Bench, kept: Kept) -> None:
    bench.lose_request(scripts.ADD, kept)
    with pytest.raises(StoreUnavailableError):
        await bench.queue.add_many(_a_mixed_batch(bench.clock))
    assert (await bench.watcher.stats()).total == 0

    await bench.queue.add_many(_a_mixed_batch(bench.clock))
    assert (await bench.watcher.stats()).total == 5


@anywhere
async def test_a_batch_whose_adding_was_not_answered_is_there_once(bench: Bench, kept: Kept) -> None:
    """The caller has to be told that it is unsure; an id of its own lets it ask again without harm."""
    bench.lose_reply(scripts.ADD, kept)
    with pytest.raises(StoreUnavailableError):
        await bench.queue.add_many(_a_mixed_batch(bench.clock))
    assert (await bench.watcher.stats()).total == 5

    added = await bench.queue.add_unique("unique", job_id="unique", unique_for=timedelta(hours=1))
    assert not added.new
    bench.clock.advance(MOMENT)
    jobs = await fetch(bench.queue)
    assert sorted(each.id for each in jobs) == ["later", "long", "plain", "unique", "urgent"]


# -- under load


async def test_workers_on_a_wire_that_breaks_again_and_again_lose_nothing_and_share_nothing(
    valkey_server: ValkeyServer, processes: Processes
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it with a failure
    rng = random.Random(seed)
    options = {
        "concurrency": 10,
        "fetch_batch_size": 20,
        "max_fetch_interval": 0.1,
        "release_stuck_timeout": 1.5,
        "release_stuck_interval": 0.2,
    }
    # Some break in the middle of the first batch; others carry several, so that there is some progress.
    short_and_long = (lambda: rng.randrange(300, 20_000), lambda: rng.randrange(20_000, 200_000))
    async with (
        Queue("jobs", valkey_server.fresh()) as queue,
        Wire(valkey_server.port, budget=lambda: rng.choice(short_and_long)()) as wire,
    ):
        ids = await queue.add_many([NewJob("sleep", 0.005)] * 1_500)
        workers = [processes.worker(wire.url(), **options) for _ in range(2)]

        async def all_done() -> bool:
            return (await queue.stats()).completed == len(ids)

        # A run of bad luck makes each loop wait longer before it tries again: up to 5 s, some times over.
        await until(all_done, "all jobs are done", within_s=90)
        assert wire.cuts >= 5
        runs = runs_of(workers)
        assert not overlaps(runs)
        assert by_job(runs).keys() == set(ids)
        trail = await audited(queue)
        assert trail.keys() == set(ids)
        assert all(states(history)[-1] is State.COMPLETED for history in trail.values())
    for worker in workers:
        assert worker.exit_code is None
        assert worker.complaints() == []
