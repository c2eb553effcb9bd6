"""Turns: of the commands of one device, one is on its way at a time."""

from __future__ import annotations

import pytest

from remuda.clock import VirtualClock
from remuda.stores.commands import CommandStore, Home
from tests.commands.workbench import (
    HOLD,
    LANE,
    OTHER_LANE,
    claimed,
    due,
    ended,
    lane_of,
    new,
    next_of,
    put,
    tried,
)

TURN = "dev-1"


async def test_the_second_waits_behind_the_first(commands: CommandStore) -> None:
    await put(commands, new("A", turn=TURN), new("B", turn=TURN))
    assert await claimed(commands) == ["A"]
    assert await claimed(commands) == []
    lane = await lane_of(commands)
    assert lane is not None
    assert lane.waiting == 1


async def test_others_pass_by_those_who_wait_for_a_turn(commands: CommandStore) -> None:
    await put(commands, new("A", turn=TURN), new("B", turn=TURN), new("C", turn="dev-2"), new("D"), new("E"))
    assert await claimed(commands) == ["A", "C", "D", "E"]


async def test_the_turn_is_kept_in_every_home_until_it_is_given_up(commands: CommandStore) -> None:
    await put(commands, new("A", turn=TURN), new("B", turn=TURN))
    assert await claimed(commands) == ["A"]
    homes = (Home.TO_NS, Home.TO_GATEWAY, Home.TO_DEVICE, Home.TASK_V1, Home.TASK_V2, Home.RETRY)
    for base, home in enumerate(homes, 1):
        await put(commands, next_of("A", base, home, turn=TURN))
        assert await claimed(commands) == [], home
    await put(commands, next_of("A", 7, Home.RETRY))
    assert await claimed(commands) == ["B"]


@pytest.mark.parametrize("home", [Home.ENDED, Home.RETRY, Home.TO_GATEWAY])
async def test_the_next_gets_a_turn_that_is_given_up(commands: CommandStore, home: Home) -> None:
    await put(commands, new("A", turn=TURN), new("B", turn=TURN))
    assert await claimed(commands) == ["A"]
    await put(commands, next_of("A", 1, home))
    assert await claimed(commands) == ["B"]


async def test_the_best_of_those_who_wait_comes_next(commands: CommandStore) -> None:
    await put(commands, new("A", turn=TURN, priority=99))
    assert await claimed(commands) == ["A"]
    await put(
        commands,
        new("B", turn=TURN, priority=1),
        new("E", turn=TURN, priority=5),
        new("D", turn=TURN, priority=5),
        new("C", turn=TURN, priority=-3),
    )
    order = []
    holder, version = "A", 1
    for _ in range(4):
        await put(commands, ended(holder, version))
        (holder,) = await claimed(commands)
        order.append(holder)
    assert order == ["D", "E", "B", "C"]


async def test_a_new_one_of_higher_priority_overtakes_one_that_only_waits(commands: CommandStore) -> None:
    await put(commands, new("A", turn=TURN, priority=0))
    await put(commands, new("B", turn=TURN, priority=5))
    assert await claimed(commands) == ["B"]
    assert await claimed(commands) == []
    await put(commands, ended("B", 1))
    assert await claimed(commands) == ["A"]


async def test_it_overtakes_within_one_call_too(commands: CommandStore) -> None:
    await put(
        commands,
        new("A", turn=TURN, priority=0),
        new("B", turn=TURN, priority=5),
        new("C", turn=TURN, priority=9),
        new("D", turn=TURN, priority=7),
    )
    assert await claimed(commands) == ["C"]
    await put(commands, ended("C", 1))
    assert await claimed(commands) == ["D"]


async def test_one_that_was_overtaken_can_still_be_overtaken_again(commands: CommandStore) -> None:
    await put(commands, new("A", turn=TURN, priority=0))
    await put(commands, new("B", turn=TURN, priority=5))
    await put(commands, new("C", turn=TURN, priority=9))
    assert await claimed(commands) == ["C"]
    await put(commands, ended("C", 1))
    assert await claimed(commands) == ["B"]
    await put(commands, ended("B", 1))
    assert await claimed(commands) == ["A"]


