"""Sweeping up behind other programs: they end jobs of ours and know nothing of what we keep beside them.

Only where the group has consumers that are not ours. What was not found among the live jobs twice,
some minutes apart, belongs to nobody: a job that moved while we looked is found the second time.
"""

from __future__ import annotations

from typing import Any

from remuda.stores.redis import wire
from remuda.stores.redis.inspection import PAGE, Inspector
from remuda.stores.redis.keys import Keys
from remuda.stores.redis.link import Link

EVERY_S = 300.0


class Sweeper:
    """Looks through one queue now and then, and remembers what it missed the last time."""

    def __init__(self, link: Link, keys: Keys, queue: str) -> None:
        self._link = link
        self._keys = keys
        self._queue = queue
        self._swept_at = float("-inf")
        self._missed: set[bytes] = set()

    async def find_leftovers(self, loop_time: float) -> list[bytes]:
        """Ids with extras whose job was not to be found, this time and the last; at most once in a while."""
        if loop_time - self._swept_at < EVERY_S:
            return []
        if not await self._link.call("HEXISTS", self._keys.meta, "foreign"):
            return []
        self._swept_at = loop_time
        kept = await self._ids_with_extras()
        missed = kept - await self._live_ids() if kept else set()
        gone = missed & self._missed
        self._missed = missed - gone
        return sorted(gone)

    async def _ids_with_extras(self) -> set[bytes]:
        found: set[bytes] = set()
        cursor: Any = b"0"
        while True:
            cursor, flat = await self._link.call("HSCAN", self._keys.extra, cursor, "COUNT", PAGE)
            found.update(flat[::2])
            if cursor in (b"0", 0):
                return found

    async def _live_ids(self) -> set[bytes]:
        inspector = Inspector(self._link, self._keys, self._queue)
        found: set[bytes] = set()
        for stream in self._keys.streams:
            async for entry, flat in inspector.entries(stream):
                d = next((flat[i + 1] for i in range(0, len(flat), 2) if flat[i] == b"d"), b"")
                found.add((wire.id_of(d) or entry.decode()).encode())
        cursor: Any = b"0"
        while True:
            cursor, flat = await self._link.call("ZSCAN", self._keys.delayed, cursor, "COUNT", PAGE)
            found.update((wire.id_of(wire.open_member(member)[1]) or "").encode() for member in flat[::2])
            if cursor in (b"0", 0):
                return found
