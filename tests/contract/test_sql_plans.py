"""A fetch walks the index in the order in which it fetches, however many rows other queues have."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection

from remuda import NewJob, Queue
from remuda.stores.sql.steps import Raw
from remuda.stores.sql.store import SqlStore
from tests.contract.workbench import HOUR, fetch


async def crowded(queue: Queue) -> SqlStore:
    """A queue of a few, beside one with many older rows."""
    other = Queue("other", queue.store)
    earlier = queue.store.now() - HOUR
    await other.add_many([NewJob("job", n, next_attempt_at=earlier) for n in range(20_000)])
    await queue.add_many([NewJob("job", n) for n in range(200)])
    assert isinstance(queue.store, SqlStore)
    return queue.store


async def statements_of_a_fetch(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> list[Raw]:
    """What a fetch asks in order to find due rows, taken down while it asks."""
    store = queue.store
    assert isinstance(store, SqlStore)
    asked: list[Raw] = []
    claim = store.dialect.claim

    def noted(*arguments: Any, **options: Any) -> Any:
        steps = claim(*arguments, **options)
        rows: Any = None
        while True:
            try:
                query = next(steps) if rows is None else steps.send(rows)
            except StopIteration as end:
                return end.value
            if isinstance(query, Raw) and "next_attempt_at <=" in query.sql:
                asked.append(query)
            rows = yield query

    with monkeypatch.context() as patch:
        patch.setattr(store.dialect, "claim", noted)
        assert len(await fetch(queue, 100)) == 100
    assert asked
    return asked


async def test_sqlite_fetches_by_the_index(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Queue("orders", sqlite_url) as queue:
        store = await crowded(queue)
        asked = await statements_of_a_fetch(queue, monkeypatch)

        def look(connection: Connection) -> list[str]:
            plans = [
                connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query.sql}", tuple(query.params))
                for query in asked
            ]
            return [" | ".join(str(row[-1]) for row in plan) for plan in plans]

        for plan in await store.run_sync(look):
            assert "USING INDEX message_fetch (queue=? AND priority=? AND next_attempt_at<?)" in plan
            assert "TEMP B-TREE FOR ORDER BY" not in plan


@pytest.mark.parametrize("analyzed", [False, True], ids=["unknown to the planner", "analyzed"])
async def test_postgres_fetches_by_the_index(
    postgres_url: str, analyzed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Queue("orders", postgres_url) as queue:
        store = await crowded(queue)
        (query,) = await statements_of_a_fetch(queue, monkeypatch)

        def look(connection: Connection) -> Any:
            if analyzed:
                connection.exec_driver_sql("ANALYZE message")
            # As on the store's own connections.
            for setting in ("enable_seqscan", "enable_hashjoin", "enable_mergejoin"):
                connection.exec_driver_sql(f"SET LOCAL {setting} = off")
            rows = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {query.sql}", tuple(query.params))
            plan = rows.scalar_one()
            return json.loads(plan) if isinstance(plan, str) else plan

        nodes = list(_nodes((await store.run_sync(look))[0]["Plan"]))
        walks = [each for each in nodes if each.get("Index Name") == "message_fetch"]
        assert len(walks) == 1
        for column in ("queue", "priority", "next_attempt_at"):
            assert column in walks[0]["Index Cond"]
        assert not [each for each in nodes if each["Node Type"] in ("Seq Scan", "Sort", "Incremental Sort")]


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for each in plan.get("Plans", ()):
        yield from _nodes(each)


async def test_mariadb_fetches_by_the_index(mariadb_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Queue("orders", mariadb_url) as queue:
        store = await crowded(queue)
        asked = await statements_of_a_fetch(queue, monkeypatch)

        def look(connection: Connection) -> list[dict[str, Any]]:
            return [
                dict(row._mapping)
                for query in asked
                if "FOR UPDATE" in query.sql
                for row in connection.exec_driver_sql(f"EXPLAIN {query.sql}", tuple(query.params))
            ]

        rows = await store.run_sync(look)
        assert rows
        for row in rows:
            assert (row["table"], row["key"]) == ("message", "message_fetch_all")
            assert "filesort" not in (row["Extra"] or "")
            assert int(row["rows"]) <= 2_000


@pytest.mark.parametrize("store_name", ["sqlite", "postgres"])
async def test_live_jobs_are_counted_by_the_indexes(request: pytest.FixtureRequest, store_name: str) -> None:
    """Each half by its own, so that neither the other queues' jobs nor the whole table are looked at."""
    async with Queue("orders", request.getfixturevalue(f"{store_name}_url")) as queue:
        store = await crowded(queue)
        await fetch(queue, 50)
        query = next(store.dialect.count_live("orders", at_most=1_000, alone=False))
        assert isinstance(query, Raw)

        def look(connection: Connection) -> str:
            if store_name == "postgres":
                connection.exec_driver_sql("SET LOCAL enable_seqscan = off")  # as on the store's own
            explain = "EXPLAIN" if store_name == "postgres" else "EXPLAIN QUERY PLAN"
            rows = connection.exec_driver_sql(f"{explain} {query.sql}", tuple(query.params))
            return "\n".join(str(row[-1]) for row in rows)

        plan = await store.run_sync(look)
        assert "message_fetch" in plan
        assert "message_running" in plan
        assert "Seq Scan" not in plan


async def test_a_crowd_in_another_queue_does_not_slow_a_fetch(sql_store_url: str) -> None:
    """The best of several fetches, with the crowd and without it, in one run."""
    async with Queue("orders", sql_store_url) as queue:
        quick = await _best_fetch(queue)
        await crowded(queue)
        await queue.purge()
        crowd = await _best_fetch(queue)
        assert crowd < 5 * quick + 0.005


async def _best_fetch(queue: Queue) -> float:
    best = float("inf")
    for _ in range(5):
        await queue.add_many([NewJob("job", n) for n in range(100)])
        start = time.perf_counter()
        assert len(await fetch(queue, 100)) == 100
        best = min(best, time.perf_counter() - start)
    return best
