"""The server's clock, as a store that works on a real one comes to know it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from remuda import Queue, open_store
from remuda.stores.sql.store import SqlStore

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
MS = timedelta(milliseconds=1)


@pytest.fixture
def store(sqlite_url: str) -> SqlStore:
    store = open_store(sqlite_url)
    assert isinstance(store, SqlStore)
    return store


def offset(store: SqlStore) -> timedelta:
    return store.now() - datetime.now(UTC)


def test_the_servers_clock_is_followed(store: SqlStore) -> None:
    store._learn_clock(NOON, NOON + MINUTE + MS, NOON + 2 * MS)
    assert abs(offset(store) - MINUTE) < timedelta(seconds=1)


def test_a_long_round_trip_does_not_spoil_what_is_known(store: SqlStore) -> None:
    store._learn_clock(NOON, NOON + MINUTE + MS, NOON + 2 * MS)
    store._learn_clock(NOON, NOON + 2 * MINUTE, NOON + MINUTE)
    assert abs(offset(store) - MINUTE) < timedelta(seconds=1)
    store._learn_clock(NOON, NOON + 3 * MINUTE + MS, NOON + 3 * MS)
    assert abs(offset(store) - 3 * MINUTE) < timedelta(seconds=1)


async def test_a_real_server_on_this_machine_has_this_machines_time(sql_store_url: str) -> None:
    async with Queue("jobs", sql_store_url) as queue:
        assert isinstance(queue.store, SqlStore)
        assert abs(offset(queue.store)) < timedelta(seconds=1)
