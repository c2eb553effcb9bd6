"""The lifecycle as data: the states of a job and of a command, their legal moves, and the reasons of an end.

Code, docs, console, tests and the Spark pipeline all read these tables; a move that is not in
`JOB_MOVES` or `COMMAND_MOVES` cannot be written.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from remuda.errors import IllegalMoveError

if TYPE_CHECKING:
    from collections.abc import Mapping


class State(StrEnum):
    """Where a job stands. `REMOVED` is only ever seen in the trail: the job itself is gone."""

    PENDING = "PENDING"
    PROCESSING = "PROCESSING"
    RETRYABLE = "RETRYABLE"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    REMOVED = "REMOVED"


class Reason(StrEnum):
    """Why a job is a dead letter."""

    RETRIES_EXHAUSTED = "retries_exhausted"
    UNRECOVERABLE = "unrecoverable"
    PANIC = "panic"
    DECODE_FAIL = "decode_fail"
    MALFORMED = "malformed"
    OVERSIZE = "oversize"
    MAX_DELIVERIES = "max_deliveries"
    EXPIRED = "expired"
    REJECTED = "rejected"
    CANCELLED = "cancelled"


REASON_MEANINGS: Mapping[Reason, str] = MappingProxyType(
    {
        Reason.RETRIES_EXHAUSTED: "the handler failed and the retry policy allows no further attempt",
        Reason.UNRECOVERABLE: "the handler raised UnrecoverableError",
        Reason.PANIC: "the handler left by SystemExit or another exception outside Exception",
        Reason.DECODE_FAIL: "the payload could not be decoded; the handler never ran",
        Reason.MALFORMED: "the message lacks what a job needs; the handler never ran",
        Reason.OVERSIZE: "the payload is larger than the worker accepts; the handler never ran",
        Reason.MAX_DELIVERIES: "delivered more often than allowed without an outcome (a poison message)",
        Reason.EXPIRED: "its time was over before a handler could start",
        Reason.REJECTED: "the handler, or the ack policy, rejected it",
        Reason.CANCELLED: "it was cancelled while its handler ran",
    }
)

LIVE_STATES = frozenset({State.PENDING, State.PROCESSING, State.RETRYABLE})
WAITING_STATES = frozenset({State.PENDING, State.RETRYABLE})
TERMINAL_STATES = frozenset({State.COMPLETED, State.FAILED})

# Reasons for which a replay as it is leads straight back: the producer has to be mended first.
PRODUCER_REASONS = frozenset({Reason.DECODE_FAIL, Reason.MALFORMED, Reason.OVERSIZE})

JOB_MOVES: Mapping[tuple[State | None, State], str] = MappingProxyType(
    {
        (None, State.PENDING): "added",
        (State.PENDING, State.PROCESSING): "acquired by a worker",
        (State.RETRYABLE, State.PROCESSING): "acquired by a worker for another attempt",
        (State.PROCESSING, State.COMPLETED): "acked",
        (State.PROCESSING, State.RETRYABLE): "nacked, and the retry policy allows another attempt",
        (
            State.PROCESSING,
            State.FAILED,
        ): "rejected, cancelled, expired, poison, or out of attempts: dead",
        (
            State.PROCESSING,
            State.PENDING,
        ): "given back unstarted, recovered from a dead worker, or taken back by an operator",
        (State.FAILED, State.PENDING): "replayed with a fresh budget",
        (State.PENDING, State.REMOVED): "purged by an operator, or cancelled",
        (State.RETRYABLE, State.REMOVED): "purged by an operator, or cancelled",
        (State.FAILED, State.REMOVED): "dropped by an operator, or past its retention",
    }
)


class CommandStatus(StrEnum):
    """Where a command stands on its way to a device."""

    QUEUED = "QUEUED"
    SENT_TO_NS = "SENT_TO_NS"
    DELIVERED_TO_NS = "DELIVERED_TO_NS"
    SENT_TO_DEVICE = "SENT_TO_DEVICE"
    TO_RETRY = "TO_RETRY"
    DELIVERY_SUCCESSFUL = "DELIVERY_SUCCESSFUL"
    DELIVERY_FAILED = "DELIVERY_FAILED"


ENDED_STATUSES = frozenset({CommandStatus.DELIVERY_SUCCESSFUL, CommandStatus.DELIVERY_FAILED})
IN_FLIGHT_STATUSES = frozenset(
    {CommandStatus.SENT_TO_NS, CommandStatus.DELIVERED_TO_NS, CommandStatus.SENT_TO_DEVICE}
)

COMMAND_MOVES: Mapping[tuple[CommandStatus | None, CommandStatus], str] = MappingProxyType(
    {
        (None, CommandStatus.QUEUED): "added to its lane",
        (CommandStatus.QUEUED, CommandStatus.SENT_TO_NS): "dispatched to the network server",
        (CommandStatus.QUEUED, CommandStatus.DELIVERY_SUCCESSFUL): "a late result of an earlier attempt",
        (CommandStatus.QUEUED, CommandStatus.DELIVERY_FAILED): "expired, cancelled or superseded",
        (CommandStatus.SENT_TO_NS, CommandStatus.DELIVERED_TO_NS): "accepted by the network server",
        (CommandStatus.SENT_TO_NS, CommandStatus.SENT_TO_DEVICE): "transmitted before the accept was known",
        (CommandStatus.SENT_TO_NS, CommandStatus.TO_RETRY): "not accepted in time, or the call failed",
        (CommandStatus.SENT_TO_NS, CommandStatus.DELIVERY_SUCCESSFUL): "a late result of an earlier attempt",
        (CommandStatus.SENT_TO_NS, CommandStatus.DELIVERY_FAILED): "refused for good, or out of retries",
        (CommandStatus.DELIVERED_TO_NS, CommandStatus.SENT_TO_DEVICE): "push: transmitted by the gateway",
        (
            CommandStatus.DELIVERED_TO_NS,
            CommandStatus.DELIVERY_SUCCESSFUL,
        ): "pull: task complete; or answered",
        (CommandStatus.DELIVERED_TO_NS, CommandStatus.TO_RETRY): "push: not transmitted, discarded or nacked",
        (
            CommandStatus.DELIVERED_TO_NS,
            CommandStatus.DELIVERY_FAILED,
        ): "pull: too old; cancelled; no retries",
        (CommandStatus.SENT_TO_DEVICE, CommandStatus.DELIVERY_SUCCESSFUL): "answered by the device",
        (CommandStatus.SENT_TO_DEVICE, CommandStatus.TO_RETRY): "no answer in time, or nacked",
        (CommandStatus.SENT_TO_DEVICE, CommandStatus.DELIVERY_FAILED): "no answer, and no further attempt",
        (CommandStatus.TO_RETRY, CommandStatus.QUEUED): "its backoff has elapsed",
        (CommandStatus.TO_RETRY, CommandStatus.DELIVERED_TO_NS): "a late accept of an earlier attempt",
        (CommandStatus.TO_RETRY, CommandStatus.SENT_TO_DEVICE): "a late tx-ack of an earlier attempt",
        (CommandStatus.TO_RETRY, CommandStatus.DELIVERY_SUCCESSFUL): "a late result of an earlier attempt",
        (CommandStatus.TO_RETRY, CommandStatus.DELIVERY_FAILED): "expired, cancelled, superseded or unknown",
        (CommandStatus.DELIVERY_FAILED, CommandStatus.QUEUED): "replayed with a fresh budget",
    }
)


class EndReason(StrEnum):
    """Why a command ended as DELIVERY_FAILED. The last three are not retried by anybody's rule."""

    RETRIES_EXHAUSTED = "retries_exhausted"
    MAX_AGE = "max_age"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"
    OUTCOME_UNKNOWN = "outcome_unknown"
    BAD_TOKEN = "bad_token"  # noqa: S105  # a reason, not a secret
    UNKNOWN_DEVICE = "unknown_device"
    UNSUPPORTED_COMMAND = "unsupported_command"


