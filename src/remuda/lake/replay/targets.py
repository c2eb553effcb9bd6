"""What a plan is carried out on: the dead letters of a queue, or the failed commands of a fleet.

`look` finds which of the planned letters are there, with the exact moment of each death; `replay` moves
exactly those. A letter that has died again since has a later moment, and is left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, Protocol

from remuda.devices.fleet import Fleet
from remuda.lake.deaths.letters import SAME_MOMENT
from remuda.lifecycle import CommandStatus
from remuda.message import DeadLetter, DeadLetterFilter
from remuda.stores.contract import Store

EXACTLY = timedelta(0)


class Outcome(StrEnum):
    """What became of a planned letter.

    REPLAYED    this plan has put it back
    STILL_LIVE  a job with its id lives: the letter stays where it is
    DIED_AGAIN  somebody had replayed it, and it is a dead letter once more: not the one that was planned
    GONE        it is no dead letter any more: replayed, dropped or removed by somebody else
    REFUSED     a command that must not be sent again
    """

    REPLAYED = "replayed"
    STILL_LIVE = "still_live"
    DIED_AGAIN = "died_again"
    GONE = "gone"
    REFUSED = "refused"


class Looked(NamedTuple):
    """Letters that are there, with the moment of their death; and what is known of the others."""

    there: dict[str, datetime]
    others: dict[str, Outcome]


class Target(Protocol):
    """A queue or a fleet."""

    async def look(self, planned: Mapping[str, datetime], *, within: timedelta = SAME_MOMENT) -> Looked:
        """Which letters are there, with a death no further than `within` from the planned one."""
        ...

    async def replay(self, there: Mapping[str, datetime]) -> dict[str, Outcome]:
        """Put back letters that were found just now; what became of each."""
        ...


class QueueTarget:
    """The dead letters of a queue."""

    def __init__(self, store: Store, queue: str, who: str) -> None:
        self._store, self._queue, self._who = store, queue, who
        self._twins: set[str] = set()

    async def look(self, planned: Mapping[str, datetime], *, within: timedelta = SAME_MOMENT) -> Looked:
        near = DeadLetterFilter(
            ids=tuple(planned), since=min(planned.values()) - within, until=max(planned.values()) + within
        )
        there: dict[str, datetime] = {}
        seen: Counter[str] = Counter()
        async for letter, died_at in self._letters(near):
            seen[letter.id] += 1
            if abs(died_at - planned[letter.id]) <= within:
                there.setdefault(letter.id, died_at)
            if len(there) == len(planned):
                break
        # An id that was used again may have several letters, of which one is meant.
        self._twins = {each for each, count in seen.items() if count > 1}
        others = dict.fromkeys((each for each in planned if each not in there), Outcome.GONE)
        if others:
            async for letter, died_at in self._letters(DeadLetterFilter(ids=tuple(others))):
                if died_at > planned[letter.id]:
                    others[letter.id] = Outcome.DIED_AGAIN
        return Looked(there, others)

    async def _letters(self, which: DeadLetterFilter) -> AsyncIterator[tuple[DeadLetter, datetime]]:
        """Oldest first. A page holds as many letters as there are ids, and mostly one is enough."""
        after: str | None = None
        limit = len(which.ids or ())
        while page := await self._store.peek_dead(
            self._queue, which, limit=limit, after=after, oldest_first=True
        ):
            for letter in page:
                if letter.died_at is not None:
                    yield letter, letter.died_at
            if len(page) < limit:
                return
            after = page[-1].cursor

    async def replay(self, there: Mapping[str, datetime]) -> dict[str, Outcome]:
        alone = {each: at for each, at in there.items() if each not in self._twins}
        became = await self._replay(alone) if alone else {}
        for each in there.keys() - alone.keys():
            became |= await self._replay({each: there[each]})
        return became

    async def _replay(self, there: Mapping[str, datetime]) -> dict[str, Outcome]:
        which = DeadLetterFilter(ids=tuple(there), since=min(there.values()), until=max(there.values()))
        done = await self._store.replay_dead(self._queue, which, limit=len(there), who=self._who)
        became = dict.fromkeys(there, Outcome.GONE)
        became |= dict.fromkeys(set(done.still_live) & there.keys(), Outcome.STILL_LIVE)
        return became | dict.fromkeys(done.ids, Outcome.REPLAYED)


class FleetTarget:
    """The failed commands of a fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def look(self, planned: Mapping[str, datetime], *, within: timedelta = SAME_MOMENT) -> Looked:
        there: dict[str, datetime] = {}
        others = dict.fromkeys(planned, Outcome.GONE)
        for command in (await self._fleet.ledger.load(list(planned))).values():
            if command.status is not CommandStatus.DELIVERY_FAILED:
                continue
            if abs(command.status_since - planned[command.id]) <= within:
                there[command.id] = command.status_since
                del others[command.id]
            else:
                others[command.id] = Outcome.DIED_AGAIN
        return Looked(there, others)

    async def replay(self, there: Mapping[str, datetime]) -> dict[str, Outcome]:
        return {
            each: Outcome.REPLAYED if await self._fleet.replay(each) else Outcome.REFUSED for each in there
        }
