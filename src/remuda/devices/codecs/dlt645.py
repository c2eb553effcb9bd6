"""Calin's LoRaWAN frame, after DL/T-645: a command as a meter understands it, and the meter's own side.

    68 | address | 68 | control | length | field, each byte + 0x33 | sum | 16

    address  the serial as 12 BCD digits, low byte first
    control  01 read, 04 write, 00 token; an answer has the top bit set, a refusal the next one too
    field    the data identifier, for a write the password (4 bytes of nought), then the data; each of
             the three low byte first
    sum      of every byte before it, modulo 256

Known from recorded frames: all of the above, dates (YYMMDDWW, Sunday is 0), and the bare error code of a
refused token. Known from public adapters, without a recorded frame: where the values of a read stand and
how many decimals they have, that a token (20 BCD digits) goes without a password, and the report. From
DL/T-645 itself: times (hhmmss), and that a write or a token that was carried out is answered by an empty
field, so that the answer does not say what it answers to.

Values are numbers in kWh, V, A and kW; dates and times are text in ISO form, in the meter's local time.
"""

from __future__ import annotations

import struct
from datetime import date, datetime, time
from enum import IntEnum
from math import isfinite
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from remuda.devices.codecs.contract import Downlink, Report, UnsupportedCommandError
from remuda.devices.command import FAMILIES, Answer, CommandType, Device, Family, Phase
from remuda.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Mapping

_START, _END, _OFFSET = 0x68, 0x16, 0x33
_BARE = 12  # bytes of a frame with an empty field
_PASSWORD = bytes(4)
_ANSWER, _REFUSAL = 0x80, 0x40
_CENTURY = 2000


class Control(IntEnum):
    """What a request asks for."""

    TOKEN = 0x00
    READ = 0x01
    WRITE = 0x04


TOKEN_IDENTIFIER = 0xA120
REPORT_IDENTIFIER = 0xC111

READS: Mapping[int, tuple[CommandType, Phase | None]] = MappingProxyType(
    {
        **{0xB611 + at: (CommandType.READ_VOLTAGE, phase) for at, phase in enumerate(Phase)},
        **{0xB621 + at: (CommandType.READ_CURRENT, phase) for at, phase in enumerate(Phase)},
        **{0xB630 + at: (CommandType.READ_POWER, phase) for at, phase in enumerate(Phase)},
        0xC010: (CommandType.READ_DATE, None),
        0xC011: (CommandType.READ_TIME, None),
        0xE421: (CommandType.READ_CREDIT, None),
    }
)
WRITES: Mapping[int, CommandType] = MappingProxyType(
    {
        0xC03D: CommandType.TURN_ON,
        0xC03C: CommandType.TURN_OFF,
        0xC010: CommandType.SET_DATE,
        0xC011: CommandType.SET_TIME,
    }
)
_READ_IDENTIFIERS = {asked: identifier for identifier, asked in READS.items()}
_WRITE_IDENTIFIERS = {kind: identifier for identifier, kind in WRITES.items()}
_SWITCHES = {CommandType.TURN_ON: b"\x96", CommandType.TURN_OFF: b"\x35"}


class _Number(msgspec.Struct, frozen=True):
    """A BCD number in the data of a read: where it starts, its bytes, its decimals."""

    start: int
    size: int
    decimals: int

    @property
    def scale(self) -> int:
        return int(10**self.decimals)

    @property
    def most(self) -> int:
        return int(10 ** (2 * self.size)) - 1


_NUMBERS: Mapping[CommandType, _Number] = MappingProxyType(
    {
        CommandType.READ_VOLTAGE: _Number(1, 3, 2),  # what the byte before it means is not known
        CommandType.READ_CURRENT: _Number(0, 2, 2),
        CommandType.READ_POWER: _Number(0, 4, 4),
        CommandType.READ_CREDIT: _Number(0, 4, 2),  # then the credit level and the relay: 0 is on
    }
)


