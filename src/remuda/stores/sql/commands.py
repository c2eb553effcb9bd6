"""Commands in SQL tables. Whoever changes a fleet is alone with it, for the milliseconds that a batch takes.

So turns, keys, slots and lanes need no further care: `command_writing`, `command_lanes`, `command_turns`,
`command_ends` and `command_signals` look and then change. `command_looking` waits for nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from remuda.clock import Clock
from remuda.lifecycle import CommandStatus
from remuda.stores.command_trail import trail_name
from remuda.stores.commands import (
    Arrival,
    Change,
    Claimed,
    CommandStats,
    CommandStore,
    Home,
    LaneStats,
    Pace,
    StoredCommand,
    StoredSignal,
)
from remuda.stores.contract import Capabilities, TrailPage
from remuda.stores.sql import (
    command_ends,
    command_fleet,
    command_lanes,
    command_looking,
    command_signals,
    command_writing,
    open_sql_store,
)
from remuda.stores.sql.phrasing import PHRASINGS
from remuda.stores.sql.steps import Steps

T = TypeVar("T")


class SqlCommands(CommandStore):
    """The commands of one fleet on SQLite, PostgreSQL, MariaDB or MySQL."""

    def __init__(self, url: str, *, fleet: str = "devices", clock: Clock | None = None) -> None:
        super().__init__()
        self.fleet = fleet
        self._store = open_sql_store(url, clock=clock)
        self.url = self._store.url
        self._say = PHRASINGS[self._store.backend]
        self._is_made = False

    def now(self) -> datetime:
        return self._store.now()

    async def open(self) -> Capabilities:
        capabilities = await self._store.open()
        if not self._is_made:
            await self._store.change(lambda: command_fleet.make(self._say, self.fleet))
            self._is_made = True
        return capabilities

    async def close(self) -> None:
        await self._store.close()

    async def _change(self, make: Callable[[], Steps[T]]) -> T:
        await self.open()
        return await self._store.change(make)

    async def _look(self, make: Callable[[], Steps[T]]) -> T:
        await self.open()
        return await self._store.look(make)

    # -- records

    async def write(self, changes: Sequence[Change], *, who: str, whole: bool = False) -> list[bool]:
        await self.open()
        if not changes:
            return []
        now = self.now()
        written = await self._change(
            lambda: command_writing.write(self._say, self.fleet, changes, who=who, whole=whole, now=now)
        )
        for arrival in written.arrivals:
            self._arrived(arrival)
        return written.verdicts

    async def load(self, ids: Sequence[str]) -> dict[str, StoredCommand]:
        if not ids:
            return {}
        return await self._look(lambda: command_looking.load(self._say, self.fleet, ids))

    async def owners(self, keys: Sequence[str]) -> dict[str, StoredCommand]:
        if not keys:
            return {}
        return await self._look(lambda: command_looking.owners(self._say, self.fleet, keys))

    async def hearers(self, devices: Sequence[str]) -> dict[str, list[StoredCommand]]:
        if not devices:
            return {}
        return await self._look(lambda: command_looking.hearers(self._say, self.fleet, devices))

    async def find(self, external_ids: Sequence[str]) -> dict[str, str]:
        if not external_ids:
            return {}
        return await self._look(lambda: command_looking.find(self._say, self.fleet, external_ids))

    # -- work

    async def claim(self, paces: Sequence[Pace], *, limit: int, hold: timedelta) -> Claimed:
        await self.open()
        now = self.now()
        return await self._change(
            lambda: command_lanes.claim(self._say, self.fleet, paces, limit=limit, hold=hold, now=now)
        )

    async def due(self, homes: Sequence[Home], *, limit: int, hold: timedelta) -> list[StoredCommand]:
        await self.open()
        now = self.now()
        return await self._change(
            lambda: command_ends.due(self._say, self.fleet, homes, limit=limit, hold=hold, now=now)
        )

    # -- signals

    async def keep_signals(self, signals: Sequence[StoredSignal], *, remember: timedelta) -> int:
        await self.open()
        if not signals:
            return 0
        now = self.now()
        new = await self._change(
            lambda: command_signals.keep(self._say, self.fleet, signals, remember=remember, now=now)
        )
        if new:
            self._arrived(Arrival.SIGNAL)
        return new

    async def take_signals(self, *, limit: int, hold: timedelta) -> list[StoredSignal]:
        await self.open()
        now = self.now()
        return await self._change(
            lambda: command_signals.take(self._say, self.fleet, limit=limit, hold=hold, now=now)
        )

    async def settle_signals(self, *, done: Sequence[str], later: Sequence[tuple[str, datetime]]) -> None:
        await self.open()
        if not done and not later:
            return
        now = self.now()
        await self._change(
            lambda: command_signals.settle(self._say, self.fleet, done=done, later=later, now=now)
        )

    # -- ends

    async def take_ended(self, *, limit: int, hold: timedelta) -> list[StoredCommand]:
        await self.open()
        now = self.now()
        return await self._change(
            lambda: command_ends.take_ended(self._say, self.fleet, limit=limit, hold=hold, now=now)
        )

    async def mark_published(self, ids: Sequence[str]) -> None:
        if ids:
            await self._change(lambda: command_ends.mark_published(self._say, self.fleet, ids))

    async def prune(self, *, ended_before: datetime, limit: int) -> int:
        await self.open()
        now = self.now()
        removed = await self._change(
            lambda: command_ends.prune(self._say, self.fleet, before=ended_before, limit=limit)
        )
        if removed < limit:
            removed += await self._change(
                lambda: command_signals.prune(self._say, self.fleet, limit=limit - removed, now=now)
            )
        return removed

    # -- lanes

    async def hold_lane(self, lane: str, *, until: datetime | None, why: str) -> None:
        await self._change(lambda: command_lanes.hold(self._say, self.fleet, lane, until=until, why=why))

    async def release_lane(self, lane: str) -> None:
        await self._change(lambda: command_lanes.release(self._say, self.fleet, lane))

    async def lanes(self) -> list[LaneStats]:
        await self.open()
        now = self.now()
        return await self._look(lambda: command_looking.lanes(self._say, self.fleet, now=now))

    # -- looking

    async def stats(self) -> CommandStats:
        return await self._look(lambda: command_looking.stats(self._say, self.fleet))

    async def commands(
        self,
        *,
        status: CommandStatus | None = None,
        lane: str | None = None,
        device: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[StoredCommand]:
        return await self._look(
            lambda: command_looking.commands(
                self._say,
                self.fleet,
                before=before,
                limit=limit,
                status=None if status is None else status.value,
                lane=lane,
                device=device,
            )
        )

    async def named(self, name: str) -> list[str]:
        return await self._look(lambda: command_looking.named(self._say, self.fleet, name))

    # -- the trail

    async def transitions(self, *, after: int, limit: int) -> TrailPage:
        return await self._store.transitions(trail_name(self.fleet), after=after, limit=limit)

    async def trail_offset(self, *, since: datetime) -> int:
        return await self._store.trail_offset(trail_name(self.fleet), since=since)

    async def trim_transitions(self, *, up_to: int) -> int:
        return await self._store.trim_transitions(trail_name(self.fleet), up_to=up_to)
