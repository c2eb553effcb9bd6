"""Packed entries of a trail as Arrow: column by column, so that what an entry says once of all its
transitions is not said again a thousand times in Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from remuda.errors import DecodeError
from remuda.lake.schemas import TRANSITIONS
from remuda.stores.contract import TrailEntry
from remuda.transition import columns_of

ROWS_AT_ONCE = 100_000
_ABOUT = ("device", "lane", "gateway", "grid")
_SCHEMA = TRANSITIONS.arrow_schema()
# In the order of `columns_of`.
_PACKED: tuple[tuple[str, pa.DataType], ...] = (
    ("message", pa.string()),
    ("left", pa.string()),
    ("entered", pa.string()),
    ("at", pa.int64()),
    ("dwell_ms", pa.int64()),
    ("attempt", pa.int32()),
    ("reason", pa.string()),
    ("who", pa.string()),
    ("name", pa.string()),
)


def decoded(
    entries: Iterable[TrailEntry],
    *,
    source: str,
    trail: str,
    after: int,
    up_to: int,
    batch: int,
    pass_over: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The transitions of entries with numbers in (after, up_to], in batches of `ROWS_AT_ONCE` or more.

    `DecodeError` names the entry that cannot be read; with `pass_over` its numbers are missing instead.
    """
    pile: list[pa.RecordBatch] = []
    rows = 0
    for entry in entries:
        try:
            opened = _open(entry, trail)
        except DecodeError:
            if pass_over:
                continue
            raise
        first = max(0, after + 1 - entry.first_seq)
        last = min(entry.count, up_to - entry.first_seq + 1)
        if last <= first:
            continue  # it lies outside
        opened = opened.slice(first, last - first)
        pile.append(opened)
        rows += opened.num_rows
        if rows >= ROWS_AT_ONCE:
            yield _finished(pile, source=source, trail=trail, batch=batch)
            pile, rows = [], 0
    if rows:
        yield _finished(pile, source=source, trail=trail, batch=batch)


def _open(entry: TrailEntry, trail: str) -> pa.RecordBatch:
    try:
        *packed, about = columns_of(entry.entry)
        count = len(packed[0])
        if count != entry.count:
            raise ValueError(f"it holds {count} transitions, and {entry.count} were announced")
        arrays = [_array(column, kind, count) for column, (_, kind) in zip(packed, _PACKED, strict=True)]
        arrays += [_array(_said(about, each), pa.string(), count) for each in _ABOUT]
        seq = pa.array(range(entry.first_seq, entry.first_seq + count), pa.int64())
    except (
        msgspec.DecodeError,
        ValueError,
        TypeError,
        OverflowError,
        AttributeError,
        RecursionError,
        DecodeError,
    ) as error:
        raise DecodeError(
            f"entry {entry.first_seq} of the trail of {trail!r} is not readable: {error}"
        ) from error
    names = [*(name for name, _ in _PACKED), *_ABOUT]
    return pa.record_batch([*arrays, seq], names=[*names, "seq"])


def _array(column: Any, kind: pa.DataType, count: int) -> pa.Array:
    """A column of one value for all, or of a list of them."""
    if not isinstance(column, list):
        return pa.repeat(pa.scalar(column, kind), count)
    if len(column) != count:
        raise ValueError(f"a column of {len(column)} values for {count} messages")
    return pa.array(column, kind)


def _said(about: Any, name: str) -> Any:
    """One field of what is known of a command, or of each of them."""
    if isinstance(about, list):
        return [None if each is None else each.get(name) for each in about]
    return None if about is None else about.get(name)


def _finished(pile: Sequence[pa.RecordBatch], *, source: str, trail: str, batch: int) -> pa.RecordBatch:
    """One batch with the table's columns, in their order and of their types."""
    together = pa.Table.from_batches(pile).combine_chunks().to_batches()[0]
    rows = together.num_rows
    given = {
        "source": pa.repeat(pa.scalar(source, pa.string()), rows),
        "queue": pa.repeat(pa.scalar(trail, pa.string()), rows),
        "batch": pa.repeat(pa.scalar(batch, pa.int64()), rows),
        "at": pc.multiply(together.column("at"), 1000).cast(_SCHEMA.field("at").type),
    }
    return pa.record_batch(
        [given[name] if name in given else together.column(name) for name in TRANSITIONS.names],
        schema=_SCHEMA,
    )
