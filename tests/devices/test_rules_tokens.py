"""Single-use tokens: never two at once, what a read proves, and an outcome that is said only where proved."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from remuda.devices.certainty import is_conclusive, next_purpose, number_in, unresolved
from remuda.devices.command import (
    Answer,
    CommandType,
    Execution,
    Expectation,
    Family,
    Fate,
    Outcome,
    Purpose,
    Response,
)
from remuda.devices.happenings import (
    Accepted,
    Acknowledged,
    Answered,
    CallFailed,
    CancelAsked,
    Discarded,
    Dispatched,
    Polled,
    ReplayAsked,
    Transmitted,
)
from remuda.devices.networks.contract import TaskResult
from remuda.devices.rules import may_replay
from remuda.lifecycle import CommandStatus, EndReason
from tests.devices.rules_workbench import (
    DONE,
    FAILED,
    LIMIT,
    MILLISECOND,
    MINUTE,
    REFUSED,
    RISE,
    SECOND,
    START,
    Story,
    credit,
    pull,
    push,
    token_answer,
)

CERTAIN = CallFailed(attempt=1, code="UNAVAILABLE", certain=True)


def top_up(**options: Any) -> Story:
    return push(CommandType.TOP_UP, data={"token": "1234"}, **options)


def probed(**options: Any) -> Story:
    """A top-up whose credit was 10 before, and which was sent and not answered: its probe is next."""
    return top_up(expectation=RISE, **options).answered(credit(10)).released().unanswered().released()


def value(number: float) -> TaskResult:
    return TaskResult(execution=Execution.EXECUTION_SUCCESS, data={"value": number})


def response_of(story: Story) -> Response:
    assert story.command.response is not None
    return story.command.response


# -- without an expectation


def test_a_token_that_is_answered_is_executed() -> None:
    assert top_up().answered(token_answer()).command.outcome is Outcome.EXECUTED


def test_a_token_that_the_only_attempt_was_refused_is_refused() -> None:
    story = top_up().answered(token_answer(ok=False))
    assert (story.status, story.command.outcome) == (CommandStatus.DELIVERY_SUCCESSFUL, Outcome.REFUSED)
    assert response_of(story).data == "bad"


@pytest.mark.parametrize(
    "kind",
    [
        CommandType.TOP_UP,
        CommandType.SET_POWER_LIMIT,
        CommandType.CLEAR_CREDIT,
        CommandType.CLEAR_TAMPER,
        CommandType.DELIVER_PREEXISTING_TOKEN,
    ],
)
def test_a_token_of_unknown_outcome_is_not_sent_again(kind: CommandType) -> None:
    story = push(kind).unanswered()
    sent_at = story.last.sent_at
    story.wait_till_due()
    assert (story.status, story.command.due_at) == (CommandStatus.TO_RETRY, sent_at + 15 * MINUTE)
    story.wait(sent_at + 15 * MINUTE - MILLISECOND - story.now)
    assert story.status is CommandStatus.TO_RETRY
    story.wait(MILLISECOND)
    assert (story.status, story.command.reason) == (CommandStatus.DELIVERY_FAILED, EndReason.OUTCOME_UNKNOWN)
    assert (story.command.outcome, story.sends) == (Outcome.UNKNOWN, 1)


def test_a_late_answer_settles_a_token_that_waits_for_it() -> None:
    story = top_up().unanswered().wait_till_due()
    story.then(Acknowledged(attempt=1, acknowledged=True, dedup="late"), after=5 * MINUTE)
    story.then(Answered(attempt=1, dedup="late", answer=token_answer()))
    assert (story.command.outcome, story.sends) == (Outcome.EXECUTED, 1)


def test_a_token_that_was_certainly_not_sent_is_sent_again() -> None:
    story = top_up().dispatched().then(CERTAIN).released().dispatched()
    assert (story.sends, len(unresolved(story.command))) == (2, 1)
    story = top_up().accepted().then(Discarded(attempt=1, code="EXPIRED")).released().dispatched()
    assert (story.sends, len(unresolved(story.command))) == (2, 1)


def test_a_token_that_never_left_was_not_executed() -> None:
    story = top_up()
    for number in range(1, 13):
        story.dispatched().then(CallFailed(attempt=number, code="UNAVAILABLE", certain=True))
        if not story.command.has_ended:
            story.released()
    assert story.command.reason is EndReason.RETRIES_EXHAUSTED
    assert story.command.outcome is Outcome.NOT_EXECUTED


def test_a_command_in_its_lane_whose_outcome_is_unknown_is_not_dispatched() -> None:
    story = top_up(expectation=RISE).answered(credit(10)).released().unanswered().released()
    # The lane may hold a record of before the rule, or of a caller who has taken his expectation back.
    story.command = replace(story.command, expectation=None)
    story.then(Dispatched())
    assert (story.command.reason, story.effects) == (EndReason.OUTCOME_UNKNOWN, ())


def test_other_commands_may_be_sent_again_whatever_became_of_them() -> None:
    for kind in (CommandType.READ_CREDIT, CommandType.TURN_OFF, CommandType.SET_TIME):
        assert push(kind).unanswered().released().dispatched().sends == 2


# -- a read before


def test_a_rise_needs_a_value_to_rise_from() -> None:
    story = top_up(expectation=RISE).dispatched()
    assert (story.last.purpose, story.last_reason) == (Purpose.BASELINE, "baseline")
    story.then(Accepted(attempt=1, external_id="item-1"))
    story.then(Acknowledged(attempt=1, acknowledged=True, dedup="a"))
    story.then(Answered(attempt=1, dedup="a", answer=credit(10)))
    assert (story.command.baseline, story.status) == (10.0, CommandStatus.QUEUED)
    assert (story.reasons[-2:], story.command.retries) == (["baseline_read", None], 0)
    story.dispatched()
    assert (story.last.purpose, story.last_reason) == (Purpose.SEND, None)


def test_a_baseline_that_cannot_be_read_is_read_again_within_the_budget() -> None:
    story = top_up(expectation=RISE).answered(credit("---"))
    assert (story.status, story.last_reason, story.command.retries) == (
        CommandStatus.TO_RETRY,
        "baseline_failed",
        1,
    )
    story.released().unanswered().released().dispatched()
    assert [each.purpose for each in story.command.attempts] == [Purpose.BASELINE] * 3


def test_a_token_whose_baseline_is_never_read_was_not_executed() -> None:
    story = top_up(expectation=RISE)
    while not story.command.has_ended:
        story.unanswered()
        if not story.command.has_ended:
            story.released()
    assert (story.command.reason, story.command.outcome) == (
        EndReason.RETRIES_EXHAUSTED,
        Outcome.NOT_EXECUTED,
    )


def test_a_late_baseline_that_may_already_have_risen_is_not_believed() -> None:
    story = top_up(expectation=RISE).unanswered().released().answered(credit(10)).released().dispatched()
    story.then(Answered(attempt=1, dedup="late", answer=credit(60)))
    assert story.command.baseline == 10.0
    assert (story.status, story.last.purpose) == (CommandStatus.SENT_TO_NS, Purpose.SEND)


def test_a_late_baseline_is_taken_while_nothing_was_sent() -> None:
    story = top_up(expectation=RISE).unanswered().released()
    story.then(Answered(attempt=1, dedup="late", answer=credit(10)))
    assert (story.command.baseline, story.status) == (10.0, CommandStatus.QUEUED)
    assert story.dispatched().last.purpose is Purpose.SEND


def test_a_value_of_its_own_needs_no_baseline() -> None:
    story = push(CommandType.SET_POWER_LIMIT, expectation=LIMIT).dispatched()
    assert story.last.purpose is Purpose.SEND


@pytest.mark.parametrize("stop", [CancelAsked(), None], ids=["cancelled", "expired"])
def test_a_token_that_is_not_wanted_any_more_is_not_sent_after_its_baseline(stop: CancelAsked | None) -> None:
    story = top_up(expectation=RISE, expires_at=None if stop else START + 2 * SECOND).transmitted()
    if stop is not None:
        story.then(stop)
    ack = Acknowledged(attempt=1, acknowledged=True, dedup="a")
    story.then(ack, Answered(attempt=1, dedup="a", answer=credit(10)))
    assert (story.status, story.due_in) == (CommandStatus.TO_RETRY, 0 * SECOND)
    story.wait_till_due()
    assert story.command.reason is (EndReason.EXPIRED if stop is None else EndReason.CANCELLED)
    assert (story.command.outcome, story.sends) == (Outcome.NOT_EXECUTED, 1)


# -- a read after


def test_a_probe_that_shows_the_rise_proves_that_it_was_executed() -> None:
    story = probed().answered(credit(60))
    assert [each.purpose for each in story.command.attempts] == [
        Purpose.BASELINE,
        Purpose.SEND,
        Purpose.PROBE,
    ]
    assert (story.status, story.last_reason) == (CommandStatus.DELIVERY_SUCCESSFUL, "probe_applied")
    assert (story.command.outcome, response_of(story).source) == (Outcome.EXECUTED, "probe")
    assert unresolved(story.command) == []


def test_half_of_the_rise_is_proof_enough() -> None:
    assert probed().answered(credit(35)).command.outcome is Outcome.EXECUTED
    assert not probed().answered(credit(34.9)).command.has_ended


def test_a_probe_that_shows_no_rise_lets_the_token_be_sent_again() -> None:
    story = probed().answered(credit(9.5))
    assert (story.status, story.reasons[-2:]) == (CommandStatus.QUEUED, ["probe_not_applied", None])
    assert story.command.attempts[1].fate is Fate.NOT_APPLIED
    assert story.command.baseline == 9.5
    story.released().dispatched()
    assert (story.last.purpose, len(unresolved(story.command))) == (Purpose.SEND, 1)


def test_a_refusal_after_a_proof_is_a_refusal() -> None:
    story = probed().answered(credit(10)).released().answered(token_answer(ok=False))
    assert story.command.outcome is Outcome.REFUSED


def test_a_probe_without_a_number_proves_nothing() -> None:
    story = probed().answered(credit(None))
    assert (story.status, story.last_reason) == (CommandStatus.TO_RETRY, "probe_failed")
    assert story.released().dispatched().last.purpose is Purpose.PROBE


def test_a_late_probe_without_a_number_leaves_the_next_one_to_be_sent() -> None:
    story = probed().unanswered().released()
    story.then(Answered(attempt=3, dedup="late", answer=credit("---")))
    assert (story.status, story.command.failures[0].reason) == (CommandStatus.QUEUED, "probe_failed")
    assert story.dispatched().last.purpose is Purpose.PROBE


def test_a_refused_probe_proves_nothing() -> None:
    no = Answer(family=Family.READ, ok=False, type=CommandType.READ_CREDIT, data={"value": 60})
    assert probed().answered(no).last_reason == "probe_failed"


def test_a_token_that_no_probe_can_settle_ends_as_unknown_when_the_budget_is_used_up() -> None:
    story = probed()
    while not story.command.has_ended:
        story.unanswered()
        if not story.command.has_ended:
            story.released()
    assert (story.command.reason, story.command.outcome) == (EndReason.RETRIES_EXHAUSTED, Outcome.UNKNOWN)
    assert [each.purpose for each in story.command.attempts].count(Purpose.SEND) == 1


def test_the_answer_to_the_token_still_counts_while_it_is_probed() -> None:
    story = probed().transmitted()
    story.then(Acknowledged(attempt=2, acknowledged=True, dedup="late"))
    assert story.status is CommandStatus.SENT_TO_DEVICE
    story.then(Answered(attempt=2, dedup="late", answer=token_answer()))
    assert (story.command.outcome, response_of(story).source) == (Outcome.EXECUTED, "uplink")


def test_two_probes_that_both_answer_are_not_two_proofs() -> None:
    story = probed().unanswered().released().transmitted()
    story.then(Answered(attempt=3, dedup="late", answer=credit(10)))
    assert story.command.attempts[1].fate is Fate.NOT_APPLIED
    assert (story.status, story.sends) == (CommandStatus.SENT_TO_DEVICE, 4)
    story.then(
        Acknowledged(attempt=4, acknowledged=True, dedup="b"),
        Answered(attempt=4, dedup="b", answer=credit(10)),
    )
    assert (story.status, story.reasons[-2:]) == (CommandStatus.QUEUED, ["probe_not_applied", None])


def test_a_late_ack_of_a_probe_says_nothing_about_a_token_that_was_sent_after_it() -> None:
    story = probed().answered(credit(10), acknowledged=False).wait_till_due().transmitted()
    assert (story.last.number, story.last.purpose) == (4, Purpose.SEND)
    story.then(Acknowledged(attempt=3, acknowledged=True, dedup="up-3"))
    assert story.last.fate is Fate.OPEN
    assert story.wait_till_due().released().dispatched().last.purpose is Purpose.PROBE


@pytest.mark.parametrize("value", [10, 60])
def test_a_late_answer_of_a_probe_says_nothing_about_a_token_that_was_sent_after_it(value: float) -> None:
    story = probed().unanswered().released().answered(credit(10)).transmitted()
    assert (story.last.number, story.last.purpose) == (5, Purpose.SEND)
    story.then(Answered(attempt=3, dedup="late", answer=credit(value)))
    assert (story.status, story.last.fate) == (CommandStatus.SENT_TO_DEVICE, Fate.OPEN)
    assert story.wait_till_due().released().dispatched().last.purpose is Purpose.PROBE


def test_a_late_txack_does_not_open_a_read_that_was_answered() -> None:
    story = top_up(expectation=RISE).accepted()
    story.then(Answered(attempt=1, dedup="up-1", answer=credit(10))).wait_till_due()
    assert (story.status, story.last.fate) == (CommandStatus.QUEUED, Fate.ANSWERED)
    story.then(Transmitted(attempt=1))
    assert (story.status, story.last.fate) == (CommandStatus.QUEUED, Fate.ANSWERED)


# -- pull


def test_pull_a_token_whose_task_failed_does_not_give_up_the_probe_that_runs() -> None:
    story = pull(CommandType.TOP_UP, expectation=RISE).accepted().polled(value(10))
    story.dispatched().then(CallFailed(attempt=2, code="timeout")).released().accepted()
    story.then(Accepted(attempt=2, external_id="task-2"), Polled(attempt=2, result=FAILED))
    assert (story.status, story.last.fate) == (CommandStatus.DELIVERED_TO_NS, Fate.OPEN)
    story.polled(value(10))
    assert story.dispatched().last.purpose is Purpose.SEND, "its task has ended, and the read shows no effect"


def test_pull_a_task_that_ended_can_be_probed() -> None:
    story = pull(CommandType.TOP_UP, expectation=RISE).accepted().polled(value(10)).released()
    story.accepted().wait_till_due().polled(FAILED)
    assert (story.status, story.last_reason) == (CommandStatus.TO_RETRY, "task_failed")
    story.released().accepted().polled(value(10))
    assert story.reasons[-2:] == ["probe_not_applied", None]
    assert story.released().dispatched().last.purpose is Purpose.SEND


def test_pull_a_task_that_may_still_run_is_not_disproved_by_a_read() -> None:
    story = pull(CommandType.TOP_UP, expectation=RISE).accepted().polled(value(10)).released()
    story.dispatched().then(CallFailed(attempt=2, code="timeout")).released().accepted().polled(value(10))
    assert not is_conclusive(story.command, unresolved(story.command))
    assert (story.status, story.last_reason) == (CommandStatus.TO_RETRY, "probe_inconclusive")
    story.released().accepted().polled(value(60))
    assert (story.command.outcome, response_of(story).source) == (Outcome.EXECUTED, "probe")


def test_pull_a_refusal_is_a_refusal() -> None:
    assert pull(CommandType.TOP_UP).accepted().polled(REFUSED).command.outcome is Outcome.REFUSED


def test_pull_a_task_is_complete() -> None:
    assert pull(CommandType.TOP_UP).accepted().polled(DONE).command.outcome is Outcome.EXECUTED


def test_pull_a_late_task_of_the_token_answers_while_it_is_probed() -> None:
    story = pull(CommandType.TOP_UP, expectation=RISE).accepted().polled(value(10)).released()
    story.dispatched().then(CallFailed(attempt=2, code="timeout")).released().accepted()
    story.then(Accepted(attempt=2, external_id="task-2"), Polled(attempt=2, result=DONE))
    assert story.command.outcome is Outcome.EXECUTED


# -- what an expectation is


@pytest.mark.parametrize(
    ("expectation", "read", "baseline", "met"),
    [
        ({"at_least": 5.0}, 5.0, None, True),
        ({"at_least": 5.0}, 4.9, None, False),
        ({"at_most": 0.0}, 0.0, None, True),
        ({"at_most": 0.0}, 0.1, None, False),
        ({"rises_by": 50.0}, 100.0, None, False),
        ({"rises_by": 50.0}, 35.0, 10.0, True),
        ({"falls_by": 50.0}, 35.0, 60.0, True),
        ({"falls_by": 50.0}, 36.0, 60.0, False),
        ({"falls_by": 50.0}, 0.0, None, False),
        ({"at_least": 50.0, "rises_by": 50.0}, 45.0, 10.0, False),
    ],
)
def test_an_expectation_is_met_or_not(
    expectation: dict[str, float], read: float, baseline: float | None, met: bool
) -> None:
    assert Expectation(read=CommandType.READ_CREDIT, **expectation).is_met(read, baseline) is met


@pytest.mark.parametrize(
    ("data", "number"),
    [
        ({"value": 12}, 12.0),
        ({"value": "12.50"}, 12.5),
        (7.5, 7.5),
        ("7.5", 7.5),
        ({"value": True}, None),
        ({"value": None}, None),
        ({"value": "ON"}, None),
        ({"value": "nan"}, None),
        ({"value": float("nan")}, None),
        ({"value": "-inf"}, None),
        ({"value": 10**400}, None),
        ({}, None),
        ([1.0], None),
        (None, None),
    ],
)
def test_the_number_of_an_answer(data: Any, number: float | None) -> None:
    assert number_in(data) == number


# -- replay


def test_a_token_that_may_have_been_applied_is_not_replayed() -> None:
    story = top_up().unanswered().wait(15 * MINUTE)
    assert story.command.reason is EndReason.OUTCOME_UNKNOWN
    assert not may_replay(story.command)
    before = story.command
    assert story.then(ReplayAsked()).command is before


def test_a_token_is_replayed_when_somebody_has_made_sure() -> None:
    story = top_up().unanswered().wait(15 * MINUTE).then(ReplayAsked(not_applied=True), after=MINUTE)
    assert (story.status, story.last_reason) == (CommandStatus.QUEUED, "replayed")
    command = story.command
    assert (command.retries, command.replays, command.reason, command.outcome) == (0, 1, None, None)
    assert (command.started_at, command.created_at) == (story.now, START)
    assert command.attempts[0].fate is Fate.NOT_APPLIED
    assert story.answered(token_answer()).command.outcome is Outcome.EXECUTED


def test_a_token_whose_value_tells_by_itself_is_probed_when_it_is_replayed() -> None:
    limit = push(CommandType.SET_POWER_LIMIT, expectation=LIMIT).unanswered()
    limit.then(CancelAsked(), ReplayAsked())
    assert limit.status is CommandStatus.QUEUED
    assert next_purpose(limit.command) is Purpose.PROBE


def test_a_rise_is_no_proof_once_others_may_have_caused_it() -> None:
    story = probed().then(CancelAsked())  # its device's turn is free: another token may be credited now
    before = story.command
    assert story.then(ReplayAsked()).command is before
    story.then(ReplayAsked(not_applied=True), after=MINUTE)
    assert next_purpose(story.command) is Purpose.BASELINE


def test_a_replay_reads_its_baseline_anew() -> None:
    story = top_up(expectation=RISE).answered(credit(10)).then(CancelAsked(), ReplayAsked())
    assert story.command.baseline is None
    assert story.dispatched().last.purpose is Purpose.BASELINE


def test_a_token_that_was_not_sent_is_replayed_as_it_is() -> None:
    story = top_up().then(CancelAsked())
    assert may_replay(story.command)
    assert story.then(ReplayAsked()).dispatched().last.purpose is Purpose.SEND


def test_only_what_has_failed_is_replayed() -> None:
    for story in (top_up(), top_up().transmitted(), top_up().answered(token_answer())):
        before = story.command
        assert not may_replay(before)
        assert story.then(ReplayAsked(not_applied=True)).command is before


def test_a_replay_has_a_new_expiry_and_a_full_budget() -> None:
    story = push(expires_at=START + MINUTE).wait(MINUTE)
    assert story.command.reason is EndReason.EXPIRED
    story.then(ReplayAsked(expires_at=story.now + MINUTE))
    assert story.command.expires_at == story.now + MINUTE
    assert story.dispatched().status is CommandStatus.SENT_TO_NS
