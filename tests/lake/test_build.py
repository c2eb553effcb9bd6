"""Tables are brought up to date batch by batch, and come out as if they had been made at once."""

from __future__ import annotations

import itertools
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.testing import assertDataFrameEqual

from remuda.lake.anomalies import Anomaly
from remuda.lake.build import build
from remuda.lake.generate import Faults, generate, truth
from remuda.lake.histories import histories_of
from remuda.lake.measures import measures_of
from remuda.lake.place import Lake
from remuda.lake.schemas import HISTORIES, MEASURES
from tests.lake.batches import flat, frame, put

START = datetime(2026, 3, 2, 6, tzinfo=UTC)
WISH = {"transitions": 2_000, "start": START, "span": timedelta(days=2), "seed": 5}
FAULTS = Faults(
    illegal_move=3, after_end=2, broken_chain=2, clock_backwards=3, duplicate=4, gap=2, stopped=2, lost=3
)
LATER = START + timedelta(days=60)


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours catches it."""


def _batches(whole: DataFrame, pieces: int) -> list[DataFrame]:
    """The rows cut by time, as an ingest at intervals would have brought them; every trail in order."""
    step = WISH["span"] / pieces * 1.05
    bounds = [START + step * number for number in range(1, pieces)]
    edges = [None, *bounds, None]
    cut = []
    for low, high in itertools.pairwise(edges):
        rows = whole if low is None else whole.where(whole["at"] >= low)
        cut.append(rows if high is None else rows.where(rows["at"] < high))
    return cut


def _same(actual: DataFrame, expected: DataFrame, names: list[str]) -> None:
    assertDataFrameEqual(actual.select(*names), expected.select(*names))


@pytest.fixture(scope="module")
def whole(spark: SparkSession) -> DataFrame:
    return flat(generate(spark, **WISH, faults=Faults()))


def test_killed_between_any_two_steps_the_tables_come_out_as_if_made_at_once(
    whole: DataFrame, spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(str(tmp_path))
    first, second = _batches(whole, 2)
    put(lake, first)
    build(lake, spark, now=LATER)
    put(lake, second)
    steps: list[str] = []
    fatal = 0
    while True:
        count = 0

        def step(name: str, fatal: int = fatal) -> None:
            nonlocal count
            if count == fatal:
                steps.append(name)
                raise Killed
            count += 1

        try:
            build(lake, spark, now=LATER, on_step=step)
            break
        except Killed:
            # What was done before stays done: the next run has fewer steps before the one to die at.
            fatal = 0 if steps[-1].endswith("committed") else fatal + 1
    assert len(set(steps)) == 12, steps
    histories = lake.histories.read(spark)
    _same(histories, histories_of(whole), [name for name in HISTORIES.names if name != "batch"])
    _same(lake.measures.read(spark), measures_of(histories, whole), MEASURES.names)
    assert histories.where("replays > 0 AND outcome = 'delivered'").count() > 0
    assert lake.anomalies.read(spark).where("kind <> 'stopped'").count() == 0

    before = {name: table.version() for name, table in lake.tables.items()}
    assert build(lake, spark, now=LATER).histories == 0
    assert {name: table.version() for name, table in lake.tables.items()} == before


def test_planted_faults_are_found_exactly(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    # Long enough for what was planted at its beginning to have stopped by its end, and for nothing else.
    wish = {**WISH, "transitions": 4_000, "span": timedelta(days=12), "faults": FAULTS}
    faulty = flat(generate(spark, **wish))
    true = truth(spark, **wish)
    for rows in _batches(faulty, 2):
        put(lake, rows)
        build(lake, spark, now=START + wish["span"])
    found = lake.anomalies.read(spark).collect()
    assert Counter(row["kind"] for row in found) == true.counts
    assert {row["kind"] for row in found} == {*Anomaly}
    assert {row["queue"].startswith("devices:") for row in found} == {True, False}
    assert all(row["detail"] and row["at"] for row in found)
    assert {_where(row) for row in found} == {_where(row) for row in true.affected.collect()}


def _where(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in ("source", "queue", "kind", "message", "seq", "missing"))


def _life(
    message: str, seq: int, at: datetime, *moves: tuple[str | None, str, int]
) -> list[dict[str, object]]:
    rows = []
    for place, (left, entered, after) in enumerate(moves):
        at += timedelta(seconds=after)
        rows.append(
            {
                "source": "main",
                "queue": "q",
                "seq": seq + place,
                "message": message,
                "left": left,
                "entered": entered,
                "at": at,
                "dwell_ms": None if left is None else after * 1000,
                "attempt": 0,
                "name": "n" if left is None else None,
                "batch": 1,
            }
        )
    return rows


DONE = ((None, "PENDING", 0), ("PENDING", "PROCESSING", 10), ("PROCESSING", "COMPLETED", 5))


DIED = (*DONE[:2], ("PROCESSING", "FAILED", 5))
HOUR, DAY = timedelta(hours=1), 86_400
AGAIN = (("FAILED", "PENDING", 3 * DAY), ("PENDING", "PROCESSING", 1), ("PROCESSING", "COMPLETED", 1))


@pytest.fixture(scope="module")
def lives(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Five messages in two batches: `twice`, `replayed`, `dead`, `recorded twice` and `added again`."""
    lake = Lake(str(tmp_path_factory.mktemp("lives")))
    first = [
        *_life("twice", 1, START, *DONE),
        *_life("twice", 4, START + HOUR, *DONE[:2]),
        *_life("replayed", 6, START, *DIED),
        *_life("dead", 9, START, *DIED),
        *_life("recorded twice", 12, START, *DONE),
        *_life("recorded twice", 12, START, *DONE)[1:],
        *_life("added again", 15, START, *DONE[:2]),
    ]
    put(lake, frame(spark, first))
    build(lake, spark, now=START + timedelta(minutes=1))
    second = [
        *_life("twice", 17, START + HOUR, ("PROCESSING", "COMPLETED", 20)),
        *_life("twice", 18, START + 2 * HOUR, *DONE),
        *_life("replayed", 21, START + timedelta(seconds=15), *AGAIN),
        *_life("added again", 24, START + timedelta(minutes=1), *DONE[:1]),
    ]
    put(lake, frame(spark, second))
    built = build(lake, spark, now=START + timedelta(minutes=2))
    assert built.days == ["2026-03-02", "2026-03-05"]
    return lake


