"""Time: what becomes of a command when the moment comes to look at it."""

from __future__ import annotations

from remuda.devices.answers import answer_to, resolve
from remuda.devices.case import Case
from remuda.devices.certainty import next_purpose, unresolved
from remuda.devices.command import Attempt, Fate
from remuda.devices.happenings import Look, Poll, TimePassed, Withdraw
from remuda.lifecycle import CommandStatus, EndReason


def time_passed(case: Case, _: TimePassed) -> None:
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
            release(case)


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
    answer = answer_to(case, number)
    if answer is not None:
        # The device answered to this very command; only the event with its ACK was lost.
        resolve(case, number, answer, reason="answer_without_ack")
        return
    last = case.last
    acked = last is not None and last.acked
    case.retry_or_fail("correlation_timeout" if acked else "device_timeout")


def release(case: Case) -> None:
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
    elif case.command.is_push and last is not None and is_to_be_looked_for(last):
        case.do(Look())
        case.change(due_at=case.now + case.timings.look_again)
    elif case.is_exhausted(case.command.retries):
        case.fail(EndReason.RETRIES_EXHAUSTED)
    elif next_purpose(case.command) is None:
        _wait_for_late_result(case)
    else:
        case.enter(CommandStatus.QUEUED)


def is_to_be_looked_for(attempt: Attempt) -> bool:
    """Its call was lost, and nobody has looked yet whether the network server has it."""
    return attempt.external_id is None and attempt.fate is Fate.UNKNOWN and not attempt.looked


def _wait_for_late_result(case: Case) -> None:
    until = max(each.sent_at for each in unresolved(case.command)) + case.timings.late_result
    if until <= case.now:
        case.fail(EndReason.OUTCOME_UNKNOWN)
    else:
        case.change(due_at=until)
