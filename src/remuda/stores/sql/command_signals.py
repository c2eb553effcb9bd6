"""Signals: an inbox in the order in which they came, and the ids of those that are done."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from remuda.stores.commands import StoredSignal
from remuda.stores.sql import command_fleet
from remuda.stores.sql.phrasing import Phrasing
from remuda.stores.sql.schema import command_signal
from remuda.stores.sql.steps import Steps

_MICROSECOND = timedelta(microseconds=1)
_COLUMNS = ("fleet", "id", "device", "body", "received_at", "looks", "remember_us")

_KNOWN = "SELECT id, forget_at FROM command_signal WHERE fleet = :fleet AND id IN :ids"
_REMOVE = "DELETE FROM command_signal WHERE fleet = :fleet AND id IN :ids"
_DUE = """
    SELECT seq, id, device, body, received_at, looks FROM command_signal
    WHERE fleet = :fleet AND forget_at IS NULL AND (due_at IS NULL OR due_at <= :now)
    ORDER BY seq LIMIT :limit
"""
_TAKE = "UPDATE command_signal SET due_at = :until, looks = looks + 1 WHERE seq IN :seqs"
_IN_INBOX = """
    SELECT id, remember_us FROM command_signal WHERE fleet = :fleet AND id IN :ids AND forget_at IS NULL
"""
_DONE = """
    UPDATE command_signal SET forget_at = :forget_at, due_at = NULL, body = :nothing
    WHERE fleet = :fleet AND id IN :ids
"""
_LATER = """
    UPDATE command_signal SET due_at = :at WHERE fleet = :fleet AND id IN :ids AND forget_at IS NULL
"""
_FORGOTTEN = """
    SELECT id FROM command_signal
    WHERE fleet = :fleet AND forget_at <= :now ORDER BY forget_at LIMIT :limit
"""


def keep(
    say: Phrasing, fleet: str, signals: Sequence[StoredSignal], *, remember: timedelta, now: datetime
) -> Steps[int]:
    """Put the new ones into the inbox, in order; how many they are."""
    yield from command_fleet.alone(say, fleet)
    by_id = {each.id: each for each in reversed(signals)}  # of two with one id the first
    rows = yield say.ask(_KNOWN, fleet=fleet, ids=list(by_id))
    forgotten = {row[0]: row[1] is not None and say.moment(row[1]) <= now for row in rows}
    if old := [each for each, is_forgotten in forgotten.items() if is_forgotten]:
        yield say.ask(_REMOVE, fleet=fleet, ids=old)
    new = [each for each in reversed(by_id.values()) if forgotten.get(each.id, True)]
    made = [
        (fleet, each.id, each.device, each.body, each.received_at, each.looks, remember // _MICROSECOND)
        for each in new
    ]
    if made:
        yield say.put(command_signal, _COLUMNS, made, over=False)
    return len(made)


def take(
    say: Phrasing, fleet: str, *, limit: int, hold: timedelta, now: datetime
) -> Steps[list[StoredSignal]]:
    """The first that are due."""
    yield from command_fleet.alone(say, fleet)
    rows = yield say.ask(_DUE, fleet=fleet, now=now, limit=limit)
    if rows:
        yield say.ask(_TAKE, seqs=[row[0] for row in rows], until=now + hold)
    return [
        StoredSignal(
            id=row[1], device=row[2], body=bytes(row[3]), received_at=say.moment(row[4]), looks=row[5]
        )
        for row in rows
    ]


def settle(
    say: Phrasing, fleet: str, *, done: Sequence[str], later: Sequence[tuple[str, datetime]], now: datetime
) -> Steps[None]:
    """Remember those that are done; have the others due again at their moment."""
    yield from command_fleet.alone(say, fleet)
    if done:
        by_span: dict[int, list[str]] = {}
        for signal_id, remember_us in (yield say.ask(_IN_INBOX, fleet=fleet, ids=list(done))):
            by_span.setdefault(remember_us, []).append(signal_id)
        for remember_us, ids in by_span.items():
            forget_at = now + remember_us * _MICROSECOND
            yield say.ask(_DONE, fleet=fleet, ids=ids, forget_at=forget_at, nothing=b"")
    by_moment: dict[datetime, list[str]] = {}
    for signal_id, at in later:
        by_moment.setdefault(at, []).append(signal_id)
    for at, ids in by_moment.items():
        yield say.ask(_LATER, fleet=fleet, ids=ids, at=at)


def prune(say: Phrasing, fleet: str, *, limit: int, now: datetime) -> Steps[int]:
    """Forget those that were remembered long enough."""
    yield from command_fleet.alone(say, fleet)
    rows = yield say.ask(_FORGOTTEN, fleet=fleet, now=now, limit=limit)
    if rows:
        yield say.ask(_REMOVE, fleet=fleet, ids=[row[0] for row in rows])
    return len(rows)
