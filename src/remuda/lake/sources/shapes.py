"""The columns of what is read: their names, types and meanings, and the part of them that was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from remuda.errors import ConfigurationError
from remuda.lake.schemas import TRANSITIONS, Column, arrow_type

if TYPE_CHECKING:
    import pyarrow as pa

    from remuda.lake.sources.options import Options


class Shape(NamedTuple):
    """Columns in their order."""

    columns: tuple[Column, ...]

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    def chosen(self, options: Options) -> Shape:
        """Those that the option `columns` names, in that order; all where it is not given."""
        return self.of(options.names("columns"))

    def of(self, names: Sequence[str] | None) -> Shape:
        if names is None:
            return self
        by_name = {column.name: column for column in self.columns}
        unknown = [name for name in names if name not in by_name]
        if unknown or len(set(names)) < len(names):
            raise ConfigurationError(
                f"columns must name some of {', '.join(self.names)}, each once, not {', '.join(names)}"
            )
        return Shape(tuple(by_name[name] for name in names))

    @property
    def ddl(self) -> str:
        """As Spark takes it from a source, which runs where there is no session to parse it."""
        return ", ".join(f"`{column.name}` {column.type}" for column in self.columns)

    def arrow_schema(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema([(column.name, arrow_type(column.type)) for column in self.columns])


TRANSITION_SHAPE = Shape(tuple(column for column in TRANSITIONS.columns if column.name != "batch"))

_SOURCE = Column("source", "string", "the store, by the name that the option `source` gives it")
_QUEUE = Column("queue", "string", "the queue, or `devices:<fleet>` for the commands of a fleet")
_KIND = Column("kind", "string", "`job` or `command`")
_ID = Column("id", "string", "the id of the job or command")
_NAME = Column("name", "string", "the job's name, or the command's type")
_PRIORITY = Column("priority", "int", "jobs: -2 (last) to 2 (first); commands: 0 to 100 (first)")
_ATTEMPTS = Column("attempts", "int", "handler runs, or hand-overs to the network server, so far")
_DELIVERIES = Column("deliveries", "int", "hand-overs to a worker, or to the network server, so far")
_CREATED_AT = Column("created_at", "timestamp", "when it was added")
_EXPIRES_AT = Column("expires_at", "timestamp", "after this it is not started any more")
_HEADERS = Column("headers", "string", "jobs: the headers, as JSON")
_RATE_KEY = Column("rate_key", "string", "jobs: what it counts against")

_WHAT = (
    Column("payload", "binary", "the payload as it is stored; a command's data as JSON, but no token's"),
    Column("value", "string", "the payload decoded, as JSON; NULL where it cannot be, and for tokens"),
    _HEADERS,
)
_ERROR = (
    Column("error_type", "string", "what its handler raised last; for commands the last failure's reason"),
    Column("error_message", "string", "what that said"),
    Column("error_trace", "string", "jobs: where it was raised"),
)
_WHERE = (
    Column("device", "string", "commands: the device"),
    Column("lane", "string", "commands: the lane"),
    Column("gateway", "string", "commands: the gateway"),
    Column("grid", "string", "commands: the grid"),
    Column("correlation_id", "string", "commands: what its sender calls it"),
    Column("outcome", "string", "commands that have ended: what the device did, as far as is certain"),
)
_FIRST_ATTEMPT_AT = Column("first_attempt_at", "timestamp", "when its first attempt began")
_LAST_ATTEMPT_AT = Column("last_attempt_at", "timestamp", "when its last attempt began")
_WORKER = Column("worker", "string", "jobs: who holds it, or who ended it")

MESSAGE_SHAPE = Shape(
    (
        _SOURCE,
        _QUEUE,
        _KIND,
        _ID,
        _NAME,
        Column("state", "string", "the state that it is in"),
        *_WHAT,
        _PRIORITY,
        _ATTEMPTS,
        _DELIVERIES,
        _CREATED_AT,
        Column("next_attempt_at", "timestamp", "when it is due; for commands when the engine looks at it"),
        _FIRST_ATTEMPT_AT,
        _LAST_ATTEMPT_AT,
        Column("acquired_at", "timestamp", "jobs: when its worker got it"),
        Column("lease_expires_at", "timestamp", "jobs: until when its worker holds it"),
        _EXPIRES_AT,
        Column("ended_at", "timestamp", "when it ended"),
        _WORKER,
        Column("reason", "string", "why it ended as it did, where there is something to say"),
        *_ERROR,
        _RATE_KEY,
        *_WHERE,
    )
)

DEAD_LETTER_SHAPE = Shape(
    (
        _SOURCE,
        _QUEUE,
        _KIND,
        _ID,
        _NAME,
        Column("reason", "string", "why it is a dead letter"),
        *_ERROR,
        _ATTEMPTS,
        _DELIVERIES,
        Column("died_at", "timestamp", "when"),
        _CREATED_AT,
        _FIRST_ATTEMPT_AT,
        _LAST_ATTEMPT_AT,
        _EXPIRES_AT,
        *_WHAT,
        _WORKER,
        _PRIORITY,
        _RATE_KEY,
        *_WHERE,
    )
)

QUEUE_SHAPE = Shape(
    (
        _QUEUE,
        _ID,
        _NAME,
        Column(
            "payload", "string", "the payload decoded, as JSON; with payload=raw the bytes as they are stored"
        ),
        _HEADERS,
        Column("attempts", "int", "attempts before this one"),
        Column("deliveries", "int", "deliveries, this one included"),
        _PRIORITY,
        _CREATED_AT,
        Column("next_attempt_at", "timestamp", "when it was due"),
        Column("acquired_at", "timestamp", "when it was fetched"),
        _EXPIRES_AT,
        _RATE_KEY,
    )
)
