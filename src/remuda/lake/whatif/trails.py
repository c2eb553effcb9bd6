"""A message's records side by side: what the players read, and what they write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from remuda.lake.schemas import arrow_type
from remuda.transition import to_ms

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

_LIFE = ("source", "queue", "message", "first_seq")  # what tells one life of a message from all others

# One row for each message: as it was, and as it would have been.
ROWS = """
    source string, queue string, message string, first_seq bigint, name string,
    recorded_outcome string, recorded_reason string, recorded_attempts int, recorded_retries int,
    recorded_latency_ms bigint, recorded_minutes array<bigint>,
    outcome string, reason string, attempts int, retries int, latency_ms bigint, minutes array<bigint>,
    played boolean, evidence int, at_worst boolean, at_best boolean
"""
ROW_NAMES = tuple(column.split()[0] for column in ROWS.split(","))

DELIVERED = "delivered"
DEAD = "dead"
NO_END = "no_end"  # the reason of a message that a policy without a limit would try for ever


class Record(NamedTuple):
    """One state change, with its time in milliseconds since 1970."""

    left: str | None
    entered: str
    at_ms: int
    attempt: int
    reason: str | None


class Message(NamedTuple):
    """What is known of a message that is to live again."""

    source: str
    queue: str
    message: str
    first_seq: int
    name: str | None
    device: str | None
    lane: str | None
    outcome: str
    reason: str | None
    retries: int
    added_ms: int
    started_ms: int | None
    latency_ms: int | None
    records: list[Record]


class Lived(NamedTuple):
    """How a message fared: as recorded, or in another try. Minutes are those in which attempts began."""

    outcome: str
    reason: str | None
    attempts: int
    retries: int
    latency_ms: int | None
    minutes: list[int]


def minutes_of(moments: Sequence[datetime]) -> list[int]:
    """The minutes since 1970 of some moments."""
    return [to_ms(moment) // 60_000 for moment in moments]


class Verdict(NamedTuple):
    """Both, what the second rests on, and whether it is delivered at worst and at best."""

    recorded: Lived
    tried: Lived
    evidence: int
    at_worst: bool
    at_best: bool


def outcome_column() -> Column:
    """`delivered` or `dead`. A dead letter that was dropped later had died all the same."""
    from pyspark.sql import functions as F

    dropped = (F.col("outcome") == "removed") & (F.col("deaths") > F.col("replays"))
    return F.when(dropped, DEAD).otherwise(F.col("outcome"))


def is_whole() -> Column:
    """Whether a history is one to ask about: ended by delivery or death, seen from its adding, in order."""
    from pyspark.sql import functions as F

    ended = F.coalesce(outcome_column().isin(DELIVERED, DEAD), F.lit(False))
    return ended & F.col("added_at").isNotNull() & (F.coalesce(F.col("illegal"), F.lit(0)) == 0)


def count_left_out(histories: DataFrame, trails: DataFrame) -> dict[str, int]:
    """How many messages nothing is asked about, and why; also those of whom records are gone."""
    from pyspark.sql import functions as F

    ended = F.coalesce(outcome_column().isin(DELIVERED, DEAD), F.lit(False))
    why = F.when(F.col("outcome").isNull(), "live").when(~ended, "removed").when(~is_whole(), "incomplete")
    lost = trails.select(F.when(~F.col("all_there"), "incomplete").alias("why"))
    left_out = histories.select(why.alias("why")).unionByName(lost)
    counted = left_out.where("why IS NOT NULL").groupBy("why").count()
    return {row["why"]: row["count"] for row in counted.collect()}


def unplayed_rows(histories: DataFrame, attempts: Column) -> DataFrame:
    """Rows of messages that would have fared as they did."""
    from pyspark.sql import functions as F

    minute = F.floor(F.unix_seconds("started_at") / 60)
    minutes = F.when(attempts > 0, F.array_compact(F.array(minute))).otherwise(
        F.array().cast("array<bigint>")
    )
    lived = {
        "outcome": outcome_column(),
        "reason": F.when(outcome_column() == DEAD, F.col("reason")),
        "attempts": attempts.cast("int"),
        "retries": F.col("retries").cast("int"),
        "latency_ms": F.when(F.col("outcome") == DELIVERED, F.col("latency_ms")),
        "minutes": minutes,
    }
    is_delivered = F.col("outcome") == DELIVERED
    columns = {
        **{name: F.col(name) for name in (*_LIFE, "name")},
        **{f"recorded_{name}": column for name, column in lived.items()},
        **lived,
        "played": F.lit(False),
        "evidence": F.lit(0),
        "at_worst": is_delivered,
        "at_best": is_delivered,
    }
    return histories.select(*(columns[name].alias(name) for name in ROW_NAMES))


def with_records(histories: DataFrame, transitions: DataFrame) -> DataFrame:
    """Histories with their records in order, as `records`; `all_there` where none of them is missing."""
    from pyspark.sql import functions as F

    record = F.struct(
        "seq", "left", "entered", F.unix_millis("at").alias("at_ms"), "dwell_ms", "attempt", "reason"
    )
    key = ("source", "queue", "message")
    moves = transitions.select(*(F.col(name).alias(f"of_{name}") for name in key), record.alias("record"))
    messages = histories.select(
        *_LIFE,
        "last_seq",
        F.col("records").alias("expected"),
        "name",
        "device",
        "lane",
        outcome_column().alias("outcome"),
        F.when(outcome_column() == DEAD, F.col("reason")).alias("reason"),
        F.col("retries").cast("int"),
        F.unix_millis("added_at").alias("added_ms"),
        F.unix_millis("started_at").alias("started_ms"),
        "latency_ms",
    )
    # Left: a message whose records are gone is counted, not forgotten.
    same = [F.col(name) == F.col(f"of_{name}") for name in key]
    of_this_life = F.col("record.seq").between(F.col("first_seq"), F.col("last_seq"))
    joined = messages.join(moves, [*same, of_this_life], "left")
    kept = [name for name in messages.columns if name not in _LIFE]
    return (
        joined.groupBy(*_LIFE, *kept)
        .agg(F.sort_array(F.collect_list("record")).alias("records"))
        .select(*_LIFE, *kept, "records", (F.size("records") == F.col("expected")).alias("all_there"))
    )


def play(trails: DataFrame, player: Callable[[Message], Verdict]) -> DataFrame:
    """The rows of messages that live again. `player` is pure; it goes to Spark's Python workers."""
    names = [name for name in Message._fields if name != "records"]
    return trails.select(*names, "records").mapInArrow(partial(_play_batches, player), ROWS)


