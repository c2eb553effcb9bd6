"""A queue on Redis or Valkey with a clock that stands still, and a plain link beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from remuda import Queue
from remuda.clock import VirtualClock
from remuda.stores.redis.link import Link
from tests.faults.conftest import processes, stable
from tests.redis.links import linked

__all__ = ["processes", "stable"]  # worker processes, as the tests of faults have them

QUEUE = "orders"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def queue(redis_store_url: str, clock: VirtualClock) -> AsyncIterator[Queue]:
    """A queue on each kind of server."""
    async with Queue(QUEUE, redis_store_url, clock=clock) as queue:
        yield queue


@pytest.fixture
async def raw(redis_store_url: str) -> AsyncIterator[Link]:
    """The server of `queue`, past the store."""
    async with linked(redis_store_url) as link:
        yield link


@pytest.fixture
async def valkey_queue(valkey_url: str, clock: VirtualClock) -> AsyncIterator[Queue]:
    """A queue on Valkey alone."""
    async with Queue(QUEUE, valkey_url, clock=clock) as queue:
        yield queue


@pytest.fixture
async def valkey(valkey_url: str) -> AsyncIterator[Link]:
    """The server of `valkey_queue`, past the store."""
    async with linked(valkey_url) as link:
        yield link
