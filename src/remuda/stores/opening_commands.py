"""From a URL to the store of a fleet's commands."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from remuda.errors import ConfigurationError
from remuda.stores import REDIS_SCHEMES, SQL_SCHEMES, redact

if TYPE_CHECKING:
    from remuda.clock import Clock
    from remuda.stores.commands import CommandStore

_FLEET = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def open_commands(url: str, *, fleet: str = "devices", clock: Clock | None = None) -> CommandStore:
    """The store of one fleet's commands that a URL names. No connection is made before the first use.

    >>> commands = open_commands("postgresql://app@localhost/app", fleet="meters")
    """
    check_fleet(fleet)
    scheme = url.partition("://")[0].partition("+")[0].lower()
    if url == "memory://":
        from remuda.stores.memory_commands import MemoryCommands

        return MemoryCommands(fleet=fleet, clock=clock)
    if scheme in SQL_SCHEMES and "://" in url:
        from remuda.stores.sql.commands import SqlCommands

        return SqlCommands(url, fleet=fleet, clock=clock)
    if scheme in REDIS_SCHEMES and "://" in url:
        from remuda.stores.redis.commands import RedisCommands

        return RedisCommands(url, fleet=fleet, clock=clock)
    raise ConfigurationError(
        f"no store is known for {redact(url)!r}; a URL begins with sqlite:///, postgresql://, mysql://, "
        "redis:// or valkey://, or is memory://"
    )


def check_fleet(fleet: str) -> str:
    """`fleet` if it can name one: it becomes part of keys, so it is short and plain."""
    if not is_fleet(fleet):
        raise ConfigurationError(
            f"a fleet's name is 1 to 64 of the letters A to Z, digits, '_', '-' and '.', not {fleet!r}"
        )
    return fleet


def is_fleet(name: object) -> bool:
    """Whether a fleet can be called so."""
    return isinstance(name, str) and _FLEET.fullmatch(name) is not None