@pytest.mark.parametrize("priority", [0, -1])
async def test_one_of_equal_or_lower_priority_does_not_overtake(
    commands: CommandStore, priority: int
) -> None:
    await put(commands, new("A", turn=TURN, priority=0))
    await put(commands, new("B", turn=TURN, priority=priority))
    assert await claimed(commands) == ["A"]


async def test_one_that_comes_back_with_the_same_priority_waits_behind(commands: CommandStore) -> None:
    """Even when it is older: the turn is taken, and only a higher priority takes it away."""
    await put(commands, new("A", Home.RETRY), new("B", turn=TURN))
    await put(commands, next_of("A", 1, turn=TURN))
    assert await claimed(commands) == ["B"]
    await put(commands, ended("B", 1))
    assert await claimed(commands) == ["A"]


async def test_a_claimed_one_is_never_overtaken(commands: CommandStore) -> None:
    await put(commands, new("A", turn=TURN, priority=0))
    assert await claimed(commands) == ["A"]
    await put(commands, new("B", turn=TURN, priority=100))
    assert await claimed(commands) == []
    await put(commands, next_of("A", 1, Home.TO_NS, turn=TURN))
    assert await claimed(commands) == []
    await put(commands, ended("A", 2))
    assert await claimed(commands) == ["B"]


async def test_one_that_is_put_back_into_its_lane_still_has_its_turn(
    commands: CommandStore, clock: VirtualClock
) -> None:
    await put(commands, new("A", turn=TURN))
    assert await claimed(commands) == ["A"]
    await put(commands, new("B", turn=TURN))
    clock.advance(HOLD)
    assert await due(commands, Home.TO_NS) == ["A"]
    await put(commands, next_of("A", 1, turn=TURN))
    assert await claimed(commands) == ["A"]
    assert await claimed(commands) == []
    await put(commands, ended("A", 2))
    assert await claimed(commands) == ["B"]


async def test_one_that_ends_while_it_waits_behind_leaves_no_hole(commands: CommandStore) -> None:
    await put(commands, new("A", turn=TURN), new("B", turn=TURN), new("C", turn=TURN))
    await put(commands, ended("B", 1))
    assert await claimed(commands) == ["A"]
    await put(commands, ended("A", 1))
    assert await claimed(commands) == ["C"]
    await put(commands, ended("C", 1), new("D", turn=TURN))
    assert await claimed(commands) == ["D"]


async def test_the_front_ends_unclaimed_and_hands_over(commands: CommandStore) -> None:
    await put(commands, new("A", turn=TURN), new("B", turn=TURN), new("C", turn=TURN))
    await put(commands, ended("A", 1))
    assert await claimed(commands) == ["B"]


async def test_the_front_and_the_next_end_in_one_call(commands: CommandStore) -> None:
    await put(commands, *(new(name, turn=TURN) for name in "ABCD"))
    await put(commands, ended("A", 1), ended("B", 1))
    assert await claimed(commands) == ["C"]
    await put(commands, ended("D", 1), ended("C", 1))
    assert await claimed(commands) == []
    assert await commands.lanes() == []


async def test_a_new_one_comes_in_with_the_end_of_the_front(commands: CommandStore) -> None:
    """As a supersession does: one call ends the one that waits, and puts another in its place."""
    await put(commands, new("A", turn=TURN, key="key-1"), new("B", turn=TURN))
    await put(commands, ended("A", 1), new("C", turn=TURN, key="key-1"))
    assert await claimed(commands) == ["B"]
    await put(commands, new("D", turn=TURN), ended("B", 1))
    assert await claimed(commands) == ["C"]
    await put(commands, new("E", turn=TURN, priority=9), ended("C", 1))
    assert await claimed(commands) == ["E"]
    await put(commands, ended("E", 1))
    assert await claimed(commands) == ["D"]


