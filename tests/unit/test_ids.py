"""Job ids: ULIDs that ascend within a process and are unlike any other's."""

from __future__ import annotations

import os
import threading

from hypothesis import given
from hypothesis import strategies as st

from remuda.ids import IdMaker

ALPHABET = set("0123456789ABCDEFGHJKMNPQRSTVWXYZ")
NOW_MS = 1_900_000_000_000


def moment_of(ulid: str) -> int:
    number = 0
    for letter in ulid[:10]:
        number = number * 32 + sorted(ALPHABET).index(letter)
    return number


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 2**47)), max_size=10))
def test_ids_ascend_whatever_the_clock_does(calls: list[tuple[int, int]]) -> None:
    maker = IdMaker()
    made = [each for count, now_ms in calls for each in maker.make(count, now_ms)]
    assert len(made) == sum(count for count, _ in calls)
    assert made == sorted(set(made))
    assert all(len(each) == 26 and set(each) <= ALPHABET for each in made)


def test_an_id_begins_with_its_time() -> None:
    (made,) = IdMaker().make(1, NOW_MS)
    assert moment_of(made) == NOW_MS


def test_makers_do_not_meet() -> None:
    makers = [IdMaker() for _ in range(50)]
    made = [each for maker in makers for each in maker.make(1_000, NOW_MS)]
    assert len(set(made)) == 50_000


def test_a_million_ids_of_one_moment_are_different_and_in_order() -> None:
    made = IdMaker().make(1_000_000, NOW_MS)
    assert len(set(made)) == 1_000_000
    assert made == sorted(made)


def test_threads_share_a_maker() -> None:
    maker = IdMaker()
    made: list[str] = []

    def work() -> None:
        for _ in range(200):
            made.extend(maker.make(5, NOW_MS))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(set(made)) == len(made) == 4_000


def test_a_forked_child_makes_ids_of_its_own() -> None:
    maker = IdMaker()
    maker.make(1, NOW_MS)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, "\n".join(maker.make(100, NOW_MS)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        of_child = answer.read().split()
    os.waitpid(child, 0)
    assert len(of_child) == 100
    assert not set(of_child) & set(maker.make(100, NOW_MS))
