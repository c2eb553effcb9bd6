"""What a caller asks for, put together from options or from a line of JSON."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from remuda.devices.command import (
    FAMILIES,
    CommandType,
    Device,
    Expectation,
    Family,
    Gateway,
    Phase,
    Protocol,
)
from remuda.durations import parse_duration
from remuda.errors import ConfigurationError

if TYPE_CHECKING:
    from remuda.devices.sending import NewCommand

# What a read tells of a token, where the caller does not say which read.
_READS = {
    CommandType.TOP_UP: CommandType.READ_CREDIT,
    CommandType.CLEAR_CREDIT: CommandType.READ_CREDIT,
    CommandType.SET_POWER_LIMIT: CommandType.READ_POWER_LIMIT,
}


class Ask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command as the options, or the fields of a line, name it. What is None is not said."""

    type: CommandType | None = None
    device: str | None = None
    protocol: Protocol | None = None
    gateway: str | None = None
    snr: float | None = None
    spreading_factor: int | None = None
    grid: str | None = None
    dev_eui: str | None = None
    customer: str | None = None
    device_type: str | None = None
    data: Any = None
    phase: Phase | None = None
    priority: int | None = None
    person: bool | None = None
    expires: str | None = None
    correlation_id: str | None = None
    read: CommandType | None = None
    rises_by: float | None = None
    falls_by: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    merge: bool | None = None


def on_top_of(ask: Ask, usual: Ask) -> Ask:
    """A line's own fields, and for the rest those of the command line."""
    values = {
        field: getattr(ask, field) if getattr(ask, field) is not None else getattr(usual, field)
        for field in Ask.__struct_fields__
    }
    return Ask(**values)


def new_command(ask: Ask) -> NewCommand:
    """The command; `ConfigurationError` says what is missing."""
    from remuda.devices.sending import NewCommand

    if ask.type is None:
        raise ConfigurationError("which command? Give its TYPE, such as READ_CREDIT")
    if ask.device is None or ask.protocol is None:
        raise ConfigurationError("which device? Give --device SERIAL and --protocol")
    return NewCommand(
        type=ask.type,
        device=_device(ask.device, ask.protocol, ask),
        data=ask.data,
        phase=ask.phase,
        grid=ask.grid,
        correlation_id=ask.correlation_id,
        by_person=bool(ask.person),
        priority=ask.priority,
        expires_in=_expires(ask.expires),
        expectation=_expectation(ask.type, ask),
        merge=ask.merge is not False,
    )


def _device(reference: str, protocol: Protocol, ask: Ask) -> Device:
    gateway = None if ask.gateway is None else Gateway(id=ask.gateway, snr=ask.snr)
    usual = Device(reference=reference, protocol=protocol)
    return Device(
        reference=reference,
        protocol=protocol,
        type=ask.device_type or usual.type,
        gateway=gateway,
        dev_eui=ask.dev_eui,
        spreading_factor=ask.spreading_factor,
        customer=ask.customer,
    )


def _expires(text: str | None) -> timedelta | None:
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ConfigurationError(f"expires: {error}") from None


def _expectation(kind: CommandType, ask: Ask) -> Expectation | None:
    said = {name: getattr(ask, name) for name in ("rises_by", "falls_by", "at_least", "at_most")}
    if all(each is None for each in said.values()):
        if ask.read is not None:
            raise ConfigurationError("--read needs --rises-by, --falls-by, --at-least or --at-most")
        return None
    read = ask.read or _READS.get(kind)
    if read is None:
        raise ConfigurationError(f"which read tells whether a {kind} was applied? Give --read")
    return Expectation(read=read, **said)


def read_line(line: bytes) -> Ask:
    """A line of JSON. Errors name fields, and no values: a line may hold a token."""
    try:
        fields = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ConfigurationError("it is not JSON") from None
    if not isinstance(fields, dict):
        raise ConfigurationError("it is not a JSON object")
    unknown = sorted(fields.keys() - set(Ask.__struct_fields__))
    if unknown:
        known = ", ".join(Ask.__struct_fields__)
        raise ConfigurationError(f"unknown: {', '.join(unknown)}; a line has {known}")
    try:
        return msgspec.convert(fields, Ask)
    except msgspec.ValidationError as error:
        raise ConfigurationError(str(error)) from None


def is_token(kind: CommandType | None) -> bool:
    """Whether a command carries a single-use token."""
    return kind is not None and FAMILIES[kind] is Family.TOKEN
