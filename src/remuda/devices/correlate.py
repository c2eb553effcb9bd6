"""Which command a signal belongs to. Pure: the commands that may hear it are passed in.

A signal that names an attempt finds it in whatever stage its command is. An uplink names none: it
is joined to its ACK by their deduplication id, or to the one command that it can be an answer to.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from enum import Enum

import msgspec

from remuda.devices.codecs.contract import Codec, Report, answers
from remuda.devices.command import (
    FAMILIES,
    Answer,
    Attempt,
    Command,
    CommandType,
    Fate,
    Purpose,
)
from remuda.devices.happenings import (
    Acknowledged,
    Answered,
    Discarded,
    GatewayRefused,
    Happening,
    Transmitted,
)
from remuda.devices.networks import signals
from remuda.lifecycle import CommandStatus

_CLOCKS_DIFFER = timedelta(seconds=1)  # between the network server and the store


class Verdict(Enum):
    """What to do with a signal that is for no command: keep it a while, forget it, or pass it on."""

    LATER = "later"
    FORGET = "forget"
    REPORT = "report"


class Routed(msgspec.Struct, frozen=True):
    """A signal that is for a command."""

    command: Command
    happening: Happening


def route(
    signal: signals.Signal,
    hearers: Sequence[Command],
    heard: Answer | Report | None,
    taken: Collection[str] = (),
) -> Routed | Verdict:
    """Where a signal goes.

    `hearers` are the live commands of its device, `heard` is what an uplink says, and `taken` are names of
    attempts that are known to belong to somebody.
    """
    match signal:
        case signals.TxAck() | signals.Ack() | signals.Discarded():
            return _by_name(signal, hearers, taken)
        case signals.Uplink():
            return _by_answer(signal, hearers, heard)
        case signals.GatewayRefused():
            for command in hearers:
                if command.status is CommandStatus.DELIVERED_TO_NS:
                    return Routed(command, GatewayRefused(details=signal.details))
            return Verdict.FORGET
        case _:
            return Verdict.REPORT


def names_attempt(signal: signals.Signal, hearers: Sequence[Command]) -> bool:
    """Whether a signal names an attempt of one of these commands."""
    return isinstance(signal, signals.TxAck | signals.Ack | signals.Discarded) and any(
        attempt.external_id == signal.external_id for command in hearers for attempt in command.attempts
    )


def _by_name(
    signal: signals.TxAck | signals.Ack | signals.Discarded,
    hearers: Sequence[Command],
    taken: Collection[str],
) -> Routed | Verdict:
    attempts = [(command, attempt) for command in hearers for attempt in command.attempts]
    for command, attempt in attempts:
        if attempt.external_id == signal.external_id:
            return Routed(command, _happening(signal, attempt, None))
    if signal.external_id in taken or any(_is_calling(attempt) for _, attempt in attempts):
        return Verdict.LATER  # its command has ended; or a call is under way whose answer will name it
    # A call whose answer was lost: with one frame at a time for each device this can only be its own.
    lost = [
        (command, attempt)
        for command, attempt in attempts
        if _is_lost(attempt) and attempt.sent_at - _CLOCKS_DIFFER <= signal.at
    ]
    # A discard would prove that it was never sent: too much for a guess.
    if len(lost) == 1 and not isinstance(signal, signals.Discarded):
        command, attempt = lost[0]
        return Routed(command, _happening(signal, attempt, signal.external_id))
    return Verdict.LATER


def _is_calling(attempt: Attempt) -> bool:
    return attempt.external_id is None and attempt.call_until is not None


def _is_lost(attempt: Attempt) -> bool:
    return attempt.external_id is None and attempt.call_until is None and attempt.fate is Fate.UNKNOWN


def has_unnamed(command: Command) -> bool:
    """Whether an attempt of the command may be at the network server under a name that nobody knows."""
    return any(_is_calling(each) or _is_lost(each) for each in command.attempts)


def _happening(
    signal: signals.TxAck | signals.Ack | signals.Discarded, attempt: Attempt, adopted: str | None
) -> Happening:
    match signal:
        case signals.TxAck():
            return Transmitted(attempt=attempt.number, external_id=adopted)
        case signals.Ack():
            return Acknowledged(
                attempt=attempt.number,
                acknowledged=signal.acknowledged,
                dedup=signal.dedup,
                external_id=adopted,
            )
        case signals.Discarded():
            return Discarded(attempt=attempt.number, code=signal.code, details=signal.details)


def _by_answer(
    signal: signals.Uplink, hearers: Sequence[Command], heard: Answer | Report | None
) -> Routed | Verdict:
    if isinstance(heard, Report):
        return Verdict.REPORT
    if heard is None:
        return Verdict.FORGET
    fitting = [
        (command, attempt)
        for command in hearers
        for attempt in reversed(command.attempts)
        if _can_answer(heard, command, attempt) and attempt.sent_at - _CLOCKS_DIFFER <= signal.at
    ]
    for command, attempt in fitting:
        if attempt.acked and attempt.ack_dedup == signal.dedup:
            return _answered(signal, command, attempt, heard)
    # Its ACK may be lost. Then it is the answer to the only command that it can be the answer to.
    if len({command.id for command, _ in fitting}) == 1:
        named = [each for each in fitting if each[1].external_id is not None]
        if named:
            command, attempt = next((each for each in named if each[1].transmitted_at is not None), named[0])
            return _answered(signal, command, attempt, heard)
    return Verdict.LATER


def _answered(signal: signals.Uplink, command: Command, attempt: Attempt, answer: Answer) -> Routed:
    return Routed(command, Answered(attempt=attempt.number, dedup=signal.dedup, answer=answer))


def _can_answer(answer: Answer, command: Command, attempt: Attempt) -> bool:
    if attempt.fate in (Fate.ANSWERED, Fate.NOT_SENT):
        return False
    kind = asked(command, attempt.purpose)
    return answers(answer, kind, FAMILIES[kind], command.phase if kind is command.type else None)


def asked(command: Command, purpose: Purpose) -> CommandType:
    """What an attempt asks of the device: the command itself, or the read that tells about it."""
    if purpose is Purpose.SEND or command.expectation is None:
        return command.type
    return command.expectation.read


def decode(signal: signals.Signal, codec: Codec) -> Answer | Report | None:
    """What an uplink says; None for every other signal."""
    return codec.decode(signal.data, signal.f_port) if isinstance(signal, signals.Uplink) else None
