"""What `--json` prints: the fields of jobs, queues and transitions. Their names are those of the Python API.

Times are ISO 8601 in UTC, durations are seconds and end in `_seconds`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec

from remuda.errors import DecodeError
from remuda.message import JobRecord, LogLine, Stats
from remuda.rate import RateLimit, RateLimits
from remuda.transition import Transition

_FACTS = (
    "id",
    "queue",
    "name",
    "state",
    "priority",
    "rate_key",
    "attempts",
    "deliveries",
    "created_at",
    "next_attempt_at",
    "first_attempt_at",
    "last_attempt_at",
    "acquired_at",
    "lease_expires_at",
    "expires_at",
    "ended_at",
    "worker",
    "reason",
    "error_type",
    "error_message",
    "error_trace",
    "headers",
)


def job_fields(record: JobRecord) -> dict[str, Any]:
    """A job or a dead letter."""
    return {name: getattr(record, name) for name in _FACTS} | payload_fields(record)


def payload_fields(record: JobRecord) -> dict[str, Any]:
    """The payload decoded, or as base64 with `payload_encoding` saying so and `payload_error` why."""
    try:
        value = record.value()
        if not isinstance(value, bytes):
            return _payload(msgspec.Raw(msgspec.json.encode(value)), "json", None)
        error = None
    except (DecodeError, TypeError, ValueError, RecursionError) as failure:
        error = str(failure)
    return _payload(base64.b64encode(record.payload).decode(), "base64", error)


def _payload(payload: Any, encoding: str, error: str | None) -> dict[str, Any]:
    return {"payload": payload, "payload_encoding": encoding, "payload_error": error}


def payload_text(record: JobRecord, *, indent: int = 0) -> str:
    """The payload for people: as JSON where it can be, otherwise as text or bytes."""
    fields = payload_fields(record)
    if fields["payload_encoding"] == "json":
        encoded = bytes(fields["payload"])
        return msgspec.json.format(encoded, indent=indent).decode() if indent else encoded.decode()
    try:
        return record.payload.decode()
    except UnicodeDecodeError:
        return repr(record.payload)


def value_text(value: Any) -> str:
    """A value for people, in one line."""
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        return repr(value)


def line_fields(line: LogLine) -> dict[str, Any]:
    """One line that a handler said."""
    return {"at": line.at, "attempt": line.attempt, "text": line.text}


def stats_fields(stats: Stats, dead: Mapping[str, int], limits: RateLimits) -> dict[str, Any]:
    """A queue in numbers, with its dead letters by reason and its rate limits."""
    return {
        "queue": stats.queue,
        "pending": stats.pending,
        "retryable": stats.retryable,
        "processing": stats.processing,
        "delayed": stats.delayed,
        "completed": stats.completed,
        "failed": stats.failed,
        "paused": stats.paused,
        "oldest_due_seconds": seconds(stats.oldest_due),
        "dead": dict(sorted(dead.items())),
        "rate_limits": limits_fields(limits),
    }


def limits_fields(limits: RateLimits) -> dict[str, Any]:
    """The rate limits of a queue."""
    return {"queue": _limit(limits.queue), "key": _limit(limits.key)}


def _limit(limit: RateLimit | None) -> dict[str, Any] | None:
    return None if limit is None else {"jobs": limit.jobs, "per_seconds": seconds(limit.per)}


def transition_fields(transition: Transition) -> dict[str, Any]:
    """One line of a job's history."""
    return {
        "seq": transition.seq,
        "at": transition.at,
        "left": transition.left,
        "entered": transition.entered,
        "dwell_seconds": seconds(transition.dwell),
        "attempt": transition.attempt,
        "reason": transition.reason,
        "who": transition.who,
    }


def seconds(duration: timedelta | None) -> float | None:
    """For JSON."""
    return None if duration is None else duration.total_seconds()
