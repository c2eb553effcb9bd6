"""Pull: tasks and their polls, from the first at 10 seconds to the last after 48 hours."""

from __future__ import annotations

import pytest

from remuda.devices.command import CommandType, Device, Execution, Fate, Outcome
from remuda.devices.happenings import Accepted, CallFailed, Dispatched, Poll, Polled, QueueSeen
from remuda.lifecycle import CommandStatus, EndReason
from tests.devices.rules_workbench import (
    DONE,
    FAILED,
    HOUR,
    METER_V1,
    METER_V2,
    MILLISECOND,
    MINUTE,
    REFUSED,
    SECOND,
    START,
    Story,
    a_command,
    pull,
)


@pytest.mark.parametrize("device", [METER_V1, METER_V2], ids=["V1", "V2"])
def test_a_task_is_made_polled_and_complete(device: Device) -> None:
    story = Story(a_command(device=device)).accepted()
    assert (story.status, story.due_in) == (CommandStatus.DELIVERED_TO_NS, 10 * SECOND)
    assert story.wait(10 * SECOND - MILLISECOND).effects == ()
    assert story.wait(MILLISECOND).effects == (Poll(attempt=1),)
    story.polled(DONE)
    assert story.status is CommandStatus.DELIVERY_SUCCESSFUL
    assert story.command.outcome is Outcome.EXECUTED
    assert story.command.response is not None
    assert (story.command.response.data, story.command.response.source) == ({"value": 12.5}, "task")
    assert CommandStatus.SENT_TO_DEVICE not in {each.entered for each in story.moves}


def test_a_task_is_polled_more_rarely_as_it_gets_older() -> None:
    story, ages = pull().accepted(), []
    accepted_at = story.now
    for _ in range(9):
        assert story.wait_till_due().effects == (Poll(attempt=1),)
        ages.append((story.now - accepted_at) // SECOND)
        story.polled(None)
    assert ages == [10, 20, 35, 50, 70, 90, 120, 150, 180]
    assert (story.status, story.command.retries) == (CommandStatus.DELIVERED_TO_NS, 0)


def test_a_poll_that_takes_long_counts_from_its_answer() -> None:
    story = pull().accepted().wait_till_due().then(Polled(attempt=1), after=37 * SECOND)
    assert story.due_in == 15 * SECOND


def test_a_task_without_a_result_within_48_hours_has_failed_for_good() -> None:
    story = pull().accepted()
    while story.now < START + 47 * HOUR:
        story.wait(20 * MINUTE).polled(None)
        assert story.status is CommandStatus.DELIVERED_TO_NS
    story.wait(START + 48 * HOUR - story.now)
    assert story.effects == (Poll(attempt=1),), "48 hours are not more than 48 hours"
    story.wait(SECOND)
    assert (story.status, story.command.reason) == (CommandStatus.DELIVERY_FAILED, EndReason.MAX_AGE)
    assert (story.command.outcome, story.sends) == (Outcome.UNKNOWN, 1)


def test_a_command_older_than_48_hours_makes_no_task() -> None:
    story = pull().then(Dispatched(), after=48 * HOUR + SECOND)
    assert (story.command.reason, story.command.outcome) == (EndReason.MAX_AGE, Outcome.NOT_EXECUTED)


def test_what_the_device_refused_was_delivered() -> None:
    story = pull(CommandType.TURN_ON).accepted().wait_till_due().polled(REFUSED)
    assert (story.status, story.command.outcome) == (CommandStatus.DELIVERY_SUCCESSFUL, Outcome.REFUSED)
    assert story.command.response is not None
    assert story.command.response.execution is Execution.EXECUTION_FAILURE
    assert story.command.response.data == "3"


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        (CommandType.READ_CREDIT, Outcome.UNKNOWN),
        (CommandType.TURN_ON, Outcome.UNKNOWN),
        (CommandType.SET_DATE, Outcome.UNKNOWN),
        (CommandType.TOP_UP, Outcome.UNKNOWN),
    ],
)
def test_a_task_that_failed_may_hide_an_effect(kind: CommandType, outcome: Outcome) -> None:
    story = pull(kind).accepted().wait_till_due().polled(FAILED)
    assert story.status is CommandStatus.DELIVERY_SUCCESSFUL
    assert (story.command.outcome, story.last_reason) == (outcome, "task_failed")
    assert story.command.response is not None
    assert story.command.response.execution is Execution.EXECUTION_FAILURE


