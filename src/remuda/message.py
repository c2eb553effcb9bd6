"""What is added, what is seen, and what a dead letter says: the values that users hold in their hands."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec

from remuda.lifecycle import Reason, State
from remuda.retry import RetryPolicy

LOWEST_PRIORITY = -2
HIGHEST_PRIORITY = 2
PRIORITIES = tuple(range(HIGHEST_PRIORITY, LOWEST_PRIORITY - 1, -1))


def priorities_from(first: int | None) -> tuple[int, ...]:
    """Priorities in the order of a fetch: downwards from one of them, then those above it."""
    at = 0 if first is None else PRIORITIES.index(first)
    return PRIORITIES[at:] + PRIORITIES[:at]


class NewJob(msgspec.Struct, frozen=True):
    """A job to be added, with any mix of options.

    delay            not before this much time has passed
    next_attempt_at  not before this moment (aware); an alternative to `delay`
    priority         from -2 (last) to 2 (first)
    headers          flat text, numbers, booleans
    expires_in       once this much time has passed it is not started any more: dead, `expired`
    expires_at       the same as a moment (aware)
    retry            a policy for this job alone, instead of the worker's
    job_id           an id of your own; a second job with it is not added while the first lives …
    unique_for       … nor for this long after it has ended
    rate_key         counts against the queue's limit for each key (`Queue.limit_rate`)
    """

    name: str
    payload: Any = None
    delay: timedelta | None = None
    next_attempt_at: datetime | None = None
    priority: int = 0
    headers: dict[str, Any] | None = None
    expires_in: timedelta | None = None
    expires_at: datetime | None = None
    retry: RetryPolicy | None = None
    job_id: str | None = None
    unique_for: timedelta | None = None
    rate_key: str | None = None


class Added(msgspec.Struct, frozen=True):
    """The answer to `add_unique`: the job's id, and whether this call added it."""

    id: str
    new: bool


class Result(msgspec.Struct, frozen=True):
    """What a job's handler returned. It may well be None, which is not the same as no result."""

    value: Any


class Progress(msgspec.Struct, frozen=True):
    """How far a job is, as its handler said it last, and when."""

    value: Any
    at: datetime


class LogLine(msgspec.Struct, frozen=True):
    """A line that a handler said in its run number `attempt`."""

    at: datetime
    attempt: int
    text: str


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the store has it now, live or ended. Ended ones have `ended_at`."""

    id: str
    queue: str
    name: str
    state: State
    payload: bytes
    headers: dict[str, Any]
    priority: int
    attempts: int
    deliveries: int
    created_at: datetime
    next_attempt_at: datetime | None = None
    first_attempt_at: datetime | None = None
    last_attempt_at: datetime | None = None
    acquired_at: datetime | None = None
    lease_expires_at: datetime | None = None
    expires_at: datetime | None = None
    ended_at: datetime | None = None
    worker: str | None = None
    reason: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    error_trace: str | None = None
    rate_key: str | None = None
    foreign: bool = False

    def value(self) -> Any:
        """The decoded payload; `DecodeError` when it cannot be decoded."""
        from remuda.codec import CONTENT_TYPE, decode_payload

        content_type = self.headers.get(CONTENT_TYPE)
        return decode_payload(self.payload, content_type, foreign=self.foreign)


class DeadLetter(JobRecord, frozen=True, kw_only=True):
    """A job outside the retry path: `reason` says why, `error_*` what its handler raised last.

    `cursor` is its place in the list, to go on peeking from.
    """

    cursor: str = ""

    @property
    def died_at(self) -> datetime | None:
        return self.ended_at


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters: every condition that is given must hold."""

    reason: Reason | None = None
    name: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    ids: tuple[str, ...] | None = None


class Replayed(msgspec.Struct, frozen=True):
    """What a replay did: the ids that went back, and those that stayed because the same id lives again."""

    ids: list[str]
    still_live: list[str]


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """A queue in numbers.

    pending and retryable count what waits, in the future or not; `delayed` is the part of both
    whose time has not come. `oldest_due` is how long the first job that could run has waited.
    """

    queue: str
    pending: int = 0
    retryable: int = 0
    processing: int = 0
    delayed: int = 0
    completed: int = 0
    failed: int = 0
    paused: bool = False
    oldest_due: timedelta | None = None

    @property
    def live(self) -> int:
        return self.pending + self.retryable + self.processing

    @property
    def total(self) -> int:
        return self.live + self.completed + self.failed
