"""Jobs on Redis and Valkey Streams, on ChasquiMQ's wire."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remuda.errors import ConfigurationError

if TYPE_CHECKING:
    from remuda.clock import Clock
    from remuda.stores.contract import Store


def open_redis_store(url: str, *, clock: Clock | None = None) -> Store:
    """The store that a Redis or Valkey URL names. No connection is made before the first use."""
    try:
        from remuda.stores.redis.store import RedisStore
    except ModuleNotFoundError as missing:
        if missing.name not in ("redis", "hiredis"):
            raise
        raise ConfigurationError(
            f'Redis and Valkey need the package {missing.name!r}: pip install "remuda[redis]"'
        ) from missing
    return RedisStore(url, clock)
