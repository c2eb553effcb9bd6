"""The inbox of signals: each is kept once, comes in order, and again when nobody settles it."""

from __future__ import annotations

import asyncio

from remuda.clock import VirtualClock
from remuda.stores.commands import CommandStore, StoredSignal
from tests.commands.workbench import (
    DAY,
    HOUR,
    MILLISECOND,
    MINUTE,
    SECOND,
    START,
    keep,
    settle,
    side_by_side,
    signal,
    taken,
)


async def test_a_signal_comes_out_as_it_went_in(commands: CommandStore) -> None:
    given = StoredSignal(id="s1", device="dev-1", body=b"\x00\xff", received_at=START)
    assert await keep(commands, given) == 1
    assert await commands.take_signals(limit=10, hold=MINUTE) == [given]


async def test_signals_come_in_the_order_in_which_they_came(
    commands: CommandStore, clock: VirtualClock
) -> None:
    await keep(commands, signal("s3"), signal("s1"))
    clock.advance(SECOND)
    await keep(commands, signal("s0", at=clock.now()), signal("s2", at=clock.now()))
    assert await taken(commands, limit=3) == [("s3", 0), ("s1", 0), ("s0", 0)]
    assert await taken(commands, limit=3) == [("s2", 0)]


async def test_a_signal_in_the_inbox_is_not_new(commands: CommandStore) -> None:
    assert await keep(commands, signal("s1"), signal("s2"), signal("s1")) == 2
    assert await keep(commands, signal("s2"), signal("s3")) == 1
    assert sorted(await taken(commands)) == [("s1", 0), ("s2", 0), ("s3", 0)]
    assert await keep(commands, signal("s1")) == 0
    assert (await commands.stats()).signals == 3


async def test_a_signal_that_is_done_is_remembered_for_a_while(
    commands: CommandStore, clock: VirtualClock
) -> None:
    await keep(commands, signal("s1"), remember=HOUR)
    clock.advance(MINUTE)
    assert await taken(commands) == [("s1", 0)]
    await settle(commands, "s1")
    assert (await commands.stats()).signals == 0
    clock.advance(HOUR - MILLISECOND)
    assert await keep(commands, signal("s1"), remember=HOUR) == 0
    assert await taken(commands) == []
    clock.advance(MILLISECOND)
    assert await keep(commands, signal("s1"), remember=HOUR) == 1
    assert await taken(commands) == [("s1", 0)]


async def test_pruning_forgets_no_signal_too_soon(commands: CommandStore, clock: VirtualClock) -> None:
    await keep(commands, signal("s1"), signal("s2"), remember=DAY)
    await settle(commands, "s1")
    clock.advance(HOUR)
    await commands.prune(ended_before=START, limit=100)
    assert await keep(commands, signal("s1"), signal("s2"), remember=DAY) == 0
    clock.advance(2 * DAY)
    await commands.prune(ended_before=clock.now() - HOUR, limit=100)
    assert await keep(commands, signal("s1"), signal("s2"), remember=DAY) == 1  # s2 is in the inbox


async def test_an_unsettled_signal_is_due_again_after_the_hold(
    commands: CommandStore, clock: VirtualClock
) -> None:
    await keep(commands, signal("s2"), signal("s1"))
    assert await taken(commands, hold=MINUTE) == [("s2", 0), ("s1", 0)]
    assert await taken(commands) == []
    clock.advance(MINUTE - MILLISECOND)
    assert await taken(commands) == []
    clock.advance(MILLISECOND)
    assert await taken(commands, hold=MINUTE) == [("s2", 1), ("s1", 1)]
    clock.advance(MINUTE)
    assert await taken(commands) == [("s2", 2), ("s1", 2)]


async def test_a_signal_can_be_looked_at_later(commands: CommandStore, clock: VirtualClock) -> None:
    await keep(commands, signal("s1"), signal("s2"), signal("s3"))
    await taken(commands, hold=HOUR)
    await settle(commands, "s3", later=[("s1", START + MINUTE), ("s2", START + SECOND)])
    clock.advance(SECOND)
    assert await taken(commands, hold=HOUR) == [("s2", 1)]
    clock.advance(MINUTE - SECOND)
    assert await taken(commands, hold=HOUR) == [("s1", 1)]
    clock.advance(2 * HOUR)
    assert sorted(await taken(commands)) == [("s1", 2), ("s2", 2)]


async def test_signals_that_are_not_there_are_settled_in_vain(commands: CommandStore) -> None:
    await keep(commands, signal("s1"))
    await settle(commands, "s8", later=[("s9", START)])
    assert await taken(commands) == [("s1", 0)]
    await settle(commands, "s1")
    await settle(commands, "s1", later=[("s1", START)])
    assert await taken(commands) == []
    assert (await commands.stats()).signals == 0


async def test_of_two_replicas_one_keeps_a_signal_and_one_takes_it(
    commands: CommandStore, another_commands: CommandStore
) -> None:
    both = commands, another_commands
    names = [f"s{n:02}" for n in range(20)]
    kept = await asyncio.gather(*(keep(store, *map(signal, names)) for store in both for _ in range(3)))
    assert sum(kept) == 20
    found = await side_by_side(taken(store, limit=7) for store in both for _ in range(4))
    while more := await taken(commands):
        found += more
    assert sorted(found) == [(name, 0) for name in names]


async def test_many_signals_pass_through(commands: CommandStore) -> None:
    names = [f"s{n:04}" for n in range(1_000)]
    assert await keep(commands, *map(signal, names)) == 1_000
    found = [name for name, _ in await taken(commands, limit=2_000)]
    assert found == names
    await settle(commands, *names)
    assert (await commands.stats()).signals == 0
    assert await keep(commands, *map(signal, names)) == 0
