"""The schema's life: created on first use, checked at every start, migrated when asked.

Version 0 is the reference broker's two tables, as another program may have made them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Column, Connection, Index, Table, func, inspect, select, types
from sqlalchemy.schema import CreateColumn
from sqlalchemy.sql.ddl import CreateIndex

from remuda.errors import SchemaError
from remuda.stores.sql.moments import naive
from remuda.stores.sql.schema import (
    SCHEMA_VERSION,
    archive,
    cancel,
    command,
    command_fleet,
    command_lane,
    command_name,
    command_signal,
    log_line,
    message,
    metadata,
    progress,
    queue,
    rate,
    repeat,
    result,
    schema_version,
    transition,
)

_ALL = (
    message,
    archive,
    transition,
    queue,
    rate,
    result,
    repeat,
    cancel,
    progress,
    log_line,
    command,
    command_name,
    command_lane,
    command_signal,
    command_fleet,
    schema_version,
)

# A column's type is right when the database's is of the same family.
_FAMILIES: tuple[tuple[type[Any], ...], ...] = (
    (types.Integer,),
    (types.Enum,),
    (types.JSON,),
    (types.LargeBinary, types._Binary),
    (types.DateTime, types.TIMESTAMP),
    (types.String,),
)


def installed_version(connection: Connection) -> int | None:
    """The schema's version; 0 for the reference broker's tables; None where there is nothing."""
    inspector = inspect(connection)
    if inspector.has_table(schema_version.name):
        return connection.execute(select(func.max(schema_version.c.version))).scalar() or 0
    return 0 if inspector.has_table(message.name) else None


def ensure(connection: Connection) -> None:
    """Create the tables where there are none, then check what is there."""
    if installed_version(connection) is None:
        create(connection)
    check(connection)


def create(connection: Connection) -> None:
    """All tables, at the current version."""
    metadata.create_all(connection)
    _stamp(connection, SCHEMA_VERSION)


def check(connection: Connection) -> None:
    """Raise `SchemaError` naming every missing table, missing column and wrong type."""
    version = installed_version(connection)
    if version is not None and version > SCHEMA_VERSION:
        raise SchemaError(
            f"the tables are of version {version}, made by a newer Remuda; this one knows {SCHEMA_VERSION}: "
            "upgrade the package"
        )
    faults = list(_faults(connection))
    if faults:
        raise SchemaError(
            f"the tables are not as Remuda needs them: {'; '.join(faults)}. `remuda migrate` adds"
            " what is missing"
        )


def is_in_order(connection: Connection) -> bool:
    """Whether there is nothing to make and nothing to complain of."""
    return installed_version(connection) == SCHEMA_VERSION and not _faults(connection)


def _faults(connection: Connection) -> list[str]:
    # Every start waits for this: where the database can tell of all tables at once, it is asked once.
    told = inspect(connection).get_multi_columns(filter_names=[table.name for table in _ALL])
    columns = {name: each for (_, name), each in told.items()}
    faults = []
    for table in _ALL:
        if table.name not in columns:
            faults.append(f"table {table.name} is missing")
            continue
        found = {column["name"]: column["type"] for column in columns[table.name]}
        for column in table.columns:
            if column.name not in found:
                faults.append(f"column {table.name}.{column.name} is missing")
            elif not _same_family(column.type, found[column.name], connection.dialect.name):
                faults.append(
                    f"column {table.name}.{column.name} is {found[column.name]!r}, "
                    f"not {column.type.compile(connection.dialect)}"
                )
    return faults


def _same_family(wanted: types.TypeEngine[Any], found: types.TypeEngine[Any], dialect: str) -> bool:
    if isinstance(wanted, types.Enum) and isinstance(found, types.Enum):
        return set(wanted.enums) <= set(found.enums)
    if isinstance(wanted, types.Enum) and dialect == "sqlite":
        return isinstance(found, types.String)
    if isinstance(wanted, types.JSON) and isinstance(found, types.String) and dialect in ("mysql", "mariadb"):
        return True  # MariaDB's JSON is a long text with a check
    for family in _FAMILIES:
        if isinstance(wanted, family):
            return isinstance(found, family) and not (
                isinstance(found, types.Enum) and not isinstance(wanted, types.Enum)
            )
    return type(wanted) is type(found)


def migrate(connection: Connection) -> list[int]:
    """Bring the tables to the current version; the versions that were applied."""
    version = installed_version(connection)
    if version is None:
        create(connection)
        return [SCHEMA_VERSION]
    applied = []
    for target in range(version + 1, SCHEMA_VERSION + 1):
        _STEPS[target](connection)
        _stamp(connection, target)
        applied.append(target)
    if not applied:
        _complete(connection)
    check(connection)
    return applied


def _stamp(connection: Connection, version: int) -> None:
    connection.execute(schema_version.insert().values(version=version, applied_at=naive(datetime.now(UTC))))


def _to_1(connection: Connection) -> None:
    """From the reference broker's tables: add the columns, indexes and tables that are Remuda's own."""
    if connection.dialect.name == "sqlite":
        _rebuild(connection)
    else:
        _complete(connection)


def _to_2(connection: Connection) -> None:
    """Rate limits and results: columns that may be NULL, and two tables."""
    _complete(connection)


def _to_3(connection: Connection) -> None:
    """Commands to devices: tables of their own."""
    _complete(connection)


def _to_4(connection: Connection) -> None:
    """Specs of repeatable jobs, and running jobs that are to be cancelled: two tables."""
    _complete(connection)


def _to_5(connection: Connection) -> None:
    """What handlers say while they run: two tables; and a column for queues that were obliterated."""
    _complete(connection)


def _rebuild(connection: Connection) -> None:
    """SQLite cannot turn a table into one that never uses a row number again: make new ones and copy."""
    inspector = inspect(connection)
    old = {
        table: [column["name"] for column in inspector.get_columns(table.name)]
        for table in (message, archive)
        if inspector.has_table(table.name)
    }
    for table in old:
        for index in inspector.get_indexes(table.name):
            connection.exec_driver_sql(f'DROP INDEX "{index["name"]}"')
        connection.exec_driver_sql(f"ALTER TABLE {table.name} RENAME TO {table.name}_0")
    metadata.create_all(connection)
    for table, columns in old.items():
        shared = ", ".join(column for column in columns if column in table.c)
        connection.exec_driver_sql(f"INSERT INTO {table.name} ({shared}) SELECT {shared} FROM {table.name}_0")
        connection.exec_driver_sql(f"DROP TABLE {table.name}_0")
    connection.exec_driver_sql(
        "INSERT INTO sqlite_sequence (name, seq) SELECT 'message', 0 "
        "WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'message')"
    )
    connection.exec_driver_sql(
        "UPDATE sqlite_sequence SET seq = max(seq, (SELECT coalesce(max(id), 0) FROM message_archive)) "
        "WHERE name = 'message'"
    )


def _complete(connection: Connection) -> None:
    """Add every table, column and index that is not there; nothing is changed or removed."""
    inspector = inspect(connection)
    known = [table for table in _ALL if inspector.has_table(table.name)]
    found = {
        table.name: {each["name"]: each["type"] for each in inspector.get_columns(table.name)}
        for table in known
    }
    indexes = {table.name: {each["name"] for each in inspector.get_indexes(table.name)} for table in known}
    metadata.create_all(connection)
    for table in known:
        for column in table.columns:
            if column.name not in found[table.name]:
                _add_column(connection, table, column)
            elif connection.dialect.name in ("mysql", "mariadb"):
                _widen_moment(connection, table, column, found[table.name][column.name])
        for index in table.indexes:
            if index.name not in indexes[table.name] and _belongs(index, connection):
                connection.execute(CreateIndex(index))


def _belongs(index: Index, connection: Connection) -> bool:
    condition: Any = index._ddl_if
    return condition is None or bool(condition._should_execute(CreateIndex(index), index, connection))


def _add_column(connection: Connection, table: Table, column: Column[Any]) -> None:
    definition = CreateColumn(column).compile(dialect=connection.dialect)
    connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {definition}")


def _widen_moment(
    connection: Connection, table: Table, column: Column[Any], found: types.TypeEngine[Any]
) -> None:
    """Seconds to microseconds: a lease that is cut to seconds would end early."""
    if isinstance(found, types.DateTime) and not getattr(found, "fsp", None):
        definition = CreateColumn(column).compile(dialect=connection.dialect)
        connection.exec_driver_sql(f"ALTER TABLE {table.name} MODIFY COLUMN {definition}")


_STEPS: dict[int, Callable[[Connection], None]] = {1: _to_1, 2: _to_2, 3: _to_3, 4: _to_4, 5: _to_5}
