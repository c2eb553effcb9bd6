"""What is particular to commands on Redis and Valkey: the keys, what scripts cost, ids without a record."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest

from remuda.clock import VirtualClock
from remuda.errors import ConfigurationError, StoreError
from remuda.lifecycle import CommandStatus
from remuda.stores import open_store
from remuda.stores.commands import TIMED_HOMES, Arrival, Home, Pace
from remuda.stores.redis.commands import AT_ONCE, WHOLE_AT_ONCE, RedisCommands
from remuda.stores.redis.link import Link
from tests.commands.workbench import (
    DAY,
    HOUR,
    LANE,
    MINUTE,
    OTHER_LANE,
    SECOND,
    START,
    claim,
    claimed,
    due,
    ended,
    ids_of,
    keep,
    lane_of,
    move,
    new,
    next_of,
    put,
    settle,
    signal,
    taken,
    trail,
    tried,
)
from tests.redis.links import linked, with_parameters

TAG = "{remuda:devices}:"
PACES = (Pace(prefix="lorawan_network:", every=2 * SECOND), Pace(prefix="gateway:", slots=5))


@pytest.fixture
async def store(redis_store_url: str, clock: VirtualClock) -> AsyncIterator[RedisCommands]:
    """Commands on each kind of server."""
    async with RedisCommands(redis_store_url, clock=clock) as store:
        yield store


@pytest.fixture
async def raw(redis_store_url: str) -> AsyncIterator[Link]:
    """The server of `store`, past the store."""
    async with linked(redis_store_url) as link:
        yield link


async def keys_in(raw: Link) -> set[str]:
    return {key.decode() async for key in raw.scan("*")}


async def members(raw: Link, key: str) -> dict[str, float]:
    """A sorted set's members, in order, each with its score."""
    flat = await raw.call("ZRANGE", TAG + key, 0, -1, "WITHSCORES")
    return {each.decode(): float(score) for each, score in zip(flat[::2], flat[1::2], strict=True)}


async def table(raw: Link, key: str) -> dict[str, bytes]:
    flat = await raw.call("HGETALL", TAG + key)
    return {each.decode(): value for each, value in zip(flat[::2], flat[1::2], strict=True)}


def ms(moment: datetime) -> float:
    return moment.timestamp() * 1000


async def lose_record(raw: Link, command_id: str) -> None:
    assert await raw.call("DEL", f"{TAG}device_message:{command_id}") == 1


# -- the seed's keys


@pytest.mark.parametrize("lane", ["lorawan_network:grid-1", "gateway:g1", "lorawan_gateway:g2"])
async def test_a_lane_is_a_sorted_set_by_priority_under_the_seeds_name(
    store: RedisCommands, raw: Link, lane: str
) -> None:
    await put(store, new("b", lane=lane), new("a", lane=lane), new("c", lane=lane, priority=50))
    assert list((await members(raw, f"queue:{lane}")).items()) == [("c", -50.0), ("a", 0.0), ("b", 0.0)]


@pytest.mark.parametrize(
    ("home", "key"),
    [
        (Home.TO_NS, "queue_in_flight_to_ns"),
        (Home.TO_GATEWAY, "queue_in_flight_to_gw"),
        (Home.TO_DEVICE, "queue_in_flight_to_device"),
        (Home.TASK_V1, "queue_awaiting_task:V1"),
        (Home.TASK_V2, "queue_awaiting_task:V2"),
        (Home.RETRY, "queue_awaiting_retry"),
        (Home.ENDED, "queue_ended"),
    ],
)
async def test_every_other_home_is_a_sorted_set_by_deadline_under_the_seeds_name(
    store: RedisCommands, raw: Link, home: Home, key: str
) -> None:
    deadline = START + timedelta(seconds=20, microseconds=1500)
    await put(store, new("a", home, due_at=deadline))
    assert await members(raw, key) == {"a": pytest.approx(ms(START) + 20_001.5, abs=0.0004)}


