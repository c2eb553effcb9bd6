"""The transitions of the hot operations, as batches ready to be packed: the same on every store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from remuda.lifecycle import State
from remuda.stores.contract import Delivery, EncodedJob, Settlement
from remuda.transition import Batch, between_ms


def added(jobs: Sequence[EncodedJob], *, now: datetime, who: str) -> Batch:
    return Batch(
        messages=[job.id for job in jobs],
        left=None,
        entered=State.PENDING,
        at=now,
        who=who,
        name=[job.name for job in jobs],
    )


def settled(settlements: Sequence[Settlement], state: State, *, now: datetime, who: str) -> Batch:
    # What was fetched together shares one moment, so few of them have to be reckoned.
    spent = {each: between_ms(each, now) for each in {each.delivery.acquired_at for each in settlements}}
    return Batch(
        messages=[each.delivery.id for each in settlements],
        left=State.PROCESSING,
        entered=state,
        at=now,
        dwell_ms=[spent[each.delivery.acquired_at] for each in settlements],
        attempt=[each.delivery.attempts + (each.started_at is not None) for each in settlements],
        reason=None if state is State.COMPLETED else [each.reason for each in settlements],
        who=who,
    )


def released(
    deliveries: Sequence[Delivery], *, counted: bool, deferred: bool, now: datetime, who: str
) -> Batch:
    return Batch(
        messages=[each.id for each in deliveries],
        left=State.PROCESSING,
        entered=State.PENDING,
        at=now,
        dwell_ms=[between_ms(each.acquired_at, now) for each in deliveries],
        attempt=[each.attempts for each in deliveries],
        reason="rate_limited" if deferred else "cancelled_at_stop" if counted else "unstarted",
        who=who,
    )
