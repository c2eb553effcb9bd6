"""The answer: how messages fared and how they would have, side by side, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from remuda.lake.buckets import bucket_column, quantile
from remuda.lake.whatif.survival import Evidence
from remuda.lake.whatif.trails import DELIVERED, Message, Verdict, count_left_out, play

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_CHANGES = 10
_SIDES = ("recorded_", "")


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """How messages fared. Latencies are from adding to delivery, of those delivered, within 1.6 %."""

    messages: int
    delivered: int
    dead: int
    delivery_rate: float | None
    latency_p50_ms: int | None
    latency_p90_ms: int | None
    latency_p99_ms: int | None
    attempts: int
    attempts_per_message: float | None
    retries: int
    peak_per_minute: int
    peak_at: datetime | None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of one queue and name: delivered and attempts, as recorded and as tried."""

    queue: str
    name: str | None
    messages: int
    recorded_delivered: int
    delivered: int
    recorded_attempts: int
    attempts: int


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """Messages as recorded, and under what was tried.

    left_out    messages that nothing was asked about: `live`, `removed`, `incomplete`
    played      messages that went through the engine's rules; the others could not fare differently
    between     in time: decided by the nearer of two recorded attempts that went differently
    estimated   decided by how others of their kind fared at such an attempt
    no_data     came to an attempt that no recorded message ever made; it counts as failed
    unexplained  commands whose record is not what the rules make of it under `base`; they stay as they are
    delivered_at_least, delivered_at_most   if all that is not known had gone badly, or well
    changes     queues and names, those with the largest change first
    rows        a DataFrame with a row for each message
    """

    kind: str
    model: str
    seed: int
    recorded: Side
    what_if: Side
    left_out: dict[str, int]
    played: int
    between: int
    estimated: int
    no_data: int
    unexplained: int
    delivered_at_least: int
    delivered_at_most: int
    changes: tuple[Change, ...]
    rows: Any  # a DataFrame; it is worked out anew each time that it is used

    def figures(self) -> dict[str, Any]:
        """All but the rows, as plain values: what goes into JSON."""
        figures = {name: getattr(self, name) for name in self.__struct_fields__ if name != "rows"}
        plain: dict[str, Any] = msgspec.to_builtins(figures)
        return plain


def answer(
    histories: DataFrame,
    trails: DataFrame,
    *,
    unplayed: DataFrame,
    player: Callable[[Message], Verdict],
    kind: str,
    model: str,
    seed: int,
) -> WhatIf:
    """Play what has to be played, and count."""
    rows = unplayed.unionByName(play(trails.where("all_there"), player))
    left_out = count_left_out(histories, trails)
    played = play(trails.where("all_there"), player).persist()
    try:
        return _counted(unplayed.unionByName(played), rows, left_out, kind=kind, model=model, seed=seed)
    finally:
        played.unpersist()


def _counted(
    rows: DataFrame, to_keep: DataFrame, left_out: dict[str, int], *, kind: str, model: str, seed: int
) -> WhatIf:
    groups = _by_name(rows)
    latencies = _latencies(rows)
    peaks = _peaks(rows)
    total = {name: sum(group[name] for group in groups) for name in _SUMS}
    recorded, tried = (_side(total, side, latencies[side], peaks[side]) for side in _SIDES)
    return WhatIf(
        kind=kind,
        model=model,
        seed=seed,
        recorded=recorded,
        what_if=tried,
        left_out=left_out,
        played=total["played"],
        between=total["between"],
        estimated=total["estimated"],
        no_data=total["no_data"],
        unexplained=total["unexplained"],
        delivered_at_least=total["at_worst"],
        delivered_at_most=total["at_best"],
        changes=_largest(groups),
        rows=to_keep,
    )


_SUMS = (
    *(f"{side}{name}" for side in _SIDES for name in ("delivered", "attempts", "retries")),
    *("messages", "played", "between", "estimated", "no_data", "unexplained", "at_worst", "at_best"),
)


