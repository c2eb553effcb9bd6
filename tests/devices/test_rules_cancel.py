"""Cancelled or superseded at each stage: what can still be stopped, and what is honestly said of the rest."""

from __future__ import annotations

import pytest

from remuda.clock import VirtualClock
from remuda.devices.command import Command, CommandType, Fate, Outcome
from remuda.devices.fleet import Cancellation, Fleet
from remuda.devices.happenings import (
    Accepted,
    Acknowledged,
    Answered,
    CallFailed,
    CancelAsked,
    Dispatched,
    Happening,
    Look,
    QueueSeen,
    ReplayAsked,
    Superseded,
    TimePassed,
    Transmitted,
    Withdraw,
    Withdrawn,
)
from remuda.devices.placing import place
from remuda.devices.sending import NewCommand
from remuda.lifecycle import CommandStatus, EndReason
from remuda.stores.commands import Home
from tests.devices.rules_workbench import (
    METER,
    METER_V2,
    MINUTE,
    OK,
    SECOND,
    START,
    Story,
    a_fleet,
    pull,
    push,
    token_answer,
)

STOPS: list[tuple[Happening, EndReason]] = [
    (CancelAsked(), EndReason.CANCELLED),
    (Superseded(by="02"), EndReason.SUPERSEDED),
]
stops = pytest.mark.parametrize(("stop", "reason"), STOPS, ids=["cancelled", "superseded"])


def ended_as(story: Story) -> tuple[EndReason | None, Outcome | None]:
    assert story.status is CommandStatus.DELIVERY_FAILED
    return story.command.reason, story.command.outcome


# -- while it waits


@stops
def test_one_in_its_lane_ends_at_once_and_was_not_executed(stop: Happening, reason: EndReason) -> None:
    story = push(key="a key").then(stop)
    assert ended_as(story) == (reason, Outcome.NOT_EXECUTED)
    assert story.effects == ()


@stops
def test_one_that_waits_for_its_retry_may_have_been_executed(stop: Happening, reason: EndReason) -> None:
    assert ended_as(push(CommandType.TURN_ON).unanswered().then(stop)) == (reason, Outcome.UNKNOWN)


@stops
def test_one_that_certainly_never_left_was_not_executed(stop: Happening, reason: EndReason) -> None:
    failed = CallFailed(attempt=1, code="UNAVAILABLE", certain=True)
    assert ended_as(push().dispatched().then(failed, stop)) == (reason, Outcome.NOT_EXECUTED)


def test_what_superseded_it_is_named_and_its_key_is_free() -> None:
    story = push(CommandType.TURN_ON, key="a key").then(Superseded(by="02"))
    assert story.command.failures[0].details == "by 02"
    assert place(story.command).key is None


# -- while its call runs


@stops
def test_one_whose_call_runs_is_not_ended_before_the_call_is(stop: Happening, reason: EndReason) -> None:
    story = push().dispatched().then(stop)
    assert (story.status, story.command.stop) == (CommandStatus.SENT_TO_NS, reason)
    story.then(CallFailed(attempt=1, code="UNAVAILABLE", certain=True))
    assert ended_as(story) == (reason, Outcome.NOT_EXECUTED)


@stops
def test_one_whose_slow_call_fails_after_the_deadline_ends_with_it(
    stop: Happening, reason: EndReason
) -> None:
    story = push().dispatched().wait(20 * SECOND).then(stop)
    assert story.status is CommandStatus.TO_RETRY, "the call may still succeed"
    story.then(CallFailed(attempt=1, code="timeout"), after=20 * SECOND)
    assert ended_as(story) == (reason, Outcome.UNKNOWN)


@stops
def test_one_whose_caller_died_ends_when_the_call_must_be_over(stop: Happening, reason: EndReason) -> None:
    story = push().dispatched().then(stop).wait(20 * SECOND)
    assert (story.status, story.command.due_at) == (CommandStatus.TO_RETRY, START + 60 * SECOND)
    story.wait_till_due()
    assert ended_as(story) == (reason, Outcome.UNKNOWN)
    assert story.effects == ()


