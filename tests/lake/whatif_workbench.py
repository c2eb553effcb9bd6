"""Trails as the tables of the lake have them, made in plain Python; and as the players get them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from remuda.lake.schemas import HISTORIES, TRANSITIONS
from remuda.lake.whatif import WhatIf
from remuda.lake.whatif.trails import Message, Record
from remuda.lifecycle import CommandStatus, State
from remuda.transition import Transition, to_ms


def lives_of(trail: Sequence[Transition]) -> list[list[Transition]]:
    lives: dict[tuple[str, str], list[Transition]] = defaultdict(list)
    for each in trail:
        lives[each.queue, each.message].append(each)
    return list(lives.values())


def history_of(life: Sequence[Transition]) -> dict[str, Any]:
    """One row of the histories, made in plain Python; only the columns that are read here."""
    first, last = life[0], life[-1]
    about = first.about or {}
    entered = [each.entered for each in life]
    moves = [(each.left, each.entered) for each in life]
    is_command = isinstance(last.entered, CommandStatus)
    outcome = {
        State.COMPLETED: "delivered",
        CommandStatus.DELIVERY_SUCCESSFUL: "delivered",
        State.FAILED: "dead",
        CommandStatus.DELIVERY_FAILED: "dead",
        State.REMOVED: "removed",
    }.get(last.entered)
    handed_over = (State.PROCESSING, CommandStatus.SENT_TO_NS)
    spent: dict[str, int] = defaultdict(int)
    for each in life[1:]:
        spent[f"{each.left}_ms".lower()] += (each.dwell or timedelta(0)) // timedelta(milliseconds=1)
    return {
        "source": "main",
        "queue": first.queue,
        "kind": "command" if is_command else "job",
        "message": first.message,
        "first_seq": first.seq,
        "last_seq": last.seq,
        "name": first.name,
        **{name: about.get(name) for name in ("device", "lane", "gateway", "grid")},
        "state": str(last.entered),
        "outcome": outcome,
        "reason": last.reason,
        "added_at": first.at if first.left is None else None,
        "started_at": next((each.at for each in life if each.entered in handed_over), None),
        "ended_at": last.at if outcome else None,
        "last_at": last.at,
        "latency_ms": to_ms(last.at) - to_ms(first.at) if outcome else None,
        "attempts": max(each.attempt for each in life),
        "deliveries": sum(each in handed_over for each in entered),
        "retries": sum(each in (State.RETRYABLE, CommandStatus.TO_RETRY) for each in entered),
        "deaths": sum(each in (State.FAILED, CommandStatus.DELIVERY_FAILED) for each in entered),
        "replays": sum(
            move
            in (
                (State.FAILED, State.PENDING),
                (CommandStatus.DELIVERY_FAILED, CommandStatus.QUEUED),
            )
            for move in moves
        ),
        "illegal": 0,
        "records": len(life),
        **spent,
    }


def frames(spark: SparkSession, trail: Sequence[Transition]) -> tuple[DataFrame, DataFrame]:
    histories = [history_of(life) for life in lives_of(trail)]
    rows = [
        {
            "source": "main",
            "queue": each.queue,
            "seq": each.seq,
            "message": each.message,
            "left": None if each.left is None else str(each.left),
            "entered": str(each.entered),
            "at": each.at,
            "dwell_ms": None if each.dwell is None else each.dwell // timedelta(milliseconds=1),
            "attempt": each.attempt,
            "reason": each.reason,
        }
        for each in trail
    ]
    return (
        spark.createDataFrame(
            [tuple(row.get(name) for name in HISTORIES.names) for row in histories], HISTORIES.spark_schema()
        ),
        spark.createDataFrame(
            [tuple(row.get(name) for name in TRANSITIONS.names) for row in rows], TRANSITIONS.spark_schema()
        ),
    )


def message_of(life: Sequence[Transition]) -> Message:
    """What Spark hands to the players, without Spark."""
    row = history_of(life)
    is_dropped = row["outcome"] == "removed" and row["deaths"] > row["replays"]
    outcome = "dead" if is_dropped else row["outcome"]
    return Message(
        *("main", row["queue"], row["message"], row["first_seq"], row["name"], row["device"], row["lane"]),
        outcome=outcome,
        reason=row["reason"] if outcome == "dead" else None,
        retries=row["retries"],
        added_ms=to_ms(life[0].at),
        started_ms=None,
        latency_ms=row["latency_ms"],
        records=[
            Record(
                None if each.left is None else str(each.left),
                str(each.entered),
                to_ms(each.at),
                each.attempt,
                each.reason,
            )
            for each in life
        ],
    )


def same_on_both_sides(told: WhatIf) -> None:
    """Nothing changes: neither the figures, nor any message by itself."""
    assert told.what_if == told.recorded
    assert told.changes == ()
    names = ("outcome", "attempts", "retries", "latency_ms", "reason", "minutes")
    differs = " OR ".join(f"NOT {name} <=> recorded_{name}" for name in names)
    assert told.rows.where(F.expr(differs)).collect() == []
