"""Waiting for something to become true, for as long as it may take and no longer."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from remuda import StoreUnavailableError

T = TypeVar("T")

PATIENCE_S = 30.0
GLANCE_S = 0.02


async def until(condition: Callable[[], T | Awaitable[T]], what: str, *, within_s: float = PATIENCE_S) -> T:
    """The first value of `condition` that is true; fails when there is none in time."""
    deadline = time.monotonic() + within_s
    while True:
        value: T | None = None
        with suppress(StoreUnavailableError):  # as a caller may see it once after an outage
            found = condition()
            value = await found if inspect.isawaitable(found) else found
        if value:
            return value
        assert time.monotonic() < deadline, (
            f"{within_s:.0f} s have passed without this: {what}; last seen: {value!r}"
        )
        await asyncio.sleep(GLANCE_S)
