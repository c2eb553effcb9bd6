"""The dead letters of a queue: count, peek, replay, drop, export."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypedDict, Unpack

from remuda.errors import ConfigurationError
from remuda.lifecycle import Reason
from remuda.message import DeadLetter, DeadLetterFilter, Replayed

if TYPE_CHECKING:
    from remuda.queue import Queue
    from remuda.stores.contract import Store

EXPORT_PAGE = 500


class Which(TypedDict, total=False):
    """Which dead letters are meant: every condition that is given must hold.

    since and until are aware, and compare with the moment of death.
    """

    reason: Reason | str | None
    name: str | None
    since: datetime | None
    until: datetime | None
    ids: Sequence[str] | None


def make_filter(**which: Unpack[Which]) -> DeadLetterFilter:
    """A filter from loose arguments, with errors that name the value."""
    reason, ids = which.get("reason"), which.get("ids")
    try:
        wanted = None if reason is None else Reason(reason)
    except ValueError:
        known = ", ".join(each.value for each in Reason)
        raise ConfigurationError(
            f"no dead letter has the reason {reason!r}; the reasons are {known}"
        ) from None
    since, until = which.get("since"), which.get("until")
    for what, moment in (("since", since), ("until", until)):
        if moment is not None and moment.utcoffset() is None:
            raise ConfigurationError(f"{what} has no time zone: {moment!r}")
    return DeadLetterFilter(
        reason=wanted,
        name=which.get("name"),
        since=since,
        until=until,
        ids=None if ids is None else tuple(ids),
    )


class DeadLetters:
    """`queue.dead`. Every method takes the same filter, `Which`: reason, name, since, until, ids."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    @property
    def _store(self) -> Store:
        self._queue.check_open()
        return self._queue.store

    async def count(self, **which: Unpack[Which]) -> dict[str, int]:
        """How many, by reason."""
        return await self._store.count_dead(self._queue.name, make_filter(**which))

    async def peek(self, *, limit: int = 20, **which: Unpack[Which]) -> list[DeadLetter]:
        """The latest ones, newest first; nothing changes."""
        return await self._store.peek_dead(self._queue.name, make_filter(**which), limit=limit)

    async def replay(self, *, limit: int = 100, dry_run: bool = False, **which: Unpack[Which]) -> Replayed:
        """Put dead letters back, oldest first, with attempts and deliveries at nought.

        Atomic for each; what dies again meanwhile is not replayed a second time by the same call.
        With `dry_run` nothing changes, and the answer is what would have been done.
        """
        return await self._store.replay_dead(
            self._queue.name, make_filter(**which), limit=limit, who=self._queue.who, dry_run=dry_run
        )

    async def drop(self, *, limit: int = 100, **which: Unpack[Which]) -> list[str]:
        """Remove dead letters for good, oldest first; their ids. The trail keeps that it happened."""
        return await self._store.drop_dead(
            self._queue.name, make_filter(**which), limit=limit, who=self._queue.who
        )

    async def export(self, **which: Unpack[Which]) -> AsyncIterator[DeadLetter]:
        """All of them, oldest first, however many there are."""
        chosen = make_filter(**which)
        after: str | None = None
        while True:
            page = await self._store.peek_dead(
                self._queue.name, chosen, limit=EXPORT_PAGE, after=after, oldest_first=True
            )
            for letter in page:
                yield letter
            if len(page) < EXPORT_PAGE:
                return
            after = page[-1].cursor
