"""The trail becomes the table of transitions: everything, once, from every kind of store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from sqlalchemy import create_engine, text

from remuda import Queue
from remuda.devices.command import CommandType, Device, Gateway, Protocol
from remuda.devices.fleet import Fleet
from remuda.devices.sending import NewCommand
from remuda.errors import ConfigurationError
from remuda.lake.delta import LakeConflictError
from remuda.lake.ingest import Round, ingest, ingest_round, trim
from remuda.lake.place import Lake
from remuda.lake.status import status
from remuda.lake.trails import spans
from remuda.stores.contract import Store
from tests.lake.stores import on_store, work, worked


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours catches it."""


def _recorded(url: str) -> set[tuple[str, int, str, str]]:
    """What the store's own trail says: (queue, seq, message, state)."""

    async def read(store: Store) -> set[tuple[str, int, str, str]]:
        found = set()
        for trail in await store.trails():
            page = await store.transitions(trail, after=0, limit=1_000_000)
            found |= {(trail, each.seq, each.message, str(each.entered)) for each in page.transitions}
        return found

    recorded: set[tuple[str, int, str, str]] = on_store(url, read)
    return recorded


def _rows(frame: DataFrame) -> list[tuple[str, int, str, str]]:
    return [tuple(row) for row in frame.select("queue", "seq", "message", "entered").collect()]


def _rounds(lake: Lake, spark: SparkSession, url: str, **how: object) -> list[Round]:
    rounds: list[Round] = []
    ingest(lake, spark, url, source="main", on_round=rounds.append, **how)
    return rounds


async def _send(url: str) -> None:
    meter = Device(reference="47003333771", protocol=Protocol.API_V1, gateway=Gateway(id="gw-1"))
    async with Fleet(url, name="lagos") as fleet:
        await fleet.send(NewCommand(type=CommandType.READ_CREDIT, device=meter, grid="lagos-7"))


@pytest.mark.parametrize("store", ["sqlite", "postgres", "mariadb", "valkey"])
def test_everything_in_the_store_is_in_the_lake_once(
    store: str, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f"{store}_url")
    worked(url, "emails", 300, dead_every=7)
    worked(url, "bills", 20)
    asyncio.run(_send(url))
    lake = Lake(str(tmp_path / "lake"))
    # Rounds that are smaller than what is there, and tasks that begin inside an entry.
    rounds = _rounds(lake, spark, url, limit=400, tasks=3)
    assert len(rounds) == 3
    assert [each.batch for each in rounds] == [1, 2, 3]
    assert rounds[-1].behind == 0
    worked(url, "emails", 10)
    assert [each.transitions for each in _rounds(lake, spark, url)] == [30]
    assert _rounds(lake, spark, url) == []

    frame = lake.transitions.read(spark)
    rows = _rows(frame)
    assert len(rows) == len(set(rows)) == 991
    assert set(rows) == _recorded(url)
    (sent,) = frame.where("queue = 'devices:lagos'").collect()
    assert (sent["name"], sent["gateway"], sent["grid"]) == ("READ_CREDIT", "gw-1", "lagos-7")
    assert {(each.trail, each.behind, each.lost) for each in status(lake, url=url, source="main").trails} == {
        ("emails", 0, 0),
        ("bills", 0, 0),
        ("devices:lagos", 0, 0),
    }


STEPS = ["looking", "reading", "committing", "committed"]


@pytest.fixture
def filled(sqlite_url: str) -> str:
    worked(sqlite_url, "emails", 50)
    return sqlite_url


