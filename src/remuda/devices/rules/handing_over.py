"""To the network server: dispatched, accepted, or not; and the tasks that are asked for there."""

from __future__ import annotations

from remuda.devices.answers import resolve_task
from remuda.devices.case import Case
from remuda.devices.certainty import next_purpose
from remuda.devices.command import Attempt, Fate, Purpose
from remuda.devices.happenings import Accepted, CallFailed, Dispatched, Polled, Send
from remuda.devices.rules.deadlines import release
from remuda.devices.rules.requests import stop_at_network
from remuda.lifecycle import CommandStatus, EndReason


def dispatched(case: Case, _: Dispatched) -> None:
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


def accepted(case: Case, event: Accepted) -> None:
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
        stop_at_network(case)


def call_failed(case: Case, event: CallFailed) -> None:
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
        release(case)


def polled(case: Case, event: Polled) -> None:
    attempt = case.attempt(event.attempt)
    if attempt is None or attempt.fate in (Fate.ANSWERED, Fate.NOT_APPLIED) or attempt.closed:
        return
    if event.result is not None:
        resolve_task(case, event.attempt, event.result)
    elif case.status is CommandStatus.DELIVERED_TO_NS:
        age = case.now - (attempt.accepted_at or attempt.sent_at)
        case.change(due_at=case.now + case.timings.poll_delay(age))
