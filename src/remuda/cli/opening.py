"""From a URL to an open store or queue."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from remuda.errors import ConfigurationError, RemudaError, SchemaError, StoreUnavailableError
from remuda.stores import SQL_SCHEMES, open_store

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from remuda.codec import PayloadFormat
    from remuda.queue import Queue
    from remuda.stores.contract import Store
    from remuda.stores.sql.store import SqlStore


def given(url: str | None) -> str:
    """The URL, or an error that says where to put one."""
    if not url:
        raise ConfigurationError("which store? Give --url URL or set REMUDA_URL, such as sqlite:///app.db")
    return url


@contextlib.asynccontextmanager
async def opened_store(url: str | None, *, create: bool = False) -> AsyncIterator[Store]:
    """An open store with tables that are as they should be; made if they are missing, and `create`.

    What only looks must not leave an empty store behind because a name was mistyped.
    """
    store = open_store(given(url))
    try:
        with opening(store):
            if create:
                await store.open()
            else:
                await open_existing(store, given(url))
        yield store
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def opened_queue(
    name: str, url: str | None, *, create: bool = False, payload_format: PayloadFormat | None = None
) -> AsyncIterator[Queue]:
    """A queue in such a store."""
    from remuda.codec import PayloadFormat
    from remuda.queue import Queue

    async with opened_store(url, create=create) as store:
        queue = Queue(name, store, payload_format=payload_format or PayloadFormat.MSGPACK)
        try:
            yield queue
        finally:
            await queue.close()


async def open_existing(store: Store, url: str) -> None:
    """Open without making anything; errors say what is missing."""
    sql = sql_store(store)
    if sql is None:
        await store.open()
        return
    check_file(url)
    await sql.open_unchecked()
    await sql.run_sync(_check_tables)


def _check_tables(connection: Connection) -> None:
    from remuda.stores.sql import migrations

    if migrations.installed_version(connection) is None:
        raise SchemaError("there are no tables yet; `remuda init` makes them")
    migrations.check(connection)


def sql_store(store: Store) -> SqlStore | None:
    """The store, if it has tables."""
    if store.url.partition("://")[0].partition("+")[0] not in SQL_SCHEMES:
        return None
    from remuda.stores.sql.store import SqlStore

    return store if isinstance(store, SqlStore) else None


def sqlite_file(url: str) -> Path | None:
    """The file of an SQLite store; None for one in memory, and for other stores."""
    from sqlalchemy.engine import make_url

    made = make_url(url)
    database = made.database if made.get_backend_name() == "sqlite" else None
    if not database or database == ":memory:" or database.startswith("file:"):
        return None
    return Path(database)


def check_file(url: str) -> None:
    """Opening an SQLite file that is not there would make it."""
    path = sqlite_file(url)
    if path is not None and not path.exists():
        raise StoreUnavailableError(f"there is no file {path}; `remuda init` makes it")


@contextlib.contextmanager
def opening(store: Store) -> Iterator[None]:
    """What a driver says about a wrong password or an unknown database, as an error of ours."""
    try:
        yield
    except RemudaError:
        raise
    except Exception as error:
        origin = getattr(error, "orig", None) or error
        raise StoreUnavailableError(
            f"the store {store.url} cannot be opened: {type(origin).__name__}: {origin}"
        ) from error