class Dlt645:
    """The codec of Calin's meters (see `remuda.devices.codecs.contract.Codec`)."""

    def encode(
        self, device: Device, command: CommandType, *, data: Any, phase: Phase | None, now: datetime
    ) -> Downlink:
        """The frame of a command; `UnsupportedCommandError` where there is none.

        A date or a time is written as it stands in `data` (a date, time, datetime or ISO text), without a
        change of time zone; without `data` it is `now`. A token is 20 digits, or a dict with `token`.
        """
        control, identifier, payload = _request(command, data, phase, now)
        field = identifier.to_bytes(2, "little")
        if control is Control.WRITE:
            field += _PASSWORD
        return Downlink(data=_frame(_address(device.reference), control, field + payload[::-1]))

    def decode(self, data: bytes, f_port: int) -> Answer | Report | None:
        """What a meter sent; None for a damaged frame, or one whose content is not known.

        The port is not looked at: the frame proves itself.
        """
        try:
            return _answer(*_open(data)[1:])
        except DecodeError:
            return None


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request as a meter reads it. `serial` has no leading zeros; `payload` is in natural order.

    The payload of a token request is the token itself: not for logs.
    """

    serial: str
    control: Control
    identifier: int
    payload: bytes = b""
    password: bytes = b""

    @property
    def type(self) -> CommandType | None:
        """The command; None for a token, which does not say what it does, and for what is not known."""
        if self.control is Control.READ:
            return READS.get(self.identifier, (None, None))[0]
        return WRITES.get(self.identifier) if self.control is Control.WRITE else None

    @property
    def phase(self) -> Phase | None:
        return READS.get(self.identifier, (None, None))[1] if self.control is Control.READ else None

    def __repr__(self) -> str:
        return f"Request({self.serial}, {self.control.name}, {self.identifier:04X})"


def parse_request(data: bytes) -> Request:
    """A meter's side: what it is asked. `DecodeError` for a damaged frame, or one that is no request."""
    serial, code, field = _open(data)
    try:
        control = Control(code)
    except ValueError:
        raise DecodeError(f"the frame is no request: its control byte is {code:02X}") from None
    head = 6 if control is Control.WRITE else 2
    if len(field) < head:
        raise DecodeError(f"the request has {len(field)} bytes of data, fewer than {head}")
    return Request(
        serial=serial,
        control=control,
        identifier=int.from_bytes(field[:2], "little"),
        password=field[2:head][::-1],
        payload=field[head:][::-1],
    )


def answer_frame(
    request: Request,
    *,
    ok: bool = True,
    value: Any = None,
    relay_on: bool = True,
    code: int = 0x01,
    named: bool = False,
) -> bytes:
    """A meter's side: the answer to a request.

    A read that went well carries `value` (for credit also the relay). Every other answer has no data, or the
    error `code`; `named` puts the data identifier in front, as some firmware may.
    """
    identifier = request.identifier.to_bytes(2, "little")
    control = request.control | _ANSWER
    field = identifier if named else b""
    if not ok:
        control |= _REFUSAL
        field += bytes([code])
    elif request.control is Control.READ:
        if request.type is None:
            raise UnsupportedCommandError(f"{request.identifier:04X} cannot be read: refuse it")
        field = identifier + _value_field(request.type, value, relay_on)
    return _frame(_address(request.serial), control, field)


# Requests


def _request(
    command: CommandType, data: Any, phase: Phase | None, now: datetime
) -> tuple[Control, int, bytes]:
    """Control, data identifier and payload (in natural order) of a command."""
    if FAMILIES[command] is Family.TOKEN:
        return Control.TOKEN, TOKEN_IDENTIFIER, _token(command, data)
    if command in _SWITCHES:
        return Control.WRITE, _WRITE_IDENTIFIERS[command], _SWITCHES[command]
    if command is CommandType.SET_DATE:
        return Control.WRITE, _WRITE_IDENTIFIERS[command], _date(command, now if data is None else data)
    if command is CommandType.SET_TIME:
        return Control.WRITE, _WRITE_IDENTIFIERS[command], _time(command, now if data is None else data)
    identifier = _READ_IDENTIFIERS.get((command, None)) or _READ_IDENTIFIERS.get((command, phase or Phase.A))
    if identifier is None:
        raise UnsupportedCommandError(f"{command} has no LoRaWAN frame on a Calin meter")
    return Control.READ, identifier, b""


def _address(serial: str) -> bytes:
    if not (serial.isascii() and serial.isdigit() and len(serial) <= 12):
        raise UnsupportedCommandError(f"the serial of a Calin meter is up to 12 digits, not {serial!r}")
    return bytes.fromhex(serial.zfill(12))


def _token(command: CommandType, data: Any) -> bytes:
    token = data.get("token") if isinstance(data, dict) else data
    if not isinstance(token, str):
        given = type(token).__name__
        raise UnsupportedCommandError(
            f"{command} needs a token: 20 digits as text, or a dict with the key 'token', not {given}"
        )
    digits = token.replace(" ", "").replace("-", "")
    if not (digits.isascii() and digits.isdigit() and len(digits) == 20):
        # The token itself stays out of the message: it is as good as money.
        raise UnsupportedCommandError(
            f"the token of {command} is not 20 digits (it has {len(digits)} characters)"
        )
    return bytes.fromhex(digits)


