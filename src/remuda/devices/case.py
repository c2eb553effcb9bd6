"""One command while something happens to it: its record, the moves that it makes, the effects it asks for."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from remuda.devices.certainty import outcome_without_answer
from remuda.devices.command import (
    Attempt,
    Command,
    Execution,
    Failure,
    Fate,
    Outcome,
    Response,
)
from remuda.devices.happenings import Effect
from remuda.devices.timings import Timings
from remuda.lifecycle import IN_FLIGHT_STATUSES, CommandStatus, EndReason
from remuda.stores.commands import Move
from remuda.transition import between_ms

MAX_FAILURES = 50
_WAITING = (CommandStatus.QUEUED, CommandStatus.TO_RETRY)


class Case:
    """The words in which the rules are written. It changes nothing outside itself."""

    def __init__(self, command: Command, now: datetime, timings: Timings, rng: random.Random) -> None:
        self.command = command
        self.now = now
        self.timings = timings
        self.rng = rng
        self.moves: list[Move] = []
        self.effects: list[Effect] = []

    # -- looking

    @property
    def status(self) -> CommandStatus:
        return self.command.status

    @property
    def last(self) -> Attempt | None:
        return self.command.attempts[-1] if self.command.attempts else None

    def attempt(self, number: int) -> Attempt | None:
        """The attempt of that number; numbers count from 1."""
        attempts = self.command.attempts
        return attempts[number - 1] if 1 <= number <= len(attempts) else None

    def is_last(self, number: int) -> bool:
        return number == len(self.command.attempts)

    @property
    def is_expired(self) -> bool:
        expires_at = self.command.expires_at
        return expires_at is not None and expires_at <= self.now

    @property
    def calls_open(self) -> bool:
        return any(each.call_until is not None for each in self.command.attempts)

    @property
    def is_waiting(self) -> bool:
        """It waits for an attempt, and no call for it is under way."""
        return self.status in _WAITING and not self.calls_open

    # -- changing

    def change(self, **values: Any) -> None:
        self.command = replace(self.command, **values)

    def change_attempt(self, number: int, **values: Any) -> None:
        attempts = list(self.command.attempts)
        attempts[number - 1] = replace(attempts[number - 1], **values)
        self.change(attempts=tuple(attempts))

    def enter(
        self,
        status: CommandStatus,
        *,
        reason: str | None = None,
        due_in: timedelta | None = None,
        due_at: datetime | None = None,
    ) -> None:
        """Move to a status; nothing is recorded when it is there already but its next moment."""
        if due_in is not None:
            due_at = self.now + due_in
        if status is self.status:
            self.change(due_at=due_at)
            return
        command = self.command
        self.moves.append(
            Move(
                left=command.status,
                entered=status,
                at=self.now,
                dwell_ms=between_ms(command.status_since, self.now),
                attempt=len(command.attempts),
                reason=reason,
            )
        )
        self.change(status=status, status_since=self.now, due_at=due_at)

    def note(
        self, reason: str, *, code: str | None = None, details: str | None = None, final: bool = False
    ) -> None:
        """Add to what went wrong, newest first; the oldest are forgotten when there are very many."""
        failure = Failure(
            reason=reason,
            at=self.now,
            status=self.status,
            attempt=len(self.command.attempts),
            code=code,
            details=details or None,
            final=final,
        )
        self.change(failures=(failure, *self.command.failures[: MAX_FAILURES - 1]))

    def do(self, effect: Effect) -> None:
        self.effects.append(effect)

    # -- ends

    def fail(self, reason: EndReason, *, code: str | None = None, details: str | None = None) -> None:
        """End it as DELIVERY_FAILED. What the device did is said as far as it is certain."""
        self.note(reason, code=code, details=details, final=True)
        self.change(reason=reason, outcome=outcome_without_answer(self.command))
        self.enter(CommandStatus.DELIVERY_FAILED, reason=reason, due_at=self.now)

    def succeed(
        self, execution: Execution, *, outcome: Outcome, data: Any, source: str, reason: str | None
    ) -> None:
        """End it as DELIVERY_SUCCESSFUL, whatever the device answered."""
        response = Response(execution=execution, at=self.now, data=data, source=source)
        self.change(response=response, outcome=outcome)
        self.enter(CommandStatus.DELIVERY_SUCCESSFUL, reason=reason, due_at=self.now)

    # -- retry or fail

    def is_exhausted(self, tries: int) -> bool:
        """Whether the policy allows no further attempt after so many that failed."""
        most = self.timings.retry.max_attempts
        return most is not None and tries >= most

    def retry_or_fail(self, reason: str, *, code: str | None = None, details: str | None = None) -> None:
        """The last attempt has failed: another one after a backoff, unless nothing allows it.

        While its call may still succeed it only waits: what comes then decides.
        """
        self.note(reason, code=code, details=details)
        if self.status not in IN_FLIGHT_STATUSES:
            return None
        last = self.last
        if last is not None and last.fate is Fate.OPEN:
            self.change_attempt(last.number, fate=Fate.UNKNOWN)
        tries = self.command.retries + 1
        if not self.calls_open:
            if self.command.stop is not None:
                return self.fail(self.command.stop)
            if self.is_exhausted(tries):
                return self.fail(EndReason.RETRIES_EXHAUSTED)
            if self.is_expired:
                return self.fail(EndReason.EXPIRED)
        self.change(retries=tries)
        due_at = self.now + self.timings.retry.delay(tries, self.rng)
        if self.ends_after_call:
            due_at = max(each.call_until or self.now for each in self.command.attempts)
        return self.enter(CommandStatus.TO_RETRY, reason=reason, due_at=due_at)

    @property
    def ends_after_call(self) -> bool:
        """Whether it has to end as soon as no call for it can succeed any more."""
        command = self.command
        return command.stop is not None or self.is_exhausted(command.retries) or self.is_expired

    def resume(self, number: int) -> None:
        """A failed attempt turns out to be under way: it has not failed, and costs no retry."""
        attempt = self.command.attempts[number - 1]
        if self.status is CommandStatus.TO_RETRY and attempt.fate in (Fate.UNKNOWN, Fate.NOT_SENT):
            self.change(retries=max(0, self.command.retries - 1))
        self.change_attempt(number, fate=Fate.OPEN)

    def again_at_once(self, reason: str) -> None:
        """Another attempt that is no retry: the one before did what it was for."""
        if self.status is CommandStatus.QUEUED:
            return
        self.enter(CommandStatus.TO_RETRY, reason=reason, due_at=self.now)
        if not self.calls_open and self.command.stop is None and not self.is_expired:
            self.enter(CommandStatus.QUEUED)  # else the reaper ends it
