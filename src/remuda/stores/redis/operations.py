"""The hot operations: arguments for the scripts, and deliveries from their answers."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from remuda.errors import DecodeError
from remuda.lifecycle import Reason, State
from remuda.stores import recording
from remuda.stores.contract import Defect, Delivery, EncodedJob, Failure, Settlement
from remuda.stores.redis import wire
from remuda.stores.redis.events import events_of
from remuda.stores.redis.keys import priority_of, stream_index
from remuda.stores.redis.records import LiveJob
from remuda.stores.redis.wire import Ended, Extra, to_us
from remuda.transition import Batch, to_ms

Argument = bytes | str | int

ARCHIVED_TOGETHER = 100  # completed jobs in one entry of the archive
_LATE = timedelta(milliseconds=500)  # a job asked for at a moment longer ago than this waits by that moment
_MILLISECOND = timedelta(milliseconds=1)
_NOBODY = wire.NO_EXTRA


class Hold:
    """What one fetch took, under one lease and in the hands of a consumer of its own."""

    __slots__ = ("consumer", "live", "streams")

    def __init__(self, consumer: str, streams: set[int], live: int) -> None:
        self.consumer = consumer
        self.streams = streams  # among the scripts' KEYS
        self.live = live  # deliveries of which nothing has been said


class Place(msgspec.Struct, gc=False):
    """Where a delivery lies, and what its settlement needs of it: the `key` of a `Delivery`."""

    index: int  # of its stream among the scripts' KEYS
    entry: bytes
    hold: Hold
    count: int  # deliveries of this entry, this one included
    extra: Extra
    created_ms: int
    retry: Any = None  # as it stands on the wire
    raw: bytes | None = None  # field `d`, where it could not be read
    has_extras: bool = False  # which go with the job, readable or not
    is_over: bool = False  # settled or put back by us
    is_unsure: bool = False  # an outcome was sent, and no answer came


T = TypeVar("T")


class Sorted(Generic[T]):
    """Items that each stand for a delivery, by hold and stream, as `held.lua` takes them."""

    def __init__(self, items: Sequence[T], place_of: Callable[[T], Place]) -> None:
        parts: dict[Hold, dict[int, list[T]]] = {}
        self.look_closely = False
        for each in items:
            place = place_of(each)
            parts.setdefault(place.hold, {}).setdefault(place.index, []).append(each)
            if place.is_unsure:
                self.look_closely = True
        self.items: list[T] = []  # in the order by whose places the scripts answer
        self.holds: dict[Hold, int] = {}  # and how many of each
        self.arguments: list[Argument] = ["1" if self.look_closely else "0", len(parts)]
        for hold, by_stream in parts.items():
            self.holds[hold] = 0
            self.arguments += (hold.consumer, len(by_stream))
            for index, same in by_stream.items():
                self.arguments += (index, len(same), *[place_of(each).entry for each in same])
                self.items += same
                self.holds[hold] += len(same)

    def ended_holds(self) -> list[Argument]:
        """What `end_holds` takes: the holds of which these are the last."""
        over = [hold for hold, count in self.holds.items() if count >= hold.live]
        arguments: list[Argument] = [len(over)]
        for hold in over:
            arguments += (hold.consumer, len(hold.streams), *hold.streams)
        return arguments

    def without(self, lost: Sequence[int]) -> list[T]:
        """Those that are not at these places."""
        gone = set(lost)
        return [each for place, each in enumerate(self.items, 1) if place not in gone]


def place_of(delivery: Delivery) -> Place:
    place: Place = delivery.key
    return place


def place_of_settlement(settlement: Settlement) -> Place:
    place: Place = settlement.delivery.key
    return place


def let_go(places: Iterable[Place]) -> None:
    """Note that a delivery is ours no more, by our own doing."""
    for place in places:
        place.is_over = True
        place.hold.live -= 1


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


class _Reading(msgspec.Struct, frozen=True):
    """What all deliveries of one level of one fetch share."""

    index: int
    priority: int
    hold: Hold
    lease: int
    now: datetime
    leased_until: datetime


def deliveries(
    answer: Sequence[Any], *, consumer: str, lease: int, now: datetime, leased_until: datetime
) -> list[Delivery]:
    """What `fetch.lua` found, level by level."""
    found: list[Delivery] = []
    hold = Hold(consumer, set(answer[::2]), sum(len(flat) // 4 for flat in answer[1::2]))
    moments: dict[int, datetime] = {}
    names: dict[bytes, str] = {}
    for at in range(0, len(answer), 2):
        index, flat = answer[at], answer[at + 1]
        reading = _Reading(index, priority_of(index), hold, lease, now, leased_until)
        for i in range(0, len(flat), 4):
            entry, d, n, more = flat[i : i + 4]
            try:
                envelope = wire.open_envelope(d if d is not None else b"")
                name = names.get(n)
                if name is None:
                    name = names[n] = n.decode()
                created_at = moments.get(envelope.created_ms)
                if created_at is None:
                    created_at = moments[envelope.created_ms] = wire.from_us(envelope.created_ms * 1000)
                delivery = _delivery(reading, entry, envelope, name, created_at)
                if not (d[0] == 0x94 and 0xA0 < d[1] <= 0xBF):  # else both ways of reading agree
                    delivery.id = wire.id_of(d) or entry.decode()
                if more is not None or envelope.retry is not None:
                    _complete(delivery, envelope.retry, more)
            except (DecodeError, UnicodeDecodeError, OverflowError) as error:
                delivery = _unreadable(reading, entry, d, n, more, error)
            found.append(delivery)
    return found


def _delivery(
    reading: _Reading, entry: bytes, envelope: wire.Envelope, name: str, created_at: datetime
) -> Delivery:
    """A plain job's first delivery."""
    return Delivery(
        key=Place(reading.index, entry, reading.hold, 1, _NOBODY, envelope.created_ms, envelope.retry),
        lease=reading.lease,
        id=envelope.id,
        name=name,
        payload=envelope.payload,
        headers=None,
        attempts=envelope.attempt,
        deliveries=1,
        priority=reading.priority,
        created_at=created_at,
        acquired_at=reading.now,
        next_attempt_at=created_at,
        leased_until=reading.leased_until,
    )