def _date(command: CommandType, value: Any) -> bytes:
    """YYMMDDWW of a date, a datetime or ISO text."""
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        if not isinstance(value, date) or not _CENTURY <= value.year < _CENTURY + 100:
            raise ValueError
    except ValueError:
        raise UnsupportedCommandError(
            f"{command} needs a date of this century, as a date or ISO text, not {value!r}"
        ) from None
    return bytes.fromhex(f"{value:%y%m%d}{value.isoweekday() % 7:02}")


def _time(command: CommandType, value: Any) -> bytes:
    """hhmmss of a time, a datetime or ISO text."""
    try:
        if isinstance(value, str):
            value = _time_of(value)
        if not isinstance(value, time | datetime):
            raise ValueError
    except ValueError:
        raise UnsupportedCommandError(
            f"{command} needs a time of day, as a time, a datetime or ISO text, not {value!r}"
        ) from None
    return bytes.fromhex(f"{value:%H%M%S}")


def _time_of(text: str) -> time:
    if ":" not in text:  # Python takes a date alone for midnight, and 20260315 for a quarter of a second
        raise ValueError
    try:
        return time.fromisoformat(text)
    except ValueError:
        return datetime.fromisoformat(text).time()


# Answers


def _answer(code: int, field: bytes) -> Answer | Report:
    """What an answer says, or a report. `DecodeError` for what is not known."""
    ok = not code & _REFUSAL
    try:
        control = Control(code & ~_ANSWER & ~_REFUSAL)
    except ValueError:
        raise DecodeError(f"control byte {code:02X} is not known") from None
    if not code & _ANSWER:
        raise DecodeError(f"control byte {code:02X} is a request")
    identifier = int.from_bytes(field[:2], "little") if len(field) >= 2 else None
    if control is Control.READ and ok:
        return _reading(identifier, field[2:])
    family, kind, phase = _answered(control, identifier)
    is_named = kind is not None or identifier == TOKEN_IDENTIFIER
    error = None if ok else field[2:3] if is_named else field[:1]
    return Answer(family=family, type=kind, phase=phase, ok=ok, code=error.hex() if error else None)


def _answered(control: Control, identifier: int | None) -> tuple[Family, CommandType | None, Phase | None]:
    """What a bare or named answer answers to, as far as it says so."""
    if control is Control.TOKEN:
        return Family.TOKEN, None, None
    if identifier is None:
        return (Family.READ if control is Control.READ else Family.WRITE), None, None
    if control is Control.READ:
        return Family.READ, *READS.get(identifier, (None, None))
    kind = WRITES.get(identifier)
    return (FAMILIES[kind] if kind is not None else Family.WRITE), kind, None


_RELAY = 5  # the place of the relay's byte in a credit answer; nought is on


def _reading(identifier: int | None, data: bytes) -> Answer | Report:
    if identifier == REPORT_IDENTIFIER:
        return Report(type=CommandType.READ_REPORT, data=_report(data))
    if identifier is None or identifier not in READS:
        raise DecodeError("the read has a data identifier that is not known")
    kind, phase = READS[identifier]
    reading: dict[str, float | str] = {"value": _value(kind, data)}
    if kind is CommandType.READ_CREDIT and len(data) > _RELAY:
        reading["relay"] = "off" if data[_RELAY] else "on"
    return Answer(family=Family.READ, type=kind, phase=phase, ok=True, data=reading)


def _value(kind: CommandType, data: bytes) -> float | str:
    if kind is CommandType.READ_DATE:
        return _iso_date(_digits(data, 0, 4))
    if kind is CommandType.READ_TIME:
        digits = _digits(data, 0, 3)
        return f"{digits[:2]}:{digits[2:4]}:{digits[4:]}"
    number = _NUMBERS[kind]
    return int(_digits(data, number.start, number.size)) / number.scale


def _iso_date(digits: str) -> str:
    # Not checked: a meter that has lost its clock says so by a day that does not exist.
    return f"20{digits[:2]}-{digits[2:4]}-{digits[4:6]}"


def _digits(data: bytes, start: int, size: int) -> str:
    """BCD bytes, low byte first, as digits. Bytes after them do not matter: firmware may add some."""
    digits = data[start : start + size][::-1].hex()
    if len(digits) != 2 * size or not digits.isdigit():
        raise DecodeError(f"{size} BCD bytes were expected at {start}, and are not there")
    return digits