def _by_name(rows: DataFrame) -> list[Row]:
    from pyspark.sql import functions as F

    sums = {f"{side}{name}": F.sum(f"{side}{name}") for side in _SIDES for name in ("attempts", "retries")}
    delivered = {f"{side}delivered": F.count_if(F.col(f"{side}outcome") == DELIVERED) for side in _SIDES}
    rests = {
        each.name.lower(): F.count_if(F.col("evidence") == each.value)
        for each in Evidence
        if each is not Evidence.RECORDED
    }
    flags = {name: F.count_if(name) for name in ("played", "at_worst", "at_best")}
    columns = {"messages": F.count("*"), **sums, **delivered, **rests, **flags}
    return rows.groupBy("queue", "name").agg(*(columns[name].alias(name) for name in _SUMS)).collect()


def _latencies(rows: DataFrame) -> dict[str, dict[int, int]]:
    """A histogram for each side, in one pass."""
    from pyspark.sql import functions as F

    buckets = [
        F.when(F.col(f"{side}outcome") == DELIVERED, bucket_column(F.col(f"{side}latency_ms"))).alias(
            f"{side}b"
        )
        for side in _SIDES
    ]
    histograms: dict[str, dict[int, int]] = {side: {} for side in _SIDES}
    for row in rows.select(*buckets).groupBy("recorded_b", "b").count().collect():
        for side, histogram in histograms.items():
            bucket = row[f"{side}b"]
            if bucket is not None:
                histogram[bucket] = histogram.get(bucket, 0) + row["count"]
    return histograms


def _peaks(rows: DataFrame) -> dict[str, tuple[int, datetime | None]]:
    """The minute with the most attempts, for each side."""
    from pyspark.sql import functions as F

    begun = {
        side: rows.select(F.explode(f"{side}minutes").alias("minute"), F.lit(side).alias("side"))
        for side in _SIDES
    }
    both = begun["recorded_"].unionByName(begun[""]).groupBy("side", "minute").count()
    most = both.groupBy("side").agg(
        F.max(F.struct("count", (-F.col("minute")).alias("earlier"))).alias("most")
    )
    peaks: dict[str, tuple[int, datetime | None]] = dict.fromkeys(_SIDES, (0, None))
    for row in most.collect():
        peaks[row["side"]] = (row["most"]["count"], _EPOCH + timedelta(minutes=-row["most"]["earlier"]))
    return peaks


def _side(
    total: dict[str, int], side: str, latencies: dict[int, int], peak: tuple[int, datetime | None]
) -> Side:
    messages, delivered, attempts = total["messages"], total[f"{side}delivered"], total[f"{side}attempts"]
    return Side(
        messages=messages,
        delivered=delivered,
        dead=messages - delivered,
        delivery_rate=delivered / messages if messages else None,
        latency_p50_ms=quantile(latencies, 0.5),
        latency_p90_ms=quantile(latencies, 0.9),
        latency_p99_ms=quantile(latencies, 0.99),
        attempts=attempts,
        attempts_per_message=attempts / messages if messages else None,
        retries=total[f"{side}retries"],
        peak_per_minute=peak[0],
        peak_at=peak[1],
    )


def _largest(groups: Iterable[Row]) -> tuple[Change, ...]:
    changes = [
        Change(**{name: group[name] for name in Change.__struct_fields__})
        for group in groups
        if group["delivered"] != group["recorded_delivered"]
        or group["attempts"] != group["recorded_attempts"]
    ]
    changes.sort(key=_weight, reverse=True)
    return tuple(changes[:_MOST_CHANGES])


def _weight(change: Change) -> tuple[int, int, str, str]:
    return (
        abs(change.delivered - change.recorded_delivered),
        abs(change.attempts - change.recorded_attempts),
        change.queue,
        change.name or "",
    )
