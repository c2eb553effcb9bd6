"""The lifecycle as data: the states of a job, its legal moves, and the reasons of a dead letter.

Code, docs, console, tests and the Spark pipeline all read these tables; a move that is not in
`JOB_MOVES` cannot be written.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

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
        (State.PROCESSING, State.FAILED): "rejected, expired, poison, or out of attempts: a dead letter",
        (State.PROCESSING, State.PENDING): "given back unstarted, or recovered from a dead worker",
        (State.FAILED, State.PENDING): "replayed with a fresh budget",
        (State.PENDING, State.REMOVED): "purged by an operator, or cancelled",
        (State.RETRYABLE, State.REMOVED): "purged by an operator, or cancelled",
        (State.FAILED, State.REMOVED): "dropped by an operator, or past its retention",
    }
)


def check_move(left: State | None, entered: State) -> None:
    """Raise `IllegalMoveError` unless a job may go from `left` (None: not there yet) to `entered`."""
    if (left, entered) not in JOB_MOVES:
        raise IllegalMoveError(f"a job cannot go from {left or 'nowhere'} to {entered}")
