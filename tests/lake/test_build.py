"""Tables are brought up to date batch by batch, and come out as if they had been made at once."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from remuda.lake.build import build
from remuda.lake.generate import Faults, generate, truth
from remuda.lake.histories import histories_of
from remuda.lake.measures import measures_of
from remuda.lake.place import Lake
from remuda.lake.schemas import HISTORIES, MEASURES
from tests.lake.batches import frame, put

START = datetime(2026, 3, 2, 6, tzinfo=UTC)
WISH = {"transitions": 2_000, "start": START, "span": timedelta(days=2), "seed": 5}
FAULTS = Faults(illegal_move=3, gap=2, stopped=2, after_end=2, clock_backwards=3, broken_chain=2)
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
    return generate(spark, **WISH, faults=Faults()).cache()


def test_batch_by_batch_the_tables_come_out_as_if_made_at_once(
    whole: DataFrame, spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(str(tmp_path))
    for rows in _batches(whole, 2):
        put(lake, rows)
        built = build(lake, spark, now=LATER)
    assert built.batch == 2
    names = [name for name in HISTORIES.names if name != "batch"]
    _same(lake.histories.read(spark), histories_of(whole), names)
    histories = lake.histories.read(spark)
    _same(lake.measures.read(spark), measures_of(histories, whole), MEASURES.names)
    assert histories.where("replays > 0 AND outcome = 'delivered'").count() > 0
    before = {name: table.version() for name, table in lake.tables.items()}
    assert build(lake, spark, now=LATER).histories == 0
    assert {name: table.version() for name, table in lake.tables.items()} == before


def test_killed_between_any_two_steps_the_tables_are_the_same(
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
    names = [name for name in HISTORIES.names if name != "batch"]
    _same(lake.histories.read(spark), histories_of(whole), names)
    _same(lake.measures.read(spark), measures_of(lake.histories.read(spark), whole), MEASURES.names)


def test_planted_faults_are_found_exactly(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    # Long enough for what was planted at its beginning to have stopped by its end, and for nothing else.
    wish = {**WISH, "transitions": 4_000, "span": timedelta(days=12), "faults": FAULTS}
    faulty = generate(spark, **wish).cache()
    true = truth(spark, **wish)
    for rows in _batches(faulty, 2):
        put(lake, rows)
        build(lake, spark, now=START + wish["span"])
    found = lake.anomalies.read(spark)
    planted = [name for name, number in true.counts.items() if number]
    assert len(planted) == 6
    counts = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
    assert counts == {name: true.counts[name] for name in planted}
    columns = ["source", "queue", "kind", "message", "seq", "missing"]
    _same(found, true.affected, columns)


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


def test_an_id_that_is_used_again_is_another_life(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    put(
        lake,
        frame(spark, [*_life("a", 1, START, *DONE), *_life("a", 4, START + timedelta(hours=1), *DONE[:2])]),
    )
    build(lake, spark, now=LATER)
    end = _life("a", 6, START + timedelta(hours=1), ("PROCESSING", "COMPLETED", 20))
    put(lake, frame(spark, [*end, *_life("a", 7, START + timedelta(hours=2), *DONE)]))
    build(lake, spark, now=LATER)
    rows = lake.histories.read(spark).orderBy("added_seq").collect()
    assert [(row["added_seq"], row["last_seq"], row["records"], row["outcome"]) for row in rows] == [
        (1, 3, 3, "delivered"),
        (4, 6, 3, "delivered"),
        (7, 9, 3, "delivered"),
    ]
    assert lake.anomalies.read(spark).count() == 0


def test_a_letter_that_is_replayed_days_later_leaves_the_day_of_its_death(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(str(tmp_path))
    died = (*DONE[:2], ("PROCESSING", "FAILED", 5))
    put(lake, frame(spark, [*_life("a", 1, START, *died), *_life("b", 4, START, *died)]))
    build(lake, spark, now=LATER)
    day = 86_400
    again = [("FAILED", "PENDING", 3 * day), ("PENDING", "PROCESSING", 1), ("PROCESSING", "COMPLETED", 1)]
    put(lake, frame(spark, _life("a", 7, START + timedelta(seconds=15), *again)))
    built = build(lake, spark, now=LATER)
    assert built.days == ["2026-03-02", "2026-03-05"]
    rows = {row["message"]: row for row in lake.histories.read(spark).collect()}
    assert len(rows) == 2
    a = rows["a"]
    assert (a["outcome"], a["deaths"], a["replays"], a["deliveries"], a["records"]) == (
        "delivered",
        1,
        1,
        2,
        6,
    )
    assert a["latency_ms"] == (3 * day + 17) * 1000
    assert str(a["ended_on"]) == "2026-03-05"
    measured = (
        lake.measures.read(spark).where("grain = 'day' AND dimension = 'queue'").orderBy("period").collect()
    )
    assert [(row["added"], row["delivered"], row["dead"]) for row in measured] == [(2, 0, 1), (0, 1, 0)]


def test_records_that_come_twice_count_once(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    put(lake, frame(spark, [*_life("a", 1, START, *DONE), *_life("a", 1, START, *DONE)[1:]]))
    build(lake, spark, now=LATER)
    (row,) = lake.histories.read(spark).collect()
    assert (row["records"], row["processing_ms"], row["deliveries"]) == (3, 5_000, 1)
    assert {each["kind"] for each in lake.anomalies.read(spark).collect()} == {"duplicate"}


def test_a_message_that_is_added_again_while_it_lives_is_an_anomaly(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(str(tmp_path))
    put(lake, frame(spark, _life("a", 1, START, *DONE[:2])))
    build(lake, spark, now=START + timedelta(minutes=1))
    put(lake, frame(spark, _life("a", 3, START + timedelta(minutes=1), *DONE[:1])))
    build(lake, spark, now=START + timedelta(minutes=2))
    found = [(row["kind"], row["message"], row["seq"]) for row in lake.anomalies.read(spark).collect()]
    assert found == [("broken_chain", "a", 3)]
