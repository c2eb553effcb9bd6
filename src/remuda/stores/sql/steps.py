"""Operations as steps: what to ask the database, apart from how a driver asks it.

An operation is a generator: it yields queries, is sent their rows, and returns its result. The
same operation so runs on Remuda's own connections and inside a caller's transaction, with an event
loop and without one. Whoever drives the steps owns the transaction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    from asyncpg import Connection as AsyncpgConnection
    from sqlalchemy import Connection
    from sqlalchemy.sql import Executable

T = TypeVar("T")

Row: TypeAlias = Sequence[Any]
Rows: TypeAlias = Sequence[Row]


class Raw(NamedTuple):
    """A hand-tuned statement in the dialect's own parameter style.

    With `many`, `params` is a list of parameter tuples and the statement runs once for each.
    """

    sql: str
    params: Sequence[Any] = ()
    many: bool = False


Query: TypeAlias = "Raw | Executable"
Steps: TypeAlias = Generator[Query, Rows, T]


def drive_with(steps: Steps[T], ask: Callable[[Query], Rows]) -> T:
    """Run the steps with a function that asks the database."""
    try:
        query = next(steps)
        while True:
            query = steps.send(ask(query))
    except StopIteration as end:
        result: T = end.value
        return result


def drive(steps: Steps[T], connection: Connection) -> T:
    """Run the steps on a SQLAlchemy connection of any driver."""
    return drive_with(steps, lambda query: _ask(query, connection))


def _ask(query: Query, connection: Connection) -> Rows:
    if not isinstance(query, Raw):
        result = connection.execute(query)
    else:
        sql, params = query.sql, query.params
        if connection.dialect.name == "postgresql" and connection.dialect.paramstyle in (
            "format",
            "pyformat",
        ):
            # Hand-tuned for asyncpg; the caller's driver counts its parameters differently.
            sql, order = _numbered_to_format(sql)
            params = [params[place] for place in order]
        many = [tuple(row) for row in params] if query.many else tuple(params)
        result = connection.exec_driver_sql(sql, many)
    return [tuple(row) for row in result] if result.returns_rows else ()


@lru_cache(maxsize=512)
def _numbered_to_format(sql: str) -> tuple[str, tuple[int, ...]]:
    """`$1` style to `%s` style, with the order in which the parameters then come."""
    order: list[int] = []

    def replace(match: re.Match[str]) -> str:
        order.append(int(match[1]) - 1)
        return "%s"

    return re.sub(r"\$(\d+)", replace, sql), tuple(order)


async def drive_asyncpg(steps: Steps[T], connection: AsyncpgConnection, *, at_most: int | None = None) -> T:
    """Run hand-tuned steps on a bare asyncpg connection: the quick way on PostgreSQL.

    `at_most` statements, or an error before the next one: for steps that have no transaction around them.
    """
    ran = 0
    try:
        query = next(steps)
        while True:
            if not isinstance(query, Raw) or ran == at_most:
                raise TypeError(f"statement {ran + 1} of at most {at_most} cannot run here: {query!r}")
            ran += 1
            query = steps.send(await connection.fetch(query.sql, *query.params))
    except StopIteration as end:
        result: T = end.value
        return result
