"""The sets in order that the commands in memory are kept in, against the plainest way to have them."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.stores.memory_lanes import RankedSet, Shelf
from tests.commands.workbench import MINUTE, SECOND, START

MEMBERS = st.sampled_from([f"m{n}" for n in range(8)])


@settings(derandomize=True, database=None, max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["put", "drop", "pop", "first"]), MEMBERS, st.integers(0, 5))))
def test_a_ranked_set_is_in_order_whatever_went_in_and_out(steps: list[tuple[str, str, int]]) -> None:
    ranked: RankedSet[int] = RankedSet()
    plain: dict[str, int] = {}
    for step, member, rank in steps:
        first = min(((rank, member) for member, rank in plain.items()), default=None)
        if step == "put":
            ranked.put(member, rank)
            plain[member] = rank
        elif step == "drop":
            assert ranked.drop(member) == (plain.pop(member, None) is not None)
        elif step == "pop":
            assert ranked.pop() == (first and first[1])
            if first:
                del plain[first[1]]
        else:
            assert ranked.first() == first
        assert len(ranked) == len(plain)
        assert (member in ranked) == (member in plain)
        assert ranked.rank_of(member) == plain.get(member)
    assert list(ranked.pop_until(2)) == [
        member for rank, member in sorted((rank, member) for member, rank in plain.items()) if rank <= 2
    ]


def test_a_ranked_set_does_not_grow_with_what_went_through_it() -> None:
    ranked: RankedSet[int] = RankedSet()
    for n in range(10_000):
        ranked.put("always", n)
        ranked.put(f"m{n}", n)
        ranked.drop(f"m{n}")
    assert len(ranked) == 1
    assert len(ranked._heap) < 100
    assert ranked.first() == (9_999, "always")


def test_a_shelf_gives_things_in_order_and_again_after_a_while() -> None:
    shelf: Shelf[int] = Shelf()
    for rank, member in enumerate(["c", "a", "b"]):
        shelf.put(member, rank)
    assert shelf.take(now=START, limit=2, hold=MINUTE) == ["c", "a"]
    shelf.postpone("c", START + SECOND)
    shelf.postpone("nobody", START)
    assert shelf.take(now=START + SECOND, limit=1, hold=MINUTE) == ["c"]
    assert shelf.drop("a")
    assert not shelf.drop("a")
    assert shelf.take(now=START + timedelta(hours=1), limit=5, hold=MINUTE) == ["c", "b"]
    assert len(shelf) == 2
