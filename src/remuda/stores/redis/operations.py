"""The hot operations: arguments for the scripts, and deliveries from their answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from remuda.errors import DecodeError
from remuda.lifecycle import Reason, State
from remuda.stores import recording
from remuda.stores.contract import Defect, Delivery, EncodedJob, Failure, Settlement
from remuda.stores.redis import wire
from remuda.stores.redis.keys import priority_of, stream_index
from remuda.stores.redis.records import LiveJob
from remuda.stores.redis.wire import Ended, Extra, to_us
from remuda.transition import Batch, to_ms

Argument = bytes | str | int

ARCHIVED_TOGETHER = 100  # completed jobs in one entry of the archive
_LATE = timedelta(milliseconds=500)  # a job asked for at a moment longer ago than this waits by that moment
_MILLISECOND = timedelta(milliseconds=1)
_NOBODY = wire.NO_EXTRA


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where a delivery lies, and what its settlement needs of it: the `key` of a `Delivery`."""

    index: int  # of its stream among the scripts' KEYS
    entry: str
    lease: str  # the member of the set of leases; another delivery of the same job has another
    consumer: str
    count: int  # deliveries of this entry, this one included
    extra: Extra
    created_ms: int
    retry: Any = None  # as it stands on the wire
    raw: bytes | None = None  # field `d`, where it could not be read


def held(deliveries: Sequence[Delivery]) -> Iterator[Argument]:
    """What `held.lua` takes."""
    yield len(deliveries)
    for each in deliveries:
        yield each.key.index
        yield each.key.entry
        yield each.key.lease


def recorded(batches: Sequence[Batch]) -> list[Argument]:
    """What `record_args` takes."""
    entries = [entry for batch in batches for entry in batch.entries()]
    arguments: list[Argument] = [len(entries)]
    for count, packed in entries:
        arguments += (count, packed)
    return arguments


# -- add


def add_arguments(
    jobs: Sequence[EncodedJob], *, now: datetime, who: str, max_live: int | None
) -> tuple[list[Argument], list[EncodedJob]]:
    """What `add.lua` takes; and the jobs that are not plain, by whose places it answers."""
    plain: list[Argument] = []
    special: list[Argument] = []
    not_plain: list[EncodedJob] = []
    late = now - _LATE
    now_ms = to_ms(now)
    moments: dict[datetime, int] = {}
    for job in jobs:
        if _is_plain(job) and late <= job.next_attempt_at <= now:
            created_ms = moments.get(job.next_attempt_at)
            if created_ms is None:
                created_ms = moments[job.next_attempt_at] = to_ms(job.next_attempt_at)
            plain += (wire.encode((job.id, job.payload, created_ms, 0)), job.name)
        else:
            special += _special(job, now, late, now_ms)
            not_plain.append(job)
    arguments: list[Argument] = [
        -1 if max_live is None else max_live,
        len(plain) // 2,
        len(special) // 8,
        *plain,
        *special,
        *recorded([recording.added(jobs, now=now, who=who)]),
    ]
    return arguments, not_plain


def _is_plain(job: EncodedJob) -> bool:
    return (
        job.headers is None
        and job.priority == 0
        and job.expires_at is None
        and job.retry is None
        and not job.unique
        and job.rate_key is None
    )


def _special(job: EncodedJob, now: datetime, late: datetime, now_ms: int) -> tuple[Argument, ...]:
    envelope = wire.pack_envelope(job.id, job.payload, now_ms, 0, wire.retry_to_wire(job.retry))
    extra = Extra(
        headers=job.headers,
        priority=job.priority,
        expires_us=wire.maybe_to_us(job.expires_at),
        packed_retry=None if job.retry is None else job.retry.decode("latin-1"),
        unique=job.unique,
        unique_for_ms=None if job.unique_for is None else job.unique_for // _MILLISECOND,
        rate_key=job.rate_key,
    )
    waits = not late <= job.next_attempt_at <= now
    return (
        stream_index(job.priority),
        wire.to_score(job.next_attempt_at) if waits else "",
        job.id,
        b"" if extra == _NOBODY else wire.encode(extra),
        "1" if job.unique else "0",
        envelope,
        job.name,
        wire.pack_member(job.name, envelope) if waits else b"",
    )


# -- fetch


