"""Jobs and commands in SQL tables: SQLite, PostgreSQL, MariaDB and MySQL.

`operations` are the engine's hot paths and `dialect` what they need of a database; each database
has a module of statements (`*_dialect`) and one of connections (`*_store`). `inspection`,
`dead_letters`, `upkeep`, `rates`, `results` and `trail` are written once, portably.

`commands` keeps commands to devices on the same stores: its operations are in `command_*`, in statements
that `phrasing` words for each database.

From outside only `open_sql_store` and `commands` may be touched, and `migrations` by the command line.
"""

from __future__ import annotations

from remuda.clock import Clock
from remuda.errors import ConfigurationError
from remuda.stores import redact
from remuda.stores.sql.drivers import load_driver
from remuda.stores.sql.store import SqlStore

_DRIVERS = {
    "sqlite": ("sqlite", "pysqlite", "aiosqlite"),
    "postgresql": ("postgresql", "asyncpg"),
    "postgres": ("postgresql", "asyncpg"),
    "mysql": ("mysql", "asyncmy"),
    "mariadb": ("mysql", "asyncmy"),
}


def open_sql_store(url: str, *, clock: Clock | None = None) -> SqlStore:
    """The SQL store that a URL names."""
    head, separator, rest = url.partition("://")
    scheme, _, driver = head.lower().partition("+")
    backend, *drivers = _DRIVERS[scheme]
    if driver and driver not in drivers:
        raise ConfigurationError(
            f"Remuda talks to {scheme} through {drivers[0]}, not {driver}; write {redact(f'{scheme}://{rest}')}"
        )
    plain = f"{backend}{separator}{rest}"
    if backend == "sqlite":
        from remuda.stores.sql.sqlite_store import SqliteStore

        return SqliteStore(plain, clock)
    # Asked for before anything that needs them is imported, so that the error says what to install.
    load_driver("greenlet", "postgres" if backend == "postgresql" else "mysql")
    load_driver(drivers[0], "postgres" if backend == "postgresql" else "mysql")
    if backend == "postgresql":
        from remuda.stores.sql.postgres_store import PostgresStore

        return PostgresStore(plain, clock)
    from remuda.stores.sql.mysql_store import MysqlStore

    return MysqlStore(plain, clock)
