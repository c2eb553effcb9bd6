"""Where the commands in memory are, and what they hold on to: each placing in its sets, and out of them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from remuda.errors import StoreError
from remuda.lifecycle import CommandStatus
from remuda.stores.commands import TIMED_HOMES, Change, Claimed, Home, Pace, Placing, StoredCommand
from remuda.stores.memory_lanes import Lane, RankedSet, Shelf, Turn


class Row:
    """A command. `home` and `due_at` differ from the placing's after a claim, until the next write."""

    __slots__ = ("due_at", "home", "names", "placing", "stored")

    def __init__(self, stored: StoredCommand, placing: Placing, now: datetime) -> None:
        self.stored = stored
        self.placing = placing
        self.home = placing.home
        self.due_at = placing.due_at or now
        self.names = {stored.id, *placing.external_ids, *placing.correlation_ids}


class Placings:
    """The commands of a fleet. Nothing here waits, so whatever is called is done at once or not at all."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.keys: dict[str, str] = {}
        self.turns: dict[str, Turn] = {}
        self.lanes: dict[str, Lane] = {}
        self.hearing: dict[str, set[str]] = {}
        self.external: dict[str, str] = {}
        self.names: dict[str, set[str]] = {}
        self.by_status: Counter[CommandStatus] = Counter()
        self.unpublished: Shelf[datetime] = Shelf()
        self.published: RankedSet[datetime] = RankedSet()
        self._due: dict[Home, RankedSet[datetime]] = {home: RankedSet() for home in TIMED_HOMES}
        self._expiring: RankedSet[datetime] = RankedSet()
        self._served = 0

    def lane(self, name: str) -> Lane:
        if name not in self.lanes:
            self.lanes[name] = Lane(name, self._served)
        return self.lanes[name]

    # -- in and out

    def judge(self, changes: Sequence[Change]) -> list[bool]:
        """For each change whether it can be written after those before it."""
        owners: dict[str, str | None] = {}  # as this call changes them
        verdicts: list[bool] = []
        for change in changes:
            row = self.rows.get(change.id)
            key = change.placing.key
            owner = None if key is None else owners.get(key, self.keys.get(key))
            accepted = (row.stored.version if row else 0) == change.base and owner in (None, change.id)
            verdicts.append(accepted)
            if accepted:
                if row is not None and row.placing.key is not None:
                    owners[row.placing.key] = None
                if key is not None:
                    owners[key] = change.id
        return verdicts

    def put(self, change: Change, now: datetime) -> None:
        """One change that was accepted: out of where the command was, into where it goes."""
        stored = StoredCommand(id=change.id, version=change.base + 1, record=change.record)
        row = Row(stored, change.placing, now)
        before = self.rows.get(change.id)
        if before is not None:
            self._displace(before, change.placing)
            row.names |= before.names  # it can be found by whatever it was called
        self.rows[change.id] = row
        self._note(row)
        self._settle_in(row)

    def remove(self, command_id: str) -> None:
        """As if it had never been."""
        row = self.rows[command_id]
        nothing = msgspec.structs.replace(row.placing, turn=None, key=None, hears=None, uses_slot=False)
        self._displace(row, nothing)
        del self.rows[command_id]
        for name in row.names:
            self.names[name].discard(command_id)
            if not self.names[name]:
                del self.names[name]
            if self.external.get(name) == command_id:
                del self.external[name]

    def _displace(self, row: Row, goes_to: Placing) -> None:
        """Take a command out of every set; it keeps its turn and slot if it is to have them further on."""
        command_id, was = row.stored.id, row.placing
        self.by_status[was.status] -= 1
        self._expiring.drop(command_id)
        self._leave_home(row)
        if not goes_to.uses_slot or goes_to.lane != was.lane:
            self.lane(was.lane).slots.drop(command_id)
        if was.turn is not None and was.turn != goes_to.turn:
            self._turn(was.turn).give_up(command_id)
            self._pass_on(was.turn)
        if was.key is not None and was.key != goes_to.key and self.keys.get(was.key) == command_id:
            del self.keys[was.key]
        if was.hears is not None and was.hears != goes_to.hears:
            self.hearing[was.hears].discard(command_id)
            if not self.hearing[was.hears]:
                del self.hearing[was.hears]

    def _leave_home(self, row: Row) -> None:
        command_id = row.stored.id
        if row.home is Home.LANE:
            lane = self.lane(row.placing.lane)
            lane.waiting -= 1
            lane.ready.drop(command_id)
        elif row.home is Home.ENDED:
            self.unpublished.drop(command_id)
            self.published.drop(command_id)
        else:
            self._due[row.home].drop(command_id)

    def _note(self, row: Row) -> None:
        """What can be asked about a command, wherever it is."""
        command_id, placing = row.stored.id, row.placing
        self.by_status[placing.status] += 1
        if placing.key is not None:
            self.keys[placing.key] = command_id
        if placing.hears is not None:
            self.hearing.setdefault(placing.hears, set()).add(command_id)
        for external_id in placing.external_ids:
            self.external[external_id] = command_id
        for name in row.names:
            self.names.setdefault(name, set()).add(command_id)

    def _settle_in(self, row: Row) -> None:
        """Put a command into the set of its home, with the turn that it has or waits for."""
        command_id, placing = row.stored.id, row.placing
        if placing.home is Home.ENDED:
            self.unpublished.put(command_id, row.due_at)
        elif placing.expires_at is not None:
            self._expiring.put(command_id, placing.expires_at)
        if placing.home is Home.LANE:
            self.lane(placing.lane).waiting += 1
        elif placing.home is not Home.ENDED:
            self._due[placing.home].put(command_id, row.due_at)
        if placing.turn is not None:
            self._take_turn(placing.turn, row)
        elif placing.home is Home.LANE:
            self.lane(placing.lane).ready.put(command_id, -placing.priority)

    # -- turns

    def _turn(self, name: str) -> Turn:
        return self.turns.setdefault(name, Turn())

    def _take_turn(self, name: str, row: Row) -> None:
        """Wait for the turn in the lane, or have it elsewhere; one that lost it can no longer be claimed."""
        turn = self._turn(name)
        before = turn.front
        if row.home is Home.LANE:
            turn.wait(row.stored.id, -row.placing.priority)
        else:
            turn.go(row.stored.id)
        if before is not None and before != turn.front:
            self.lane(self.rows[before[1]].placing.lane).ready.drop(before[1])
        self._pass_on(name)

    def _pass_on(self, name: str) -> None:
        """The one that waits with the turn can be claimed; a turn that nobody wants is forgotten."""
        turn = self.turns[name]
        turn.pass_on()
        if turn.front is not None:
            rank, command_id = turn.front
            self.lane(self.rows[command_id].placing.lane).ready.put(command_id, rank)
        elif not turn.away:
            del self.turns[name]

    # -- work

    def claim(self, paces: Sequence[Pace], *, limit: int, hold: timedelta, now: datetime) -> Claimed:
        """One of each open lane after the other, those first that were served longest ago."""
        found: list[StoredCommand] = []
        opening: list[datetime] = []
        waiting = sorted((lane for lane in self.lanes.values() if lane.ready), key=_place_in_round)
        round_ = deque((lane, pace) for lane in waiting if (pace := _pace_of(lane, paces)) is not None)
        while round_:
            lane, pace = round_.popleft()
            opens = lane.opens(pace, now)
            if opens is None:
                continue
            if opens > now or len(found) >= limit:
                opening.append(opens)
                continue
            found.append(self._take_off(lane, pace, now=now, hold=hold))
            if lane.ready:
                round_.append((lane, pace))
        return Claimed(found, min(opening, default=None))

    def _take_off(self, lane: Lane, pace: Pace, *, now: datetime, hold: timedelta) -> StoredCommand:
        """The first command of an open lane, on its way."""
        command_id = lane.ready.pop()
        if command_id is None:
            raise StoreError(f"the lane {lane.name!r} is empty, and was not a moment ago")
        row = self.rows[command_id]
        row.home, row.due_at = Home.TO_NS, now + hold
        lane.waiting -= 1
        lane.leave(command_id, pace, airtime_ms=row.placing.airtime_ms, now=now)
        self._served += 1
        lane.served = self._served
        self._due[Home.TO_NS].put(command_id, row.due_at)
        if row.placing.turn is not None:
            self._turn(row.placing.turn).go(command_id)
        return row.stored

    def due(
        self, homes: Sequence[Home], *, limit: int, hold: timedelta, now: datetime
    ) -> list[StoredCommand]:
        """Those whose moment has come, earliest first."""
        asked = [self._expiring, *(self._due[home] for home in dict.fromkeys(homes) if home in self._due)]
        found: list[Row] = []
        while len(found) < limit:
            earliest = min((first for each in asked if (first := each.first())), default=None)
            if earliest is None or earliest[0] > now:
                break
            found.append(self.rows[earliest[1]])
            for each in asked:
                each.drop(earliest[1])
        for row in found:
            self._look_again(row, now + hold)
        return [row.stored for row in found]

    def _look_again(self, row: Row, at: datetime) -> None:
        """Nobody else is given this command before `at`."""
        command_id, expires_at = row.stored.id, row.placing.expires_at
        if expires_at is not None:
            self._expiring.put(command_id, max(expires_at, at))
        if row.home in self._due:
            row.due_at = max(row.due_at, at)
            self._due[row.home].put(command_id, row.due_at)


def _place_in_round(lane: Lane) -> tuple[int, str]:
    return lane.served, lane.name


def _pace_of(lane: Lane, paces: Sequence[Pace]) -> Pace | None:
    return next((pace for pace in paces if lane.name.startswith(pace.prefix)), None)
