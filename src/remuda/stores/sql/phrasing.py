"""Hand-tuned SQL that is written once, and phrased for each database.

Parameters are names (`:fleet`); `IN :ids` and `NOT IN :ids` take a list of any length but none;
`GREATEST` is every database's own; `MOMENT(:now)` is a moment where no column beside it says so; `BY(index)`
after a table names the index to use, to those who would rather scan. A batch of rows, or of looks into an
index, is one statement.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache, lru_cache
from typing import Any, ClassVar

import msgspec
from sqlalchemy import BigInteger, DateTime, Integer, LargeBinary, SmallInteger, Table

from remuda.stores.sql.moments import aware, naive
from remuda.stores.sql.sqlite_dialect import moment_of, text_of
from remuda.stores.sql.steps import Raw, Rows, Steps

# A list, or a single value; a colon that belongs to a cast is neither.
_PARAMETER = re.compile(r"(?P<list>(?:NOT )?IN :(?P<values>\w+))|(?<!:):(?P<name>\w+)")
_MOMENT = re.compile(r"MOMENT\((:\w+)\)")
_BY = re.compile(r"BY\((\w+)\)")
_LOOKS_AT_ONCE = 100  # selects that one statement joins


class Phrasing(ABC):
    """One database's way of saying it. Moments go in aware; `moment` makes them so again."""

    # After this nobody else changes the fleet before the transaction has ended. None: nobody can anyway.
    alone: ClassVar[str | None]

    @abstractmethod
    def ask(self, sql: str, **values: Any) -> Raw:
        """A statement with the values of its parameters."""

    @abstractmethod
    def put(self, table: Table, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, over: bool) -> Raw:
        """Insert rows; of one that is there, by its primary key, write the columns `over`, or leave it."""

    @abstractmethod
    def look_for_each(
        self, sql: str, names: Sequence[str], limits: Sequence[int], **values: Any
    ) -> Steps[Rows]:
        """The rows of one select, run with each name for `{each}` and its limit for `{limit}`, in order."""

    def moment(self, value: Any) -> datetime:
        """What a column of moments gave, aware."""
        return aware(value)

    def moment_or_none(self, value: Any) -> datetime | None:
        return None if value is None else self.moment(value)


class PostgresPhrasing(Phrasing):
    """Lists, and the columns of a batch, travel as arrays."""

    # Unlike a lock on a row it writes nothing, so that a look at a quiet fleet costs no flush to the disk.
    alone = f"SELECT pg_advisory_xact_lock({0x636D6473}, hashtext(:fleet::text))"

    def ask(self, sql: str, **values: Any) -> Raw:
        text, names = _numbered(sql, tuple(name for name, value in values.items() if _is_of_ints(value)))
        return Raw(text, [_plain(values[name]) for name in names])

    def put(self, table: Table, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, over: bool) -> Raw:
        return Raw(
            _postgres_put(table, tuple(columns), over),
            [[_plain(value) for value in column] for column in zip(*rows, strict=True)],
        )

    def look_for_each(
        self, sql: str, names: Sequence[str], limits: Sequence[int], **values: Any
    ) -> Steps[Rows]:
        one = sql.format(each="look.name", limit="look.at_most")
        text = f"""
            SELECT found.* FROM unnest(:names::text[], :limits::int[]) AS look(name, at_most)
            CROSS JOIN LATERAL ({one}) AS found"""
        return (yield self.ask(text, names=list(names), limits=list(limits), **values))


class SqlitePhrasing(Phrasing):
    """A list is JSON. The statements of a batch cost no round trip here."""

    alone = None

    def ask(self, sql: str, **values: Any) -> Raw:
        text, names = _with_json_lists(sql)
        return Raw(text, [_sqlite_plain(values[name]) for name in names])

    def put(self, table: Table, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, over: bool) -> Raw:
        plain = [[_sqlite_plain(value) for value in row] for row in rows]
        return Raw(_sqlite_put(table, tuple(columns), over), plain, many=True)

    def look_for_each(
        self, sql: str, names: Sequence[str], limits: Sequence[int], **values: Any
    ) -> Steps[Rows]:
        text = sql.format(each=":name", limit=":at_most")
        found: list[Any] = []
        for name, at_most in zip(names, limits, strict=True):
            found += yield self.ask(text, name=name, at_most=at_most, **values)
        return found

    def moment(self, value: Any) -> datetime:
        return moment_of(value)


class MysqlPhrasing(Phrasing):
    """A list is as many placeholders; drivers join the rows of a batch into one statement."""

    alone = "SELECT served FROM command_fleet WHERE fleet = :fleet FOR UPDATE"

    def ask(self, sql: str, **values: Any) -> Raw:
        lengths = tuple((name, len(value)) for name, value in values.items() if isinstance(value, list))
        text, names = _with_places(sql, lengths)
        return Raw(text, list(_flat(names, values)))

    def put(self, table: Table, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, over: bool) -> Raw:
        plain = [[_plain(value) for value in row] for row in rows]
        return Raw(_mysql_put(table, tuple(columns), over), plain, many=True)

    def look_for_each(
        self, sql: str, names: Sequence[str], limits: Sequence[int], **values: Any
    ) -> Steps[Rows]:
        found: list[Any] = []
        for start in range(0, len(names), _LOOKS_AT_ONCE):
            part = range(start, min(start + _LOOKS_AT_ONCE, len(names)))
            looks = [f"({sql.format(each=f':name_{n}', limit=f':limit_{n}')})" for n in part]
            own = {f"name_{n}": names[n] for n in part} | {f"limit_{n}": limits[n] for n in part}
            found += yield self.ask(" UNION ALL ".join(looks), **own, **values)
        return found


