"""What cannot be, or should not: the records that show it.

Made for tables of a thousand million rows that are nearly all clean. Most is seen by looking at each row
alone or at sums; only what does not add up there is put in order and looked at record by record.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from functools import reduce
from operator import or_
from types import MappingProxyType

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from remuda.lake.chain import CHAIN_WEIGHTS, weight_column
from remuda.lake.schemas import ANOMALIES
from remuda.lifecycle import COMMAND_MOVES, ENDED_STATUSES, JOB_MOVES, CommandStatus, State
from remuda.transition import to_ms


class Anomaly(StrEnum):
    """The kinds. A record shows one of the first four at most: the first, where it would show several.

    `gap` and `duplicate` are about a number of a trail, `stopped` is about a message.
    """

    AFTER_END = "after_end"
    ILLEGAL_MOVE = "illegal_move"
    BROKEN_CHAIN = "broken_chain"
    CLOCK_BACKWARDS = "clock_backwards"
    GAP = "gap"
    DUPLICATE = "duplicate"
    STOPPED = "stopped"


ANOMALY_MEANINGS: Mapping[Anomaly, str] = MappingProxyType(
    {
        Anomaly.AFTER_END: "something happened to a message that had ended, other than its replay or removal",
        Anomaly.ILLEGAL_MOVE: "a move that the lifecycle does not know",
        Anomaly.BROKEN_CHAIN: "a record leaves another state than the one before it entered, or adds again "
        "what still lived",
        Anomaly.CLOCK_BACKWARDS: "a record is more than a second older than the one before it of its message",
        Anomaly.GAP: "numbers of a trail that no record has",
        Anomaly.DUPLICATE: "a number of a trail that more than one record has",
        Anomaly.STOPPED: "a message stays with a worker or on its way for longer than any deadline allows",
    }
)

_LEGAL = [
    *((left and left.value, entered.value) for left, entered in JOB_MOVES),
    *((left and left.value, entered.value) for left, entered in COMMAND_MOVES),
]
_LEAVABLE = {left for left, _ in _LEGAL}
_ENDS = sorted({State.COMPLETED.value, State.FAILED.value, State.REMOVED.value, *ENDED_STATUSES})
_FINAL = [state for state in _ENDS if state not in _LEAVABLE]  # not even a replay leaves them

CLOCK_TOLERANCE = timedelta(seconds=1)
_TOLERANCE_MS = CLOCK_TOLERANCE // timedelta(milliseconds=1)
_ROUNDING_MS = 2  # moments and dwells are cut to whole milliseconds, each for itself

# A live worker renews its lease, and the jobs of a dead one are taken back within a minute: a day is only
# ever reached by a handler that runs so long, or where nobody recovers. A call and a device have seconds.
# What lies at the network server has long deadlines of its own: a pull task 48 hours, a pushed command, which
# may wait for a device that sleeps, 7 days (`Timings.max_age`, `Timings.held_for`).
STOPPED_AFTER: Mapping[str, timedelta] = MappingProxyType(
    {
        State.PROCESSING.value: timedelta(days=1),
        CommandStatus.SENT_TO_NS.value: timedelta(days=1),
        CommandStatus.SENT_TO_DEVICE.value: timedelta(days=1),
        CommandStatus.DELIVERED_TO_NS.value: timedelta(days=3),
    }
)
PUSH_HELD_AFTER = timedelta(days=8)
_PUSH_PREFIX = "LORAWAN:"  # how the key of a pushed device begins

_TRAIL = ("source", "queue")
_KEY = ("source", "queue", "message")
_BLOCK = 1 << 20  # numbers of a trail that are summed up together


# -- looking at each row alone


def row_anomalies(transitions: DataFrame) -> DataFrame:
    """`illegal_move` and `after_end`, as far as a record shows them by itself.

    Give it the new transitions, in any order; every row is looked at once.
    """
    left, entered = F.col("left"), F.col("entered")
    wrong = transitions.where(~_is_legal(left, entered))
    after_end = F.coalesce(left.isin(_ENDS), F.lit(False))
    went = F.concat(F.lit("went from "), left, F.lit(" to "), entered)
    detail = (
        F.when(left.isin(_FINAL), F.concat(went, F.lit(", though nothing leaves that end")))
        .when(after_end, F.concat(went, F.lit(", though a dead letter is only replayed or removed")))
        .when(left.isNull(), F.concat(F.lit("was added as "), entered, F.lit(", which no message is")))
        .otherwise(F.concat(went, F.lit(", which the lifecycle does not know")))
    )
    kind = F.when(after_end, F.lit(Anomaly.AFTER_END.value)).otherwise(F.lit(Anomaly.ILLEGAL_MOVE.value))
    return _anomalies(wrong, kind=kind, detail=F.coalesce(detail, F.lit("entered no state at all")))


def _is_legal(left: Column, entered: Column) -> Column:
    """Whether the lifecycle has that move; never NULL."""
    sources: dict[str, list[str]] = {}
    for was, now in _LEGAL:
        sources.setdefault(now, []).append(was or "")
    was_in = F.coalesce(left, F.lit(""))
    moves = ((entered == now) & was_in.isin(lefts) for now, lefts in sources.items())
    return F.coalesce(reduce(or_, moves), F.lit(False))


# -- looking at sums


def suspects(histories: DataFrame, open_histories: DataFrame | None = None) -> DataFrame:
    """The messages whose numbers do not add up: source, queue, message, first_seq, last_seq.

    Give it the histories that changed, and those that are open, for one of them may have been added again
    (without: those among the changed ones). A message may be named more than once.
    """
    odd = histories.where(_has_broken_chain() | _has_spent_too_long())
    # Every adding begins a life, so the one that it cut short stays open for ever.
    alive = histories if open_histories is None else open_histories
    cut_short = alive.where(F.col("outcome").isNull()).select(*_KEY, F.col("last_seq").alias("alive_at"))
    added_again = (
        histories.where(F.col("added_seq").isNotNull())
        .join(cut_short, [*_KEY])
        .where(F.col("added_seq") > F.col("alive_at"))
    )
    named = [*_KEY, "first_seq", "last_seq"]
    return odd.select(*named).unionByName(added_again.select(*named))


def _has_broken_chain() -> Column:
    """Whether `chain` does not come to the weight of the state that was reached.

    Records that are all there but stand in another order are not seen, for a sum has no order.
    """
    off = F.col("chain") - weight_column(F.col("state"))
    # Where the beginning was not seen, the weight of the state that the first record left is missing.
    beginnings = [-weight for weight in sorted(set(CHAIN_WEIGHTS.values()))]
    broken = F.when(F.col("added_seq").isNotNull(), off != 0).otherwise(~off.isin(beginnings))
    return F.coalesce(broken, F.lit(False))


def _has_spent_too_long() -> Column:
    """Whether the times in its states exceed the time that passed.

    A clock that ran backwards counts nothing for the state that it cut short, so the rest is too much. Where
    the beginning was not seen, the first record tells of a time before, and nothing can be said.
    """
    passed_ms = F.unix_millis("last_at") - F.unix_millis("first_at")
    too_long = F.col("dwell_ms") > passed_ms + _TOLERANCE_MS + _ROUNDING_MS * F.col("records")
    return F.coalesce(F.col("added_seq").isNotNull() & too_long, F.lit(False))


# -- looking at records in their order


def chain_anomalies(transitions: DataFrame) -> DataFrame:
    """`broken_chain`, `clock_backwards`, and the `after_end` that only its order shows (a second outcome).

    Give it every record of the suspects, old ones too, and keep what is of a new batch. What
    `row_anomalies` finds, and the second copy of a record, is not told again.
    """
    order = Window.partitionBy(*_KEY).orderBy("seq")
    before = F.lag(F.struct("seq", "at", "entered")).over(order)
    seen = transitions.withColumn("before", before).withColumn("kind", _chain_kind())
    was = F.concat(
        F.lit("the record before (number "),
        F.col("before.seq").cast("string"),
        F.lit(") entered "),
        F.col("before.entered"),
    )
    back_ms = F.unix_millis("before.at") - F.unix_millis("at")
    left, entered = F.col("left"), F.col("entered")
    detail = (
        F.when(
            F.col("kind") == Anomaly.CLOCK_BACKWARDS.value,
            F.concat(
                F.lit("is "),
                F.format_number(back_ms / 1000, 1),
                F.lit(" s older than the record before (number "),
                F.col("before.seq").cast("string"),
                F.lit(")"),
            ),
        )
        .when(left.isNull(), F.concat(F.lit("was added while it lived: "), was))
        .otherwise(F.concat(F.lit("went from "), left, F.lit(" to "), entered, F.lit(", but "), was))
    )
    return _anomalies(seen.where(F.col("kind").isNotNull()), kind=F.col("kind"), detail=detail)


def _chain_kind() -> Column:
    """What a record shows beside the one `before` it; NULL where they fit."""
    left, entered, last = F.col("left"), F.col("entered"), F.col("before.entered")
    was_over = last.isin(_ENDS)
    fits = (left.isNull() & was_over) | left.eqNullSafe(last)  # an ended message's id may be used again
    # A dead letter may have been replayed, and just the record of that be missing; not so before an outcome.
    outcome = left.isNotNull() & (last.isin(_FINAL) | (was_over & entered.isin(_ENDS)))
    is_back = F.unix_millis("before.at") - F.unix_millis("at") > _TOLERANCE_MS
    told = F.col("before").isNull() | (F.col("before.seq") == F.col("seq")) | ~_is_legal(left, entered)
    return (
        F.when(told, F.lit(None))
        .when(~fits & outcome, F.lit(Anomaly.AFTER_END.value))
        .when(~fits, F.lit(Anomaly.BROKEN_CHAIN.value))
        .when(is_back, F.lit(Anomaly.CLOCK_BACKWARDS.value))
    )


# -- looking at a trail's numbers


def gaps(spans: DataFrame, transitions: DataFrame) -> DataFrame:
    """`gap` and `duplicate`: what is missing in the numbers of each trail, and what is there more than once.

    Give it the new transitions, and as `spans` what the lake had before: source, queue, last_seq (no row for
    a trail that it did not know). Numbers are summed up by the million; those that do not come out are put
    in order.
    """
    blocks = _blocks(transitions).join(F.broadcast(spans.select(*_TRAIL, "last_seq")), [*_TRAIL], "left")
    in_order = Window.partitionBy(*_TRAIL).orderBy("block")
    earlier = F.max("high").over(in_order.rowsBetween(Window.unboundedPreceding, -1))
    had = F.coalesce(F.greatest(earlier, "last_seq"), F.lit(0).cast("bigint"))
    blocks = blocks.withColumn("had", had).withColumn(
        "is_first", earlier.isNull() & F.col("last_seq").isNull()
    )
    odd = blocks.where(~F.col("whole") | (F.col("low") <= F.col("had")))
    rows = (
        transitions.withColumn("block", _block())
        .join(F.broadcast(odd.select(*_TRAIL, "block", "had")), [*_TRAIL, "block"])
        .select(*transitions.columns, "block", "had")
    )
    return _holes_between(blocks).unionByName(_within(rows))


def _block() -> Column:
    return F.shiftright("seq", 20)


def _blocks(transitions: DataFrame) -> DataFrame:
    """Each block of a trail: its lowest and highest number, and whether all between stand there once.

    Count, sum and sum of squares come out for other numbers only if three are missing and three others are
    doubled, at just the right places.
    """
    place = F.col("seq") - F.col("block") * _BLOCK
    low, high = F.col("low") - F.col("block") * _BLOCK, F.col("high") - F.col("block") * _BLOCK
    whole = (
        (F.col("records") == high - low + 1)
        & (2 * F.col("sum") == (low + high) * F.col("records"))
        & (6 * F.col("squares") == _six_squares(high) - _six_squares(low - 1))
    )
    return (
        transitions.withColumn("block", _block())
        .groupBy(*_TRAIL, "block")
        .agg(
            F.count("*").alias("records"),
            F.min("seq").alias("low"),
            F.max("seq").alias("high"),
            F.sum(place).alias("sum"),
            F.sum(place * place).alias("squares"),
            F.min_by("at", "seq").alias("at"),
            F.min_by("batch", "seq").alias("batch"),
        )
        .withColumn("whole", whole)
    )


def _six_squares(number: Column) -> Column:
    """Six times the sum of the squares from 0 to a number."""
    return number * (number + 1) * (2 * number + 1)


def _holes_between(blocks: DataFrame) -> DataFrame:
    """Numbers that are missing before the first record of a block, or of all of them."""
    holes = blocks.where(F.col("low") > F.col("had") + 1)
    low = F.col("low").cast("string")
    trimmed = F.concat(
        F.lit("the trail begins at "),
        low,
        F.lit(": what was before had been trimmed when the lake began, or is lost"),
    )
    detail = F.when(F.col("is_first"), trimmed).otherwise(_missing_detail(F.col("had"), F.col("low")))
    return _gap_rows(holes, F.col("had"), F.col("low"), detail)


def _within(rows: DataFrame) -> DataFrame:
    """Numbers that are missing or doubled within a block."""
    order = Window.partitionBy(*_TRAIL, "block").orderBy("seq")
    previous, seq = F.col("previous"), F.col("seq")
    ordered = rows.withColumn("previous", F.lag("seq").over(order)).withColumn(
        "one_more", F.lag("seq", 2).over(order)
    )
    hole = F.greatest("previous", "had")
    # What stands before a block's first record is `_holes_between`'s.
    holes = ordered.where(previous.isNotNull() & (seq > hole + 1))
    is_known = seq <= F.col("had")
    # Each number once: of what is new at its second copy, of what was known at its first.
    again = ~is_known & seq.eqNullSafe(previous) & ~seq.eqNullSafe(F.col("one_more"))
    copies = ordered.where(again | (is_known & ~seq.eqNullSafe(previous)))
    number = seq.cast("string")
    detail = F.when(
        is_known, F.concat(F.lit("came again: the lake had number "), number, F.lit(" before, or passed it"))
    ).otherwise(F.concat(F.lit("more than one record has the number "), number))
    return _gap_rows(holes, hole, seq, _missing_detail(hole, seq)).unionByName(
        _anomalies(copies, kind=F.lit(Anomaly.DUPLICATE.value), detail=detail)
    )


def _missing_detail(had: Column, low: Column) -> Column:
    missing = low - had - 1
    return F.when(
        missing == 1, F.concat(F.lit("no record has the number "), (had + 1).cast("string"))
    ).otherwise(
        F.concat(
            F.lit("no record has the numbers from "),
            (had + 1).cast("string"),
            F.lit(" to "),
            (low - 1).cast("string"),
        )
    )


def _gap_rows(frame: DataFrame, had: Column, low: Column, detail: Column) -> DataFrame:
    """Gaps, each after the number `had` and before the record `low`, whose moment and batch it takes."""
    return frame.select(
        "source",
        "queue",
        F.lit(Anomaly.GAP.value).alias("kind"),
        F.lit(None).cast("string").alias("message"),
        (had + 1).alias("seq"),
        "at",
        F.lit(None).cast("string").alias("left"),
        F.lit(None).cast("string").alias("entered"),
        (low - had - 1).alias("missing"),
        detail.alias("detail"),
        "batch",
    )


# -- looking at the clock


def stopped(histories: DataFrame, now: datetime, after: timedelta | None = None) -> DataFrame:
    """`stopped`: messages that have been with a worker, or on their way, for longer than may be.

    Give it the open histories. Without `after` each state has its own limit (`STOPPED_AFTER`, and
    `PUSH_HELD_AFTER` for what a network server holds for a pushed device, or one that is not known).
    """
    state = F.col("state")
    if after is not None:
        limit_ms = F.lit(_ms(after)).cast("bigint")
    else:
        is_push = F.coalesce(F.col("device").startswith(_PUSH_PREFIX), F.lit(True))
        held = (state == CommandStatus.DELIVERED_TO_NS.value) & is_push
        limit_ms = F.when(held, F.lit(_ms(PUSH_HELD_AFTER)).cast("bigint"))
        for name, limit in STOPPED_AFTER.items():
            limit_ms = limit_ms.when(state == name, F.lit(_ms(limit)).cast("bigint"))
    age_ms = F.lit(to_ms(now)).cast("bigint") - F.unix_millis("last_at")
    detail = F.concat(
        F.lit("has been in "),
        state,
        F.lit(" for "),
        F.format_number(age_ms / F.lit(_ms(timedelta(hours=1))), 1),
        F.lit(" hours"),
    )
    still = histories.where(F.col("outcome").isNull() & state.isin(list(STOPPED_AFTER)) & (age_ms > limit_ms))
    return still.select(
        *_TRAIL,
        F.lit(Anomaly.STOPPED.value).alias("kind"),
        "message",
        F.col("last_seq").alias("seq"),
        F.col("last_at").alias("at"),
        F.lit(None).cast("string").alias("left"),
        state.alias("entered"),
        F.lit(None).cast("bigint").alias("missing"),
        detail.alias("detail"),
        "batch",
    )


def _ms(span: timedelta) -> int:
    return span // timedelta(milliseconds=1)


def _anomalies(records: DataFrame, *, kind: Column, detail: Column) -> DataFrame:
    """Rows of the table, each about one record."""
    return records.select(
        "source",
        "queue",
        kind.alias("kind"),
        "message",
        "seq",
        "at",
        "left",
        "entered",
        F.lit(None).cast("bigint").alias("missing"),
        detail.alias("detail"),
        "batch",
    ).select(*ANOMALIES.names)
