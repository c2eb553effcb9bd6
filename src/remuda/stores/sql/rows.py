"""Rows to values, the same for every database but for how it writes a moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from remuda.lifecycle import State
from remuda.message import priorities_from
from remuda.stores.contract import Delivery, Settlement
from remuda.stores.sql.dialect import Claimed
from remuda.stores.sql.steps import Row

# What a claim returns, in the order in which `read_claimed` takes it.
CLAIM_COLUMNS = (
    "id",
    "job_id",
    "name",
    "payload",
    "headers",
    "attempts_count",
    "deliveries_count",
    "priority",
    "created_at",
    "next_attempt_at",
    "first_attempt_at",
    "expires_at",
    "retry",
    "rate_key",
    "slot_at",
)


_STATES = {state.value: state for state in State}


def read_claimed(row: Row, *, lease: int, now: datetime, moment: Callable[[Any], datetime] | None) -> Claimed:
    """A claimed delivery from `CLAIM_COLUMNS`, then the state it left and since when.

    `moment` makes an aware datetime of what the database gives; None where it is one already.
    """
    (
        key,
        job_id,
        name,
        payload,
        headers,
        attempts,
        deliveries,
        priority,
        created_at,
        next_attempt_at,
        first_attempt_at,
        expires_at,
        retry,
        rate_key,
        slot_at,
        left,
        since,
    ) = row
    if moment is not None:
        created_at, next_attempt_at, since = moment(created_at), moment(next_attempt_at), moment(since)
        first_attempt_at = None if first_attempt_at is None else moment(first_attempt_at)
        expires_at = None if expires_at is None else moment(expires_at)
        slot_at = None if slot_at is None else moment(slot_at)
    delivery = Delivery(
        key=key,
        lease=lease,
        id=str(key) if job_id is None else job_id,
        name=name or "",
        payload=payload,
        headers=headers,
        attempts=attempts,
        deliveries=deliveries,
        priority=priority,
        created_at=created_at,
        acquired_at=now,
        next_attempt_at=next_attempt_at,
        first_attempt_at=first_attempt_at,
        expires_at=expires_at,
        retry=retry,
        rate_key=rate_key,
        slot_at=slot_at,
        foreign=job_id is None,
    )
    return Claimed(delivery, _STATES[left], since)


def in_fetch_order(claimed: list[Claimed], begin_with: int | None) -> list[Claimed]:
    """By priority, then by `next_attempt_at`, then as they were added."""
    place = {priority: at for at, priority in enumerate(priorities_from(begin_with))}
    claimed.sort(
        key=lambda each: (
            place[each.delivery.priority],
            each.delivery.next_attempt_at,
            each.delivery.key,
        )
    )
    return claimed


def still_held(deliveries: Sequence[Delivery], leases: dict[int, int]) -> list[Delivery]:
    """Those whose row carries their own lease and no other's."""
    return [each for each in deliveries if leases.get(each.key) == each.lease]


def error_line(settlement: Settlement) -> str | None:
    """The last error of a job that will be tried again, in one line."""
    failure = settlement.failure
    return None if failure is None else f"{failure.type}: {failure.message}"


def first_of_each(ids: Sequence[str], inserted: set[str]) -> list[bool]:
    """For each id whether it is new; where a batch names one twice, only the first is."""
    unseen = set(inserted)
    new = []
    for each in ids:
        new.append(each in unseen)
        unseen.discard(each)
    return new
