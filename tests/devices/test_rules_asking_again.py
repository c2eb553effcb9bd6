"""What was asked of a network server and not answered is asked again; what nobody knows proves nothing."""

from __future__ import annotations

from datetime import timedelta

from remuda.devices.command import CommandType, Fate, Outcome
from remuda.devices.correlate import Verdict, route
from remuda.devices.happenings import (
    Accepted,
    CallFailed,
    CancelAsked,
    Look,
    NotLearnt,
    QueueSeen,
    TimePassed,
    Withdraw,
    Withdrawn,
)
from remuda.devices.networks import signals
from remuda.lifecycle import CommandStatus, EndReason
from tests.devices.rules_workbench import METER, SECOND, START, push


def test_an_item_of_a_late_accept_is_asked_back_although_it_was_looked_for() -> None:
    story = push(CommandType.TOP_UP).dispatched().then(CallFailed(attempt=1, code="timeout")).wait_till_due()
    story.then(QueueSeen(present=frozenset(), attempt=1))
    assert (story.status, story.last.looked) == (CommandStatus.TO_RETRY, True)  # waits for a late result
    story.then(Accepted(attempt=1, external_id="item-1"), after=SECOND)
    assert story.status is CommandStatus.DELIVERED_TO_NS
    assert story.then(CancelAsked(), TimePassed()).effects == (Withdraw(attempt=1),)


def test_a_withdrawal_that_the_network_server_did_not_answer_is_asked_for_again() -> None:
    story = push(CommandType.TURN_OFF).accepted().then(CancelAsked()).wait_till_due()
    assert story.effects == (Withdraw(attempt=1),)
    story.then(NotLearnt(code="UNAVAILABLE"))
    assert story.due_in == story.timings.look_again
    assert story.wait_till_due().effects == (Withdraw(attempt=1),)


def test_an_item_that_cannot_be_given_back_is_not_asked_for_again_and_again() -> None:
    story = push(CommandType.TURN_OFF).accepted().then(CancelAsked()).wait_till_due()
    story.then(Withdrawn(attempt=1, certain=False, details="it waits for its ack")).wait_till_due()
    assert story.effects == (Look(),)
    story.then(QueueSeen(present=frozenset({"item-1"}), attempt=1))
    assert story.due_in == story.timings.gateway


def test_an_item_that_the_network_server_holds_for_ever_is_given_up_in_the_end() -> None:
    story = push(CommandType.TURN_OFF).accepted()
    held = QueueSeen(present=frozenset({"item-1"}), attempt=1)
    began = story.now
    while story.command.stop is None:
        assert story.wait_till_due().effects == (Look(),)
        story.then(held)
    assert timedelta(days=7) <= story.now - began < timedelta(days=7, hours=1)
    assert story.wait_till_due().effects == (Withdraw(attempt=1),)
    story.then(Withdrawn(attempt=1, certain=False)).wait_till_due().then(held)
    assert (story.status, story.command.reason) == (CommandStatus.DELIVERY_FAILED, EndReason.MAX_AGE)
    assert story.command.outcome is Outcome.UNKNOWN


def test_a_discard_of_an_item_that_nobody_knows_is_no_proof_about_a_lost_call() -> None:
    story = push(CommandType.TOP_UP).dispatched().then(CallFailed(attempt=1, code="timeout"))
    stranger = signals.Discarded(
        id="d", device=METER.key, at=START + SECOND, external_id="of another program", code="EXPIRED"
    )
    assert route(stranger, [story.command], None) is Verdict.LATER
    assert story.last.fate is Fate.UNKNOWN


def test_a_look_that_is_never_answered_holds_a_command_up_for_a_while_only() -> None:
    story = push().dispatched().then(CallFailed(attempt=1, code="timeout"))
    looks = 0
    while story.status is CommandStatus.TO_RETRY:
        story.wait_till_due()
        if Look() in story.effects:
            looks += 1
            story.then(NotLearnt(code="UNAVAILABLE"))
    assert story.status is CommandStatus.QUEUED
    assert 20 < looks < 40  # every 30 s for a quarter of an hour
