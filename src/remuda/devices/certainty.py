"""What is certain about a command: which attempts may have had an effect, and what may be sent next.

A read, a switch or a setting may be sent again whatever became of the attempt before. A single-use
token may not: the device would refuse the second one, and an applied token would be reported as refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any

from remuda.devices.command import Attempt, Command, Family, Fate, Outcome, Purpose


def unresolved(command: Command) -> list[Attempt]:
    """Attempts to send the command itself of which nobody knows whether they had an effect."""
    return [
        each
        for each in command.attempts
        if each.purpose is Purpose.SEND and each.fate in (Fate.OPEN, Fate.UNKNOWN)
    ]


def is_guarded(command: Command) -> bool:
    """Whether sending the command again must wait for proof that no earlier attempt had an effect."""
    return command.is_single_use and bool(unresolved(command))


def next_purpose(command: Command) -> Purpose | None:
    """What the next attempt has to send; None: nothing that could be sent would help."""
    if not command.is_single_use:
        return Purpose.SEND
    expectation = command.expectation
    if unresolved(command):
        return None if expectation is None else Purpose.PROBE
    if expectation is not None and expectation.needs_baseline and command.baseline is None:
        return Purpose.BASELINE
    return Purpose.SEND


def outcome_without_answer(command: Command) -> Outcome:
    """What the device did, where it never said so."""
    return Outcome.UNKNOWN if unresolved(command) else Outcome.NOT_EXECUTED


def outcome_of_refusal(command: Command) -> Outcome:
    """What a refusal says: nothing, where another attempt may have been carried out before it."""
    if command.family is not Family.READ and unresolved(command):
        return Outcome.UNKNOWN
    return Outcome.REFUSED


def is_conclusive(command: Command, doubtful: Iterable[Attempt]) -> bool:
    """Whether a read after these attempts that shows no effect proves that there will be none.

    A frame is transmitted once, before whatever follows it; a vendor's task that has not ended may
    still be carried out.
    """
    return command.is_push or all(each.closed for each in doubtful)


def number_in(data: Any) -> float | None:
    """The number that an answer carries, if it carries one."""
    value = data.get("value") if isinstance(data, dict) else data
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if isfinite(number) else None
