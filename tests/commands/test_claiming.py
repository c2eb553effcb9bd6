"""Claiming: commands leave their lanes in order, fairly, no faster than their pace, each to one claimer."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from remuda.clock import VirtualClock
from remuda.lifecycle import CommandStatus
from remuda.stores.commands import CommandStore, Home, Pace
from tests.commands.workbench import (
    HOLD,
    HOUR,
    LANE,
    MILLISECOND,
    MINUTE,
    OTHER_LANE,
    SECOND,
    START,
    claim,
    claimed,
    due,
    ended,
    ids_of,
    lane_of,
    new,
    next_of,
    put,
    side_by_side,
    stored,
    trail,
)

EVERY_2_S = Pace(prefix="", every=2 * SECOND)


# -- order


async def test_an_empty_store_has_nothing_to_claim(commands: CommandStore) -> None:
    found = await claim(commands)
    assert (found.commands, found.next_at) == ([], None)


async def test_commands_come_by_priority_then_by_age(commands: CommandStore) -> None:
    await put(
        commands,
        new("D", priority=0),
        new("B", priority=5),
        new("A", priority=-5),
        new("C", priority=0),
        new("F", priority=100),
        new("E", priority=5),
    )
    assert await claimed(commands) == ["F", "B", "E", "C", "D", "A"]


async def test_a_claim_gives_the_record_as_it_was(commands: CommandStore) -> None:
    await put(commands, new("A"))
    await put(commands, next_of("A", 1))
    assert (await claim(commands)).commands == [stored("A", 2)]
    assert await commands.load(["A"]) == {"A": stored("A", 2)}
    assert ids_of(await commands.commands(status=CommandStatus.QUEUED)) == ["A"]
    assert await trail(commands) == []


async def test_no_more_than_the_limit_is_claimed(commands: CommandStore) -> None:
    await put(commands, *(new(f"A{n}") for n in range(5)))
    assert await claimed(commands, limit=2) == ["A0", "A1"]
    assert await claimed(commands, limit=2) == ["A2", "A3"]
    assert await claimed(commands, limit=2) == ["A4"]


async def test_a_command_out_of_its_lane_is_not_claimed(commands: CommandStore) -> None:
    homes = [home for home in Home if home is not Home.LANE]
    await put(commands, *(new(f"A{n}", home) for n, home in enumerate(homes)))
    await put(commands, new("B"))
    await put(commands, next_of("B", 1, Home.RETRY))
    assert await claimed(commands) == []
    await put(commands, next_of("B", 2))
    assert await claimed(commands) == ["B"]


async def test_a_command_can_change_its_lane(commands: CommandStore) -> None:
    await put(commands, new("A", lane=LANE), new("B", lane=OTHER_LANE))
    await put(commands, next_of("A", 1, lane=OTHER_LANE))
    assert [(each.lane, each.waiting) for each in await commands.lanes()] == [(OTHER_LANE, 2)]
    assert await claimed(commands, Pace(prefix=LANE)) == []
    assert await claimed(commands, Pace(prefix=OTHER_LANE)) == ["A", "B"]


# -- several lanes


async def test_a_long_lane_does_not_starve_another(commands: CommandStore) -> None:
    await put(commands, *(new(f"A{n:04}", lane="a") for n in range(1_000)))
    await put(commands, *(new(f"B{n}", lane="b") for n in range(3)))
    first = await claimed(commands, limit=10)
    second = await claimed(commands, limit=10)
    assert len(first) == len(second) == 10
    assert {"B0", "B1", "B2"} <= {*first, *second}
    assert [each for each in first + second if each[0] == "A"] == [f"A{n:04}" for n in range(17)]
    # Not by its priorities either: those count within a lane.
    await put(commands, *(new(f"C{n:04}", lane="a", priority=100) for n in range(100)))
    await put(commands, new("B3", lane="b", priority=-100))
    assert "B3" in {*await claimed(commands, limit=10), *await claimed(commands, limit=10)}


async def test_every_lane_is_served_when_there_are_more_lanes_than_the_limit(commands: CommandStore) -> None:
    lanes = [f"lane-{n:02}" for n in range(20)]
    await put(commands, *(new(f"{lane}/{n:02}", lane=lane) for lane in lanes for n in range(30)))
    served: Counter[str] = Counter()
    for _ in range(20):
        found = await claimed(commands, limit=10)
        assert len(found) == 10
        served.update(each.partition("/")[0] for each in found)
    assert sorted(served) == lanes


async def test_under_a_limit_a_locked_lane_takes_nobodys_place(commands: CommandStore) -> None:
    await put(commands, *(new(f"{lane}{n}", lane=lane) for lane in "abcdef" for n in range(2)))
    seen = [await claimed(commands, EVERY_2_S, limit=2) for _ in range(4)]
    assert sorted(each for found in seen for each in found) == ["a0", "b0", "c0", "d0", "e0", "f0"]
    assert seen[3] == []


async def test_a_lane_that_no_pace_fits_is_not_touched(commands: CommandStore) -> None:
    await put(commands, new("A", lane="network:n1"), new("B", lane="gateway:g1"), new("C", lane="other"))
    found = await claim(commands, Pace(prefix="gateway:"), Pace(prefix="net"))
    assert sorted(ids_of(found)) == ["A", "B"]
    assert found.next_at is None
    assert [each.lane for each in await commands.lanes()] == ["other"]


async def test_the_first_pace_that_fits_is_a_lanes_pace(commands: CommandStore) -> None:
    await put(commands, *(new(f"{lane}{n}", lane=lane) for lane in ("aa", "ab") for n in range(3)))
    found = await claimed(commands, Pace(prefix="aa", every=SECOND), Pace(prefix="a"))
    assert sorted(found) == ["aa0", "ab0", "ab1", "ab2"]


async def test_a_prefix_is_taken_as_it_is_written(commands: CommandStore) -> None:
    """Not as a pattern: a lane's name may hold the characters that patterns are made of."""
    await put(commands, new("A", lane="g_1%[x]*"), new("B", lane="gw1%[x]*"), new("C", lane="G_1%[x]*"))
    assert await claimed(commands, Pace(prefix="g_1")) == ["A"]
    assert await claimed(commands, Pace(prefix="*")) == []
    assert await claimed(commands, Pace(prefix="gw1%[x]*")) == ["B"]


