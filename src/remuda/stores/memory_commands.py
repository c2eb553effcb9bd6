"""Commands in memory: for users' own tests, for fleets in virtual time, and as the model of every store."""

from __future__ import annotations

import heapq
import platform
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

import msgspec

from remuda.clock import Clock, SystemClock
from remuda.errors import StoreError
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
from remuda.stores.memory_lanes import RankedSet, Shelf
from remuda.stores.memory_placings import Placings
from remuda.stores.memory_trail import MemoryTrail
from remuda.transition import Transition


class MemoryCommands(CommandStore):
    """One fleet in this object alone: repeatable, gone with the object, and not for several threads."""

    def __init__(self, *, fleet: str = "devices", clock: Clock | None = None) -> None:
        super().__init__()
        self.fleet = fleet
        self.url = "memory://"
        self.placings = Placings()
        self._clock = clock or SystemClock()
        self._closed = False
        self._signals: dict[str, tuple[StoredSignal, timedelta]] = {}
        self._inbox: Shelf[int] = Shelf()
        self._signals_so_far = 0
        self._remembered: RankedSet[datetime] = RankedSet()  # signals that are done, until when
        self._trail = MemoryTrail()

    def now(self) -> datetime:
        return self._clock.now()

    async def open(self) -> Capabilities:
        self._check_open()
        return Capabilities(
            backend="memory", version=platform.python_version(), wake="notify", transactional=False
        )

    async def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the command store in memory was closed; open a new one")

    # -- records

    async def write(self, changes: Sequence[Change], *, who: str, whole: bool = False) -> list[bool]:
        self._check_open()
        verdicts = self.placings.judge(changes)
        if whole and not all(verdicts):
            return [False] * len(changes)
        now = self.now()
        written = [change for change, accepted in zip(changes, verdicts, strict=True) if accepted]
        for change in written:
            self.placings.put(change, now)
        self._trail.append(self._transitions_of(written, who), now=now)
        homes = {change.placing.home for change in written}
        if Home.LANE in homes:
            self._arrived(Arrival.LANE)
        if Home.ENDED in homes:
            self._arrived(Arrival.END)
        return verdicts

    async def load(self, ids: Sequence[str]) -> dict[str, StoredCommand]:
        self._check_open()
        rows = self.placings.rows
        return {each: rows[each].stored for each in ids if each in rows}

    async def owners(self, keys: Sequence[str]) -> dict[str, StoredCommand]:
        self._check_open()
        owners = self.placings.keys
        return {key: self._stored(owners[key]) for key in keys if key in owners}

    async def hearers(self, devices: Sequence[str]) -> dict[str, list[StoredCommand]]:
        self._check_open()
        hearing = self.placings.hearing
        return {
            device: [self._stored(each) for each in sorted(hearing[device])]
            for device in devices
            if device in hearing
        }

    async def find(self, external_ids: Sequence[str]) -> dict[str, str]:
        self._check_open()
        known = self.placings.external
        return {each: known[each] for each in external_ids if each in known}

    def _stored(self, command_id: str) -> StoredCommand:
        return self.placings.rows[command_id].stored

    # -- work

    async def claim(self, paces: Sequence[Pace], *, limit: int, hold: timedelta) -> Claimed:
        self._check_open()
        return self.placings.claim(paces, limit=limit, hold=hold, now=self.now())

    async def due(self, homes: Sequence[Home], *, limit: int, hold: timedelta) -> list[StoredCommand]:
        self._check_open()
        return self.placings.due(homes, limit=limit, hold=hold, now=self.now())

    # -- signals

    async def keep_signals(self, signals: Sequence[StoredSignal], *, remember: timedelta) -> int:
        self._check_open()
        now = self.now()
        new = 0
        for each in signals:
            forget_at = self._remembered.rank_of(each.id)
            if each.id in self._signals or (forget_at is not None and now < forget_at):
                continue
            new += 1
            self._signals_so_far += 1
            self._remembered.drop(each.id)
            self._signals[each.id] = each, remember
            self._inbox.put(each.id, self._signals_so_far)
        if new:
            self._arrived(Arrival.SIGNAL)
        return new

    async def take_signals(self, *, limit: int, hold: timedelta) -> list[StoredSignal]:
        self._check_open()
        found = [self._signals[each] for each in self._inbox.take(now=self.now(), limit=limit, hold=hold)]
        for signal, remember in found:
            looked_at = msgspec.structs.replace(signal, looks=signal.looks + 1)
            self._signals[signal.id] = looked_at, remember
        return [signal for signal, _ in found]

    async def settle_signals(self, *, done: Sequence[str], later: Sequence[tuple[str, datetime]]) -> None:
        self._check_open()
        for signal_id in done:
            if self._inbox.drop(signal_id):
                _, remember = self._signals.pop(signal_id)
                self._remembered.put(signal_id, self.now() + remember)
        for signal_id, at in later:
            self._inbox.postpone(signal_id, at)

    # -- ends

    async def take_ended(self, *, limit: int, hold: timedelta) -> list[StoredCommand]:
        self._check_open()
        found = self.placings.unpublished.take(now=self.now(), limit=limit, hold=hold)
        return [self._stored(each) for each in found]

    async def mark_published(self, ids: Sequence[str]) -> None:
        self._check_open()
        for command_id in ids:
            if self.placings.unpublished.drop(command_id):
                self.placings.published.put(command_id, self.placings.rows[command_id].due_at)

    async def prune(self, *, ended_before: datetime, limit: int) -> int:
        self._check_open()
        count = 0
        published = self.placings.published
        while count < limit and (first := published.first()) and first[0] < ended_before:
            self.placings.remove(first[1])
            count += 1
        now = self.now()
        while count < limit and (forgotten := self._remembered.first()) and forgotten[0] <= now:
            self._remembered.pop()
            count += 1
        return count

    # -- lanes

    async def hold_lane(self, lane: str, *, until: datetime | None, why: str) -> None:
        self._check_open()
        self.placings.lane(lane).hold(until, why)

    async def release_lane(self, lane: str) -> None:
        self._check_open()
        self.placings.lane(lane).release()

    async def lanes(self) -> list[LaneStats]:
        self._check_open()
        now = self.now()
        shown = (lane for lane in self.placings.lanes.values() if lane.waiting or lane.is_held(now))
        return [lane.stats(now) for lane in sorted(shown, key=lambda lane: lane.name)]

    # -- looking

    async def stats(self) -> CommandStats:
        self._check_open()
        return CommandStats(
            by_status={status: count for status, count in self.placings.by_status.items() if count},
            signals=len(self._inbox),
            unpublished=len(self.placings.unpublished),
        )

    async def commands(
        self,
        *,
        status: CommandStatus | None = None,
        lane: str | None = None,
        device: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[StoredCommand]:
        self._check_open()
        fitting = (
            command_id
            for command_id, row in self.placings.rows.items()
            if status in (None, row.placing.status)
            and lane in (None, row.placing.lane)
            and device in (None, row.placing.device)
            and (before is None or command_id < before)
        )
        return [self._stored(each) for each in heapq.nlargest(limit, fitting)]

    async def named(self, name: str) -> list[str]:
        self._check_open()
        return sorted(self.placings.names.get(name, ()))

    # -- the trail

    def _transitions_of(self, changes: Iterable[Change], who: str) -> list[Transition]:
        return [
            Transition(
                message=change.id,
                left=move.left,
                entered=move.entered,
                at=move.at,
                dwell=None if move.dwell_ms is None else timedelta(milliseconds=move.dwell_ms),
                attempt=move.attempt,
                reason=move.reason,
                who=who,
                name=move.name,
                about=move.about,
                queue=trail_name(self.fleet),
            )
            for change in changes
            for move in change.moves
        ]

    async def transitions(self, *, after: int, limit: int) -> TrailPage:
        self._check_open()
        return self._trail.page(after=after, limit=limit)

    async def trail_offset(self, *, since: datetime) -> int:
        self._check_open()
        return self._trail.offset(since=since)

    async def trim_transitions(self, *, up_to: int) -> int:
        self._check_open()
        return self._trail.trim(up_to=up_to)