def _histories(lake: Lake, spark: SparkSession, message: str) -> list[Row]:
    found = lake.histories.read(spark)
    return found.where(found["message"] == message).orderBy("added_seq").collect()


def test_an_id_that_is_used_again_is_another_life(lives: Lake, spark: SparkSession) -> None:
    rows = _histories(lives, spark, "twice")
    assert [(row["added_seq"], row["last_seq"], row["records"], row["outcome"]) for row in rows] == [
        (1, 3, 3, "delivered"),
        (4, 17, 3, "delivered"),
        (18, 20, 3, "delivered"),
    ]


def test_a_letter_that_is_replayed_days_later_leaves_the_day_of_its_death(
    lives: Lake, spark: SparkSession
) -> None:
    (row,) = _histories(lives, spark, "replayed")
    counted = ("outcome", "deaths", "replays", "deliveries", "records")
    assert [row[name] for name in counted] == ["delivered", 1, 1, 2, 6]
    assert row["latency_ms"] == (3 * DAY + 17) * 1000
    assert str(row["ended_on"]) == "2026-03-05"
    (still,) = _histories(lives, spark, "dead")
    assert (still["outcome"], str(still["ended_on"])) == ("dead", "2026-03-02")
    by_day = lives.measures.read(spark).where("grain = 'day' AND dimension = 'queue'").orderBy("period")
    told = [(row["added"], row["delivered"], row["dead"]) for row in by_day.collect()]
    # `twice` was added three times and ended as often, `added again` twice and never.
    assert told == [(8, 4, 1), (0, 1, 0)]


def test_records_that_come_twice_count_once(lives: Lake, spark: SparkSession) -> None:
    (row,) = _histories(lives, spark, "recorded twice")
    assert (row["records"], row["processing_ms"], row["deliveries"]) == (3, 5_000, 1)


def test_nothing_else_is_odd_about_them(lives: Lake, spark: SparkSession) -> None:
    found = lives.anomalies.read(spark).collect()
    assert {(row["kind"], row["message"], row["seq"]) for row in found} == {
        ("duplicate", "recorded twice", 13),
        ("duplicate", "recorded twice", 14),
        ("broken_chain", "added again", 24),
    }
