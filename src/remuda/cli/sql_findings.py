"""What `doctor` looks at in each SQL database: settings and neighbours that make a queue slow or unsafe."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from remuda.cli.findings import Finding, ok, unknown, warning
from remuda.cli.opening import sqlite_file
from remuda.cli.output import size
from remuda.cli.times import span
from remuda.errors import StoreError
from remuda.stores.sql.schema import message

if TYPE_CHECKING:
    from remuda.stores.sql.store import SqlStore

LONG_TRANSACTION = timedelta(minutes=5)
MANY_DEAD_ROWS = 20_000
MANY_CONNECTIONS = 0.8
LARGE_WAL_BYTES = 256 * 2**20
LITTLE_SPACE_BYTES = 512 * 2**20
SMALL_PACKET_BYTES = 16 * 2**20
LONG_UNDO = 1_000_000
POOL_KEEPS_S = 1_800  # how long our own pools keep an idle connection

NETWORK_FILESYSTEMS = frozenset(
    (
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "ceph",
        "glusterfs",
        "lustre",
        "beegfs",
        "fuse.sshfs",
    )
)

Look = Callable[[Connection], Iterator[Finding]]


async def look_into(store: SqlStore, url: str) -> list[Finding]:
    """Everything there is to say about this database. What may not be looked at is said to be so."""
    found: list[Finding] = []
    for check, look in _looks(store, url).items():
        try:
            found += await store.run_sync(lambda connection, look=look: list(look(connection)))  # type: ignore[misc]
        except (SQLAlchemyError, StoreError) as error:
            origin = getattr(error, "orig", None) or error
            found.append(unknown(check, f"could not be looked at: {origin}"))
    return found


def _looks(store: SqlStore, url: str) -> dict[str, Look]:
    if store.backend == "sqlite":
        path = sqlite_file(url)
        return {"journal": _journal} | ({} if path is None else {"file": lambda _: _file(path.absolute())})
    if store.backend == "postgresql":
        return {
            "transactions": _postgres_transactions,
            "slots": _postgres_slots,
            "dead rows": _postgres_dead_rows,
            "settings": _postgres_settings,
            "connections": _postgres_connections,
        }
    return {
        "settings": _mysql_settings,
        "buffer pool": _mysql_buffer_pool,
        "transactions": _mysql_transactions,
        "connections": _mysql_connections,
    }


# -- SQLite


def _journal(connection: Connection) -> Iterator[Finding]:
    mode = connection.execute(text("PRAGMA journal_mode")).scalar()
    if mode == "memory":
        yield warning(
            "journal",
            "the store is in this process's memory and gone with it",
            "name a file: sqlite:///app.db",
        )
    elif mode != "wal":
        yield warning(
            "journal",
            f"the journal mode is {mode}, not WAL: readers and writers wait for each other",
            "move the file to a local disk, and see that nothing sets another journal mode",
        )
    else:
        yield ok("journal", "write-ahead log")


def _file(path: Path) -> Iterator[Finding]:
    kind = filesystem_of(path)
    if kind in NETWORK_FILESYSTEMS:
        yield warning(
            "file",
            f"{path} is on a network filesystem ({kind}): locks are slow there, and not always kept",
            "move it to a local disk; for several machines use PostgreSQL",
        )
    wal = Path(f"{path}-wal")
    if wal.exists() and wal.stat().st_size > LARGE_WAL_BYTES:
        yield warning(
            "file",
            f"the write-ahead log has {size(wal.stat().st_size)}: a reader that stays open holds it back",
            "find the program that keeps a transaction open on this file",
        )
    free = shutil.disk_usage(path.parent).free
    if free < LITTLE_SPACE_BYTES:
        yield warning("file", f"{size(free)} are free on its disk", "make room, or prune ended jobs")
    yield ok("file", f"{path}, {size(path.stat().st_size)}{f', on {kind}' if kind else ''}")


def filesystem_of(path: Path) -> str | None:
    """The type of the filesystem that holds a path, where the system says so."""
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return None
    target = path.resolve()
    best: tuple[int, str | None] = (0, None)
    for line in mounts:
        _, place, kind, *_ = line.split(" ")
        point = Path(place.replace("\\040", " "))
        if target.is_relative_to(point) and len(point.parts) >= best[0]:
            best = (len(point.parts), kind)
    return best[1]


# -- PostgreSQL


def _postgres_transactions(connection: Connection) -> Iterator[Finding]:
    rows = connection.execute(
        text(
            "SELECT pid, application_name, state, now() - xact_start FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database() "
            "AND backend_type = 'client backend' AND xact_start < now() - CAST(:longest AS interval) "
            "ORDER BY xact_start"
        ),
        {"longest": LONG_TRANSACTION},
    ).all()
    yield from _long_transactions(
        [(pid, f"{state or 'unknown'}, {name or 'unnamed'}", age) for pid, name, state, age in rows],
        "it holds back vacuum, and every fetch has to step over more dead rows",
        "SELECT pg_terminate_backend({pid}); set idle_in_transaction_session_timeout",
    )


def _long_transactions(rows: list[tuple[int, str, timedelta]], harm: str, remedy: str) -> Iterator[Finding]:
    for pid, told, age in rows[:3]:
        yield warning(
            "transactions",
            f"connection {pid} ({told}) has had a transaction open for {span(age)}: {harm}",
            f"end it: {remedy.format(pid=pid)}",
        )
    if not rows:
        yield ok("transactions", f"none is open for more than {span(LONG_TRANSACTION)}")


def _postgres_slots(connection: Connection) -> Iterator[Finding]:
    for (name,) in connection.execute(
        text("SELECT slot_name FROM pg_replication_slots WHERE NOT active AND xmin IS NOT NULL")
    ):
        yield warning(
            "slots",
            f"the replication slot {name!r} is not used and holds back vacuum",
            f"SELECT pg_drop_replication_slot('{name}'), if nothing will come back for it",
        )
    for (name,) in connection.execute(
        text("SELECT gid FROM pg_prepared_xacts WHERE prepared < now() - CAST(:longest AS interval)"),
        {"longest": LONG_TRANSACTION},
    ):
        yield warning(
            "slots",
            f"the prepared transaction {name!r} holds back vacuum",
            f"COMMIT PREPARED '{name}' or ROLLBACK PREPARED '{name}'",
        )


def _postgres_dead_rows(connection: Connection) -> Iterator[Finding]:
    row = connection.execute(
        text("SELECT n_live_tup, n_dead_tup FROM pg_stat_user_tables WHERE relid = to_regclass(:table)"),
        {"table": message.name},
    ).first()
    if row is None:
        return
    live, dead = row
    if dead > MANY_DEAD_ROWS and dead > live:
        yield warning(
            "dead rows",
            f"the table {message.name} has {dead:,} dead rows for {live:,} live ones",
            f"see what holds back vacuum, then VACUUM {message.name}",
        )
    else:
        yield ok("dead rows", f"{dead:,} dead rows, {live:,} live ones in {message.name}")


def _postgres_settings(connection: Connection) -> Iterator[Finding]:
    rows = connection.execute(
        text(
            "SELECT name, setting FROM pg_settings "
            "WHERE name IN ('autovacuum', 'track_counts', 'synchronous_commit', 'fsync')"
        )
    )
    settings = {str(name): str(setting) for name, setting in rows}
    for name in ("autovacuum", "track_counts"):
        if settings.get(name) == "off":
            yield warning(
                "settings", f"{name} is off: dead rows are never removed", f"ALTER SYSTEM SET {name} = on"
            )
    for name in ("synchronous_commit", "fsync"):
        if settings.get(name) == "off":
            yield warning(
                "settings",
                f"{name} is off: jobs that were acknowledged as added can be lost in a crash",
                f"ALTER SYSTEM SET {name} = on, unless you can lose jobs",
            )


def _postgres_connections(connection: Connection) -> Iterator[Finding]:
    used = connection.execute(text("SELECT count(*) FROM pg_stat_activity")).scalar_one()
    limit = int(connection.execute(text("SHOW max_connections")).scalar_one())
    yield _connections(used, limit)


def _connections(used: int, limit: int) -> Finding:
    if used > MANY_CONNECTIONS * limit:
        return warning(
            "connections",
            f"{used} of {limit} connections are in use; each worker process takes several",
            "raise max_connections, run fewer processes, or put a pooler in between",
        )
    return ok("connections", f"{used} of {limit} in use")


# -- MariaDB and MySQL


def _mysql_settings(connection: Connection) -> Iterator[Finding]:
    value = _mysql_variables(connection)
    if value.get("innodb_flush_log_at_trx_commit") != "1":
        yield warning(
            "settings",
            f"innodb_flush_log_at_trx_commit is {value.get('innodb_flush_log_at_trx_commit')}: "
            "jobs that were acknowledged as added can be lost in a crash of the machine",
            "set it to 1, unless you can lose a second of jobs",
        )
    if value.get("log_bin") == "ON" and value.get("binlog_format") == "STATEMENT":
        yield warning(
            "settings",
            "binlog_format is STATEMENT, which does not go with READ COMMITTED: writes will fail",
            "set binlog_format to ROW or MIXED",
        )
    if int(value.get("max_allowed_packet", SMALL_PACKET_BYTES)) < SMALL_PACKET_BYTES:
        yield warning(
            "settings",
            f"max_allowed_packet is {size(int(value['max_allowed_packet']))}: large batches will be refused",
            f"set it to {size(SMALL_PACKET_BYTES)} or more",
        )
    if int(value.get("wait_timeout", POOL_KEEPS_S)) < POOL_KEEPS_S:
        yield warning(
            "settings",
            f"wait_timeout is {value['wait_timeout']} s: the server closes connections that we still hold",
            f"set it to {POOL_KEEPS_S} or more",
        )


def _mysql_variables(connection: Connection) -> dict[str, str]:
    rows = connection.execute(
        text(
            "SHOW GLOBAL VARIABLES WHERE Variable_name IN ("
            "'innodb_flush_log_at_trx_commit', 'innodb_buffer_pool_size', 'log_bin', 'binlog_format', "
            "'max_allowed_packet', 'max_connections', 'wait_timeout')"
        )
    )
    return {str(name): str(value) for name, value in rows}


def _mysql_buffer_pool(connection: Connection) -> Iterator[Finding]:
    pool = int(_mysql_variables(connection)["innodb_buffer_pool_size"])
    used = connection.execute(
        text(
            "SELECT COALESCE(SUM(data_length + index_length), 0) FROM information_schema.tables "
            "WHERE table_schema = DATABASE() AND table_name LIKE 'message%'"
        )
    ).scalar_one()
    if used > pool:
        yield warning(
            "buffer pool",
            f"{size(int(used))} of tables, innodb_buffer_pool_size is {size(pool)}: reads go to the disk",
            "raise it, or keep ended jobs for a shorter time (Worker(retention=…))",
        )
    else:
        yield ok("buffer pool", f"{size(int(used))} of tables, innodb_buffer_pool_size {size(pool)}")


def _mysql_transactions(connection: Connection) -> Iterator[Finding]:
    rows = connection.execute(
        text(
            "SELECT trx_mysql_thread_id, TIMESTAMPDIFF(SECOND, trx_started, NOW()) "
            "FROM information_schema.innodb_trx "
            "WHERE trx_started < NOW() - INTERVAL :longest SECOND AND trx_mysql_thread_id <> CONNECTION_ID() "
            "ORDER BY trx_started"
        ),
        {"longest": int(LONG_TRANSACTION.total_seconds())},
    ).all()
    yield from _long_transactions(
        [(pid, "InnoDB", timedelta(seconds=age)) for pid, age in rows],
        "old versions of rows cannot be removed, and every fetch has to step over them",
        "KILL {pid}",
    )
    undo = connection.execute(
        text("SELECT count FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'")
    ).scalar()
    if undo is not None and undo > LONG_UNDO:
        yield warning(
            "transactions",
            f"{undo:,} old versions of rows wait to be removed",
            "look for long transactions, and raise innodb_purge_threads",
        )


def _mysql_connections(connection: Connection) -> Iterator[Finding]:
    row: Any = connection.execute(text("SHOW GLOBAL STATUS LIKE 'Threads_connected'")).one()
    yield _connections(int(row[1]), int(_mysql_variables(connection)["max_connections"]))