def test_killed_between_any_two_steps_it_goes_on_without_loss_or_repetition(
    filled: str, spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(str(tmp_path / "lake"))
    seen: list[str] = []
    for fatal in STEPS:

        def step(name: str, fatal: str = fatal) -> None:
            seen.append(name)
            if name == fatal:
                raise Killed

        with pytest.raises(Killed):
            ingest_round(lake, spark, filled, source="main", limit=40, on_step=step)
    assert list(dict.fromkeys(seen)) == STEPS
    _rounds(lake, spark, filled, limit=40)
    rows = _rows(lake.transitions.read(spark))
    assert len(rows) == 150
    assert set(rows) == _recorded(filled)


def test_two_ingests_at_once_bring_everything_once(filled: str, spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))

    def overtaken(name: str) -> None:
        if name == "committing":
            ingest_round(lake, spark, filled, source="main")

    with pytest.raises(LakeConflictError):
        ingest_round(lake, spark, filled, source="main", on_step=overtaken)
    assert len(_rows(lake.transitions.read(spark))) == 150
    assert _rounds(lake, spark, filled) == []


def test_only_what_the_lake_has_is_trimmed_and_what_was_lost_is_told(
    filled: str, spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(str(tmp_path / "lake"))
    ingest_round(lake, spark, filled, source="main", limit=60)
    assert trim(lake, filled, source="another") == {}
    # Whole entries: the next one reaches beyond 60.
    assert trim(lake, filled, source="main") == {"emails": 50}
    assert spans(filled)["emails"] == (51, 150)
    _rounds(lake, spark, filled)
    assert sorted(seq for _, seq, _, _ in _rows(lake.transitions.read(spark))) == list(range(1, 151))
    # Somebody else trims what was not ingested yet.
    worked(filled, "emails", 10)

    async def trim_all(store: Store) -> None:
        await store.trail_span("emails")  # gives numbers to what is new
        await store.trim_transitions("emails", up_to=160)

    on_store(filled, trim_all)
    (trail,) = status(lake, url=filled, source="main").trails
    assert (trail.behind, trail.lost) == (20, 10)
    assert [each.transitions for each in _rounds(lake, spark, filled)] == [20]


def test_an_entry_that_cannot_be_read_stops_the_ingest_or_is_passed_over(
    filled: str, spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(str(tmp_path / "lake"))
    spans(filled)  # numbers them
    engine = create_engine(filled)
    with engine.begin() as connection:
        connection.execute(text("UPDATE message_transition SET entry = x'c1' WHERE seq = 51"))
    engine.dispose()
    with pytest.raises(Exception, match="entry 51 of the trail of 'emails' is not readable"):
        _rounds(lake, spark, filled)
    assert lake.transitions.progress("ingest") == 0
    (done,) = _rounds(lake, spark, filled, pass_over=True)
    assert done.trails == {"emails": 150}
    assert sorted(seq for _, seq, _, _ in _rows(lake.transitions.read(spark))) == [
        *range(1, 51),
        *range(101, 151),
    ]


def test_one_store_of_several_has_trails_of_its_own(filled: str, spark: SparkSession, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path}/other.db"

    async def fill(store: Store) -> None:
        await work(store, "emails", 5)
        await Queue("idle", store).pause()

    on_store(other, fill)
    lake = Lake(str(tmp_path / "lake"))
    _rounds(lake, spark, filled)
    ingest(lake, spark, other, source="other", on_round=lambda _: None)
    counted = lake.transitions.read(spark).groupBy("source").count().collect()
    assert {row["source"]: row["count"] for row in counted} == {"main": 150, "other": 15}


def test_another_store_under_the_same_name_is_refused_and_loses_nothing(
    spark: SparkSession, sqlite_url: str, tmp_path: Path
) -> None:
    lake = Lake(str(tmp_path / "lake"))
    worked(sqlite_url, "emails", 20)
    assert len(_rounds(lake, spark, sqlite_url)) == 1
    other = f"sqlite:///{tmp_path}/other.db"
    worked(other, "emails", 5)
    before = _recorded(other)
    for attempt in (lambda: _rounds(lake, spark, other), lambda: trim(lake, other, source="main")):
        with pytest.raises(
            ConfigurationError, match=r"'emails' has fewer records .* 'main' \(60\).*--source"
        ):
            attempt()
    assert _recorded(other) == before
    ingest(lake, spark, other, source="other", on_round=lambda _: None)
    assert lake.transitions.read(spark).count() == 75
