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

SCHEMA_VERSION = 5


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
_fleet = String(64).with_variant(String(64, collation="C"), "postgresql")
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
    # the last sequence number when all else of the queue was forgotten
    Column("forgotten_seq", BigInteger),
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

# Specs of repeatable jobs, each with its next window.
repeat = Table(
    "message_repeat",
    metadata,
    Column("queue", _name, primary_key=True),
    Column("repeat_key", _name, primary_key=True),
    Column("spec", _bytes, nullable=False),
    Column("next_at", _moment, nullable=False),
    Column("fired", BigInteger, nullable=False, server_default="0"),
    Index("message_repeat_next", "queue", "next_at"),
    **_mysql,
)

# Running jobs that somebody wants cancelled, until their worker has seen it.
cancel = Table(
    "message_cancel",
    metadata,
    Column("queue", _name, primary_key=True),
    Column("job_id", _name, primary_key=True),
    Column("asked_at", _moment, nullable=False),
    **_mysql,
)

# How far running jobs are, and what their handlers said, for as long as it is wanted.
progress = Table(
    "message_progress",
    metadata,
    Column("queue", _name, primary_key=True),
    Column("job_id", _name, primary_key=True),
    Column("progress", _bytes, nullable=False),
    Column("noted_at", _moment, nullable=False),
    Column("expires_at", _moment, nullable=False),
    Index("message_progress_over", "queue", "expires_at"),
    **_mysql,
)