async def test_the_turns_of_many_change_hands_in_one_call(commands: CommandStore) -> None:
    devices = [f"dev-{n:03}" for n in range(100)]
    await put(commands, *(new(f"A-{each}", turn=each) for each in devices))
    await put(commands, *(new(f"B-{each}", turn=each) for each in devices))
    assert await claimed(commands, limit=1_000) == [f"A-{each}" for each in devices]
    await put(commands, *(ended(f"A-{each}", 1) for each in devices))
    assert await claimed(commands, limit=1_000) == [f"B-{each}" for each in devices]


async def test_a_refused_change_hands_nothing_over(commands: CommandStore) -> None:
    await put(commands, new("A", turn=TURN), new("B", turn=TURN))
    assert await claimed(commands) == ["A"]
    assert await tried(commands, ended("A", 5)) == [False]
    assert await tried(commands, ended("A", 1), ended("B", 5), whole=True) == [False, False]
    assert await tried(commands, new("C", turn=TURN, priority=50), ended("B", 5), whole=True) == [
        False,
        False,
    ]
    assert await claimed(commands) == []


async def test_a_turn_spans_lanes(commands: CommandStore) -> None:
    await put(commands, new("A", turn=TURN, lane=LANE), new("B", turn=TURN, lane=OTHER_LANE))
    assert await claimed(commands) == ["A"]
    await put(commands, ended("A", 1))
    assert await claimed(commands) == ["B"]


async def test_a_higher_priority_overtakes_across_lanes(commands: CommandStore) -> None:
    await put(commands, new("A", turn=TURN, lane=LANE))
    await put(commands, new("B", turn=TURN, lane=OTHER_LANE, priority=1))
    assert await claimed(commands) == ["B"]
    assert [(each.lane, each.waiting) for each in await commands.lanes()] == [(LANE, 1)]


async def test_one_that_goes_on_outside_its_lane_takes_the_turn_from_one_that_only_waits(
    commands: CommandStore,
) -> None:
    """A late word from the network: the one in retry is on its way after all."""
    await put(commands, new("A", Home.RETRY), new("B", turn=TURN))
    await put(commands, next_of("A", 1, Home.TO_GATEWAY, turn=TURN))
    assert await claimed(commands) == []
    await put(commands, ended("A", 2))
    assert await claimed(commands) == ["B"]


async def test_one_that_no_longer_needs_a_turn_can_be_claimed(commands: CommandStore) -> None:
    await put(commands, new("A", turn=TURN), new("B", turn=TURN))
    assert await claimed(commands) == ["A"]
    await put(commands, next_of("B", 1))
    assert await claimed(commands) == ["B"]


async def test_a_record_that_changes_while_it_waits_keeps_its_place(commands: CommandStore) -> None:
    await put(commands, new("A", turn=TURN), new("B", turn=TURN))
    await put(commands, next_of("B", 1, turn=TURN))
    await put(commands, next_of("A", 1, turn=TURN))
    assert await claimed(commands) == ["A"]
    assert await claimed(commands) == []
    await put(commands, next_of("B", 2, turn=TURN))
    assert await claimed(commands) == []
    await put(commands, ended("A", 2))
    assert await claimed(commands) == ["B"]


async def test_a_lane_with_two_thousand_of_one_device_does_not_hide_another(commands: CommandStore) -> None:
    await put(commands, *(new(f"A{n:04}", turn=TURN) for n in range(2_000)))
    await put(commands, new("B", turn="dev-2"))
    assert await claimed(commands, limit=10) == ["A0000", "B"]
    await put(commands, new("C", turn="dev-3"))
    assert await claimed(commands, limit=10) == ["C"]
    await put(commands, ended("A0000", 1))
    assert await claimed(commands, limit=10) == ["A0001"]
