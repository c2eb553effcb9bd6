"""From what lies in the streams to what a person looks at: job records and dead letters."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from remuda.codec import decode_headers
from remuda.errors import DecodeError
from remuda.lifecycle import State
from remuda.message import DeadLetter, JobRecord
from remuda.stores.redis import wire
from remuda.stores.redis.keys import OURS, RETURNED, priority_of
from remuda.stores.redis.wire import Ended, Extra, from_us, maybe_from_us

UNKNOWN_REASON = "unknown"  # another program wrote the dead letter and said nothing


class Holder(msgspec.Struct, frozen=True):
    """Who has a stream entry, from the pending list."""

    consumer: str
    idle_ms: int
    count: int

    @property
    def worker(self) -> str:
        """Our consumers are named for the worker and the hold."""
        if self.consumer.startswith(OURS):
            return self.consumer.removeprefix(OURS).rpartition("/")[0]
        return self.consumer

    @property
    def is_nobody(self) -> bool:
        return self.consumer == RETURNED


class Lease(NamedTuple):
    """What the set of leases says of an entry, in microseconds."""

    acquired_us: int
    until_us: int


def fields_of(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


class LiveJob(msgspec.Struct, frozen=True):
    """A job that has not ended, where it lies now: in a stream, or as a member of the delayed set."""

    id: str
    name: str
    d: bytes
    extra: Extra
    is_retryable: bool
    index: int | None = None
    entry: str = ""
    run_at: bytes | None = None
    holder: Holder | None = None
    lease: Lease | None = None
    member: bytes | None = None

    @property
    def state(self) -> State:
        if self.holder is not None and not self.holder.is_nobody:
            return State.PROCESSING
        return State.RETRYABLE if self.is_retryable and self.holder is None else State.PENDING

    def record(self, queue: str) -> JobRecord:
        extra, holder, lease = self.extra, self.holder, self.lease
        try:
            envelope = wire.open_envelope(self.d)
            payload, created_ms, attempts = envelope.payload, envelope.created_ms, envelope.attempt
        except DecodeError:
            payload, created_ms, attempts = self.d, _ms_of(self.entry), 0
        created_at = from_us(created_ms * 1000)
        is_held = holder is not None and not holder.is_nobody
        return JobRecord(
            id=self.id,
            queue=queue,
            name=self.name,
            state=self.state,
            payload=payload,
            headers=_headers(extra.headers),
            priority=extra.priority if self.index is None else priority_of(self.index),
            attempts=attempts,
            deliveries=extra.deliveries + (0 if holder is None else holder.count),
            created_at=created_at,
            next_attempt_at=(wire.from_score(self.run_at) if self.run_at else None) or created_at,
            first_attempt_at=maybe_from_us(extra.first_attempt_us),
            last_attempt_at=maybe_from_us(extra.last_attempt_us),
            acquired_at=from_us(lease.acquired_us) if is_held and lease is not None else None,
            lease_expires_at=from_us(lease.until_us) if is_held and lease is not None else None,
            expires_at=maybe_from_us(extra.expires_us),
            worker=holder.worker if is_held and holder is not None else None,
            error_message=extra.last_error,
            rate_key=extra.rate_key,
        )


def _ms_of(entry: str) -> int:
    """The time in an entry's id; nought for what is none."""
    ms = entry.partition("-")[0]
    return int(ms) if ms.isascii() and ms.isdecimal() else 0


def _headers(encoded: str | None) -> dict[str, Any]:
    try:
        return decode_headers(encoded)
    except DecodeError:
        return {}


def _of_ended(ended: Ended, queue: str, state: State, payload: bytes) -> dict[str, Any]:
    extra = ended.extra or wire.NO_EXTRA
    return {
        "id": ended.id,
        "queue": queue,
        "name": ended.name,
        "state": state,
        "payload": payload,
        "headers": _headers(extra.headers),
        "priority": extra.priority,
        "attempts": ended.attempts,
        "deliveries": ended.deliveries,
        "created_at": from_us(ended.created_ms * 1000),
        "first_attempt_at": maybe_from_us(ended.first_attempt_us),
        "last_attempt_at": maybe_from_us(ended.last_attempt_us),
        "expires_at": maybe_from_us(extra.expires_us),
        "ended_at": from_us(ended.ended_us),
        "worker": ended.worker,
        "reason": ended.reason,
        "error_type": ended.error_type,
        "error_message": ended.error_message,
        "error_trace": ended.error_trace,
        "rate_key": extra.rate_key,
    }


def completed_record(ended: Ended, queue: str) -> JobRecord:
    return JobRecord(**_of_ended(ended, queue, State.COMPLETED, ended.payload))


class DeadEntry(NamedTuple):
    """An entry of the dead-letter stream, ours or another program's."""

    entry: str
    d: bytes
    name: str
    reason: str
    detail: str | None
    source_id: str
    ended: Ended | None

    @classmethod
    def read(cls, entry: bytes, flat: list[bytes]) -> DeadEntry:
        fields = fields_of(flat)
        word = fields.get(b"reason", b"").decode("utf-8", "replace")
        packed = fields.get(b"x")
        detail = fields.get(b"detail")
        return cls(
            entry.decode(),
            fields.get(b"d", b""),
            fields.get(b"n", b"").decode("utf-8", "replace"),
            wire.REASONS.get(word, word) or UNKNOWN_REASON,
            None if detail is None else detail.decode("utf-8", "replace"),
            fields.get(b"source_id", b"").decode("utf-8", "replace"),
            None if packed is None else wire.open_ended(packed),
        )

    @property
    def id(self) -> str:
        if self.ended is not None:
            return self.ended.id
        return wire.id_of(self.d) or self.source_id or self.entry

    @property
    def has_id(self) -> bool:
        """Whether the message has an id of its own; one that is no job goes by the name of its entry."""
        return wire.id_of(self.d) is not None

    @property
    def died_us(self) -> int:
        return _ms_of(self.entry) * 1000 if self.ended is None else self.ended.ended_us

    @property
    def attempts(self) -> int:
        if self.ended is not None:
            return self.ended.attempts
        try:
            return wire.open_envelope(self.d).attempt
        except DecodeError:
            return 0

    @property
    def extra(self) -> Extra:
        return wire.NO_EXTRA if self.ended is None or self.ended.extra is None else self.ended.extra

    def letter(self, queue: str) -> DeadLetter:
        try:
            envelope = wire.open_envelope(self.d)
            payload, created_ms = envelope.payload, envelope.created_ms
        except DecodeError:
            payload, created_ms = self.d, _ms_of(self.source_id or self.entry)
        if self.ended is not None:
            return DeadLetter(cursor=self.entry, **_of_ended(self.ended, queue, State.FAILED, payload))
        return DeadLetter(
            cursor=self.entry,
            id=self.id,
            queue=queue,
            name=self.name,
            state=State.FAILED,
            payload=payload,
            headers={},
            priority=0,
            attempts=self.attempts,
            deliveries=self.attempts,
            created_at=from_us(created_ms * 1000),
            ended_at=from_us(self.died_us),
            reason=self.reason,
            error_message=self.detail,
        )