def _complete(delivery: Delivery, wire_retry: Any, more: Sequence[Any] | None) -> None:
    """What a job has beyond its envelope; `more` is its extras, the time it was due, and its deliveries."""
    place: Place = delivery.key
    packed, run_at, count = more if more is not None else (b"", b"", 1)
    extra = wire.open_extra(packed)
    place.extra, place.count, place.has_extras = extra, count, bool(packed)
    delivery.next_attempt_at = wire.from_score(run_at) or delivery.next_attempt_at
    delivery.headers = extra.headers
    delivery.deliveries = extra.deliveries + count
    delivery.first_attempt_at = wire.maybe_from_us(extra.first_attempt_us)
    delivery.expires_at = wire.maybe_from_us(extra.expires_us)
    delivery.rate_key = extra.rate_key
    delivery.slot_at = wire.maybe_from_us(extra.slot_us)
    delivery.retry = wire.retry_from_wire(wire_retry) if extra.retry is None else extra.retry


def _unreadable(
    reading: _Reading, entry: bytes, d: bytes | None, n: bytes, more: Sequence[Any] | None, error: Exception
) -> Delivery:
    """A message that is no job: it goes by the id that can be made out, or by the name of its entry."""
    raw = d if d is not None else b""
    job_id = wire.id_of(raw) or entry.decode()
    envelope = wire.Envelope(job_id, raw, to_ms(reading.now), 0)
    delivery = _delivery(reading, entry, envelope, n.decode("utf-8", "replace"), reading.now)
    delivery.key.raw = raw
    if more is not None:
        delivery.deliveries = delivery.key.count = more[2]
        delivery.key.has_extras = bool(more[0])
    delivery.defect = Defect((Reason.MALFORMED if d is None else Reason.DECODE_FAIL).value, str(error))
    return delivery


