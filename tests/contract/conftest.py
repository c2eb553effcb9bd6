"""A queue in a fresh store of each kind, on a clock that stands still until a test moves it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from remuda import Queue
from remuda.clock import VirtualClock
from tests.contract.workbench import QUEUE


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def queue(store_url: str, clock: VirtualClock) -> AsyncIterator[Queue]:
    async with Queue(QUEUE, store_url, clock=clock) as queue:
        yield queue


@pytest.fixture
async def other_queue(queue: Queue) -> AsyncIterator[Queue]:
    """A second queue in the same store."""
    async with Queue("other", queue.store) as other:
        yield other
