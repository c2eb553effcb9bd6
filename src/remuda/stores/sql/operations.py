"""The hot operations of the contract, once for all databases: change the state, and record it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from remuda.lifecycle import State
from remuda.stores import recording
from remuda.stores.contract import Delivery, EncodedJob, Settlement, Suspects, queue_full
from remuda.stores.sql.dialect import Dialect, KeptResult
from remuda.stores.sql.steps import Steps
from remuda.transition import MAX_PER_ENTRY, Batch, between_ms

T = TypeVar("T")

LEASE_EXPIRED = "lease_expired"


def add(
    dialect: Dialect, queue: str, jobs: Sequence[EncodedJob], *, now: datetime, who: str
) -> Steps[list[bool]]:
    """Insert, and record what is new."""
    if dialect.inserts_at_once(jobs):
        yield from dialect.insert_recorded(queue, jobs, recording.added(jobs, now=now, who=who), now=now)
        return [True] * len(jobs)
    new = yield from dialect.insert(queue, jobs, now=now)
    added = jobs if all(new) else [job for job, is_new in zip(jobs, new, strict=True) if is_new]
    if added:
        yield from dialect.record(queue, recording.added(added, now=now, who=who))
    return new


def add_bounded(
    dialect: Dialect,
    queue: str,
    jobs: Sequence[EncodedJob],
    *,
    max_live: int,
    alone: bool,
    now: datetime,
    who: str,
) -> Steps[list[bool]]:
    """`add`, unless more than `max_live` would then be live. `alone`: nobody else counts meanwhile.

    In a caller's transaction nobody is made to wait: there the count is of what was committed.
    """
    live = yield from dialect.count_live(queue, at_most=max_live, alone=alone)
    for_certain = sum(not job.unique for job in jobs)
    if for_certain and live + for_certain > max_live:
        raise queue_full(queue, live=live, more=for_certain, max_live=max_live)
    new = yield from dialect.insert(queue, jobs, now=now)
    added = [job for job, is_new in zip(jobs, new, strict=True) if is_new]
    if added and live + len(added) > max_live:
        # Said in so many words, for a caller may go on with its transaction.
        yield from dialect.take_back(queue, [job.id for job in added])
        raise queue_full(queue, live=live, more=len(added), max_live=max_live)
    if added:
        yield from dialect.record(queue, recording.added(added, now=now, who=who))
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
    begin_with: int | None,
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
        begin_with=begin_with,
    )
    if claimed and not dialect.records_by_itself:
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
    lost: set[int] = set()
    for part in _once_each(settlements, lambda each: each.delivery.key):
        by_state: dict[State, list[Settlement]] = {}
        for each in part:
            by_state.setdefault(each.state, []).append(each)
        for state, same in by_state.items():
            if state is State.RETRYABLE:
                done = yield from dialect.retry(same, now=now)
            else:
                done = yield from dialect.finish(queue, same, now=now, who=who)
            told = same
            if len(done) < len(same):
                told = [each for each in same if each.delivery.key in done]
                lost.update(id(each) for each in same if each.delivery.key not in done)
            if told and not (state is State.COMPLETED and dialect.records_by_itself):
                yield from dialect.record(queue, recording.settled(told, state, now=now, who=who))
            # By id: a foreign message's number may be another job's own id.
            results = {each.delivery.id: _result(each, now) for each in told if each.result is not None}
            if results:
                yield from dialect.keep_results(queue, list(results.values()))
    return [each for each in settlements if id(each) in lost] if lost else []


def _result(settlement: Settlement, now: datetime) -> KeptResult:
    return KeptResult(settlement.delivery.id, settlement.result or b"", now + settlement.result_ttl)


def settles_in_one_statement(dialect: Dialect, settlements: Sequence[Settlement]) -> bool:
    """Whether `settle` of these comes to a single statement, which needs no transaction around it."""
    return (
        dialect.records_by_itself
        and len(settlements) <= MAX_PER_ENTRY
        and all(each.state is State.COMPLETED and each.result is None for each in settlements)
        and len({each.keep for each in settlements}) == 1
        and len({each.delivery.key for each in settlements}) == len(settlements)
    )


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
    until: Sequence[datetime] | None,
) -> Steps[None]:
    """Put back, and record it."""
    released = yield from dialect.release(deliveries, now=now, counted=counted, until=until)
    told = [each for each in deliveries if each.key in released]
    if told:
        yield from dialect.record(
            queue,
            recording.released(told, counted=counted, deferred=until is not None, now=now, who=who),
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
