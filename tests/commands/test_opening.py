"""From a URL to a store, and the entries of a trail."""

from __future__ import annotations

import pytest

from remuda.clock import VirtualClock
from remuda.errors import ConfigurationError
from remuda.lifecycle import CommandStatus
from remuda.stores.command_trail import pack_moves, trail_name
from remuda.stores.commands import CommandStore, Home
from remuda.stores.memory_commands import MemoryCommands
from remuda.stores.opening_commands import open_commands
from remuda.transition import MAX_PER_ENTRY, unpack
from tests.commands.workbench import START, claimed, move, new, put, trail


async def test_memory_is_private_to_the_object(clock: VirtualClock) -> None:
    async with open_commands("memory://", clock=clock) as one, open_commands("memory://") as other:
        assert isinstance(one, MemoryCommands)
        assert (one.url, one.fleet, one.now()) == ("memory://", "devices", clock.now())
        await put(one, new("A"))
        assert await other.load(["A"]) == {}


def test_a_url_of_nothing_that_is_known_is_refused_without_its_password() -> None:
    with pytest.raises(ConfigurationError) as refused:
        open_commands("oracle://user:secret@host/db")
    assert "oracle://" in str(refused.value)
    assert "secret" not in str(refused.value)
    with pytest.raises(ConfigurationError, match="memory"):
        open_commands("memory")


@pytest.mark.parametrize("fleet", ["a", "Fleet_1.north-west", "x" * 64])
def test_a_fleets_name_is_plain(fleet: str) -> None:
    assert open_commands("memory://", fleet=fleet).fleet == fleet


@pytest.mark.parametrize("fleet", ["", "x" * 65, "a b", "a:b", "flotte-für", "a{b}", "a\n", None])
def test_any_other_name_of_a_fleet_is_refused(fleet: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        open_commands("memory://", fleet=fleet)
    assert repr(fleet) in str(refused.value)


async def test_a_store_says_where_and_what_it_is(commands: CommandStore) -> None:
    assert commands.fleet == "devices"
    assert "://" in commands.url
    assert (await commands.open()).backend


async def test_what_was_written_is_there_after_a_restart(commands_url: str, clock: VirtualClock) -> None:
    if commands_url == "memory://":
        pytest.skip("what is in memory goes with its object")
    async with open_commands(commands_url, clock=clock) as before:
        await put(before, new("A", moves=(move(None, CommandStatus.QUEUED),)))
    async with open_commands(commands_url, clock=clock) as after:
        assert await claimed(after) == ["A"]
        assert len(await trail(after)) == 1


def test_moves_are_packed_in_order_and_in_entries_of_a_limited_length() -> None:
    moves = (
        move(None, CommandStatus.QUEUED, name="read_credit", about={"device": "dev-1"}),
        move(CommandStatus.QUEUED, CommandStatus.SENT_TO_NS, dwell_ms=5, attempt=1, reason="why"),
    )
    count = MAX_PER_ENTRY // 2 + 1
    entries = pack_moves([new(f"A{n}", Home.TO_NS, moves=moves) for n in range(count)], who="me")
    assert [length for length, _ in entries] == [MAX_PER_ENTRY, 2]
    read = [
        each
        for first, (_, entry) in zip((1, MAX_PER_ENTRY + 1), entries, strict=True)
        for each in unpack(entry, queue=trail_name("north"), first_seq=first)
    ]
    assert [each.seq for each in read] == list(range(1, 2 * count + 1))
    assert [each.message for each in read] == [f"A{n // 2}" for n in range(2 * count)]
    assert {(each.queue, each.who, each.at) for each in read} == {("devices:north", "me", START)}
    assert [(each.name, each.about, each.attempt, each.reason) for each in read[-2:]] == [
        ("read_credit", {"device": "dev-1"}, 0, None),
        (None, None, 1, "why"),
    ]
    assert pack_moves([], who="me") == pack_moves([new("A")], who="me") == []
