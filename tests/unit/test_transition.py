"""The packed form of the trail: columns, folded where all values are the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from remuda.errors import DecodeError, IllegalMoveError
from remuda.lifecycle import JOB_MOVES, State
from remuda.transition import MAX_PER_ENTRY, Batch, Transition, from_ms, to_ms, unpack

NOW = datetime(2030, 1, 1, 12, 30, 15, 123_000, tzinfo=UTC)
texts = st.text(st.characters(codec="utf-8"), max_size=12)
moments = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)).map(  # noqa: DTZ001
    lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000)
)
one_or_many = lambda values, size: values | st.lists(values, min_size=size, max_size=size)  # noqa: E731


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    size = draw(st.integers(1, 12))
    entered = draw(st.sampled_from(sorted({entered for _, entered in JOB_MOVES})))
    lefts = st.sampled_from([left for left, into in JOB_MOVES if into is entered])
    milliseconds = st.integers(0, 10**12)
    return Batch(
        messages=draw(st.lists(texts, min_size=size, max_size=size)),
        left=draw(one_or_many(lefts, size)),
        entered=entered,
        at=draw(moments),
        dwell_ms=draw(st.none() | one_or_many(milliseconds, size)),
        attempt=draw(one_or_many(st.integers(0, 1_000), size)),
        reason=draw(one_or_many(st.none() | texts, size)),
        who=draw(st.none() | texts),
        name=draw(st.none() | one_or_many(texts, size)),
    )


def spread(column: Any, place: int) -> Any:
    return column[place] if isinstance(column, list) else column


def opened(batch: Batch, first_seq: int = 1) -> list[Transition]:
    found: list[Transition] = []
    for count, packed in batch.entries():
        part = unpack(packed, queue="orders", first_seq=first_seq + len(found))
        assert len(part) == count
        found += part
    return found


@given(batches(), st.integers(1, 2**40))
def test_a_batch_comes_back_row_by_row(batch: Batch, first_seq: int) -> None:
    expected = [
        Transition(
            message=message,
            left=spread(batch.left, place),
            entered=batch.entered,
            at=batch.at,
            dwell=None
            if spread(batch.dwell_ms, place) is None
            else timedelta(milliseconds=spread(batch.dwell_ms, place)),
            attempt=spread(batch.attempt, place),
            reason=spread(batch.reason, place),
            who=batch.who,
            name=spread(batch.name, place),
            queue="orders",
            seq=first_seq + place,
        )
        for place, message in enumerate(batch.messages)
    ]
    assert opened(batch, first_seq) == expected


def acks(count: int, **columns: Any) -> Batch:
    given = {"dwell_ms": [7] * count, "attempt": [1] * count, "reason": [None] * count, **columns}
    return Batch(
        messages=[f"id-{n}" for n in range(count)],
        left=[State.PROCESSING] * count,
        entered=State.COMPLETED,
        at=NOW,
        **given,
    )


def test_a_column_of_one_value_is_stored_once() -> None:
    ((_, folded),) = acks(500).entries()
    ((_, mixed),) = acks(500, dwell_ms=list(range(500))).entries()
    ids = sum(len(msgspec.msgpack.encode(f"id-{n}")) for n in range(500))
    assert len(folded) < ids + 60
    assert len(mixed) > len(folded) + 400


def test_a_batch_beyond_one_entry_is_cut_into_several() -> None:
    count = 2 * MAX_PER_ENTRY + 3
    batch = acks(count, attempt=list(range(count)))
    sizes = [size for size, _ in batch.entries()]
    assert sizes == [MAX_PER_ENTRY, MAX_PER_ENTRY, 3]
    found = opened(batch)
    assert [each.seq for each in found] == list(range(1, count + 1))
    assert [each.attempt for each in found] == list(range(count))
    assert [each.message for each in found] == batch.messages


def test_an_empty_batch_has_no_entry() -> None:
    assert list(acks(0).entries()) == []


@pytest.mark.parametrize(
    "left", [State.COMPLETED, [State.PENDING, State.COMPLETED], [State.RETRYABLE, None]], ids=str
)
def test_an_illegal_move_cannot_be_put_in_a_batch(left: Any) -> None:
    with pytest.raises(IllegalMoveError):
        Batch(messages=["a", "b"], left=left, entered=State.PROCESSING, at=NOW)


@pytest.mark.parametrize("column", ["dwell_ms", "attempt", "reason", "name"])
def test_a_column_of_another_length_is_refused(column: str) -> None:
    with pytest.raises(ValueError, match="2 values for 3"):
        acks(3, **{column: [None, None]})


def entry(**other: Any) -> bytes:
    columns = {
        "version": 1,
        "messages": ["a", "b"],
        "left": "PENDING",
        "entered": "PROCESSING",
        "at": 0,
        "dwell": 0,
        "attempt": 0,
        "reason": None,
        "who": None,
        "name": None,
        **other,
    }
    return msgspec.msgpack.encode(list(columns.values()))


def test_the_entry_that_the_next_tests_break_is_good() -> None:
    assert len(unpack(entry(), queue="orders", first_seq=1)) == 2


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xc1",
        b"\x05",
        b"\xc0",
        b"\x80",
        b"\x90",
        msgspec.msgpack.encode("text"),
        entry()[:-3],
        entry() + b"\x00",
        entry(version=2),
        entry(more=1),
        entry(messages=None),
        entry(messages=5),
        entry(messages="text"),
        entry(messages=[1, 2]),
        entry(left="NOWHERE"),
        entry(left=["PENDING"]),
        entry(entered="NOWHERE"),
        entry(entered=None),
        entry(entered=["PROCESSING"]),
        entry(at=None),
        entry(at="now"),
        entry(at=10**18),
        entry(dwell=[1]),
        entry(dwell="long"),
        entry(dwell=10**18),
        entry(attempt=[1, 2, 3]),
        b"\x91" * 100_000 + b"\xc0",
    ],
    ids=lambda packed: packed[:30].hex() or "empty",
)
def test_what_is_no_entry_is_a_decode_error(packed: bytes) -> None:
    with pytest.raises(DecodeError):
        unpack(packed, queue="orders", first_seq=7)


@given(st.binary(max_size=80))
@example(b"\x9a\x01" + b"\x90" * 9)
def test_any_bytes_are_transitions_or_a_decode_error(packed: bytes) -> None:
    try:
        found = unpack(packed, queue="orders", first_seq=1)
    except DecodeError:
        return
    assert all(isinstance(each, Transition) for each in found)


@given(moments)
def test_a_moment_comes_back_from_milliseconds(moment: datetime) -> None:
    assert from_ms(to_ms(moment)) == moment
