"""How attempts fare that nobody made: the share of those still failing that the next one delivers.

A step is the number of the attempt, or (in time) how often the seconds since the first attempt have doubled.
At each step the messages that got there are counted, and those of them that were delivered by it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ENOUGH = 30  # messages seen at a step before their share is believed
_SECOND = timedelta(seconds=1)

_Key = TypeVar("_Key")


class Evidence(IntEnum):
    """What an outcome rests on; for a message the weakest of all that it needed counts."""

    RECORDED = 0
    BETWEEN = 1  # in time: between two recorded attempts that went differently
    ESTIMATED = 2
    NO_DATA = 3
    UNEXPLAINED = 4  # commands: the rules do not give its record back under its own deadlines


class Leaning(IntEnum):
    """How what is not known is taken: as the worst, as is most likely, as the best."""

    WORST = -1
    LIKELY = 0
    BEST = 1


class Seen(NamedTuple):
    """Messages at one step, and those delivered by it."""

    messages: int
    delivered: int


class Curves(msgspec.Struct, frozen=True):
    """The shares of every queue and name, of every queue, and of all."""

    by_name: dict[tuple[str | None, str | None, int], Seen]
    by_queue: dict[tuple[str | None, int], Seen]
    of_all: dict[int, Seen]

    @classmethod
    def of(cls, counted: Iterable[tuple[str | None, str | None, int, int, int]]) -> Curves:
        """From rows of queue, name, step, messages and delivered."""
        curves = cls({}, {}, {})
        for queue, name, step, messages, delivered in counted:
            curves.by_name[queue, name, step] = Seen(messages, delivered)
            _add(curves.by_queue, (queue, step), messages, delivered)
            _add(curves.of_all, step, messages, delivered)
        return curves

    def chance(self, queue: str | None, name: str | None, step: int) -> float | None:
        """The share delivered at a step, of the smallest group that shows enough; None: nobody got there."""
        by_name = self.by_name.get((queue, name, step))
        by_queue = self.by_queue.get((queue, step))
        of_all = self.of_all.get(step)
        for seen, enough in ((by_name, ENOUGH), (by_queue, ENOUGH), (of_all, 1)):
            if seen is not None and seen.messages >= enough:
                return seen.delivered / seen.messages
        return None


def _add(table: dict[_Key, Seen], key: _Key, messages: int, delivered: int) -> None:
    before = table.get(key, Seen(0, 0))
    table[key] = Seen(before.messages + messages, before.delivered + delivered)


class Guess:
    """The fate of one message's unrecorded attempts; the same for the same seed and message."""

    def __init__(
        self, curves: Curves, queue: str | None, name: str | None, seed: str, leaning: Leaning
    ) -> None:
        self.leaning = leaning
        self.evidence = Evidence.RECORDED
        self._curves, self._queue, self._name, self._seed = curves, queue, name, seed
        self._rng: random.Random | None = None

    def rests_on(self, evidence: Evidence) -> None:
        self.evidence = max(self.evidence, evidence)

    def delivers(self, step: int) -> bool:
        """Whether an attempt at this step succeeds. Draws in the order of asking, so a longer life agrees
        with a shorter one as far as that goes."""
        chance = self._curves.chance(self._queue, self._name, step)
        self.rests_on(Evidence.NO_DATA if chance is None else Evidence.ESTIMATED)
        if self.leaning is not Leaning.LIKELY:
            return self.leaning is Leaning.BEST
        if self._rng is None:
            self._rng = random.Random(f"{self._seed}/fate")
        return self._rng.random() < (chance or 0.0)


def step_in_time(since_first: timedelta) -> int:
    """How often the whole seconds since the first attempt have doubled, from 1 on."""
    return (max(0, since_first // _SECOND) + 1).bit_length()


def step_in_time_column(since_first_ms: Column) -> Column:
    """`step_in_time` as an expression of Spark."""
    from pyspark.sql import functions as F

    seconds = F.floor(F.greatest(since_first_ms, F.lit(0)) / 1000)
    return F.length(F.bin(seconds + 1))


def count_steps(steps: DataFrame) -> Curves:
    """Curves from rows of source, queue, message, first_seq, name, step and delivered (a boolean)."""
    from pyspark.sql import functions as F

    # A message counts once at a step, however many attempts it made there.
    once = steps.groupBy("source", "queue", "message", "first_seq", "name", "step").agg(
        F.max("delivered").alias("delivered")
    )
    counted = once.groupBy("queue", "name", "step").agg(
        F.count("*").alias("messages"), F.count_if("delivered").alias("delivered")
    )
    return Curves.of(
        (row["queue"], row["name"], row["step"], row["messages"], row["delivered"])
        for row in counted.collect()
    )
