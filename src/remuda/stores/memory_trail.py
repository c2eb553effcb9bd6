"""A trail in memory: transitions as they are, in entries of what was written together."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from datetime import datetime

import msgspec

from remuda.stores.contract import TrailPage
from remuda.transition import MAX_PER_ENTRY, Transition


class MemoryTrail:
    """Transitions, numbered without a gap from 1 on."""

    def __init__(self) -> None:
        self._entries: list[list[Transition]] = []
        self._ends: list[int] = []  # the last number of each entry
        self._written: list[datetime] = []  # nothing in an entry, or in one before it, is newer
        self._last = 0

    def append(self, transitions: Sequence[Transition], *, now: datetime) -> None:
        for start in range(0, len(transitions), MAX_PER_ENTRY):
            part = transitions[start : start + MAX_PER_ENTRY]
            self._entries.append(
                [msgspec.structs.replace(each, seq=self._last + n) for n, each in enumerate(part, 1)]
            )
            self._last += len(part)
            self._ends.append(self._last)
            newest = max(now, *(each.at for each in part))
            self._written.append(max(newest, self._written[-1]) if self._written else newest)

    def page(self, *, after: int, limit: int) -> TrailPage:
        found: list[Transition] = []
        for entry in self._entries[bisect.bisect_right(self._ends, after) :]:
            found += entry[max(0, after + 1 - entry[0].seq) :]
            if len(found) >= limit:
                break
        found = found[:limit]
        return TrailPage(found, found[-1].seq if found else after)

    def offset(self, *, since: datetime) -> int:
        place = bisect.bisect_left(self._written, since)
        return self._entries[place][0].seq - 1 if place < len(self._entries) else self._last

    def trim(self, *, up_to: int) -> int:
        count = bisect.bisect_right(self._ends, up_to)
        gone = sum(len(entry) for entry in self._entries[:count])
        for column in (self._entries, self._ends, self._written):
            del column[:count]
        return gone
