"""A queue as a stream source: leased, acked when the micro-batch is committed, else delivered again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadMaxRows

from remuda import NewJob, Queue, RateLimit
from remuda.lake.sources import register
from remuda.lake.sources.holding import Holding, Terms, narrowed
from remuda.lake.sources.queue import Asked, QueueStream
from remuda.lake.trails import with_store
from remuda.lifecycle import State
from remuda.message import JobRecord, Stats
from remuda.stores.contract import EncodedJob, Store

QUEUE = "orders"


@pytest.fixture(params=["sqlite", "valkey", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


def add(url: str, *jobs: NewJob) -> None:
    async def act() -> None:
        async with Queue(QUEUE, url) as queue:
            await queue.add_many(jobs)

    asyncio.run(act())


def stats_of(url: str) -> Stats:
    return with_store(url, lambda store: store.stats(QUEUE))


def dead_of(url: str) -> dict[str, str | None]:
    """The dead letters: name and reason."""

    async def act(store: Store) -> list[JobRecord]:
        return await store.jobs(QUEUE, state=State.FAILED, name=None, limit=100)

    return {record.name: record.reason for record in with_store(url, act)}


def add_unreadable(url: str) -> None:
    """What a broken producer may leave: bytes that are no msgpack, headers that are no object, too much."""

    async def act(store: Store) -> None:
        now = store.now()

        def job(name: str, payload: bytes, headers: str | None = None) -> EncodedJob:
            return EncodedJob(id=name, name=name, payload=payload, next_attempt_at=now, headers=headers)

        await store.open()
        jobs = [
            job("garbled", b"\xc1"),
            job("headless", b"\xc0", "[1]"),
            job("huge", b"\xd9\xff" + b"x" * 255),
        ]
        await store.add(QUEUE, jobs, who="test")

    with_store(url, act)


class Query:
    """A query over the queue with a checkpoint of its own, run to its end as often as a test likes."""

    def __init__(self, spark: SparkSession, url: str, place: Path, **options: Any) -> None:
        register(spark)
        source = spark.readStream.format("remuda_queue").option("url", url).option("queue", QUEUE)
        self.frame = source.options(**options).load()
        self.place = place
        self.batches: list[list[Any]] = []

    def run(self, on_batch: Callable[[int], None] = lambda _: None) -> list[list[Any]]:
        self.batches = []

        def take(batch: DataFrame, number: int) -> None:
            self.batches.append(batch.orderBy("payload").collect())
            on_batch(number)

        query = (
            self.frame.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(self.place))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return self.batches

    def payloads(self) -> list[list[str]]:
        return [[row["payload"] for row in batch] for batch in self.batches]


def test_every_batch_is_acked_also_the_last(spark: SparkSession, valkey_url: str, tmp_path: Path) -> None:
    """And what no row can be made of is a dead letter, with its reason; what comes meanwhile waits."""
    url = valkey_url
    add(url, *(NewJob("buy", {"n": n}, headers={"tenant": "a"}, priority=1) for n in range(5)))
    add_unreadable(url)
    query = Query(spark, url, tmp_path, maxRowsPerTrigger=3, max_payload_bytes=200, partitions=2)
    batches = query.run(lambda number: add(url, NewJob("late", {"late": number})))
    assert query.payloads()[:2] == [['{"n":0}', '{"n":1}', '{"n":2}'], ['{"n":3}', '{"n":4}']]
    row = batches[0][0]
    assert (row["queue"], row["name"], row["headers"]) == (QUEUE, "buy", '{"tenant":"a"}')
    assert (row["attempts"], row["deliveries"], row["priority"]) == (0, 1, 1)
    assert row["created_at"] <= row["acquired_at"]
    assert dead_of(url) == {"garbled": "decode_fail", "headless": "malformed", "huge": "oversize"}
    stats = stats_of(url)
    assert stats.processing == 0
    assert stats.completed == sum(map(len, batches))
    assert stats.pending == 5 + len(batches) - stats.completed, "the query has an end, though more came"


def test_a_batch_that_failed_comes_again(spark: SparkSession, sqlite_url: str, tmp_path: Path) -> None:
    """Nothing of it is acked; from the same checkpoint it is read again as it was, and then acked."""
    url = sqlite_url
    add(url, *(NewJob("buy", n) for n in range(4)))
    query = Query(spark, url, tmp_path, maxRowsPerTrigger=2)

    def fail(number: int) -> None:
        if number == 1:
            raise RuntimeError("the sink is broken")

    with pytest.raises(StreamingQueryException, match="the sink is broken"):
        query.run(fail)
    assert query.payloads() == [["0", "1"], ["2", "3"]]
    stats = stats_of(url)
    assert (stats.completed, stats.processing) == (2, 2)

    query.run()
    assert query.payloads() == [["2", "3"]]
    assert {row["deliveries"] for row in query.batches[0]} == {1}
    stats = stats_of(url)
    assert (stats.completed, stats.processing, stats.failed, stats.live) == (4, 0, 0, 0)


# -- the reader by itself: every call that Spark makes, in the order in which it makes them


Streams = Callable[..., QueueStream]


@pytest.fixture
def stream() -> Iterator[Streams]:
    """Makes readers, each as in a process of its own."""
    made: list[QueueStream] = []

    def make(url: str, **options: str) -> QueueStream:
        made.append(QueueStream(Asked({"url": url, "queue": QUEUE, **options})))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def plan(reader: QueueStream, start: dict[str, Any], limit: int = 10) -> dict[str, Any]:
    return reader.latestOffset(start, ReadMaxRows(limit))


def rows_of(reader: QueueStream, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    tables = [pa.Table.from_batches(reader.read(part)) for part in reader.partitions(start, end)]
    return [value for table in tables for value in table.column("payload").to_pylist()]


def test_a_committed_batch_is_acked_after_a_restart(url: str, stream: Streams) -> None:
    """Committed, and then the process was gone before it could ack."""
    add(url, *(NewJob("buy", n, priority=n % 2, rate_key="k") for n in range(6)))
    first = stream(url)
    start = first.initialOffset()
    end = plan(first, start, 4)
    assert sorted(rows_of(first, start, end)) == ["0", "1", "3", "5"]
    assert plan(first, start) == end, "asked again, it tells of the same batch"

    second = stream(url)
    later = plan(second, end)
    assert sorted(rows_of(second, end, later)) == ["2", "4"]
    stats = stats_of(url)
    assert (stats.completed, stats.processing) == (4, 2)
    assert plan(stream(url), later) == later, "nothing is left"
    assert stats_of(url).completed == 6

    async def act(store: Store) -> list[JobRecord]:
        return await store.jobs(QUEUE, state=State.COMPLETED, name=None, limit=10)

    for record in with_store(url, act):
        assert (record.attempts, record.deliveries, record.rate_key) == (1, 1, "k")


def test_what_was_lost_meanwhile_is_neither_read_nor_acked(url: str, stream: Streams) -> None:
    """The leases ended, and a worker has one of the messages: it is the worker's."""
    add(url, NewJob("buy", 0), NewJob("buy", 1))
    first = stream(url)
    start = first.initialOffset()
    end = plan(first, start)
    assert rows_of(first, start, end) == ["0", "1"]

    async def lose(store: Store) -> None:
        deliveries = await store.held(QUEUE, [int(end["leases"], 16)])
        assert [each.name for each in deliveries] == ["buy", "buy"]
        await store.release(QUEUE, deliveries[:1], who="test", counted=True)
        (taken,) = await store.fetch(QUEUE, limit=5, lease=timedelta(minutes=1), who="worker")
        assert (taken.id, taken.deliveries) == (deliveries[0].id, 2)

    with_store(url, lose)
    second = stream(url)
    assert rows_of(second, start, end) == ["1"]
    assert plan(second, end) == end
    stats = stats_of(url)
    assert (stats.completed, stats.processing) == (1, 1)


