"""Ended commands: published once their subscribers know, and removed a while after that."""

from __future__ import annotations

from typing import Any

from remuda.clock import VirtualClock
from remuda.stores.commands import CommandStore, Home
from tests.commands.workbench import (
    DAY,
    HOUR,
    MILLISECOND,
    MINUTE,
    SECOND,
    START,
    claimed,
    due,
    ended,
    ids_of,
    new,
    next_of,
    put,
    side_by_side,
    stored,
)


async def take(store: CommandStore, *, limit: int = 100) -> list[str]:
    return ids_of(await store.take_ended(limit=limit, hold=MINUTE))


async def test_ended_commands_come_oldest_first(commands: CommandStore, clock: VirtualClock) -> None:
    clock.advance(MINUTE)
    await put(
        commands,
        ended("A", 0, at=START + 3 * SECOND),
        ended("B", 0, at=START + SECOND),
        new("C"),
        ended("D", 0, at=START + 2 * SECOND),
    )
    assert await take(commands, limit=2) == ["B", "D"]
    assert await commands.take_ended(limit=2, hold=MINUTE) == [stored("A", 1)]


async def test_one_that_nobody_marks_is_taken_again_after_the_hold(
    commands: CommandStore, clock: VirtualClock
) -> None:
    await put(commands, ended("A", 0), ended("B", 0))
    assert sorted(await take(commands)) == ["A", "B"]
    await commands.mark_published(["A"])
    clock.advance(MINUTE - MILLISECOND)
    assert await take(commands) == []
    clock.advance(MILLISECOND)
    assert await take(commands) == ["B"]
    assert (await commands.stats()).unpublished == 1
    await commands.mark_published(["B"])
    clock.advance(HOUR)
    assert await take(commands) == []
    assert (await commands.stats()).unpublished == 0
    assert await commands.load(["A", "B"]) == {"A": stored("A", 1), "B": stored("B", 1)}


async def test_marking_one_that_lives_or_is_not_there_means_nothing(commands: CommandStore) -> None:
    await put(commands, new("A"))
    await commands.mark_published(["A", "B"])
    await put(commands, ended("A", 1), ended("B", 0))
    assert sorted(await take(commands)) == ["A", "B"]


async def test_one_that_is_replayed_ends_and_is_published_again(
    commands: CommandStore, clock: VirtualClock
) -> None:
    await put(commands, ended("A", 0), ended("B", 0))
    await commands.mark_published(["A"])
    await put(commands, next_of("A", 1), next_of("B", 1))
    assert await take(commands) == []
    assert (await commands.stats()).unpublished == 0
    assert await claimed(commands) == ["A", "B"]
    assert await commands.prune(ended_before=START + DAY, limit=10) == 0
    await put(commands, ended("A", 2), ended("B", 2))
    assert sorted(await take(commands)) == ["A", "B"]
    assert (await commands.stats()).unpublished == 2


async def test_of_two_replicas_one_takes_an_end(
    commands: CommandStore, another_commands: CommandStore
) -> None:
    await put(commands, *(ended(f"A{n:02}", 0) for n in range(20)))
    found = await side_by_side(
        take(store, limit=7) for store in (commands, another_commands) for _ in range(4)
    )
    while more := await take(commands):
        found += more
    assert sorted(found) == [f"A{n:02}" for n in range(20)]


# -- pruning


async def test_published_commands_are_removed_when_they_ended_long_ago(
    commands: CommandStore, clock: VirtualClock
) -> None:
    clock.advance(DAY)
    await put(commands, ended("A", 0, at=START), ended("B", 0, at=START + HOUR), ended("C", 0, at=START))
    await commands.mark_published(["A", "B"])
    assert await commands.prune(ended_before=START, limit=10) == 0
    assert await commands.prune(ended_before=START + HOUR, limit=10) == 1
    assert sorted(await commands.load(["A", "B", "C"])) == ["B", "C"]
    assert await commands.prune(ended_before=START + HOUR + MILLISECOND, limit=10) == 1
    # One that nobody has been told of stays, however old it is.
    assert await commands.prune(ended_before=START + DAY, limit=10) == 0
    assert await commands.load(["A", "B", "C"]) == {"C": stored("C", 1)}
    assert await take(commands) == ["C"]


async def test_live_commands_are_not_pruned(commands: CommandStore, clock: VirtualClock) -> None:
    await put(commands, *(new(f"A{n}", home) for n, home in enumerate(Home) if home is not Home.ENDED))
    clock.advance(DAY)
    assert await commands.prune(ended_before=clock.now(), limit=100) == 0
    assert len(await commands.commands()) == 7


async def test_pruning_goes_no_further_than_its_limit(commands: CommandStore, clock: VirtualClock) -> None:
    await put(commands, *(ended(f"A{n}", 0) for n in range(5)))
    await commands.mark_published([f"A{n}" for n in range(5)])
    clock.advance(DAY)
    assert [await commands.prune(ended_before=START + HOUR, limit=2) for _ in range(4)] == [2, 2, 1, 0]
    assert await commands.commands() == []


async def test_nothing_is_left_of_a_command_that_was_pruned(
    commands: CommandStore, clock: VirtualClock
) -> None:
    names: dict[str, Any] = {"external_ids": ("ext-1", "ext-2"), "correlation_ids": ("order-1",)}
    await put(
        commands,
        new("A", key="key-1", turn="dev-1", hears="dev-1", **names),
        new("B", **{**names, "external_ids": ()}),
    )
    assert sorted(await claimed(commands)) == ["A", "B"]
    await put(commands, ended("A", 1, **names))
    await commands.mark_published(["A"])
    assert await commands.find(["ext-1", "ext-2"]) == {"ext-1": "A", "ext-2": "A"}
    clock.advance(DAY)
    assert await commands.prune(ended_before=START + HOUR, limit=10) == 1
    assert await commands.load(["A"]) == {}
    assert await commands.find(["ext-1", "ext-2"]) == {}
    assert await commands.named("A") == []
    assert await commands.named("ext-1") == []
    assert await commands.named("order-1") == ["B"]
    assert ids_of(await commands.commands()) == ["B"]
    assert sum((await commands.stats()).by_status.values()) == 1
    assert await due(commands, Home.TO_NS) == ["B"]
    # Its id, key and turn are as if they had never been used.
    await put(commands, new("A", key="key-1", turn="dev-1"))
    assert await claimed(commands) == ["A"]
