"""Where messages live. `contract` says what a store does; `sql` and `redis` do it.

From outside this folder only `open_store` and what `contract` defines may be touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from remuda.errors import ConfigurationError

if TYPE_CHECKING:
    from remuda.clock import Clock
    from remuda.stores.contract import Store

SQL_SCHEMES = ("sqlite", "postgresql", "postgres", "mysql", "mariadb")
REDIS_SCHEMES = ("redis", "rediss", "valkey", "valkeys", "unix")


def open_store(url: str, *, clock: Clock | None = None) -> Store:
    """The store that a URL names. No connection is made before the first use.

    >>> store = open_store("sqlite:///app.db")
    """
    scheme = url.partition("://")[0].partition("+")[0].lower()
    if scheme in SQL_SCHEMES and "://" in url:
        from remuda.stores.sql import open_sql_store

        return open_sql_store(url, clock=clock)
    if scheme in REDIS_SCHEMES and "://" in url:
        from remuda.stores.redis import open_redis_store

        return open_redis_store(url, clock=clock)
    raise ConfigurationError(
        f"no store is known for {redact(url)!r}; a URL begins with sqlite:///, postgresql://, mysql://, "
        "redis:// or valkey://"
    )


def redact(url: str) -> str:
    """A URL without its password and without the values of its query, for logs and messages."""
    scheme, separator, rest = url.rpartition("://") if "://" not in url else url.partition("://")
    # A password may hold any character, so everything before the last @ is taken for credentials.
    credentials, at, place = rest.rpartition("@")
    user, colon, _ = credentials.partition(":")
    head, question, query = place.partition("?")
    names = "&".join(f"{part.partition('=')[0]}=…" for part in query.split("&") if part)
    return f"{scheme}{separator}{user}{':***' if colon else ''}{at}{head}{question if names else ''}{names}"
