"""The words of Calin's vending APIs: how V1 and V2 write commands down, and how their answers are read.

Pure: nothing here speaks HTTP.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from types import MappingProxyType
from typing import Any

from remuda.devices.command import FAMILIES, PHASED, CommandType, Family, Phase
from remuda.devices.networks.contract import Order, SendError
from remuda.lifecycle import EndReason

# V1: the path that creates a task; its result is asked for at the same path with `Task` behind it.
V1_PATHS: Mapping[Family, str] = MappingProxyType(
    {
        Family.READ: "/COMM_RemoteReading",
        Family.CONTROL: "/COMM_RemoteControl",
        Family.WRITE: "/COMM_RemoteWrite",
        Family.TOKEN: "/COMM_RemoteToken",
    }
)
V1_DATA_ITEMS: Mapping[CommandType, str] = MappingProxyType(
    {
        CommandType.READ_CREDIT: "Current Credit Register",
        CommandType.READ_VOLTAGE: "Voltage",  # of a phase: VoltageA
        CommandType.READ_CURRENT: "Current",
        CommandType.READ_POWER: "Power",
        CommandType.READ_POWER_LIMIT: "Maximum power threshold",
        CommandType.READ_VERSION: "Version",
        CommandType.READ_DATE: "Date",
        CommandType.TURN_ON: "Switch On",
        CommandType.TURN_OFF: "Switch Off",
        CommandType.SET_DATE: "Date",
    }
)
V1_ACCEPTED, V1_REFUSED = "00", "99"

V2_LOGIN_PATH = "/API/User/Login"
V2_KINDS: Mapping[Family, str] = MappingProxyType(
    {Family.READ: "Reading", Family.CONTROL: "Control", Family.WRITE: "Setting", Family.TOKEN: "Token"}
)
V2_PROTOCOL_IDS: Mapping[CommandType, int] = MappingProxyType(
    {
        CommandType.READ_CREDIT: 39,
        CommandType.READ_VOLTAGE: 5,  # of phase A; those of B and C are not known
        CommandType.READ_POWER: 11,
        CommandType.READ_CURRENT: 8,  # of phase A
        CommandType.READ_POWER_LIMIT: 46,
        CommandType.READ_VERSION: 45,
        CommandType.READ_DATE: 29,
        CommandType.SET_DATE: 10000,
        CommandType.TURN_ON: 20000,
        CommandType.TURN_OFF: 20001,
        **{kind: 30000 for kind, family in FAMILIES.items() if family is Family.TOKEN},
    }
)
V2_PROCESSING, V2_SUCCEEDED, V2_FAILED, V2_TOKEN_REFUSED = range(4)

_LONGEST_REASON = 200
_TOKEN = re.compile(r"[0-9]{20}")
_LONG_NUMBER = re.compile(r"(?:[0-9][\s-]*){16,}")  # longer than a meter's number: a token, for all we know
_DATE = re.compile(r"(?:20(?=[0-9]{2}-))?([0-9]{2})-?([0-9]{2})-?([0-9]{2})")
_AS_THEY_ARE = frozenset({CommandType.READ_VERSION})  # 1.10 is not 1.1
_UNKNOWN_METER = re.compile(
    r"\b(meter|device)\b.{0,40}\b(not exists?|doesn'?t exist|not found|unknown|not registered|unregistered)\b"
    r"|\b(unknown|no such|non-?existent|unregistered) (meter|device)\b",
    re.IGNORECASE,
)
_CREDENTIALS = re.compile(
    r"\b(password|credentials?|log ?in|(un|not )authori[sz]ed|authentication)\b"
    r"|\b(user|company)( ?name)?\b.{0,20}\b(wrong|invalid|incorrect|unknown|not exists?|not found)\b",
    re.IGNORECASE,
)


def v2_path(verb: str, family: Family) -> str:
    """V2: where a task is created (`Create`) or asked for (`Get`)."""
    return f"/API/RemoteMeterTask/{verb}{V2_KINDS[family]}Task"


def v1_words(order: Order, now: datetime) -> dict[str, str]:
    """What V1 is asked, besides for which meter; `SendError` for what it cannot be asked."""
    family = FAMILIES[order.type]
    if family is Family.TOKEN:
        return {"Token": token_of(order)}
    item = V1_DATA_ITEMS.get(order.type)
    if item is None:
        raise unsupported(order, "Calin's API V1 has no such command")
    if order.type in PHASED and order.phase is not None:
        item += order.phase
    if family is not Family.WRITE:
        return {"DataItem": item}
    moment = moment_of(order, now)
    # The week begins with Sunday, 00.
    return {"DataItem": item, "Data": f"{moment:%y%m%d}{moment.isoweekday() % 7:02}"}


def v2_words(order: Order, now: datetime) -> dict[str, Any]:
    """What V2 is asked, besides for which meter; `SendError` for what it cannot be asked."""
    protocol_id = V2_PROTOCOL_IDS.get(order.type)
    if protocol_id is None:
        raise unsupported(order, "Calin's API V2 has no such command")
    if order.type in PHASED and order.phase not in (None, Phase.A):
        raise unsupported(order, f"Calin's API V2 reads phase A only, not {order.phase}")
    family = FAMILIES[order.type]
    if family is Family.TOKEN:
        return {"protocolId": protocol_id, "data": token_of(order)}
    if family is Family.WRITE:
        return {"protocolId": protocol_id, "data": f"{moment_of(order, now):%Y-%m-%d %H:%M:%S}"}
    return {"protocolId": protocol_id}


def refusal(order: Order, code: str, said: str) -> SendError:
    """What it means that the server answered a create with a code other than success: there is no task."""
    text = f"Calin made no task of {order.type} for {order.device.reference}: code {code}, {said!r}"
    if _UNKNOWN_METER.search(said):
        return SendError(text, code=code, certain=True, final=EndReason.UNKNOWN_DEVICE)
    if _CREDENTIALS.search(said):  # a changed password must not end every token that is on its way
        return SendError(text, code="unauthorized", certain=True)
    is_token = FAMILIES[order.type] is Family.TOKEN
    return SendError(text, code=code, certain=True, final=EndReason.BAD_TOKEN if is_token else None)


def clean(reason: Any, *, secrets: Iterable[str]) -> str:
    """A reason as the server gave it, on one line, cut off, without secrets and without tokens."""
    text = " ".join(str(reason)[: 4 * _LONGEST_REASON].split())
    for secret in secrets:
        if secret:
            text = text.replace(secret, "…")
    text = _LONG_NUMBER.sub("… ", text)
    return "".join(each if each.isprintable() else "?" for each in text)[:_LONGEST_REASON].strip()


def unsupported(order: Order, why: str) -> SendError:
    """The error for a command that has no counterpart, or not with its data. `why` shows no data."""
    return SendError(
        f"{order.type} for {order.device.reference}: {why}",
        code="unsupported",
        certain=True,
        final=EndReason.UNSUPPORTED_COMMAND,
    )


def token_of(order: Order) -> str:
    """The 20 digits of an order's token, given as text or under the key `token`."""
    data = order.data.get("token") if isinstance(order.data, dict) else order.data
    token = re.sub(r"[\s-]", "", data) if isinstance(data, str) else ""
    if not _TOKEN.fullmatch(token):
        raise unsupported(order, "its data must be a token of 20 digits, as text or under the key 'token'")
    return token


