"""Push: each stage, its deadline, what moves a command on, and every move of the lifecycle."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta

import pytest

from remuda.clock import VirtualClock
from remuda.devices.command import CommandType, Execution, Fate, Outcome
from remuda.devices.fleet import Fleet
from remuda.devices.happenings import (
    Accepted,
    Acknowledged,
    Answered,
    CallFailed,
    CancelAsked,
    Discarded,
    Dispatched,
    GatewayRefused,
    Look,
    NotLearnt,
    QueueSeen,
    ReplayAsked,
    Send,
    TimePassed,
    Transmitted,
)
from remuda.devices.sending import NewCommand
from remuda.lifecycle import COMMAND_MOVES, SKIP_RETRY_REASONS, CommandStatus, EndReason
from remuda.stores.memory_commands import MemoryCommands
from tests.devices.rules_workbench import (
    DONE,
    HOUR,
    METER,
    MILLISECOND,
    MINUTE,
    OK,
    SECOND,
    SEED,
    START,
    Story,
    a_command,
    happen,
    pull,
    push,
    written,
)

NOTHING: frozenset[str] = frozenset()

# -- the way of a command to which nothing happens but what should


def test_a_command_goes_through_every_stage_and_is_answered() -> None:
    story = push().dispatched()
    assert (story.status, story.due_in) == (CommandStatus.SENT_TO_NS, 20 * SECOND)
    story.then(Accepted(attempt=1, external_id="item-1"), after=SECOND)
    assert (story.status, story.due_in) == (CommandStatus.DELIVERED_TO_NS, 15 * MINUTE)
    story.then(Transmitted(attempt=1), after=2 * SECOND)
    assert (story.status, story.due_in) == (CommandStatus.SENT_TO_DEVICE, 12 * SECOND)
    story.then(Acknowledged(attempt=1, acknowledged=True, dedup="up-1"), after=SECOND)
    assert (story.status, story.due_in) == (CommandStatus.SENT_TO_DEVICE, 10 * SECOND)
    story.then(Answered(attempt=1, dedup="up-1", answer=OK), after=SECOND)
    assert story.status is CommandStatus.DELIVERY_SUCCESSFUL
    assert story.command.outcome is Outcome.EXECUTED
    assert story.command.response is not None
    assert story.command.response.execution is Execution.EXECUTION_SUCCESS
    assert (story.command.response.data, story.command.response.source) == ({"value": 12.5}, "uplink")
    assert (story.command.failures, story.command.retries, story.command.reason) == ((), 0, None)
    assert [each.dwell_ms for each in story.moves] == [0, 1_000, 2_000, 2_000]
    assert story.command.status_since == START + 5 * SECOND


def test_delivery_and_execution_are_two_things() -> None:
    story = push(CommandType.TURN_ON).answered(written(ok=False))
    assert story.status is CommandStatus.DELIVERY_SUCCESSFUL
    assert story.command.response is not None
    assert story.command.response.execution is Execution.EXECUTION_FAILURE
    assert story.command.outcome is Outcome.REFUSED


def test_the_uplink_may_come_before_its_ack() -> None:
    story = push().transmitted().then(Answered(attempt=1, dedup="up-1", answer=OK), after=SECOND)
    assert (story.status, story.due_in) == (CommandStatus.SENT_TO_DEVICE, 10 * SECOND)
    story.then(Acknowledged(attempt=1, acknowledged=True, dedup="up-1"), after=9 * SECOND)
    assert story.command.outcome is Outcome.EXECUTED


@pytest.mark.parametrize("stage", ["dispatched", "accepted", "transmitted"])
def test_an_ack_is_taken_in_whatever_stage_the_command_is(stage: str) -> None:
    story = getattr(push(), stage)()
    story.then(Acknowledged(attempt=1, acknowledged=True, dedup="up-1", external_id="item-1"))
    assert (story.status, story.due_in) == (CommandStatus.SENT_TO_DEVICE, 10 * SECOND)
    story.then(Answered(attempt=1, dedup="up-1", answer=OK))
    assert story.status is CommandStatus.DELIVERY_SUCCESSFUL


def test_a_txack_may_come_before_the_accept_is_known() -> None:
    story = push().dispatched().then(Transmitted(attempt=1, external_id="item-1"))
    assert (story.status, story.last.external_id) == (CommandStatus.SENT_TO_DEVICE, "item-1")
    before = story.command
    story.then(Accepted(attempt=1, external_id="item-1"), after=SECOND)
    assert story.command is before


# -- deadlines


def test_what_is_not_accepted_within_20_seconds_is_to_be_retried() -> None:
    story = push().dispatched().wait(20 * SECOND - MILLISECOND)
    assert story.status is CommandStatus.SENT_TO_NS
    story.wait(MILLISECOND)
    assert (story.status, story.last_reason) == (CommandStatus.TO_RETRY, "accept_timeout")
    assert story.last.fate is Fate.UNKNOWN


def test_after_15_minutes_at_the_gateway_the_network_server_is_asked() -> None:
    story = push().accepted().wait(15 * MINUTE - MILLISECOND)
    assert Look() not in story.effects
    story.wait(MILLISECOND)
    assert (story.status, story.effects) == (CommandStatus.DELIVERED_TO_NS, (Look(),))


def test_an_item_that_is_still_there_gets_15_minutes_more_as_often_as_it_is() -> None:
    story = push().accepted()
    for _ in range(5):
        story.wait_till_due().then(QueueSeen(present=frozenset({"item-1", "another"})), after=SECOND)
        assert (story.status, story.due_in) == (CommandStatus.DELIVERED_TO_NS, 15 * MINUTE)
    assert story.command.retries == 0


def test_an_item_that_is_gone_is_retried() -> None:
    story = push().accepted().wait_till_due().then(QueueSeen(present=frozenset({"another"})))
    assert (story.status, story.last_reason) == (CommandStatus.TO_RETRY, "gateway_timeout")
    assert story.last.closed


def test_a_look_before_the_deadline_ends_nothing() -> None:
    story = push().accepted().then(QueueSeen(present=NOTHING), after=MINUTE)
    assert story.status is CommandStatus.DELIVERED_TO_NS


def test_a_look_that_is_not_answered_is_repeated() -> None:
    story = push().accepted().wait_till_due().then(NotLearnt(code="UNAVAILABLE"))
    assert (story.status, story.due_in) == (CommandStatus.DELIVERED_TO_NS, 30 * SECOND)
    assert story.wait_till_due().effects == (Look(),)


def test_a_device_that_says_nothing_within_12_seconds_of_the_txack_is_tried_again() -> None:
    story = push().transmitted().wait(12 * SECOND - MILLISECOND)
    assert story.status is CommandStatus.SENT_TO_DEVICE
    story.wait(MILLISECOND)
    assert (story.status, story.last_reason) == (CommandStatus.TO_RETRY, "device_timeout")


def test_an_ack_without_its_uplink_waits_10_seconds() -> None:
    ack = Acknowledged(attempt=1, acknowledged=True, dedup="up-1")
    story = push().transmitted().then(ack, after=11 * SECOND).wait(10 * SECOND - MILLISECOND)
    assert story.status is CommandStatus.SENT_TO_DEVICE
    story.wait(MILLISECOND)
    assert (story.status, story.last_reason) == (CommandStatus.TO_RETRY, "correlation_timeout")


def test_an_uplink_whose_ack_is_lost_is_believed_after_10_seconds() -> None:
    story = push().transmitted().then(Answered(attempt=1, dedup="up-1", answer=OK))
    assert story.wait(10 * SECOND - MILLISECOND).status is CommandStatus.SENT_TO_DEVICE
    story.wait(MILLISECOND)
    assert (story.status, story.last_reason) == (CommandStatus.DELIVERY_SUCCESSFUL, "answer_without_ack")


def test_an_answer_counts_for_more_than_a_nack() -> None:
    story = push().transmitted().then(Answered(attempt=1, dedup="up-1", answer=OK))
    story.then(Acknowledged(attempt=1, acknowledged=False))
    assert story.status is CommandStatus.SENT_TO_DEVICE
    assert story.wait_till_due().command.outcome is Outcome.EXECUTED


def test_a_nack_does_not_take_an_ack_back_but_an_ack_a_nack() -> None:
    acked = push().transmitted().then(Acknowledged(attempt=1, acknowledged=True, dedup="up-1"))
    before = acked.command
    assert acked.then(Acknowledged(attempt=1, acknowledged=False)).command is before
    nacked = push().transmitted().then(Acknowledged(attempt=1, acknowledged=False))
    assert nacked.status is CommandStatus.TO_RETRY
    nacked.then(Acknowledged(attempt=1, acknowledged=True, dedup="up-1"))
    assert (nacked.status, nacked.last.acked) == (CommandStatus.SENT_TO_DEVICE, True)


# -- retries


def test_twelve_attempts_are_made_with_a_backoff_that_doubles() -> None:
    story, waits = push(), []
    while not story.command.has_ended:
        story.unanswered()
        if story.status is CommandStatus.TO_RETRY:
            waits.append(story.due_in)
            story.released()
    assert waits == [2**n * SECOND for n in range(1, 12)]
    assert (story.sends, story.command.retries) == (12, 11)
    assert (story.command.reason, story.command.outcome) == (EndReason.RETRIES_EXHAUSTED, Outcome.UNKNOWN)
    assert [each.final for each in story.command.failures] == [True] + [False] * 12
    assert {each.reason for each in story.command.failures[1:]} == {"device_timeout"}


def test_a_slow_accept_costs_no_retry() -> None:
    story = push()
    while not story.command.has_ended:
        story.dispatched().wait(20 * SECOND)
        story.then(Accepted(attempt=story.sends, external_id=f"item-{story.sends}"), after=17 * SECOND)
        story.then(Transmitted(attempt=story.sends), after=SECOND).wait_till_due()
        if not story.command.has_ended:
            story.released()
    assert (story.sends, story.command.reason) == (12, EndReason.RETRIES_EXHAUSTED)


def test_a_nack_before_its_txack_costs_one_retry() -> None:
    story = push().accepted().then(Acknowledged(attempt=1, acknowledged=False))
    assert (story.status, story.command.retries) == (CommandStatus.TO_RETRY, 1)
    story.then(Transmitted(attempt=1), after=SECOND)
    while story.status is not CommandStatus.QUEUED:
        story.wait_till_due()
    assert story.command.retries == 1


def test_the_end_of_the_last_attempt_does_not_wait_for_a_backoff() -> None:
    story = push()
    for _ in range(11):
        story.unanswered().released()
    story.dispatched().wait(20 * SECOND)
    assert story.status is CommandStatus.TO_RETRY
    story.then(CallFailed(attempt=12, code="UNAVAILABLE", certain=True), after=20 * SECOND)
    assert story.command.reason is EndReason.RETRIES_EXHAUSTED


def test_each_backoff_has_jitter() -> None:
    def backoff(seed: int) -> timedelta:
        story = Story(a_command(), timings=SEED, rng=random.Random(seed)).unanswered()
        assert story.due_in is not None
        return story.due_in

    backoffs = {backoff(seed) for seed in range(20)}
    assert len(backoffs) == 20
    assert all(2 * SECOND <= each <= 3 * SECOND for each in backoffs)


def test_a_retry_does_not_go_out_before_its_backoff_is_over() -> None:
    story = push().unanswered().wait(2 * SECOND - MILLISECOND)
    assert story.status is CommandStatus.TO_RETRY
    assert story.wait(MILLISECOND).status is CommandStatus.QUEUED


def test_a_failed_call_is_retried_and_says_why() -> None:
    failed = CallFailed(attempt=1, code="UNAVAILABLE", details="refused", certain=True)
    story = push().dispatched().then(failed, after=SECOND)
    assert (story.status, story.due_in, story.last.fate) == (
        CommandStatus.TO_RETRY,
        2 * SECOND,
        Fate.NOT_SENT,
    )
    failure = story.command.failures[0]
    assert (failure.reason, failure.code, failure.details) == ("call_failed", "UNAVAILABLE", "refused")
    assert (failure.status, failure.attempt, failure.final) == (CommandStatus.SENT_TO_NS, 1, False)


@pytest.mark.parametrize("reason", sorted(SKIP_RETRY_REASONS))
def test_reasons_that_skip_the_retry_end_it_at_once(reason: EndReason) -> None:
    story = push().dispatched().then(CallFailed(attempt=1, code="no", certain=True, final=reason))
    assert (story.status, story.command.reason) == (CommandStatus.DELIVERY_FAILED, reason)
    assert (story.command.outcome, story.command.retries) == (Outcome.NOT_EXECUTED, 0)
    assert story.command.failures[0].final


def test_a_final_refusal_that_comes_late_ends_it_too() -> None:
    story = push().dispatched().wait(20 * SECOND)
    story.then(CallFailed(attempt=1, code="no", certain=True, final=EndReason.UNKNOWN_DEVICE), after=SECOND)
    assert story.command.reason is EndReason.UNKNOWN_DEVICE


def test_a_final_refusal_says_unknown_where_an_earlier_attempt_may_have_arrived() -> None:
    story = push(CommandType.TURN_ON).unanswered().released().dispatched()
    story.then(CallFailed(attempt=2, code="no", certain=True, final=EndReason.UNKNOWN_DEVICE))
    assert story.command.outcome is Outcome.UNKNOWN


def test_a_lost_call_is_looked_for_before_it_is_made_again() -> None:
    story = push().dispatched().then(CallFailed(attempt=1, code="DEADLINE"), after=5 * SECOND)
    assert story.wait_till_due().effects == (Look(),)
    assert story.status is CommandStatus.TO_RETRY
    assert story.then(QueueSeen(present=NOTHING)).status is CommandStatus.QUEUED
    assert story.last.looked


def test_an_item_that_a_lost_call_made_is_adopted() -> None:
    story = push().dispatched().then(CallFailed(attempt=1, code="DEADLINE"), after=5 * SECOND)
    story.wait_till_due().then(QueueSeen(present=frozenset({"item-7"}), adoptable="item-7"))
    assert (story.status, story.last_reason) == (CommandStatus.DELIVERED_TO_NS, "late_accept")
    assert (story.last.external_id, story.last.fate, story.sends) == ("item-7", Fate.OPEN, 1)


def test_a_look_from_before_a_call_is_no_look_after_it() -> None:
    story = push().dispatched().then(CallFailed(attempt=1, code="timeout")).wait_till_due()
    stale = QueueSeen(present=NOTHING, attempt=1)
    story.then(stale).dispatched().then(CallFailed(attempt=2, code="timeout"))
    assert not story.then(stale).last.looked
    assert (story.status, story.wait_till_due().effects) == (CommandStatus.TO_RETRY, (Look(),))


@pytest.mark.parametrize("stage", ["dispatched", "accepted", "transmitted", "unanswered"])
def test_a_question_that_was_not_answered_moves_no_other_deadline(stage: str) -> None:
    story = getattr(push(), stage)()
    before = story.command
    assert story.then(NotLearnt(code="UNAVAILABLE")).command is before


def test_nothing_is_sent_again_while_the_look_is_not_answered() -> None:
    story = push().dispatched().then(CallFailed(attempt=1, code="DEADLINE"))
    for _ in range(10):
        story.wait_till_due().then(NotLearnt(code="UNAVAILABLE"))
        assert (story.status, story.due_in) == (CommandStatus.TO_RETRY, 30 * SECOND)


def test_a_call_whose_maker_died_is_taken_for_lost_after_a_minute() -> None:
    story = push().dispatched().wait(20 * SECOND).wait_till_due()
    assert (story.status, story.effects) == (CommandStatus.TO_RETRY, ())
    assert story.command.due_at == START + 60 * SECOND
    assert story.wait_till_due().effects == (Look(),)


def test_the_last_call_that_is_lost_is_looked_for_and_then_all_is_over() -> None:
    story = push()
    for _ in range(11):
        story.unanswered().released()
    story.dispatched().wait(20 * SECOND)
    assert story.status is CommandStatus.TO_RETRY, "its call may still succeed"
    while Look() not in story.effects:
        story.wait_till_due()
    story.then(QueueSeen(present=NOTHING))
    assert (story.command.reason, story.sends) == (EndReason.RETRIES_EXHAUSTED, 12)


# -- discards, refusals, claims


def test_a_discarded_item_was_certainly_not_sent() -> None:
    story = push().accepted().then(Discarded(attempt=1, code="EXPIRED", details="too old"))
    assert (story.status, story.last_reason) == (CommandStatus.TO_RETRY, "discarded")
    assert (story.last.fate, story.last.closed) == (Fate.NOT_SENT, True)
    assert (story.command.failures[0].code, story.command.failures[0].details) == ("EXPIRED", "too old")


def test_a_discard_that_is_told_late_is_still_a_proof() -> None:
    story = push(CommandType.TOP_UP).accepted().wait_till_due().then(QueueSeen(present=NOTHING))
    assert (story.status, story.last.fate) == (CommandStatus.TO_RETRY, Fate.UNKNOWN)
    story.then(Discarded(attempt=1, code="EXPIRED"))
    assert (story.last.fate, story.due_in) == (Fate.NOT_SENT, 0 * SECOND)
    assert story.released().dispatched().sends == 2


def test_an_item_that_is_discarded_after_its_txack_may_have_arrived() -> None:
    story = push().transmitted().then(Discarded(attempt=1, code="EXPIRED"))
    assert (story.status, story.last.fate) == (CommandStatus.TO_RETRY, Fate.UNKNOWN)


def test_a_gateway_that_refuses_has_its_queue_looked_at_soon() -> None:
    story = push().accepted().then(GatewayRefused(details="DUTY_CYCLE_OVERFLOW"))
    assert (story.status, story.due_in) == (CommandStatus.DELIVERED_TO_NS, 30 * SECOND)
    assert story.command.failures[0].details == "DUTY_CYCLE_OVERFLOW"
    story.then(GatewayRefused(details="DUTY_CYCLE_OVERFLOW"), after=20 * SECOND)
    assert (story.due_in, len(story.command.failures)) == (10 * SECOND, 1)
    story.wait_till_due().then(QueueSeen(present=frozenset({"item-1"})))
    assert story.due_in == 15 * MINUTE


def test_a_refusal_for_a_command_that_is_elsewhere_means_nothing() -> None:
    story = push().transmitted()
    before = story.command
    assert story.then(GatewayRefused(details="TOO_LATE")).command is before


def test_a_claim_that_nobody_followed_up_goes_back_to_its_lane() -> None:
    decision = happen(a_command(due_at=START), TimePassed(), at=START + 20 * SECOND)
    assert (decision.command.status, decision.command.due_at) == (CommandStatus.QUEUED, None)
    assert (decision.moves, decision.effects) == ((), ())


def test_only_a_command_in_its_lane_is_dispatched() -> None:
    story = push().dispatched()
    before = story.command
    assert story.then(Dispatched()).command is before
    assert story.effects == ()


# -- expiry


def test_a_command_that_is_too_old_is_not_sent() -> None:
    story = push(expires_at=START + 30 * MINUTE).then(Dispatched(), after=30 * MINUTE)
    assert (story.status, story.command.reason) == (CommandStatus.DELIVERY_FAILED, EndReason.EXPIRED)
    assert (story.command.outcome, story.sends) == (Outcome.NOT_EXECUTED, 0)


def test_a_command_expires_in_its_lane() -> None:
    story = push(expires_at=START + 30 * MINUTE).wait(30 * MINUTE - MILLISECOND)
    assert story.status is CommandStatus.QUEUED
    assert story.wait(MILLISECOND).command.reason is EndReason.EXPIRED


def test_a_command_expires_while_it_waits_for_its_retry() -> None:
    story = push(expires_at=START + 15 * SECOND).unanswered()
    assert story.status is CommandStatus.TO_RETRY
    story.wait(SECOND)
    assert (story.command.reason, story.command.outcome) == (EndReason.EXPIRED, Outcome.UNKNOWN)


def test_a_command_that_expires_on_its_way_is_not_tried_again() -> None:
    story = push(expires_at=START + 10 * SECOND).transmitted()
    assert story.wait(9 * SECOND).status is CommandStatus.SENT_TO_DEVICE
    assert story.wait_till_due().command.reason is EndReason.EXPIRED


def test_a_command_that_expires_while_its_call_is_open_ends_after_the_call() -> None:
    story = push(expires_at=START + 30 * SECOND).dispatched().wait(20 * SECOND).wait(20 * SECOND)
    assert (story.status, story.command.due_at) == (CommandStatus.TO_RETRY, START + 60 * SECOND)
    assert story.wait_till_due().command.reason is EndReason.EXPIRED


def test_an_answer_still_counts_after_the_command_has_expired() -> None:
    story = push(expires_at=START + 3 * SECOND).answered(OK)
    assert story.command.outcome is Outcome.EXECUTED


# -- numbers that are nobody's


@pytest.mark.parametrize("number", [0, 2, -1, 99])
def test_what_names_an_attempt_that_was_never_made_means_nothing(number: int) -> None:
    story = push().transmitted()
    before = story.command
    story.then(
        Accepted(attempt=number, external_id="x"),
        CallFailed(attempt=number, code="x"),
        Transmitted(attempt=number),
        Acknowledged(attempt=number, acknowledged=True),
        Answered(attempt=number, dedup="x", answer=OK),
        Discarded(attempt=number, code="x"),
    )
    assert story.command is before
    assert story.effects == ()


# -- the whole table


def late_success(story: Story) -> Story:
    """The first attempt is answered after all."""
    return story.then(
        Acknowledged(attempt=1, acknowledged=True, dedup="late"),
        Answered(attempt=1, dedup="late", answer=OK),
    )


def exhausted(stage: Callable[[Story], Story]) -> Story:
    """All attempts but the last are lost on the air; the last one fails in a stage of its own."""
    story = push()
    for _ in range(11):
        story.unanswered().released()
    return stage(story)


CERTAIN = CallFailed(attempt=12, code="UNAVAILABLE", certain=True)
SCENARIOS: dict[str, Callable[[], Story]] = {
    "answered": lambda: push().answered(OK),
    "answered late, in the lane": lambda: late_success(push().unanswered().released()),
    "answered late, while it is sent again": lambda: late_success(
        push().unanswered().released().dispatched()
    ),
    "answered late, before its retry": lambda: (
        push()
        .unanswered()
        .then(Answered(attempt=1, dedup="late", answer=OK))
        .then(Acknowledged(attempt=1, acknowledged=True, dedup="late"))
    ),
    "an earlier one answered late, before the next retry": lambda: late_success(
        push().unanswered().released().unanswered()
    ),
    "expired in the lane": lambda: push(expires_at=START + HOUR).wait(HOUR),
    "transmitted before the accept": lambda: (
        push().dispatched().then(Transmitted(attempt=1, external_id="item-1"))
    ),
    "call failed": lambda: exhausted(lambda story: story.dispatched().then(CERTAIN)),
    "nacked at the gateway": lambda: push().accepted().then(Acknowledged(attempt=1, acknowledged=False)),
    "discarded, and out of retries": lambda: exhausted(
        lambda story: story.accepted().then(Discarded(attempt=12, code="EXPIRED"))
    ),
    "no answer, and out of retries": lambda: exhausted(Story.unanswered),
    "late accept": lambda: (
        push().dispatched().wait_till_due().then(Accepted(attempt=1, external_id="item-1"), after=SECOND)
    ),
    "late tx-ack": lambda: (
        push().accepted().wait_till_due().then(QueueSeen(present=NOTHING), Transmitted(attempt=1))
    ),
    "cancelled before its retry": lambda: push().unanswered().then(CancelAsked()),
    "call failed, once": lambda: (
        push().dispatched().then(CallFailed(attempt=1, code="UNAVAILABLE", certain=True))
    ),
    "task complete": lambda: pull().accepted().wait_till_due().polled(DONE),
    "too old a task": lambda: pull().accepted().wait(48 * HOUR),
    "replayed": lambda: push().then(CancelAsked(), ReplayAsked(), Dispatched()),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_moves_form_a_chain(name: str) -> None:
    story = SCENARIOS[name]()
    assert story.moves[0].left is CommandStatus.QUEUED
    assert [each.left for each in story.moves[1:]] == [each.entered for each in story.moves[:-1]]
    assert story.moves[-1].entered is story.status


async def test_every_move_of_the_lifecycle_is_made_and_no_other() -> None:
    async with Fleet(MemoryCommands(clock=VirtualClock(START))) as fleet:
        sent = await fleet.send(NewCommand(type=CommandType.READ_CREDIT, device=METER))
        command = await fleet.get(sent.id)
        assert command is not None
        seen = {(each.left, each.entered) for each in await fleet.story(command)}
    for scenario in SCENARIOS.values():
        seen |= set(scenario().pairs)
    assert seen == set(COMMAND_MOVES)


def test_a_send_is_asked_for_by_dispatch_alone() -> None:
    for scenario in SCENARIOS.values():
        story = scenario()
        dispatches = sum(each.entered is CommandStatus.SENT_TO_NS for each in story.moves)
        assert dispatches == story.sends
    assert push().then(Dispatched()).effects == (Send(attempt=1),)
