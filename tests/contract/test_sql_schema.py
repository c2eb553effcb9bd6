"""The tables: created on first use, checked at every start, migrated from the reference broker's."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, inspect, text
from sqlalchemy.engine import make_url

from remuda import Queue, RateLimit, Reason, Result, SchemaError, State, open_store
from remuda.rate import NO_LIMITS
from remuda.stores.sql import migrations
from remuda.stores.sql.schema import SCHEMA_VERSION
from remuda.stores.sql.store import SqlStore
from tests.contract.test_sql_transactions import SYNC_DRIVERS, address
from tests.contract.workbench import bury, checked_trail, fetch, make_worker, record_of


def sql(url: str, *statements: str, payload: bytes = b"") -> None:
    engine = create_engine(address(url, SYNC_DRIVERS))
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement), {"payload": payload} if ":payload" in statement else {})
    engine.dispose()


def kind_of(url: str) -> str:
    return make_url(url).get_backend_name()


async def make_tables(url: str) -> None:
    async with open_store(url):
        pass


async def opened(url: str) -> None:
    store = open_store(url)
    try:
        await store.open()
    finally:
        await store.close()


def on_store(url: str) -> SqlStore:
    store = open_store(url)
    assert isinstance(store, SqlStore)
    return store


async def test_the_tables_are_made_once_and_found_again(sql_store_url: str) -> None:
    async with Queue("orders", sql_store_url) as queue:
        job_id = await queue.add("job")
    async with Queue("orders", sql_store_url) as queue:
        assert (await record_of(queue, job_id)).state is State.PENDING


async def test_many_programs_may_start_on_an_empty_database_at_once(sql_store_url: str) -> None:
    queues = [Queue("orders", sql_store_url) for _ in range(6)]
    try:
        await asyncio.gather(*(each.open() for each in queues))
        await asyncio.gather(*(each.add("job") for each in queues))
        assert (await queues[0].stats()).pending == 6
    finally:
        for each in queues:
            await each.close()


TABLES = (
    "message",
    "message_archive",
    "message_transition",
    "message_queue",
    "message_rate",
    "message_result",
    "command",
    "command_name",
    "command_lane",
    "command_signal",
    "command_fleet",
)


@pytest.mark.parametrize("table", TABLES)
async def test_a_missing_table_is_named(sql_store_url: str, table: str) -> None:
    await make_tables(sql_store_url)
    sql(sql_store_url, f"DROP TABLE {table}")
    with pytest.raises(SchemaError, match=rf"table {table} is missing"):
        await opened(sql_store_url)


async def test_a_missing_column_is_named(sql_store_url: str) -> None:
    await make_tables(sql_store_url)
    sql(
        sql_store_url,
        "ALTER TABLE message RENAME COLUMN lease TO rental",
        "ALTER TABLE message_archive RENAME COLUMN reason TO whim",
    )
    with pytest.raises(SchemaError, match=r"message\.lease is missing.*message_archive\.reason is missing"):
        await opened(sql_store_url)


async def test_a_column_of_the_wrong_type_is_named(sql_store_url: str) -> None:
    await make_tables(sql_store_url)
    wrong = {
        "sqlite": (
            "ALTER TABLE message RENAME COLUMN last_error TO old",
            "ALTER TABLE message ADD COLUMN last_error INTEGER",
        ),
        "postgresql": ("ALTER TABLE message ALTER COLUMN last_error TYPE bigint USING 0",),
        "mysql": ("ALTER TABLE message MODIFY COLUMN last_error BIGINT",),
    }
    sql(sql_store_url, *wrong[kind_of(sql_store_url)])
    with pytest.raises(SchemaError, match=r"column message\.last_error is .*INT"):
        await opened(sql_store_url)


async def test_tables_of_a_newer_version_are_refused(sql_store_url: str) -> None:
    await make_tables(sql_store_url)
    sql(sql_store_url, f"INSERT INTO message_schema VALUES ({SCHEMA_VERSION + 1}, '2030-01-01 00:00:00')")
    with pytest.raises(SchemaError, match="newer Remuda"):
        await opened(sql_store_url)


REFERENCE_TABLES = {
    "sqlite": {
        "id": "INTEGER NOT NULL PRIMARY KEY",
        "time": "DATETIME",
        "bytes": "BLOB",
        "state": "VARCHAR(10)",
    },
    "postgresql": {
        "id": "BIGSERIAL PRIMARY KEY",
        "time": "TIMESTAMP",
        "bytes": "BYTEA",
        "state": "sqlbrokermessagestate",
    },
    "mysql": {
        "id": "BIGINT NOT NULL PRIMARY KEY AUTO_INCREMENT",
        "time": "DATETIME",
        "bytes": "BLOB",
        "state": "ENUM('PENDING','PROCESSING','COMPLETED','FAILED','RETRYABLE')",
    },
}


def make_reference_tables(url: str) -> None:
    """Version 0: what the reference broker makes, with a message in each state of interest."""
    of = REFERENCE_TABLES[kind_of(url)]
    columns = f"""
        queue VARCHAR(255) NOT NULL, headers JSON, payload {of["bytes"]} NOT NULL,
        state {of["state"]} NOT NULL DEFAULT 'PENDING',
        attempts_count BIGINT NOT NULL DEFAULT 0, deliveries_count BIGINT NOT NULL DEFAULT 0,
        created_at {of["time"]} NOT NULL, first_attempt_at {of["time"]}, last_attempt_at {of["time"]}
    """
    main = f"""CREATE TABLE message
        (id {of["id"]}, {columns}, next_attempt_at {of["time"]} NOT NULL, acquired_at {of["time"]})"""
    ended = f"CREATE TABLE message_archive (id {of['id']}, {columns}, archived_at {of['time']} NOT NULL)"
    statements = [main, ended]
    if kind_of(url) == "postgresql":
        states = "'PENDING', 'PROCESSING', 'COMPLETED', 'FAILED', 'RETRYABLE'"
        statements.insert(0, f"CREATE TYPE sqlbrokermessagestate AS ENUM ({states})")
    then = "'2020-01-01 00:00:00'"
    statements += [
        "CREATE INDEX ix_message_queue ON message (queue)",
        "CREATE INDEX ix_message_next_attempt_at ON message (next_attempt_at)",
    ]
    sql(url, *statements)
    waiting = f"""INSERT INTO message (queue, payload, state, created_at, next_attempt_at)
        VALUES ('orders', :payload, 'PENDING', {then}, {then})"""
    stuck = f"""INSERT INTO message
        (queue, payload, state, deliveries_count, created_at, next_attempt_at, acquired_at)
        VALUES ('orders', :payload, 'PROCESSING', 1, {then}, {then}, {then})"""
    dead = f"""INSERT INTO message_archive
        (id, queue, payload, state, attempts_count, deliveries_count, created_at, archived_at)
        VALUES (100, 'orders', :payload, 'FAILED', 3, 3, {then}, {then})"""
    sql(url, waiting, payload=b"waiting")
    sql(url, stuck, payload=b"stuck")
    sql(url, dead, payload=b"dead")


async def migrated(url: str) -> list[int]:
    store = on_store(url)
    try:
        await store.open_unchecked()
        return await store.run_on_schema(migrations.migrate)
    finally:
        await store.close()


async def test_tables_of_the_reference_broker_are_told_to_be_migrated(sql_store_url: str) -> None:
    make_reference_tables(sql_store_url)
    with pytest.raises(SchemaError, match="migrate"):
        await opened(sql_store_url)


async def test_tables_of_the_reference_broker_are_migrated_with_their_messages(sql_store_url: str) -> None:
    make_reference_tables(sql_store_url)
    assert await migrated(sql_store_url) == list(range(1, SCHEMA_VERSION + 1))
    assert await migrated(sql_store_url) == []

    async with Queue("orders", sql_store_url) as queue:
        stats = await queue.stats()
        assert (stats.pending, stats.processing, stats.failed) == (1, 1, 1)
        worker = make_worker(queue)
        seen: list[Any] = []
        worker.handler()(lambda job: seen.append((job.name, job.payload)))
        await worker.step()
        # Acquired without a lease: it is the time-out that tells that its holder is dead.
        assert len(await queue.store.recover("orders", timeout=timedelta(minutes=1), who="test")) == 1
        await worker.step()
        assert seen == [("", b"waiting"), ("", b"stuck")]
        assert (await queue.dead.replay()).ids == ["100"]
        await worker.step()
        assert seen[2] == ("", b"dead")
        own = await queue.add("mine", {"n": 1})
        await worker.step()
        assert (await record_of(queue, own)).state is State.COMPLETED
        assert (await queue.stats()).completed == 4


async def test_a_foreign_program_can_go_on_inserting(sql_store_url: str) -> None:
    """It names only the columns that the reference broker knows."""
    await make_tables(sql_store_url)
    then = "'2020-01-01 00:00:00'"
    headed = f"""INSERT INTO message (queue, headers, payload, created_at, next_attempt_at)
        VALUES ('orders', '{{"content-type"\\: "application/json"}}', :payload, {then}, {then})"""
    bare = f"""INSERT INTO message (queue, payload, created_at, next_attempt_at)
        VALUES ('orders', :payload, {then}, {then})"""
    sql(sql_store_url, headed, payload=b"[1]")
    sql(sql_store_url, bare, payload=b"bytes")
    async with Queue("orders", sql_store_url) as queue:
        waiting = await queue.jobs()
        assert [(each.foreign, each.value()) for each in waiting] == [(True, [1]), (True, b"bytes")]
        worker = make_worker(queue)
        seen: list[Any] = []
        worker.handler()(lambda job: seen.append(job.payload))
        await worker.step()
        assert sorted(map(repr, seen)) == ["[1]", "b'bytes'"]
        assert (await record_of(queue, waiting[0].id)).state is State.COMPLETED


async def test_a_foreign_message_can_die_and_be_replayed_by_its_number(sql_store_url: str) -> None:
    await make_tables(sql_store_url)
    then = "'2020-01-01 00:00:00'"
    bare = f"""INSERT INTO message (queue, payload, created_at, next_attempt_at)
        VALUES ('orders', :payload, {then}, {then})"""
    sql(sql_store_url, bare, payload=b"bytes")
    async with Queue("orders", sql_store_url) as queue:
        (foreign,) = await queue.jobs()
        worker = make_worker(queue, ack_policy="reject_on_error")

        @worker.handler()
        def refuse(job: Any) -> None:
            raise ValueError("no")

        await worker.step()
        (own,) = await bury(queue, "own")
        assert (await record_of(queue, foreign.id)).reason == Reason.REJECTED
        assert (await queue.dead.replay(ids=[foreign.id])).ids == [foreign.id]
        assert [each.id for each in await queue.dead.peek()] == [own]
        assert [each.id for each in await fetch(queue)] == [foreign.id]


OF_VERSION_2 = {
    "message": ("rate_key", "slot_at"),
    "message_archive": ("rate_key",),
    "message_queue": ("rate_jobs", "rate_per_us", "rate_full_at", "key_rate_jobs", "key_rate_per_us"),
}


def make_version_1(url: str) -> None:
    """Take away what came with version 2 and later."""
    sql(
        url,
        *(f"DROP TABLE {table}" for table in TABLES if table.startswith("command")),
        "DROP TABLE message_rate",
        "DROP TABLE message_result",
        "DROP TABLE message_repeat",
        *(
            f"ALTER TABLE {table} DROP COLUMN {column}"
            for table, own in OF_VERSION_2.items()
            for column in own
        ),
        "UPDATE message_schema SET version = 1",
    )


async def test_tables_of_version_1_are_migrated_with_all_they_hold(sql_store_url: str) -> None:
    async with Queue("orders", sql_store_url) as queue:
        (dead,) = await bury(queue, "dead")
        waiting = await queue.add("waiting", {"n": 1})
        later = await queue.add("later", delay=timedelta(hours=1))
        await queue.pause()
    make_version_1(sql_store_url)
    with pytest.raises(SchemaError, match=r"message\.rate_key is missing.*message_rate is missing.*migrate"):
        await opened(sql_store_url)
    assert await migrated(sql_store_url) == [2, 3, 4, 5]
    assert await migrated(sql_store_url) == []

    async with Queue("orders", sql_store_url) as queue:
        assert (await queue.stats()).paused
        assert await queue.rate_limits() == NO_LIMITS
        await queue.resume()
        await queue.limit_rate(key=RateLimit(1, timedelta(hours=1)))
        limited = [await queue.add("limited", rate_key="a") for _ in range(2)]
        assert (await queue.dead.replay()).ids == [dead]
        worker = make_worker(queue, store_results=True)
        worker.handler()(lambda job: job.name)
        while await worker.step():
            pass
        assert await queue.result(waiting) == Result("waiting")
        assert await queue.result(dead) == Result("dead")
        assert [await queue.result(each) for each in limited] == [Result("limited"), None]
        assert await queue.cancel(later) == [later]
        await checked_trail(queue)


async def test_a_program_of_version_1_can_go_on_until_it_is_restarted(sql_store_url: str) -> None:
    """Its statements name their columns, so that the tables can be migrated under it."""
    await make_tables(sql_store_url)
    then = "'2020-01-01 00:00:00'"
    sql(
        sql_store_url,
        f"""INSERT INTO message
            (queue, state, attempts_count, deliveries_count, created_at, state_since, job_id, name, payload,
             next_attempt_at, priority)
            VALUES ('orders', 'PENDING', 0, 0, {then}, {then}, 'a', 'job', :payload, {then}, 0)""",
        payload=b"\xc0",
    )
    sql(sql_store_url, f"INSERT INTO message_queue (name, paused_at, last_seq) VALUES ('other', {then}, 0)")
    async with Queue("orders", sql_store_url) as queue:
        (delivery,) = await fetch(queue)
        assert (delivery.id, delivery.rate_key, delivery.slot_at) == ("a", None, None)


async def test_a_half_made_schema_is_completed_by_migrating(sql_store_url: str) -> None:
    await make_tables(sql_store_url)
    drop = "ON message" if kind_of(sql_store_url) == "mysql" else ""
    sql(sql_store_url, "DROP TABLE message_transition", f"DROP INDEX message_job_id {drop}")
    await migrated(sql_store_url)

    def look(connection: Connection) -> set[str | None]:
        return {each["name"] for each in inspect(connection).get_indexes("message")}

    store = on_store(sql_store_url)
    async with store:
        assert "message_job_id" in await store.run_sync(look)
    async with Queue("orders", sql_store_url) as queue:
        await queue.add("job")
        assert len(await checked_trail(queue)) == 1
