"""What every part of the store needs: its connections, its clock, its scripts run on a queue's keys."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from remuda.clock import Clock
from remuda.errors import StoreError
from remuda.stores.contract import Capabilities, Store
from remuda.stores.redis.holding import Argument
from remuda.stores.redis.inspection import Inspector
from remuda.stores.redis.keys import Keys, keys_of
from remuda.stores.redis.link import Link, Script
from remuda.stores.redis.refusals import RefusedError
from remuda.stores.redis.settling import Caps
from remuda.stores.redis.sweeping import Sweeper
from remuda.stores.redis.urls import parse
from remuda.stores.redis.wire import from_us, to_us

DEFAULT_TRAIL_MAX = 1_000_000
DEFAULT_TRAIL_AGE = timedelta(days=7)
DEFAULT_DONE_MAX = 100_000
DONE_BYTES_MAX = 64 * 1024 * 1024
DEFAULT_DLQ_MAX = 100_000
EVENTS_MAX = 100_000
# ChasquiMQ's workers claim what was idle for 30 s, whatever its lease.
RENEW_WITHIN = timedelta(seconds=10)


class ConnectedStore(Store):
    """A store with its connections and its clock; what it does with them stands in the classes above it."""

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self._address = parse(url)
        self._link = Link(self._address)
        self.url = self._link.url
        self._clock = clock
        self._clock_offset = timedelta(0)
        self._opening = asyncio.Lock()
        self._capabilities: Capabilities | None = None
        self._closed = False
        self._has_ackdel = False
        self._can_claim = False
        self._ends: dict[str, list[bytes]] = {}
        self._sweepers: dict[str, Sweeper] = {}
        address = self._address
        self._trail_max = DEFAULT_TRAIL_MAX if address.trail_max is None else address.trail_max
        self._trail_age = DEFAULT_TRAIL_AGE if address.trail_age is None else address.trail_age
        self._events_max = EVENTS_MAX if address.events else 0
        self._caps = Caps(
            DEFAULT_DONE_MAX if address.done_max is None else address.done_max,
            DONE_BYTES_MAX,
            DEFAULT_DLQ_MAX if address.dlq_max is None else address.dlq_max,
        )

    # -- what a store of another kind on the same server shares

    @property
    def link(self) -> Link:
        return self._link

    @property
    def trail_max(self) -> int:
        """How many transitions a trail keeps."""
        return self._trail_max

    @property
    def trail_age(self) -> timedelta:
        """How long a trail keeps them."""
        return self._trail_age

    # -- life

    def now(self) -> datetime:
        if self._clock is not None:
            return self._clock.now()
        return datetime.now(UTC) + self._clock_offset if self._clock_offset else datetime.now(UTC)

    async def open(self) -> Capabilities:
        if self._capabilities is not None:
            return self._capabilities
        async with self._opening:
            if self._closed:
                raise StoreError(f"the store {self.url} was closed; open a new one")
            if self._capabilities is None:
                server = await self._link.open()
                self._has_ackdel = server.has_ackdel
                self._can_claim = server.has_read_claim
                # A server that still reads its file answers some commands, but not this one. A user who may
                # not look at the key is answered, too.
                with contextlib.suppress(RefusedError):
                    await self._link.call("EXISTS", keys_of("").meta)
                await self._learn_clock()
                self._capabilities = Capabilities(
                    backend=server.kind,
                    version=server.release,
                    wake="notify",
                    transactional=False,
                    renew_within=RENEW_WITHIN,
                    completed_kept=self._caps.done_jobs,
                    features=server.features(),
                )
            return self._capabilities

    async def close(self) -> None:
        async with self._opening:
            self._closed = True
            self._capabilities = None
            await self._link.close()

    async def _learn_clock(self) -> None:
        """How far the server's clock is from this machine's, as far as the length of a round trip tells."""
        if self._clock is not None:
            return
        asked = datetime.now(UTC)
        seconds, microseconds = await self._link.call("TIME")
        answered = datetime.now(UTC)
        server = from_us(int(seconds) * 1_000_000 + int(microseconds))
        offset = server - (asked + (answered - asked) / 2)
        # Less than the answer took on its way is no difference that could be told.
        if abs(offset - self._clock_offset) > answered - asked:
            self._clock_offset = offset

    async def _run(self, script: Script, queue: str, now: datetime, arguments: Sequence[Argument]) -> Any:
        if self._capabilities is None:
            await self.open()
        keys = keys_of(queue)
        return await self._link.run(
            script,
            keys.for_scripts(),
            [keys.prefix, to_us(now), self._trail_max, self._events_max, *arguments],
        )

    async def _inspector(self, queue: str) -> tuple[Inspector, Keys]:
        await self.open()
        keys = keys_of(queue)
        return Inspector(self._link, keys, queue), keys