def test_leases_are_renewed_while_a_batch_is_under_way(url: str) -> None:
    add(url, NewJob("buy", 0), NewJob("buy", 1))
    terms = Terms(
        queue=QUEUE,
        lease=timedelta(minutes=1),
        max_deliveries=None,
        max_payload_bytes=1_000,
        raw=False,
        archive_completed=True,
    )

    async def act(store: Store) -> list[datetime]:
        holding = Holding(terms)
        messages = await holding.fetch(store, 1, 10)
        before = [each.delivery.leased_until for each in messages]
        await holding._renew(store)
        after = [each.lease_expires_at for each in await store.jobs(QUEUE, state=None, name=None, limit=10)]
        assert all(now is not None and now > then for now, then in zip(after, before, strict=True))
        (lease,) = {each.delivery.lease for each in messages}
        assert len(await store.held(QUEUE, [lease])) == 2
        return before

    assert len(with_store(url, act)) == 2


def test_a_message_that_makes_every_batch_fail_dies_alone(url: str, stream: Streams) -> None:
    """With `max_deliveries`: those that were in its batches come in smaller ones, at last one by one."""
    most = 4
    add(url, *(NewJob("buy", n) for n in range(30)))
    poison, processed, runs = "17", [], 0
    options = {"max_deliveries": str(most), "partitions": "2"}
    offset, reader = None, stream(url, **options)
    while True:
        start = reader.initialOffset() if offset is None else offset
        end = plan(reader, start, 20)
        if end == start:
            break
        rows = rows_of(reader, start, end)
        if poison in rows:
            runs += 1
            reader = stream(url, **options)  # the query failed, and was started anew
            assert rows_of(reader, start, end) == [], "put back, to be delivered anew"
        else:
            processed += rows
        offset = end
    assert sorted(processed, key=int) == [str(n) for n in range(30) if str(n) != poison]
    assert runs == most
    assert dead_of(url) == {"buy": "max_deliveries"}
    assert stats_of(url).live == 0


