"""People and programs: cancel, supersede, join, replay."""

from __future__ import annotations

from remuda.devices.case import Case
from remuda.devices.certainty import is_guarded, unresolved
from remuda.devices.command import Command, Fate
from remuda.devices.happenings import (
    CancelAsked,
    JoinedBy,
    KeyGivenUp,
    ReplayAsked,
    Superseded,
    Withdrawn,
)
from remuda.lifecycle import CommandStatus, EndReason


def cancel_asked(case: Case, _: CancelAsked) -> None:
    _stop(case, EndReason.CANCELLED)


def superseded(case: Case, event: Superseded) -> None:
    _stop(case, EndReason.SUPERSEDED, details=f"by {event.by}")


def _stop(case: Case, reason: EndReason, details: str | None = None) -> None:
    if case.is_waiting:
        case.fail(reason, details=details)
        return
    if case.command.stop is None:
        case.change(stop=reason)
    if case.status is CommandStatus.DELIVERED_TO_NS:
        stop_at_network(case)


def stop_at_network(case: Case) -> None:
    """Push: an engine asks it back at once. Pull: that cannot be, and nobody waits for it any longer."""
    command = case.command
    if command.is_push:
        case.change(due_at=case.now)
    elif command.stop is not None:
        case.fail(command.stop)


def withdrawn(case: Case, event: Withdrawn) -> None:
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


def key_given_up(case: Case, _: KeyGivenUp) -> None:
    case.change(key=None)


def joined_by(case: Case, event: JoinedBy) -> None:
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


def replay_asked(case: Case, event: ReplayAsked) -> None:
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
        key=case.command.key if event.with_key else None,
        baseline=None,
        started_at=case.now,
        expires_at=event.expires_at,
        replays=case.command.replays + 1,
    )
    case.enter(CommandStatus.QUEUED, reason="replayed")