async def test_a_command_is_a_hash_that_a_person_can_read(store: RedisCommands, raw: Link) -> None:
    await put(
        store,
        new("a", priority=30, turn="dev-1", key="read:dev-1", hears="dev-1", expires_at=START, airtime_ms=62),
    )
    assert await table(raw, "device_message:a") == {
        "version": b"1",
        "record": b"a:1",
        "home": b"lane",
        "lane": LANE.encode(),
        "priority": b"30",
        "status": b"QUEUED",
        "type": b"read_credit",
        "device": b"dev-1",
        "turn": b"dev-1",
        "key": b"read:dev-1",
        "hears": b"dev-1",
        "expires": str(int(ms(START))).encode(),
        "airtime": b"62",
    }


async def test_locks_slots_and_the_index_of_deliveries(
    store: RedisCommands, raw: Link, clock: VirtualClock
) -> None:
    await put(store, new("a", lane="lorawan_network:1"), new("b"))
    await claim(store, *PACES)
    assert await members(raw, "lock_queue") == {"lorawan_network:1": ms(START + 2 * SECOND)}
    assert await members(raw, "rate_limit:gateway:g1") == {"b": ms(START + 10 * MINUTE)}
    await put(store, next_of("b", 1, Home.TASK_V1, uses_slot=True, external_ids=("task-9",)))
    assert await table(raw, "delivery_index") == {"task-9": b"b"}


async def full_life(store: RedisCommands, clock: VirtualClock) -> None:
    """Commands in every home, with all that they can hold on to, lanes of each kind, and signals."""
    holding: dict[str, Any] = {"turn": "dev-1", "hears": "dev-1", "expires_at": START + HOUR}
    await put(
        store,
        *(new(f"h-{home.name}", home, device=f"of-{home.name}") for home in Home),
        new("a", key="key-1", correlation_ids=("order-1",), **holding),
        new("b", correlation_ids=("order-1",), **holding),
        new("c", lane="lorawan_network:1", moves=[move(None, CommandStatus.QUEUED)]),
        new("d", lane="lorawan_network:1"),
    )
    await store.hold_lane(OTHER_LANE, until=START + MINUTE, why="gateway down")
    await claim(store, *PACES)
    await put(store, next_of("a", 1, Home.TASK_V2, uses_slot=True, external_ids=("task-1",), **holding))
    await keep(store, signal("s1"), signal("s2"))
    await taken(store, limit=1)
    await due(store, *TIMED_HOMES)


async def test_every_key_is_under_the_fleets_hash_tag(
    store: RedisCommands, raw: Link, clock: VirtualClock
) -> None:
    await full_life(store, clock)
    keys = await keys_in(raw)
    assert len(keys) > 30
    assert not [key for key in keys if not key.startswith(TAG)]


async def test_fleets_and_jobs_keep_out_of_each_others_keys(
    store: RedisCommands, raw: Link, redis_store_url: str, clock: VirtualClock
) -> None:
    await full_life(store, clock)
    async with open_store(redis_store_url) as jobs, RedisCommands(redis_store_url, fleet="b") as other:
        assert await jobs.queues() == []
        assert await other.commands() == []
        assert (await other.stats()).by_status == {}
    with pytest.raises(ConfigurationError, match="fleet"):
        RedisCommands(redis_store_url, fleet="a}b")


async def test_nothing_is_left_of_commands_that_were_published_and_pruned(
    store: RedisCommands, raw: Link, clock: VirtualClock
) -> None:
    await full_life(store, clock)
    clock.advance(10 * MINUTE)
    now = clock.now()
    for each in await store.commands():
        await put(store, ended(each.id, each.version, at=now))
    published = ids_of(await store.take_ended(limit=100, hold=MINUTE))
    await store.mark_published(published)
    await settle(store, "s1", "s2")
    assert len(published) == 12
    assert TAG + "signals_done" in await keys_in(raw)
    clock.advance(2 * DAY)
    await claim(store, *PACES)
    assert await store.prune(ended_before=clock.now(), limit=100) == 12 + 2
    assert await keys_in(raw) == {TAG + "log", TAG + "meta"}


async def test_a_batch_is_one_entry_of_the_trail(store: RedisCommands, raw: Link) -> None:
    added = move(None, CommandStatus.QUEUED)
    assert await tried(store, *(new(f"c{n:03d}", moves=[added]) for n in range(100)), new("x", moves=[])) == (
        [True] * 101
    )
    assert await raw.call("XLEN", TAG + "log") == 1
    written = await tried(store, new("c000", moves=[added]), new("y", moves=[added]))
    assert written == [False, True]
    assert [each.message for each in (await trail(store))[100:]] == ["y"]
    assert [each[0] for each in await raw.call("XRANGE", TAG + "log", "-", "+")] == [b"100-100", b"101-1"]


