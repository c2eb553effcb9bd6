"""From rows to jobs and commands: which columns mean what, and what is wrong with a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from remuda.devices.sending import NewCommand
from remuda.durations import parse_duration
from remuda.errors import ConfigurationError, InvalidJobError
from remuda.message import NewJob

Row = dict[str, Any]

JOB_COLUMNS = (
    "name",
    "payload",
    "job_id",
    "id",
    "delay",
    "next_attempt_at",
    "priority",
    "headers",
    "expires_in",
    "expires_at",
    "rate_key",
)
_DEVICE = {
    "device_reference": "reference",
    "protocol": "protocol",
    "device_type": "type",
    "manufacturer": "manufacturer",
    "dev_eui": "dev_eui",
    "spreading_factor": "spreading_factor",
    "customer": "customer",
}
_GATEWAY = {"gateway": "id", "gateway_snr": "snr", "gateway_rssi": "rssi"}
_COMMAND = (
    "id",
    "type",
    "data",
    "phase",
    "grid",
    "correlation_id",
    "by_person",
    "priority",
    "expires_in",
    "expectation",
    "merge",
)
COMMAND_COLUMNS = (*_COMMAND, *_DEVICE, *_GATEWAY)


def check_columns(names: Sequence[str], known: Sequence[str], *, needed: Sequence[str], of: str) -> None:
    """`ConfigurationError` for a column that means nothing, or where one is missing that must be there."""
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigurationError(
            f"the columns {', '.join(unknown)} mean nothing to {of}: rename them, or put them into one "
            f"(struct(…).alias('payload') or 'data'); known are {', '.join(known)}"
        )
    missing = [name for name in needed if name not in names]
    if missing:
        raise ConfigurationError(f"{of} needs the columns {', '.join(missing)}; there are {', '.join(names)}")
    if {"id", "job_id"} <= set(names):
        raise ConfigurationError("id and job_id are the same thing: give one of the two columns")


def job_of(
    row: Row, row_id: str, *, name: str | None, payload_is_json: bool, unique_for: timedelta
) -> NewJob:
    """The job of a row. A column that is NULL counts as not there."""
    headers = row.get("headers")
    return NewJob(
        name=row.get("name") or name or "",
        payload=_parsed(row.get("payload"), "payload") if payload_is_json else row.get("payload"),
        delay=_duration(row.get("delay"), "delay"),
        next_attempt_at=row.get("next_attempt_at"),
        priority=0 if row.get("priority") is None else row["priority"],
        headers=_parsed(headers, "headers") if isinstance(headers, str) else headers,
        expires_in=_duration(row.get("expires_in"), "expires_in"),
        expires_at=row.get("expires_at"),
        job_id=row_id,
        unique_for=unique_for,
        rate_key=row.get("rate_key"),
    )


def command_of(row: Row, row_id: str, *, same: Mapping[str, str], payload_is_json: bool) -> NewCommand:
    """The command of a row; `same` is what the options say of all of them."""
    given = {**same, **{name: value for name, value in row.items() if value is not None}}
    command: Row = {name: given[name] for name in _COMMAND if name in given}
    if payload_is_json and isinstance(command.get("data"), str):
        command["data"] = _parsed(command["data"], "data")
    command["id"] = row_id
    command["expires_in"] = _duration(command.get("expires_in"), "expires_in")
    command["device"] = {field: given[name] for name, field in _DEVICE.items() if name in given}
    if "gateway" in given:
        command["device"]["gateway"] = {
            field: given[name] for name, field in _GATEWAY.items() if name in given
        }
    try:
        return msgspec.convert(command, NewCommand)
    except msgspec.ValidationError as error:
        raise InvalidJobError(str(error)) from None  # it names the field, and of the values only a choice


def described(row: Row) -> str:
    """A row in a few words, for an error. Payloads and data stay out: they may hold secrets."""
    told = ("name", "job_id", "id", "type", "device_reference")
    return ", ".join(f"{name}={row[name]!r:.80}" for name in told if row.get(name) is not None) or "no name"


def _duration(value: Any, name: str) -> timedelta | None:
    """An interval, a number of seconds, or text such as 5m."""
    if value is None or isinstance(value, timedelta):
        return value
    try:
        if isinstance(value, str):
            return parse_duration(value)
        return timedelta(seconds=value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidJobError(
            f"{name} is an interval, a number of seconds or text such as 5m, not {value!r:.80}"
        ) from None


def _parsed(text: Any, name: str) -> Any:
    if text is None:
        return None
    if not isinstance(text, str | bytes):
        raise InvalidJobError(f"{name} is to be JSON text, not a {type(text).__name__}")
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidJobError(f"{name} is not JSON: {error}") from None


def numbered(rows: Sequence[Row], first: int, make: Callable[[Row], Any], *, bulk: str) -> list[Any]:
    """What `make` makes of each row; an error says which row it was, counted from one within its task."""
    made = []
    for place, row in enumerate(rows, first):
        try:
            made.append(make(row))
        except ValueError as error:
            raise InvalidJobError(
                f"row {place} of {bulk} ({described(row)}): {error}; nothing of its bulk of {len(rows)} rows "
                "was written"
            ) from error
    return made