@stops
def test_one_that_is_accepted_all_the_same_is_asked_back(stop: Happening, reason: EndReason) -> None:
    story = push().dispatched().then(stop, Accepted(attempt=1, external_id="item-1"))
    assert story.status is CommandStatus.DELIVERED_TO_NS
    assert story.wait_till_due().effects == (Withdraw(attempt=1),)
    assert ended_as(story.then(Withdrawn(attempt=1, certain=True))) == (reason, Outcome.NOT_EXECUTED)


# -- at the network server


@stops
def test_an_item_that_is_given_back_was_not_executed(stop: Happening, reason: EndReason) -> None:
    story = push(CommandType.TOP_UP).accepted().then(stop)
    assert (story.status, story.due_in) == (CommandStatus.DELIVERED_TO_NS, 0 * SECOND)
    assert story.wait_till_due().effects == (Withdraw(attempt=1),)
    story.then(Withdrawn(attempt=1, certain=True, details="taken out of the queue"))
    assert ended_as(story) == (reason, Outcome.NOT_EXECUTED)
    assert (story.last.fate, story.last.closed) == (Fate.NOT_SENT, True)
    assert story.command.failures[0].details == "taken out of the queue"


@stops
def test_an_item_that_may_be_in_the_air_is_waited_for(stop: Happening, reason: EndReason) -> None:
    story = push(CommandType.TOP_UP).accepted().then(stop).then(Withdrawn(attempt=1, certain=False))
    assert (story.status, story.due_in) == (CommandStatus.DELIVERED_TO_NS, 12 * SECOND)
    assert story.wait_till_due().effects == (Look(),)
    story.then(QueueSeen(present=frozenset()))
    assert ended_as(story) == (reason, Outcome.UNKNOWN)


def test_what_was_in_the_air_is_answered_and_that_is_said() -> None:
    story = push(CommandType.TOP_UP).accepted().then(CancelAsked()).then(Withdrawn(attempt=1, certain=False))
    story.then(Transmitted(attempt=1), Acknowledged(attempt=1, acknowledged=True, dedup="a"))
    story.then(Answered(attempt=1, dedup="a", answer=token_answer()))
    assert (story.status, story.command.outcome) == (CommandStatus.DELIVERY_SUCCESSFUL, Outcome.EXECUTED)


def test_another_attempt_may_have_been_executed_before_the_one_that_was_given_back() -> None:
    story = push(CommandType.TURN_ON).unanswered().released().accepted().then(CancelAsked())
    assert ended_as(story.then(Withdrawn(attempt=2, certain=True))) == (
        EndReason.CANCELLED,
        Outcome.UNKNOWN,
    )


def test_a_withdrawal_that_nobody_asked_for_or_that_comes_too_late_ends_nothing() -> None:
    for story in (push().accepted(), push().transmitted(), push().accepted().then(CancelAsked())):
        before, number = story.status, 1 if story.command.stop is None else 7
        story.then(Withdrawn(attempt=number, certain=True))
        assert (story.status, story.last.fate) == (before, Fate.OPEN)
    in_the_air = push().accepted().then(CancelAsked()).then(Transmitted(attempt=1))
    assert in_the_air.then(Withdrawn(attempt=1, certain=True)).status is CommandStatus.SENT_TO_DEVICE


@stops
def test_a_task_cannot_be_taken_back_and_is_not_waited_for(stop: Happening, reason: EndReason) -> None:
    story = pull(CommandType.TOP_UP).accepted().then(stop)
    assert ended_as(story) == (reason, Outcome.UNKNOWN)
    assert story.effects == ()


@stops
def test_a_task_that_is_made_all_the_same_may_be_executed(stop: Happening, reason: EndReason) -> None:
    story = pull().dispatched().then(stop, Accepted(attempt=1, external_id="task-1"))
    assert ended_as(story) == (reason, Outcome.UNKNOWN)


# -- in the air


