"""ChasquiMQ's bytes: the envelope of a job, the member of the delayed set, and what Remuda keeps beside them.

An envelope is a msgpack array `[id, payload, created_at_ms, attempt]`, with a fifth element for a retry
policy of the job's own. Its programs refuse a sixth, so everything else (headers, priority, expiry …) stands
in a hash under the job's id, where it outlives a retry or a promotion by a program that does not know of it.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec

from remuda.errors import ConfigurationError, DecodeError
from remuda.lifecycle import Reason
from remuda.retry import Constant, Exponential, NoRetry, RetryPolicy, pack_policy, unpack_policy

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MILLISECOND = timedelta(milliseconds=1)

# What ChasquiMQ itself does where a job says only half of it.
_DEFAULT_DELAY = timedelta(milliseconds=100)
_DEFAULT_CAP = timedelta(seconds=30)
_DEFAULT_JITTER = timedelta(milliseconds=100)
_DEFAULT_ATTEMPTS = 25
_UNLIMITED_MS = 3650 * 24 * 3600 * 1000

# The words that its release writes, and the seed's, which we write.
_OTHER_REASONS = {"decode_failed": Reason.DECODE_FAIL.value, "oversize_payload": Reason.OVERSIZE.value}
REASONS = {reason.value: reason.value for reason in Reason} | _OTHER_REASONS


def to_us(moment: datetime) -> int:
    """Microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND


def from_us(us: int) -> datetime:
    """The moment of `to_us`; one that is out of range is the last there is."""
    try:
        return _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        return _LAST


def maybe_from_us(us: int | None) -> datetime | None:
    return None if us is None else from_us(us)


def maybe_to_us(moment: datetime | None) -> int | None:
    return None if moment is None else to_us(moment)


def to_score(moment: datetime) -> str:
    """A moment as a score of the delayed set: milliseconds, with the microseconds behind the point."""
    whole, part = divmod(to_us(moment), 1000)
    return f"{whole}.{part:03d}" if part else str(whole)


def from_score(score: bytes | str | float) -> datetime | None:
    """The moment of a score; None for what is none."""
    try:
        return from_us(round(float(score) * 1000))
    except (ValueError, OverflowError):
        return None


class Envelope(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """What stands in field `d` of a stream entry."""

    id: str
    payload: bytes
    created_ms: Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999)]  # the year 9999
    attempt: Annotated[int, msgspec.Meta(ge=0, le=2_147_483_647)]
    retry: Any = None


class Extra(msgspec.Struct, omit_defaults=True):
    """What a job has beyond its envelope; a job without any of it has no extras at all."""

    headers: str | None = msgspec.field(default=None, name="h")
    priority: int = msgspec.field(default=0, name="p")
    expires_us: int | None = msgspec.field(default=None, name="e")
    packed_retry: str | None = msgspec.field(default=None, name="r")  # as text: Lua reads no bytes of msgpack
    unique: bool = msgspec.field(default=False, name="u")
    unique_for_ms: int | None = msgspec.field(default=None, name="f")
    rate_key: str | None = msgspec.field(default=None, name="k")
    deliveries: int = msgspec.field(default=0, name="n")  # before the entry that is in the stream now
    first_attempt_us: int | None = msgspec.field(default=None, name="a")
    last_attempt_us: int | None = msgspec.field(default=None, name="b")
    last_error: str | None = msgspec.field(default=None, name="m")
    since_us: int | None = msgspec.field(default=None, name="s")  # in its present state
    slot_us: int | None = msgspec.field(default=None, name="t")

    @property
    def retry(self) -> bytes | None:
        return None if self.packed_retry is None else self.packed_retry.encode("latin-1", "replace")


class Ended(msgspec.Struct, array_like=True, omit_defaults=True):
    """A job that has ended, as the archive and the field `x` of a dead letter keep it."""

    id: str
    name: str
    payload: bytes
    created_ms: int
    attempts: int
    deliveries: int
    ended_us: int
    worker: str
    first_attempt_us: int | None = None
    last_attempt_us: int | None = None
    extra: Extra | None = None
    reason: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    error_trace: str | None = None


_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
_envelopes = msgspec.msgpack.Decoder(Envelope)
_extras = msgspec.msgpack.Decoder(Extra)
_ended = msgspec.msgpack.Decoder(Ended)
_archives = msgspec.msgpack.Decoder(list[Ended])

NO_EXTRA = Extra()


def pack_envelope(job_id: str, payload: bytes, created_ms: int, attempt: int, retry: Any = None) -> bytes:
    if retry is None:
        return encode((job_id, payload, created_ms, attempt))
    return encode((job_id, payload, created_ms, attempt, retry))


