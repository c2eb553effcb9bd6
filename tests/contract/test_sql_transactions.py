"""Adding inside the caller's own transaction: the job commits or rolls back with the caller's data."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from remuda import ConfigurationError, NewJob, Queue, State
from tests.contract.workbench import checked_trail, eventually, make_worker, record_of, running, trail

SYNC_DRIVERS = {"sqlite": "sqlite+pysqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}
ASYNC_DRIVERS = {"postgresql": "postgresql+asyncpg", "mysql": "mysql+asyncmy"}
with contextlib.suppress(ImportError):
    import aiosqlite  # noqa: F401 - an optional driver of the caller's

    ASYNC_DRIVERS["sqlite"] = "sqlite+aiosqlite"

STORES = ["sqlite", "postgres", "mariadb"]
KINDS = {"sqlite": "sqlite", "postgres": "postgresql", "mariadb": "mysql"}
WAYS = [(store, way) for store in STORES for way in ("connection", "session")] + [
    (store, way)
    for store in STORES
    if KINDS[store] in ASYNC_DRIVERS
    for way in ("async connection", "async session")
]


def address(url: str, drivers: dict[str, str]) -> URL:
    made = make_url(url)
    return made.set(drivername=drivers[made.get_backend_name()])


@contextlib.asynccontextmanager
async def transaction(url: str, way: str) -> AsyncIterator[Any]:
    """A transaction of the caller's, on a connection of its own; an error rolls it back."""
    if way.startswith("async"):
        engine = create_async_engine(address(url, ASYNC_DRIVERS))
        try:
            if way == "async session":
                async with AsyncSession(engine) as session, session.begin():
                    yield session
            else:
                async with engine.begin() as connection:
                    yield connection
        finally:
            await engine.dispose()
        return
    sync_engine = create_engine(address(url, SYNC_DRIVERS))
    try:
        if way == "session":
            with Session(sync_engine) as sync_session, sync_session.begin():
                yield sync_session
        else:
            with sync_engine.begin() as sync_connection:
                yield sync_connection
    finally:
        sync_engine.dispose()


async def execute(caller: Any, statement: str) -> Any:
    result = caller.execute(text(statement))
    return await result if hasattr(result, "__await__") else result


@pytest.fixture(params=WAYS, ids=lambda each: f"{each[0]}-{each[1].replace(' ', '-')}")
def store_and_way(request: pytest.FixtureRequest) -> tuple[str, str]:
    store, way = request.param
    return request.getfixturevalue(f"{store}_url"), way


class RolledBack(Exception):
    pass


async def test_jobs_commit_with_the_callers_data(store_and_way: tuple[str, str]) -> None:
    url, way = store_and_way
    async with Queue("orders", url) as queue:
        await queue.open()
        async with transaction(url, way) as caller:
            await execute(caller, "CREATE TABLE IF NOT EXISTS bill (id INTEGER PRIMARY KEY)")
        async with transaction(url, way) as caller:
            await execute(caller, "INSERT INTO bill VALUES (7)")
            one = await queue.add("paid", {"n": 1}, headers={"h": "%s $1"}, connection=caller)
            first = await queue.add_unique("paid", {"n": 2}, job_id="mine", connection=caller)
            second = await queue.add_unique("paid", {"n": 3}, job_id="mine", connection=caller)
            many = await queue.add_many(
                [NewJob("paid", {"n": 4}, delay=timedelta(hours=1)), NewJob("paid", {"n": 5}, priority=1)],
                connection=caller,
            )
            assert (first.new, second.new) == (True, False)
            assert await queue.get(one) is None
        async with transaction(url, way) as caller:
            assert (await execute(caller, "SELECT id FROM bill")).scalar() == 7
        found = [(await record_of(queue, each)).value()["n"] for each in (one, "mine", *many)]
        assert found == [1, 2, 4, 5]
        assert (await record_of(queue, one)).headers == {"h": "%s $1"}
        assert (await queue.stats()).pending == 4
        assert len(await checked_trail(queue)) == 4


