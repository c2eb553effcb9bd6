"""The chain of a message's records, as one number: whether each leaves the state that the one before entered.

Every state has a weight. A record counts the weight that it enters less the weight that it leaves (0 where
there was none), so that the sum over a whole life comes to the weight of the state it ended in, whatever
lay between. A sum needs no order and no window, and sums of two batches add up to that of both.
"""

from __future__ import annotations

from functools import reduce
from types import MappingProxyType
from typing import TYPE_CHECKING

from remuda.lifecycle import CommandStatus, State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column

# Powers of 64: breaks of different kinds do not cancel out unless one kind comes 32 times in a life, and
# a partial sum does not overflow below a hundred million records. No weight is 0, for that is "nowhere".
# A job and a command never share a life, so they may share the weights.
_BASE = 64
CHAIN_WEIGHTS: Mapping[str, int] = MappingProxyType(
    {
        state.value: _BASE**place
        for kind in (tuple(State), tuple(CommandStatus))
        for place, state in enumerate(kind)
    }
)


def weight_column(state: Column) -> Column:
    """The weight of a state's name; 0 for NULL and for a name that the lifecycle does not know."""
    from pyspark.sql import functions as F

    (first, weight), *others = CHAIN_WEIGHTS.items()
    cases = reduce(
        lambda found, each: found.when(state == each[0], F.lit(each[1]).cast("bigint")),
        others,
        F.when(state == first, F.lit(weight).cast("bigint")),
    )
    return cases.otherwise(F.lit(0).cast("bigint"))
