"""States as small numbers, so that Spark can sum a message up without touching a string.

A code is below 32: jobs from 0, commands from 16, so that both have the same places in their lifecycle five
bits apart. Two of them, and a number of attempts, fit into one.
"""

from __future__ import annotations

from functools import reduce
from types import MappingProxyType
from typing import TYPE_CHECKING

from remuda.lifecycle import COMMAND_MOVES, ENDED_STATUSES, JOB_MOVES, CommandStatus, State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column

# The commonest first: Spark compares one after the other.
_JOBS = (
    State.PROCESSING,
    State.PENDING,
    State.COMPLETED,
    State.RETRYABLE,
    State.FAILED,
    State.REMOVED,
)
_COMMANDS = (
    CommandStatus.SENT_TO_NS,
    CommandStatus.QUEUED,
    CommandStatus.DELIVERED_TO_NS,
    CommandStatus.SENT_TO_DEVICE,
    CommandStatus.DELIVERY_SUCCESSFUL,
    CommandStatus.TO_RETRY,
    CommandStatus.DELIVERY_FAILED,
)
NOWHERE = 14  # left by a message that was just added
UNKNOWN = 15  # a name that the lifecycle does not have
CODES: Mapping[str, int] = MappingProxyType(
    {
        **{state.value: place for place, state in enumerate(_JOBS)},
        **{status.value: 16 + place for place, status in enumerate(_COMMANDS)},
    }
)
OUTCOMES: Mapping[str, str] = MappingProxyType(
    {
        State.COMPLETED.value: "delivered",
        State.FAILED.value: "dead",
        State.REMOVED.value: "removed",
        **{
            status.value: "delivered" if status is CommandStatus.DELIVERY_SUCCESSFUL else "dead"
            for status in ENDED_STATUSES
        },
    }
)


def pair(left: str | None, entered: str) -> int:
    """One number for a move."""
    return (NOWHERE if left is None else CODES[left]) * 32 + CODES[entered]


LEGAL_PAIRS = tuple(pair(left, entered) for left, entered in (*JOB_MOVES, *COMMAND_MOVES))


def code_column(state: Column, *, when_null: int = UNKNOWN) -> Column:
    """The code of a state's name."""
    from pyspark.sql import functions as F

    known = reduce(
        lambda found, each: found.when(state == each[0], each[1]),
        CODES.items(),
        F.when(state.isNull(), when_null),
    )
    return known.otherwise(UNKNOWN)


def name_column(code: Column) -> Column:
    """The name of a code; NULL for a state that the lifecycle does not have."""
    from pyspark.sql import functions as F

    names = {number: name for name, number in CODES.items()}
    return F.get(F.array(*(F.lit(names.get(number)) for number in range(32))), code)


def by_code(values: Mapping[str, int], code: Column) -> Column:
    """The value of the state that a code stands for; 0 for one that has none."""
    from pyspark.sql import functions as F

    of_codes = {CODES[state]: value for state, value in values.items()}
    return F.get(F.array(*(F.lit(of_codes.get(number, 0)).cast("bigint") for number in range(32))), code)


def outcome_column(state: Column) -> Column:
    """What a state means for the message: delivered, dead, removed, or NULL while it lives."""
    from pyspark.sql import functions as F

    (first, outcome), *others = OUTCOMES.items()
    return reduce(
        lambda found, each: found.when(state == each[0], each[1]), others, F.when(state == first, outcome)
    )