# -- the lock after each command


async def test_a_lane_is_locked_after_each_command(commands: CommandStore, clock: VirtualClock) -> None:
    await put(commands, *(new(f"A{n}") for n in range(3)))
    found = await claim(commands, EVERY_2_S)
    assert (ids_of(found), found.next_at) == (["A0"], START + 2 * SECOND)
    clock.advance(2 * SECOND - MILLISECOND)
    found = await claim(commands, EVERY_2_S)
    assert (ids_of(found), found.next_at) == ([], START + 2 * SECOND)
    clock.advance(MILLISECOND)
    found = await claim(commands, EVERY_2_S)
    assert (ids_of(found), found.next_at) == (["A1"], START + 4 * SECOND)
    clock.advance(HOUR)
    found = await claim(commands, EVERY_2_S)
    assert (ids_of(found), found.next_at) == (["A2"], None)  # nothing is left to wait for


async def test_a_lane_that_ran_empty_is_locked_all_the_same(
    commands: CommandStore, clock: VirtualClock
) -> None:
    await put(commands, new("A"))
    assert await claimed(commands, EVERY_2_S) == ["A"]
    await put(commands, ended("A", 1))
    clock.advance(SECOND)
    await put(commands, new("B"))
    found = await claim(commands, EVERY_2_S)
    assert (ids_of(found), found.next_at) == ([], START + 2 * SECOND)
    lane = await lane_of(commands)
    assert lane is not None
    assert lane.opens_at == START + 2 * SECOND
    clock.advance(SECOND)
    assert await claimed(commands, EVERY_2_S) == ["B"]


async def test_each_lane_has_a_lock_of_its_own(commands: CommandStore, clock: VirtualClock) -> None:
    await put(commands, *(new(f"{lane}{n}", lane=lane) for lane in "ab" for n in range(2)))
    assert sorted(await claimed(commands, EVERY_2_S, Pace(prefix="none"))) == ["a0", "b0"]
    clock.advance(SECOND)
    await put(commands, new("c0", lane="c"), new("c1", lane="c"))
    found = await claim(commands, EVERY_2_S)
    assert (ids_of(found), found.next_at) == (["c0"], START + 2 * SECOND)
    clock.advance(SECOND)
    found = await claim(commands, EVERY_2_S)
    assert (sorted(ids_of(found)), found.next_at) == (["a1", "b1"], START + 3 * SECOND)


async def test_a_second_replica_finds_the_lane_locked(
    commands: CommandStore, another_commands: CommandStore
) -> None:
    await put(commands, new("A"), new("B"))
    assert await claimed(commands, EVERY_2_S) == ["A"]
    found = await claim(another_commands, EVERY_2_S)
    assert (ids_of(found), found.next_at) == ([], START + 2 * SECOND)


