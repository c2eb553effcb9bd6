"""What a benchmarked system must be able to do for ``bench.measures`` to measure it.

Runs inside the peers' own environments, hence the standard library only.
"""

from __future__ import annotations

import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

PAYLOAD_BYTES = 100

Handled = Callable[[bytes], None]
"""What a peer's handler calls with the payload, once for each job; may be called from any thread."""


class BenchError(Exception):
    """The peer lost jobs, handled some twice, or left some behind: its figure would mean nothing."""


class Peer(ABC):
    """One system on one store.  A peer's file subclasses this and ends with ``main(ItsClass)``."""

    packages: tuple[str, ...] = ()
    """Distributions whose versions belong in the report."""

    def __init__(self, url: str, measure: str, variant: str) -> None:
        self.url = url
        # BENCH_TUNE (JSON) overrides settings: for finding the best ones, and it shows in the report.
        self.tune = self.settings(measure, variant) | json.loads(os.environ.get("BENCH_TUNE", "{}"))

    @abstractmethod
    def settings(self, measure: str, variant: str) -> dict[str, Any]:
        """The best sensible settings for ``measure``, which are reported beside the figures.

        ``variant`` is empty, or one of the names that the file's metadata lists.
        """

    @abstractmethod
    async def create(self) -> None:
        """Make the tables in an empty store.  Called once, before any ``open``."""

    @abstractmethod
    async def open(self) -> None:
        """Connect; afterwards jobs can be added and counted."""

    @abstractmethod
    async def close(self) -> None:
        """Release what ``open`` took."""

    @abstractmethod
    async def add(self, payload: bytes) -> None:
        """Add one job; it is committed when this returns."""

    @abstractmethod
    async def add_many(self, payloads: list[bytes]) -> None:
        """Add jobs the fastest way the system offers; all are committed when this returns."""

    @abstractmethod
    async def left(self) -> int:
        """How many jobs the store holds that are not settled yet, claimed ones included."""

    @abstractmethod
    def worker(self, handled: Handled) -> AbstractAsyncContextManager[float | None]:
        """A new worker that runs inside the context and has stopped in an orderly way after it.

        It is timed from the call on, or from the moment that it yields (by ``time.perf_counter``).
        """


def stamped_payload() -> bytes:
    """100 ASCII bytes that begin with the time of now, so that JSON systems can carry them as text."""
    return b"%020d" % time.monotonic_ns() + b"x" * (PAYLOAD_BYTES - 20)


def stamp_age_ms(payload: bytes) -> float:
    """How long ago the payload was stamped; the monotonic clock is one for all processes of a machine."""
    return (time.monotonic_ns() - int(payload[:20])) / 1e6
