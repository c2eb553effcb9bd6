"""The hot operations of the contract, once for all databases: change the state, and record it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from remuda.lifecycle import State
from remuda.stores.contract import Delivery, EncodedJob, Settlement, Suspects
from remuda.stores.sql.dialect import Dialect
from remuda.stores.sql.moments import between_ms
from remuda.stores.sql.steps import Steps
from remuda.transition import Batch

T = TypeVar("T")

LEASE_EXPIRED = "lease_expired"


def add(
    dialect: Dialect, queue: str, jobs: Sequence[EncodedJob], *, now: datetime, who: str
) -> Steps[list[bool]]:
    """Insert, and record what is new."""
    new = yield from dialect.insert(queue, jobs, now=now)
    added = jobs if all(new) else [job for job, is_new in zip(jobs, new, strict=True) if is_new]
    if added:
        yield from dialect.record(
            queue,
            Batch(
                messages=[job.id for job in added],
                left=None,
                entered=State.PENDING,
                at=now,
                who=who,
                name=[job.name for job in added],
            ),
        )
    return new


def fetch(
    dialect: Dialect,
    queue: str,
    *,
    limit: int,
    now: datetime,
    lease_for: timedelta,
    who: str,
    suspects: Suspects,
) -> Steps[list[Delivery]]:
    """Claim under one fresh lease, and record it."""
    claimed = yield from dialect.claim(
        queue,
        limit=limit,
        now=now,
        lease=secrets.randbits(62) + 1,
        lease_expires_at=now + lease_for,
        who=who,
        suspects=suspects,
    )
    if claimed:
        yield from dialect.record(
            queue,
            Batch(
                messages=[each.delivery.id for each in claimed],
                left=[each.left for each in claimed],
                entered=State.PROCESSING,
                at=now,
                dwell_ms=[between_ms(each.since, now) for each in claimed],
                attempt=[each.delivery.attempts for each in claimed],
                who=who,
            ),
        )
    deliveries = [each.delivery for each in claimed]
    for each in deliveries:
        each.leased_until = now + lease_for
    return deliveries


def settle(
    dialect: Dialect, queue: str, settlements: Sequence[Settlement], *, now: datetime, who: str
) -> Steps[list[Settlement]]:
    """Write outcomes and record those that took effect; the others had lost their lease."""
    lost: list[Settlement] = []
    for part in _once_each(settlements, lambda each: each.delivery.key):
        ended = [each for each in part if each.state is not State.RETRYABLE]
        again = [each for each in part if each.state is State.RETRYABLE]
        done: set[int] = set()
        if ended:
            done |= yield from dialect.finish(ended, now=now, who=who)
        if again:
            done |= yield from dialect.retry(again, now=now)
        for state in (State.COMPLETED, State.FAILED, State.RETRYABLE):
            told = [each for each in part if each.state is state and each.delivery.key in done]
            if told:
                yield from dialect.record(queue, _settled(told, state, now, who))
        lost += [each for each in part if each.delivery.key not in done]
    return lost


def _once_each(items: Sequence[T], key: Callable[[T], Any]) -> list[list[T]]:
    """Parts that name each message once. A worker that lost a job may be the one that fetched it again."""
    if len({key(each) for each in items}) == len(items):
        return [list(items)]
    parts: list[dict[Any, T]] = []
    for each in items:
        part = next((part for part in parts if key(each) not in part), None)
        if part is None:
            part = {}
            parts.append(part)
        part[key(each)] = each
    return [list(part.values()) for part in parts]


def _settled(settlements: list[Settlement], state: State, now: datetime, who: str) -> Batch:
    return Batch(
        messages=[each.delivery.id for each in settlements],
        left=State.PROCESSING,
        entered=state,
        at=now,
        dwell_ms=[between_ms(each.delivery.acquired_at, now) for each in settlements],
        attempt=[each.delivery.attempts + (each.started_at is not None) for each in settlements],
        reason=[each.reason for each in settlements],
        who=who,
    )


def extend(
    dialect: Dialect, deliveries: Sequence[Delivery], *, now: datetime, lease_for: timedelta
) -> Steps[list[Delivery]]:
    """Renew; gives back what was lost. Not a state change, so nothing is recorded."""
    lost: list[Delivery] = []
    for part in _once_each(deliveries, lambda each: each.key):
        held = yield from dialect.extend(part, now=now, lease_expires_at=now + lease_for)
        for each in part:
            if each.key in held:
                each.leased_until = now + lease_for
            else:
                lost.append(each)
    return lost


def release(
    dialect: Dialect,
    queue: str,
    deliveries: Sequence[Delivery],
    *,
    now: datetime,
    who: str,
    counted: bool,
) -> Steps[None]:
    """Put back, and record it."""
    released = yield from dialect.release(deliveries, now=now, counted=counted)
    told = [each for each in deliveries if each.key in released]
    if told:
        yield from dialect.record(
            queue,
            Batch(
                messages=[each.id for each in told],
                left=State.PROCESSING,
                entered=State.PENDING,
                at=now,
                dwell_ms=[between_ms(each.acquired_at, now) for each in told],
                attempt=[each.attempts for each in told],
                reason="cancelled_at_stop" if counted else "unstarted",
                who=who,
            ),
        )


def recover(
    dialect: Dialect, queue: str, *, now: datetime, timeout: timedelta, limit: int, who: str
) -> Steps[list[str]]:
    """Take back from dead workers, and record it."""
    recovered = yield from dialect.recover(queue, now=now, timeout=timeout, limit=limit)
    if recovered:
        yield from dialect.record(
            queue,
            Batch(
                messages=[each.id for each in recovered],
                left=State.PROCESSING,
                entered=State.PENDING,
                at=now,
                dwell_ms=[between_ms(each.since, now) for each in recovered],
                attempt=[each.attempts for each in recovered],
                reason=LEASE_EXPIRED,
                who=who,
            ),
        )
    return [each.id for each in recovered]
