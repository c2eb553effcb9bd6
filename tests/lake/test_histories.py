"""Histories: one row for each life of each message, whatever the engine did to it and in how many batches."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from remuda.lake.histories import (
    duplicated_trails,
    histories_of,
    merge_histories,
    quick_histories,
    without_duplicates,
)
from remuda.lake.schemas import HISTORIES
from tests.lake import plain
from tests.lake.batches import flat
from tests.lake.duckdb_sql import histories_sql, rows_of_query
from tests.lake.lifecycles import Row, arrow_of, command_trail, job_trail, rows_of

START = datetime(2030, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
# Each example is a crowd of messages; a failing one is not made smaller, for that would take an hour.
EXAMPLES = settings(max_examples=1, phases=[Phase.generate])


# -- what the engine did


def frame_of(spark: SparkSession, rows: Sequence[Row]) -> DataFrame:
    return spark.createDataFrame(arrow_of(rows))


def collected(histories: DataFrame) -> list[Row]:
    assert histories.columns == HISTORIES.names
    return plain.in_order(histories.toArrow().to_pylist())


def in_batches(rows: Sequence[Row], cuts: Sequence[float]) -> list[list[Row]]:
    """The rows with the number of their batch; every trail is cut at these parts of its length."""
    last: dict[str, int] = {}
    for row in rows:
        last[row["queue"]] = max(row["seq"], last.get(row["queue"], 0))
    batches: list[list[Row]] = [[] for _ in range(len(cuts) + 1)]
    for row in rows:
        number = sum(row["seq"] > cut * last[row["queue"]] for cut in cuts)
        batches[number].append({**row, "batch": number + 1})
    return batches


def lived(seed: int) -> list[Row]:
    """Jobs and commands; and jobs of another store, whose queue and some ids have the same names."""
    return [
        *rows_of(job_trail(seed)),
        *rows_of(job_trail(seed + 1, steps=60), source="other"),
        *rows_of(command_trail(seed)),
    ]


@EXAMPLES
@given(seed=st.integers(0, 10_000), cuts=st.lists(st.floats(0.05, 0.95), min_size=2, max_size=2).map(sorted))
def test_histories_are_those_of_plain_python_in_one_batch_and_in_several(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, seed: int, cuts: list[float]
) -> None:
    batches = in_batches(lived(seed), cuts)
    rows = [row for batch in batches for row in batch]
    expected = plain.histories(rows)
    assert {row["outcome"] for row in expected} == {"delivered", "dead", "removed", None}
    assert len({(row["source"], row["queue"], row["message"]) for row in expected}) < len(expected)

    assert collected(histories_of(frame_of(spark, rows))) == expected

    known = histories_of(frame_of(spark, batches[0]))
    for batch in batches[1:]:
        kept = flat(known)
        known = merge_histories(kept, histories_of(frame_of(spark, batch)))
    assert collected(known) == expected

    assert from_duckdb(tmp_path_factory.mktemp("parquet"), rows) == expected


def from_duckdb(folder: Path, rows: Sequence[Row]) -> list[Row]:
    pq.write_table(arrow_of(rows), folder / "transitions.parquet")
    transitions = f"read_parquet('{folder / 'transitions.parquet'}')"
    return plain.in_order(rows_of_query(histories_sql(transitions, lives=True)))


# -- by hand


def story(message: str, *moves: str, **options: Any) -> list[Row]:
    """Records a second apart. A move is `PENDING>PROCESSING`; `>PENDING` adds it; `! reason` may follow."""
    rows = []
    for place, move in enumerate(moves):
        states, _, reason = move.partition(" ! ")
        left, _, entered = states.partition(">")
        about = {"name": "welcome", **options.get("about", {})} if not left else {}
        rows.append(
            {
                "source": "main",
                "queue": options.get("queue", "orders"),
                "seq": 0,
                "message": message,
                "left": left or None,
                "entered": entered,
                "at": START + place * SECOND,
                "dwell_ms": 1_000 if left else None,
                "attempt": place // 2,
                "reason": reason or None,
                "who": "worker-1",
                "batch": 1,
                **about,
            }
        )
    return rows


def numbered(*stories: Sequence[Row]) -> list[Row]:
    """The stories as one trail; the numbers of each story go up, and those of all are different."""
    return [
        {**row, "seq": 100 * number + place}
        for number, rows in enumerate(stories)
        for place, row in enumerate(rows, 1)
    ]


DONE = (">PENDING", "PENDING>PROCESSING", "PROCESSING>COMPLETED")
DEAD = (">PENDING", "PENDING>PROCESSING", "PROCESSING>FAILED ! rejected")
STORIES = [
    story("delivered", *DONE),
    story("dead", *DEAD),
    story("dropped", *DEAD, "FAILED>REMOVED ! dropped"),
    story("replayed", *DEAD, "FAILED>PENDING"),
    story("replayed and delivered", *DEAD, "FAILED>PENDING", *DONE[1:]),
    story("retried", *DONE[:2], "PROCESSING>RETRYABLE ! nack", "RETRYABLE>PROCESSING", DONE[2]),
    story("recovered", *DONE[:2], "PROCESSING>PENDING ! lease_expired", *DONE[1:]),
    story("used again", *DONE, *DEAD, *DONE[:1]),
    story("used again, begun before", "FAILED>REMOVED ! dropped", *DONE),
    story("begun before", *DONE[1:]),
    story("illegal", *DONE, "COMPLETED>PROCESSING", "PROCESSING>FAILED"),
    story("of tomorrow", *DONE[:2], "PROCESSING>PONDERING"),
    story(
        "pushed",
        ">QUEUED",
        "QUEUED>SENT_TO_NS",
        "SENT_TO_NS>TO_RETRY ! UNAVAILABLE",
        "TO_RETRY>QUEUED",
        "QUEUED>SENT_TO_NS",
        "SENT_TO_NS>DELIVERED_TO_NS",
        "DELIVERED_TO_NS>SENT_TO_DEVICE",
        "SENT_TO_DEVICE>DELIVERY_SUCCESSFUL",
        queue="devices:meters",
        about={"device": "LORAWAN:1", "lane": "network:7", "gateway": "gw-1", "grid": "7"},
    ),
    story("delivered", *DONE[:1], queue="other"),
    [
        {**row, "at": START - place * SECOND, "dwell_ms": row["dwell_ms"] and 0}
        for place, row in enumerate(story("backwards", *DONE))
    ],
]


@pytest.fixture(scope="module")
def told(spark: SparkSession) -> dict[str, list[Row]]:
    """The histories of all stories, by message, in the order of their lives."""
    rows = numbered(*STORIES)
    # Records stand in the table in any order.
    histories = collected(histories_of(frame_of(spark, rows[::-1])))
    assert histories == plain.histories(rows)
    of_message: dict[str, list[Row]] = {}
    for row in histories:
        of_message.setdefault(row["message"], []).append(row)
    return of_message


def at(seconds: float) -> datetime:
    return START + seconds * SECOND


def told_of(row: Row, **expected: Any) -> None:
    assert {name: row[name] for name in expected} == expected


def test_a_delivered_job_has_the_times_of_its_stages(told: dict[str, list[Row]]) -> None:
    mine, other = told["delivered"]
    told_of(
        mine, queue="orders", kind="job", name="welcome", state="COMPLETED", outcome="delivered", reason=None
    )
    told_of(mine, added_at=at(0), started_at=at(1), ended_at=at(2), last_at=at(2), latency_ms=2_000)
    told_of(mine, pending_at=at(0), processing_at=at(1), retryable_at=None, queued_at=None)
    told_of(mine, pending_ms=1_000, processing_ms=1_000, retryable_ms=None, queued_ms=None, dwell_ms=2_000)
    told_of(
        mine, records=3, deliveries=1, retries=0, recoveries=0, deaths=0, replays=0, illegal=0, attempts=1
    )
    told_of(other, queue="other", state="PENDING", records=1)


def test_an_ended_message_that_is_replayed_is_open_again(told: dict[str, list[Row]]) -> None:
    (dead,), (replayed,), (delivered,) = (
        told[name] for name in ("dead", "replayed", "replayed and delivered")
    )
    told_of(dead, outcome="dead", reason="rejected", deaths=1, replays=0, latency_ms=2_000, ended_at=at(2))
    told_of(replayed, outcome=None, reason=None, deaths=1, replays=1, latency_ms=None, ended_at=None)
    told_of(replayed, state="PENDING", last_at=at(3), pending_at=at(0))
    told_of(delivered, outcome="delivered", deaths=1, replays=1, latency_ms=5_000, deliveries=2)
    (dropped,) = told["dropped"]
    told_of(dropped, outcome="removed", reason="dropped", deaths=1, replays=0, latency_ms=3_000)


def test_retries_and_recoveries_are_counted(told: dict[str, list[Row]]) -> None:
    (retried,), (recovered,) = told["retried"], told["recovered"]
    told_of(
        retried, retries=1, deliveries=2, recoveries=0, retryable_ms=1_000, processing_ms=2_000, reason=None
    )
    told_of(recovered, retries=0, deliveries=2, recoveries=1, retryable_ms=None, pending_ms=2_000)


def test_every_adding_begins_a_life(told: dict[str, list[Row]]) -> None:
    first, second, third = told["used again"]
    told_of(first, outcome="delivered", records=3, added_seq=first["first_seq"], name="welcome")
    told_of(second, outcome="dead", reason="rejected", records=3, added_at=at(3), latency_ms=2_000)
    told_of(third, outcome=None, state="PENDING", records=1, added_at=at(6), last_seq=third["added_seq"])
    before, after = told["used again, begun before"]
    told_of(
        before, added_seq=None, added_at=None, name=None, outcome="removed", latency_ms=None, reason="dropped"
    )
    told_of(after, added_seq=before["last_seq"] + 1, outcome="delivered", latency_ms=2_000, name="welcome")


def test_a_message_whose_adding_was_not_seen_has_a_history_all_the_same(told: dict[str, list[Row]]) -> None:
    (row,) = told["begun before"]
    told_of(row, added_seq=None, added_at=None, name=None, first_at=at(0), pending_at=None, pending_ms=1_000)
    told_of(row, outcome="delivered", ended_at=at(1), latency_ms=None, records=2)


def test_moves_that_the_lifecycle_does_not_know_are_counted(told: dict[str, list[Row]]) -> None:
    told_of(told["illegal"][0], illegal=1, outcome="dead", deaths=1, records=5)
    told_of(told["of tomorrow"][0], illegal=1, state="UNKNOWN", outcome=None)


def test_a_command_has_its_own_stages_and_what_it_is_about(told: dict[str, list[Row]]) -> None:
    (row,) = told["pushed"]
    told_of(row, kind="command", device="LORAWAN:1", lane="network:7", gateway="gw-1", grid="7")
    told_of(row, outcome="delivered", latency_ms=7_000, deliveries=2, retries=1, started_at=at(1))
    told_of(row, queued_ms=2_000, sent_to_ns_ms=2_000, to_retry_ms=1_000, delivered_to_ns_ms=1_000)
    told_of(row, sent_to_device_at=at(6), sent_to_device_ms=1_000, pending_at=None, pending_ms=None)


def test_the_order_of_records_is_that_of_their_numbers_whatever_the_clock_says(
    told: dict[str, list[Row]],
) -> None:
    (row,) = told["backwards"]
    told_of(row, first_at=at(0), last_at=at(-2), ended_at=at(-2), state="COMPLETED", latency_ms=0)


def test_the_quick_way_tells_which_ids_lived_more_than_once(spark: SparkSession) -> None:
    rows = numbered(*STORIES)
    quick = quick_histories(frame_of(spark, rows)).toArrow().to_pylist()
    wrong = {row["message"] for row in quick if row.pop("reborn")}
    assert wrong == {"used again", "used again, begun before"}
    right = [row for row in plain.histories(rows) if row["message"] not in wrong]
    assert plain.in_order(row for row in quick if row["message"] not in wrong) == right


def test_a_record_that_stands_there_twice_counts_once(spark: SparkSession) -> None:
    rows = numbered(*STORIES[:3])
    gone = [row for row in rows if row["seq"] != 102]  # a gap must not hide the copy
    again = {**rows[1], "batch": 2}
    doubled = frame_of(spark, [again, *gone])
    assert duplicated_trails(doubled).collect() == [("main", "orders", 1)]
    assert duplicated_trails(frame_of(spark, gone)).collect() == []
    assert collected(histories_of(without_duplicates(doubled))) == plain.histories(gone)


def test_new_records_go_on_with_the_last_life_of_their_message(spark: SparkSession) -> None:
    before = numbered(story("twice", *DEAD, *DEAD), story("dead", *DEAD), story("still", *DONE[:1]))
    later = [
        story("twice", "FAILED>PENDING", *DONE[1:], *DONE[:1]),
        story("dead", "FAILED>REMOVED ! dropped"),
        story("unknown", *DONE[1:]),
        story("new", *DONE),
    ]
    after = [{**row, "seq": row["seq"] + 1_000, "batch": 2} for row in numbered(*later)]
    known, news = (histories_of(frame_of(spark, rows)) for rows in (before, after))
    merged = collected(merge_histories(known, news))
    assert merged == plain.histories([*before, *after])
    lives = [row for row in merged if row["message"] == "twice"]
    assert [(row["outcome"], row["records"], row["batch"]) for row in lives] == [
        ("dead", 3, 1),
        ("delivered", 6, 2),
        (None, 1, 2),
    ]


def test_nothing_gives_nothing(spark: SparkSession) -> None:
    empty = frame_of(spark, [])
    assert collected(merge_histories(histories_of(empty), histories_of(empty))) == []
    assert duplicated_trails(empty).collect() == []
