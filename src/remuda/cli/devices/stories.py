"""A command's story: state changes, attempts and failures on one line of time. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from remuda.devices.command import Command, Purpose
from remuda.lifecycle import END_REASON_MEANINGS, CommandStatus, EndReason, meaning_of
from remuda.transition import Transition

_SENT = {
    Purpose.SEND: "handed to the network server",
    Purpose.BASELINE: "a read first, of the value before, handed to the network server",
    Purpose.PROBE: "a read, to find out whether it was applied, handed to the network server",
}
_REASONS = {
    "baseline_read": "the value before is known: now the command itself",
    "probe_not_applied": "it was not applied, a read tells: once more",
    "late_accept": "accepted late",
}
_NACKED = "not acknowledged by the device"
_SOURCES = {"uplink": "answered", "task": "the task has ended", "probe": "a read tells that it was applied"}


class Moment(NamedTuple):
    """One thing that happened. `status` is the one entered, where it was a state change."""

    at: datetime
    words: str
    status: CommandStatus | None = None
    left: CommandStatus | None = None
    attempt: int | None = None
    dwell: timedelta | None = None
    is_trouble: bool = False


def story(command: Command, trail: Sequence[Transition]) -> list[Moment]:
    """Everything in the order of time. What came with a state change is told with it."""
    changes = [_change(each) for each in trail]
    came_with: dict[int, list[Moment]] = {}
    alone = []
    for moment in (*_attempts(command), *_failures(command)):
        place = _place_of(moment, changes)
        if place is None:
            alone.append(moment)
        else:
            came_with.setdefault(place, []).append(moment)
    for place, moments in came_with.items():
        changes[place] = _with(changes[place], moments)
    # The trail knows milliseconds: at the same one, what led to a state change comes before it.
    return sorted((*alone, *changes), key=lambda each: (_floor(each.at), each.status is not None))


def _change(transition: Transition) -> Moment:
    reason = transition.reason or ""
    words = _REASONS.get(reason) or _meaning(transition)
    is_said = reason in _REASONS or reason in words or reason in (each.value for each in Purpose)
    if reason and not is_said:
        words = f"{words} ({reason})"
    return Moment(
        at=transition.at,
        words=words,
        status=CommandStatus(transition.entered.value),
        left=None if transition.left is None else CommandStatus(transition.left.value),
        attempt=transition.attempt or None,
        dwell=transition.dwell,
        is_trouble=transition.entered is CommandStatus.DELIVERY_FAILED,
    )


def _meaning(transition: Transition) -> str:
    meaning = meaning_of(transition.left, transition.entered) or "moved"
    return meaning.removeprefix("push: ").removeprefix("pull: ")


def _with(change: Moment, moments: Sequence[Moment]) -> Moment:
    """A state change with what came with it, which says more than what such a change means in general."""
    words = list(dict.fromkeys(each.words for each in moments))
    if _NACKED in words and "nack" in words:
        words.remove("nack")  # the same in one word
    if change.words in _REASONS.values():
        words.append(change.words)
    return change._replace(
        words="; ".join(words),
        attempt=next((each.attempt for each in moments if each.attempt is not None), change.attempt),
        is_trouble=change.is_trouble or any(each.is_trouble for each in moments),
    )


def _attempts(command: Command) -> Iterator[Moment]:
    for each in command.attempts:
        yield Moment(each.sent_at, _SENT[each.purpose], attempt=each.number)
        if each.accepted_at is not None:
            yield Moment(each.accepted_at, f"accepted as {each.external_id}", attempt=each.number)
        if each.transmitted_at is not None:
            yield Moment(each.transmitted_at, "transmitted by the gateway", attempt=each.number)
        if each.acked_at is not None:
            words = "acknowledged by the device" if each.acked else _NACKED
            yield Moment(each.acked_at, words, attempt=each.number, is_trouble=not each.acked)
    if command.response is not None:
        last = len(command.attempts) or None
        source = {"task": "the task's result", "probe": "a read tells"}.get(
            command.response.source, "answered"
        )
        yield Moment(command.response.at, f"{source}: {command.response.execution.value}", attempt=last)


def _failures(command: Command) -> Iterator[Moment]:
    for each in reversed(command.failures):
        meaning = END_REASON_MEANINGS[EndReason(each.reason)] if each.final else None
        words = ": ".join(filter(None, (each.reason, each.code, each.details, meaning)))
        yield Moment(each.at, words, attempt=each.attempt or None, is_trouble=True)


def _place_of(moment: Moment, changes: Sequence[Moment]) -> int | None:
    """The state change that something came with: of the same millisecond, the last one of them."""
    for place in range(len(changes) - 1, -1, -1):
        if _floor(changes[place].at) == _floor(moment.at):
            return place
    return None


def _floor(at: datetime) -> datetime:
    return at - timedelta(microseconds=at.microsecond % 1000)
