"""Packed entries become Arrow, the same as `unpack` makes of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from remuda.errors import DecodeError
from remuda.lake.decoding import decoded
from remuda.lake.schemas import TRANSITIONS
from remuda.lifecycle import State
from remuda.stores.contract import TrailEntry
from remuda.transition import Batch, pack_mixed, to_ms, unpack

NOW = datetime(2026, 11, 15, 23, 59, 59, 123_000, tzinfo=UTC)


def _entries() -> list[TrailEntry]:
    added = Batch(messages=["a", "b", "c"], left=None, entered=State.PENDING, at=NOW, name=["x", "y", "x"])
    taken = Batch(
        messages=["a", "b"],
        left=[State.PENDING, State.RETRYABLE],
        entered=State.PROCESSING,
        at=NOW + timedelta(seconds=2),
        dwell_ms=[2000, 17],
        attempt=1,
        who="w",
    )
    rows = [
        (
            "c1",
            None,
            "QUEUED",
            to_ms(NOW),
            None,
            0,
            None,
            "READ_TIME",
            {"device": "V1:1", "lane": "l", "gateway": "g"},
        ),
        ("c2", "QUEUED", "SENT_TO_NS", to_ms(NOW), 5, 1, "retry", None, None),
    ]
    packed = [*added.entries(), *taken.entries(), (2, pack_mixed(rows, who="engine"))]
    entries, seq = [], 1
    for count, entry in packed:
        entries.append(TrailEntry(seq, count, entry))
        seq += count
    return entries


def _rows(entries: list[TrailEntry], *, after: int = 0, up_to: int = 99) -> list[dict[str, object]]:
    batches = list(decoded(entries, source="s", trail="q", after=after, up_to=up_to, batch=7))
    assert all(each.schema.equals(TRANSITIONS.arrow_schema()) for each in batches)
    return pa.Table.from_batches(batches, TRANSITIONS.arrow_schema()).to_pylist()


def test_every_column_is_what_unpack_gives() -> None:
    rows = _rows(_entries())
    expected = [
        each for entry in _entries() for each in unpack(entry.entry, queue="q", first_seq=entry.first_seq)
    ]
    assert len(rows) == 7
    for row, transition in zip(rows, expected, strict=True):
        about = transition.about or {}
        assert row == {
            "source": "s",
            "queue": "q",
            "seq": transition.seq,
            "message": transition.message,
            "left": transition.left,
            "entered": transition.entered,
            "at": transition.at,
            "dwell_ms": None if transition.dwell is None else transition.dwell / timedelta(milliseconds=1),
            "attempt": transition.attempt,
            "reason": transition.reason,
            "who": transition.who,
            "name": transition.name,
            **{name: about.get(name) for name in ("device", "lane", "gateway", "grid")},
            "batch": 7,
        }


def test_a_range_may_begin_and_end_inside_an_entry() -> None:
    assert [row["seq"] for row in _rows(_entries(), after=2, up_to=4)] == [3, 4]


@pytest.mark.parametrize(
    "entry",
    [b"\xc1", b"[9]", b"[1,[1],null]", b'[3,["a"],null,"PENDING",1,null,0,null,null,null]', b'[1,"a"]'],
)
def test_an_entry_that_cannot_be_read_is_named_or_passed_over(entry: bytes) -> None:
    entries = [TrailEntry(1, 1, entry), *(each._replace(first_seq=each.first_seq + 1) for each in _entries())]
    with pytest.raises(DecodeError, match="entry 1 of the trail of 'q'"):
        _rows(entries)
    batches = decoded(entries, source="s", trail="q", after=0, up_to=99, batch=7, pass_over=True)
    assert [seq for each in batches for seq in each.column("seq").to_pylist()] == [2, 3, 4, 5, 6, 7, 8]


def test_an_entry_with_another_number_of_transitions_than_announced_is_refused() -> None:
    first = _entries()[0]
    with pytest.raises(DecodeError, match="3 transitions, and 4 were announced"):
        _rows([first._replace(count=4)])
