"""Jobs on Redis and Valkey Streams, on ChasquiMQ's wire."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remuda.clock import Clock
    from remuda.stores.contract import Store


def open_redis_store(url: str, *, clock: Clock | None = None) -> Store:
    """The store that a Redis or Valkey URL names. No connection is made before the first use."""
    from remuda.stores.redis.store import RedisStore

    return RedisStore(url, clock)
