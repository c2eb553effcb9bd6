"""A command and what is known of it: the record that a store keeps, and what a caller asks for.

Records are values: the rules (`remuda.devices.rules`) take one and give the next.
"""

from __future__ import annotations

from datetime import datetime
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from remuda.errors import DecodeError
from remuda.lifecycle import ENDED_STATUSES, CommandStatus, EndReason

if TYPE_CHECKING:
    from collections.abc import Mapping


class CommandType(StrEnum):
    """What a device can be asked, or (the last two) tells by itself."""

    READ_VOLTAGE = "READ_VOLTAGE"
    READ_CURRENT = "READ_CURRENT"
    READ_POWER = "READ_POWER"
    READ_POWER_LIMIT = "READ_POWER_LIMIT"
    READ_CREDIT = "READ_CREDIT"
    READ_VERSION = "READ_VERSION"
    READ_DATE = "READ_DATE"
    READ_TIME = "READ_TIME"
    TURN_ON = "TURN_ON"
    TURN_OFF = "TURN_OFF"
    SET_DATE = "SET_DATE"
    SET_TIME = "SET_TIME"
    TOP_UP = "TOP_UP"
    SET_POWER_LIMIT = "SET_POWER_LIMIT"
    CLEAR_CREDIT = "CLEAR_CREDIT"
    CLEAR_TAMPER = "CLEAR_TAMPER"
    DELIVER_PREEXISTING_TOKEN = "DELIVER_PREEXISTING_TOKEN"  # noqa: S105  # a command, not a secret
    READ_REPORT = "READ_REPORT"
    JOIN_NETWORK = "JOIN_NETWORK"


class Family(StrEnum):
    """What kind of thing a command does. Only a token changes something each time that it is applied."""

    READ = "read"
    CONTROL = "control"
    WRITE = "write"
    TOKEN = "token"  # noqa: S105  # a family, not a secret
    UNSOLICITED = "unsolicited"


def _families() -> Mapping[CommandType, Family]:
    control = (CommandType.TURN_ON, CommandType.TURN_OFF)
    unsolicited = (CommandType.READ_REPORT, CommandType.JOIN_NETWORK)
    write = (CommandType.SET_DATE, CommandType.SET_TIME)
    families = dict.fromkeys(CommandType, Family.TOKEN)
    families.update((each, Family.READ) for each in CommandType if each.startswith("READ_"))
    families.update(dict.fromkeys(control, Family.CONTROL))
    families.update(dict.fromkeys(write, Family.WRITE))
    families.update(dict.fromkeys(unsolicited, Family.UNSOLICITED))
    return MappingProxyType(families)


FAMILIES = _families()
PHASED = frozenset({CommandType.READ_VOLTAGE, CommandType.READ_CURRENT})


class Phase(StrEnum):
    A = "A"
    B = "B"
    C = "C"


class Priority(IntEnum):
    """The usual priorities; higher is sooner. Any integer from 0 to 100 may be used."""

    CLEAR_CREDIT = 60
    TOP_UP = 50
    PERSON_WRITE = 40
    PERSON_READ = 30
    SYSTEM_WRITE = 20
    SYSTEM_READ = 10


def usual_priority(kind: CommandType, *, by_person: bool) -> int:
    """The priority of a command whose caller names none."""
    if kind is CommandType.CLEAR_CREDIT:
        return Priority.CLEAR_CREDIT
    if kind is CommandType.TOP_UP:
        return Priority.TOP_UP
    if FAMILIES[kind] is Family.READ:
        return Priority.PERSON_READ if by_person else Priority.SYSTEM_READ
    return Priority.PERSON_WRITE if by_person else Priority.SYSTEM_WRITE


class Protocol(StrEnum):
    """How a device is reached: pushed through ChirpStack, or as tasks of Calin's API V1 or V2."""

    LORAWAN = "LORAWAN"
    API_V1 = "API_V1"
    API_V2 = "API_V2"

    @property
    def is_push(self) -> bool:
        return self is Protocol.LORAWAN


