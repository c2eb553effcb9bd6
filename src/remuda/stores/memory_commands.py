"""Commands in memory: for users' own tests, for fleets in virtual time, and as the model of every store."""

from __future__ import annotations

import heapq
import platform
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

import msgspec

from remuda.clock import Clock, SystemClock
from remuda.errors import StoreError
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
    Placing,
    StoredCommand,
    StoredSignal,
)
from remuda.stores.contract import Capabilities, TrailPage
from remuda.stores.memory_lanes import Lane, RankedSet, Shelf, Turn
from remuda.stores.memory_trail import MemoryTrail
from remuda.transition import Transition


class _Row:
    """A command in the store. `home` differs from the placing's while a claimer has not written yet."""

    __slots__ = ("due_at", "home", "names", "placing", "stored")

    def __init__(self, stored: StoredCommand, placing: Placing, now: datetime) -> None:
        self.stored = stored
        self.placing = placing
        self.home = placing.home
        self.due_at = placing.due_at or now
        self.names = {stored.id, *placing.external_ids, *placing.correlation_ids}


class MemoryCommands(CommandStore):
    """One fleet in this object alone: repeatable, gone with the object, and not for several threads."""

    def __init__(self, *, fleet: str = "devices", clock: Clock | None = None) -> None:
        super().__init__()
        self.fleet = fleet
        self.url = "memory://"
        self._clock = clock or SystemClock()
        self._closed = False
        self._rows: dict[str, _Row] = {}
        self._keys: dict[str, str] = {}
        self._turns: dict[str, Turn] = {}
        self._lanes: dict[str, Lane] = {}
        self._served = 0
        self._due: dict[Home, RankedSet[datetime]] = {home: RankedSet() for home in TIMED_HOMES}
        self._expiring: RankedSet[datetime] = RankedSet()
        self._hearing: dict[str, set[str]] = {}
        self._external: dict[str, str] = {}
        self._names: dict[str, set[str]] = {}
        self._by_status: Counter[CommandStatus] = Counter()
        self._unpublished: Shelf[datetime] = Shelf()
        self._published: RankedSet[datetime] = RankedSet()
        self._signals: dict[str, tuple[StoredSignal, timedelta]] = {}
        self._inbox: Shelf[int] = Shelf()
        self._remembered: RankedSet[datetime] = RankedSet()
        self._arrived_signals = 0
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
        verdicts = self._judge(changes)
        if whole and not all(verdicts):
            return [False] * len(changes)
        written = [change for change, accepted in zip(changes, verdicts, strict=True) if accepted]
        for change in written:
            self._put(change)
        self._record(written, who)
        homes = {change.placing.home for change in written}
        if Home.LANE in homes:
            self._arrived(Arrival.LANE)
        if Home.ENDED in homes:
            self._arrived(Arrival.END)
        return verdicts

    def _judge(self, changes: Sequence[Change]) -> list[bool]:
        """For each change whether it can be written after those before it."""
        owners: dict[str, str | None] = {}  # as this call changes them
        verdicts: list[bool] = []
        for change in changes:
            row = self._rows.get(change.id)
            key = change.placing.key
            owner = None if key is None else owners.get(key, self._keys.get(key))
            accepted = (row.stored.version if row else 0) == change.base and owner in (None, change.id)
            verdicts.append(accepted)
            if accepted:
                if row is not None and row.placing.key is not None:
                    owners[row.placing.key] = None
                if key is not None:
                    owners[key] = change.id
        return verdicts

    def _put(self, change: Change) -> None:
        """One change that was accepted: out of where the command was, into where it goes."""
        stored = StoredCommand(id=change.id, version=change.base + 1, record=change.record)
        row = _Row(stored, change.placing, self.now())
        before = self._rows.get(change.id)
        if before is not None:
            self._displace(before, change.placing)
            row.names |= before.names  # it can be found by what it was ever called
        self._rows[change.id] = row
        self._place(row)

    def _displace(self, row: _Row, goes_to: Placing) -> None:
        """Take a command out of every set; it keeps its turn and slot if it is to have them further on."""
        command_id, was = row.stored.id, row.placing
        self._by_status[was.status] -= 1
        self._expiring.drop(command_id)
        if row.home is Home.LANE:
            lane = self._lane(was.lane)
            lane.waiting -= 1
            lane.ready.drop(command_id)
        elif row.home is Home.ENDED:
            self._unpublished.drop(command_id)
            self._published.drop(command_id)
        else:
            self._due[row.home].drop(command_id)
        if not goes_to.uses_slot or goes_to.lane != was.lane:
            self._lane(was.lane).slots.drop(command_id)
        if was.turn is not None and was.turn != goes_to.turn:
            self._turn(was.turn).give_up(command_id)
            self._pass_on(was.turn)
        if was.key is not None and was.key != goes_to.key and self._keys.get(was.key) == command_id:
            del self._keys[was.key]
        if was.hears is not None and was.hears != goes_to.hears:
            self._stop_hearing(was.hears, command_id)

    def _place(self, row: _Row) -> None:
        command_id, placing = row.stored.id, row.placing
        self._by_status[placing.status] += 1
        if placing.key is not None:
            self._keys[placing.key] = command_id
        if placing.hears is not None:
            self._hearing.setdefault(placing.hears, set()).add(command_id)
        for external_id in placing.external_ids:
            self._external[external_id] = command_id
        for name in row.names:
            self._names.setdefault(name, set()).add(command_id)
        if placing.expires_at is not None and placing.home is not Home.ENDED:
            self._expiring.put(command_id, placing.expires_at)
        self._settle_in(row)

    def _settle_in(self, row: _Row) -> None:
        """Put a command into the set of its home, with the turn that it has or waits for."""
        command_id, placing = row.stored.id, row.placing
        if placing.home is Home.LANE:
            self._lane(placing.lane).waiting += 1
            if placing.turn is None:
                self._lane(placing.lane).ready.put(command_id, -placing.priority)
            else:
                self._wait_for_turn(placing.turn, row)
            return
        if placing.home is Home.ENDED:
            self._unpublished.put(command_id, row.due_at)
        else:
            self._due[placing.home].put(command_id, row.due_at)
        if placing.turn is not None:
            self._go(placing.turn, command_id)

    def _lane(self, name: str) -> Lane:
        if name not in self._lanes:
            self._lanes[name] = Lane(name, self._served)
        return self._lanes[name]

    # -- turns

    def _turn(self, name: str) -> Turn:
        return self._turns.setdefault(name, Turn())

    def _wait_for_turn(self, name: str, row: _Row) -> None:
        turn = self._turn(name)
        before = turn.front
        turn.wait(row.stored.id, -row.placing.priority)
        self._step_back(before, turn)
        self._pass_on(name)

    def _go(self, name: str, command_id: str) -> None:
        turn = self._turn(name)
        before = turn.front
        turn.go(command_id)
        self._step_back(before, turn)

    def _step_back(self, before: tuple[int, str] | None, turn: Turn) -> None:
        """One that has lost its turn can no longer be claimed."""
        if before is not None and before != turn.front:
            self._lane(self._rows[before[1]].placing.lane).ready.drop(before[1])

    def _pass_on(self, name: str) -> None:
        """The one that waits with the turn can be claimed; a turn that nobody wants is forgotten."""
        turn = self._turns[name]
        turn.pass_on()
        if turn.front is not None:
            rank, command_id = turn.front
            self._lane(self._rows[command_id].placing.lane).ready.put(command_id, rank)
        elif not turn.away:
            del self._turns[name]

    # -- finding

    def _stop_hearing(self, device: str, command_id: str) -> None:
        self._hearing[device].discard(command_id)
        if not self._hearing[device]:
            del self._hearing[device]

    async def load(self, ids: Sequence[str]) -> dict[str, StoredCommand]:
        self._check_open()
        return {each: self._rows[each].stored for each in ids if each in self._rows}

    async def owners(self, keys: Sequence[str]) -> dict[str, StoredCommand]:
        self._check_open()
        return {key: self._rows[self._keys[key]].stored for key in keys if key in self._keys}

    async def hearers(self, devices: Sequence[str]) -> dict[str, list[StoredCommand]]:
        self._check_open()
        return {
            device: [self._rows[each].stored for each in sorted(self._hearing[device])]
            for device in devices
            if device in self._hearing
        }

    async def find(self, external_ids: Sequence[str]) -> dict[str, str]:
        self._check_open()
        return {each: self._external[each] for each in external_ids if each in self._external}

    # -- work

    async def claim(self, paces: Sequence[Pace], *, limit: int, hold: timedelta) -> Claimed:
        self._check_open()
        now = self.now()
        found: list[StoredCommand] = []
        closed: list[datetime] = []
        waiting = sorted((lane for lane in self._lanes.values() if lane.ready), key=_turn_of_lane)
        open_lanes = deque((lane, pace) for lane in waiting if (pace := _pace_of(lane, paces)) is not None)
        while open_lanes:
            lane, pace = open_lanes.popleft()
            opens = lane.opens(pace, now)
            if opens is not None and (opens > now or len(found) >= limit):
                closed.append(opens)
            elif opens is not None:
                found.append(self._take_off(lane, pace, now=now, hold=hold))
                if lane.ready:
                    open_lanes.append((lane, pace))
        return Claimed(found, min(closed, default=None))

    def _take_off(self, lane: Lane, pace: Pace, *, now: datetime, hold: timedelta) -> StoredCommand:
        """The first command of an open lane, on its way."""
        command_id = lane.ready.pop()
        if command_id is None:
            raise StoreError(f"the lane {lane.name!r} is empty, and was not a moment ago")
        row = self._rows[command_id]
        row.home, row.due_at = Home.TO_NS, now + hold
        lane.waiting -= 1
        lane.leave(command_id, pace, airtime_ms=row.placing.airtime_ms, now=now)
        self._served += 1
        lane.served = self._served
        self._due[Home.TO_NS].put(command_id, row.due_at)
        if row.placing.turn is not None:
            self._turn(row.placing.turn).go(command_id)
        return row.stored

    async def due(self, homes: Sequence[Home], *, limit: int, hold: timedelta) -> list[StoredCommand]:
        self._check_open()
        now = self.now()
        asked = [self._expiring, *(self._due[home] for home in dict.fromkeys(homes) if home in self._due)]
        found: dict[str, None] = {}
        while len(found) < limit:
            earliest = min((first for each in asked if (first := each.first())), default=None)
            if earliest is None or earliest[0] > now:
                break
            found[earliest[1]] = None
            for each in asked:
                each.drop(earliest[1])
        for command_id in found:
            self._look_again(self._rows[command_id], now + hold)
        return [self._rows[each].stored for each in found]

    def _look_again(self, row: _Row, at: datetime) -> None:
        """Nobody else is given this command before `at`."""
        command_id, expires_at = row.stored.id, row.placing.expires_at
        if expires_at is not None:
            self._expiring.put(command_id, max(expires_at, at))
        if row.home in self._due:
            row.due_at = max(row.due_at, at)
            self._due[row.home].put(command_id, row.due_at)

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
            self._remembered.drop(each.id)
            self._arrived_signals += 1
            self._signals[each.id] = each, remember
            self._inbox.put(each.id, self._arrived_signals)
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
        found = self._unpublished.take(now=self.now(), limit=limit, hold=hold)
        return [self._rows[each].stored for each in found]

    async def mark_published(self, ids: Sequence[str]) -> None:
        self._check_open()
        for command_id in ids:
            if self._unpublished.drop(command_id):
                self._published.put(command_id, self._rows[command_id].due_at)

    async def prune(self, *, ended_before: datetime, limit: int) -> int:
        self._check_open()
        count = 0
        while count < limit and (first := self._published.first()) and first[0] < ended_before:
            self._remove(first[1])
            count += 1
        now = self.now()
        while count < limit and (forgotten := self._remembered.first()) and forgotten[0] <= now:
            self._remembered.pop()
            count += 1
        return count

    def _remove(self, command_id: str) -> None:
        row = self._rows[command_id]
        nowhere = msgspec.structs.replace(row.placing, turn=None, key=None, hears=None, uses_slot=False)
        self._displace(row, nowhere)
        del self._rows[command_id]
        for name in row.names:
            self._names[name].discard(command_id)
            if not self._names[name]:
                del self._names[name]
            if self._external.get(name) == command_id:
                del self._external[name]

    # -- lanes

    async def hold_lane(self, lane: str, *, until: datetime | None, why: str) -> None:
        self._check_open()
        self._lane(lane).hold(until, why)

    async def release_lane(self, lane: str) -> None:
        self._check_open()
        self._lane(lane).release()

    async def lanes(self) -> list[LaneStats]:
        self._check_open()
        now = self.now()
        shown = (lane for lane in self._lanes.values() if lane.waiting or lane.is_held(now))
        return [lane.stats(now) for lane in sorted(shown, key=lambda lane: lane.name)]

    # -- looking

    async def stats(self) -> CommandStats:
        self._check_open()
        return CommandStats(
            by_status={status: count for status, count in self._by_status.items() if count},
            signals=len(self._inbox),
            unpublished=len(self._unpublished),
        )

    async def commands(
        self,
        *,
        status: CommandStatus | None = None,
        lane: str | None = None,
        device: str | None = None,
        limit: int = 100,
    ) -> list[StoredCommand]:
        self._check_open()
        fitting = (
            command_id
            for command_id, row in self._rows.items()
            if status in (None, row.placing.status)
            and lane in (None, row.placing.lane)
            and device in (None, row.placing.device)
        )
        return [self._rows[each].stored for each in heapq.nlargest(limit, fitting)]

    async def named(self, name: str) -> list[str]:
        self._check_open()
        return sorted(self._names.get(name, ()))

    # -- the trail

    def _record(self, changes: Iterable[Change], who: str) -> None:
        transitions = [
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
        self._trail.append(transitions, now=self.now())

    async def transitions(self, *, after: int, limit: int) -> TrailPage:
        self._check_open()
        return self._trail.page(after=after, limit=limit)

    async def trail_offset(self, *, since: datetime) -> int:
        self._check_open()
        return self._trail.offset(since=since)

    async def trim_transitions(self, *, up_to: int) -> int:
        self._check_open()
        return self._trail.trim(up_to=up_to)


def _turn_of_lane(lane: Lane) -> tuple[int, str]:
    """Lanes that were served longer ago come first."""
    return lane.served, lane.name


def _pace_of(lane: Lane, paces: Sequence[Pace]) -> Pace | None:
    return next((pace for pace in paces if lane.name.startswith(pace.prefix)), None)