async def test_those_who_wait_for_a_turn_are_not_waited_for(commands: CommandStore) -> None:
    """When a lane opens it must have something to give, or an engine would wake for nothing."""
    await put(commands, new("A", turn="dev-1"), new("B", turn="dev-1"))
    found = await claim(commands, EVERY_2_S)
    assert (ids_of(found), found.next_at) == (["A"], None)


# -- air time


async def test_a_command_costs_its_air_time(commands: CommandStore, clock: VirtualClock) -> None:
    duty = Pace(prefix="", duty=0.01)
    await put(commands, *(new(f"A{n}", airtime_ms=100) for n in range(3)))
    found = await claim(commands, duty)
    assert (ids_of(found), found.next_at) == (["A0"], START + 10 * SECOND)
    clock.advance(10 * SECOND - MILLISECOND)
    assert await claimed(commands, duty) == []
    clock.advance(MILLISECOND)
    found = await claim(commands, duty)
    assert (ids_of(found), found.next_at) == (["A1"], START + 20 * SECOND)
    lane = await lane_of(commands)
    assert lane is not None
    assert lane.opens_at == START + 20 * SECOND


async def test_a_lane_may_be_ahead_by_its_burst(commands: CommandStore, clock: VirtualClock) -> None:
    """A debt of the whole burst is within it."""
    duty = Pace(prefix="", duty=0.1, burst=10 * SECOND)
    await put(commands, *(new(f"A{n}", airtime_ms=500) for n in range(9)))
    found = await claim(commands, duty)  # 5 s each: after three of them it owes 15 s
    assert (ids_of(found), found.next_at) == (["A0", "A1", "A2"], START + 5 * SECOND)
    clock.advance(5 * SECOND)
    found = await claim(commands, duty)
    assert (ids_of(found), found.next_at) == (["A3"], START + 10 * SECOND)
    # What is not used is earned up to the burst, and no further.
    clock.advance(HOUR)
    assert await claimed(commands, duty) == ["A4", "A5", "A6"]


async def test_what_costs_no_air_time_does_not_lock(commands: CommandStore) -> None:
    duty = Pace(prefix="", duty=0.01)
    await put(commands, *(new(f"A{n}", airtime_ms=0) for n in range(3)), new("B", airtime_ms=10), new("C"))
    assert await claimed(commands, duty) == ["A0", "A1", "A2", "B"]


async def test_air_time_that_cannot_be_divided_evenly_is_counted(
    commands: CommandStore, clock: VirtualClock
) -> None:
    duty = Pace(prefix="", duty=0.03)
    await put(commands, new("A", airtime_ms=61), new("B", airtime_ms=61))
    found = await claim(commands, duty)
    assert ids_of(found) == ["A"]
    assert found.next_at is not None
    assert abs(found.next_at - START - timedelta(milliseconds=61 / 0.03)) <= 2 * MILLISECOND
    clock.advance(timedelta(milliseconds=2_030))
    assert await claimed(commands, duty) == []
    clock.advance(timedelta(milliseconds=6))
    assert await claimed(commands, duty) == ["B"]


async def test_the_order_of_a_lane_is_kept_though_a_later_one_costs_less(commands: CommandStore) -> None:
    duty = Pace(prefix="", duty=0.01)
    await put(commands, new("A", airtime_ms=100), new("B", airtime_ms=5_000), new("C", airtime_ms=0))
    assert await claimed(commands, duty) == ["A"]
    assert await claimed(commands, duty) == []


# -- slots


async def test_a_lane_has_so_many_slots(commands: CommandStore, clock: VirtualClock) -> None:
    pace = Pace(prefix="", slots=2, slot_for=10 * MINUTE)
    await put(commands, *(new(f"A{n}") for n in range(4)))
    found = await claim(commands, pace)
    assert (ids_of(found), found.next_at) == (["A0", "A1"], START + 10 * MINUTE)
    assert await claimed(commands, pace) == []
    lane = await lane_of(commands)
    assert lane is not None
    assert (lane.waiting, lane.slots_used) == (2, 2)


async def test_a_slot_is_free_when_its_command_no_longer_uses_it(commands: CommandStore) -> None:
    pace = Pace(prefix="", slots=2)
    await put(commands, *(new(f"A{n}") for n in range(5)))
    assert await claimed(commands, pace) == ["A0", "A1"]
    await put(commands, next_of("A0", 1, Home.TO_NS, uses_slot=True), ended("A1", 1))
    assert await claimed(commands, pace) == ["A2"]
    await put(commands, next_of("A0", 2, Home.TASK_V1, uses_slot=True))
    assert await claimed(commands, pace) == []
    await put(commands, next_of("A0", 3, Home.TASK_V1))
    assert await claimed(commands, pace) == ["A3"]
    await put(commands, next_of("A2", 1, Home.RETRY), ended("A3", 1))
    lane = await lane_of(commands)
    assert lane is not None
    assert lane.slots_used == 0