class Gateway(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway that hears a device best, and how well."""

    id: str
    snr: float | None = None
    rssi: float | None = None


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """Where a command goes. `reference` is the device's serial; `type` picks the codec.

    `dev_eui` is for LoRaWAN devices whose EUI is not their serial padded with zeros.
    `customer` is Calin V2's customer id, where there is one.
    """

    reference: str
    protocol: Protocol
    type: str = "calin-meter"
    manufacturer: str = "Calin"
    gateway: Gateway | None = None
    dev_eui: str | None = None
    spreading_factor: int | None = None
    customer: str | None = None

    @property
    def address(self) -> str:
        """What its network calls it: the EUI (16 hex digits, lower case), or the serial."""
        if not self.protocol.is_push:
            return self.reference
        return (self.dev_eui or self.reference.zfill(16)).lower()

    @property
    def key(self) -> str:
        """One name for the device among all devices of a fleet."""
        return f"{self.protocol}:{self.address}"


class Purpose(StrEnum):
    """What an attempt sends: the command itself, or a read that tells whether it was applied."""

    SEND = "send"
    BASELINE = "baseline"
    PROBE = "probe"


class Fate(StrEnum):
    """What became of an attempt, as far as is known.

    OPEN      on its way
    UNKNOWN   given up; the device may have got it
    NOT_SENT  certain that the device did not get it
    NOT_APPLIED  a later read shows that it had no effect
    ANSWERED  the device, or its network server, said what it did
    """

    OPEN = "open"
    UNKNOWN = "unknown"
    NOT_SENT = "not_sent"
    NOT_APPLIED = "not_applied"
    ANSWERED = "answered"


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One hand-over to the network server.

    call_until   until when the call may still be running; None when it has ended
    external_id  the network server's name for it: a queue item, or a task
    acked        what the device's MAC layer said; `ack_dedup` joins it to its uplink
    looked       its call was lost, and the network server's queue was looked at since
    closed       the network server has nothing of it any more: it cannot reach the device later
    guessed      its name was taken from a signal that could only be its own, as far as is known
    """

    number: int
    sent_at: datetime
    purpose: Purpose = Purpose.SEND
    fate: Fate = Fate.OPEN
    call_until: datetime | None = None
    external_id: str | None = None
    accepted_at: datetime | None = None
    transmitted_at: datetime | None = None
    acked: bool | None = None
    acked_at: datetime | None = None
    ack_dedup: str | None = None
    looked: bool = False
    closed: bool = False
    guessed: bool = False


class Execution(StrEnum):
    EXECUTION_SUCCESS = "EXECUTION_SUCCESS"
    EXECUTION_FAILURE = "EXECUTION_FAILURE"


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """What the device answered. `source` says how it was learnt: `uplink`, `task` or `probe`."""

    execution: Execution
    at: datetime
    data: Any = None
    source: str = "uplink"


class Outcome(StrEnum):
    """What the device did, in one word. `UNKNOWN` is said whenever nothing proves one of the others."""

    EXECUTED = "executed"
    REFUSED = "refused"
    NOT_EXECUTED = "not_executed"
    UNKNOWN = "unknown"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that went wrong on the way."""

    reason: str
    at: datetime
    status: CommandStatus
    attempt: int
    code: str | None = None
    details: str | None = None
    final: bool = False


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A device's answer, read by a codec: what it answers to, whether it was carried out, and its data.

    `type` is None for a frame that names only its family (a write's or a token's bare reply).
    """

    family: Family
    ok: bool
    type: CommandType | None = None
    phase: Phase | None = None
    data: Any = None
    code: str | None = None


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """An uplink that waits for its ack."""

    dedup: str
    at: datetime
    attempt: int
    answer: Answer


class Expectation(msgspec.Struct, frozen=True, kw_only=True):
    """How a read tells whether a single-use token was applied.

    Either the value itself (`at_least`, `at_most`), or a rise or fall from a value that is read before
    the token is sent for the first time (`rises_by`, `falls_by`; half of it is proof enough).

    >>> Expectation(read=CommandType.READ_CREDIT, rises_by=50.0)
    """

    read: CommandType
    at_least: float | None = None
    at_most: float | None = None
    rises_by: float | None = None
    falls_by: float | None = None

    @property
    def needs_baseline(self) -> bool:
        return self.rises_by is not None or self.falls_by is not None

    def is_met(self, value: float, baseline: float | None) -> bool:
        """Whether `value`, read after the token, shows that it was applied."""
        if self.at_least is not None and value < self.at_least:
            return False
        if self.at_most is not None and value > self.at_most:
            return False
        if self.rises_by is not None and (baseline is None or value < baseline + self.rises_by / 2):
            return False
        return self.falls_by is None or (baseline is not None and value <= baseline - self.falls_by / 2)


class Merge(StrEnum):
    """What a new command does to one like it that still waits (see `Command.key`).

    JOIN       nothing is added: the one that waits answers for both
    SUPERSEDE  the one that waits is ended; the new one takes its place
    """

    JOIN = "join"
    SUPERSEDE = "supersede"


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known of one command.

    lane         where it waits
    due_at       when the engine has to look at it: the deadline of its stage, or its next poll
    key          commands of one key are redundant while they wait
    joined       correlation ids of callers whose own command was joined to this one
    failures     what went wrong, newest first
    stop         cancelled or superseded while on its way: no further attempt, but it may still be answered
    started_at   when it was added, or replayed
    """

    id: str
    type: CommandType
    device: Device
    lane: str
    priority: int
    created_at: datetime
    status_since: datetime
    status: CommandStatus = CommandStatus.QUEUED
    version: int = 0
    data: Any = None
    phase: Phase | None = None
    grid: str | None = None
    correlation_id: str | None = None
    joined: tuple[str, ...] = ()
    key: str | None = None
    expires_at: datetime | None = None
    expectation: Expectation | None = None
    airtime_ms: int = 0
    baseline: float | None = None
    due_at: datetime | None = None
    retries: int = 0
    attempts: tuple[Attempt, ...] = ()
    heard: tuple[Heard, ...] = ()
    failures: tuple[Failure, ...] = ()
    response: Response | None = None
    reason: EndReason | None = None
    outcome: Outcome | None = None
    stop: EndReason | None = None
    replays: int = 0
    started_at: datetime

    @property
    def family(self) -> Family:
        return FAMILIES[self.type]

    @property
    def is_push(self) -> bool:
        return self.device.protocol.is_push

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED_STATUSES

    @property
    def is_single_use(self) -> bool:
        return self.family is Family.TOKEN


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Command)


def pack(command: Command) -> bytes:
    """The stored form of a command."""
    return _encoder.encode(command)


def unpack(record: bytes) -> Command:
    """What `pack` wrote; `DecodeError` for anything else."""
    try:
        return _decoder.decode(record)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise DecodeError(f"the stored command is not readable: {error}") from error