def test_narrowing_ends_with_one_alone() -> None:
    sizes = [narrowed(5_000, delivered, 5) for delivered in range(1, 7)]
    assert sizes == [595, 71, 8, 1, 1, 1]
    assert narrowed(5_000, 1, 1) == narrowed(5_000, 1, 2) == 1


def test_a_stream_keeps_to_the_rate_limit_and_to_a_pause(sqlite_url: str, stream: Streams) -> None:
    add(sqlite_url, *(NewJob("buy", n) for n in range(9)))

    async def limit() -> None:
        async with Queue(QUEUE, sqlite_url) as queue:
            await queue.limit_rate(queue=RateLimit(3, timedelta(hours=1)))

    asyncio.run(limit())
    reader = stream(sqlite_url)
    start = reader.initialOffset()
    end = plan(reader, start)
    assert len(rows_of(reader, start, end)) == 3

    async def pause() -> None:
        async with Queue(QUEUE, sqlite_url) as queue:
            await queue.limit_rate()
            await queue.pause()

    asyncio.run(pause())
    other = stream(sqlite_url)
    assert plan(other, other.initialOffset()) == other.initialOffset()


def test_payloads_may_be_read_as_they_are(sqlite_url: str, stream: Streams) -> None:
    """Also those that would not decode: what they are is then the reader's business."""
    add(sqlite_url, NewJob("buy", {"n": 1}))
    add_unreadable(sqlite_url)
    reader = stream(sqlite_url, payload="raw", columns="payload,name")
    start = reader.initialOffset()
    end = plan(reader, start)
    (table,) = [pa.Table.from_batches(reader.read(part)) for part in reader.partitions(start, end)]
    assert table.column_names == ["payload", "name"]
    assert table.column("payload").to_pylist()[:2] == [b"\x81\xa1n\x01", b"\xc1"]
    assert dead_of(sqlite_url) == {"headless": "malformed"}
