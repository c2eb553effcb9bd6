"""The tables: those of the reference broker with the same names and meanings, and what Remuda adds.

The columns that a foreign program knows come first. Every other column may be NULL or has a
default, so that such a program can go on inserting.
"""

from __future__ import annotations

import enum
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    DateTime,
    Dialect,
    Enum,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects import mysql

SCHEMA_VERSION = 2


class StoredState(enum.Enum):
    """The states of a row. The reference broker compares this set with its own: it must stay equal."""

    PENDING = "PENDING"
    PROCESSING = "PROCESSING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    RETRYABLE = "RETRYABLE"


# Naive UTC with microseconds; MySQL would round to seconds.
_moment = DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
# SQLite numbers rows by itself only in a column that is exactly INTEGER.
_row_id = BigInteger().with_variant(Integer, "sqlite")
# MySQL's plain BLOB ends at 64 KiB.
_bytes = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
_long_text = Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
# Compared byte by byte, as on the other databases: quicker than by the rules of a language.
_name = String(255).with_variant(String(255, collation="C"), "postgresql")
# The type's name is the reference broker's: its statements cast to it.
_state = Enum(StoredState, name="sqlbrokermessagestate")

metadata = MetaData()

# Names are compared byte by byte, on every store.
_mysql: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}
_mysql |= {name.replace("mysql", "mariadb"): value for name, value in _mysql.items()}


def _has_partial_indexes(*_: Any, dialect: Dialect, **__: Any) -> bool:
    return dialect.name in ("postgresql", "sqlite")


def _has_no_partial_indexes(*_: Any, dialect: Dialect, **__: Any) -> bool:
    return dialect.name in ("mysql", "mariadb")


_WAITING = text("state IN ('PENDING', 'RETRYABLE')")
_RUNNING = text("state = 'PROCESSING'")

message = Table(
    "message",
    metadata,
    Column("id", _row_id, primary_key=True, autoincrement=True),
    Column("queue", _name, nullable=False),
    Column("headers", JSON(none_as_null=True), nullable=True),
    Column("payload", _bytes, nullable=False),
    Column("state", _state, nullable=False, server_default="PENDING"),
    Column("attempts_count", BigInteger, nullable=False, server_default="0"),
    Column("deliveries_count", BigInteger, nullable=False, server_default="0"),
    Column("created_at", _moment, nullable=False),
    Column("first_attempt_at", _moment),
    Column("next_attempt_at", _moment, nullable=False),
    Column("last_attempt_at", _moment),
    Column("acquired_at", _moment),
    # from here on Remuda's own
    Column("job_id", _name),
    Column("name", String(255)),
    Column("priority", SmallInteger, nullable=False, server_default="0"),
    Column("expires_at", _moment),
    Column("retry", _bytes),
    Column("unique_for_ms", BigInteger),
    Column("state_since", _moment),
    Column("lease", BigInteger),
    Column("lease_expires_at", _moment),
    Column("worker", String(255)),
    Column("last_error", _long_text),
    Column("rate_key", _name),
    Column("slot_at", _moment),
    Index("message_job_id", "job_id", "queue", unique=True),
    # Small and hot: rows are rewritten in place where they can be, and vacuumed early.
    postgresql_with={
        "fillfactor": 70,
        "autovacuum_vacuum_scale_factor": 0.01,
        "autovacuum_vacuum_threshold": 1000,
        "autovacuum_vacuum_cost_delay": 0,
        "autovacuum_analyze_scale_factor": 0.05,
    },
    # Without it SQLite would give the number of an archived message to a new one.
    sqlite_autoincrement=True,
    **_mysql,
)

