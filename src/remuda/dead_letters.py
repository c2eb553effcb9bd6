"""The dead letters of a queue: count, peek, replay, drop, export."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from remuda.errors import ConfigurationError
from remuda.lifecycle import Reason
from remuda.message import DeadLetter, DeadLetterFilter, Replayed

if TYPE_CHECKING:
    from remuda.queue import Queue

EXPORT_PAGE = 500


def make_filter(
    *,
    reason: Reason | str | None = None,
    name: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    ids: Sequence[str] | None = None,
) -> DeadLetterFilter:
    """A filter from loose arguments, with errors that name the value."""
    try:
        wanted = None if reason is None else Reason(reason)
    except ValueError:
        known = ", ".join(each.value for each in Reason)
        raise ConfigurationError(
            f"no dead letter has the reason {reason!r}; the reasons are {known}"
        ) from None
    for what, moment in (("since", since), ("until", until)):
        if moment is not None and moment.utcoffset() is None:
            raise ConfigurationError(f"{what} has no time zone: {moment!r}")
    return DeadLetterFilter(
        reason=wanted, name=name, since=since, until=until, ids=None if ids is None else tuple(ids)
    )


class DeadLetters:
    """`queue.dead`. Every method takes the same filter: reason, name, since, until, ids."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def count(
        self,
        *,
        reason: Reason | str | None = None,
        name: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        ids: Sequence[str] | None = None,
    ) -> dict[str, int]:
        """How many, by reason."""
        which = make_filter(reason=reason, name=name, since=since, until=until, ids=ids)
        self._queue.check_open()
        return await self._queue.store.count_dead(self._queue.name, which)

    async def peek(
        self,
        *,
        limit: int = 20,
        reason: Reason | str | None = None,
        name: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        ids: Sequence[str] | None = None,
    ) -> list[DeadLetter]:
        """The latest ones, newest first; nothing changes."""
        which = make_filter(reason=reason, name=name, since=since, until=until, ids=ids)
        self._queue.check_open()
        return await self._queue.store.peek_dead(self._queue.name, which, limit=limit)

    async def replay(
        self,
        *,
        limit: int = 100,
        reason: Reason | str | None = None,
        name: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        ids: Sequence[str] | None = None,
        dry_run: bool = False,
    ) -> Replayed:
        """Put dead letters back, oldest first, with attempts and deliveries at nought.

        Atomic for each; what dies again meanwhile is not replayed a second time by the same call.
        With `dry_run` nothing changes, and the ids are those that would have gone back.
        """
        which = make_filter(reason=reason, name=name, since=since, until=until, ids=ids)
        self._queue.check_open()
        store, queue = self._queue.store, self._queue.name
        return await store.replay_dead(queue, which, limit=limit, who=self._queue.who, dry_run=dry_run)

    async def drop(
        self,
        *,
        limit: int = 100,
        reason: Reason | str | None = None,
        name: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        ids: Sequence[str] | None = None,
    ) -> list[str]:
        """Remove dead letters for good, oldest first; their ids. The trail keeps that it happened."""
        which = make_filter(reason=reason, name=name, since=since, until=until, ids=ids)
        self._queue.check_open()
        store, queue = self._queue.store, self._queue.name
        return await store.drop_dead(queue, which, limit=limit, who=self._queue.who)

    async def export(
        self,
        *,
        reason: Reason | str | None = None,
        name: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        ids: Sequence[str] | None = None,
    ) -> AsyncIterator[DeadLetter]:
        """All of them, oldest first, however many there are."""
        which = make_filter(reason=reason, name=name, since=since, until=until, ids=ids)
        self._queue.check_open()
        after: str | None = None
        while True:
            page = await self._queue.store.peek_dead(
                self._queue.name, which, limit=EXPORT_PAGE, after=after, oldest_first=True
            )
            for letter in page:
                yield letter
            if len(page) < EXPORT_PAGE:
                return
            after = page[-1].cursor
