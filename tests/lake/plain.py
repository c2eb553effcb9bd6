"""Histories and measures in plain Python, straight from what their columns mean: what Spark has to equal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from remuda.lake.buckets import bucket_of, quantile
from remuda.lake.chain import CHAIN_WEIGHTS
from remuda.lake.schemas import COMMAND_STAGES, DIMENSIONS, HISTORIES, JOB_STAGES, MEASURES, STAGES
from remuda.lifecycle import COMMAND_MOVES, JOB_MOVES
from remuda.transition import between_ms

Row = dict[str, Any]

LEGAL = {*JOB_MOVES, *COMMAND_MOVES}
OUTCOMES = {
    "COMPLETED": "delivered",
    "DELIVERY_SUCCESSFUL": "delivered",
    "FAILED": "dead",
    "DELIVERY_FAILED": "dead",
    "REMOVED": "removed",
}
PERIODS = {
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
}


# -- histories


def histories(transitions: Iterable[Row]) -> list[Row]:
    """One row for each life, in the order of `in_order`."""
    records: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in transitions:
        records[row["source"], row["queue"], row["message"]].append(row)
    return in_order(_history(life) for of_message in records.values() for life in _lives(of_message))


def in_order(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["source"], row["queue"], row["message"], row["first_seq"]))


def _lives(records: Iterable[Row]) -> list[list[Row]]:
    lives: list[list[Row]] = []
    for record in sorted(records, key=lambda record: int(record["seq"])):
        if record["left"] is None or not lives:
            lives.append([])
        lives[-1].append(record)
    return lives


def _history(life: Sequence[Row]) -> Row:
    first, last = life[0], life[-1]
    birth = first if first["left"] is None else {}
    is_command = first["queue"].startswith("devices:")
    outcome = OUTCOMES.get(last["entered"])
    added_at, ended_at = birth.get("at"), last["at"] if outcome else None
    entered = Counter(record["entered"] for record in life)
    moves = Counter((record["left"], record["entered"]) for record in life)
    history: Row = {
        **{name: first[name] for name in ("source", "queue", "message")},
        **{name: birth.get(name) for name in ("name", "device", "lane", "gateway", "grid")},
        "kind": "command" if is_command else "job",
        "added_seq": birth.get("seq"),
        "first_seq": first["seq"],
        "last_seq": last["seq"],
        "state": last["entered"] if last["entered"] in CHAIN_WEIGHTS else "UNKNOWN",
        "outcome": outcome,
        "reason": last["reason"],
        "added_at": added_at,
        "started_at": _earliest(life, "SENT_TO_NS" if is_command else "PROCESSING"),
        "ended_at": ended_at,
        "first_at": first["at"],
        "last_at": last["at"],
        "latency_ms": between_ms(added_at, ended_at) if added_at and ended_at else None,
        "attempts": max(record["attempt"] for record in life),
        "deliveries": entered["PROCESSING"] + entered["SENT_TO_NS"],
        "retries": entered["RETRYABLE"] + entered["TO_RETRY"],
        "recoveries": moves["PROCESSING", "PENDING"],
        "deaths": entered["FAILED"] + entered["DELIVERY_FAILED"],
        "replays": moves["FAILED", "PENDING"] + moves["DELIVERY_FAILED", "QUEUED"],
        "illegal": sum(count for move, count in moves.items() if move not in LEGAL),
        "records": len(life),
        "dwell_ms": sum(record["dwell_ms"] or 0 for record in life),
        "chain": sum(
            CHAIN_WEIGHTS.get(record["entered"], 0) - CHAIN_WEIGHTS.get(record["left"], 0) for record in life
        ),
        "batch": max(record["batch"] for record in life),
    }
    for stage in STAGES:
        own = stage in (COMMAND_STAGES if is_command else JOB_STAGES)
        spent = [record["dwell_ms"] for record in life if record["left"] == stage]
        history[f"{stage.lower()}_at"] = _earliest(life, stage) if own else None
        history[f"{stage.lower()}_ms"] = sum(spent) if own and spent else None
    return {name: history[name] for name in HISTORIES.names}


def _earliest(life: Sequence[Row], state: str) -> datetime | None:
    return min((record["at"] for record in life if record["entered"] == state), default=None)


# -- measures


def measures(histories: Iterable[Row], added: Iterable[Row]) -> list[Row]:
    """One row for each period of each thing measured, in the order of `measures_in_order`."""
    ended: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    births: Counter[tuple[Any, ...]] = Counter()
    for row in histories:
        if row["outcome"] is not None:
            for where in _wheres(row, row["ended_at"]):
                ended[where].append(row)
    for row in added:
        births.update(_wheres(row, row["at"]))
    return measures_in_order(_measure(where, ended[where], births[where]) for where in {*ended, *births})


def measures_in_order(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: [row[name] for name in MEASURES.names[:6]])


def _wheres(row: Row, at: datetime) -> list[tuple[Any, ...]]:
    """Everything for which a message counts."""
    midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
    return [
        (grain, at - (at - midnight) % length, dimension, row["source"], row["queue"], row[dimension])
        for grain, length in PERIODS.items()
        for dimension in DIMENSIONS
        if row[dimension] is not None
    ]


def _measure(where: tuple[Any, ...], ended: Sequence[Row], added: int) -> Row:
    outcomes = Counter(row["outcome"] for row in ended)
    delivered, dead = outcomes["delivered"], outcomes["dead"]
    latencies = [
        row["latency_ms"] for row in ended if row["outcome"] == "delivered" and row["latency_ms"] is not None
    ]
    histogram = Counter(bucket_of(latency) for latency in latencies)
    measure: Row = {
        **dict(zip(MEASURES.names[:6], where, strict=True)),
        "added": added,
        "ended": len(ended),
        "delivered": delivered,
        "dead": dead,
        "removed": outcomes["removed"],
        "delivery_rate": delivered / (delivered + dead) if delivered + dead else None,
        "per_second": len(ended) / PERIODS[where[0]].total_seconds(),
        "latency_mean_ms": sum(latencies) / len(latencies) if latencies else None,
        "latency_max_ms": max(latencies, default=None),
        "latency_histogram": [{"bucket": each, "count": histogram[each]} for each in sorted(histogram)],
    }
    for name, share in (("latency_p50_ms", 0.5), ("latency_p90_ms", 0.9), ("latency_p99_ms", 0.99)):
        told = quantile(histogram, share)
        measure[name] = None if told is None else min(told, measure["latency_max_ms"])
    for name in ("attempts", "deliveries", "retries", "replays"):
        measure[name] = sum(row[name] for row in ended)
    for stage in STAGES:
        spent = [row[f"{stage.lower()}_ms"] for row in ended]
        known = [each for each in spent if each is not None]
        measure[f"{stage.lower()}_ms"] = sum(known) if known else None
    return {name: measure[name] for name in MEASURES.names}