def moment_of(order: Order, now: datetime) -> datetime:
    """The moment that an order sets a meter's clock to, as it was written down: no time zone is applied."""
    given = now if order.data is None else order.data
    if isinstance(given, str):
        try:
            given = datetime.fromisoformat(given)
        except ValueError:
            raise unsupported(order, f"{clean(given, secrets=())!r} is not a date in ISO form") from None
    if isinstance(given, date) and not isinstance(given, datetime):
        given = datetime(given.year, given.month, given.day)  # noqa: DTZ001  # the meter's own wall clock
    if not isinstance(given, datetime):
        raise unsupported(order, f"a {type(given).__name__} is not a date")
    if not 2000 <= given.year <= 2099:
        raise unsupported(order, f"a meter knows no year {given.year}")
    return given


def reading_of(order: Order, data: Any) -> dict[str, Any] | None:
    """What a read brought: its `value`, and for a credit the state of the `relay` where it is told."""
    if FAMILIES[order.type] is not Family.READ or data is None:
        return None
    text = str(data).strip()
    if not text:
        return None
    if order.type in _AS_THEY_ARE:
        return {"value": text}
    if order.type is CommandType.READ_DATE:
        return {"value": _iso_date(text)}
    if order.type is CommandType.READ_CREDIT and "," in text:
        credit, relay = (each.strip() for each in text.split(",", 1))
        return {"value": _number(credit), "relay": relay.lower()}
    return {"value": _number(text)}


def _number(text: str) -> float | str:
    """A number that may have its unit behind it; or the text, where it is none."""
    try:
        number = float(text.split(maxsplit=1)[0])
    except (ValueError, IndexError):
        return text
    return number if math.isfinite(number) else text


def _iso_date(text: str) -> str:
    """`26-03-15 0`, `26031500` and `2026-03-15 10:00:00` as `2026-03-15`; anything else as it is."""
    found = _DATE.match(text)
    try:
        return date(2000 + int(found[1]), int(found[2]), int(found[3])).isoformat() if found else text
    except ValueError:
        return text
