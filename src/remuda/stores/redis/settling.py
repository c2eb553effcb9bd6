"""Settling and putting back: what `settle.lua`, `release.lua` and `reschedule.lua` take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from remuda.lifecycle import Reason, State
from remuda.stores import recording
from remuda.stores.contract import Delivery, Failure, Settlement
from remuda.stores.redis import wire
from remuda.stores.redis.events import events_of
from remuda.stores.redis.holding import Argument, Place, Sorted, recorded
from remuda.stores.redis.keys import priority_of
from remuda.stores.redis.records import LiveJob
from remuda.stores.redis.wire import Ended, Extra, to_us

ARCHIVED_TOGETHER = 100  # completed jobs in one entry of the archive
_MILLISECOND = timedelta(milliseconds=1)


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
    archived = list(_archive_entries(completed, now, who, caps.done_jobs))
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
    arguments += (len(failed), caps.dead_letters, who)
    for each in failed:
        arguments += _dead_letter(each, now, who)
    arguments.append(len(results))
    for each in results:
        arguments += (
            each.delivery.id,
            "1" if each.state is State.FAILED else "0",
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
        None
        if extra is wire.NO_EXTRA and not delivery.priority
        else _with_priority(extra, delivery.priority),
        settlement.reason,
        None if failure is None else failure.type,
        None if failure is None else failure.message,
        None if failure is None else failure.trace,
    )


# The first fields of an `Ended`; the rest of a plain job's are what they are by default.
_PlainlyEnded = tuple[str, str, bytes, int, int, int, int, str, int | None, int | None]


def _plainly_ended(settlement: Settlement, ended_us: int, who: str) -> _PlainlyEnded:
    """`_ended` for a completed job without extras: most of them, and a tuple is made sooner."""
    delivery = settlement.delivery
    started_us = wire.maybe_to_us(settlement.started_at)
    return (
        delivery.id,
        delivery.name,
        delivery.payload,
        delivery.key.created_ms,
        delivery.attempts + (started_us is not None),
        delivery.deliveries,
        ended_us,
        who,
        started_us,
        started_us,
    )


def _with_priority(extra: Extra, priority: int) -> Extra:
    return extra if extra.priority == priority else msgspec.structs.replace(extra, priority=priority)


def _archive_entries(
    completed: Sequence[Settlement], now: datetime, who: str, at_most: int
) -> Iterator[tuple[int, bytes, Argument]]:
    """Completed jobs packed together; those whose id is held on stand apart, for they are kept as long."""
    ended_us = to_us(now)
    plain: list[Ended | _PlainlyEnded] = []
    by_hold: dict[int | None, list[Ended | _PlainlyEnded]] = {None: plain}
    for each in completed:
        if each.keep and at_most:
            place: Place = each.delivery.key
            if place.has_extras or each.delivery.priority:
                by_hold.setdefault(place.extra.unique_for_ms, []).append(_ended(each, ended_us, who))
            else:
                plain.append(_plainly_ended(each, ended_us, who))
    together = min(ARCHIVED_TOGETHER, at_most)
    for hold_ms, same in by_hold.items():
        held_until = "" if hold_ms is None else str(ended_us + hold_ms * 1000)
        for start in range(0, len(same), together):
            part = same[start : start + together]
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


def rescheduled(job: LiveJob, known: bytes, at: datetime) -> list[Argument]:
    """What `reschedule.lua` takes; `known` are the job's extras as they are now."""
    # A turn that it had is for another moment.
    extra = msgspec.structs.replace(wire.open_extra(known), slot_us=None)
    if job.member is not None:
        packed = b"" if extra == wire.NO_EXTRA else wire.encode(extra)
        return ["member", job.id, wire.to_score(at), job.member, known, packed]
    extra.priority = priority_of(job.index or 0)
    extra.deliveries += 0 if job.holder is None else job.holder.count
    member = wire.pack_member(job.name, job.d)
    return ["entry", job.id, wire.to_score(at), member, known, wire.encode(extra), job.index or 0, job.entry]


def expiring(job: LiveJob, known: bytes, at: datetime | None) -> list[Argument]:
    """What `expire.lua` takes; `known` are the job's extras as they are now."""
    extra = msgspec.structs.replace(wire.open_extra(known), expires_us=wire.maybe_to_us(at))
    packed = b"" if extra == wire.NO_EXTRA else wire.encode(extra)
    if job.member is not None:
        return ["member", job.id, known, packed, job.member]
    return ["entry", job.id, known, packed, job.index or 0, job.entry]