def deliveries(
    answer: Sequence[Any], *, consumer: str, token: str, lease: int, now: datetime, leased_until: datetime
) -> list[Delivery]:
    """What `fetch.lua` found, level by level."""
    found: list[Delivery] = []
    moments: dict[int, datetime] = {}
    for at in range(0, len(answer), 2):
        index, flat = answer[at], answer[at + 1]
        priority = priority_of(index)
        for i in range(0, len(flat), 4):
            entry = flat[i].decode()
            d, name, more = flat[i + 1], flat[i + 2], flat[i + 3]
            defect: Defect | None = None
            extra, run_at, count = _NOBODY, None, 1
            raw = None
            try:
                opened = wire.open_envelope(d if d is not None else b"")
                if more is not None:
                    extra = wire.open_extra(more[0])
                    run_at = wire.from_score(more[1]) if more[1] else None
                    count = more[2]
                retry = extra.retry if opened.retry is None or extra.retry else _foreign_retry(opened.retry)
                called = name.decode()
                job_id, payload, created_ms, attempts, wire_retry = (
                    opened.id,
                    opened.payload,
                    opened.created_ms,
                    opened.attempt,
                    opened.retry,
                )
            except (DecodeError, UnicodeDecodeError) as error:
                raw = d if d is not None else b""
                defect = Defect(_reason_of(d), str(error))
                called = name.decode("utf-8", "replace")
                job_id, payload, created_ms = wire.id_of(raw) or entry, raw, to_ms(now)
                attempts, wire_retry, retry = 0, None, None
                count = more[2] if more is not None else 1
            created_at = moments.get(created_ms)
            if created_at is None:
                created_at = moments[created_ms] = wire.from_us(created_ms * 1000)
            found.append(
                Delivery(
                    key=Place(
                        index,
                        entry,
                        f"{index}/{entry}/{token}",
                        consumer,
                        count,
                        extra,
                        created_ms,
                        wire_retry,
                        raw,
                    ),
                    lease=lease,
                    id=job_id,
                    name=called,
                    payload=payload,
                    headers=extra.headers,
                    attempts=attempts,
                    deliveries=extra.deliveries + count,
                    priority=priority,
                    created_at=created_at,
                    acquired_at=now,
                    next_attempt_at=run_at or created_at,
                    first_attempt_at=wire.maybe_from_us(extra.first_attempt_us),
                    expires_at=wire.maybe_from_us(extra.expires_us),
                    retry=retry,
                    rate_key=extra.rate_key,
                    slot_at=wire.maybe_from_us(extra.slot_us),
                    defect=defect,
                    leased_until=leased_until,
                )
            )
    return found


def _foreign_retry(element: Any) -> bytes | None:
    return wire.retry_from_wire(element)


def _reason_of(d: bytes | None) -> str:
    return (Reason.MALFORMED if d is None else Reason.DECODE_FAIL).value


# -- settle


class Caps(NamedTuple):
    """What a queue keeps of what has ended, at most."""

    done_jobs: int
    done_bytes: int
    dead_letters: int


