"""From jobs and commands as a store has them to rows: a table of columns for each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from remuda.devices.command import Command
from remuda.errors import DecodeError
from remuda.lake.sources.shapes import Shape
from remuda.message import JobRecord
from remuda.stores.command_trail import trail_name

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_AT_ONCE = 5_000

Getters = Mapping[str, Callable[[Any], Any]]


def json_text(value: Any) -> str:
    """A decoded payload as JSON: bytes as base64, moments as ISO 8601. Raises for what JSON cannot hold."""
    return msgspec.json.encode(value).decode()


def _job_value(job: JobRecord) -> str | None:
    try:
        return json_text(job.value())
    except (DecodeError, TypeError, ValueError, RecursionError):
        return None


OF_JOB: Getters = {
    "kind": lambda _: "job",
    "state": lambda job: job.state.value,
    "value": _job_value,
    "headers": lambda job: json_text(job.headers) if job.headers else None,
    "died_at": lambda job: job.ended_at,
}


def _command_data(command: Command) -> str | None:
    """A command's data as JSON. The digits of a token are money: they stay in the store."""
    if command.data is None or command.is_single_use:
        return None
    return json_text(command.data)


def _command_payload(command: Command) -> bytes | None:
    data = _command_data(command)
    return None if data is None else data.encode()


def _ended_at(command: Command) -> Any:
    return command.status_since if command.has_ended else None


def _error_message(command: Command) -> str | None:
    if not command.failures:
        return None
    last = command.failures[0]
    return ": ".join(filter(None, (last.code, last.details))) or None


OF_COMMAND: Getters = {
    "kind": lambda _: "command",
    "name": lambda command: command.type.value,
    "state": lambda command: command.status.value,
    "payload": _command_payload,
    "value": _command_data,
    "attempts": lambda command: len(command.attempts),
    "deliveries": lambda command: len(command.attempts),
    "next_attempt_at": lambda command: None if command.has_ended else command.due_at,
    "first_attempt_at": lambda command: command.attempts[0].sent_at if command.attempts else None,
    "last_attempt_at": lambda command: command.attempts[-1].sent_at if command.attempts else None,
    "ended_at": _ended_at,
    "died_at": _ended_at,
    "reason": lambda command: None if command.reason is None else command.reason.value,
    "error_type": lambda command: command.failures[0].reason if command.failures else None,
    "error_message": _error_message,
    "device": lambda command: command.device.key,
    "gateway": lambda command: None if command.device.gateway is None else command.device.gateway.id,
    "outcome": lambda command: None if command.outcome is None else command.outcome.value,
}


def job_rows(jobs: Sequence[JobRecord], shape: Shape, *, source: str) -> Iterator[pa.RecordBatch]:
    """Jobs, or dead letters, as Arrow."""
    return _rows(jobs, shape, OF_JOB, {"source": source})


def command_rows(
    commands: Sequence[Command], shape: Shape, *, source: str, fleet: str
) -> Iterator[pa.RecordBatch]:
    """Commands as Arrow."""
    return _rows(commands, shape, OF_COMMAND, {"source": source, "queue": trail_name(fleet)})


def _rows(
    items: Sequence[Any], shape: Shape, getters: Getters, same: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    """A batch with the value of each column: the same for all, a getter's, or the attribute of that name."""
    import pyarrow as pa

    if not items:
        return
    schema = shape.arrow_schema()
    arrays = []
    for field in schema:
        if field.name in same:
            arrays.append(pa.repeat(pa.scalar(same[field.name], field.type), len(items)))
        else:
            get = getters.get(field.name) or _attribute(field.name)
            arrays.append(pa.array([get(each) for each in items], field.type))
    yield pa.record_batch(arrays, schema=schema)


def _attribute(name: str) -> Callable[[Any], Any]:
    return lambda item: getattr(item, name, None)