async def test_a_slot_is_free_after_its_time_at_the_latest(
    commands: CommandStore, clock: VirtualClock
) -> None:
    pace = Pace(prefix="", slots=2, slot_for=10 * MINUTE)
    await put(commands, *(new(f"A{n}") for n in range(4)))
    assert await claimed(commands, pace, limit=1) == ["A0"]
    clock.advance(MINUTE)
    assert await claimed(commands, pace) == ["A1"]
    # That it still uses it does not begin its time anew.
    await put(commands, next_of("A0", 1, Home.TASK_V1, uses_slot=True))
    clock.advance(9 * MINUTE - MILLISECOND)
    found = await claim(commands, pace)
    assert (ids_of(found), found.next_at) == ([], START + 10 * MINUTE)
    clock.advance(MILLISECOND)
    found = await claim(commands, pace)
    assert (ids_of(found), found.next_at) == (["A2"], START + 11 * MINUTE)
    lane = await lane_of(commands)
    assert lane is not None
    assert lane.slots_used == 2


async def test_a_slot_whose_time_is_over_can_still_be_given_up(
    commands: CommandStore, clock: VirtualClock
) -> None:
    pace = Pace(prefix="", slots=1, slot_for=MINUTE)
    await put(commands, *(new(f"A{n}") for n in range(3)))
    assert await claimed(commands, pace) == ["A0"]
    clock.advance(MINUTE)
    assert await claimed(commands, pace) == ["A1"]
    await put(commands, ended("A0", 1))
    assert await claimed(commands, pace) == []  # it was not A1's to give
    await put(commands, ended("A1", 1))
    assert await claimed(commands, pace) == ["A2"]


async def test_each_lane_has_slots_of_its_own(commands: CommandStore) -> None:
    await put(commands, *(new(f"{lane}{n}", lane=lane) for lane in "ab" for n in range(3)))
    found = await claimed(commands, Pace(prefix="", slots=2))
    assert sorted(found) == ["a0", "a1", "b0", "b1"]
    await put(commands, ended("a0", 1, lane="a"))
    assert await claimed(commands, Pace(prefix="", slots=2)) == ["a2"]


async def test_a_command_that_is_put_back_gives_up_its_slot(commands: CommandStore) -> None:
    pace = Pace(prefix="", slots=1)
    await put(commands, new("A"), new("B", priority=1))
    assert await claimed(commands, pace) == ["B"]
    await put(commands, next_of("B", 1, priority=-1))
    assert await claimed(commands, pace) == ["A"]


async def test_slots_and_lock_both_count(commands: CommandStore, clock: VirtualClock) -> None:
    pace = Pace(prefix="", slots=2, every=SECOND)
    await put(commands, *(new(f"A{n}") for n in range(4)))
    assert await claimed(commands, pace) == ["A0"]
    clock.advance(SECOND)
    assert await claimed(commands, pace) == ["A1"]
    clock.advance(SECOND)
    assert await claimed(commands, pace) == []
    await put(commands, ended("A0", 1))
    assert await claimed(commands, pace) == ["A2"]
    await put(commands, ended("A1", 1))
    found = await claim(commands, pace)
    assert (ids_of(found), found.next_at) == ([], START + 3 * SECOND)


# -- held lanes


async def test_nothing_is_claimed_from_a_held_lane(commands: CommandStore, clock: VirtualClock) -> None:
    await put(commands, new("A"), new("B", lane=OTHER_LANE))
    await commands.hold_lane(LANE, until=None, why="its gateway is down")
    found = await claim(commands)
    assert (ids_of(found), found.next_at) == (["B"], None)
    clock.advance(HOUR)
    assert await claimed(commands) == []
    await commands.release_lane(LANE)
    assert await claimed(commands) == ["A"]


async def test_a_hold_ends_at_its_moment(commands: CommandStore, clock: VirtualClock) -> None:
    await put(commands, new("A"))
    await commands.hold_lane(LANE, until=START + MINUTE, why="quiet hour")
    found = await claim(commands)
    assert (ids_of(found), found.next_at) == ([], START + MINUTE)
    clock.advance(MINUTE - MILLISECOND)
    assert await claimed(commands) == []
    clock.advance(MILLISECOND)
    assert await claimed(commands) == ["A"]


