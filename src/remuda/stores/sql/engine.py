"""SQLAlchemy's async engine, and one way to run a function in a transaction on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.engine import URL
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from remuda.stores.sql.errors import is_conflict, is_outage, unavailable

T = TypeVar("T")

CONFLICT_TRIES = 5


def make_engine(url: URL, **options: Any) -> AsyncEngine:
    """An engine with a small pool. Nothing is reset on return: every use is a transaction that has ended."""
    return create_async_engine(
        url, pool_size=4, max_overflow=4, pool_recycle=1800, pool_reset_on_return=None, **options
    )


async def run_on_engine(engine: AsyncEngine, act: Callable[[Connection], T], backend: str) -> T:
    """Run `act` in one transaction; conflicts are run again, outages become `StoreUnavailableError`."""
    stale = False
    for tries_left in reversed(range(CONFLICT_TRIES)):
        committing = False
        try:
            async with engine.begin() as connection:
                result = await connection.run_sync(act)
                committing = True
            return result
        except Exception as error:
            if is_outage(error) and not committing and not stale:
                # A connection that the server closed while it lay in the pool. Nothing was committed.
                stale = True
                continue
            if (is_conflict(error) or isinstance(error, IntegrityError)) and tries_left:
                continue  # a row that two transactions wanted to make is there the second time
            if is_conflict(error) or is_outage(error):
                raise unavailable(backend, error) from error
            raise
    raise AssertionError("unreachable")
