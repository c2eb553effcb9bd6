"""A prepayment meter: what it knows, what it does when it is asked, and the truth of what it did."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Literal

import msgspec

from remuda.devices.codecs.dlt645 import (
    Control,
    MeterReport,
    Request,
    answer_frame,
    parse_request,
    report_frame,
)
from remuda.devices.command import FAMILIES, CommandType, Family, Phase
from remuda.errors import DecodeError

TOKEN_DIGITS = 20
_VERSION = "CA168-2.3"
_BY_FIRST_DIGIT = {
    "1": CommandType.SET_POWER_LIMIT,
    "2": CommandType.CLEAR_CREDIT,
    "3": CommandType.CLEAR_TAMPER,
}


class Deed(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a meter was asked, and what it did: what records elsewhere are compared with.

    type      what it came to: a token counts as what it is; None where the meter could not tell
    accepted  the meter answered yes
    applied   its state was changed by it (never by a read)
    """

    at: datetime
    type: CommandType | None
    data: Any
    accepted: bool
    applied: bool


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What a meter answers. `code` says why not."""

    ok: bool
    data: Any = None
    code: str | None = None


class Meter:
    """One meter. `refuse` is the share of tokens, switchings and writes that it refuses by chance.

    `gateway` is the one that reaches it (None: the network chooses), `spreading_factor` that of its frames.

    >>> meter = Meter("47003333771", rng=random.Random(1))
    >>> meter.carry_out(CommandType.TURN_OFF, None, None, datetime.now(UTC))
    Reply(ok=True, data=None, code=None)
    """

    def __init__(
        self,
        serial: str,
        *,
        rng: random.Random,
        refuse: float = 0.0,
        device_class: Literal["A", "C"] = "C",
        credit_kwh: float = 25.0,
        gateway: str | None = None,
        spreading_factor: int = 9,
    ) -> None:
        self.serial = serial
        self.gateway = gateway
        self.spreading_factor = spreading_factor
        self.refuse = refuse
        self.device_class = device_class
        self.relay_on = True
        self.credit_kwh = credit_kwh
        self.power_limit_kw = 5.0
        self.version = _VERSION
        self.tampered = False
        self.clock_offset = timedelta(0)
        self.used_tokens: set[str] = set()
        self.deeds: list[Deed] = []
        self._rng = rng
        self._reads: dict[CommandType, Callable[[Phase | None, datetime], Any]] = {
            CommandType.READ_VOLTAGE: lambda phase, now: round(self._rng.uniform(222.0, 238.0), 1),
            CommandType.READ_CURRENT: lambda phase, now: self._load(8.0, 2),
            CommandType.READ_POWER: lambda phase, now: self._load(self.power_limit_kw, 2),
            CommandType.READ_POWER_LIMIT: lambda phase, now: self.power_limit_kw,
            CommandType.READ_CREDIT: lambda phase, now: self.credit_kwh,
            CommandType.READ_VERSION: lambda phase, now: self.version,
            CommandType.READ_DATE: lambda phase, now: self.local_time(now).date().isoformat(),
            CommandType.READ_TIME: lambda phase, now: self.local_time(now).strftime("%H:%M:%S"),
        }

    @property
    def dev_eui(self) -> str:
        """Its name in a LoRaWAN network."""
        return self.serial.zfill(16).lower()

    def local_time(self, now: datetime) -> datetime:
        """What the meter's own clock shows."""
        return now.astimezone(UTC) + self.clock_offset

    def carry_out(self, type: CommandType, data: Any, phase: Phase | None, now: datetime) -> Reply:  # noqa: A002  # the word of the wire
        """Do what is asked, record the deed, and answer.

        A token is applied at most once. One that is refused, by chance or for its form, stays unused.
        """
        family = FAMILIES[type]
        if family is Family.READ:
            value = self._reads[type](phase, now)
            return self._done(type, data, now, Reply(ok=True, data=value), applied=False)
        if family is Family.TOKEN:
            return self._take_token(type, data, now)
        if family is Family.UNSOLICITED:
            return self._done(None, data, now, Reply(ok=False, code="UNSUPPORTED"), applied=False)
        if self._refuses():
            return self._done(type, data, now, Reply(ok=False, code="REFUSED"), applied=False)
        if family is Family.CONTROL:
            self.relay_on = type is CommandType.TURN_ON
        elif not self._set_clock(type, data, now):
            return self._done(type, data, now, Reply(ok=False, code="BAD_DATA"), applied=False)
        return self._done(type, data, now, Reply(ok=True), applied=True)

    def receive(self, frame: bytes, now: datetime) -> bytes | None:
        """A frame from the air: the frame that answers it; None when it is damaged or for another meter."""
        try:
            request = parse_request(frame)
        except DecodeError:
            return None
        if int(request.serial) != int(self.serial):
            return None
        asked = _asked(request)
        if asked is None:
            self._done(None, request.payload, now, Reply(ok=False, code="UNSUPPORTED"), applied=False)
            return answer_frame(request, ok=False, code=0x02)
        reply = self.carry_out(*asked, request.phase, now)
        return answer_frame(request, ok=reply.ok, value=reply.data, relay_on=self.relay_on)

    def report(self, now: datetime) -> bytes:
        """What it tells by itself, as a frame."""
        report = MeterReport(
            at=self.local_time(now),
            remaining=self.credit_kwh,
            voltage=230.0,
            flags=() if self.relay_on else ("relay_open",),
        )
        return report_frame(self.serial, report)

    def _done(
        self, kind: CommandType | None, data: Any, now: datetime, reply: Reply, *, applied: bool
    ) -> Reply:
        self.deeds.append(Deed(at=now, type=kind, data=data, accepted=reply.ok, applied=applied))
        return reply

    def _refuses(self) -> bool:
        return self.refuse > 0.0 and self._rng.random() < self.refuse

    def _load(self, most: float, digits: int) -> float:
        return round(self._rng.uniform(0.0, most), digits) if self.relay_on else 0.0

    def _take_token(self, kind: CommandType, data: Any, now: datetime) -> Reply:
        written = data.get("token") if isinstance(data, dict) else data
        token = "".join(each for each in str(written) if each.isdigit())
        if len(token) != TOKEN_DIGITS:
            return self._done(None, data, now, Reply(ok=False, code="BAD_TOKEN"), applied=False)
        if kind is CommandType.DELIVER_PREEXISTING_TOKEN:
            kind = _BY_FIRST_DIGIT.get(token[0], CommandType.TOP_UP)
        if token in self.used_tokens:
            return self._done(kind, token, now, Reply(ok=False, code="TOKEN_USED"), applied=False)
        if self._refuses():
            return self._done(kind, token, now, Reply(ok=False, code="TOKEN_REFUSED"), applied=False)
        self.used_tokens.add(token)
        amount = int(token[-4:]) / 10
        if kind is CommandType.TOP_UP:
            self.credit_kwh = round(self.credit_kwh + amount, 2)
        elif kind is CommandType.SET_POWER_LIMIT:
            self.power_limit_kw = amount
        elif kind is CommandType.CLEAR_CREDIT:
            self.credit_kwh = 0.0
        else:
            self.tampered = False
        return self._done(kind, token, now, Reply(ok=True), applied=True)

    def _set_clock(self, kind: CommandType, data: Any, now: datetime) -> bool:
        """Set the clock's date or time of day, and leave the other as it is."""
        shown = self.local_time(now)
        try:
            if kind is CommandType.SET_DATE:
                wanted = datetime.combine(_as_date(data), shown.timetz())
            else:
                wanted = datetime.combine(shown.date(), _as_time(data), tzinfo=UTC)
        except ValueError:
            return False
        self.clock_offset += wanted - shown
        return True


def _asked(request: Request) -> tuple[CommandType, Any] | None:
    """What a frame asks for, and with which data; None where the meter knows no such command."""
    if request.control is Control.TOKEN:
        return CommandType.DELIVER_PREEXISTING_TOKEN, request.payload.hex()
    kind, digits = request.type, request.payload.hex()
    if kind is CommandType.SET_DATE:
        return kind, f"20{digits[:2]}-{digits[2:4]}-{digits[4:6]}"
    if kind is CommandType.SET_TIME:
        return kind, f"{digits[:2]}:{digits[2:4]}:{digits[4:6]}"
    return None if kind is None else (kind, None)


def _as_date(data: Any) -> date:
    """A date from what callers write: a date, a time with its date, or either in ISO form."""
    if isinstance(data, datetime):
        return data.date()
    if isinstance(data, date):
        return data
    return datetime.fromisoformat(str(data)).date()


def _as_time(data: Any) -> time:
    if isinstance(data, datetime):
        return data.timetz().replace(tzinfo=None)
    if isinstance(data, time):
        return data.replace(tzinfo=None)
    try:
        return time.fromisoformat(str(data)).replace(tzinfo=None)
    except ValueError:
        return datetime.fromisoformat(str(data)).time()
