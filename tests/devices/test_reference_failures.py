"""The ten failures of the reference system, each where it is decided: none of them can come back."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from remuda.clock import VirtualClock
from remuda.devices.codecs import default_codecs
from remuda.devices.codecs.contract import UnsupportedCommandError
from remuda.devices.codecs.dlt645 import answer_frame, parse_request
from remuda.devices.command import Command, CommandType, Execution, Fate, Outcome, Purpose
from remuda.devices.correlate import Routed, route
from remuda.devices.fleet import Fleet
from remuda.devices.happenings import (
    Accepted,
    Acknowledged,
    Answered,
    CallFailed,
    Discarded,
    Dispatched,
    Happening,
    Look,
    Poll,
    Polled,
    QueueSeen,
    Send,
    TimePassed,
    Transmitted,
)
from remuda.devices.listening import DeviceReport, Listener, keep
from remuda.devices.networks import signals
from remuda.devices.networks.chirpstack_events import parse_event
from remuda.devices.placing import place
from remuda.devices.sending import NewCommand
from remuda.lifecycle import CommandStatus, EndReason
from remuda.stores.commands import Home, Pace
from remuda.stores.memory_commands import MemoryCommands
from tests.devices.rules_workbench import (
    DONE,
    METER,
    MINUTE,
    OK,
    RISE,
    SECOND,
    START,
    Story,
    a_fleet,
    credit,
    pull,
    push,
    written,
)

# -- 1


def test_1_a_slow_accept_is_waited_for_and_settles_its_attempt() -> None:
    """Failure 1: a call of 37 s against an accept deadline of 20 s, and the device got the command twice."""
    slow = push(CommandType.TOP_UP).dispatched().wait(20 * SECOND)
    slow.then(Accepted(attempt=1, external_id="item-1"), after=17 * SECOND)
    assert (slow.status, slow.last_reason, slow.sends) == (CommandStatus.DELIVERED_TO_NS, "late_accept", 1)
    assert slow.last.fate is Fate.OPEN


@pytest.mark.parametrize("start", [push, pull], ids=["push", "pull"])
def test_1_no_second_send_while_the_first_call_is_open(start: Callable[[], Story]) -> None:
    """Failure 1: whatever looks at the command before the call has ended, once a second, sends nothing."""
    story = start().dispatched()
    while story.now < START + 59 * SECOND:
        story.then(TimePassed(), Dispatched(), after=SECOND)
        assert not any(isinstance(each, Send) for each in story.effects)
    assert story.sends == 1
    assert place(story.command).home is Home.RETRY


# -- 2


async def test_2_orphans_at_the_head_starve_nobody(clock: VirtualClock) -> None:
    """Failure 2: fifty records that nobody could settle hid all those behind them from a LIMIT-50 scan."""
    async with a_fleet(clock) as fleet:
        new = [NewCommand(type=CommandType.READ_CREDIT, device=METER, merge=False) for _ in range(60)]
        sent = await fleet.send_many(new)
        await fleet.ledger.happen({each.id: [Dispatched()] for each in sent})
        clock.advance(MINUTE)
        first = await fleet.store.due([Home.TO_NS], limit=50, hold=MINUTE)
        second = await fleet.store.due([Home.TO_NS], limit=50, hold=MINUTE)
        assert (len(first), len(second)) == (50, 10)
        assert not {each.id for each in first} & {each.id for each in second}


# -- 3


@pytest.mark.parametrize("stage", ["dispatched", "accepted"])
def test_3_a_nack_before_its_txack_is_taken_at_once(stage: str) -> None:
    """Failure 3: a NACK that came before the tx-ack was dropped, and the message waited out 15 minutes."""
    story: Story = getattr(push(), stage)()
    story.then(Acknowledged(attempt=1, acknowledged=False, external_id="item-1"))
    assert (story.status, story.last_reason) == (CommandStatus.TO_RETRY, "nack")
    assert story.due_in == 2 * SECOND


def test_3_a_nack_finds_its_attempt_by_name() -> None:
    """Failure 3, in the correlation: no stage is asked for."""
    command = push().accepted().command
    nack = signals.Ack(id="n", device=METER.key, at=START, external_id="item-1", acknowledged=False)
    where = route(nack, [command], None)
    assert isinstance(where, Routed)
    assert where.happening == Acknowledged(attempt=1, acknowledged=False)


# -- 4


@pytest.mark.parametrize("downlink", [1, 3504699415, 0, "3504699415"])
def test_4_a_txack_is_read_with_a_number_for_its_downlink(downlink: int | str) -> None:
    """Failure 4: `downlinkId` is a JSON number, and a check for a string ignored every real tx-ack."""
    event = {
        "downlinkId": downlink,
        "time": "2030-01-01T00:00:00Z",
        "deviceInfo": {"devEui": METER.address},
        "queueItemId": "item-1",
        "gatewayId": "gw-1",
    }
    told = parse_event("txack", json.dumps(event).encode(), content_type="application/json")
    assert [type(each) for each in told] == [signals.TxAck]
    where = route(told[0], [push().accepted().command], None)
    assert isinstance(where, Routed)
    assert where.happening == Transmitted(attempt=1)


# -- 5


LATER_STAGES: dict[str, Callable[[Story], Story]] = {
    "TO_RETRY": lambda story: story,
    "QUEUED": lambda story: story.released(),
    "SENT_TO_NS": lambda story: story.released().dispatched(),
    "DELIVERED_TO_NS": lambda story: story.released().accepted(),
    "SENT_TO_DEVICE": lambda story: story.released().transmitted(),
    "TO_RETRY again": lambda story: story.released().unanswered(),
    "the third attempt": lambda story: story.released().unanswered().released().transmitted(),
}


@pytest.mark.parametrize("stage", LATER_STAGES)
@pytest.mark.parametrize("ack_first", [True, False], ids=["ACK first", "uplink first"])
def test_5_a_late_success_of_an_earlier_attempt_counts_in_every_later_stage(
    stage: str, ack_first: bool
) -> None:
    """Failure 5: the index was deleted on retry, so an ACK after 12 s was lost and the command sent again."""
    story = LATER_STAGES[stage](push(CommandType.READ_CREDIT).unanswered())
    assert place(story.command).external_ids[0] == "item-1"
    ack = signals.Ack(
        id="a", device=METER.key, at=story.now, external_id="item-1", acknowledged=True, dedup="late"
    )
    # What the device had sent before the second attempt went out.
    uplink = signals.Uplink(id="u", device=METER.key, at=START + 3 * SECOND, dedup="late", data=b"", f_port=1)
    for signal in (ack, uplink) if ack_first else (uplink, ack):
        where = route(signal, [story.command] if not story.command.has_ended else [], OK)
        if isinstance(where, Routed):
            story.then(where.happening)
    assert (story.status, story.command.outcome) == (CommandStatus.DELIVERY_SUCCESSFUL, Outcome.EXECUTED)


def test_5_an_applied_token_is_not_reported_as_refused() -> None:
    """Failure 5, its harm: the second token was refused, and an applied top-up reported as failed."""
    story = push(CommandType.TOP_UP).unanswered()
    while not story.command.has_ended:
        story.wait_till_due().then(Dispatched())
        assert story.sends == 1
    assert story.command.outcome is Outcome.UNKNOWN
    probed = push(CommandType.TOP_UP, expectation=RISE).answered(credit(10)).released().unanswered()
    probed.released().answered(credit(60))
    assert (probed.command.outcome, probed.last.purpose) == (Outcome.EXECUTED, Purpose.PROBE)


def test_5_a_switch_refused_at_the_second_attempt_may_have_been_thrown_at_the_first() -> None:
    """Failure 5 for commands that are sent again: a refusal proves nothing about the attempt before."""
    story = push(CommandType.TURN_ON).unanswered().released().transmitted()
    refusal = written(ok=False)
    story.then(
        Acknowledged(attempt=2, acknowledged=True, dedup="a"), Answered(attempt=2, dedup="a", answer=refusal)
    )
    assert story.command.response is not None
    assert story.command.response.execution is Execution.EXECUTION_FAILURE
    assert story.command.outcome is Outcome.UNKNOWN


# -- 6


def test_6_a_poll_that_fails_is_a_poll_to_repeat() -> None:
    """Failure 6: a transport error while polling made a second task."""
    story = pull(CommandType.TURN_ON).accepted()
    for _ in range(100):
        assert story.wait_till_due().effects == (Poll(attempt=1),)
        story.then(Polled(attempt=1, problem="reset"), after=5 * SECOND)
        assert (story.status, story.sends, story.command.retries) == (CommandStatus.DELIVERED_TO_NS, 1, 0)
    assert story.wait_till_due().polled(DONE).command.outcome is Outcome.EXECUTED


# -- 7


def test_7_an_unsupported_command_fails_at_once() -> None:
    """Failure 7: "unsupported command" was retried."""
    with pytest.raises(UnsupportedCommandError):
        default_codecs().get("calin-meter").encode(
            METER, CommandType.READ_VERSION, data=None, phase=None, now=START
        )
    failed = CallFailed(
        attempt=1, code="unsupported", certain=True, final=EndReason.UNSUPPORTED_COMMAND, details="no frame"
    )
    story = push(CommandType.READ_VERSION).dispatched().then(failed)
    assert (story.status, story.command.reason) == (
        CommandStatus.DELIVERY_FAILED,
        EndReason.UNSUPPORTED_COMMAND,
    )
    assert (story.sends, story.command.retries, story.command.outcome) == (1, 0, Outcome.NOT_EXECUTED)


# -- 8


def log_event(code: str, **context: str) -> list[signals.Signal]:
    event = {
        "time": "2030-01-01T00:00:01Z",
        "deviceInfo": {"devEui": METER.address},
        "level": "ERROR",
        "code": code,
        "description": "why",
        "context": context,
    }
    return parse_event("log", json.dumps(event).encode(), content_type="application/json")


@pytest.mark.parametrize("code", ["EXPIRED", "DOWNLINK_PAYLOAD_SIZE", "F_CNT_DOWN"])
def test_8_a_discarded_item_is_retried_at_once(code: str) -> None:
    """Failure 8: `log` events were ignored, and a discarded downlink waited 15 minutes."""
    story = push().accepted()
    (signal,) = log_event(code, queue_item_id="item-1")
    where = route(signal, [story.command], None)
    assert isinstance(where, Routed)
    assert where.happening == Discarded(attempt=1, code=code, details="why")
    story.then(where.happening)
    assert (story.status, story.last.fate, story.due_in) == (
        CommandStatus.TO_RETRY,
        Fate.NOT_SENT,
        2 * SECOND,
    )


def test_8_a_gateway_that_refuses_is_looked_after_in_half_a_minute() -> None:
    """Failure 8: a refusal names no item; the queue is looked at instead of waiting 15 minutes."""
    story = push().accepted()
    (signal,) = log_event("DOWNLINK_GATEWAY")
    where = route(signal, [story.command], None)
    assert isinstance(where, Routed)
    assert story.then(where.happening).due_in == 30 * SECOND
    assert story.wait_till_due().effects == (Look(),)
    assert story.then(QueueSeen(present=frozenset())).status is CommandStatus.TO_RETRY


# -- 9


async def test_9_an_ack_and_its_uplink_meet_in_the_record(clock: VirtualClock) -> None:
    """Failure 9: correlation lived in the memory of one process, and two replicas broke it."""
    for first_is_ack in (True, False):
        store = MemoryCommands(clock=clock)
        one, other = a_fleet(clock, store, who="one"), a_fleet(clock, store, who="other")
        command = await in_the_air(one)
        ack, uplink = pair(command, clock)
        first, second = (ack, uplink) if first_is_ack else (uplink, ack)
        await heard_by(one, first)
        assert (await known(other, command)).status is CommandStatus.SENT_TO_DEVICE
        clock.advance(9 * SECOND)
        await heard_by(other, second)
        ended = await known(one, command)
        assert (ended.status, ended.outcome) == (CommandStatus.DELIVERY_SUCCESSFUL, Outcome.EXECUTED)
        assert ended.response is not None
        assert ended.response.data == {"value": 12.5, "relay": "on"}
        await store.close()


async def test_9_two_replicas_that_hear_the_two_halves_at_once_settle_it_once(clock: VirtualClock) -> None:
    """Failure 9, the race: whoever is slower to write decides again from what the other wrote."""
    store = MemoryCommands(clock=clock)
    one, other = a_fleet(clock, store, who="one"), a_fleet(clock, store, who="other")
    command = await in_the_air(one)
    ack, uplink = pair(command, clock)
    write, raced = store.write, [False]

    async def write_after_the_other(*args: Any, **options: Any) -> list[bool]:
        if not raced[0]:
            raced[0] = True
            await heard_by(other, ack)
        return await write(*args, **options)

    store.write = write_after_the_other  # type: ignore[method-assign]
    await heard_by(one, uplink)
    ended = await known(one, command)
    assert (raced[0], ended.outcome) == (True, Outcome.EXECUTED)
    entered = [each.entered for each in await one.story(ended)]
    assert entered.count(CommandStatus.DELIVERY_SUCCESSFUL) == 1
    await store.close()


# -- 10


async def test_10_redundant_commands_do_not_pile_up(clock: VirtualClock) -> None:
    """Failure 10: thousands of redundant commands while a gateway was down."""
    async with a_fleet(clock) as fleet:
        lane = "lorawan_network:lagos-7"
        await fleet.hold_lane(lane, why="its gateway is down")
        kinds = (CommandType.READ_CREDIT, CommandType.TURN_OFF, CommandType.TURN_ON)
        for _ in range(200):
            await fleet.send_many(
                [
                    NewCommand(type=kind, device=METER, grid="lagos-7", expires_in=30 * MINUTE)
                    for kind in kinds
                ]
            )
        waiting = await fleet.commands(status=CommandStatus.QUEUED)
        assert sorted(each.type for each in waiting) == [CommandType.READ_CREDIT, CommandType.TURN_ON]
        claimed = await fleet.store.claim([Pace(prefix="")], limit=10, hold=MINUTE)
        assert claimed.commands == [], "a lane whose gateway is down is held"
        superseded = await fleet.commands(status=CommandStatus.DELIVERY_FAILED, limit=1_000)
        assert {each.reason for each in superseded} == {EndReason.SUPERSEDED}
        assert {each.type for each in superseded} == {CommandType.TURN_OFF, CommandType.TURN_ON}


async def test_10_what_is_too_old_expires_in_its_lane(clock: VirtualClock) -> None:
    """Failure 10: a read older than half an hour is worth nothing; it ends although its lane is held."""
    async with a_fleet(clock) as fleet:
        new = NewCommand(type=CommandType.READ_CREDIT, device=METER, expires_in=30 * MINUTE)
        sent = await fleet.send(new)
        await fleet.hold_lane("lorawan_network:default", why="its gateway is down")
        clock.advance(30 * MINUTE)
        due = await fleet.store.due([Home.RETRY], limit=10, hold=MINUTE)
        assert [each.id for each in due] == [sent.id]
        await fleet.ledger.happen({each.id: [TimePassed()] for each in due})
        command = await fleet.get(sent.id)
        assert command is not None
        assert (command.reason, command.outcome) == (EndReason.EXPIRED, Outcome.NOT_EXECUTED)


# -- words


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START)


async def in_the_air(fleet: Fleet) -> Command:
    sent = await fleet.send(NewCommand(type=CommandType.READ_CREDIT, device=METER))
    gone: list[Happening] = [Dispatched(), Accepted(attempt=1, external_id="item-1"), Transmitted(attempt=1)]
    await fleet.ledger.happen({sent.id: gone})
    command = await fleet.get(sent.id)
    assert command is not None
    assert command.status is CommandStatus.SENT_TO_DEVICE
    return command


def pair(command: Command, clock: VirtualClock) -> tuple[signals.Ack, signals.Uplink]:
    """The two halves of what a device says, with the real bytes of a meter."""
    codec = default_codecs().get("calin-meter")
    request = codec.encode(METER, command.type, data=None, phase=None, now=clock.now())
    frame = answer_frame(parse_request(request.data), value=12.5)
    common: dict[str, Any] = {"device": METER.key, "at": clock.now(), "dedup": "up-1"}
    ack = signals.Ack(id=f"ack:{command.id}", external_id="item-1", acknowledged=True, **common)
    return ack, signals.Uplink(id=f"up:{command.id}", data=frame, f_port=1, **common)


async def heard_by(fleet: Fleet, signal: signals.Signal) -> None:
    """One replica keeps a signal, and listens."""
    await keep(fleet.ledger, [signal])
    listener = Listener(fleet.ledger, fleet.codecs, report=_nobody())
    assert (await listener.listen()).taken >= 1


def _nobody() -> Callable[[DeviceReport], Awaitable[None]]:
    async def report(_: DeviceReport) -> None:
        raise AssertionError("nothing is told by itself")

    return report


async def known(fleet: Fleet, command: Command) -> Command:
    found = await fleet.get(command.id)
    assert found is not None
    return found
