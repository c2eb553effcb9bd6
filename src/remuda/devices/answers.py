"""What an answer to an attempt means for its command: its end, or what a read tells about a token."""

from __future__ import annotations

from typing import Any

from remuda.devices.case import Case
from remuda.devices.certainty import is_conclusive, number_in, outcome_of_refusal, unresolved
from remuda.devices.command import Answer, Execution, Fate, Outcome, Purpose
from remuda.devices.networks.contract import TaskResult


def speaks_for_itself(answer: Answer) -> bool:
    """Whether an answer says what it answers to. A bare reply may be any other command's of its family."""
    return answer.type is not None


def answer_to(case: Case, number: int) -> Answer | None:
    """The answer to an attempt, among what was heard.

    It came with the attempt's own ACK (the same deduplication id), or it speaks for itself. Where even
    the attempt's name is a guess, a bare reply that any switch or setting gets proves nothing.
    """
    attempt = case.command.attempts[number - 1]
    heard = [each for each in case.command.heard if each.attempt == number]
    for each in heard:
        guess = attempt.guessed and not speaks_for_itself(each.answer) and not case.command.is_single_use
        if attempt.acked and attempt.ack_dedup == each.dedup and not guess:
            return each.answer
    return next((each.answer for each in heard if speaks_for_itself(each.answer)), None)


def resolve(case: Case, number: int, answer: Answer, *, reason: str | None = None) -> None:
    """Push: the device answered to this attempt."""
    attempt = case.command.attempts[number - 1]
    case.change_attempt(number, fate=Fate.ANSWERED, closed=True)
    if attempt.purpose is not Purpose.SEND:
        _read(case, number, answer.data if answer.ok else None)
    elif answer.ok:
        _executed(case, answer.data, "uplink", reason)
    else:
        _refused(case, outcome_of_refusal(case.command), answer.data or answer.code, "uplink", reason)


def resolve_task(case: Case, number: int, result: TaskResult) -> None:
    """Pull: the task of this attempt has ended."""
    attempt = case.command.attempts[number - 1]
    ok = result.execution is Execution.EXECUTION_SUCCESS
    if attempt.purpose is not Purpose.SEND:
        case.change_attempt(number, fate=Fate.ANSWERED, closed=True)
        _read(case, number, result.data if ok else None)
    elif ok:
        case.change_attempt(number, fate=Fate.ANSWERED, closed=True)
        _executed(case, result.data, "task", None)
    elif result.refused:
        case.change_attempt(number, fate=Fate.ANSWERED, closed=True)
        _refused(case, outcome_of_refusal(case.command), result.data or result.code, "task", None)
    else:
        # A vendor's "failed" may be an answer that was lost on its way back.
        case.change_attempt(number, fate=Fate.UNKNOWN, closed=True)
        if not case.is_last(number):
            return  # the newer attempt tells
        if case.command.is_single_use and case.command.expectation is not None:
            case.retry_or_fail("task_failed", code=result.code)
            return
        _refused(case, Outcome.UNKNOWN, result.data or result.code, "task", "task_failed")


def _executed(case: Case, data: Any, source: str, reason: str | None) -> None:
    execution = Execution.EXECUTION_SUCCESS
    case.succeed(execution, outcome=Outcome.EXECUTED, data=data, source=source, reason=reason)


def _refused(case: Case, outcome: Outcome, data: Any, source: str, reason: str | None) -> None:
    execution = Execution.EXECUTION_FAILURE
    case.succeed(execution, outcome=outcome, data=data, source=source, reason=reason)


def _read(case: Case, number: int, data: Any) -> None:
    """A read before or after the token has told something; a newer attempt, if there is one, goes on."""
    purpose = case.command.attempts[number - 1].purpose
    value = number_in(data)
    if value is not None and purpose is Purpose.BASELINE:
        if not unresolved(case.command):
            case.change(baseline=value)
        reason = "baseline_read"
    elif value is not None:
        reason = _probed(case, number, value, data)
    else:
        reason = f"{purpose}_failed"
    if case.command.has_ended or not case.is_last(number):
        return
    if reason in ("baseline_read", "probe_not_applied"):
        case.again_at_once(reason)
    else:
        case.retry_or_fail(reason)


def _probed(case: Case, number: int, value: float, data: Any) -> str:
    """What a read tells about a token of unknown outcome: nothing about one that was sent after it."""
    command = case.command
    expectation = command.expectation
    doubtful = [each for each in unresolved(command) if each.number < number]
    if expectation is None or not doubtful:
        return "probe_not_applied"
    if expectation.is_met(value, command.baseline):
        for each in doubtful:
            case.change_attempt(each.number, fate=Fate.ANSWERED)
        _executed(case, data, "probe", "probe_applied")
        return "probe_applied"
    if not is_conclusive(command, doubtful):
        return "probe_inconclusive"
    for each in doubtful:
        case.change_attempt(each.number, fate=Fate.NOT_APPLIED)
    if not unresolved(case.command):
        case.change(baseline=value)
    return "probe_not_applied"