# In the order of a fetch, and only what can be fetched, so that foreign rows cost nothing.
Index(
    "message_fetch",
    message.c.queue,
    message.c.priority,
    message.c.next_attempt_at,
    postgresql_where=_WAITING,
    sqlite_where=_WAITING,
).ddl_if(callable_=_has_partial_indexes)
# MySQL has no partial indexes: the state at the end lets it pass over what is being processed.
Index(
    "message_fetch_all",
    message.c.queue,
    message.c.priority,
    message.c.next_attempt_at,
    message.c.state,
).ddl_if(callable_=_has_no_partial_indexes)
# Who holds what. No column that a lease renewal writes is in it, so renewals stay cheap.
Index(
    "message_running",
    message.c.queue,
    postgresql_where=_RUNNING,
    sqlite_where=_RUNNING,
).ddl_if(callable_=_has_partial_indexes)
Index(
    "message_running_all",
    message.c.queue,
    message.c.state,
).ddl_if(callable_=_has_no_partial_indexes)

archive = Table(
    "message_archive",
    metadata,
    Column("id", _row_id, primary_key=True, autoincrement=False),
    Column("queue", _name, nullable=False),
    Column("headers", JSON(none_as_null=True), nullable=True),
    Column("payload", _bytes, nullable=False),
    Column("state", _state, nullable=False),
    Column("attempts_count", BigInteger, nullable=False),
    Column("deliveries_count", BigInteger, nullable=False),
    Column("created_at", _moment, nullable=False),
    Column("first_attempt_at", _moment),
    Column("last_attempt_at", _moment),
    Column("archived_at", _moment, nullable=False),
    # from here on Remuda's own
    Column("job_id", _name),
    Column("name", String(255)),
    Column("priority", SmallInteger, nullable=False, server_default="0"),
    Column("expires_at", _moment),
    Column("retry", _bytes),
    Column("unique_for_ms", BigInteger),
    Column("unique_until", _moment),
    Column("reason", String(64)),
    Column("error_type", String(255)),
    Column("error_message", _long_text),
    Column("error_trace", _long_text),
    Column("worker", String(255)),
    Column("rate_key", _name),
    Index("message_archive_job_id", "job_id", "queue"),
    Index("message_archive_ended", "queue", "state", "archived_at"),
    **_mysql,
)

# The trail. A row is one packed entry; `seq` (of its first transition) is given when it is read.
transition = Table(
    "message_transition",
    metadata,
    Column("id", _row_id, primary_key=True, autoincrement=True),
    Column("queue", _name, nullable=False),
    Column("seq", BigInteger),
    Column("count", Integer, nullable=False),
    Column("written_at", _moment, nullable=False),
    Column("entry", _bytes, nullable=False),
    Index("message_transition_seq", "queue", "seq"),
    **_mysql,
)

queue = Table(
    "message_queue",
    metadata,
    Column("name", _name, primary_key=True),
    Column("paused_at", _moment),
    Column("last_seq", BigInteger, nullable=False, server_default="0"),
    # the rate limits, and when the queue's own bucket of turns is full again
    Column("rate_jobs", Integer),
    Column("rate_per_us", BigInteger),
    Column("rate_full_at", _moment),
    Column("key_rate_jobs", Integer),
    Column("key_rate_per_us", BigInteger),
    **_mysql,
)

# When the bucket of each rate key is full again. One that is full says nothing, and is pruned.
rate = Table(
    "message_rate",
    metadata,
    Column("queue", _name, primary_key=True),
    Column("rate_key", _name, primary_key=True),
    Column("full_at", _moment, nullable=False),
    Index("message_rate_full", "queue", "full_at"),
    **_mysql,
)

# What handlers returned, for as long as it is wanted.
result = Table(
    "message_result",
    metadata,
    Column("queue", _name, primary_key=True),
    Column("job_id", _name, primary_key=True),
    Column("result", _bytes, nullable=False),
    Column("expires_at", _moment, nullable=False),
    Index("message_result_over", "queue", "expires_at"),
    **_mysql,
)

schema_version = Table(
    "message_schema",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("applied_at", _moment, nullable=False),
    **_mysql,
)
