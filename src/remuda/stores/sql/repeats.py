"""Repeatable jobs: specs and their next windows. Whoever changes one holds the queue's own row."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
from sqlalchemy import delete, insert, select, update

from remuda.schedule import Repeat, Repeating
from remuda.stores.contract import Firing
from remuda.stores.sql import operations
from remuda.stores.sql.dialect import Dialect
from remuda.stores.sql.moments import aware, naive
from remuda.stores.sql.schema import repeat as table
from remuda.stores.sql.steps import Steps
from remuda.stores.sql.upkeep import queue_row

_OWN = table.c
_encode = msgspec.msgpack.encode
_specs = msgspec.msgpack.Decoder(Repeat)


def put(queue: str, spec: Repeat, *, first: datetime, keep: bool) -> Steps[bool]:
    """Write a spec; whether it is new."""
    yield from queue_row(queue)
    this = (_OWN.queue == queue, _OWN.repeat_key == spec.key)
    there = yield select(_OWN.fired).where(*this)
    values = {"spec": _encode(spec), "next_at": naive(first), "fired": 0}
    if not there:
        yield insert(table).values(queue=queue, repeat_key=spec.key, **values)
        return True
    yield update(table).where(*this).values({"spec": values["spec"]} if keep else values)
    return False


def look(queue: str, *, key: str | None, limit: int) -> Steps[list[Repeating]]:
    """Specs by their next windows."""
    query = select(_OWN.spec, _OWN.next_at, _OWN.fired).where(_OWN.queue == queue)
    if key is not None:
        query = query.where(_OWN.repeat_key == key)
    rows = yield query.order_by(_OWN.next_at, _OWN.repeat_key).limit(limit)
    return [Repeating(_specs.decode(spec), aware(next_at), fired) for spec, next_at, fired in rows]


def remove(queue: str, key: str) -> Steps[bool]:
    """Remove a spec, if it is there."""
    yield from queue_row(queue)
    this = (_OWN.queue == queue, _OWN.repeat_key == key)
    there = yield select(_OWN.fired).where(*this)
    yield delete(table).where(*this)
    return bool(there)


def fire(
    dialect: Dialect, queue: str, firings: Sequence[Firing], *, now: datetime, who: str
) -> Steps[list[bool]]:
    """Add the jobs of those windows that nobody has taken yet, and move their specs on."""
    yield from queue_row(queue)
    among = dialect.among(_OWN.repeat_key, [each.key for each in firings])
    rows = yield select(_OWN.repeat_key, _OWN.next_at).where(_OWN.queue == queue, among)
    standing = {key: aware(next_at) for key, next_at in rows}
    done = []
    for each in firings:
        done.append(standing.get(each.key) == each.window)
        if not done[-1]:
            continue
        del standing[each.key]
        this = (_OWN.queue == queue, _OWN.repeat_key == each.key)
        if each.next is None:
            yield delete(table).where(*this)
        else:
            moved = {"next_at": naive(each.next), "fired": _OWN.fired + len(each.jobs)}
            yield update(table).where(*this).values(moved)
    jobs = [job for each, is_done in zip(firings, done, strict=True) if is_done for job in each.jobs]
    if jobs:
        yield from operations.add(dialect, queue, jobs, now=now, who=who)
    return done
