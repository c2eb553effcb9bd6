"""`remuda_queue` as a sink: a DataFrame becomes jobs or commands, each row once."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from remuda.devices import CommandType, Fleet
from remuda.devices.command import Command, Gateway
from remuda.errors import ConfigurationError
from remuda.lake.sources import register, with_ids
from remuda.lake.sources.ids import RowIds, repeated
from remuda.lake.sources.sink import Plan
from remuda.lake.trails import with_store
from remuda.lifecycle import State
from remuda.message import JobRecord
from remuda.stores.contract import Settlement, Store

QUEUE = "mails"


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


@pytest.fixture(params=["sqlite", "valkey"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


def write(frame: DataFrame, url: str, **options: Any) -> None:
    frame.write.format("remuda_queue").options(url=url, **options).mode("append").save()


def jobs_of(url: str, queue: str = QUEUE) -> list[JobRecord]:
    async def act(store: Store) -> list[JobRecord]:
        return await store.jobs(queue, state=None, name=None, limit=1_000)

    return with_store(url, act)


def complete_all(url: str, queue: str = QUEUE) -> int:
    """Have a worker do what is there."""

    async def act(store: Store) -> int:
        fetched = await store.fetch(queue, limit=1_000, lease=timedelta(minutes=1), who="w")
        done = [Settlement(delivery=each, state=State.COMPLETED, started_at=store.now()) for each in fetched]
        await store.settle(queue, done, who="w")
        return len(fetched)

    return with_store(url, act)


def test_rows_become_jobs_once(spark: SparkSession, url: str) -> None:
    """With every column; written again under the same name nothing is added, even after their end."""
    soon = datetime(2031, 5, 1, 12, tzinfo=UTC)
    frame = spark.createDataFrame(
        [
            Row(
                name="welcome",
                payload=Row(to=f"{n}@example.org", lines=[Row(qty=n)], labels={"a": n}),
                priority=n % 2,
                headers={"tenant": "a"},
                next_attempt_at=soon if n == 3 else None,
                expires_at=soon + timedelta(days=1),
                rate_key="k" if n else None,
            )
            for n in range(4)
        ]
    ).repartition(2)
    write(frame, url, queue=QUEUE, batch="b1", bulk=1)
    jobs = sorted(jobs_of(url), key=lambda job: job.value()["to"])
    assert [job.value() for job in jobs] == [
        {"to": f"{n}@example.org", "lines": [{"qty": n}], "labels": {"a": n}} for n in range(4)
    ]
    assert [job.priority for job in jobs] == [0, 1, 0, 1]
    assert [job.rate_key for job in jobs] == [None, "k", "k", "k"]
    assert jobs[0].headers == {"tenant": "a"}
    assert jobs[3].next_attempt_at == soon
    assert jobs[0].expires_at == soon + timedelta(days=1)

    write(frame.repartition(3), url, queue=QUEUE, batch="b1")
    assert len(jobs_of(url)) == 4, "cut otherwise, the same rows are the same jobs"
    assert complete_all(url) == 3
    write(frame, url, queue=QUEUE, batch="b1")
    assert complete_all(url) == 0, "nor are they added when they have ended"
    write(frame, url, queue=QUEUE, batch="b2")
    assert complete_all(url) == 3, "another batch is another one"


def test_a_row_that_is_no_job_is_named_and_its_bulk_not_written(spark: SparkSession, sqlite_url: str) -> None:
    rows = [("fine", 0, "1"), ("fine", 0, "2"), ("wrong", 9, "3"), ("fine", 0, "4")]
    frame = spark.createDataFrame(rows, "name string, priority int, payload string").coalesce(1)
    with pytest.raises(PySparkException) as refused:
        write(frame, sqlite_url, queue=QUEUE, bulk=2)
    assert "row 3 of partition 0 (name='wrong')" in str(refused.value)
    assert "from -2 to 2, not 9; nothing of its bulk of 2 rows was written" in str(refused.value)
    assert [job.value() for job in jobs_of(sqlite_url)] == ["1", "2"], "the bulk before it stands"

    with pytest.raises(PySparkException, match="payload is not JSON"):
        write(frame.withColumn("payload", F.lit("{")), sqlite_url, queue="other", payload="json")
    assert jobs_of(sqlite_url, "other") == []


def test_equal_rows_are_as_many_jobs(spark: SparkSession, sqlite_url: str) -> None:
    """In one partition by themselves; in several they need ids, and the sink says so: none is dropped."""
    ticks = spark.range(6).select(F.lit("tick").alias("name"))
    write(ticks.coalesce(1), sqlite_url, queue="one", batch="b")
    assert len(jobs_of(sqlite_url, "one")) == 6
    write(ticks.repartition(2, F.rand(1)), sqlite_url, queue="no-batch")
    assert len(jobs_of(sqlite_url, "no-batch")) == 6

    with pytest.raises(PySparkException, match="rows are equal to a row in another partition"):
        write(spark.range(0, 6, 1, 2).select(F.lit("tick").alias("name")), sqlite_url, queue="two", batch="b")
    assert len(jobs_of(sqlite_url, "two")) == 3
    for parts in (2, 3):
        write(with_ids(ticks, batch="b").repartition(parts), sqlite_url, queue="three", batch="b")
    assert len(jobs_of(sqlite_url, "three")) == 6


def test_a_micro_batch_that_is_run_again_adds_nothing_twice(
    spark: SparkSession, sqlite_url: str, tmp_path: Path
) -> None:
    """Its rows get the ids that they had: the second run finds them taken and adds the rest."""
    source, target = tmp_path / "in", {"url": sqlite_url, "queue": QUEUE, "bulk": "2"}
    source.mkdir()
    (source / "a.json").write_text(
        "".join(f'{{"name":"n","payload":"{n}","priority":0}}\n' for n in range(4))
    )
    (source / "b.json").write_text('{"name":"n","payload":"x","priority":7}\n')
    schema = "name string, payload string, priority int"

    def run(*, mended: bool) -> None:
        frame = spark.readStream.schema(schema).json(str(source)).coalesce(1)
        if mended:
            frame = frame.withColumn("priority", F.least("priority", F.lit(2)))
        query = (
            frame.writeStream.format("remuda_queue")
            .options(**target)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    with pytest.raises(StreamingQueryException, match="from -2 to 2, not 7"):
        run(mended=False)
    before = {job.id for job in jobs_of(sqlite_url)}
    assert len(before) == 4
    run(mended=True)
    after = {job.id for job in jobs_of(sqlite_url)}
    assert len(after) == 5
    assert before < after


def commands_of(url: str) -> list[Command]:
    async def act() -> list[Command]:
        async with Fleet(url, name="meters") as fleet:
            return await fleet.commands()

    return asyncio.run(act())


def test_rows_become_commands_once(spark: SparkSession, url: str) -> None:
    rows = [(f"470033337{n:02}", "gw-1" if n else None, -7.5, "A", f"c-{n}") for n in range(3)]
    frame = spark.createDataFrame(
        rows,
        "device_reference string, gateway string, gateway_snr double, phase string, correlation_id string",
    )
    options = {"fleet": "meters", "type": "READ_VOLTAGE", "protocol": "LORAWAN", "grid": "g7", "batch": "b1"}
    write(frame.repartition(2), url, **options)
    write(frame.coalesce(1), url, **options)
    commands = sorted(commands_of(url), key=lambda each: each.device.reference)
    assert [each.device.reference for each in commands] == [row[0] for row in rows]
    assert {(each.type, each.grid, each.phase) for each in commands} == {
        (CommandType.READ_VOLTAGE, "g7", "A")
    }
    assert [each.correlation_id for each in commands] == ["c-0", "c-1", "c-2"]
    assert commands[0].device.gateway is None
    assert commands[1].device.gateway == Gateway(id="gw-1", snr=-7.5)

    token = '{"token":"12345678901234567890"}'
    top_ups = spark.createDataFrame(
        [("t-1", "47", "TOP_UP", token), ("t-2", "48", "TOP_DOWN", token)],
        "id string, device_reference string, type string, data string",
    ).coalesce(1)
    with pytest.raises(PySparkException) as refused:
        write(top_ups, url, fleet="meters", protocol="API_V1", payload="json")
    assert "row 2 of partition 0 (id='t-2', type='TOP_DOWN', device_reference='48')" in str(refused.value)
    assert "1234567890" not in str(refused.value), "tokens are money"
    write(top_ups.where("id = 't-1'"), url, fleet="meters", protocol="API_V1", payload="json")
    (top_up,) = [each for each in commands_of(url) if each.type is CommandType.TOP_UP]
    assert (top_up.id, top_up.data) == ("t-1", {"token": "12345678901234567890"})


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ("name string", {}, "queue for jobs, or fleet for commands"),
        ("name string", {"queue": "q", "fleet": "f"}, "one of the two"),
        ("name string, colour string", {"queue": "q"}, "the columns colour mean nothing to a queue"),
        ("payload string", {"queue": "q"}, "a queue needs the columns name"),
        ("name string, id string, job_id string", {"queue": "q"}, "id and job_id are the same"),
        ("device_reference string", {"fleet": "f", "type": "TURN_ON"}, "a fleet needs the columns protocol"),
        ("name string", {"queue": "q", "bulk": "0"}, "bulk is a whole number of at least 1"),
        ("name string", {"queue": "q", "unique_for": "ever"}, "unique_for: not a duration"),
    ],
)
def test_a_write_that_makes_no_sense_is_refused_before_it_begins(
    spark: SparkSession, columns: str, options: dict[str, str], words: str
) -> None:
    schema = spark.createDataFrame([], columns).schema
    with pytest.raises(ConfigurationError, match=words):
        Plan({"url": "sqlite:///x.db", **options}, schema, overwrite=False)
    with pytest.raises(ConfigurationError, match="never overwritten"):
        Plan({"url": "sqlite:///x.db", **options}, schema, overwrite=True)


def test_ids_are_made_from_what_a_row_says() -> None:
    """Not from where it stands; equal ones are told apart by counting them."""
    rows: list[dict[str, Any]] = [
        {"name": "n", "payload": {"at": datetime(2030, 1, 1, tzinfo=UTC), "n": n}} for n in (1, 2, 1)
    ]
    first, again, other = RowIds("t"), RowIds("t"), RowIds("u" * 100)
    made = [first.make(row) for row in rows]
    assert len(set(made)) == 3
    assert RowIds("t").make(rows[1]) == made[1]
    assert {again.make(row) for row in reversed(rows)} == set(made)
    assert not {other.make(row) for row in rows} & set(made)
    assert repeated([first.marks, other.marks]) == 0
    assert repeated([first.marks, other.marks, again.marks]) == 3
    assert max(made) < "01", "before the ids that Remuda makes"


def test_delays_may_be_written_in_three_ways(spark: SparkSession, sqlite_url: str) -> None:
    for delay in ("INTERVAL 2 HOURS", "7200", "'2h'"):
        frame = spark.range(1).selectExpr("'n' AS name", f"{delay} AS delay", "unhex('00ff') AS payload")
        write(frame, sqlite_url, queue=QUEUE)
    jobs = jobs_of(sqlite_url)
    assert len(jobs) == 3
    for job in jobs:
        assert job.value() == b"\x00\xff"
        assert job.next_attempt_at is not None
        assert abs(job.next_attempt_at - job.created_at - timedelta(hours=2)) < timedelta(minutes=1)
