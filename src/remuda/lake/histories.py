"""Histories: the transitions of each message summed up in one row, and the rows of two batches joined.

Everything that is summed up is a number, for an aggregate over strings makes Spark sort. What is a string
comes afterwards: what a message is from the record of its adding, reasons from their hashes. Records are sent
to their message's partition once and summed up there; summing up before would gain nothing, for a part of a
trail holds few records of each message, and a sum is wider than a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from remuda.lake.chain import CHAIN_WEIGHTS
from remuda.lake.codes import (
    CODES,
    LEGAL_PAIRS,
    NOWHERE,
    by_code,
    code_column,
    name_column,
    outcome_column,
    pair,
)
from remuda.lake.schemas import HISTORIES, JOB_STAGES, STAGES
from remuda.stores.command_trail import trail_name

# The message first: where Spark sorts, it looks at the beginning of the first column before anything else,
# and sources and queues are alike.
KEY = ("message", "queue", "source")
_ABOUT = ("name", "device", "lane", "gateway", "grid")
_RECOVERED = pair("PROCESSING", "PENDING")
_REPLAYED = (pair("FAILED", "PENDING"), pair("DELIVERY_FAILED", "QUEUED"))
_HANDED_OVER = (CODES["PROCESSING"], CODES["SENT_TO_NS"])
_TO_RETRY = (CODES["RETRYABLE"], CODES["TO_RETRY"])
_DEAD = (CODES["FAILED"], CODES["DELIVERY_FAILED"])
# A job and a command are never the same message: their stages are summed up in the same places.
_PLACES: tuple[tuple[str, ...], ...] = (
    *zip(JOB_STAGES, ("QUEUED", "SENT_TO_NS", "TO_RETRY"), strict=True),
    ("DELIVERED_TO_NS",),
    ("SENT_TO_DEVICE",),
)


def histories_of(transitions: DataFrame) -> DataFrame:
    """One row of `HISTORIES` for each life of each message in `transitions` (rows of `TRANSITIONS`).

    Every record of adding begins a life, and a record belongs to the last life that had begun. Each record
    may stand there once only (`without_duplicates`). It looks for ids that lived more than once first, which
    takes as long again; who can do with being told afterwards takes `quick_histories`.
    """
    again = reborn_keys(transitions)
    once = transitions.join(again, [*KEY], "left_anti")
    more = transitions.join(again, [*KEY], "left_semi")
    return _told(_summed(once, KEY), once, KEY).unionByName(lives_of(more))


def quick_histories(transitions: DataFrame) -> DataFrame:
    """`histories_of` at its quickest, and a column `reborn`: True on rows that are wrong.

    They are those of ids that lived more than once. Where there are any, take `histories_of` instead.
    """
    summed = _summed(transitions, KEY).withColumn("reborn", _is_reborn())
    return _told(summed, transitions, KEY, "reborn")


def reborn_keys(transitions: DataFrame) -> DataFrame:
    """The messages (`KEY`) that were added more than once, or that have records before their adding."""
    born_as = F.when(F.col("left").isNull(), F.col("seq")).alias("born_as")
    counted = (
        transitions.select(*KEY, "seq", born_as)
        .repartition(*KEY)
        .groupBy(*KEY)
        .agg(
            F.count("born_as").alias("births"),
            F.min("seq").alias("first_seq"),
            F.max("born_as").alias("added_seq"),
        )
    )
    return counted.where(_is_reborn()).select(*KEY)


def _is_reborn() -> Column:
    births = F.col("births")
    return (births > 1) | ((births == 1) & (F.col("added_seq") > F.col("first_seq")))


def lives_of(transitions: DataFrame) -> DataFrame:
    """`histories_of` for ids that may all have lived more than once: puts every record to its life first."""
    until_now = (
        Window.partitionBy(*KEY).orderBy("seq").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    begun = F.max(F.when(F.col("left").isNull(), F.col("seq"))).over(until_now)
    of_lives = (*KEY, "added_seq")
    return _told(_summed(transitions.withColumn("added_seq", begun), of_lives), transitions, of_lives)


def without_duplicates(transitions: DataFrame) -> DataFrame:
    """Each record once, as it came first, where a number of a trail may stand there more than once."""
    copies = Window.partitionBy("source", "queue", "seq").orderBy("batch")
    numbered = transitions.withColumn("copy", F.row_number().over(copies))
    return numbered.where(F.col("copy") == 1).drop("copy")


def duplicated_trails(transitions: DataFrame) -> DataFrame:
    """The trails (source, queue) in which a number stands more than once, and how many records too many.

    Numbers are set as bits, 64 to a row, so that whole trails cost little; nothing is missed.
    """
    is_there = F.call_function("shiftleft", F.lit(1).cast("bigint"), (F.col("seq") % 64).cast("int"))
    blocks = (
        transitions.select("source", "queue", F.shiftright("seq", 6).alias("block"), is_there.alias("bit"))
        .groupBy("source", "queue", "block")
        .agg(F.count("*").alias("records"), F.bit_or("bit").alias("bits"))
    )
    too_many = F.col("records") - F.bit_count("bits")
    doubled = blocks.where(too_many > 0)
    return doubled.groupBy("source", "queue").agg(F.sum(too_many).alias("too_many"))


# -- summing up


def _summed(transitions: DataFrame, by: Sequence[str]) -> DataFrame:
    """The numbers of each message, or of each life of it."""
    left, entered = code_column(F.col("left"), when_null=NOWHERE), code_column(F.col("entered"))
    attempts = F.coalesce("attempt", F.lit(0)).cast("bigint")
    narrow = transitions.select(
        *by,
        *(name for name in ("seq", "dwell_ms", "batch") if name not in by),
        F.unix_micros("at").alias("at"),
        (F.shiftleft(attempts, 10) + left * 32 + entered).alias("code"),
        F.when(F.col("reason").isNotNull(), F.xxhash64("reason")).alias("why"),
    ).repartition(*by)
    code = F.col("code")
    rows = narrow.withColumns(
        {
            "move": code.bitwiseAND(1023).cast("int"),
            "was": F.shiftright(code, 5).bitwiseAND(31).cast("int"),
            "now": code.bitwiseAND(31).cast("int"),
        }
    )
    sums = [*_sums(), *(each for place, _ in enumerate(_PLACES) for each in _stage_sums(place))]
    if "added_seq" not in by:
        sums.append(F.max(F.when(F.col("was") == NOWHERE, F.col("seq"))).alias("added_seq"))
    return rows.groupBy(*by).agg(*sums)


def _sums() -> list[Column]:
    seq, at, was, now, move = (F.col(name) for name in ("seq", "at", "was", "now", "move"))

    def counted(condition: Column, name: str) -> Column:
        return F.count(F.when(condition, 1)).cast("int").alias(name)

    return [
        F.count("*").cast("int").alias("records"),
        F.min("seq").alias("first_seq"),
        F.max("seq").alias("last_seq"),
        F.min_by(at, seq).alias("first_at"),
        F.max_by(at * 32 + now, seq).alias("last"),
        F.max_by("why", seq).alias("why"),
        F.max(F.shiftright("code", 10)).cast("int").alias("attempts"),
        F.sum(F.coalesce("dwell_ms", F.lit(0).cast("bigint"))).alias("dwell_ms"),
        F.sum(by_code(CHAIN_WEIGHTS, now) - by_code(CHAIN_WEIGHTS, was)).alias("chain"),
        F.max("batch").alias("batch"),
        counted(was == NOWHERE, "births"),
        F.min(F.when(was == NOWHERE, at)).alias("added_at"),
        counted(now.isin(*_HANDED_OVER), "deliveries"),
        counted(now.isin(*_TO_RETRY), "retries"),
        counted(move == _RECOVERED, "recoveries"),
        counted(now.isin(*_DEAD), "deaths"),
        counted(move.isin(*_REPLAYED), "replays"),
        counted(~move.isin(*LEGAL_PAIRS), "illegal"),
    ]


def _stage_sums(place: int) -> tuple[Column, Column]:
    """When the stages of a place were first entered, and how long messages were in them."""
    codes = [CODES[stage] for stage in _PLACES[place]]
    return (
        F.min(F.when(F.col("now").isin(*codes), F.col("at"))).alias(f"at{place}"),
        F.sum(F.when(F.col("was").isin(*codes), F.col("dwell_ms"))).alias(f"ms{place}"),
    )


# -- rows of the table


def _told(summed: DataFrame, transitions: DataFrame, by: Sequence[str], *more: str) -> DataFrame:
    """Numbers with the strings that belong to them, as rows of the table (and `more` columns of theirs)."""
    births = transitions.where(F.col("left").isNull()).withColumn("added_seq", F.col("seq"))
    # Reasons are a vocabulary: few, whatever there is of messages.
    reasons = transitions.where(F.col("reason").isNotNull()).select("reason").distinct()
    reasons = reasons.select("reason", F.xxhash64("reason").alias("why"))
    # By the columns that the sums are distributed by, so that they need not be sent round again.
    whole = summed.join(births.select(*by, *_ABOUT), [*by], "left").join(F.broadcast(reasons), "why", "left")
    whole = whole.withColumns(
        {
            "state": F.coalesce(name_column(F.col("last").bitwiseAND(31).cast("int")), F.lit("UNKNOWN")),
            "last_at": F.shiftright("last", 5),
        }
    ).withColumn("outcome", outcome_column(F.col("state")))
    columns = {name: F.col(name) for name in (*HISTORIES.names, *more) if name in whole.columns}
    columns |= _moments() | _stages()
    columns["kind"] = F.when(_is_command(), "command").otherwise("job")
    columns["latency_ms"] = _latency_ms(columns["added_at"], columns["ended_at"])
    return whole.select(*(columns[name].alias(name) for name in (*HISTORIES.names, *more)))


def _is_command() -> Column:
    return F.col("queue").startswith(trail_name(""))


def _moments() -> dict[str, Column]:
    """The columns of a moment, as timestamps."""
    micros = {name: F.col(name) for name in ("added_at", "first_at", "last_at")}
    micros["started_at"] = F.col(f"at{_place_of('PROCESSING')}")
    micros["ended_at"] = F.when(F.col("outcome").isNotNull(), F.col("last_at"))
    return {name: F.timestamp_micros(value) for name, value in micros.items()}


def _place_of(stage: str) -> int:
    return next(place for place, stages in enumerate(_PLACES) if stage in stages)


def _stages() -> dict[str, Column]:
    """The columns of the stages, each from its place if the message is of that kind."""
    columns = {}
    for stage in STAGES:
        place = _place_of(stage)
        own = ~_is_command() if stage in JOB_STAGES else _is_command()
        columns[f"{stage.lower()}_at"] = F.when(own, F.timestamp_micros(f"at{place}"))
        columns[f"{stage.lower()}_ms"] = F.when(own, F.col(f"ms{place}"))
    return columns


def _latency_ms(added_at: Column, ended_at: Column) -> Column:
    """Whole milliseconds; never negative, for clocks differ a little (as in `transition.between_ms`)."""
    spent = F.call_function("div", F.unix_micros(ended_at) - F.unix_micros(added_at), F.lit(1000))
    return F.when(spent < 0, F.lit(0).cast("bigint")).otherwise(spent)


# -- two batches


_LATER = ("last_seq", "state", "outcome", "reason", "ended_at", "last_at")
_EARLIEST = ("started_at", *(f"{stage.lower()}_at" for stage in STAGES))
_GREATEST = ("attempts", "batch")
_ADDED_UP = (
    *(f"{stage.lower()}_ms" for stage in STAGES),
    *("deliveries", "retries", "recoveries", "deaths", "replays", "illegal", "records", "dwell_ms", "chain"),
)


def merge_histories(known: DataFrame, news: DataFrame) -> DataFrame:
    """`histories_of` all records, from the rows `known` so far and those of the records after them (`news`).

    A new row without a record of adding goes on with the known life of its message that came last; every
    other one is a life of its own. What is known and does not go on stays as it is.
    """
    in_turn = Window.partitionBy(*KEY).orderBy("last_seq")
    is_last = F.lead("last_seq").over(in_turn).isNull()
    old = known.select(
        *(F.col(name).alias(f"old_{name}") for name in HISTORIES.names), is_last.alias("is_last")
    )
    new = news.select(*(F.col(name).alias(f"new_{name}") for name in HISTORIES.names))
    same = reduce(and_, (F.col(f"old_{name}") == F.col(f"new_{name}") for name in KEY))
    both = old.join(new, same & F.col("is_last") & F.col("new_added_seq").isNull(), "full")
    merged = both.select(
        *(_merged(name).alias(name) for name in HISTORIES.names if name != "latency_ms")
    ).withColumn("latency_ms", _latency_ms(F.col("added_at"), F.col("ended_at")))
    return merged.select(*HISTORIES.names)


def _merged(name: str) -> Column:
    """One column of a row that both know, or that one of them has."""
    old, new = F.col(f"old_{name}"), F.col(f"new_{name}")
    if name in _EARLIEST:
        return F.least(old, new)
    if name in _GREATEST:
        return F.greatest(old, new)
    if name in _ADDED_UP:
        return F.coalesce(old + new, old, new)
    if name in _LATER:
        return F.when(F.col("new_message").isNotNull(), new).otherwise(old)
    return F.when(F.col("old_message").isNotNull(), old).otherwise(new)
