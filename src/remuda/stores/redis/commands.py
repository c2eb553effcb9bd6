"""RedisCommands: the contract of a command store on Redis and Valkey. `command_keys` has the key space."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from remuda.clock import Clock
from remuda.errors import ConfigurationError
from remuda.lifecycle import CommandStatus
from remuda.stores.command_trail import trail_name
from remuda.stores.commands import (
    TIMED_HOMES,
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
from remuda.stores.redis import command_scripts as scripts
from remuda.stores.redis import trail
from remuda.stores.redis.command_inspection import CommandInspector
from remuda.stores.redis.command_keys import command_keys
from remuda.stores.redis.command_wire import (
    keep_arguments,
    numbered_commands,
    pace_arguments,
    stored_commands,
    stored_signals,
    write_arguments,
)
from remuda.stores.redis.holding import Argument
from remuda.stores.redis.link import Script
from remuda.stores.redis.store import RedisStore
from remuda.stores.redis.wire import from_score, to_score

AT_ONCE = 500  # in one step of the server, so that others get their turn
WHOLE_AT_ONCE = 10_000


class RedisCommands(CommandStore):
    """Redis 6.2 or later, Valkey 7.2 or later. Connections and clock are those of a job store on its URL."""

    def __init__(self, url: str, *, fleet: str = "devices", clock: Clock | None = None) -> None:
        super().__init__()
        self.fleet = fleet
        self._keys = command_keys(fleet)
        self._server = RedisStore(url, clock)
        self._link = self._server.link
        self.url = self._server.url
        self._inspector = CommandInspector(self._link, self._keys, self._run)

    def now(self) -> datetime:
        return self._server.now()

    async def open(self) -> Capabilities:
        capabilities = await self._server.open()
        return msgspec.structs.replace(capabilities, wake="poll", renew_within=None, completed_kept=None)

    async def close(self) -> None:
        await self._server.close()

    async def _run(self, script: Script, arguments: Sequence[Argument]) -> Any:
        await self._server.open()
        return await self._link.run(
            script,
            self._keys.for_scripts(),
            [self._keys.prefix, to_score(self.now()), self._server.trail_max, *arguments],
        )

    # -- records

    async def write(self, changes: Sequence[Change], *, who: str, whole: bool = False) -> list[bool]:
        if whole and len(changes) > WHOLE_AT_ONCE:
            raise ConfigurationError(
                f"{len(changes):,} changes as a whole; at most {WHOLE_AT_ONCE:,} fit into one step"
            )
        step = max(1, len(changes)) if whole else AT_ONCE
        written: list[bool] = []
        for start in range(0, len(changes), step):
            written += await self._write(changes[start : start + step], who=who, whole=whole)
        return written

    async def _write(self, changes: Sequence[Change], *, who: str, whole: bool) -> list[bool]:
        """A step writes all or nothing: so what is refused is left out, and the rest sent again."""
        remaining = list(range(len(changes)))
        while remaining:
            chosen = [changes[place] for place in remaining]
            script = scripts.WRITE if all(change.base for change in chosen) else scripts.ADD
            answer = await self._run(script, write_arguments(chosen, who=who))
            if isinstance(answer, int):
                self._announce(chosen, opened=bool(answer))
                break
            if whole:
                return [False] * len(changes)
            refused = set(answer)
            remaining = [place for number, place in enumerate(remaining, 1) if number not in refused]
        accepted = set(remaining)
        return [place in accepted for place in range(len(changes))]

    def _announce(self, changes: Sequence[Change], *, opened: bool) -> None:
        if opened:
            self._arrived(Arrival.LANE)
        if any(change.placing.home is Home.ENDED for change in changes):
            self._arrived(Arrival.END)

    async def load(self, ids: Sequence[str]) -> dict[str, StoredCommand]:
        found: dict[str, StoredCommand] = {}
        for part in _parts(ids):
            answer = stored_commands(await self._run(scripts.LOAD, ["", "", "", *part]))
            found.update((each.id, each) for each in answer)
        return found

    async def owners(self, keys: Sequence[str]) -> dict[str, StoredCommand]:
        found: dict[str, StoredCommand] = {}
        for part in _parts(keys):
            answer = numbered_commands(await self._run(scripts.OWNERS, part))
            found.update((part[place], each) for place, each in answer)
        return found

    async def hearers(self, devices: Sequence[str]) -> dict[str, list[StoredCommand]]:
        found: dict[str, list[StoredCommand]] = {}
        for part in _parts(list(dict.fromkeys(devices))):
            for place, each in numbered_commands(await self._run(scripts.HEARERS, part)):
                found.setdefault(part[place], []).append(each)
        return found

    async def find(self, external_ids: Sequence[str]) -> dict[str, str]:
        await self._server.open()
        found: dict[str, str] = {}
        for part in _parts(external_ids):
            answer = await self._link.call("HMGET", self._keys.delivery_index, *part)
            found.update((name, each.decode()) for name, each in zip(part, answer, strict=True) if each)
        return found

    # -- work

    async def claim(self, paces: Sequence[Pace], *, limit: int, hold: timedelta) -> Claimed:
        commands: list[StoredCommand] = []
        while True:
            wanted = min(AT_ONCE, limit - len(commands))
            until = to_score(self.now() + hold)
            next_at, *flat = await self._run(scripts.CLAIM, [wanted, until, *pace_arguments(paces)])
            taken = stored_commands(flat)
            commands += taken
            if len(taken) < wanted or len(commands) >= limit:
                return Claimed(commands, from_score(next_at) if next_at else None)

    async def due(self, homes: Sequence[Home], *, limit: int, hold: timedelta) -> list[StoredCommand]:
        asked = [home.value for home in TIMED_HOMES if home in homes]
        return stored_commands(await self._take(scripts.DUE, limit, hold, [len(asked), *asked]))

    async def _take(
        self, script: Script, limit: int, hold: timedelta, arguments: Sequence[Argument] = ()
    ) -> list[Any]:
        """What is due, in steps; three values of each."""
        flat: list[Any] = []
        while len(flat) < 3 * limit:
            wanted = min(AT_ONCE, limit - len(flat) // 3)
            taken = await self._run(script, [wanted, to_score(self.now() + hold), *arguments])
            flat += taken
            if len(taken) < 3 * wanted:
                break
        return flat

    # -- signals

    async def keep_signals(self, signals: Sequence[StoredSignal], *, remember: timedelta) -> int:
        new = 0
        for start in range(0, len(signals), AT_ONCE):
            part = signals[start : start + AT_ONCE]
            new += await self._run(scripts.KEEP_SIGNALS, keep_arguments(part, remember=remember))
        if new:
            self._arrived(Arrival.SIGNAL)
        return new

    async def take_signals(self, *, limit: int, hold: timedelta) -> list[StoredSignal]:
        return stored_signals(await self._take(scripts.TAKE_SIGNALS, limit, hold))

    async def settle_signals(self, *, done: Sequence[str], later: Sequence[tuple[str, datetime]]) -> None:
        if not done and not later:
            return
        postponed = [value for signal_id, at in later for value in (signal_id, to_score(at))]
        await self._run(scripts.SETTLE_SIGNALS, [len(done), *done, *postponed])

    # -- ends

    async def take_ended(self, *, limit: int, hold: timedelta) -> list[StoredCommand]:
        return stored_commands(await self._take(scripts.TAKE_ENDED, limit, hold))

    async def mark_published(self, ids: Sequence[str]) -> None:
        for part in _parts(ids):
            await self._run(scripts.MARK_PUBLISHED, part)

    async def prune(self, *, ended_before: datetime, limit: int) -> int:
        pruned = 0
        while pruned < limit:
            wanted = min(AT_ONCE, limit - pruned)
            gone = await self._run(scripts.PRUNE, [to_score(ended_before), wanted])
            pruned += gone
            if gone < wanted:
                break
        await self._age_trail()
        return pruned

    # -- lanes

    async def hold_lane(self, lane: str, *, until: datetime | None, why: str) -> None:
        await self._run(scripts.HOLD_LANE, [lane, "" if until is None else to_score(until), why])

    async def release_lane(self, lane: str) -> None:
        if await self._run(scripts.RELEASE_LANE, [lane]):
            self._arrived(Arrival.LANE)

    async def lanes(self) -> list[LaneStats]:
        await self._server.open()
        return await self._inspector.lanes(self.now())

    # -- looking

    async def stats(self) -> CommandStats:
        await self._server.open()
        return await self._inspector.stats()

    async def commands(
        self,
        *,
        status: CommandStatus | None = None,
        lane: str | None = None,
        device: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[StoredCommand]:
        return await self._inspector.commands(
            status=status, lane=lane, device=device, before=before, limit=limit
        )

    async def named(self, name: str) -> list[str]:
        await self._server.open()
        return await self._inspector.named(name)

    # -- the trail

    async def transitions(self, *, after: int, limit: int) -> TrailPage:
        await self._server.open()
        queue = trail_name(self.fleet)
        return await trail.read(self._link, self._keys.log, queue, after=after, limit=limit)

    async def trail_offset(self, *, since: datetime) -> int:
        await self._server.open()
        return await trail.offset(self._link, self._keys.log, since=since)

    async def trim_transitions(self, *, up_to: int) -> int:
        trimmed: int = await self._run(scripts.TRIM, [up_to])
        return trimmed

    async def _age_trail(self) -> None:
        """Forget what is older than the trail's age."""
        up_to = await self.trail_offset(since=self.now() - self._server.trail_age)
        if up_to:
            await self.trim_transitions(up_to=up_to)


def _parts(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[start : start + AT_ONCE] for start in range(0, len(names), AT_ONCE)]
