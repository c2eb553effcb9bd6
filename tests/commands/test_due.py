"""What somebody has to look at: deadlines, and the end of a command's time."""

from __future__ import annotations

import pytest

from remuda.clock import VirtualClock
from remuda.stores.commands import TIMED_HOMES, CommandStore, Home
from tests.commands.workbench import (
    HOLD,
    HOUR,
    LANE,
    MILLISECOND,
    MINUTE,
    SECOND,
    START,
    claimed,
    due,
    ended,
    new,
    next_of,
    put,
    side_by_side,
    stored,
)


@pytest.mark.parametrize("home", TIMED_HOMES)
async def test_a_command_is_due_from_its_moment_on(
    commands: CommandStore, clock: VirtualClock, home: Home
) -> None:
    await put(commands, new("A", home, due_at=START + MINUTE))
    clock.advance(MINUTE - MILLISECOND)
    assert await due(commands, home) == []
    clock.advance(MILLISECOND)
    assert await due(commands, *(other for other in TIMED_HOMES if other is not home)) == []
    assert await commands.due([home], limit=10, hold=HOLD) == [stored("A", 1)]


async def test_the_earliest_of_all_homes_come_first(commands: CommandStore, clock: VirtualClock) -> None:
    await put(
        commands,
        new("A", Home.TO_NS, due_at=START + 3 * SECOND),
        new("B", Home.RETRY, due_at=START + SECOND),
        new("C", Home.TASK_V2, due_at=START + 4 * SECOND),
        new("D", Home.TO_NS, due_at=START + 2 * SECOND),
        new("E", Home.TO_DEVICE, due_at=START),
        new("F", expires_at=START + 2.5 * SECOND),
        new("G", Home.TO_NS, due_at=START + HOUR),
    )
    clock.advance(MINUTE)
    homes = Home.TO_NS, Home.RETRY, Home.TASK_V2
    assert await due(commands, *homes, limit=2) == ["B", "D"]
    assert await due(commands, *homes, limit=2) == ["F", "A"]
    assert await due(commands, *homes, limit=2) == ["C"]
    assert await due(commands, Home.TO_DEVICE) == ["E"]


async def test_a_command_is_due_again_after_the_hold(commands: CommandStore, clock: VirtualClock) -> None:
    await put(commands, new("A", Home.RETRY))
    assert await due(commands, Home.RETRY, hold=MINUTE) == ["A"]
    assert await due(commands, Home.RETRY) == []
    clock.advance(MINUTE - MILLISECOND)
    assert await due(commands, Home.RETRY) == []
    clock.advance(MILLISECOND)
    assert await due(commands, Home.RETRY) == ["A"]


async def test_a_new_placing_counts_from_its_write_on(commands: CommandStore, clock: VirtualClock) -> None:
    await put(commands, new("A", Home.RETRY), new("B", Home.TO_NS))
    assert sorted(await due(commands, Home.RETRY, Home.TO_NS)) == ["A", "B"]
    await put(commands, next_of("A", 1, Home.TO_GATEWAY, due_at=START + SECOND))
    await put(commands, next_of("B", 1, Home.TO_NS, due_at=START + HOUR))
    assert await due(commands, *TIMED_HOMES) == []
    clock.advance(SECOND)
    assert await due(commands, *TIMED_HOMES) == ["A"]
    clock.advance(MINUTE)
    assert await due(commands, *TIMED_HOMES) == ["A"]  # it was taken, and nothing came of it
    clock.advance(HOUR)
    assert sorted(await due(commands, *TIMED_HOMES)) == ["A", "B"]


async def test_a_deadline_that_is_brought_forward_counts(commands: CommandStore, clock: VirtualClock) -> None:
    await put(commands, new("A", Home.RETRY, due_at=START + HOUR))
    await put(commands, next_of("A", 1, Home.RETRY, due_at=START))
    assert await due(commands, Home.RETRY) == ["A"]


async def test_ended_and_waiting_commands_have_no_deadline(
    commands: CommandStore, clock: VirtualClock
) -> None:
    await put(commands, new("A"), ended("B", 0), new("C", Home.TO_NS))
    await put(commands, ended("C", 1))
    clock.advance(HOUR)
    assert await due(commands, *TIMED_HOMES) == []


async def test_no_command_is_given_to_two(commands: CommandStore, another_commands: CommandStore) -> None:
    await put(commands, *(new(f"A{n:02}", Home.RETRY) for n in range(30)))
    await put(commands, *(new(f"B{n:02}", expires_at=START) for n in range(30)))
    found = await side_by_side(
        due(store, Home.RETRY, limit=10) for store in (commands, another_commands) for _ in range(4)
    )
    assert len(found) == len(set(found))
    while more := await due(commands, Home.RETRY):
        found += more
    assert sorted(found) == [f"{lane}{n:02}" for lane in "AB" for n in range(30)]


# -- expiry


