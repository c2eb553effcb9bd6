"""The trails of a store, for programs without an event loop: where each begins and ends, and its entries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from remuda.stores import open_store
from remuda.stores.contract import Store, TrailEntry, TrailSpan

T = TypeVar("T")
_READ_AT_ONCE = 100_000  # transitions to a call of the store


class TrailRange(msgspec.Struct, frozen=True, kw_only=True):
    """The transitions of a trail with numbers in (after, up_to]."""

    trail: str
    after: int
    up_to: int

    def __len__(self) -> int:
        return self.up_to - self.after


def program_of(source: str, trail: str) -> str:
    """The name under which the lake notes how far a trail was ingested."""
    return f"trail:{source}/{trail}"


def with_store(url: str, use: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
    """What a coroutine makes of an open store."""

    async def opened() -> T:
        async with open_store(url) as store:
            return await use(store)

    return asyncio.run(opened())


def spans(url: str, trails: Sequence[str] | None = None) -> dict[str, TrailSpan]:
    """Where each trail begins and ends just now: all that the store has, or those that are named."""

    async def look(store: Store) -> dict[str, TrailSpan]:
        names = await store.trails() if trails is None else trails
        return {name: await store.trail_span(name) for name in names}

    return with_store(url, look)


def entries(url: str, wanted: TrailRange) -> Iterator[TrailEntry]:
    """The packed entries of a range, in order, page by page."""
    loop = asyncio.new_event_loop()
    store = open_store(url)
    try:
        loop.run_until_complete(store.open())
        pages = _pages(store, wanted)
        while True:
            try:
                page = loop.run_until_complete(anext(pages))
            except StopAsyncIteration:
                return
            yield from page
    finally:
        loop.run_until_complete(store.close())
        loop.close()


async def _pages(store: Store, wanted: TrailRange) -> AsyncIterator[list[TrailEntry]]:
    after = wanted.after
    while after < wanted.up_to:
        page = await store.trail_entries(wanted.trail, after=after, up_to=wanted.up_to, limit=_READ_AT_ONCE)
        if not page:
            return
        yield page
        after = page[-1].first_seq + page[-1].count - 1


def unread(spans_now: Mapping[str, TrailSpan], read: Mapping[str, int], *, limit: int) -> list[TrailRange]:
    """What is there and was not read, at most `limit` transitions of it, the same share of every trail.

    What was trimmed before it could be read is passed over: the numbers show that it is missing.
    """
    waiting = [
        TrailRange(trail=trail, after=max(read.get(trail, 0), span.first - 1), up_to=span.last)
        for trail, span in sorted(spans_now.items())
        if span.last > max(read.get(trail, 0), span.first - 1)
    ]
    chosen: list[TrailRange] = []
    # The shortest first: what it does not use of its share is left to the longer ones.
    for place, each in enumerate(sorted(waiting, key=len)):
        share = limit // (len(waiting) - place)
        taken = min(len(each), share)
        limit -= taken
        if taken:
            chosen.append(msgspec.structs.replace(each, up_to=each.after + taken))
    return sorted(chosen, key=lambda each: each.trail)


def cut(ranges: Sequence[TrailRange], *, pieces: int) -> list[list[TrailRange]]:
    """The ranges in about so many lists of about the same length, for as many tasks."""
    total = sum(map(len, ranges))
    size = max(1, -(-total // pieces))
    tasks: list[list[TrailRange]] = [[]]
    room = size
    for each in ranges:
        after = each.after
        while after < each.up_to:
            if room == 0:
                tasks.append([])
                room = size
            taken = min(room, each.up_to - after)
            tasks[-1].append(TrailRange(trail=each.trail, after=after, up_to=after + taken))
            after += taken
            room -= taken
    return [task for task in tasks if task]
