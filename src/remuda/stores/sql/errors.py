"""Which errors of a driver mean "try again", and which mean "this will never work"."""

from __future__ import annotations

import asyncio

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from remuda.errors import StoreUnavailableError

# PostgreSQL: deadlock, serialisation; MySQL and MariaDB: deadlock, lock wait, record changed.
_CONFLICT_STATES = {"40P01", "40001"}
_CONFLICT_CODES = {1213, 1205, 1020}
# PostgreSQL classes: connection, resources, operator intervention, system.
_OUTAGE_CLASSES = ("08", "53", "57", "58")
# MySQL and MariaDB: too many connections, shutting down, killed, gone away, lost; read-only.
_OUTAGE_CODES = {
    1040,
    1053,
    1077,
    1079,
    1080,
    1152,
    1184,
    1290,
    1836,
    1927,
    2002,
    2003,
    2006,
    2013,
    2055,
    4031,
}


def _codes(error: BaseException) -> tuple[str | None, int | None]:
    origin = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    state = getattr(origin, "sqlstate", None) or getattr(origin, "pgcode", None)
    number = origin.args[0] if origin.args and isinstance(origin.args[0], int) else None
    return state, number


def is_conflict(error: BaseException) -> bool:
    """Two transactions stood in each other's way: running the same one again at once is right."""
    state, number = _codes(error)
    return state in _CONFLICT_STATES or number in _CONFLICT_CODES


def is_outage(error: BaseException) -> bool:
    """The server cannot be reached, or not just now."""
    if isinstance(error, OSError | asyncio.IncompleteReadError | TimeoutError):
        return True
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    state, number = _codes(error)
    if state is not None:
        return state.startswith(_OUTAGE_CLASSES)
    if number is not None:
        return number in _OUTAGE_CODES
    # Without a code it is the driver itself that speaks: a connection that is closed or half open.
    return isinstance(error, OperationalError | InterfaceError) or type(error).__name__ in (
        "InterfaceError",
        "ConnectionDoesNotExistError",
        "InternalClientError",
    )


def unavailable(backend: str, error: BaseException) -> StoreUnavailableError:
    """What the engine sees of an outage or of a conflict that does not end."""
    wrapped = StoreUnavailableError(f"{backend} is not available just now: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
