"""Writing records: versions, refusals, keys, and what can be found afterwards."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from remuda.clock import VirtualClock
from remuda.errors import RemudaError
from remuda.lifecycle import CommandStatus
from remuda.stores.commands import Arrival, CommandStore, Home, StoredCommand
from tests.commands.workbench import (
    MINUTE,
    START,
    claimed,
    ended,
    ids_of,
    keep,
    move,
    new,
    next_of,
    picture,
    put,
    signal,
    stored,
    trail,
    tried,
)

QUEUED = CommandStatus.QUEUED
ADDED = (move(None, QUEUED),)


async def test_the_stores_time_is_its_clocks(commands: CommandStore, clock: VirtualClock) -> None:
    clock.advance(MINUTE)
    assert commands.now() == START + MINUTE


async def test_a_new_command_is_there_with_version_one(commands: CommandStore) -> None:
    assert await tried(commands, new("A", record=b"\x00\xff any bytes")) == [True]
    assert await commands.load(["A", "B"]) == {
        "A": StoredCommand(id="A", version=1, record=b"\x00\xff any bytes")
    }


async def test_nothing_asked_nothing_done(commands: CommandStore) -> None:
    assert await tried(commands) == []
    assert await tried(commands, whole=True) == []
    assert await commands.load([]) == {}
    assert await commands.owners([]) == {}
    assert await commands.hearers([]) == {}
    assert await commands.find([]) == {}
    assert await keep(commands) == 0
    await commands.settle_signals(done=[], later=[])
    await commands.mark_published([])
    assert await commands.due([], limit=10, hold=MINUTE) == []
    assert (await commands.claim([], limit=10, hold=MINUTE)).commands == []


async def test_each_write_is_the_next_version(commands: CommandStore) -> None:
    await put(commands, new("A"))
    for base in range(1, 5):
        await put(commands, next_of("A", base, Home.TO_NS))
    assert await commands.load(["A"]) == {"A": stored("A", 5)}


async def test_another_replica_sees_what_was_written(
    commands: CommandStore, another_commands: CommandStore
) -> None:
    await put(commands, new("A"))
    await put(another_commands, next_of("A", 1, Home.RETRY))
    assert await commands.load(["A"]) == await another_commands.load(["A"]) == {"A": stored("A", 2)}


@pytest.mark.parametrize("base", [0, 1, 3])
async def test_a_change_from_another_version_changes_nothing(commands: CommandStore, base: int) -> None:
    """Neither the record nor its place, key, turn, ears, names, or the trail."""
    mine: dict[str, Any] = {"turn": "dev-1", "key": "key-1", "hears": "dev-1", "external_ids": ("ext-1",)}
    await put(commands, new("A", moves=ADDED, **mine))
    await put(commands, next_of("A", 1, Home.LANE, **mine), new("B", turn="dev-1"))
    before = await picture(commands, "A", "B")
    stale = next_of(
        "A",
        base,
        Home.ENDED,
        lane="gateway:elsewhere",
        key="key-2",
        hears="dev-2",
        external_ids=("ext-1", "ext-2"),
        moves=(move(QUEUED, CommandStatus.DELIVERY_FAILED),),
        record=b"stale",
    )
    assert await tried(commands, stale) == [False]
    assert await picture(commands, "A", "B") == before
    assert await claimed(commands) == ["A"]


async def test_a_change_of_a_command_that_is_not_there_is_refused(commands: CommandStore) -> None:
    assert await tried(commands, next_of("A", 1)) == [False]
    assert await commands.load(["A"]) == {}


async def test_one_refusal_leaves_the_others_of_a_call_alone(commands: CommandStore) -> None:
    await put(commands, new("A"))
    assert await tried(commands, new("B"), new("A", record=b"again"), next_of("A", 1)) == [True, False, True]
    assert await commands.load(["A", "B"]) == {"A": stored("A", 2), "B": stored("B", 1)}


async def test_a_whole_is_written_or_nothing_of_it(commands: CommandStore) -> None:
    await put(commands, new("A", key="key-1", moves=ADDED))
    before = await picture(commands, "A", "B", "C")
    assert await tried(
        commands, new("B", key="key-2", hears="dev-1", moves=ADDED), next_of("A", 7), whole=True
    ) == [False, False]
    assert await tried(commands, new("B", moves=ADDED), new("C", key="key-1"), whole=True) == [False, False]
    assert await picture(commands, "A", "B", "C") == before
    assert await tried(commands, new("B", moves=ADDED), next_of("A", 1), whole=True) == [True, True]
    assert await commands.load(["A", "B"]) == {"A": stored("A", 2), "B": stored("B", 1)}


async def test_of_two_writers_with_one_base_one_wins(
    commands: CommandStore, another_commands: CommandStore
) -> None:
    await put(commands, *(new(f"A{n}") for n in range(10)))
    answers = await asyncio.gather(
        *(
            tried(store, next_of(f"A{n}", 1, record=f"{n} by {place}".encode()))
            for n in range(10)
            for place, store in enumerate((commands, another_commands))
        )
    )
    won = [place for place, (written,) in enumerate(answers) if written]
    assert [place // 2 for place in won] == list(range(10))
    found = await commands.load([f"A{n}" for n in range(10)])
    assert [found[f"A{place // 2}"].record for place in won] == [
        f"{place // 2} by {place % 2}".encode() for place in won
    ]


# -- keys


async def test_a_key_has_one_owner(commands: CommandStore) -> None:
    await put(commands, new("A", key="key-1"))
    assert await tried(commands, new("B", key="key-1"), new("C", key="key-2")) == [False, True]
    assert await commands.load(["B"]) == {}
    assert await commands.owners(["key-1", "key-2", "key-3"]) == {
        "key-1": stored("A", 1),
        "key-2": stored("C", 1),
    }


async def test_an_owner_keeps_its_key_as_long_as_it_says_so(commands: CommandStore) -> None:
    await put(commands, new("A", key="key-1"))
    await put(commands, next_of("A", 1, Home.TO_NS, key="key-1"))
    assert await tried(commands, new("B", key="key-1")) == [False]
    assert await commands.owners(["key-1"]) == {"key-1": stored("A", 2)}
    await put(commands, next_of("A", 2, Home.TO_NS))
    assert await commands.owners(["key-1"]) == {}
    assert await tried(commands, new("B", key="key-1")) == [True]
    assert await commands.owners(["key-1"]) == {"key-1": stored("B", 1)}


async def test_a_key_can_be_exchanged_for_another(commands: CommandStore) -> None:
    await put(commands, new("A", key="key-1"))
    await put(commands, next_of("A", 1, key="key-2"))
    assert await commands.owners(["key-1", "key-2"]) == {"key-2": stored("A", 2)}


async def test_a_key_given_up_earlier_in_a_call_is_free_in_it(commands: CommandStore) -> None:
    await put(commands, new("A", key="key-1"))
    assert await tried(commands, ended("A", 1), new("B", key="key-1"), whole=True) == [True, True]
    assert await commands.owners(["key-1"]) == {"key-1": stored("B", 1)}


async def test_a_key_given_up_later_in_a_call_is_not_free_yet(commands: CommandStore) -> None:
    await put(commands, new("A", key="key-1"))
    assert await tried(commands, new("B", key="key-1"), ended("A", 1)) == [False, True]
    assert await commands.owners(["key-1"]) == {}


async def test_a_key_that_a_refused_change_would_have_given_up_is_not_free(commands: CommandStore) -> None:
    await put(commands, new("A", key="key-1"))
    assert await tried(commands, ended("A", 5), new("B", key="key-1")) == [False, False]
    assert await commands.owners(["key-1"]) == {"key-1": stored("A", 1)}


async def test_of_two_new_commands_with_one_key_in_a_call_the_first_gets_it(commands: CommandStore) -> None:
    assert await tried(commands, new("A", key="key-1"), new("B", key="key-1")) == [True, False]
    assert await commands.owners(["key-1"]) == {"key-1": stored("A", 1)}


async def test_a_refused_owner_to_be_takes_nothing_along(commands: CommandStore) -> None:
    await put(commands, new("A", key="key-1"))
    before = await picture(commands, "A", "B")
    taker = new("B", key="key-1", turn="dev-1", hears="dev-1", external_ids=("ext-1",), moves=ADDED)
    assert await tried(commands, taker) == [False]
    assert await picture(commands, "A", "B") == before


async def test_of_two_replicas_one_gets_a_key(commands: CommandStore, another_commands: CommandStore) -> None:
    answers = await asyncio.gather(
        *(
            tried(store, new(f"A{n}-{place}", key=f"key-{n}"))
            for n in range(10)
            for place, store in enumerate((commands, another_commands))
        )
    )
    assert sum(written for (written,) in answers) == 10
    owners = await commands.owners([f"key-{n}" for n in range(10)])
    assert sorted(owners) == sorted(f"key-{n}" for n in range(10))


# -- who hears, who is called what


async def test_hearers_come_oldest_first(commands: CommandStore) -> None:
    await put(commands, new("A2", hears="dev-1"), new("A1", hears="dev-1"), new("A3", hears="dev-2"))
    assert await commands.hearers(["dev-1", "dev-2", "dev-3"]) == {
        "dev-1": [stored("A1", 1), stored("A2", 1)],
        "dev-2": [stored("A3", 1)],
    }


async def test_a_command_hears_in_every_home_until_it_says_otherwise(commands: CommandStore) -> None:
    await put(commands, new("A", hears="dev-1"))
    for base, home in enumerate((Home.TO_NS, Home.TO_GATEWAY, Home.TO_DEVICE, Home.RETRY, Home.ENDED), 1):
        await put(commands, next_of("A", base, home, hears="dev-1"))
        assert await commands.hearers(["dev-1"]) == {"dev-1": [stored("A", base + 1)]}
    await put(commands, next_of("A", 6, Home.ENDED))
    assert await commands.hearers(["dev-1"]) in ({}, {"dev-1": []})


async def test_what_a_command_hears_can_change(commands: CommandStore) -> None:
    await put(commands, new("A", hears="dev-1"), new("B", hears="dev-1"))
    await put(commands, next_of("A", 1, hears="dev-2"))
    assert await commands.hearers(["dev-1", "dev-2"]) == {
        "dev-1": [stored("B", 1)],
        "dev-2": [stored("A", 2)],
    }


async def test_external_ids_find_their_command_live_or_ended(commands: CommandStore) -> None:
    await put(commands, new("A"), new("B", external_ids=("ext-9",)))
    await put(commands, next_of("A", 1, Home.TO_NS, external_ids=("ext-1",)))
    assert await commands.find(["ext-1", "ext-2", "ext-9"]) == {"ext-1": "A", "ext-9": "B"}
    await put(commands, next_of("A", 2, Home.RETRY, external_ids=("ext-1", "ext-2")))
    await put(commands, ended("A", 3, external_ids=("ext-1", "ext-2")))
    assert await commands.find(["ext-1", "ext-2", "ext-3"]) == {"ext-1": "A", "ext-2": "A"}


async def test_a_command_goes_by_its_id_external_ids_and_correlation_ids(commands: CommandStore) -> None:
    await put(commands, new("A", correlation_ids=("order-1",), external_ids=("ext-1",)))
    await put(commands, new("B", correlation_ids=("order-1", "order-2")))
    assert await commands.named("A") == ["A"]
    assert await commands.named("ext-1") == ["A"]
    assert sorted(await commands.named("order-1")) == ["A", "B"]
    assert await commands.named("order-2") == ["B"]
    assert await commands.named("nobody") == []
    await put(commands, ended("A", 1, correlation_ids=("order-1", "order-3"), external_ids=("ext-1",)))
    assert await commands.named("order-3") == ["A"]


# -- the rest


async def test_many_are_written_in_one_call(commands: CommandStore) -> None:
    await put(
        commands, *(new(f"A{n:04}", moves=ADDED, turn=f"dev-{n}", key=f"key-{n}") for n in range(2_000))
    )
    assert len(await commands.load([f"A{n:04}" for n in range(2_000)])) == 2_000
    assert len(await commands.owners([f"key-{n}" for n in range(2_000)])) == 2_000
    await put(commands, *(ended(f"A{n:04}", 1) for n in range(2_000)))
    assert (await commands.stats()).unpublished == 2_000
    assert await commands.owners([f"key-{n}" for n in range(2_000)]) == {}
    assert len(await trail(commands)) == 2_000


async def test_two_fleets_in_one_store_do_not_see_each_other(
    commands: CommandStore, other_fleet: CommandStore
) -> None:
    mine: dict[str, Any] = {
        "key": "key-1",
        "turn": "dev-1",
        "hears": "dev-1",
        "external_ids": ("ext-1",),
        "moves": ADDED,
    }
    await put(commands, new("A", **mine))
    await commands.hold_lane("gateway:g3", until=None, why="down")
    await keep(commands, signal("s1"))
    nothing = await picture(other_fleet, "A")
    assert await other_fleet.load(["A"]) == {}
    assert await other_fleet.commands() == []
    assert await other_fleet.lanes() == []
    assert await other_fleet.named("A") == []
    assert (await other_fleet.stats()).signals == 0
    await put(commands, next_of("A", 1, Home.TO_NS, **{**mine, "moves": ()}))
    assert await picture(other_fleet, "A") == nothing
    assert await keep(other_fleet, signal("s1")) == 1
    # The same ids, keys, turns and lanes are free over there.
    await put(other_fleet, new("A", **mine, record=b"theirs"))
    assert await claimed(other_fleet) == ["A"]
    assert (await commands.load(["A"]))["A"] == stored("A", 2)
    assert [each.seq for each in await trail(other_fleet)] == [1]
    assert [each.queue for each in (*await trail(other_fleet), *await trail(commands))] == [
        "devices:others",
        "devices:devices",
    ]


async def test_commands_are_listed_newest_first_and_can_be_filtered(commands: CommandStore) -> None:
    await put(
        commands,
        new("A1", lane="a", device="dev-1"),
        new("A2", lane="a", device="dev-2"),
        new("A3", Home.TO_NS, lane="b", device="dev-1"),
        ended("A4", 0, lane="a", device="dev-1"),
    )
    assert ids_of(await commands.commands()) == ["A4", "A3", "A2", "A1"]
    assert ids_of(await commands.commands(limit=2)) == ["A4", "A3"]
    assert ids_of(await commands.commands(status=QUEUED)) == ["A2", "A1"]
    assert ids_of(await commands.commands(status=CommandStatus.DELIVERY_FAILED)) == ["A4"]
    assert ids_of(await commands.commands(lane="a")) == ["A4", "A2", "A1"]
    assert ids_of(await commands.commands(device="dev-1", limit=2)) == ["A4", "A3"]
    assert ids_of(await commands.commands(status=QUEUED, lane="a", device="dev-1")) == ["A1"]
    assert ids_of(await commands.commands(status=CommandStatus.TO_RETRY)) == []
    assert await commands.commands(device="dev-2") == [stored("A2", 1)]


async def test_the_numbers_of_a_fleet(commands: CommandStore) -> None:
    stats = await commands.stats()
    assert (sum(stats.by_status.values()), stats.signals, stats.unpublished) == (0, 0, 0)
    await put(commands, new("A1"), new("A2"), new("A3", Home.TO_NS), ended("A4", 0), ended("A5", 0))
    await put(commands, next_of("A1", 1, Home.RETRY))
    await keep(commands, signal("s1"), signal("s2"))
    await commands.mark_published(["A5"])
    stats = await commands.stats()
    assert {status: count for status, count in stats.by_status.items() if count} == {
        CommandStatus.QUEUED: 1,
        CommandStatus.TO_RETRY: 1,
        CommandStatus.SENT_TO_NS: 1,
        CommandStatus.DELIVERY_FAILED: 2,
    }
    assert (stats.signals, stats.unpublished) == (2, 1)


async def test_what_comes_in_is_announced(commands: CommandStore) -> None:
    heard: list[Arrival] = []
    commands.on_arrival(heard.append)
    await put(commands, new("A"))
    assert set(heard) == {Arrival.LANE}
    heard.clear()
    await put(commands, ended("A", 1))
    assert set(heard) == {Arrival.END}
    heard.clear()
    await keep(commands, signal("s1"))
    assert set(heard) == {Arrival.SIGNAL}
    heard.clear()
    assert await tried(commands, new("A"), ended("A", 7)) == [False, False]
    await keep(commands, signal("s1"))
    assert heard == []


async def test_a_store_can_be_opened_again_but_not_used_after_its_end(commands: CommandStore) -> None:
    assert (await commands.open()).backend == (await commands.open()).backend
    await commands.close()
    with pytest.raises(RemudaError):
        await commands.load(["A"])
    with pytest.raises(RemudaError):
        await tried(commands, new("A"))