def open_envelope(d: bytes) -> Envelope:
    """The envelope; `DecodeError` for anything else."""
    try:
        return _envelopes.decode(d)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DecodeError(f"{len(d):,} bytes that are no envelope of a job: {error}") from error


def id_of(d: bytes) -> str | None:
    """The id at the front of an envelope that may be broken behind it, as the scripts read it."""
    if len(d) < 3 or d[0] not in (0x94, 0x95):
        return None
    kind = d[1]
    if 0xA0 <= kind <= 0xBF:
        start, length = 2, kind - 0xA0
    elif kind == 0xD9:
        start, length = 3, d[2]
    elif kind == 0xDA and len(d) > 3:
        start, length = 4, d[2] << 8 | d[3]
    else:
        return None
    if not length or len(d) <= start + length:
        return None
    try:
        return d[start : start + length].decode()
    except UnicodeDecodeError:
        return None


def pack_member(name: str, envelope: bytes) -> bytes:
    """A member of the delayed set."""
    encoded = name.encode()
    return struct.pack("<I", len(encoded)) + encoded + envelope


def open_member(member: bytes) -> tuple[str, bytes]:
    """Name and envelope of a member; one that is none is all envelope, as the promoter has it."""
    if len(member) >= 4:
        length = int.from_bytes(member[:4], "little")
        if len(member) >= 4 + length:
            return member[4 : 4 + length].decode("utf-8", "replace"), member[4 + length :]
    return "", member


def open_extra(packed: bytes | None) -> Extra:
    if not packed:
        return NO_EXTRA
    try:
        return _extras.decode(packed)
    except msgspec.DecodeError as error:
        raise DecodeError(f"the extras of a job are not readable: {error}") from error


def open_ended(packed: bytes) -> Ended | None:
    """The field `x` of a dead letter; None where another program wrote something else there."""
    try:
        return _ended.decode(packed)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def open_archive(packed: bytes) -> list[Ended]:
    try:
        return _archives.decode(packed)
    except msgspec.DecodeError as error:
        raise DecodeError(f"an entry of the archive is not readable: {error}") from error


# -- a job's own retry policy


def retry_to_wire(packed: bytes | None) -> Any:
    """The fifth element of an envelope, as near as ChasquiMQ's words come to the policy."""
    if packed is None:
        return None
    try:
        policy = unpack_policy(packed)
    except DecodeError:
        return None
    return [policy.max_attempts, _backoff(policy)]


def _backoff(policy: RetryPolicy) -> list[Any] | None:
    if isinstance(policy, NoRetry):
        return None
    first = policy.every if isinstance(policy, Constant) else policy.initial
    multiplier = policy.multiplier if isinstance(policy, Exponential) else None
    jitter = policy.jitter if isinstance(policy.jitter, timedelta) else first * policy.jitter
    kind = "fixed" if multiplier is None else "exponential"
    # Where nothing is said its programs use limits of their own: no limit is a very high one.
    cap = _UNLIMITED_MS if policy.cap is None else policy.cap // _MILLISECOND
    return [kind, first // _MILLISECOND, cap, multiplier, jitter // _MILLISECOND]


def retry_from_wire(element: Any) -> bytes | None:
    """The packed policy that the fifth element of a foreign envelope stands for; None for none."""
    if element is None:
        return None
    try:
        attempts, backoff = (*element, None, None)[:2]
        if attempts is None and backoff is None:
            return None
        return pack_policy(_policy(_DEFAULT_ATTEMPTS if attempts is None else max(1, int(attempts)), backoff))
    except (TypeError, ValueError, OverflowError, ConfigurationError) as error:
        raise DecodeError(f"a retry policy that is not readable: {element!r:.200}") from error


def _policy(attempts: int, backoff: Any) -> RetryPolicy:
    if backoff is None:
        return Exponential(
            initial=_DEFAULT_DELAY,
            multiplier=2.0,
            cap=_DEFAULT_CAP,
            jitter=_DEFAULT_JITTER,
            max_attempts=attempts,
        )
    kind, delay_ms, cap_ms, multiplier, jitter_ms = (*backoff, None, None, None)[:5]
    delay = timedelta(milliseconds=delay_ms)
    cap = _DEFAULT_CAP if cap_ms is None else timedelta(milliseconds=min(cap_ms, _UNLIMITED_MS))
    jitter = _DEFAULT_JITTER if jitter_ms is None else timedelta(milliseconds=jitter_ms)
    if kind == "fixed":
        return Constant(every=delay, cap=cap, jitter=jitter, max_attempts=attempts)
    # A kind that it does not know is an exponential to it, too.
    return Exponential(
        initial=delay,
        multiplier=2.0 if multiplier is None else max(1.0, float(multiplier)),
        cap=cap,
        jitter=jitter,
        max_attempts=attempts,
    )
