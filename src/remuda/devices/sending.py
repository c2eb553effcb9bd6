"""What a caller asks for, checked and turned into a command; and what it does to others that wait."""

from __future__ import annotations

import hashlib
import re
from datetime import datetime, timedelta
from typing import Any

import msgspec

from remuda.devices.airtime import spreading_factor_for, time_on_air
from remuda.devices.codecs import Codecs
from remuda.devices.codecs.contract import UnsupportedCommandError
from remuda.devices.command import (
    FAMILIES,
    PHASED,
    Command,
    CommandType,
    Device,
    Expectation,
    Family,
    Merge,
    Phase,
    usual_priority,
)
from remuda.devices.placing import lane_of
from remuda.errors import RemudaError

MAX_DATA_BYTES = 64 * 1024
_NAME = re.compile(r"[\w.:@+-]{1,128}\Z")
_ID = re.compile(r"[A-Za-z0-9_.:@+-]{1,128}\Z")
_EUI = re.compile(r"[0-9a-fA-F]{16}\Z")
_encoder = msgspec.msgpack.Encoder()


class InvalidCommandError(RemudaError, ValueError):
    """A command cannot be sent as it is; nothing was written."""


class NewCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command that is to be sent.

    data         a token, or a payload such as a date
    phase        A, B or C, for reads of voltage and current (A where none is named)
    by_person    somebody waits for it: it goes before what a program sends by itself
    priority     higher is sooner; None: the usual one of its type
    expires_in   after this it is not sent (again) any more
    expectation  how a read tells whether a single-use token was applied
    merge        False: it is sent even though another of its kind waits, or one that contradicts it
    id           an id of your own: a second command with it is not added, however often it is sent, while
                 the first is still kept. Among equal priorities commands go in the order of their ids

    >>> meter = Device(reference="47003333771", protocol=Protocol.LORAWAN)
    >>> NewCommand(type=CommandType.READ_CREDIT, device=meter, grid="lagos-7")
    """

    type: CommandType
    device: Device
    data: Any = None
    phase: Phase | None = None
    grid: str | None = None
    correlation_id: str | None = None
    by_person: bool = False
    priority: int | None = None
    expires_in: timedelta | None = None
    expectation: Expectation | None = None
    merge: bool = True
    id: str | None = None


def make_command(
    new: NewCommand, *, command_id: str, now: datetime, codecs: Codecs, by_gateway: bool
) -> Command:
    """The command of a request; `InvalidCommandError` names what is wrong with it."""
    _check(new)
    phase = new.phase or (Phase.A if new.type in PHASED else None)
    priority = usual_priority(new.type, by_person=new.by_person) if new.priority is None else new.priority
    return Command(
        id=command_id,
        type=new.type,
        device=new.device,
        lane=lane_of(new.device, new.grid, by_gateway=by_gateway),
        priority=int(priority),
        created_at=now,
        started_at=now,
        status_since=now,
        data=new.data,
        phase=phase,
        grid=new.grid,
        correlation_id=new.correlation_id,
        key=_key(new, phase) if new.merge else None,
        expires_at=None if new.expires_in is None else now + new.expires_in,
        expectation=new.expectation,
        airtime_ms=_airtime_ms(new, phase, codecs, now),
    )


def _check(new: NewCommand) -> None:
    if FAMILIES.get(new.type, Family.UNSOLICITED) is Family.UNSOLICITED:
        raise InvalidCommandError(f"type must be a command that can be sent, not {new.type!r}")
    if new.priority is not None and not 0 <= new.priority <= 100:
        raise InvalidCommandError(f"priority must be between 0 and 100, not {new.priority!r}")
    if new.expires_in is not None and new.expires_in <= timedelta(0):
        raise InvalidCommandError(f"expires_in must be longer than nothing, not {new.expires_in}")
    if new.phase is not None and new.type not in PHASED:
        raise InvalidCommandError(f"phase {new.phase} says nothing about {new.type}: leave it out")
    for name, value in (("grid", new.grid), ("correlation_id", new.correlation_id)):
        if value is not None and not _NAME.match(value):
            raise InvalidCommandError(f"{name} must be 1 to 128 letters, digits or .:@+-_, not {value!r}")
    own_id: object = new.id  # callers need not be typed
    if own_id is not None and not (isinstance(own_id, str) and _ID.match(own_id)):
        raise InvalidCommandError(f"id must be 1 to 128 of A to Z, a to z, 0 to 9 or .:@+-_, not {new.id!r}")
    _check_device(new.device)
    _check_expectation(new)
    try:
        size = len(_encoder.encode(new.data))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidCommandError(
            f"data of type {type(new.data).__name__} cannot be written: {error}"
        ) from error
    if size > MAX_DATA_BYTES:
        raise InvalidCommandError(f"data has {size:,} bytes; at most {MAX_DATA_BYTES:,} are allowed")


def _check_device(device: Device) -> None:
    if not _NAME.match(device.reference):
        raise InvalidCommandError(
            f"device.reference must be 1 to 128 letters, digits or .:@+-_, not {device.reference!r}"
        )
    if device.gateway is not None and not _NAME.match(device.gateway.id):
        raise InvalidCommandError(
            f"gateway.id must be 1 to 128 letters, digits or .:@+-_, not {device.gateway.id!r}"
        )
    if device.protocol.is_push and not _EUI.match(device.address):
        raise InvalidCommandError(
            f"a LoRaWAN device needs an EUI of 16 hex digits, not {device.address!r}: give dev_eui"
        )
    if device.spreading_factor is not None and not 7 <= device.spreading_factor <= 12:
        raise InvalidCommandError(f"spreading_factor must be 7 to 12, not {device.spreading_factor}")


def _check_expectation(new: NewCommand) -> None:
    expectation = new.expectation
    if expectation is None:
        return
    if FAMILIES[new.type] is not Family.TOKEN:
        raise InvalidCommandError(f"an expectation is for single-use tokens; {new.type} can be sent again")
    if FAMILIES[expectation.read] is not Family.READ:
        raise InvalidCommandError(f"an expectation needs a read, not {expectation.read}")
    said = (expectation.at_least, expectation.at_most, expectation.rises_by, expectation.falls_by)
    if all(each is None for each in said):
        raise InvalidCommandError("an expectation must say at_least, at_most, rises_by or falls_by")


def merge_of(kind: CommandType) -> Merge:
    """What a new command does to one of the same key: a newer switch or setting replaces the older."""
    family = FAMILIES[kind]
    return Merge.SUPERSEDE if family in (Family.CONTROL, Family.WRITE) else Merge.JOIN


def _key(new: NewCommand, phase: Phase | None) -> str | None:
    device = new.device.key
    match FAMILIES[new.type]:
        case Family.CONTROL:
            return f"{device}/relay"
        case Family.TOKEN:
            # The same token for the same device is the same command; the digits stay out of sight.
            token = new.data.get("token") if isinstance(new.data, dict) else new.data
            digits = re.sub(r"[\s-]", "", str(token))
            return f"{device}/token/{hashlib.sha256(digits.encode()).hexdigest()[:24]}"
        case _:
            return f"{device}/{new.type}" + (f"/{phase}" if phase is not None else "")


def _airtime_ms(new: NewCommand, phase: Phase | None, codecs: Codecs, now: datetime) -> int:
    """How long its frame keeps a gateway busy."""
    device = new.device
    if not device.protocol.is_push:
        return 0
    try:
        frame = codecs.get(device.type).encode(device, new.type, data=new.data, phase=phase, now=now)
    except UnsupportedCommandError:
        return 0  # the engine ends it, and says why
    snr = device.gateway.snr if device.gateway is not None else None
    factor = device.spreading_factor or spreading_factor_for(snr)
    return int(time_on_air(len(frame.data), factor).total_seconds() * 1000) + 1