@stops
def test_what_is_in_the_air_gets_its_answer_but_no_second_attempt(stop: Happening, reason: EndReason) -> None:
    story = push().transmitted().then(stop)
    assert (story.status, story.effects) == (CommandStatus.SENT_TO_DEVICE, ())
    assert ended_as(story.wait_till_due()) == (reason, Outcome.UNKNOWN)
    answered = push().transmitted().then(stop)
    answered.then(
        Acknowledged(attempt=1, acknowledged=True, dedup="a"), Answered(attempt=1, dedup="a", answer=OK)
    )
    assert answered.command.outcome is Outcome.EXECUTED


def test_the_first_who_stops_it_is_the_one_who_is_named() -> None:
    story = push(key="a key").transmitted().then(CancelAsked(), Superseded(by="02"))
    assert (story.command.stop, place(story.command).key) == (EndReason.CANCELLED, None)


def test_what_has_ended_stays_as_it_is() -> None:
    for story in (push().answered(OK), push().then(CancelAsked())):
        before = story.command
        assert story.then(CancelAsked(), Superseded(by="02"), Dispatched()).command is before


def test_a_replay_takes_the_stop_back() -> None:
    story = push().transmitted().then(CancelAsked()).wait_till_due().then(ReplayAsked())
    assert (story.status, story.command.stop) == (CommandStatus.QUEUED, None)


# -- what a person is told


async def test_the_answer_to_a_cancellation_says_what_may_have_happened(clock: VirtualClock) -> None:
    async with a_fleet(clock) as fleet:
        waiting = await cancelled(fleet)
        assert waiting.has_ended
        assert waiting.outcome is Outcome.NOT_EXECUTED
        assert waiting.words == "cancelled; the device never got it"

        called = await cancelled(fleet, Dispatched())
        assert (called.has_ended, called.outcome) == (False, None)
        assert called.words.startswith("on its way already")

        accepted = (Dispatched(), Accepted(attempt=1, external_id="task-1"))
        task = await cancelled(fleet, *accepted, pull=True)
        assert (task.has_ended, task.outcome) == (True, Outcome.UNKNOWN)
        assert "may have carried it out" in task.words

        again = await fleet.cancel(task.id)
        assert again == task
        assert await fleet.cancel("nobody") is None


async def test_a_command_that_has_ended_is_not_said_to_be_cancelled(clock: VirtualClock) -> None:
    async with a_fleet(clock) as fleet:
        done = await cancelled(
            fleet,
            Dispatched(),
            Accepted(attempt=1, external_id="item-1"),
            Acknowledged(attempt=1, acknowledged=True, dedup="a"),
            Answered(attempt=1, dedup="a", answer=OK),
        )
        assert (done.status, done.outcome) == (CommandStatus.DELIVERY_SUCCESSFUL, Outcome.EXECUTED)
        assert done.words == "not cancelled: it had ended before as DELIVERY_SUCCESSFUL"


async def test_an_item_that_a_program_cancels_is_asked_back_by_the_next_engine_that_looks(
    clock: VirtualClock,
) -> None:
    async with a_fleet(clock) as fleet:
        sent = await fleet.send(NewCommand(type=CommandType.TURN_OFF, device=METER))
        await fleet.ledger.happen({sent.id: [Dispatched(), Accepted(attempt=1, external_id="item-1")]})
        await fleet.cancel(sent.id)
        due = await fleet.store.due([Home.TO_GATEWAY], limit=10, hold=MINUTE)
        assert [each.id for each in due] == [sent.id]
        upshots = await fleet.ledger.happen({sent.id: [TimePassed()]})
        assert [each.effects for each in upshots] == [(Withdraw(attempt=1),)]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START)


async def cancelled(fleet: Fleet, *before: Happening, pull: bool = False) -> Cancellation:
    """A new command to which these things happened, cancelled."""
    device = METER_V2 if pull else METER
    sent = await fleet.send(NewCommand(type=CommandType.READ_CREDIT, device=device, merge=False))
    await fleet.ledger.happen({sent.id: list(before)})
    cancellation = await fleet.cancel(sent.id)
    assert cancellation is not None
    assert cancellation.id == sent.id
    command = await fleet.get(sent.id)
    assert isinstance(command, Command)
    assert command.status is cancellation.status
    return cancellation