@pytest.mark.parametrize("homes", [(), (Home.TO_NS,), TIMED_HOMES])
async def test_a_command_past_its_expiry_is_due_whatever_is_asked_for(
    commands: CommandStore, clock: VirtualClock, homes: tuple[Home, ...]
) -> None:
    await put(commands, new("A", expires_at=START + MINUTE), new("B"))
    clock.advance(MINUTE - MILLISECOND)
    assert await due(commands, *homes) == []
    clock.advance(MILLISECOND)
    assert await commands.due(homes, limit=10, hold=HOLD) == [stored("A", 1)]
    assert await due(commands, *homes) == []
    clock.advance(HOLD)
    assert await due(commands, *homes) == ["A"]


async def test_one_that_waits_for_its_turn_expires(commands: CommandStore, clock: VirtualClock) -> None:
    await put(commands, new("A", turn="dev-1"), new("B", turn="dev-1", expires_at=START + MINUTE))
    assert await claimed(commands, hold=HOUR) == ["A"]
    clock.advance(MINUTE)
    assert await due(commands) == ["B"]
    await put(commands, ended("B", 1))
    await put(commands, ended("A", 1))
    assert await claimed(commands) == []
    assert await commands.lanes() == []


async def test_one_in_a_held_lane_expires(commands: CommandStore, clock: VirtualClock) -> None:
    await put(commands, new("A", expires_at=START + MINUTE))
    await commands.hold_lane(LANE, until=None, why="down")
    clock.advance(MINUTE)
    assert await due(commands) == ["A"]
    await put(commands, ended("A", 1))
    await commands.release_lane(LANE)
    assert await claimed(commands) == []


@pytest.mark.parametrize("home", TIMED_HOMES)
async def test_one_on_its_way_expires(commands: CommandStore, clock: VirtualClock, home: Home) -> None:
    await put(commands, new("A", home, due_at=START + HOUR, expires_at=START + MINUTE))
    assert await due(commands) == []
    clock.advance(MINUTE)
    assert await due(commands) == ["A"]
    assert await due(commands, home) == []


async def test_a_claimed_one_expires(commands: CommandStore, clock: VirtualClock) -> None:
    await put(commands, new("A", expires_at=START + MINUTE))
    assert await claimed(commands, hold=HOUR) == ["A"]
    clock.advance(MINUTE)
    assert await due(commands) == ["A"]


async def test_a_placing_without_expiry_ends_it(commands: CommandStore, clock: VirtualClock) -> None:
    await put(commands, new("A", expires_at=START + MINUTE), new("B", expires_at=START + MINUTE))
    await put(commands, next_of("A", 1, Home.TO_NS, due_at=START + HOUR))
    await put(commands, ended("B", 1))
    clock.advance(10 * MINUTE)
    assert await due(commands) == []


async def test_an_expiry_can_be_moved(commands: CommandStore, clock: VirtualClock) -> None:
    await put(commands, new("A", expires_at=START + MINUTE), new("B", expires_at=START + HOUR))
    await put(commands, next_of("A", 1, expires_at=START + HOUR), next_of("B", 1, expires_at=START + MINUTE))
    clock.advance(MINUTE)
    assert await due(commands) == ["B"]


async def test_one_that_is_due_and_expired_is_given_once(commands: CommandStore, clock: VirtualClock) -> None:
    await put(commands, new("A", Home.RETRY, due_at=START + SECOND, expires_at=START + 2 * SECOND))
    clock.advance(MINUTE)
    assert await due(commands, Home.RETRY, hold=MINUTE) == ["A"]
    assert await due(commands, Home.RETRY) == []
    assert await due(commands) == []
    clock.advance(MINUTE)
    assert await due(commands, Home.RETRY) == ["A"]


async def test_one_that_expires_while_somebody_looks_at_it_is_left_alone_until_the_hold_is_over(
    commands: CommandStore, clock: VirtualClock
) -> None:
    await put(commands, new("A", Home.RETRY, due_at=START, expires_at=START + SECOND))
    assert await due(commands, Home.RETRY, hold=MINUTE) == ["A"]
    clock.advance(MINUTE - MILLISECOND)
    assert await due(commands) == []
    assert await due(commands, Home.RETRY) == []
    clock.advance(MILLISECOND)
    assert await due(commands) == ["A"]


async def test_many_that_are_due_do_not_hide_one_that_expired(
    commands: CommandStore, clock: VirtualClock
) -> None:
    await put(commands, *(new(f"A{n:03}", Home.TO_NS, due_at=START + MINUTE) for n in range(500)))
    await put(commands, new("B", expires_at=START + SECOND))
    clock.advance(HOUR)
    assert "B" in await due(commands, Home.TO_NS, limit=10)
    assert await due(commands, Home.TO_GATEWAY, limit=10) == []


async def test_many_are_due_at_once(commands: CommandStore) -> None:
    await put(commands, *(new(f"A{n:04}", Home.TASK_V1) for n in range(1_500)))
    found: list[str] = []
    while more := await due(commands, Home.TASK_V1, limit=1_000):
        found += more
    assert sorted(found) == [f"A{n:04}" for n in range(1_500)]