# -- settle


class Caps(NamedTuple):
    """What a queue keeps of what has ended, at most."""

    done_jobs: int
    done_bytes: int
    dead_letters: int


def settle_arguments(
    sorted_: Sorted[Settlement], *, now: datetime, who: str, has_ackdel: bool, caps: Caps, events: bool
) -> list[Argument]:
    """What `settle.lua` takes."""
    settlements = sorted_.items
    by_state: dict[State, list[Settlement]] = {}
    for each in settlements:
        by_state.setdefault(each.state, []).append(each)
    completed = by_state.get(State.COMPLETED, [])
    failed = by_state.get(State.FAILED, [])
    retried = by_state.get(State.RETRYABLE, [])
    with_extras = [each for each in (*completed, *failed) if each.delivery.key.has_extras]
    unique = [each.delivery for each in with_extras if each.delivery.key.extra.unique]
    archived = list(_archive_entries(completed, now, who))
    results = [each for each in settlements if each.result is not None]
    arguments: list[Argument] = [
        *sorted_.arguments,
        "1" if has_ackdel else "0",
        *sorted_.ended_holds(),
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
    told = [event for each in settlements for event in events_of(each, now)] if events else []
    arguments.append(len(told))
    for event in told:
        arguments += (len(event), *event)
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


# -- extend


def renewed_holds(by_hold: Sorted[Delivery]) -> dict[Hold, Hold]:
    """For each hold itself, or a new one for the part of it that is renewed: the rest keeps its lease."""
    renewed: dict[Hold, Hold] = {}
    for hold, count in by_hold.holds.items():
        if count >= hold.live:
            renewed[hold] = hold
        else:
            who = hold.consumer.rpartition("/")[0]
            acquired = hold.consumer.rpartition("/")[2].partition("-")[0]
            consumer = f"{who}/{acquired}-{secrets.randbits(62) + 1:x}"
            renewed[hold] = Hold(consumer, set(hold.streams), 0)
    return renewed


def move(place: Place, hold: Hold) -> None:
    """From one hold to another."""
    if place.hold is not hold:
        place.hold.live -= 1
        hold.live += 1
        place.hold = hold


# -- release


def release_arguments(
    sorted_: Sorted[tuple[Delivery, datetime | None]],
    *,
    now: datetime,
    who: str,
    counted: bool,
    has_ackdel: bool,
) -> list[Argument]:
    """What `release.lua` takes, for deliveries with the moments until which they wait, or None for all."""
    waits = any(until is not None for _, until in sorted_.items)
    arguments: list[Argument] = [*sorted_.arguments, "1" if has_ackdel else "0", "1" if waits else "0"]
    if not waits:
        arguments += [each.key.count - (not counted) for each, _ in sorted_.items]
    arguments += sorted_.ended_holds()
    told = [each for each, _ in sorted_.items]
    arguments += recorded([recording.released(told, counted=counted, deferred=waits, now=now, who=who)])
    for each, until in sorted_.items:
        if until is not None:
            arguments += _deferred(each, until, now, counted)
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
    # A turn that it had is for another moment.
    extra = msgspec.structs.replace(job.extra, slot_us=None)
    if job.member is not None:
        packed = b"" if extra == wire.NO_EXTRA else wire.encode(extra)
        return ["member", job.id, wire.to_score(at), job.member, packed]
    extra.priority = priority_of(job.index or 0)
    extra.deliveries += 0 if job.holder is None else job.holder.count
    member = wire.pack_member(job.name, job.d)
    return ["entry", job.id, wire.to_score(at), member, wire.encode(extra), job.index or 0, job.entry]
