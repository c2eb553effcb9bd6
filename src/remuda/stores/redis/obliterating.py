"""Obliterating: a queue's keys go, all but its trail and the counter of its numbers."""

from __future__ import annotations

import re

from remuda.stores.redis.keys import Keys, keys_of, queue_of
from remuda.stores.redis.link import Link

_KEYS_AT_ONCE = 200
_TRAIL_FIELDS = frozenset({b"seq"})


async def forget(link: Link, queue: str) -> None:
    """Delete what stands beside the trail. What comes into the queue meanwhile is lost: nobody may use it."""
    keys = keys_of(queue)
    stay = {keys.meta.encode(), keys.log.encode()}
    found = [key async for key in link.scan(f"{_literally(keys.prefix)}*") if key not in stay]
    for start in range(0, len(found), _KEYS_AT_ONCE):
        await link.call("DEL", *found[start : start + _KEYS_AT_ONCE])
    if others := await _settings(link, keys):
        await link.call("HDEL", keys.meta, *others)


async def names(link: Link) -> list[str]:
    """Every queue that has more than a trail."""
    found: set[str] = set()
    doubtful: set[str] = set()
    async for key in link.scan("{chasqui:*}:*"):
        name = queue_of(key)
        if name is not None:
            keys = keys_of(name)
            is_trail = key in (keys.meta.encode(), keys.log.encode())
            (doubtful if is_trail else found).add(name)
    for name in doubtful - found:
        if await _settings(link, keys_of(name)):
            found.add(name)
    return sorted(found)


async def _settings(link: Link, keys: Keys) -> list[bytes]:
    """What is set for a queue besides its counter."""
    return [field for field in await link.call("HKEYS", keys.meta) if field not in _TRAIL_FIELDS]


def _literally(prefix: str) -> str:
    """As a pattern of keys."""
    return re.sub(r"([\\*?\[\]^])", r"\\\1", prefix)