def settle_arguments(
    settlements: Sequence[Settlement], *, now: datetime, who: str, has_ackdel: bool, caps: Caps
) -> list[Argument]:
    by_state: dict[State, list[Settlement]] = {}
    for each in settlements:
        by_state.setdefault(each.state, []).append(each)
    completed = by_state.get(State.COMPLETED, [])
    failed = by_state.get(State.FAILED, [])
    retried = by_state.get(State.RETRYABLE, [])
    with_extras = [each for each in (*completed, *failed) if each.delivery.key.extra is not _NOBODY]
    unique = [each.delivery for each in with_extras if each.delivery.key.extra.unique]
    archived = list(_archive_entries(completed, now, who))
    results = [each for each in settlements if each.result is not None]
    arguments: list[Argument] = [
        *held([each.delivery for each in settlements]),
        "1" if has_ackdel else "0",
        *recorded([recording.settled(same, state, now=now, who=who) for state, same in by_state.items()]),
        len(with_extras),
        *(each.delivery.id for each in with_extras),
        len(unique),
    ]
    for delivery in unique:
        arguments += _end_of_hold(delivery, now)
    arguments.append(len(retried))
    for each in retried:
        arguments += _retry(each, now)
    arguments += (len(archived), caps.done_jobs, caps.done_bytes)
    for entry in archived:
        arguments += entry
    arguments += (len(failed), caps.dead_letters)
    for each in failed:
        arguments += _dead_letter(each, now, who)
    arguments += (who, len(results))
    for each in results:
        arguments += (
            each.delivery.id,
            each.result or b"",
            max(1, each.result_ttl // _MILLISECOND),
            to_us(now + each.result_ttl),
        )
    return arguments


def _end_of_hold(delivery: Delivery, now: datetime) -> tuple[Argument, ...]:
    ms = delivery.key.extra.unique_for_ms
    if ms is None:
        return (delivery.id, "", "")
    return (delivery.id, to_us(now) + ms * 1000, max(1, ms))


def _error_line(failure: Failure | None) -> str | None:
    return None if failure is None else f"{failure.type}: {failure.message}"


def _retry(settlement: Settlement, now: datetime) -> tuple[Argument, ...]:
    delivery = settlement.delivery
    place: Place = delivery.key
    ran = settlement.started_at is not None
    started_us = wire.maybe_to_us(settlement.started_at)
    extra = msgspec.structs.replace(
        place.extra,
        deliveries=delivery.deliveries,
        priority=delivery.priority,
        first_attempt_us=started_us if place.extra.first_attempt_us is None else place.extra.first_attempt_us,
        last_attempt_us=place.extra.last_attempt_us if started_us is None else started_us,
        last_error=_error_line(settlement.failure),
        since_us=to_us(now),
        slot_us=None,
    )
    return (
        wire.to_score(settlement.next_attempt_at or now),
        _member(delivery, delivery.attempts + ran),
        delivery.id,
        wire.encode(extra),
    )


def _member(delivery: Delivery, attempts: int) -> bytes:
    """A delivery as a member of the delayed set."""
    place: Place = delivery.key
    envelope = place.raw
    if envelope is None:
        envelope = wire.pack_envelope(delivery.id, delivery.payload, place.created_ms, attempts, place.retry)
    return wire.pack_member(delivery.name, envelope)


def _ended(settlement: Settlement, ended_us: int, who: str) -> Ended:
    delivery = settlement.delivery
    place: Place = delivery.key
    extra = place.extra
    started_us = wire.maybe_to_us(settlement.started_at)
    failure = settlement.failure
    return Ended(
        delivery.id,
        delivery.name,
        delivery.payload,
        place.created_ms,
        delivery.attempts + (started_us is not None),
        delivery.deliveries,
        ended_us,
        who,
        started_us if extra.first_attempt_us is None else extra.first_attempt_us,
        extra.last_attempt_us if started_us is None else started_us,
        None if extra is _NOBODY and not delivery.priority else _with_priority(extra, delivery.priority),
        settlement.reason,
        None if failure is None else failure.type,
        None if failure is None else failure.message,
        None if failure is None else failure.trace,
    )


def _with_priority(extra: Extra, priority: int) -> Extra:
    return extra if extra.priority == priority else msgspec.structs.replace(extra, priority=priority)


def _archive_entries(
    completed: Sequence[Settlement], now: datetime, who: str
) -> Iterator[tuple[int, bytes, Argument]]:
    """Completed jobs packed together; those whose id is held on stand apart, for they are kept as long."""
    ended_us = to_us(now)
    by_hold: dict[int | None, list[Ended]] = {}
    for each in completed:
        if each.keep:
            hold_ms = each.delivery.key.extra.unique_for_ms
            by_hold.setdefault(hold_ms, []).append(_ended(each, ended_us, who))
    for hold_ms, same in by_hold.items():
        held_until = "" if hold_ms is None else str(ended_us + hold_ms * 1000)
        for start in range(0, len(same), ARCHIVED_TOGETHER):
            part = same[start : start + ARCHIVED_TOGETHER]
            yield len(part), wire.encode(part), held_until


def _dead_letter(settlement: Settlement, now: datetime, who: str) -> tuple[Argument, ...]:
    """An entry of the dead-letter stream, after the number of its parts: ChasquiMQ's fields, then ours."""
    delivery = settlement.delivery
    place: Place = delivery.key
    ended = _ended(settlement, to_us(now), who)
    ended.payload = b""  # it stands in `d`
    d = place.raw
    if d is None:
        d = wire.pack_envelope(
            delivery.id, delivery.payload, place.created_ms, delivery.attempts, place.retry
        )
    fields: list[Argument] = ["d", d, "n", delivery.name, "source_id", place.entry]
    fields += ["reason", settlement.reason or Reason.REJECTED.value]
    if settlement.failure is not None:
        fields += ["detail", f"{settlement.failure.type}: {settlement.failure.message}"[:1000]]
    fields += ["at", ended.ended_us, "a", ended.attempts, "x", wire.encode(ended)]
    return (len(fields), *fields)


# -- release


def release_arguments(
    deliveries: Sequence[Delivery],
    *,
    now: datetime,
    who: str,
    counted: bool,
    until: Sequence[datetime] | None,
    has_ackdel: bool,
) -> list[Argument]:
    reason = "cancelled_at_stop" if counted else "unstarted" if until is None else "rate_limited"
    arguments: list[Argument] = [
        *held(deliveries),
        "1" if has_ackdel else "0",
        "0" if until is None else "1",
        *recorded([recording.released(deliveries, reason=reason, now=now, who=who)]),
    ]
    for at, each in enumerate(deliveries):
        if until is None:
            arguments.append(each.key.count - (not counted))
        else:
            arguments += _deferred(each, until[at], now, counted)
    return arguments


def _deferred(delivery: Delivery, moment: datetime, now: datetime, counted: bool) -> tuple[Argument, ...]:
    extra = msgspec.structs.replace(
        delivery.key.extra,
        deliveries=delivery.deliveries - (not counted),
        priority=delivery.priority,
        since_us=to_us(now),
        slot_us=to_us(moment),
    )
    return (
        wire.to_score(moment),
        _member(delivery, delivery.attempts),
        delivery.id,
        wire.encode(extra),
    )


# -- reschedule


def rescheduled(job: LiveJob, at: datetime) -> list[Argument]:
    """What `reschedule.lua` takes."""
    if job.member is not None:
        return ["member", job.id, wire.to_score(at), job.member]
    extra = msgspec.structs.replace(
        job.extra,
        priority=priority_of(job.index or 0),
        deliveries=job.extra.deliveries + (0 if job.holder is None else job.holder.count),
    )
    member = wire.pack_member(job.name, job.d)
    return ["entry", job.id, wire.to_score(at), member, job.index or 0, job.entry, wire.encode(extra)]