async def test_jobs_and_their_trail_roll_back_with_the_callers_data(store_and_way: tuple[str, str]) -> None:
    url, way = store_and_way
    async with Queue("orders", url) as queue:
        await queue.open()
        with contextlib.suppress(RolledBack):
            async with transaction(url, way) as caller:
                await queue.add("paid", {"n": 1}, connection=caller)
                await queue.add_unique("paid", job_id="mine", connection=caller)
                await queue.add_many([NewJob("paid", n) for n in range(10)], connection=caller)
                raise RolledBack
        assert (await queue.stats()).total == 0
        assert await trail(queue) == []
        kept = await queue.add("paid")
        transitions = await checked_trail(queue)
        assert [each.message for each in transitions] == [kept]


async def test_a_long_transaction_of_the_callers_leaves_no_gap_in_the_trail(postgres_url: str) -> None:
    """What commits later is numbered later, though it was written earlier."""
    async with Queue("orders", postgres_url) as queue:
        await queue.open()
        async with transaction(postgres_url, "async connection") as caller:
            late = await queue.add("late", connection=caller)
            early = await queue.add("early")
            assert [each.message for each in await checked_trail(queue)] == [early]
        assert [each.message for each in await checked_trail(queue)] == [early, late]


async def test_a_commit_of_the_callers_wakes_an_idle_worker(postgres_url: str) -> None:
    async with Queue("orders", postgres_url) as queue:
        await queue.open()
        worker = make_worker(queue, max_fetch_interval=timedelta(hours=1))
        worker.handler()(lambda job: None)
        async with running(worker):
            async with transaction(postgres_url, "connection") as caller:
                await queue.add("paid", connection=caller)
            await eventually(lambda: worker.counts.completed == 1)


async def test_a_commit_of_another_program_wakes_an_idle_worker_on_sqlite(sqlite_url: str) -> None:
    async with Queue("orders", sqlite_url) as queue, Queue("orders", sqlite_url) as elsewhere:
        await queue.open()
        worker = make_worker(queue, max_fetch_interval=timedelta(hours=1))
        worker.handler()(lambda job: None)
        async with running(worker):
            for number in range(1, 4):
                await elsewhere.add("paid")
                await eventually(lambda number=number: worker.counts.completed == number)  # type: ignore[misc]


async def test_a_connection_to_another_kind_of_database_is_refused(
    sqlite_url: str, postgres_url: str
) -> None:
    async with Queue("orders", sqlite_url) as queue:
        async with transaction(postgres_url, "connection") as caller:
            with pytest.raises(ConfigurationError, match="postgresql"):
                await queue.add("paid", connection=caller)
        with pytest.raises(ConfigurationError, match="str"):
            await queue.add("paid", connection="sqlite://")
        assert (await queue.stats()).total == 0


async def test_an_unencodable_job_leaves_the_callers_transaction_usable(postgres_url: str) -> None:
    async with Queue("orders", postgres_url) as queue:
        await queue.open()
        async with transaction(postgres_url, "async connection") as caller:
            with pytest.raises(ValueError, match="encoded"):
                await queue.add("paid", object(), connection=caller)
            job_id = await queue.add("paid", connection=caller)
        assert (await record_of(queue, job_id)).state is State.PENDING


async def test_a_queue_that_is_first_used_inside_a_transaction_does_not_wait_for_it(sqlite_url: str) -> None:
    async with Queue("orders", sqlite_url) as queue:
        await queue.add("job")  # the tables are there
    engine = create_engine(sqlite_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE mine (n INTEGER)"))
    late = Queue("orders", sqlite_url)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO mine VALUES (1)"))  # from here on nobody else can write
        async with asyncio.timeout(5):
            await late.add("job", connection=connection)
    assert (await late.stats()).pending == 2
    await late.close()
    engine.dispose()
