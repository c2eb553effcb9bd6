"""Delivering: from what `fetch.lua` found to deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from remuda.errors import DecodeError
from remuda.lifecycle import Reason
from remuda.stores.contract import Defect, Delivery
from remuda.stores.redis import wire
from remuda.stores.redis.holding import Hold, Place
from remuda.stores.redis.keys import priority_of
from remuda.transition import to_ms


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
    hold = Hold(consumer, set(answer[::3]), sum(len(flat) // 3 for flat in answer[1::3]))
    moments: dict[int, datetime] = {}
    names: dict[bytes, str] = {}
    for at in range(0, len(answer), 3):
        index, flat, beside = answer[at : at + 3]
        others = {beside[i]: beside[i + 1 : i + 4] for i in range(0, len(beside), 4)}
        reading = _Reading(index, priority_of(index), hold, lease, now, leased_until)
        for place in range(len(flat) // 3):
            entry, d, n = flat[3 * place : 3 * place + 3]
            more = others.get(place) if others else None
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
        key=Place(reading.index, entry, reading.hold, 1, wire.NO_EXTRA, envelope.created_ms, envelope.retry),
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