log_line = Table(
    "message_log",
    metadata,
    Column("id", _row_id, primary_key=True, autoincrement=True),
    Column("queue", _name, nullable=False),
    Column("job_id", _name, nullable=False),
    Column("said_at", _moment, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("line", _bytes, nullable=False),
    Column("expires_at", _moment, nullable=False),
    Index("message_log_of_job", "queue", "job_id", "id"),
    Index("message_log_over", "queue", "expires_at"),
    **_mysql,
)

# The commands of device fleets. What a column says only of some commands is NULL in the others, and
# every index is of those alone (where the database has partial indexes).
#
# home         as in `Home`; `published` for a command that has ended and whose subscribers know
# standing     minus the priority, so that every index ascends
# due_at       when somebody has to look at it; of one that has ended: when
# taken_until  of one that has ended: until when a publisher has it
# ready_lane   its lane, while it can be claimed there
# turn_held    the turn that it has; `turn_wanted` the one that it waits for in its lane
# slot_lane    its lane, while it counts against the slots there, until `slot_until` at the latest
# expires_at   when somebody has to look whether it has expired
# names_digest  of the names that `command_name` has of it
command = Table(
    "command",
    metadata,
    Column("fleet", _fleet, primary_key=True),
    Column("id", _name, primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("home", String(24), nullable=False),
    Column("status", String(24), nullable=False),
    Column("type", String(64), nullable=False),
    Column("device", _name, nullable=False),
    Column("lane", _name, nullable=False),
    Column("standing", Integer, nullable=False),
    Column("due_at", _moment),
    Column("taken_until", _moment),
    Column("ready_lane", _name),
    Column("turn_held", _name),
    Column("turn_wanted", _name),
    Column("merge_key", _name),
    Column("slot_lane", _name),
    Column("slot_until", _moment),
    Column("hears", _name),
    Column("expires_at", _moment),
    Column("airtime_ms", BigInteger, nullable=False, server_default="0"),
    Column("names_digest", BigInteger, nullable=False, server_default="0"),
    Column("record", _bytes, nullable=False),
    Index("command_status", "fleet", "status", "id"),
    Index("command_device", "fleet", "device", "id"),
    Index("command_in_lane", "fleet", "lane", "id"),
    postgresql_with={
        "fillfactor": 70,
        "autovacuum_vacuum_scale_factor": 0.02,
        "autovacuum_vacuum_threshold": 1000,
        "autovacuum_vacuum_cost_delay": 0,
        "autovacuum_analyze_scale_factor": 0.05,
    },
    **_mysql,
)


def _index_of_some(name: str, some: str, *columns: str) -> None:
    """An index of the commands of which the column `some` says anything."""
    says = text(f"{some} IS NOT NULL")
    Index(name, *(command.c[column] for column in columns), postgresql_where=says, sqlite_where=says)


_index_of_some("command_ready", "ready_lane", "fleet", "ready_lane", "standing", "id")
_index_of_some("command_turn_held", "turn_held", "fleet", "turn_held")
_index_of_some("command_turn_wanted", "turn_wanted", "fleet", "turn_wanted", "standing", "id")
_index_of_some("command_due", "due_at", "fleet", "home", "due_at", "id")
_index_of_some("command_expires", "expires_at", "fleet", "expires_at", "id")
_index_of_some("command_slots", "slot_lane", "fleet", "slot_lane", "slot_until")
_index_of_some("command_key", "merge_key", "fleet", "merge_key")
_index_of_some("command_hears", "hears", "fleet", "hears", "id")
# To count what waits in each lane. Where the index is of all commands it has to know their homes.
_WAITING_IN_LANE = text("home = 'lane'")
Index(
    "command_waiting",
    command.c.fleet,
    command.c.lane,
    postgresql_where=_WAITING_IN_LANE,
    sqlite_where=_WAITING_IN_LANE,
).ddl_if(callable_=_has_partial_indexes)
Index("command_waiting", command.c.fleet, command.c.home, command.c.lane).ddl_if(
    callable_=_has_no_partial_indexes
)

# What commands are called besides their ids: by the network server, by whoever asked for them.
command_name = Table(
    "command_name",
    metadata,
    Column("fleet", _fleet, primary_key=True),
    Column("name", _name, primary_key=True),
    Column("kind", String(16), primary_key=True),
    Column("command_id", _name, primary_key=True),
    Index("command_name_owner", "fleet", "command_id"),
    **_mysql,
)

# ready      whether anything in it can be claimed
# opens_at   when its pace lets the next command out; `earned_at` when its air time is paid off
# served     a number that grows with every command that leaves a lane of the fleet
command_lane = Table(
    "command_lane",
    metadata,
    Column("fleet", _fleet, primary_key=True),
    Column("lane", _name, primary_key=True),
    Column("ready", SmallInteger, nullable=False, server_default="0"),
    Column("served", BigInteger, nullable=False, server_default="0"),
    Column("opens_at", _moment),
    Column("earned_at", _moment),
    Column("held_until", _moment),
    Column("held_why", _long_text),
    Index("command_lane_ready", "fleet", "ready"),
    **_mysql,
)

# The inbox of signals (`forget_at` is NULL), and the ids of those that are done, for as long as they are
# remembered. `due_at` of one that was taken is when it may be taken again.
command_signal = Table(
    "command_signal",
    metadata,
    Column("seq", _row_id, primary_key=True, autoincrement=True),
    Column("fleet", _fleet, nullable=False),
    Column("id", _name, nullable=False),
    Column("device", _name, nullable=False),
    Column("body", _bytes, nullable=False),
    Column("received_at", _moment, nullable=False),
    Column("looks", Integer, nullable=False, server_default="0"),
    Column("due_at", _moment),
    Column("remember_us", BigInteger, nullable=False),
    Column("forget_at", _moment),
    Index("command_signal_id", "fleet", "id", unique=True),
    Index("command_signal_done", "fleet", "forget_at", "seq"),
    **_mysql,
)
# MySQL reads the inbox from `command_signal_done`, where it comes first.
Index(
    "command_signal_inbox",
    command_signal.c.fleet,
    command_signal.c.seq,
    postgresql_where=text("forget_at IS NULL"),
    sqlite_where=text("forget_at IS NULL"),
).ddl_if(callable_=_has_partial_indexes)

# One row of each fleet, for whoever has to be alone with it, and the number of commands that left its lanes.
command_fleet = Table(
    "command_fleet",
    metadata,
    Column("fleet", _fleet, primary_key=True),
    Column("served", BigInteger, nullable=False, server_default="0"),
    **_mysql,
)

schema_version = Table(
    "message_schema",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("applied_at", _moment, nullable=False),
    **_mysql,
)
