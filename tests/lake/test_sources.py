"""The sources: what a store holds, as DataFrames."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

from remuda import NewJob, Queue
from remuda.devices import CommandType, Device, Fleet, NewCommand, Protocol
from remuda.errors import ConfigurationError
from remuda.lake.sources import register
from remuda.lake.sources.messages import (
    ArchiveSource,
    DeadLettersReader,
    DeadLettersSource,
    JobsSource,
    MessagesReader,
)
from remuda.lake.sources.queue import QueueSource
from remuda.lake.sources.shapes import DEAD_LETTER_SHAPE, MESSAGE_SHAPE, TRANSITION_SHAPE
from remuda.lake.sources.transitions import TransitionsSource
from remuda.lake.trails import with_store
from remuda.lifecycle import State
from remuda.stores.contract import Failure, Settlement, Store
from remuda.transition import Transition

SOURCES = (TransitionsSource, DeadLettersSource, ArchiveSource, JobsSource, QueueSource)
METER = Device(reference="47003333771", protocol=Protocol.LORAWAN)


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


@pytest.fixture(params=["sqlite", "valkey", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


def read(spark: SparkSession, what: str, url: str, **options: Any) -> DataFrame:
    return spark.read.format(what).option("url", url).options(**options).load()


async def add(url: str, queue: str, jobs: list[NewJob]) -> None:
    async with Queue(queue, url) as opened:
        await opened.add_many(jobs)


async def settle_some(store: Store, queue: str, *, dead: int = 0, done: int = 0) -> None:
    """Have a worker end some jobs: the first `dead` fail, the next `done` are completed."""
    fetched = await store.fetch(queue, limit=dead + done, lease=timedelta(minutes=1), who="w")
    failure = Failure("ValueError", "no such address", "line 1\nline 2")
    now = store.now()
    settlements = [
        Settlement(delivery=each, state=State.FAILED, started_at=now, reason="unrecoverable", failure=failure)
        for each in fetched[:dead]
    ]
    settlements += [
        Settlement(delivery=each, state=State.COMPLETED, started_at=now) for each in fetched[dead:]
    ]
    assert not await store.settle(queue, settlements, who="w")


def make_a_day(url: str) -> None:
    """Of `mails` two dead, one completed, two waiting; one of `bills`; two commands, one cancelled."""

    async def act(store: Store) -> None:
        headers = {"tenant": "a", "tries": 3}
        mails = [NewJob("welcome", {"to": n}, headers=headers, priority=1) for n in range(4)]
        await add(url, "mails", [*mails, NewJob("later", b"\x00\xff", delay=timedelta(hours=1))])
        await add(url, "bills", [NewJob("bill", None, rate_key="k")])
        await settle_some(store, "mails", dead=2, done=1)

    with_store(url, act)
    asyncio.run(send_commands(url))


async def send_commands(url: str) -> None:
    async with Fleet(url, name="meters") as fleet:
        read = NewCommand(type=CommandType.READ_CREDIT, device=METER, grid="g7", correlation_id="c-1")
        token = {"token": "1234 5678 9012 3456 7890"}
        top_up = NewCommand(type=CommandType.TOP_UP, device=METER, grid="g7", data=token)
        _, second = await fleet.send_many([read, top_up])
        await fleet.cancel(second.id)


def trail_of(url: str, queue: str) -> list[Transition]:
    async def act(store: Store) -> list[Transition]:
        return (await store.transitions(queue, after=0, limit=1_000)).transitions

    return with_store(url, act)


def as_row(transition: Transition, source: str) -> tuple[Any, ...]:
    about = transition.about or {}
    dwell = transition.dwell
    return (
        source,
        transition.queue,
        transition.seq,
        transition.message,
        transition.left,
        transition.entered,
        transition.at.astimezone().replace(tzinfo=None),  # as Spark collects it
        None if dwell is None else dwell // timedelta(milliseconds=1),
        transition.attempt,
        transition.reason,
        transition.who,
        transition.name,
        *(about.get(name) for name in ("device", "lane", "gateway", "grid")),
    )


def test_what_a_store_holds_can_be_read(spark: SparkSession, url: str) -> None:
    """Transitions are the store's own; dead letters, live and ended messages add up."""
    make_a_day(url)

    transitions = read(spark, "remuda_transitions", url, source="s1", partitions=3)
    rows = transitions.orderBy("queue", "seq").collect()
    assert transitions.schema == StructType.fromDDL(TRANSITION_SHAPE.ddl)
    trails = ["bills", "devices:meters", "mails"]
    assert [tuple(row) for row in rows] == [
        as_row(each, "s1") for trail in trails for each in trail_of(url, trail)
    ]

    letters = read(spark, "remuda_dead_letters", url)
    assert letters.schema == StructType.fromDDL(DEAD_LETTER_SHAPE.ddl)
    dead = {row["id"]: row for row in letters.collect()}
    mails = [row for row in dead.values() if row["queue"] == "mails"]
    assert [row["name"] for row in mails] == ["welcome", "welcome"]
    assert {row["value"] for row in mails} == {'{"to":0}', '{"to":1}'}
    assert mails[0]["headers"] == '{"tenant":"a","tries":3}'
    assert mails[0]["reason"] == "unrecoverable"
    assert (mails[0]["error_type"], mails[0]["error_message"]) == ("ValueError", "no such address")
    assert mails[0]["error_trace"] == "line 1\nline 2"
    assert (mails[0]["attempts"], mails[0]["deliveries"], mails[0]["priority"]) == (1, 1, 1)
    assert mails[0]["died_at"] >= mails[0]["created_at"]
    (command,) = [row for row in dead.values() if row["kind"] == "command"]
    assert (command["queue"], command["name"], command["reason"]) == ("devices:meters", "TOP_UP", "cancelled")
    assert command["payload"] is None, "a token's digits stay in the store"
    assert command["device"] == METER.key
    assert command["outcome"] == "not_executed"

    live = {row["name"]: row for row in read(spark, "remuda_jobs", url, source="s1").collect()}
    assert sorted(live) == ["READ_CREDIT", "bill", "later", "welcome"]
    assert live["later"]["payload"] == b"\xc4\x02\x00\xff"
    assert live["later"]["value"] == '"AP8="'
    assert live["later"]["next_attempt_at"] > live["later"]["created_at"] + timedelta(minutes=50)
    assert live["bill"]["rate_key"] == "k"
    assert live["READ_CREDIT"]["state"] == "QUEUED"
    assert (live["READ_CREDIT"]["grid"], live["READ_CREDIT"]["correlation_id"]) == ("g7", "c-1")

    ended = read(spark, "remuda_archive", url)
    assert ended.schema == StructType.fromDDL(MESSAGE_SHAPE.ddl)
    counted = {tuple(row[:2]): row[2] for row in ended.groupBy("queue", "state").count().collect()}
    assert counted == {
        ("mails", "COMPLETED"): 1,
        ("mails", "FAILED"): 2,
        ("devices:meters", "DELIVERY_FAILED"): 1,
    }