async def test_the_trail_is_kept_to_its_length_and_its_age(redis_store_url: str, clock: VirtualClock) -> None:
    url = with_parameters(redis_store_url, trail_max=250, trail_age="1h")
    async with RedisCommands(url, clock=clock) as store:
        for n in range(400):
            await put(store, new(f"c{n:03d}", moves=[move(None, CommandStatus.QUEUED)]))
        assert 250 <= len(await trail(store)) < 400
        clock.advance(2 * HOUR)
        await put(store, new("young", moves=[move(None, CommandStatus.QUEUED)]))
        await store.prune(ended_before=START, limit=10)
        assert [each.message for each in await trail(store)] == ["young"]


# -- scripts


async def test_scripts_are_known_again_after_the_server_forgot_them(
    store: RedisCommands, raw: Link, clock: VirtualClock
) -> None:
    await put(store, new("a"))
    await raw.everywhere("SCRIPT", "FLUSH")
    await put(store, new("b"))
    assert await claimed(store) == ["a", "b"]


async def calls_within(raw: Link) -> int:
    """How many commands the servers have carried out so far, those of scripts included."""
    total = 0
    for info in await raw.everywhere("INFO", "commandstats"):
        lines = info.decode().splitlines()
        total += sum(int(line.partition("calls=")[2].partition(",")[0]) for line in lines if "calls=" in line)
    return total


async def test_what_a_claim_costs_does_not_depend_on_how_many_wait(store: RedisCommands, raw: Link) -> None:
    async def cost_of_one() -> int:
        before = await calls_within(raw)
        assert len((await claim(store, limit=1)).commands) == 1
        return await calls_within(raw) - before

    await put(store, *(new(f"a{n}", turn=f"turn-{n}") for n in range(3)))
    await claim(store, limit=1)
    alone = await cost_of_one()
    await put(store, *(new(f"b{n:04d}", turn=f"turn-{n % 7}") for n in range(2_000)))
    assert await cost_of_one() == alone


async def test_more_than_fit_into_one_step_are_written_all_the_same(store: RedisCommands) -> None:
    many = [new(f"c{n:05d}") for n in range(2 * AT_ONCE + 1)]
    await put(store, many[AT_ONCE])
    assert await tried(store, *many) == [n != AT_ONCE for n in range(len(many))]
    assert len(await store.load([each.id for each in many])) == len(many)
    assert len(await claimed(store, limit=len(many))) == len(many)
    assert len(await store.commands(limit=5_000, device="dev-1")) == len(many)


async def test_more_than_a_step_can_hold_as_a_whole_is_refused_before_anything_is_done(
    store: RedisCommands,
) -> None:
    with pytest.raises(ConfigurationError, match="10,001 changes"):
        await tried(store, *(new(f"c{n:05d}") for n in range(WHOLE_AT_ONCE + 1)), whole=True)
    assert await store.commands() == []


@asynccontextmanager
async def out_of_memory(link: Link) -> AsyncIterator[None]:
    await link.everywhere("CONFIG", "SET", "maxmemory-policy", "noeviction")
    try:
        await link.everywhere("CONFIG", "SET", "maxmemory", "1")
        yield
    finally:
        await link.everywhere("CONFIG", "SET", "maxmemory", "0")


async def test_without_memory_new_commands_are_refused_and_the_others_go_on(
    store: RedisCommands, raw: Link
) -> None:
    await put(store, new("a"))
    async with out_of_memory(raw):
        with pytest.raises(StoreError):
            await tried(store, new("b"))
        if not raw.server.has_flags:
            return  # before 7.0 a server refuses every script that adds something
        assert await claimed(store) == ["a"]
        await put(store, next_of("a", 1, Home.TO_GATEWAY, due_at=START))
        assert await due(store, Home.TO_GATEWAY) == ["a"]
        await put(store, ended("a", 2))
        assert ids_of(await store.take_ended(limit=1, hold=MINUTE)) == ["a"]
        await store.mark_published(["a"])
        assert await store.prune(ended_before=START + SECOND, limit=10) == 1


