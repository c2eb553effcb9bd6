"""What the command store in memory is made of: sets in order, lanes, and turns.

No operation looks at more than it takes or gives: days of a fleet run through this in a test.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from remuda.stores.commands import LaneStats, Pace

R = TypeVar("R")  # what a set is in the order of: anything that can be compared
_SPARE = 32


class RankedSet(Generic[R]):
    """Ids in the order of a rank, then of the id. An id has one rank; the lowest comes first."""

    def __init__(self) -> None:
        self._ranks: dict[str, R] = {}
        self._heap: list[tuple[Any, str]] = []  # also holds ranks that ids had earlier: those do not count

    def __len__(self) -> int:
        return len(self._ranks)

    def __contains__(self, member: str) -> bool:
        return member in self._ranks

    def put(self, member: str, rank: R) -> None:
        if self._ranks.get(member) == rank:
            return
        self._ranks[member] = rank
        heapq.heappush(self._heap, (rank, member))
        if len(self._heap) > 2 * len(self._ranks) + _SPARE:
            self._heap = [(rank, member) for member, rank in self._ranks.items()]
            heapq.heapify(self._heap)

    def drop(self, member: str) -> bool:
        """Take it out; whether it was in."""
        return self._ranks.pop(member, None) is not None

    def first(self) -> tuple[R, str] | None:
        """The lowest rank and whose it is."""
        while self._heap:
            rank, member = self._heap[0]
            if self._ranks.get(member) == rank:
                return rank, member
            heapq.heappop(self._heap)
        return None

    def pop(self) -> str | None:
        """Take the first out."""
        found = self.first()
        if found is None:
            return None
        heapq.heappop(self._heap)
        del self._ranks[found[1]]
        return found[1]

    def pop_until(self, rank: R) -> Iterator[str]:
        """Take out, one after the other, those of this rank or a lower one."""
        limit: Any = rank
        while (found := self.first()) is not None and found[0] <= limit:
            self.pop()
            yield found[1]

    def rank_of(self, member: str) -> R | None:
        return self._ranks.get(member)

    def ranks(self) -> list[R]:
        """Every rank, in no order."""
        return list(self._ranks.values())


class Shelf(Generic[R]):
    """Things that are taken in the order of their rank, and that are due again a while after that."""

    def __init__(self) -> None:
        self._ranks: dict[str, R] = {}
        self._ready: RankedSet[R] = RankedSet()
        self._later: RankedSet[datetime] = RankedSet()

    def __len__(self) -> int:
        return len(self._ranks)

    def __contains__(self, member: str) -> bool:
        return member in self._ranks

    def put(self, member: str, rank: R) -> None:
        """It is due at once."""
        self._ranks[member] = rank
        self._later.drop(member)
        self._ready.put(member, rank)

    def postpone(self, member: str, until: datetime) -> None:
        """It is due at a moment; nothing when it is not here."""
        if member in self._ranks:
            self._ready.drop(member)
            self._later.put(member, until)

    def drop(self, member: str) -> bool:
        """Take it out for good; whether it was here."""
        self._ready.drop(member)
        self._later.drop(member)
        return self._ranks.pop(member, None) is not None

    def take(self, *, now: datetime, limit: int, hold: timedelta) -> list[str]:
        """The first that are due, which are then due again after `hold`."""
        for again in self._later.pop_until(now):
            self._ready.put(again, self._ranks[again])
        found: list[str] = []
        while len(found) < limit and (member := self._ready.pop()) is not None:
            found.append(member)
        for taken in found:
            self._later.put(taken, now + hold)
        return found


class Lane:
    """Where commands wait to be claimed. `waiting` also counts those that wait for their turn."""

    def __init__(self, name: str, served: int) -> None:
        self.name = name
        self.waiting = 0
        self.ready: RankedSet[int] = RankedSet()  # those that may be claimed, by priority, the highest first
        self.slots: RankedSet[datetime] = RankedSet()  # who uses one, until when at the latest
        self.served = served  # a lane that was served longer ago comes first
        self._opens_at: datetime | None = None
        self._earned_at: datetime | None = None  # when its air time is paid off
        self._held = False
        self._held_until: datetime | None = None
        self._held_why: str | None = None

    def hold(self, until: datetime | None, why: str) -> None:
        self._held, self._held_until, self._held_why = True, until, why

    def release(self) -> None:
        self._held, self._held_until, self._held_why = False, None, None

    def is_held(self, now: datetime) -> bool:
        if self._held and self._held_until is not None and self._held_until <= now:
            self.release()
        return self._held

    def slots_used(self, now: datetime) -> int:
        for _ in self.slots.pop_until(now):
            pass  # its time is over
        return len(self.slots)

    def opens(self, pace: Pace, now: datetime) -> datetime | None:
        """When a command may leave it, now or later; None when nobody can tell."""
        moments = [now]
        if pace.duty is not None and self._earned_at is not None:
            moments.append(self._earned_at - pace.burst)
        if pace.every is not None and self._opens_at is not None:
            moments.append(self._opens_at)
        if pace.slots is not None and (too_many := self.slots_used(now) - pace.slots) >= 0:
            ends = sorted(self.slots.ranks())
            if too_many >= len(ends):
                return None
            moments.append(ends[too_many])
        if self.is_held(now):
            if self._held_until is None:
                return None
            moments.append(self._held_until)
        return max(moments)

    def leave(self, command_id: str, pace: Pace, *, airtime_ms: int, now: datetime) -> None:
        """A command leaves: it uses a slot, and the lane is locked as its pace says."""
        self.slots.put(command_id, now + pace.slot_for)
        if pace.duty is not None:
            cost = timedelta(milliseconds=airtime_ms / pace.duty)
            self._earned_at = max(self._earned_at or now, now) + cost
            self._opens_at = self._earned_at - pace.burst
        elif pace.every is not None:
            self._opens_at = now + pace.every

    def stats(self, now: datetime) -> LaneStats:
        held = self.is_held(now)
        locked = self._opens_at is not None and self._opens_at > now
        return LaneStats(
            lane=self.name,
            waiting=self.waiting,
            slots_used=self.slots_used(now),
            opens_at=self._opens_at if locked else None,
            held_until=self._held_until if held else None,
            held_why=self._held_why if held else None,
        )


class Turn:
    """Who may go, of those that must not go at once: whoever is on the way, or else one that waits."""

    def __init__(self) -> None:
        self.away: set[str] = set()  # have it and left their lane
        self.front: tuple[int, str] | None = None  # has it and waits in its lane: its rank (lower is better)
        self.behind: RankedSet[int] = RankedSet()

    def is_needed(self) -> bool:
        return bool(self.away or self.front or self.behind)

    def has(self, command_id: str) -> bool:
        return command_id in self.away or (self.front is not None and self.front[1] == command_id)

    def give_up(self, command_id: str) -> None:
        self.away.discard(command_id)
        self.behind.drop(command_id)
        if self.front is not None and self.front[1] == command_id:
            self.front = None

    def go(self, command_id: str) -> None:
        """It is on its way, whoever else is; one that only waits has to wait for it."""
        self.give_up(command_id)
        self.away.add(command_id)
        self._step_back()

    def wait(self, command_id: str, rank: int) -> None:
        """It waits in its lane: with the turn if it had it, or is better than the one that waits with it."""
        had = self.has(command_id)
        self.give_up(command_id)
        better = self.front is not None and rank < self.front[0]
        if not self.away and (had or better):
            self._step_back()
            self.front = rank, command_id
        else:
            self.behind.put(command_id, rank)

    def pass_on(self) -> str | None:
        """Give a turn that is free to the best of those behind; whom."""
        if self.away or self.front is not None or (first := self.behind.first()) is None:
            return None
        self.behind.pop()
        self.front = first
        return first[1]

    def _step_back(self) -> None:
        if self.front is not None:
            rank, command_id = self.front
            self.behind.put(command_id, rank)
            self.front = None
