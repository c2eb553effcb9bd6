"""Anomalies: every fault that was planted is found where it was planted, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from remuda.lake.anomalies import (
    ANOMALY_MEANINGS,
    STOPPED_AFTER,
    Anomaly,
    chain_anomalies,
    gaps,
    row_anomalies,
    stopped,
    suspects,
)
from remuda.lake.chain import CHAIN_WEIGHTS
from remuda.lake.histories import lives_of
from remuda.lake.schemas import ANOMALIES, HISTORIES, TRANSITIONS
from remuda.lifecycle import CommandStatus, State

START = datetime(2026, 1, 5, tzinfo=UTC)
KEY = ["source", "queue", "message"]
SPANS = "source string, queue string, last_seq bigint"
Found = tuple[Any, ...]


def transitions(spark: SparkSession, rows: Iterable[tuple[Any, ...]]) -> DataFrame:
    """Records of one queue from (seq, message, left, entered, seconds since the start)."""
    records = [
        {
            "source": "store", "queue": "emails", "seq": seq, "message": message, "left": left,
            "entered": entered, "at": START + timedelta(seconds=seconds), "attempt": 0, "batch": 1,
        }
        for seq, message, left, entered, seconds in rows
    ]  # fmt: skip
    names = TRANSITIONS.names
    filled = [tuple(record.get(name) for name in names) for record in records]
    return spark.createDataFrame(filled, TRANSITIONS.spark_schema())


def test_all_of_them_give_the_columns_of_the_table(spark: SparkSession) -> None:
    rows = transitions(spark, [])
    histories = spark.createDataFrame([], HISTORIES.spark_schema())
    frames = (
        row_anomalies(rows),
        chain_anomalies(rows),
        gaps(spark.createDataFrame([], SPANS), rows),
        stopped(histories, START),
    )
    expected = [(column.name, column.type) for column in ANOMALIES.columns]
    assert [frame.dtypes for frame in frames] == [expected] * 4
    assert set(ANOMALY_MEANINGS) == {*Anomaly}


# -- a row alone


def test_a_record_shows_by_itself_a_move_that_cannot_be_or_comes_after_the_end(spark: SparkSession) -> None:
    moves = [
        (None, "PENDING"),
        ("PENDING", "PROCESSING"),
        ("FAILED", "PENDING"),
        ("FAILED", "REMOVED"),
        ("DELIVERY_FAILED", "QUEUED"),
        ("PENDING", "COMPLETED"),
        (None, "PROCESSING"),
        ("PROCESSING", "LOST"),
        ("QUEUED", "PROCESSING"),
        ("COMPLETED", "PROCESSING"),
        ("REMOVED", "PENDING"),
        ("DELIVERY_SUCCESSFUL", "DELIVERY_SUCCESSFUL"),
        ("FAILED", "COMPLETED"),
        ("DELIVERY_FAILED", "SENT_TO_NS"),
    ]
    rows = transitions(spark, [(seq, "m", *move, seq) for seq, move in enumerate(moves)])
    found = {row.seq: row for row in row_anomalies(rows).collect()}
    assert {seq: row.kind for seq, row in found.items()} == {
        5: "illegal_move", 6: "illegal_move", 7: "illegal_move", 8: "illegal_move",
        9: "after_end", 10: "after_end", 11: "after_end", 12: "after_end", 13: "after_end",
    }  # fmt: skip
    assert found[5].detail == "went from PENDING to COMPLETED, which the lifecycle does not know"
    assert found[6].detail == "was added as PROCESSING, which no message is"
    assert (
        found[12].detail == "went from FAILED to COMPLETED, though a dead letter is only replayed or removed"
    )


# -- sums


def test_weights_tell_apart_all_states_of_a_kind() -> None:
    assert set(CHAIN_WEIGHTS) == {*State, *CommandStatus}
    for kind in (State, CommandStatus):
        weights = [CHAIN_WEIGHTS[state] for state in kind]
        assert len(set(weights)) == len(weights)
        assert 0 not in weights


CHAINS = {
    # Straight through; a replay; an id that is used again after its end.
    "whole": [(None, "PENDING", 0), ("PENDING", "PROCESSING", 1), ("PROCESSING", "COMPLETED", 2)],
    "replayed": [
        (None, "PENDING", 0), ("PENDING", "PROCESSING", 1), ("PROCESSING", "FAILED", 2),
        ("FAILED", "PENDING", 90), ("PENDING", "PROCESSING", 91), ("PROCESSING", "COMPLETED", 92),
    ],
    "used again": [
        (None, "PENDING", 0), ("PENDING", "REMOVED", 1), (None, "PENDING", 2), ("PENDING", "PROCESSING", 3),
    ],
    # A clock that is a little off; a beginning that was trimmed.
    "a little back": [(None, "PENDING", 10), ("PENDING", "PROCESSING", 9.2), ("PROCESSING", "COMPLETED", 12)],
    "no beginning": [("PROCESSING", "RETRYABLE", 0), ("RETRYABLE", "PROCESSING", 9)],
    # What is wrong: the number of the record, and what it shows.
    "second outcome": [
        (None, "PENDING", 0), ("PENDING", "PROCESSING", 1), ("PROCESSING", "COMPLETED", 2),
        ("PROCESSING", "FAILED", 3),
    ],
    "added again": [(None, "PENDING", 0), ("PENDING", "PROCESSING", 1), (None, "PENDING", 2),
                    ("PENDING", "PROCESSING", 3), ("PROCESSING", "COMPLETED", 4)],
    "replay is missing": [
        (None, "PENDING", 0), ("PENDING", "PROCESSING", 1), ("PROCESSING", "FAILED", 2),
        ("PENDING", "PROCESSING", 9),
    ],
    "broken without beginning": [("PROCESSING", "RETRYABLE", 0), ("PENDING", "PROCESSING", 9)],
    "back and forth": [
        (None, "PENDING", 60), ("PENDING", "PROCESSING", 0), ("PROCESSING", "COMPLETED", 90),
    ],
    "broken twice": [
        (None, "PENDING", 0), ("RETRYABLE", "PROCESSING", 1), ("PENDING", "PROCESSING", 2),
        ("PROCESSING", "COMPLETED", 3),
    ],
}  # fmt: skip
WRONG = {
    "second outcome": [(3, "after_end")],
    "added again": [(2, "broken_chain")],
    "replay is missing": [(3, "broken_chain")],
    "broken without beginning": [(1, "broken_chain")],
    "back and forth": [(1, "clock_backwards")],
    "broken twice": [(1, "broken_chain"), (2, "broken_chain")],
}


def chains(spark: SparkSession) -> DataFrame:
    """All chains in one trail, ten numbers to each, with the dwells that the engine would have written."""
    rows = [
        (10 * number + place, message, left, entered, seconds)
        for number, (message, steps) in enumerate(CHAINS.items())
        for place, (left, entered, seconds) in enumerate(steps)
    ]
    frame = transitions(spark, rows)
    at = {row[0]: row[4] for row in rows}
    dwells = [(seq, max(0, int(1000 * (at[seq] - at.get(seq - 1, at[seq]))))) for seq in at]
    spent = spark.createDataFrame(dwells, "seq bigint, dwell_ms bigint")
    return frame.drop("dwell_ms").join(spent, "seq").select(*TRANSITIONS.names)


def test_the_sums_name_the_messages_whose_order_is_wrong_and_the_order_names_the_record(
    spark: SparkSession,
) -> None:
    rows = chains(spark).cache()
    odd = suspects(lives_of(rows).cache()).select(*KEY).distinct()
    assert {row.message for row in odd.collect()} == set(WRONG)

    places = {message: 10 * number for number, message in enumerate(CHAINS)}
    expected = sorted(
        (kind, places[message] + place, message) for message, each in WRONG.items() for place, kind in each
    )
    doubled = rows.unionByName(rows.where("seq % 2 = 0"))  # copies are `gaps`' to tell
    found = chain_anomalies(doubled).collect()
    assert sorted((row.kind, row.seq, row.message) for row in found) == expected
    details = {row.message: row.detail for row in found}
    assert details["second outcome"] == (
        f"went from PROCESSING to FAILED, but the record before (number {places['second outcome'] + 2}) "
        "entered COMPLETED"
    )
    assert details["back and forth"] == (
        f"is 60.0 s older than the record before (number {places['back and forth']})"
    )
    rows.unpersist()


def test_a_message_that_an_earlier_batch_left_alive_is_known_by_the_open_histories(
    spark: SparkSession,
) -> None:
    before = transitions(spark, [(1, "m", None, "PENDING", 0), (2, "n", None, "PENDING", 0)])
    news = transitions(spark, [(3, "m", None, "PENDING", 5), (4, "other", None, "PENDING", 5)])
    found = suspects(lives_of(news), lives_of(before.unionByName(news)))
    assert {(row.message, row.first_seq, row.last_seq) for row in found.collect()} == {("m", 3, 3)}


# -- the numbers of a trail


BLOCK = 1 << 20


# What the lake had, the numbers that came, and what is told: the kind, the number, how many are missing.
TRAILS: list[tuple[int | None, list[int], list[Found]]] = [
    (None, [1, 2, 3], []),
    (10, [12, 11, 13], []),
    (None, [5, 6], [("gap", 1, 4)]),
    (10, [14, 15], [("gap", 11, 3)]),
    (None, [1, 2, 5, 6, 9], [("gap", 3, 2), ("gap", 7, 2)]),
    (None, [1, 2, 2, 3, 3, 3], [("duplicate", 2, None), ("duplicate", 3, None)]),
    (None, [1, 1, 4, 4], [("duplicate", 1, None), ("duplicate", 4, None), ("gap", 2, 2)]),
    (10, [9, 10, 11, 13], [("duplicate", 9, None), ("duplicate", 10, None), ("gap", 12, 1)]),
    (10, [9, 9, 11], [("duplicate", 9, None)]),
    (10, [8, 12], [("duplicate", 8, None), ("gap", 11, 1)]),
    (BLOCK - 3, [BLOCK - 2, BLOCK - 1, BLOCK, BLOCK + 1], []),
    (BLOCK - 3, [BLOCK - 2, BLOCK + 1], [("gap", BLOCK - 1, 2)]),
    (BLOCK - 3, [BLOCK - 2, 4 * BLOCK + 1], [("gap", BLOCK - 1, 3 * BLOCK + 2)]),
    (3 * BLOCK, [5, 3 * BLOCK + 1], [("duplicate", 5, None)]),
]


def test_what_is_missing_or_doubled_in_a_trail_is_told_once(spark: SparkSession) -> None:
    frames = [
        (seq, f"trail {place}", None, "PENDING", seq)
        for place, (_, numbers, _) in enumerate(TRAILS)
        for seq in numbers
    ]
    rows = transitions(spark, frames).withColumn("queue", F.col("message"))
    had = [("store", f"trail {place}", had) for place, (had, _, _) in enumerate(TRAILS) if had is not None]
    unknown = ("store", "a trail with nothing new", 17)
    found = gaps(spark.createDataFrame([*had, unknown], SPANS), rows).collect()
    for place, (_, _, expected) in enumerate(TRAILS):
        here = [row for row in found if row.queue == f"trail {place}"]
        assert sorted((row.kind, row.seq, row.missing or 0) for row in here) == [
            (kind, seq, missing or 0) for kind, seq, missing in expected
        ], TRAILS[place]
    details = {(row.queue, row.seq): row.detail for row in found}
    assert details["trail 2", 1] == (
        "the trail begins at 5: what was before had been trimmed when the lake began, or is lost"
    )
    assert details["trail 3", 11] == "no record has the numbers from 11 to 13"
    assert details["trail 7", 12] == "no record has the number 12"
    assert details["trail 5", 2] == "more than one record has the number 2"
    assert details["trail 7", 9] == "came again: the lake had number 9 before, or passed it"
    # A gap is dated by the record after it.
    gap = next(row for row in found if row.queue == "trail 3")
    assert gap.message is None
    assert gap.at.astimezone(UTC) == START + timedelta(seconds=14)


# -- the clock


def test_a_message_has_stopped_when_no_deadline_lets_it_stay_so_long(spark: SparkSession) -> None:
    now = START + timedelta(days=30)
    push, pull = "LORAWAN:00000000aa", "API_V1:470"
    days = [
        ("PROCESSING", None, 0.9, False),
        ("PROCESSING", None, 1.1, True),
        ("RETRYABLE", None, 20, False),
        ("PENDING", None, 20, False),
        ("SENT_TO_NS", push, 1.1, True),
        ("SENT_TO_DEVICE", push, 1.1, True),
        ("DELIVERED_TO_NS", push, 7.9, False),
        ("DELIVERED_TO_NS", push, 8.1, True),
        ("DELIVERED_TO_NS", None, 7.9, False),
        ("DELIVERED_TO_NS", pull, 2.9, False),
        ("DELIVERED_TO_NS", pull, 3.1, True),
        ("TO_RETRY", pull, 20, False),
    ]
    known = [
        {
            "source": "store", "queue": "q", "message": str(place), "last_seq": place, "state": state,
            "device": device, "last_at": now - timedelta(days=age), "batch": 3,
        }
        for place, (state, device, age, _) in enumerate(days)
    ]  # fmt: skip
    ended = {**known[1], "message": "ended", "outcome": "delivered"}
    filled = [tuple(each.get(name) for name in HISTORIES.names) for each in [*known, ended]]
    histories = spark.createDataFrame(filled, HISTORIES.spark_schema()).cache()

    found = {row.seq: row for row in stopped(histories, now).collect()}
    assert sorted(found) == [place for place, (_, _, _, is_so) in enumerate(days) if is_so]
    assert found[1].detail == "has been in PROCESSING for 26.4 hours"
    assert (found[1].message, found[1].entered, found[1].batch) == ("1", "PROCESSING", 3)
    assert found[1].at.astimezone(UTC) == now - timedelta(days=1.1)
    # One limit for all, where a caller names it.
    in_flight = [place for place, (state, *_) in enumerate(days) if state in STOPPED_AFTER]
    assert [
        row.seq for row in stopped(histories, now, timedelta(hours=1)).orderBy("seq").collect()
    ] == in_flight
    histories.unpersist()