def test_a_task_that_is_not_made_within_20_seconds_is_to_be_retried() -> None:
    story = pull().dispatched().wait(20 * SECOND)
    assert (story.status, story.last_reason) == (CommandStatus.TO_RETRY, "accept_timeout")


def test_a_late_task_is_polled_like_any_other() -> None:
    story = pull().dispatched().wait(20 * SECOND)
    story.then(Accepted(attempt=1, external_id="task-1"), after=17 * SECOND)
    assert (story.status, story.last_reason) == (CommandStatus.DELIVERED_TO_NS, "late_accept")
    assert (story.due_in, story.sends) == (10 * SECOND, 1)


def test_a_lost_call_is_not_looked_for_where_nothing_can_be_looked_at() -> None:
    story = pull().dispatched().then(CallFailed(attempt=1, code="reset"), after=SECOND).wait_till_due()
    assert (story.status, story.effects) == (CommandStatus.QUEUED, ())


def test_every_task_that_may_still_answer_is_polled() -> None:
    story = pull().dispatched().then(CallFailed(attempt=1, code="timeout"), after=54 * SECOND)
    story.released().accepted().then(Accepted(attempt=1, external_id="task-1"))
    assert story.status is CommandStatus.DELIVERED_TO_NS
    assert story.wait_till_due().effects == (Poll(attempt=1), Poll(attempt=2))
    story.then(Polled(attempt=1, result=DONE))
    assert story.command.outcome is Outcome.EXECUTED


@pytest.mark.parametrize("kind", [CommandType.READ_CREDIT, CommandType.TURN_ON])
def test_an_older_task_that_failed_does_not_end_a_command_whose_newer_task_goes_on(kind: CommandType) -> None:
    story = pull(kind).dispatched().then(CallFailed(attempt=1, code="timeout"), after=54 * SECOND)
    story.released().accepted().then(Accepted(attempt=1, external_id="task-1"))
    story.then(Polled(attempt=1, result=FAILED))
    assert (story.status, story.last.fate) == (CommandStatus.DELIVERED_TO_NS, Fate.OPEN)
    assert story.wait_till_due().effects == (Poll(attempt=2),)
    assert story.polled(DONE).command.outcome is Outcome.EXECUTED


def test_a_switch_refused_by_one_task_may_have_been_thrown_by_another() -> None:
    story = pull(CommandType.TURN_ON).dispatched().then(CallFailed(attempt=1, code="timeout"))
    story.released().accepted().wait_till_due().polled(REFUSED)
    assert story.command.outcome is Outcome.UNKNOWN


def test_a_poll_of_a_command_that_went_on_changes_nothing() -> None:
    story = pull().dispatched().then(CallFailed(attempt=1, code="reset", certain=True))
    before = story.command
    story.then(Polled(attempt=1), Polled(attempt=0, result=DONE), Polled(attempt=2, result=DONE))
    assert story.command is before


def test_a_result_that_comes_twice_is_taken_once() -> None:
    story = pull().accepted().wait_till_due().polled(DONE)
    before, moves = story.command, len(story.moves)
    story.polled(FAILED).polled(DONE)
    assert (story.command, len(story.moves)) == (before, moves)


def test_a_task_that_failed_is_not_asked_for_again() -> None:
    story = pull(CommandType.TOP_UP, expectation=None).accepted().wait_till_due().polled(FAILED)
    assert (story.last.fate, story.last.closed) == (Fate.UNKNOWN, True)


def test_a_queue_tells_nothing_about_tasks() -> None:
    story = pull().accepted()
    story.then(QueueSeen(present=frozenset({"item-1"})))
    assert story.status is CommandStatus.DELIVERED_TO_NS
    assert pull().then(QueueSeen(present=frozenset())).status is CommandStatus.QUEUED