async def test_a_turn_that_comes_free_is_an_arrival_in_a_lane(store: RedisCommands) -> None:
    await put(store, new("a", turn="dev-1"), new("b", turn="dev-1"))
    assert await claimed(store) == ["a"]
    heard: list[Arrival] = []
    store.on_arrival(heard.append)
    await put(store, next_of("a", 1, Home.TO_NS, turn="dev-1"))
    assert heard == []
    await put(store, ended("a", 2))
    assert heard == [Arrival.LANE, Arrival.END]


# -- lanes that are not looked at until something changes


async def test_a_locked_lane_that_is_held_opens_when_both_are_over(store: RedisCommands) -> None:
    lane = "lorawan_network:1"
    await put(store, new("a", lane=lane), new("b", lane=lane))
    assert (await claim(store, *PACES)).next_at == START + 2 * SECOND
    await store.hold_lane(lane, until=START + MINUTE, why="gateway down")
    assert (await claim(store, *PACES)).next_at == START + MINUTE
    await store.release_lane(lane)
    assert (await claim(store, *PACES)).next_at == START + 2 * SECOND


async def test_a_lane_that_was_released_while_it_was_empty_is_open(store: RedisCommands) -> None:
    await put(store, new("a"))
    await store.hold_lane(LANE, until=START + HOUR, why="gateway down")
    assert await claimed(store) == []
    await put(store, ended("a", 1))
    await store.release_lane(LANE)
    await put(store, new("b"))
    assert await claimed(store) == ["b"]


# -- ids without a record


@pytest.mark.parametrize("home", TIMED_HOMES)
async def test_a_due_id_without_a_record_is_swept_away_and_starves_nobody(
    store: RedisCommands, raw: Link, home: Home
) -> None:
    lost = [f"a{n}" for n in range(60)]
    await put(store, *(new(each, home, expires_at=START) for each in lost), new("b", home, due_at=START))
    for each in lost:
        await lose_record(raw, each)
    assert await due(store, home, limit=1) == ["b"]
    assert set(await members(raw, f"queue_{home}")) == {"b"}
    assert await members(raw, "queue_expiring") == {}
    assert sum((await store.stats()).by_status.values()) == 1


async def test_a_waiting_id_without_a_record_is_swept_away_and_starves_nobody(
    store: RedisCommands, raw: Link
) -> None:
    lost = [f"a{n}" for n in range(60)]
    await put(store, *(new(each) for each in lost), new("b"))
    for each in lost:
        await lose_record(raw, each)
    assert await claimed(store, limit=1) == ["b"]
    assert await members(raw, f"queue:{LANE}") == {}
    assert await lane_of(store) is None


async def test_a_turn_whose_owner_has_no_record_goes_to_the_next(
    store: RedisCommands, raw: Link, clock: VirtualClock
) -> None:
    await put(store, *(new(each, turn="dev-1") for each in ("a", "b", "c", "d")))
    assert await claimed(store) == ["a"]
    await lose_record(raw, "a")
    await lose_record(raw, "b")
    clock.advance(MINUTE)
    assert await due(store, Home.TO_NS) == []
    assert await claimed(store) == ["c"]
    await lose_record(raw, "c")
    await put(store, new("e", turn="dev-1", priority=1))
    assert await claimed(store) == ["e"]


async def test_what_somebody_without_a_record_holds_is_free(store: RedisCommands, raw: Link) -> None:
    await put(store, new("a", key="key-1", hears="dev-1"))
    await lose_record(raw, "a")
    assert await store.owners(["key-1"]) == {}
    assert await store.hearers(["dev-1"]) == {}
    await put(store, new("b", key="key-1"))
    assert set(await store.owners(["key-1"])) == {"key-1"}


async def test_an_ended_id_without_a_record_is_swept_away_and_starves_nobody(
    store: RedisCommands, raw: Link, clock: VirtualClock
) -> None:
    await put(store, ended("a", 0), ended("b", 0), ended("c", 0))
    await lose_record(raw, "a")
    assert ids_of(await store.take_ended(limit=1, hold=SECOND)) == ["b"]
    await lose_record(raw, "b")
    clock.advance(MINUTE)
    assert ids_of(await store.take_ended(limit=1, hold=SECOND)) == ["c"]
    assert (await store.stats()).unpublished == 1
