"""What a caller asks for: checked, made into a command, and merged with those that wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from remuda.clock import VirtualClock
from remuda.devices.codecs import default_codecs
from remuda.devices.command import (
    Command,
    CommandType,
    Device,
    Expectation,
    Gateway,
    Merge,
    Outcome,
    Phase,
    Priority,
    Protocol,
)
from remuda.devices.fleet import Fleet, Sent
from remuda.devices.happenings import Accepted, Dispatched, Happening, TimePassed, Transmitted
from remuda.devices.sending import MAX_DATA_BYTES, InvalidCommandError, NewCommand, make_command, merge_of
from remuda.lifecycle import CommandStatus, EndReason
from remuda.stores.memory_commands import MemoryCommands
from tests.devices.rules_workbench import METER, METER_V2, MINUTE, SECOND, START, a_fleet

TOKEN = {"token": "1234 5678 9012 3456 7890"}


def new(kind: CommandType = CommandType.READ_CREDIT, device: Device = METER, **options: Any) -> NewCommand:
    return NewCommand(type=kind, device=device, **options)


def made(kind: CommandType = CommandType.READ_CREDIT, device: Device = METER, **options: Any) -> Command:
    return make_command(
        new(kind, device, **options), command_id="01", now=START, codecs=default_codecs(), by_gateway=False
    )


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START)


@pytest.fixture
async def fleet(clock: VirtualClock) -> AsyncIterator[Fleet]:
    async with a_fleet(clock) as fleet:
        yield fleet


async def known(fleet: Fleet, command_id: str) -> Command:
    command = await fleet.get(command_id)
    assert command is not None
    return command


async def on_its_way(fleet: Fleet, command_id: str, *further: Happening) -> None:
    await fleet.ledger.happen({command_id: [Dispatched(), *further]})


# -- making


def test_a_command_begins_in_its_lane_with_everything_that_was_asked() -> None:
    command = made(
        CommandType.READ_VOLTAGE, phase=Phase.B, grid="lagos-7", correlation_id="c-1", expires_in=30 * MINUTE
    )
    assert (command.status, command.lane, command.phase) == (
        CommandStatus.QUEUED,
        "lorawan_network:lagos-7",
        Phase.B,
    )
    assert (command.correlation_id, command.expires_at) == ("c-1", START + 30 * MINUTE)
    assert command.created_at == command.started_at == command.status_since == START
    assert (command.due_at, command.attempts, command.version) == (None, (), 0)


@pytest.mark.parametrize(
    ("kind", "by_person", "priority"),
    [
        (CommandType.CLEAR_CREDIT, False, Priority.CLEAR_CREDIT),
        (CommandType.TOP_UP, False, Priority.TOP_UP),
        (CommandType.TURN_ON, True, Priority.PERSON_WRITE),
        (CommandType.READ_CREDIT, True, Priority.PERSON_READ),
        (CommandType.SET_DATE, False, Priority.SYSTEM_WRITE),
        (CommandType.READ_CREDIT, False, Priority.SYSTEM_READ),
    ],
)
def test_the_usual_priorities(kind: CommandType, by_person: bool, priority: int) -> None:
    assert made(kind, by_person=by_person, data=TOKEN).priority == priority
    assert made(kind, by_person=by_person, data=TOKEN, priority=77).priority == 77


def test_a_read_of_a_phase_is_of_phase_a_where_none_is_named() -> None:
    assert made(CommandType.READ_CURRENT).phase is Phase.A
    assert made(CommandType.READ_CREDIT).phase is None


def test_air_time_is_reckoned_for_push_alone() -> None:
    near = Device(reference="47003333771", protocol=Protocol.LORAWAN, spreading_factor=7)
    far = Device(reference="47003333771", protocol=Protocol.LORAWAN, spreading_factor=12)
    assert made(device=near).airtime_ms == pytest.approx(62, abs=2)
    assert made(device=far).airtime_ms == pytest.approx(1_483, abs=20)
    assert made(device=METER_V2).airtime_ms == 0
    assert made(CommandType.TOP_UP, data="not a token").airtime_ms == 0, "the engine says what is wrong"


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (CommandType.READ_REPORT, {}, "type"),
        (CommandType.JOIN_NETWORK, {}, "type"),
        (CommandType.READ_CREDIT, {"priority": 101}, "priority"),
        (CommandType.READ_CREDIT, {"priority": -1}, "priority"),
        (CommandType.READ_CREDIT, {"expires_in": timedelta(0)}, "expires_in"),
        (CommandType.READ_CREDIT, {"phase": Phase.A}, "phase"),
        (CommandType.READ_CREDIT, {"grid": ""}, "grid"),
        (CommandType.READ_CREDIT, {"grid": "a b"}, "grid"),
        (CommandType.READ_CREDIT, {"correlation_id": "x" * 129}, "correlation_id"),
        (CommandType.READ_CREDIT, {"id": ""}, "id must be .* not ''"),
        (CommandType.READ_CREDIT, {"id": "a b"}, "id must be .* not 'a b'"),
        (CommandType.READ_CREDIT, {"id": "żółw"}, "id must be .* not 'żółw'"),
        (CommandType.READ_CREDIT, {"id": "x" * 129}, "id must be"),
        (CommandType.READ_CREDIT, {"id": 4711}, "id must be .* not 4711"),
        (CommandType.READ_CREDIT, {"data": object()}, "data"),
        (CommandType.READ_CREDIT, {"data": "x" * (MAX_DATA_BYTES + 1)}, "data has"),
        (CommandType.TURN_ON, {"expectation": Expectation(read=CommandType.READ_CREDIT)}, "expectation"),
        (CommandType.TOP_UP, {"expectation": Expectation(read=CommandType.TURN_ON, at_least=1)}, "read"),
        (CommandType.TOP_UP, {"expectation": Expectation(read=CommandType.READ_CREDIT)}, "must say"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name(
    kind: CommandType, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidCommandError, match=said):
        made(kind, **options)


@pytest.mark.parametrize(
    ("device", "said"),
    [
        (Device(reference="", protocol=Protocol.API_V1), "reference"),
        (Device(reference="a b", protocol=Protocol.API_V1), "reference"),
        (Device(reference="1", protocol=Protocol.API_V1, gateway=Gateway(id="")), "gateway"),
        (Device(reference="not-hex", protocol=Protocol.LORAWAN), "EUI"),
        (Device(reference="1", protocol=Protocol.LORAWAN, spreading_factor=13), "spreading_factor"),
    ],
)
def test_a_device_that_cannot_be_reached_is_refused(device: Device, said: str) -> None:
    with pytest.raises(InvalidCommandError, match=said):
        made(device=device)


async def test_nothing_is_written_when_one_of_many_is_wrong(fleet: Fleet) -> None:
    with pytest.raises(InvalidCommandError):
        await fleet.send_many([new(), new(priority=1_000)])
    assert await fleet.commands() == []


# -- keys


def test_commands_of_one_kind_for_one_device_have_one_key() -> None:
    assert made().key == made(priority=3).key
    assert made().key != made(CommandType.READ_POWER).key
    assert made().key != made(device=METER_V2).key
    assert made(CommandType.READ_VOLTAGE).key == made(CommandType.READ_VOLTAGE, phase=Phase.A).key
    assert made(CommandType.READ_VOLTAGE).key != made(CommandType.READ_VOLTAGE, phase=Phase.B).key
    assert made(CommandType.TURN_ON).key == made(CommandType.TURN_OFF).key
    assert made(CommandType.SET_DATE).key != made(CommandType.SET_TIME).key
    assert made(merge=False).key is None


def test_one_token_has_one_key_however_it_is_written_and_its_digits_are_not_in_it() -> None:
    key = made(CommandType.TOP_UP, data=TOKEN).key
    assert key == made(CommandType.TOP_UP, data="1234-5678-9012-3456-7890").key
    assert key != made(CommandType.TOP_UP, data="9999 5678 9012 3456 7890").key
    assert key is not None
    assert "1234" not in key.removeprefix(METER.key)


def test_switches_and_settings_replace_each_other_and_the_rest_is_joined() -> None:
    assert merge_of(CommandType.TURN_OFF) is merge_of(CommandType.SET_TIME) is Merge.SUPERSEDE
    assert merge_of(CommandType.READ_CREDIT) is merge_of(CommandType.TOP_UP) is Merge.JOIN


# -- joining


async def test_a_second_read_is_joined_to_the_one_that_waits(fleet: Fleet) -> None:
    first = await fleet.send(new(correlation_id="a"))
    second = await fleet.send(new(correlation_id="b", by_person=True))
    third = await fleet.send(new(correlation_id="b"))
    assert second == third == Sent(id=first.id, is_new=False)
    command = await known(fleet, first.id)
    assert (command.correlation_id, command.joined) == ("a", ("b",))
    assert command.priority == Priority.PERSON_READ
    assert len(await fleet.commands()) == 1
    for name in ("a", "b"):
        assert [each.id for each in await fleet.find(name)] == [first.id]


async def test_a_read_that_waits_for_its_retry_is_joined_too(fleet: Fleet, clock: VirtualClock) -> None:
    first = await fleet.send(new())
    accepted = (Accepted(attempt=1, external_id="item-1"), Transmitted(attempt=1))
    await on_its_way(fleet, first.id, *accepted)
    clock.advance(12 * SECOND)
    await fleet.ledger.happen({first.id: [TimePassed()]})
    assert (await known(fleet, first.id)).status is CommandStatus.TO_RETRY
    assert (await fleet.send(new())).id == first.id


async def test_a_read_on_its_way_stands_for_nobody_else(fleet: Fleet) -> None:
    first = await fleet.send(new())
    await on_its_way(fleet, first.id)
    second = await fleet.send(new())
    assert second.is_new
    assert (await known(fleet, first.id)).key is None
    assert (await fleet.send(new())).id == second.id


async def test_the_same_token_is_the_same_command_also_on_its_way(fleet: Fleet) -> None:
    first = await fleet.send(new(CommandType.TOP_UP, data=TOKEN))
    await on_its_way(fleet, first.id, Accepted(attempt=1, external_id="item-1"), Transmitted(attempt=1))
    assert (await fleet.send(new(CommandType.TOP_UP, data=TOKEN))) == Sent(id=first.id, is_new=False)
    other = await fleet.send(new(CommandType.TOP_UP, data="9999 5678 9012 3456 7890"))
    assert other.is_new


async def test_a_read_is_not_joined_to_one_that_was_cancelled(fleet: Fleet, clock: VirtualClock) -> None:
    first = await fleet.send(new())
    await on_its_way(fleet, first.id)
    clock.advance(20 * SECOND)
    await fleet.ledger.happen({first.id: [TimePassed()]})
    await fleet.cancel(first.id)
    command = await known(fleet, first.id)
    assert (command.status, command.stop) == (CommandStatus.TO_RETRY, EndReason.CANCELLED), "its call is open"
    assert (await fleet.send(new())).is_new


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        (MINUTE, 30 * MINUTE, 30 * MINUTE),
        (30 * MINUTE, MINUTE, 30 * MINUTE),
        (MINUTE, None, None),
        (None, MINUTE, None),
    ],
)
async def test_a_read_that_stands_for_two_expires_with_the_later(
    fleet: Fleet, first: timedelta | None, second: timedelta | None, together: timedelta | None
) -> None:
    sent = await fleet.send(new(expires_in=first))
    assert (await fleet.send(new(expires_in=second))).id == sent.id
    expires_at = (await known(fleet, sent.id)).expires_at
    assert expires_at == (None if together is None else START + together)


async def test_reads_that_must_not_be_merged_are_not(fleet: Fleet) -> None:
    sent = await fleet.send_many([new(), new(merge=False), new(merge=False)])
    assert [each.is_new for each in sent] == [True] * 3
    assert len(await fleet.commands()) == 3


# -- superseding


async def test_on_ends_an_off_that_waits(fleet: Fleet) -> None:
    off = await fleet.send(new(CommandType.TURN_OFF))
    on = await fleet.send(new(CommandType.TURN_ON))
    assert on.superseded == (off.id,)
    ended = await known(fleet, off.id)
    assert (ended.reason, ended.outcome) == (EndReason.SUPERSEDED, Outcome.NOT_EXECUTED)
    assert ended.failures[0].details == f"by {on.id}"
    assert (await known(fleet, on.id)).status is CommandStatus.QUEUED


async def test_an_off_on_its_way_gets_no_second_attempt(fleet: Fleet) -> None:
    off = await fleet.send(new(CommandType.TURN_OFF))
    await on_its_way(fleet, off.id, Accepted(attempt=1, external_id="item-1"), Transmitted(attempt=1))
    on = await fleet.send(new(CommandType.TURN_ON))
    assert on.superseded == (off.id,)
    going = await known(fleet, off.id)
    assert (going.status, going.stop) == (CommandStatus.SENT_TO_DEVICE, EndReason.SUPERSEDED)
    assert await fleet.successor(going) == on.id


async def test_a_newer_setting_replaces_the_older_of_its_kind(fleet: Fleet) -> None:
    date = await fleet.send(new(CommandType.SET_DATE, data="2026-03-15"))
    time = await fleet.send(new(CommandType.SET_TIME, data="10:00:00"))
    assert time.superseded == ()
    newer = await fleet.send(new(CommandType.SET_DATE, data="2026-03-16"))
    assert newer.superseded == (date.id,)


# -- within one batch


async def test_a_batch_merges_with_itself(fleet: Fleet) -> None:
    sent = await fleet.send_many(
        [
            new(correlation_id="a"),
            new(correlation_id="b", priority=90),
            new(CommandType.TURN_OFF),
            new(CommandType.TURN_ON),
            new(CommandType.TURN_OFF),
        ]
    )
    read, joined, off, on, off_again = sent
    assert joined == Sent(id=read.id, is_new=False)
    assert (on.superseded, off_again.superseded) == ((off.id,), (on.id,))
    command = await known(fleet, read.id)
    assert (command.joined, command.priority) == (("b",), 90)
    statuses = [(await known(fleet, each.id)).status for each in (off, on, off_again)]
    assert statuses == [CommandStatus.DELIVERY_FAILED] * 2 + [CommandStatus.QUEUED]
    story = await fleet.story(await known(fleet, on.id))
    assert [each.entered for each in story] == [CommandStatus.QUEUED, CommandStatus.DELIVERY_FAILED]


async def test_a_batch_meets_one_that_waits_and_then_itself(fleet: Fleet) -> None:
    waiting = await fleet.send(new(CommandType.TURN_ON))
    first, second = await fleet.send_many([new(CommandType.TURN_OFF), new(CommandType.TURN_ON)])
    assert (first.superseded, second.superseded) == ((waiting.id,), (first.id,))
    live = [each.id for each in await fleet.commands(status=CommandStatus.QUEUED)]
    assert live == [second.id]


async def test_a_thousand_reads_of_one_meter_are_one(fleet: Fleet) -> None:
    sent = await fleet.send_many([new() for _ in range(1_200)])
    assert len({each.id for each in sent}) == 1
    assert sum(each.is_new for each in sent) == 1


async def test_two_programs_that_send_at_once_still_merge(clock: VirtualClock) -> None:
    store = MemoryCommands(clock=clock)
    one, other = a_fleet(clock, store), a_fleet(clock, store)
    raced = await _race(store, one, other)
    assert len({each.id for each in raced}) == 1
    assert len(await one.commands()) == 1
    await one.close()


async def _race(store: MemoryCommands, one: Fleet, other: Fleet) -> list[Sent]:
    """The other program sends between the look and the write of the first."""
    owners, raced = store.owners, []

    async def owners_and_then_another(keys: Any) -> Any:
        found = await owners(keys)
        store.owners = owners  # type: ignore[method-assign]
        raced.append(await other.send(new(correlation_id="other")))
        return found

    store.owners = owners_and_then_another  # type: ignore[method-assign]
    return [*raced, await one.send(new(correlation_id="one")), *raced]


# -- ids of the caller's own


def a_meter(number: int) -> Device:
    return Device(reference=f"{47003333000 + number}", protocol=Protocol.API_V2)


async def test_an_id_of_ones_own_is_the_commands(fleet: Fleet) -> None:
    assert await fleet.send(new(id="read-4711")) == Sent(id="read-4711")
    assert (await known(fleet, "read-4711")).status is CommandStatus.QUEUED


async def test_a_second_command_with_the_id_of_another_is_not_added(fleet: Fleet) -> None:
    """Whatever it asks for, and also when the first has ended; it does nothing to others either."""
    await fleet.send(new(CommandType.TURN_ON, id="switch-1"))
    before = await known(fleet, "switch-1")
    again = await fleet.send(new(CommandType.TURN_ON, id="switch-1", correlation_id="c-1"))
    assert again == Sent(id="switch-1", is_new=False)
    assert await known(fleet, "switch-1") == before, "it neither joined nor superseded itself"
    off = await fleet.send(new(CommandType.TURN_OFF))
    assert (await known(fleet, "switch-1")).has_ended
    assert await fleet.send(new(CommandType.TURN_ON, id="switch-1")) == Sent(id="switch-1", is_new=False)
    assert (await known(fleet, off.id)).status is CommandStatus.QUEUED
    assert len(await fleet.commands()) == 2


async def test_of_many_only_those_whose_ids_are_new_are_added(fleet: Fleet) -> None:
    await fleet.send_many([new(device=a_meter(n), id=f"read-{n}") for n in (1, 3)])
    sent = await fleet.send_many([new(device=a_meter(n), id=f"read-{n}") for n in range(5)])
    assert sent == [Sent(id=f"read-{n}", is_new=n not in (1, 3)) for n in range(5)]
    assert len(await fleet.commands()) == 5


async def test_of_two_with_one_id_in_one_call_the_second_is_not_new(fleet: Fleet) -> None:
    sent = await fleet.send_many(
        [
            new(CommandType.TURN_ON, id="A"),
            new(CommandType.TURN_OFF, id="A"),
            new(CommandType.TURN_OFF, id="B"),
            new(CommandType.TURN_ON, id="A"),
            *(new(device=a_meter(n)) for n in range(600)),
            new(CommandType.TURN_ON, id="B"),
        ]
    )
    assert sent[:4] == [
        Sent(id="A"),
        Sent(id="A", is_new=False),
        Sent(id="B", superseded=("A",)),
        Sent(id="A", is_new=False),
    ]
    assert sent[-1] == Sent(id="B", is_new=False)
    assert (await known(fleet, "B")).status is CommandStatus.QUEUED
    assert len(await fleet.commands(limit=1_000)) == 602


async def test_what_has_joined_another_leaves_nothing_of_its_own_id(fleet: Fleet) -> None:
    first = await fleet.send(new())
    joined = Sent(id=first.id, is_new=False)
    assert await fleet.send_many([new(id="mine"), new(id="mine"), new()]) == [joined] * 3
    assert await fleet.get("mine") is None
    assert await fleet.send(new(id="mine", merge=False)) == Sent(id="mine")


async def test_the_second_of_one_call_is_not_new_though_the_first_has_joined_one_that_has_left(
    clock: VirtualClock,
) -> None:
    """Between the steps of the call the one that it had joined goes on its way: it stands for nobody now."""
    store = MemoryCommands(clock=clock)
    async with a_fleet(clock, store) as fleet:
        first = await fleet.send(new())
        owners, asked = store.owners, []

        async def owners_of(keys: Any) -> Any:
            asked.append(keys)
            if len(asked) == 2:
                await on_its_way(fleet, first.id)
            return await owners(keys)

        store.owners = owners_of  # type: ignore[method-assign]
        others = [new(device=a_meter(n)) for n in range(500)]
        sent = await fleet.send_many([new(id="mine"), *others, new(id="mine")])
        assert sent[0] == sent[-1] == Sent(id=first.id, is_new=False)
        assert await fleet.get("mine") is None


async def test_an_id_is_free_again_when_its_command_is_not_kept_any_more(
    fleet: Fleet, clock: VirtualClock
) -> None:
    await fleet.send(new(id="mine"))
    await fleet.cancel("mine")
    await fleet.store.take_ended(limit=1, hold=SECOND)
    await fleet.store.mark_published(["mine"])
    clock.advance(MINUTE)
    assert await fleet.store.prune(ended_before=clock.now(), limit=1) == 1
    assert await fleet.send(new(id="mine")) == Sent(id="mine")


@pytest.mark.parametrize("asked", ["owners", "load"])
async def test_an_id_that_another_program_adds_meanwhile_is_not_added_again(
    clock: VirtualClock, asked: str
) -> None:
    """The other program sends between the looks and the write of the first."""
    store = MemoryCommands(clock=clock)
    one, other = a_fleet(clock, store), a_fleet(clock, store)
    look = getattr(store, asked)

    async def look_and_then_another(names: Any) -> Any:
        found = await look(names)
        setattr(store, asked, look)
        assert (await other.send(new(CommandType.TURN_ON, id="A"))).is_new
        return found

    setattr(store, asked, look_and_then_another)
    sent = await one.send_many([new(CommandType.TURN_ON, id="A"), new(id="B")])
    assert sent == [Sent(id="A", is_new=False), Sent(id="B")]
    assert sorted(each.id for each in await one.commands()) == ["A", "B"]
    await one.close()


async def test_programs_that_send_the_same_ids_at_once_add_each_once(store_url: str) -> None:
    """More than one step of them, in another order each, and every program gets its answer."""
    programs = [Fleet(store_url, name="meters") for _ in range(3)]
    asked = [new(device=a_meter(n), id=f"read-{n}") for n in range(700)]
    orders = [asked, asked[::-1], asked[350:] + asked[:350]]
    try:
        await programs[0].store.open()
        sent = await asyncio.gather(
            *(fleet.send_many(order) for fleet, order in zip(programs, orders, strict=True))
        )
        for answers, order in zip(sent, orders, strict=True):
            assert [each.id for each in answers] == [each.id for each in order]
        new_ones = [each.id for answers in sent for each in answers if each.is_new]
        assert sorted(new_ones) == sorted(f"read-{n}" for n in range(700))
        trail = await programs[0].store.transitions(after=0, limit=5_000)
        assert sorted(each.message for each in trail.transitions) == sorted(new_ones)
        again = await programs[1].send_many(asked)
        assert not any(each.is_new for each in again)
        listed = await programs[2].commands(limit=400)
        listed += await programs[2].commands(before=listed[-1].id, limit=400)
        assert sorted(each.id for each in listed) == sorted(new_ones)
    finally:
        for fleet in programs:
            await fleet.close()


async def test_commands_are_found_oldest_first_whatever_their_ids(fleet: Fleet, clock: VirtualClock) -> None:
    for own_id in ("b", "a", "c"):
        await fleet.send(new(id=own_id, correlation_id="mine", merge=False))
        clock.advance(SECOND)
    assert [each.id for each in await fleet.find("mine")] == ["b", "a", "c"]


# -- operating


async def test_a_command_is_found_by_any_of_its_names(fleet: Fleet) -> None:
    sent = await fleet.send(new(correlation_id="mine"))
    await on_its_way(fleet, sent.id, Accepted(attempt=1, external_id="item-1"))
    for name in (sent.id, "mine", "item-1"):
        assert [each.id for each in await fleet.find(name)] == [sent.id]
    assert await fleet.find("nobody's") == []


async def test_a_replay_is_told_whether_it_was_made(fleet: Fleet) -> None:
    sent = await fleet.send(new())
    assert not await fleet.replay(sent.id)
    assert not await fleet.replay("nobody")
    await fleet.cancel(sent.id)
    assert await fleet.replay(sent.id)
    command = await known(fleet, sent.id)
    assert (command.status, command.replays) == (CommandStatus.QUEUED, 1)


async def test_a_replayed_switch_stands_for_its_kind_again(fleet: Fleet) -> None:
    off = await fleet.send(NewCommand(type=CommandType.TURN_OFF, device=METER))
    await fleet.cancel(off.id)
    assert await fleet.replay(off.id)
    on = await fleet.send(NewCommand(type=CommandType.TURN_ON, device=METER))
    assert on.superseded == (off.id,)


async def test_a_switch_is_not_replayed_over_a_newer_one(fleet: Fleet) -> None:
    off = await fleet.send(NewCommand(type=CommandType.TURN_OFF, device=METER))
    on = await fleet.send(NewCommand(type=CommandType.TURN_ON, device=METER))
    assert not await fleet.replay(off.id)
    superseded = await fleet.get(off.id)
    assert superseded is not None
    assert await fleet.successor(superseded) == on.id
    await fleet.cancel(on.id)
    assert await fleet.replay(off.id)


async def test_a_read_is_replayed_beside_a_newer_one(fleet: Fleet) -> None:
    old = await fleet.send(NewCommand(type=CommandType.READ_CREDIT, device=METER))
    await fleet.cancel(old.id)
    new = await fleet.send(NewCommand(type=CommandType.READ_CREDIT, device=METER))
    assert await fleet.replay(old.id)
    joined = await fleet.send(NewCommand(type=CommandType.READ_CREDIT, device=METER))
    assert (joined.id, joined.is_new) == (new.id, False)
