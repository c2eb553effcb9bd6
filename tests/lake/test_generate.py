"""The generator: what it makes could have been recorded by the engine, and its truth is true."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from pyspark.sql import Row, SparkSession

from remuda.errors import ConfigurationError
from remuda.lake.generate import Faults, Truth, generate, truth
from remuda.lake.generating.command_paths import bad_gateway_paths, outage_paths, pull_paths, push_paths
from remuda.lake.generating.faulty_paths import FAULTY
from remuda.lake.generating.job_paths import job_paths
from remuda.lake.generating.recipe import BAD_GATEWAYS, Recipe
from remuda.lake.schemas import TRANSITIONS
from remuda.lifecycle import COMMAND_MOVES, JOB_MOVES, CommandStatus, EndReason, Reason, State

START = datetime(2026, 1, 5, 6, 30, tzinfo=UTC)
WEEK = timedelta(days=7)
LEGAL = {(left and left.value, entered.value) for left, entered in (*JOB_MOVES, *COMMAND_MOVES)}
OUTCOMES = {
    "COMPLETED": "delivered",
    "DELIVERY_SUCCESSFUL": "delivered",
    "FAILED": "dead",
    "DELIVERY_FAILED": "dead",
    "REMOVED": "removed",
}


class Made:
    """What was generated, read once for all tests."""

    def __init__(self, spark: SparkSession) -> None:
        wish = {"transitions": 12_000, "start": START, "span": WEEK, "seed": 5, "source": "store", "batch": 7}
        frame = generate(spark, **wish)
        self.columns = frame.dtypes
        self.rows = sorted(frame.collect(), key=lambda row: (row.queue, row.seq))
        self.truth: Truth = truth(spark, **wish)
        self.by_message: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in self.rows:
            self.by_message[row.queue, row.message].append(row)


@pytest.fixture(scope="module")
def made(spark: SparkSession) -> Made:
    return Made(spark)


# -- the tables of paths, which need no Spark


def all_paths() -> list:
    tables = (job_paths(), push_paths(), bad_gateway_paths(), pull_paths(), outage_paths())
    return [path for table in tables for _, path in table]


def test_every_path_begins_with_an_adding_and_goes_on_by_legal_moves() -> None:
    for path in all_paths():
        assert path.steps[0].left is None
        assert all((step.left, step.entered) in LEGAL for step in path.steps), path
        assert all(one.entered == two.left for one, two in pairwise(path.steps))
        assert all(
            two.attempt - one.attempt in (0, 1) or two.reason == "replay" for one, two in pairwise(path.steps)
        )


def test_every_state_and_every_reason_of_a_death_is_on_some_path() -> None:
    steps = [step for path in all_paths() for step in path.steps]
    assert {step.entered for step in steps} == {*State, *CommandStatus}
    reasons = {step.reason for step in steps if step.entered in ("FAILED", "DELIVERY_FAILED")}
    assert reasons == {*Reason, *EndReason}
    last = {path.steps[-1].entered for path in all_paths() if path.late}
    assert last == {*State, *CommandStatus} - set(OUTCOMES)


@pytest.mark.parametrize("paths", [job_paths, push_paths, bad_gateway_paths, pull_paths, outage_paths])
def test_the_shares_of_a_table_come_to_one_and_its_usual_path_to_most(paths) -> None:
    shares = [share for share, _ in paths()]
    assert sum(shares) == pytest.approx(1.0)
    assert min(shares) > 0
    assert shares[0] == max(shares) or paths is outage_paths


@pytest.mark.parametrize("kind", FAULTY)
def test_a_faulty_path_shows_its_fault_in_one_record(kind: str) -> None:
    for variants in FAULTY[kind](Faults()):
        for path in variants:
            assert [step.mark for step in path.steps if step.mark] == [kind]
            illegal = [
                step for step in path.steps if (step.left, step.entered) not in LEGAL and not step.lost
            ]
            assert all(step.mark in ("illegal_move", "after_end") for step in illegal)


# -- what is made


def test_the_columns_are_those_of_the_table(made: Made) -> None:
    assert made.columns == [(column.name, column.type) for column in TRANSITIONS.columns]
    assert {(row.source, row.batch) for row in made.rows} == {("store", 7)}


def test_there_are_about_as_many_as_were_asked_for(made: Made) -> None:
    assert len(made.rows) == pytest.approx(12_000, rel=0.06)


def test_every_message_takes_a_legal_path_from_its_adding_on(made: Made) -> None:
    for records in made.by_message.values():
        assert records[0].left is None
        assert all((row.left, row.entered) in LEGAL for row in records)
        assert all(one.entered == two.left for one, two in pairwise(records))


def test_the_numbers_of_a_trail_have_no_gaps_and_go_by_time(made: Made) -> None:
    by_trail: dict[str, list[Row]] = defaultdict(list)
    for row in made.rows:
        by_trail[row.queue].append(row)
    assert set(by_trail) == {
        "emails", "payments", "reports", "housekeeping", "devices:north", "devices:south",
    }  # fmt: skip
    for rows in by_trail.values():
        assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
        assert all(one.at <= two.at for one, two in pairwise(rows))


def test_times_lie_in_the_span_and_dwells_are_the_times_between(made: Made) -> None:
    begin, end = (moment.astimezone().replace(tzinfo=None) for moment in (START, START + WEEK))
    for records in made.by_message.values():
        assert begin <= records[0].at
        assert records[-1].at <= end
        assert records[0].dwell_ms is None
        for one, two in pairwise(records):
            assert timedelta(milliseconds=two.dwell_ms) == two.at - one.at


def test_ids_look_like_ours_and_are_those_of_one_message_each(made: Made) -> None:
    births = [row for row in made.rows if row.left is None]
    assert len({row.message for row in births}) == len(births)
    alphabet = set("0123456789ABCDEFGHJKMNPQRSTVWXYZ")
    assert all(len(row.message) == 26 and set(row.message) <= alphabet for row in births)
    # The first ten letters are the time, so that ids are in the order of adding.
    in_order = sorted(births, key=lambda row: row.message)
    assert all(one.at <= two.at for one, two in pairwise(in_order))


def test_what_a_message_is_about_stands_on_the_record_of_its_adding_only(made: Made) -> None:
    about = ("name", "device", "lane", "gateway", "grid")
    for row in made.rows:
        told = [row[name] is not None for name in about]
        is_command = row.queue.startswith("devices:")
        assert told == ([row.left is None] + [row.left is None and is_command] * 4), row
        assert row.who


def test_the_truth_tells_what_became_of_each_queue(made: Made) -> None:
    told: dict[str, Counter[str]] = defaultdict(Counter)
    for (queue, _), records in made.by_message.items():
        told[queue].update(
            ["added", OUTCOMES.get(records[-1].entered, "live")] + ["records"] * len(records),
        )
    found = {row.queue: {key: value for key, value in row.asDict().items() if key != "queue"}
             for row in made.truth.queues.collect()}  # fmt: skip
    expected = ("records", "added", "delivered", "dead", "removed", "live")
    assert found == {queue: {name: counts[name] for name in expected} for queue, counts in told.items()}
    assert set(made.truth.counts.values()) == {0}


def test_it_looks_like_a_week_of_real_work(made: Made) -> None:
    jobs, commands, bad = Counter(), Counter(), Counter()
    for (queue, _), records in made.by_message.items():
        outcome = OUTCOMES.get(records[-1].entered, "live")
        if not queue.startswith("devices:"):
            jobs[outcome] += 1
        elif int(records[0].gateway[-1], 16) in BAD_GATEWAYS:
            bad[outcome] += 1
        else:
            commands[outcome] += 1
    assert jobs["delivered"] / jobs.total() > 0.95
    assert jobs["dead"]
    assert jobs["removed"]
    assert jobs["live"]
    assert commands["delivered"] / commands.total() > 0.93
    assert bad["dead"] / bad.total() > 3 * commands["dead"] / commands.total()
    hours = Counter(row.at.astimezone(UTC).hour for row in made.rows if row.left is None)
    assert hours[14] > 2.5 * hours[2]


# -- whatever the partitions


def test_the_same_wish_gives_the_same_rows_however_they_are_partitioned(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    wish = {"transitions": 1_500, "start": START, "span": WEEK, "faults": Faults(gap=2, duplicate=1)}
    in_one = generate(spark, **wish, partitions=1).collect()
    monkeypatch.setattr(Recipe, "blocks", 40)  # of time, each sorted by itself
    assert Counter(in_one) == Counter(generate(spark, **wish, partitions=5).collect())


def test_one_queue_or_one_fleet_alone_will_do_and_another_seed_gives_others(spark: SparkSession) -> None:
    week = {"transitions": 300, "start": START, "span": WEEK}
    queue = generate(spark, **week, queues=["only"], fleets=[])
    again = generate(spark, **week, queues=["only"], fleets=[], seed=1, source="another")
    fleet = generate(spark, **week, queues=[], fleets=["meters"])
    rows = queue.unionByName(again).unionByName(fleet).where("left IS NULL").collect()
    assert {row.queue for row in rows} == {"only", "devices:meters"}
    assert all((row.device is not None) == row.queue.startswith("devices:") for row in rows)
    ids = [{row.message for row in rows if row.source == source} for source in ("generated", "another")]
    assert not ids[0] & ids[1]


# -- wishes that cannot be


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"transitions": 0}, "transitions"),
        ({"queues": [], "fleets": []}, "at least one queue or fleet"),
        ({"queues": ["a", "a"]}, "differ in name"),
        ({"start": datetime(2026, 1, 5)}, "time zone"),  # noqa: DTZ001  # what is refused
        ({"span": timedelta(seconds=3)}, "span"),
        ({"partitions": 0}, "partitions"),
        ({"span": timedelta(days=1), "faults": Faults(stopped=1)}, "4 days"),
        ({"transitions": 100, "faults": Faults(gap=200)}, "200 faults do not fit"),
    ],
)
def test_a_wish_that_cannot_be_is_refused(wish: dict, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Recipe(**{"transitions": 1_000, "start": START, "span": WEEK, **wish})


@pytest.mark.parametrize("faults", [{"gap": -1}, {"lost": 0}, {"lost": 51}])
def test_faults_that_cannot_be_planted_are_refused(faults: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError):
        Faults(**faults)