async def test_the_latest_hold_counts(commands: CommandStore, clock: VirtualClock) -> None:
    await put(commands, new("A"))
    await commands.hold_lane(LANE, until=START + HOUR, why="first")
    await commands.hold_lane(LANE, until=START + MINUTE, why="second")
    lane = await lane_of(commands)
    assert lane is not None
    assert (lane.held_until, lane.held_why) == (START + MINUTE, "second")
    clock.advance(MINUTE)
    assert await claimed(commands) == ["A"]


async def test_lanes_in_numbers(commands: CommandStore, clock: VirtualClock) -> None:
    assert await commands.lanes() == []
    await put(commands, *(new(f"B{n}", lane="b", turn="dev-1") for n in range(3)), new("A", lane="a"))
    await commands.hold_lane("c", until=None, why="down")
    await commands.hold_lane("d", until=START + MINUTE, why="soon up")
    shown = [(each.lane, each.waiting, each.held_until, each.held_why) for each in await commands.lanes()]
    assert shown == [
        ("a", 1, None, None),
        ("b", 3, None, None),
        ("c", 0, None, "down"),
        ("d", 0, START + MINUTE, "soon up"),
    ]
    assert sorted(await claimed(commands)) == ["A", "B0"]
    clock.advance(MINUTE)
    await commands.release_lane("c")
    await commands.release_lane("nowhere")
    (left,) = await commands.lanes()
    assert (left.lane, left.waiting, left.slots_used, left.held_why) == ("b", 2, 1, None)


# -- what a claim is worth


async def test_a_claimer_that_does_nothing_loses_the_command_after_a_while(
    commands: CommandStore, clock: VirtualClock
) -> None:
    await put(commands, new("A", turn="dev-1"), new("B", turn="dev-1"))
    assert await claimed(commands, hold=HOLD) == ["A"]
    clock.advance(HOLD - MILLISECOND)
    assert await due(commands, Home.TO_NS) == []
    assert await claimed(commands) == []
    clock.advance(MILLISECOND)
    assert await due(commands, Home.TO_GATEWAY) == []
    assert await commands.due([Home.TO_NS], limit=10, hold=HOLD) == [stored("A", 1)]
    await put(commands, next_of("A", 1, turn="dev-1"))
    assert await claimed(commands) == ["A"]
    clock.advance(HOLD)
    assert await commands.due([Home.TO_NS], limit=10, hold=HOLD) == [stored("A", 2)]


async def test_the_claimers_own_record_counts_from_then_on(
    commands: CommandStore, clock: VirtualClock
) -> None:
    await put(commands, new("A"))
    assert await claimed(commands) == ["A"]
    await put(commands, next_of("A", 1, Home.TO_NS, due_at=START + HOUR))
    clock.advance(HOLD)
    assert await due(commands, *Home) == []
    clock.advance(HOUR - HOLD)
    assert await due(commands, Home.TO_NS) == ["A"]


@pytest.mark.parametrize("limit", [1, 7, 100])
async def test_no_command_goes_to_two_claimers(
    commands: CommandStore, another_commands: CommandStore, limit: int
) -> None:
    await put(
        commands,
        *(new(f"A{n:03}", lane=f"lane-{n % 5}", turn=f"dev-{n}", moves=()) for n in range(100)),
    )
    found = await side_by_side(
        claimed(store, limit=limit) for store in (commands, another_commands) for _ in range(4)
    )
    assert len(set(found)) == len(found) <= 8 * limit
    while more := await claimed(commands):
        found += more
    assert sorted(found) == [f"A{n:03}" for n in range(100)]


async def test_claimers_side_by_side_keep_to_the_pace(
    commands: CommandStore, another_commands: CommandStore
) -> None:
    pace = Pace(prefix="a", slots=3), Pace(prefix="b", every=SECOND), Pace(prefix="c", duty=0.1, burst=SECOND)
    await put(commands, *(new(f"{lane}{n}", lane=lane, airtime_ms=50) for lane in "abc" for n in range(10)))
    found = await side_by_side(
        claimed(store, *pace) for store in (commands, another_commands) for _ in range(4)
    )
    assert Counter(each[0] for each in found) == {"a": 3, "b": 1, "c": 3}


async def test_one_turn_goes_to_one_of_several_claimers(
    commands: CommandStore, another_commands: CommandStore
) -> None:
    await put(commands, *(new(f"A{n}", turn="dev-1", lane=f"lane-{n}") for n in range(10)))
    found = await side_by_side(claimed(store) for store in (commands, another_commands) for _ in range(4))
    assert found == ["A0"]
