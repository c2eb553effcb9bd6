"""The pytest fixture `remuda_queue`: an `InlineQueue` for one test. Loaded by pytest by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from remuda.testing import InlineQueue


@pytest.fixture
def remuda_queue() -> Iterator[InlineQueue]:
    """A queue that runs inline on a virtual clock; see `remuda.testing.InlineQueue`.

    It works with any plugin for async tests: its store belongs to no event loop before the first use.
    """
    from remuda.testing import InlineQueue

    queue = InlineQueue()
    yield queue
    asyncio.run(queue.close())
