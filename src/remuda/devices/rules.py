"""The deciding part of the device engine: (command, what happened, now) → (command, moves, effects).

Pure: clock and random source are passed in, and nothing is read or written. A happening may be late,
early, doubled or out of order; one that says nothing new changes nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from remuda.devices.answers import resolve, resolve_task
from remuda.devices.case import Case
from remuda.devices.certainty import is_guarded, next_purpose, unresolved
from remuda.devices.command import Attempt, Command, Fate, Heard, Purpose
from remuda.devices.happenings import (
    Accepted,
    Acknowledged,
    Answered,
    CallFailed,
    CancelAsked,
    Discarded,
    Dispatched,
    Effect,
    GatewayRefused,
    Happening,
    JoinedBy,
    KeyGivenUp,
    Look,
    NotLearnt,
    Poll,
    Polled,
    QueueSeen,
    ReplayAsked,
    Send,
    Superseded,
    TimePassed,
    Transmitted,
    Withdraw,
    Withdrawn,
)
from remuda.devices.timings import Timings
from remuda.lifecycle import IN_FLIGHT_STATUSES, CommandStatus, EndReason
from remuda.stores.commands import Move

_IN_DOUBT = (Fate.OPEN, Fate.UNKNOWN)
_BEFORE_THE_DEVICE = (CommandStatus.SENT_TO_NS, CommandStatus.DELIVERED_TO_NS, CommandStatus.TO_RETRY)


class Decision(msgspec.Struct, frozen=True):
    """What becomes of a command. `command` is the same object where nothing changed."""

    command: Command
    moves: tuple[Move, ...] = ()
    effects: tuple[Effect, ...] = ()


def decide(
    command: Command, happening: Happening, *, now: datetime, timings: Timings, rng: random.Random
) -> Decision:
    """What becomes of a command to which something happened."""
    if command.has_ended and not isinstance(happening, ReplayAsked):
        return Decision(command)
    case = Case(command, now, timings, rng)
    _RULES[type(happening)](case, happening)
    return Decision(case.command, tuple(case.moves), tuple(case.effects))


# -- to the network server


def _dispatched(case: Case, _: Dispatched) -> None:
    if case.status is not CommandStatus.QUEUED:
        return
    command = case.command
    purpose = next_purpose(command)
    if case.is_expired:
        case.fail(EndReason.EXPIRED)
    elif not command.is_push and case.now - command.started_at > case.timings.max_age:
        case.fail(EndReason.MAX_AGE)
    elif purpose is None:
        case.fail(EndReason.OUTCOME_UNKNOWN)
    else:
        number = len(command.attempts) + 1
        attempt = Attempt(
            number=number, sent_at=case.now, purpose=purpose, call_until=case.now + case.timings.call
        )
        case.enter(CommandStatus.SENT_TO_NS, reason=_said(purpose), due_in=case.timings.accept)
        case.change(attempts=(*command.attempts, attempt))
        case.do(Send(attempt=number))


def _said(purpose: Purpose) -> str | None:
    return None if purpose is Purpose.SEND else purpose.value


def _accepted(case: Case, event: Accepted) -> None:
    attempt = case.attempt(event.attempt)
    if attempt is None or (attempt.external_id is not None and attempt.call_until is None):
        return
    case.change_attempt(
        event.attempt, external_id=event.external_id, accepted_at=case.now, call_until=None, looked=False
    )
    if attempt.fate is Fate.ANSWERED:
        return
    late = case.status is CommandStatus.TO_RETRY
    if not case.is_last(event.attempt) or case.status not in (
        CommandStatus.SENT_TO_NS,
        CommandStatus.TO_RETRY,
    ):
        if attempt.fate is Fate.NOT_SENT:
            case.change_attempt(event.attempt, fate=Fate.UNKNOWN)  # it says so itself: the guess is void
        return
    case.resume(event.attempt)
    if case.command.is_push:
        wait = case.timings.gateway
    else:
        wait = case.timings.poll_delay(case.now - case.now)
    case.enter(CommandStatus.DELIVERED_TO_NS, reason="late_accept" if late else None, due_in=wait)
    if case.command.stop is not None:
        _stop_at_network(case)


def _call_failed(case: Case, event: CallFailed) -> None:
    attempt = case.attempt(event.attempt)
    if attempt is None or attempt.call_until is None or attempt.external_id is not None:
        return
    fate = Fate.NOT_SENT if event.certain else Fate.UNKNOWN
    case.change_attempt(event.attempt, call_until=None, fate=fate, closed=event.certain)
    if not case.is_last(event.attempt):
        return
    if event.final is not None and case.status in (CommandStatus.SENT_TO_NS, CommandStatus.TO_RETRY):
        case.fail(event.final, code=event.code, details=event.details)
    elif case.status is CommandStatus.SENT_TO_NS:
        case.retry_or_fail("call_failed", code=event.code, details=event.details)
    elif case.is_waiting and case.ends_after_call:
        _release(case)


# -- push: what the network server tells


def _transmitted(case: Case, event: Transmitted) -> None:
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
        case.change_attempt(attempt.number, external_id=external_id, accepted_at=case.now, call_until=None)


def _acknowledged(case: Case, event: Acknowledged) -> None:
    attempt = case.attempt(event.attempt)
    if attempt is None or attempt.acked or attempt.acked is event.acknowledged:
        return
    _adopt(case, attempt, event.external_id)
    answered = next((each for each in case.command.heard if each.attempt == event.attempt), None)
    if not event.acknowledged:
        # An answer was heard, so the device has it, whatever became of its acknowledgement.
        if answered is None:
            _nacked(case, event)
        return
    case.change_attempt(
        event.attempt,
        acked=True,
        acked_at=case.now,
        ack_dedup=event.dedup,
        transmitted_at=attempt.transmitted_at or case.now,
    )
    if answered is not None:
        resolve(case, event.attempt, answered.answer)
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


def _answered(case: Case, event: Answered) -> None:
    attempt = case.attempt(event.attempt)
    if attempt is None or attempt.fate is Fate.ANSWERED:
        return
    if attempt.acked:
        resolve(case, event.attempt, event.answer)
        return
    if any(each.dedup == event.dedup for each in case.command.heard):
        return
    heard = Heard(dedup=event.dedup, at=case.now, attempt=event.attempt, answer=event.answer)
    case.change(heard=(*case.command.heard, heard))
    if case.is_last(event.attempt) and case.status is not CommandStatus.QUEUED:
        _wait_for_the_other(case, event.attempt, "answer_before_ack")
    else:
        # It is about to be sent again, or has been: whether its ACK still comes does not matter.
        resolve(case, event.attempt, event.answer, reason="late_result")


def _discarded(case: Case, event: Discarded) -> None:
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


def _gateway_refused(case: Case, event: GatewayRefused) -> None:
    if case.status is not CommandStatus.DELIVERED_TO_NS:
        return
    newest = case.command.failures[0] if case.command.failures else None
    if newest is None or (newest.reason, newest.details) != ("gateway_refused", event.details):
        case.note("gateway_refused", details=event.details)  # once, however often the gateway says so
    soon = case.now + case.timings.look_again
    if case.command.due_at is None or case.command.due_at > soon:
        case.change(due_at=soon)


def _queue_seen(case: Case, event: QueueSeen) -> None:
    last = case.last
    if last is None or event.attempt not in (None, last.number):
        return
    if case.status is CommandStatus.DELIVERED_TO_NS:
        if last.external_id in event.present and case.command.stop is not None:
            # It was to be given back, and was not: that is asked for again.
            case.change_attempt(last.number, looked=False)
            case.change(due_at=case.now + case.timings.look_again)
        elif last.external_id in event.present:
            case.change(due_at=case.now + case.timings.gateway)
        elif case.command.due_at is not None and case.command.due_at <= case.now:
            case.change_attempt(last.number, closed=True)
            case.retry_or_fail("gateway_timeout")
    elif case.status is CommandStatus.TO_RETRY and last.external_id is None:
        if event.adoptable is not None:
            _accepted(case, Accepted(attempt=last.number, external_id=event.adoptable))
            return
        case.change_attempt(last.number, looked=True)
        _release(case)


def _not_learnt(case: Case, _: NotLearnt) -> None:
    last, due_at = case.last, case.command.due_at
    lost = case.status is CommandStatus.TO_RETRY and last is not None and _is_to_be_looked_for(last)
    asked = case.status is CommandStatus.DELIVERED_TO_NS and due_at is not None and due_at <= case.now
    if lost and last is not None and case.now - last.sent_at > case.timings.late_result:
        case.change_attempt(last.number, looked=True)  # it will not be learnt
        _release(case)
    elif lost or asked:
        case.change(due_at=case.now + case.timings.look_again)


# -- pull


def _polled(case: Case, event: Polled) -> None:
    attempt = case.attempt(event.attempt)
    if attempt is None or attempt.fate in (Fate.ANSWERED, Fate.NOT_APPLIED) or attempt.closed:
        return
    if event.result is not None:
        resolve_task(case, event.attempt, event.result)
    elif case.status is CommandStatus.DELIVERED_TO_NS:
        age = case.now - (attempt.accepted_at or attempt.sent_at)
        case.change(due_at=case.now + case.timings.poll_delay(age))


# -- time


def _time_passed(case: Case, _: TimePassed) -> None:
    if case.is_waiting and case.is_expired:
        case.fail(EndReason.EXPIRED)
        return
    if case.status is CommandStatus.QUEUED:
        # Its claimer died before it wrote anything: it goes back to its lane as it is.
        case.change(due_at=None)
        return
    if case.command.due_at is not None and case.command.due_at > case.now:
        return
    match case.status:
        case CommandStatus.SENT_TO_NS:
            case.retry_or_fail("accept_timeout")
        case CommandStatus.DELIVERED_TO_NS:
            _at_network_too_long(case)
        case CommandStatus.SENT_TO_DEVICE:
            _device_is_silent(case)
        case CommandStatus.TO_RETRY:
            _release(case)


def _at_network_too_long(case: Case) -> None:
    command, last = case.command, case.last
    if command.is_push:
        if command.stop is not None and last is not None and not last.looked:
            case.do(Withdraw(attempt=last.number))
        else:
            case.do(Look())
        return
    if case.now - command.started_at > case.timings.max_age:
        case.fail(EndReason.MAX_AGE)
        return
    for each in command.attempts:
        if each.external_id is not None and each.fate in (Fate.OPEN, Fate.UNKNOWN) and not each.closed:
            case.do(Poll(attempt=each.number))


def _device_is_silent(case: Case) -> None:
    number = len(case.command.attempts)
    heard = next((each for each in case.command.heard if each.attempt == number), None)
    if heard is not None:
        # The device answered to this very command; only the event with its ACK was lost.
        resolve(case, number, heard.answer, reason="answer_without_ack")
        return
    last = case.last
    acked = last is not None and last.acked
    case.retry_or_fail("correlation_timeout" if acked else "device_timeout")


def _release(case: Case) -> None:
    """The backoff has elapsed: back to the lane, unless an earlier attempt has to be cleared up first."""
    for each in case.command.attempts:
        if each.call_until is not None and each.call_until <= case.now:
            case.change_attempt(each.number, call_until=None)  # whoever made the call is gone
    still_open = [each.call_until for each in case.command.attempts if each.call_until is not None]
    last = case.last
    if still_open:
        # It must not go out again while a call may still succeed.
        case.change(due_at=max(still_open))
    elif case.command.stop is not None:
        case.fail(case.command.stop)
    elif case.is_expired:
        case.fail(EndReason.EXPIRED)
    elif case.command.is_push and last is not None and _is_to_be_looked_for(last):
        case.do(Look())
        case.change(due_at=case.now + case.timings.look_again)
    elif case.is_exhausted(case.command.retries):
        case.fail(EndReason.RETRIES_EXHAUSTED)
    elif next_purpose(case.command) is None:
        _wait_for_late_result(case)
    else:
        case.enter(CommandStatus.QUEUED)


def _is_to_be_looked_for(attempt: Attempt) -> bool:
    """Its call was lost, and nobody has looked yet whether the network server has it."""
    return attempt.external_id is None and attempt.fate is Fate.UNKNOWN and not attempt.looked


def _wait_for_late_result(case: Case) -> None:
    until = max(each.sent_at for each in unresolved(case.command)) + case.timings.late_result
    if until <= case.now:
        case.fail(EndReason.OUTCOME_UNKNOWN)
    else:
        case.change(due_at=until)


# -- people


def _cancel_asked(case: Case, _: CancelAsked) -> None:
    _stop(case, EndReason.CANCELLED)


def _superseded(case: Case, event: Superseded) -> None:
    case.change(key=None)
    _stop(case, EndReason.SUPERSEDED, details=f"by {event.by}")


def _stop(case: Case, reason: EndReason, details: str | None = None) -> None:
    if case.is_waiting:
        case.fail(reason, details=details)
        return
    if case.command.stop is None:
        case.change(stop=reason)
    if case.status is CommandStatus.DELIVERED_TO_NS:
        _stop_at_network(case)


def _stop_at_network(case: Case) -> None:
    """Push: an engine asks it back at once. Pull: that cannot be, and nobody waits for it any longer."""
    command = case.command
    if command.is_push:
        case.change(due_at=case.now)
    elif command.stop is not None:
        case.fail(command.stop)


def _withdrawn(case: Case, event: Withdrawn) -> None:
    if not case.is_last(event.attempt) or case.status is not CommandStatus.DELIVERED_TO_NS:
        return
    stop = case.command.stop
    case.change_attempt(event.attempt, looked=True)
    if stop is not None and event.certain:
        case.change_attempt(event.attempt, fate=Fate.NOT_SENT, closed=True)
        case.fail(stop, details=event.details)
    elif stop is not None:
        # It may be in the air just now: what the device answers is waited for.
        case.change(due_at=case.now + case.timings.device)


def _key_given_up(case: Case, _: KeyGivenUp) -> None:
    case.change(key=None)


def _joined_by(case: Case, event: JoinedBy) -> None:
    command = case.command
    case.change(priority=max(command.priority, event.priority))
    if command.expires_at is not None and (event.expires_at is None or event.expires_at > command.expires_at):
        case.change(expires_at=event.expires_at)
    if event.correlation_id is not None and event.correlation_id != command.correlation_id:
        joined = (*(each for each in command.joined if each != event.correlation_id), event.correlation_id)
        case.change(joined=joined)


def may_replay(command: Command) -> bool:
    """Whether a command can begin anew. One whose token may have been applied needs proof that it was not."""
    if command.status is not CommandStatus.DELIVERY_FAILED:
        return False
    # Since it ended others may have changed what a read would be compared with.
    expectation = command.expectation
    return not is_guarded(command) or (expectation is not None and not expectation.needs_baseline)


def _replay_asked(case: Case, event: ReplayAsked) -> None:
    if case.status is not CommandStatus.DELIVERY_FAILED:
        return
    if event.not_applied:
        for each in unresolved(case.command):
            case.change_attempt(each.number, fate=Fate.NOT_APPLIED)
    if not may_replay(case.command):
        return
    case.change(
        retries=0,
        reason=None,
        outcome=None,
        stop=None,
        key=None,
        baseline=None,
        started_at=case.now,
        expires_at=event.expires_at,
        replays=case.command.replays + 1,
    )
    case.enter(CommandStatus.QUEUED, reason="replayed")


_RULES: dict[type, Callable[[Case, Any], None]] = {
    Dispatched: _dispatched,
    Accepted: _accepted,
    CallFailed: _call_failed,
    Transmitted: _transmitted,
    Acknowledged: _acknowledged,
    Answered: _answered,
    Discarded: _discarded,
    GatewayRefused: _gateway_refused,
    QueueSeen: _queue_seen,
    Polled: _polled,
    NotLearnt: _not_learnt,
    TimePassed: _time_passed,
    CancelAsked: _cancel_asked,
    Withdrawn: _withdrawn,
    Superseded: _superseded,
    KeyGivenUp: _key_given_up,
    JoinedBy: _joined_by,
    ReplayAsked: _replay_asked,
}
