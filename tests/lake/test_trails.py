"""What of the trails is read next, and by which task."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remuda.lake.trails import TrailRange, cut, unread
from remuda.stores.contract import TrailSpan

NAMES = st.sampled_from(["a", "b", "c", "devices:d"])


def test_a_round_takes_up_every_trail_where_it_was_left() -> None:
    spans = {
        "new": TrailSpan(1, 50),
        "old": TrailSpan(1, 80),
        "done": TrailSpan(1, 9),
        "empty": TrailSpan(1, 0),
    }
    assert unread(spans, {"old": 60, "done": 9}, limit=1_000) == [
        TrailRange(trail="new", after=0, up_to=50),
        TrailRange(trail="old", after=60, up_to=80),
    ]


def test_what_was_trimmed_before_it_was_read_is_passed_over() -> None:
    spans = {"a": TrailSpan(31, 40), "gone": TrailSpan(41, 40)}
    assert unread(spans, {"a": 10, "gone": 7}, limit=99) == [TrailRange(trail="a", after=30, up_to=40)]


def test_a_long_trail_does_not_keep_short_ones_waiting() -> None:
    spans = {"long": TrailSpan(1, 1_000), "short": TrailSpan(1, 10)}
    assert unread(spans, {}, limit=100) == [
        TrailRange(trail="long", after=0, up_to=90),
        TrailRange(trail="short", after=0, up_to=10),
    ]


@given(
    st.dictionaries(NAMES, st.tuples(st.integers(0, 50), st.integers(0, 200)), min_size=1),
    st.dictionaries(NAMES, st.integers(0, 260)),
    st.integers(1, 300),
    st.integers(1, 8),
)
def test_rounds_read_everything_once_and_tasks_share_it(
    kept: dict[str, tuple[int, int]], read: dict[str, int], limit: int, pieces: int
) -> None:
    spans = {name: TrailSpan(trimmed + 1, trimmed + length) for name, (trimmed, length) in kept.items()}
    wanted = {
        (name, seq)
        for name, span in spans.items()
        for seq in range(max(read.get(name, 0) + 1, span.first), span.last + 1)
    }
    seen: list[tuple[str, int]] = []
    reached = dict(read)
    while ranges := unread(spans, reached, limit=limit):
        assert sum(map(len, ranges)) <= limit
        tasks = cut(ranges, pieces=pieces)
        assert len(tasks) <= pieces
        assert max(sum(map(len, task)) for task in tasks) <= -(-sum(map(len, ranges)) // pieces)
        seen += [
            (each.trail, seq)
            for task in tasks
            for each in task
            for seq in range(each.after + 1, each.up_to + 1)
        ]
        reached |= {each.trail: each.up_to for each in ranges}
    assert len(seen) == len(set(seen))
    assert set(seen) == wanted