def _value_field(kind: CommandType, value: Any, relay_on: bool) -> bytes:
    if kind is CommandType.READ_DATE:
        return _date(kind, value)[::-1]
    if kind is CommandType.READ_TIME:
        return _time(kind, value)[::-1]
    number = _NUMBERS[kind]
    scaled = round(value * number.scale) if isinstance(value, int | float) and isfinite(value) else -1
    if not 0 <= scaled <= number.most:
        raise UnsupportedCommandError(f"{kind} holds 0 to {number.most / number.scale}, not {value!r}")
    relay = bytes([0, 0 if relay_on else 1]) if kind is CommandType.READ_CREDIT else b""
    return bytes(number.start) + bytes.fromhex(f"{scaled:0{2 * number.size}}")[::-1] + relay


# Reports

REPORT_FLAGS = (
    "relay_open",
    "battery_low",
    "magnetic_interference",
    "terminal_cover_open",
    "cover_open",
    "source_2_active",
    "current_reversed",
    "current_unbalanced",
)
# One byte that is not known, the time (YYMMDDhhmm, low byte first), then binary numbers.
_REPORT = struct.Struct("<x5sIfIfIHIB")


class MeterReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a meter tells by itself: kWh of its two sources, V, A, and which of `REPORT_FLAGS` are set."""

    at: datetime
    consumed: float = 0.0
    remaining: float | None = 0.0
    consumed_2: float = 0.0
    remaining_2: float | None = 0.0
    demand: int = 0
    voltage: float = 0.0
    current: float = 0.0
    flags: tuple[str, ...] = ()


def report_frame(serial: str, report: MeterReport) -> bytes:
    """A meter's side: its report. `at` is written to the minute, as it stands."""
    packed = _REPORT.pack(
        bytes.fromhex(f"{report.at:%y%m%d%H%M}")[::-1],
        round(report.consumed * 100),
        float("nan") if report.remaining is None else report.remaining,
        round(report.consumed_2 * 100),
        float("nan") if report.remaining_2 is None else report.remaining_2,
        report.demand,
        round(report.voltage * 10),
        round(report.current * 1000),
        sum(1 << bit for bit, flag in enumerate(REPORT_FLAGS) if flag in report.flags),
    )
    field = REPORT_IDENTIFIER.to_bytes(2, "little") + packed
    return _frame(_address(serial), Control.READ | _ANSWER, field)


def _report(data: bytes) -> dict[str, Any]:
    """The content of a report; what does not have the known shape is kept as it is, in hex."""
    try:
        digits = _digits(data, 1, 5)
        _, consumed, remaining, consumed_2, remaining_2, *rest = _REPORT.unpack_from(data)
    except (DecodeError, struct.error):
        return {"raw": data.hex()}
    demand, voltage, current, flags = rest
    return {
        "at": f"{_iso_date(digits)}T{digits[6:8]}:{digits[8:]}",
        "consumed": consumed / 100,
        "remaining": _rounded(remaining),
        "consumed_2": consumed_2 / 100,
        "remaining_2": _rounded(remaining_2),
        "demand": demand,
        "voltage": voltage / 10,
        "current": current / 1000,
        "flags": [flag for bit, flag in enumerate(REPORT_FLAGS) if flags >> bit & 1],
    }


def _rounded(value: float) -> float | None:
    """Kilowatt-hours of a 4-byte float, which holds hardly more than two decimals of them."""
    return round(value, 2) if isfinite(value) else None


# Frames


def _frame(address: bytes, control: int, field: bytes) -> bytes:
    head = bytes([_START, *address[::-1], _START, control, len(field)])
    body = head + bytes((each + _OFFSET) & 0xFF for each in field)
    return body + bytes([sum(body) & 0xFF, _END])


def _open(data: bytes) -> tuple[str, int, bytes]:
    """Serial, control byte and field of a frame that is whole; `DecodeError` else."""
    if len(data) < _BARE or (data[0], data[7], data[-1]) != (_START, _START, _END):
        raise DecodeError("the bytes are no frame: too short, or without its start or end")
    if data[9] != len(data) - _BARE:
        raise DecodeError(f"the frame says {data[9]} bytes of data, and has {len(data) - _BARE}")
    if sum(data[:-2]) & 0xFF != data[-2]:
        raise DecodeError("the sum of the frame does not fit")
    return (
        _digits(data, 1, 6).lstrip("0") or "0",
        data[8],
        bytes((each - _OFFSET) & 0xFF for each in data[10:-2]),
    )