PHRASINGS: Mapping[str, Phrasing] = {
    "sqlite": SqlitePhrasing(),
    "postgresql": PostgresPhrasing(),
    "mysql": MysqlPhrasing(),
}


# -- values


def _plain(value: Any) -> Any:
    return naive(value) if isinstance(value, datetime) else value


def _sqlite_plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return text_of(value)
    return msgspec.json.encode(value).decode() if isinstance(value, list) else value


def _is_of_ints(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], int)


def _flat(names: Sequence[str], values: Mapping[str, Any]) -> Iterator[Any]:
    for name in names:
        value = values[name]
        if isinstance(value, list):
            yield from value
        else:
            yield _plain(value)


# -- statements


@lru_cache(maxsize=512)
def _numbered(sql: str, of_ints: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """`$1` for each name, and the names in that order."""
    order: dict[str, int] = {}

    def place(match: re.Match[str]) -> str:
        name = match["values"] or match["name"]
        number = order.setdefault(name, len(order) + 1)
        if match["list"] is None:
            return f"${number}"
        kind = "bigint" if name in of_ints else "text"
        test = "<> ALL" if match["list"].startswith("NOT") else "= ANY"
        return f"{test}(${number}::{kind}[])"

    # It is told on each connection to prefer indexes, and finds the right one.
    return _PARAMETER.sub(place, _BY.sub("", _MOMENT.sub(r"\1::timestamp", sql))), tuple(order)


@lru_cache(maxsize=512)
def _with_json_lists(sql: str) -> tuple[str, tuple[str, ...]]:
    names: list[str] = []

    def place(match: re.Match[str]) -> str:
        names.append(match["values"] or match["name"])
        if match["list"] is None:
            return "?"
        test = match["list"].partition(" :")[0]
        return f"{test} (SELECT value FROM json_each(?))"

    sql = _BY.sub(r"INDEXED BY \1", _MOMENT.sub(r"\1", sql)).replace("GREATEST(", "max(")
    return _PARAMETER.sub(place, sql), tuple(names)


@lru_cache(maxsize=512)
def _with_places(sql: str, lengths: tuple[tuple[str, int], ...]) -> tuple[str, tuple[str, ...]]:
    names: list[str] = []
    length_of = dict(lengths)

    def place(match: re.Match[str]) -> str:
        name = match["values"] or match["name"]
        names.append(name)
        if match["list"] is None:
            return "%s"
        test = match["list"].partition(" :")[0]
        return f"{test} ({', '.join(['%s'] * length_of[name])})"

    sql = _BY.sub(r"FORCE INDEX (\1)", sql).replace("MOMENT(", "TIMESTAMP(")
    return _PARAMETER.sub(place, sql), tuple(names)


def _keys(table: Table) -> list[str]:
    return [column.name for column in table.primary_key]


@cache
def _postgres_put(table: Table, columns: tuple[str, ...], over: bool) -> str:
    arrays = ", ".join(
        f"${place}::{_postgres_type(table, column)}[]" for place, column in enumerate(columns, start=1)
    )
    return f"""
        INSERT INTO {table.name} ({", ".join(columns)}) SELECT * FROM unnest({arrays})
        {_on_conflict(table, columns, over)}"""


@cache
def _sqlite_put(table: Table, columns: tuple[str, ...], over: bool) -> str:
    places = ", ".join("?" * len(columns))
    return f"""
        INSERT INTO {table.name} ({", ".join(columns)}) VALUES ({places})
        {_on_conflict(table, columns, over)}"""


def _on_conflict(table: Table, columns: tuple[str, ...], over: bool) -> str:
    keys = _keys(table)
    if not over:
        return f"ON CONFLICT ({', '.join(keys)}) DO NOTHING"
    changes = ", ".join(f"{column} = excluded.{column}" for column in columns if column not in keys)
    return f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {changes}"


@cache
def _mysql_put(table: Table, columns: tuple[str, ...], over: bool) -> str:
    keys = _keys(table)
    places = ", ".join(["%s"] * len(columns))
    changes = [f"{column} = VALUES({column})" for column in columns if column not in keys and over]
    changes = changes or [f"{table.name}.{keys[0]} = {table.name}.{keys[0]}"]
    return f"""
        INSERT INTO {table.name} ({", ".join(columns)}) VALUES ({places})
        ON DUPLICATE KEY UPDATE {", ".join(changes)}"""


_POSTGRES_TYPES = {
    SmallInteger: "smallint",
    BigInteger: "bigint",
    Integer: "int",
    LargeBinary: "bytea",
    DateTime: "timestamp",
}


def _postgres_type(table: Table, column: str) -> str:
    kind = table.c[column].type
    return next((name for known, name in _POSTGRES_TYPES.items() if isinstance(kind, known)), "text")
