"""Reading the trail: entries get their sequence numbers when they are first read.

Numbering at the time of writing would make all writers of a queue wait for each other's commits,
and a caller's long transaction would stop the queue. An entry that is visible was committed; one
that was committed later is numbered later; and a message's next transition is only ever written
after its last one was committed. So numbers given in the order of the rows, under one lock per
queue, have no gaps and keep each message's order. See docs/decisions/003.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, func, select, update

from remuda.stores.contract import TrailEntry, TrailPage, TrailSpan
from remuda.stores.sql.moments import naive
from remuda.stores.sql.schema import queue as queue_table
from remuda.stores.sql.schema import transition
from remuda.stores.sql.steps import Steps
from remuda.stores.sql.upkeep import queue_row
from remuda.transition import MAX_PER_ENTRY, Transition, unpack

_NUMBERED_AT_ONCE = 2_000

_column = transition.c


def unnumbered(queue: str) -> Steps[bool]:
    """Whether any entry waits for its number."""
    rows = yield select(_column.id).where(_column.queue == queue, _column.seq.is_(None)).limit(1)
    return bool(rows)


def number(queue: str) -> Steps[bool]:
    """Give the next numbers to entries that have none; whether there may be more of them."""
    last_seq = yield from queue_row(queue)
    before = func.sum(_column.count).over(order_by=_column.id) - _column.count
    waiting = (
        select(_column.id, before.label("before"))
        .where(_column.queue == queue, _column.seq.is_(None))
        .order_by(_column.id)
        .limit(_NUMBERED_AT_ONCE)
        .subquery("waiting")
    )
    yield (update(transition).where(_column.id == waiting.c.id).values(seq=last_seq + 1 + waiting.c.before))
    # Asked for instead of computed: an entry that was committed a moment ago may have joined.
    rows = yield (
        select(func.count(), func.max(_column.seq + _column.count - 1)).where(
            _column.queue == queue, _column.seq > last_seq
        )
    )
    numbered, newest = rows[0]
    if numbered:
        yield update(queue_table).where(queue_table.c.name == queue).values(last_seq=newest)
    return bool(numbered >= _NUMBERED_AT_ONCE)


def read(queue: str, *, after: int, limit: int) -> Steps[TrailPage]:
    """Whole entries until `limit` is reached, cut at the front to what comes after `after`."""
    found: list[Transition] = []
    floor = after - MAX_PER_ENTRY  # no entry that begins before this can reach beyond `after`
    while len(found) < limit:
        rows = yield (
            select(_column.seq, _column.count, _column.entry)
            .where(
                _column.queue == queue,
                _column.seq > floor,
                _column.seq + _column.count > after + 1,
            )
            .order_by(_column.seq)
            .limit(max(1, min(100, limit)))
        )
        for first_seq, count, entry in rows:
            if len(found) >= limit:
                break
            opened = unpack(entry, queue=queue, first_seq=first_seq)
            found += opened[max(0, after + 1 - first_seq) :]
            after = first_seq + count - 1
        if not rows:
            break
        floor = after
    return TrailPage(found, after)


def span(trail: str) -> Steps[TrailSpan]:
    """The first and the last number, in one look."""
    first = (
        select(_column.seq)
        .where(_column.queue == trail, _column.seq > 0)
        .order_by(_column.seq)
        .limit(1)
        .scalar_subquery()
    )
    last = select(queue_table.c.last_seq).where(queue_table.c.name == trail).scalar_subquery()
    rows = yield select(first, func.coalesce(last, 0))
    oldest, newest = rows[0]
    return TrailSpan(newest + 1 if oldest is None else oldest, newest)


def entries(trail: str, *, after: int, up_to: int, limit: int) -> Steps[list[TrailEntry]]:
    """Packed entries as they are. Their numbers have no gap, so a stretch of numbers holds about `limit`."""
    query = select(_column.seq, _column.count, _column.entry).where(_column.queue == trail)
    rows = yield (
        query.where(
            _column.seq > after - MAX_PER_ENTRY,  # no entry that begins before this can reach beyond `after`
            _column.seq <= min(up_to, after + max(1, limit)),
            _column.seq + _column.count > after + 1,
        ).order_by(_column.seq)
    )
    if not rows:  # what stood here was trimmed
        rows = yield (query.where(_column.seq > after, _column.seq <= up_to).order_by(_column.seq).limit(1))
    return [TrailEntry(first_seq, count, entry) for first_seq, count, entry in rows]


def names() -> Steps[list[str]]:
    """Every trail, by one look into the index for each: most rows are passed over."""
    rows = yield select(queue_table.c.name).where(queue_table.c.last_seq > 0)
    found = {row[0] for row in rows}
    rows = yield select(func.min(_column.queue))
    while rows[0][0] is not None:
        found.add(rows[0][0])
        rows = yield select(func.min(_column.queue)).where(_column.queue > rows[0][0])
    return sorted(found)


def offset(queue: str, *, since: datetime) -> Steps[int]:
    """The number before the first entry that was written at or after a moment; else the last one."""
    own = (_column.queue == queue, _column.seq.is_not(None))
    rows = yield select(func.min(_column.seq)).where(*own, _column.written_at >= naive(since))
    if rows[0][0] is not None:
        return int(rows[0][0]) - 1
    rows = yield select(func.coalesce(func.max(_column.seq + _column.count - 1), 0)).where(*own)
    return int(rows[0][0])


def trim(queue: str, *, up_to: int) -> Steps[int]:
    """Forget entries that end at or before `up_to`."""
    conditions = (_column.queue == queue, _column.seq.is_not(None), _column.seq + _column.count <= up_to + 1)
    rows = yield select(func.coalesce(func.sum(_column.count), 0)).where(*conditions)
    yield delete(transition).where(*conditions)
    return int(rows[0][0])


def forget(queue: str) -> Steps[None]:
    """All entries, and the last number."""
    yield delete(transition).where(_column.queue == queue)
    yield delete(queue_table).where(queue_table.c.name == queue)
