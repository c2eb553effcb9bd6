"""Chance that is none: every draw is a hash of the seed, the message's number and what is drawn.

So the same seed gives the same records, whatever the number of partitions, cores or executors.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from pyspark.sql import Column
from pyspark.sql import functions as F

_FRACTION = 2.0**-53
_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # as in `remuda.ids`
_PAIRS = " ".join(one + two for one in _LETTERS for two in _LETTERS)


class Draw:
    """Draws for the message in column `number`."""

    def __init__(self, seed: int) -> None:
        self._seed = F.lit(seed).cast("bigint")

    def bits(self, what: str, *more: Column) -> Column:
        """64 bits."""
        return F.xxhash64(self._seed, F.col("number"), F.lit(crc32(what.encode())), *more)

    def share(self, what: str, *more: Column) -> Column:
        """A number from 0 to below 1."""
        return F.shiftrightunsigned(self.bits(what, *more), 11).cast("double") * F.lit(_FRACTION)

    def below(self, limit: int | Column, what: str, *more: Column) -> Column:
        """A whole number from 0 to below `limit`."""
        return F.pmod(self.bits(what, *more), F.lit(limit) if isinstance(limit, int) else limit)


def choose(share: str, choices: Sequence[tuple[float, int]]) -> str:
    """SQL for one of the choices, each as often as its weight says; the likely ones are best named first.

    `share` is SQL too: as columns, every one of so many cases would be a call from Python to Java.
    """
    total = sum(weight for weight, _ in choices)
    reached, cases = 0.0, []
    for weight, choice in choices[:-1]:
        reached += weight / total
        cases.append(f"WHEN {share} < {reached!r}D THEN {choice}")
    last = choices[-1][1]
    return f"CASE {' '.join(cases)} ELSE {last} END" if cases else str(last)


def pick(values: Sequence[str], place: Column) -> Column:
    """The value at a place that is counted from 0."""
    listed = F.split(F.lit("\n".join(values)), "\n")
    return F.element_at(listed, (place + 1).cast("int"))


def spell(number: Column, pairs: int) -> Column:
    """The last bits of a number, ten to each pair of letters, as ids write them."""
    # Looked up, for Spark's own conversion between bases takes eight times as long.
    listed = F.split(F.lit(_PAIRS), " ")
    places = (F.shiftright(number, 10 * place).bitwiseAND(F.lit(1023)) for place in reversed(range(pairs)))
    return F.concat(*(F.get(listed, place.cast("int")) for place in places))