END_REASON_MEANINGS: Mapping[EndReason, str] = MappingProxyType(
    {
        EndReason.RETRIES_EXHAUSTED: "every attempt failed, and no further one is allowed",
        EndReason.MAX_AGE: "its network server had no result, or held it, for longer than the longest age",
        EndReason.EXPIRED: "its time was over before it could be sent, or sent again",
        EndReason.CANCELLED: "cancelled by an operator or a program",
        EndReason.SUPERSEDED: "a newer command for the device made it redundant while it waited",
        EndReason.OUTCOME_UNKNOWN: "a single-use token may have been applied, and nothing could tell",
        EndReason.BAD_TOKEN: "skip-retry: the network server refused the token",
        EndReason.UNKNOWN_DEVICE: "skip-retry: the network server does not know the device",
        EndReason.UNSUPPORTED_COMMAND: "skip-retry: the device or its network has no such command",
    }
)
SKIP_RETRY_REASONS = frozenset({EndReason.BAD_TOKEN, EndReason.UNKNOWN_DEVICE, EndReason.UNSUPPORTED_COMMAND})


def check_move(left: State | CommandStatus | None, entered: State | CommandStatus) -> None:
    """Raise `IllegalMoveError` unless a message may go from `left` (None: not there yet) to `entered`."""
    if isinstance(entered, CommandStatus):
        if not isinstance(left, State) and (left, entered) in COMMAND_MOVES:
            return
        raise IllegalMoveError(f"a command cannot go from {left or 'nowhere'} to {entered}")
    if isinstance(left, CommandStatus) or (left, entered) not in JOB_MOVES:
        raise IllegalMoveError(f"a job cannot go from {left or 'nowhere'} to {entered}")


def meaning_of(left: State | CommandStatus | None, entered: State | CommandStatus) -> str:
    """What a move means, in words; empty for one that the lifecycle does not know."""
    moves: Mapping[tuple[Any, Any], str] = COMMAND_MOVES if isinstance(entered, CommandStatus) else JOB_MOVES
    return moves.get((left, entered), "")


def state_of(name: str) -> State | CommandStatus:
    """The state of that name, of a job or of a command; `ValueError` for anything else."""
    return CommandStatus(name) if name in CommandStatus.__members__ else State(name)
