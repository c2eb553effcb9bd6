"""Push: what the network server tells by itself, or answers when its queue is looked at."""

from __future__ import annotations

from remuda.devices.answers import answer_to, resolve, speaks_for_itself
from remuda.devices.case import Case
from remuda.devices.command import Attempt, Fate, Heard
from remuda.devices.happenings import (
    Accepted,
    Acknowledged,
    Answered,
    Discarded,
    GatewayRefused,
    NotLearnt,
    QueueSeen,
    Transmitted,
)
from remuda.devices.rules.deadlines import is_to_be_looked_for, release
from remuda.devices.rules.handing_over import accepted
from remuda.lifecycle import IN_FLIGHT_STATUSES, CommandStatus, EndReason

_IN_DOUBT = (Fate.OPEN, Fate.UNKNOWN)
_BEFORE_THE_DEVICE = (CommandStatus.SENT_TO_NS, CommandStatus.DELIVERED_TO_NS, CommandStatus.TO_RETRY)


def transmitted(case: Case, event: Transmitted) -> None:
    attempt = case.attempt(event.attempt)
    if attempt is None or attempt.transmitted_at is not None or attempt.fate not in _IN_DOUBT:
        return
    _adopt(case, attempt, event.external_id)
    case.change_attempt(event.attempt, transmitted_at=case.now)
    if case.is_last(event.attempt) and case.status in _BEFORE_THE_DEVICE:
        case.resume(event.attempt)
        case.enter(CommandStatus.SENT_TO_DEVICE, due_in=case.timings.device)


def _adopt(case: Case, attempt: Attempt, external_id: str | None) -> None:
    """A signal that names an attempt shows that the network server had taken it."""
    if attempt.external_id is None and external_id is not None:
        case.change_attempt(
            attempt.number, external_id=external_id, accepted_at=case.now, call_until=None, guessed=True
        )


def acknowledged(case: Case, event: Acknowledged) -> None:
    attempt = case.attempt(event.attempt)
    if attempt is None or attempt.acked or attempt.acked is event.acknowledged:
        return
    _adopt(case, attempt, event.external_id)
    if not event.acknowledged:
        # An answer was heard, so the device has it, whatever became of its acknowledgement.
        if not any(each.attempt == event.attempt for each in case.command.heard):
            _nacked(case, event)
        return
    case.change_attempt(
        event.attempt,
        acked=True,
        acked_at=case.now,
        ack_dedup=event.dedup,
        transmitted_at=attempt.transmitted_at or case.now,
    )
    heard = answer_to(case, event.attempt)
    if heard is not None:
        resolve(case, event.attempt, heard)
    else:
        _wait_for_the_other(case, event.attempt, "ack_before_txack")


def _nacked(case: Case, event: Acknowledged) -> None:
    case.change_attempt(event.attempt, acked=False, acked_at=case.now, closed=True)
    if case.is_last(event.attempt) and case.status in IN_FLIGHT_STATUSES:
        case.retry_or_fail("nack")


def _wait_for_the_other(case: Case, number: int, reason: str) -> None:
    """Half of an ACK and its uplink is there: give the other half its window."""
    if not case.is_last(number):
        return
    if case.status in _BEFORE_THE_DEVICE:
        case.resume(number)
        case.enter(CommandStatus.SENT_TO_DEVICE, reason=reason, due_in=case.timings.correlation)
    elif case.status is CommandStatus.SENT_TO_DEVICE:
        case.change(due_at=case.now + case.timings.correlation)


def answered(case: Case, event: Answered) -> None:
    attempt = case.attempt(event.attempt)
    if attempt is None or attempt.fate is Fate.ANSWERED:
        return
    if any(each.dedup == event.dedup for each in case.command.heard):
        return
    heard = Heard(dedup=event.dedup, at=case.now, attempt=event.attempt, answer=event.answer)
    case.change(heard=(*case.command.heard, heard))
    if attempt.acked:
        answer = answer_to(case, event.attempt)
        if answer is not None:
            resolve(case, event.attempt, answer)
    elif case.is_last(event.attempt) and case.status is not CommandStatus.QUEUED:
        _wait_for_the_other(case, event.attempt, "answer_before_ack")
    elif speaks_for_itself(event.answer):
        # It is about to be sent again, or has been: whether its ACK still comes does not matter.
        resolve(case, event.attempt, event.answer, reason="late_result")


def discarded(case: Case, event: Discarded) -> None:
    attempt = case.attempt(event.attempt)
    if attempt is None or attempt.fate not in _IN_DOUBT or (attempt.closed and attempt.transmitted_at):
        return
    fate = Fate.NOT_SENT if attempt.transmitted_at is None else Fate.UNKNOWN
    case.change_attempt(event.attempt, fate=fate, closed=True)
    if not case.is_last(event.attempt):
        return
    if case.status in IN_FLIGHT_STATUSES:
        case.retry_or_fail("discarded", code=event.code, details=event.details)
    elif case.status is CommandStatus.TO_RETRY and case.command.is_single_use:
        case.change(due_at=case.now)  # what it waited for is known: it was never sent


def gateway_refused(case: Case, event: GatewayRefused) -> None:
    if case.status is not CommandStatus.DELIVERED_TO_NS:
        return
    newest = case.command.failures[0] if case.command.failures else None
    if newest is None or (newest.reason, newest.details) != ("gateway_refused", event.details):
        case.note("gateway_refused", details=event.details)  # once, however often the gateway says so
    soon = case.now + case.timings.look_again
    if case.command.due_at is None or case.command.due_at > soon:
        case.change(due_at=soon)


def queue_seen(case: Case, event: QueueSeen) -> None:
    last = case.last
    if last is None or event.attempt not in (None, last.number):
        return
    if case.status is CommandStatus.DELIVERED_TO_NS:
        if last.external_id in event.present:
            _still_held(case, last)
        elif case.command.due_at is not None and case.command.due_at <= case.now:
            case.change_attempt(last.number, closed=True)
            case.retry_or_fail("gateway_timeout")
    elif case.status is CommandStatus.TO_RETRY and last.external_id is None:
        if event.adoptable is not None:
            accepted(case, Accepted(attempt=last.number, external_id=event.adoptable))
            return
        case.change_attempt(last.number, looked=True)
        release(case)


def _still_held(case: Case, last: Attempt) -> None:
    """The network server still holds it: that may take its time, but a terminal status is never withheld."""
    if case.now - case.command.started_at <= case.timings.held_for:
        case.change(due_at=case.now + case.timings.gateway)
    elif not last.looked:
        case.change(stop=case.command.stop or EndReason.MAX_AGE, due_at=case.now)  # it is asked back first
    else:
        case.fail(case.command.stop or EndReason.MAX_AGE)


def not_learnt(case: Case, _: NotLearnt) -> None:
    last, due_at = case.last, case.command.due_at
    lost = case.status is CommandStatus.TO_RETRY and last is not None and is_to_be_looked_for(last)
    asked = case.status is CommandStatus.DELIVERED_TO_NS and due_at is not None and due_at <= case.now
    if lost and last is not None and case.now - last.sent_at > case.timings.late_result:
        case.change_attempt(last.number, looked=True)  # it will not be learnt
        release(case)
    elif lost or asked:
        case.change(due_at=case.now + case.timings.look_again)
