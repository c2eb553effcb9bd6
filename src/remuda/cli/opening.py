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
    from remuda.stores.commands import CommandStore
    from remuda.stores.contract import Store
    from remuda.stores.sql.store import SqlStore

_NO_ENTRY = ("NOAUTH", "WRONGPASS")  # what Redis says of a wrong password


def given(url: str | None) -> str:
    """The URL, or an error that says where to put one."""
    if not url:
        raise ConfigurationError("which store? Give --url URL or set REMUDA_URL, such as sqlite:///app.db")
    return url


@contextlib.asynccontextmanager
async def opened_store(url: str | None, *, create: bool = False) -> AsyncIterator[Store]:
    """An open store; one with tables has them as they should be, made if they are missing and `create`.

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
    check_there(url)
    sql = sql_store(store)
    if sql is None:
        await store.open()
        return
    await sql.open_unchecked()
    await sql.run_sync(_check_tables)


def _check_tables(connection: Connection) -> None:
    from remuda.stores.sql import migrations

    if migrations.installed_version(connection) is None:
        raise SchemaError("there are no tables yet; `remuda init` makes them")
    migrations.check(connection)


def sql_store(store: Store) -> SqlStore | None:
    """The store, if it has tables."""
    if _family(store.url) not in SQL_SCHEMES:
        return None
    from remuda.stores.sql.store import SqlStore

    return store if isinstance(store, SqlStore) else None


def sqlite_file(url: str) -> Path | None:
    """The file of an SQLite store; None for one in memory, and for other stores."""
    if _family(url) != "sqlite":
        return None
    from sqlalchemy.engine import make_url

    database = make_url(url).database
    if not database or database == ":memory:" or database.startswith("file:"):
        return None
    return Path(database)


def embedded_folder(url: str) -> Path | None:
    """The folder of an embedded server; None for other stores."""
    if not url.lower().startswith("valkey+embedded://"):
        return None
    from remuda.stores.redis.urls import parse

    return Path(parse(url).path or "")


def check_there(url: str) -> None:
    """Opening a file or a folder that is not there would make it."""
    path = sqlite_file(url)
    if path is not None and not path.exists():
        raise StoreUnavailableError(f"there is no file {path}; `remuda init` makes it")
    folder = embedded_folder(url)
    if folder is not None and not (folder / "appendonlydir").exists():
        raise StoreUnavailableError(f"there is no store in the folder {folder}; `remuda init` makes one")


def _family(url: str) -> str:
    return url.partition("://")[0].partition("+")[0].lower()


@contextlib.contextmanager
def opening(store: Store | CommandStore) -> Iterator[None]:
    """What a driver says about a wrong password or an unknown database, as an error of ours."""
    try:
        yield
    except RemudaError as error:
        if getattr(error, "code", None) in _NO_ENTRY:
            raise StoreUnavailableError(str(error)) from error
        raise
    except Exception as error:
        origin = getattr(error, "orig", None) or error
        raise StoreUnavailableError(
            f"the store {store.url} cannot be opened: {type(origin).__name__}: {origin}"
        ) from error