def test_a_read_can_be_narrowed(spark: SparkSession, sqlite_url: str) -> None:
    make_a_day(sqlite_url)
    url = sqlite_url

    part = read(spark, "remuda_transitions", url, trails="mails", after=2, up_to=6, columns="seq,entered")
    assert part.columns == ["seq", "entered"]
    assert sorted(row["seq"] for row in part.collect()) == [3, 4, 5, 6]
    future = datetime.now(UTC) + timedelta(hours=1)
    assert read(spark, "remuda_transitions", url, since=future.isoformat(), columns="seq").count() == 0
    assert read(spark, "remuda_transitions", url, trails="nobody's").count() == 0

    def died(**filters: Any) -> list[str]:
        return sorted(
            row["name"]
            for row in read(spark, "remuda_dead_letters", url, columns="name", **filters).collect()
        )

    assert died(queues="mails") == ["welcome", "welcome"]
    assert died(reason="cancelled") == ["TOP_UP"]
    assert died(reason="unrecoverable", name="welcome") == ["welcome", "welcome"]
    assert died(until="2020-01-01") == []
    assert died(name="TOP_UP", since="2020-01-01T00:00:00Z") == ["TOP_UP"]
    jobs = read(
        spark, "remuda_jobs", url, queues="bills,devices:meters", columns="kind,id,source", source="x"
    )
    assert sorted(row["kind"] for row in jobs.collect()) == ["command", "job"]