def _play_batches(
    player: Callable[[Message], Verdict], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.num_rows:
            yield _written([(message, player(message)) for message in _messages(batch)])


def _messages(batch: pa.RecordBatch) -> Iterator[Message]:
    """Column by column into plain values: a row at a time would take most of the time."""
    records = batch.column(batch.num_columns - 1)
    inner = records.flatten()
    fields = [inner.field(name).to_pylist() for name in Record._fields]
    flat = [Record(*values) for values in zip(*fields, strict=True)]
    columns = [batch.column(place).to_pylist() for place in range(batch.num_columns - 1)]
    ends = records.value_lengths().to_pylist()
    start = 0
    for values, length in zip(zip(*columns, strict=True), ends, strict=True):
        yield Message._make((*values, flat[start : start + length]))
        start += length


def _written(played: list[tuple[Message, Verdict]]) -> pa.RecordBatch:
    import pyarrow as pa

    rows: list[tuple[Any, ...]] = [
        (
            *(message.source, message.queue, message.message, message.first_seq, message.name),
            *verdict.recorded,
            *verdict.tried,
            *(True, verdict.evidence, verdict.at_worst, verdict.at_best),
        )
        for message, verdict in played
    ]
    columns = [
        pa.array(column, type=kind) for column, kind in zip(zip(*rows, strict=True), _types(), strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(ROW_NAMES))


def _types() -> list[pa.DataType]:
    return [arrow_type(column.split()[1]) for column in ROWS.split(",")]