def test_pages_are_read_to_the_end(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Spark: a reader is a plain object, and pages are then as small as a test likes."""
    monkeypatch.setattr("remuda.lake.sources.messages.ROWS_AT_ONCE", 3)

    async def act(store: Store) -> None:
        await add(sqlite_url, "q", [NewJob("n", n) for n in range(20)])
        await settle_some(store, "q", dead=7, done=4)

    with_store(sqlite_url, act)
    device = [Device(reference=str(n), protocol=Protocol.API_V1) for n in range(8)]

    async def send() -> None:
        async with Fleet(sqlite_url, name="f") as fleet:
            await fleet.send_many([NewCommand(type=CommandType.READ_POWER, device=each) for each in device])

    asyncio.run(send())

    def ids(reader: DataSourceReader) -> list[str]:
        return [
            value.as_py()
            for part in reader.partitions()
            for batch in reader.read(part)
            for value in batch.column("id")
        ]

    for reader, expected in (
        (MessagesReader({"url": sqlite_url}, of="jobs", ended=False), 9 + 8),
        (MessagesReader({"url": sqlite_url}, of="archive", ended=True), 11),
        (DeadLettersReader({"url": sqlite_url}), 7),
    ):
        found = ids(reader)
        assert len(found) == len(set(found)) == expected


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ("remuda_transitions", {"trail": "mails"}, "no option trail"),
        ("remuda_transitions", {"after": "5"}, "one trail"),
        ("remuda_transitions", {"columns": "seq,colour"}, "seq, colour"),
        ("remuda_transitions", {"since": "yesterday"}, "not 'yesterday'"),
        ("remuda_transitions", {"maxRowsPerTrigger": "none"}, "at least 1, not 'none'"),
        ("remuda_transitions", {"startingOffsets": "[1]"}, "earliest, latest, or JSON"),
        ("remuda_dead_letters", {"reason": "bored"}, "the reasons are bad_token"),
        ("remuda_queue", {}, "needs an option queue"),
        ("remuda_queue", {"queue": "q", "payload": "xml"}, "payload is one of json, raw"),
        ("remuda_queue", {"queue": "q", "lease": "soon"}, "not a duration: 'soon'"),
        ("remuda_queue", {"queue": "q", "lease": "10ms"}, "give 1s or more"),
    ],
)
def test_an_option_that_makes_no_sense_is_named(source: str, options: dict[str, str], words: str) -> None:
    sources = {each.name(): each for each in SOURCES}
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        sources[source]({"URL": "sqlite:///x.db", **options}).schema()


def test_no_password_is_shown(spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither by a plan nor by an error, of the driver or of a task."""
    secret = "hunter2"
    url = f"postgresql://app:{secret}@127.0.0.1:1/app"
    frame = read(spark, "remuda_transitions", url, columns="seq")
    frame.explain(extended=True)
    told = []
    with pytest.raises(PySparkException) as refused:
        frame.collect()
    told.append(str(refused.value))
    jobs = spark.range(1).select(F.lit("n").alias("name"))
    with pytest.raises(PySparkException) as refused:
        jobs.write.format("remuda_queue").options(url=url, queue="q").mode("append").save()
    told.append(str(refused.value))
    with pytest.raises(PySparkException) as refused:
        read(spark, "remuda_jobs", url, coluns="id")
    told.append(str(refused.value))
    output = capfd.readouterr()
    assert "remuda_transitions" in output.out
    assert "127.0.0.1" in told[0]
    assert secret not in output.out + output.err + "".join(told)


# -- transitions as a stream


class Stream:
    """A stream of transitions with a checkpoint of its own, run to its end as often as a test likes."""

    def __init__(self, spark: SparkSession, url: str, place: Path, **options: Any) -> None:
        self.frame = (
            spark.readStream.format("remuda_transitions").option("url", url).options(**options).load()
        )
        self.place = place
        self.batches: list[list[tuple[str, int]]] = []

    def run(self, *, fail_in: int | None = None) -> list[list[tuple[str, int]]]:
        """What each micro-batch brought: trail and number."""
        self.batches = []

        def take(batch: DataFrame, number: int) -> None:
            self.batches.append(sorted((row["queue"], row["seq"]) for row in batch.collect()))
            if number == fail_in:
                raise RuntimeError("the sink is broken")

        query = (
            self.frame.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(self.place))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        self.progress = query.lastProgress
        return self.batches


def flat(batches: list[list[tuple[str, int]]]) -> list[tuple[str, int]]:
    return sorted(row for batch in batches for row in batch)


def test_a_stream_of_transitions_goes_on_where_it_was(
    spark: SparkSession, valkey_url: str, tmp_path: Path
) -> None:
    """In bounded batches, again after a failure, with trails that appear later, and never twice."""
    url = valkey_url
    asyncio.run(add(url, "a", [NewJob("n", n) for n in range(7)]))
    asyncio.run(add(url, "b", [NewJob("n", n) for n in range(2)]))
    stream = Stream(spark, url, tmp_path, maxRowsPerTrigger=4)
    with pytest.raises(StreamingQueryException, match="the sink is broken"):
        stream.run(fail_in=1)
    first, second = stream.batches
    assert first == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
    assert second == [("a", 3), ("a", 4), ("a", 5), ("a", 6)]

    asyncio.run(add(url, "c", [NewJob("n", n) for n in range(2)]))
    again = stream.run()
    assert again[0] == second, "what was not committed comes again, as it was"
    assert flat(again[1:]) == [("a", 7), ("c", 1), ("c", 2)]
    (described,) = stream.progress["sources"]
    assert json.loads(described["endOffset"]) == {"a": 7, "b": 2, "c": 2}
    assert json.loads(described["latestOffset"]) == {"a": 7, "b": 2, "c": 2}

    assert flat(stream.run()) == []
    asyncio.run(add(url, "a", [NewJob("n")]))
    assert stream.run() == [[("a", 8)]]


def test_a_stream_may_begin_at_the_end(spark: SparkSession, sqlite_url: str, tmp_path: Path) -> None:
    """Where the end was is noted at once: what comes after is read even if the first run fails."""
    asyncio.run(add(sqlite_url, "a", [NewJob("n", n) for n in range(3)]))
    stream = Stream(spark, sqlite_url, tmp_path, startingOffsets="latest")
    with pytest.raises(StreamingQueryException, match="the sink is broken"):
        stream.run(fail_in=0)
    asyncio.run(add(sqlite_url, "a", [NewJob("n")]))
    asyncio.run(add(sqlite_url, "b", [NewJob("n")]))
    assert flat(stream.run()) == [("a", 4), ("b", 1)]
