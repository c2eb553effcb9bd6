"""What ChirpStack's HTTP integration posts, read as signals. Pure: bytes go in, signals come out.

An event comes as JSON or as protobuf, by the content type. Protobuf is first put into the shape of the
JSON, so that one set of rules reads both and an event has the same id either way.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from chirpstack_api import integration
from google.protobuf import json_format  # type: ignore[import-untyped]  # no types of its own
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no types of its own

from remuda.devices.command import Protocol
from remuda.devices.networks.signals import (
    Ack,
    Discarded,
    GatewayRefused,
    Joined,
    Signal,
    Status,
    TxAck,
    Uplink,
)
from remuda.errors import RemudaError

MAX_BYTES = 256 * 1024
PROTOBUF_TYPES = frozenset({"application/octet-stream", "application/x-protobuf"})
IGNORED_KINDS = frozenset({"location", "integration"})
DISCARDS = frozenset({"EXPIRED", "DOWNLINK_PAYLOAD_SIZE", "F_CNT_DOWN"})

_EUI = re.compile(r"[0-9a-f]{16}")
# Ids become keys in a store: what is longer than any of ChirpStack's, or not printable, is refused here.
_ID = re.compile(r"[\x21-\x7e]{1,64}")
_LONGEST_DETAILS = 300


class InvalidSignalError(RemudaError, ValueError):
    """An event that is not what ChirpStack sends. `field` names what is wrong with it."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


# What is optional may also be null: which of the two ChirpStack writes has changed between versions.
_Number: TypeAlias = float | str | None  # protobuf's JSON writes NaN and infinities as words
_Port: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=255)]
_Margin: TypeAlias = Annotated[int, msgspec.Meta(ge=-128, le=127)]
_Counter: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Event(msgspec.Struct, rename="camel", kw_only=True):
    """What is read of an event; all else is skipped."""


class _DeviceInfo(_Event):
    dev_eui: str | None = None
    device_profile_name: str | None = None


class _AnyEvent(_Event):
    device_info: _DeviceInfo | None = None
    time: datetime | None = None
    deduplication_id: str | None = None


class _RxInfo(_Event):
    gateway_id: str | None = None
    rssi: _Number = 0.0  # left out when nought, like every number in proto3's JSON
    snr: _Number = 0.0


_NOBODY = _RxInfo(rssi=None, snr=None)


class _Up(_AnyEvent):
    f_port: _Port | None = None
    data: bytes | None = None  # base64
    rx_info: list[_RxInfo] | None = None


class _Ack(_AnyEvent):
    queue_item_id: str | None = None
    acknowledged: bool | None = None


class _TxAck(_AnyEvent):
    queue_item_id: str | None = None
    downlink_id: _Counter | str | None = None  # a number; some versions write a string
    gateway_id: str | None = None


class _Log(_AnyEvent):
    code: str | int | None = None  # a number for a code that this version of the messages does not know
    description: str | None = None
    context: dict[str, Any] | None = None


class _Status(_AnyEvent):
    margin: _Margin | None = 0
    external_power_source: bool | None = False
    battery_level_unavailable: bool | None = False
    battery_level: _Number = 0.0


class _Join(_AnyEvent):
    pass


def parse_event(kind: str, body: bytes, *, content_type: str, max_bytes: int = MAX_BYTES) -> list[Signal]:
    """The signals of one event, none where it tells nothing of commands; else `InvalidSignalError`.

    `kind` is the `event` of the request's query. The same event gives the same signals each time.
    """
    if len(body) > max_bytes:
        raise InvalidSignalError("body", f"{len(body):,} bytes are more than the {max_bytes:,} allowed")
    if kind in IGNORED_KINDS:
        return []
    reader = _READERS.get(kind)
    if reader is None:
        raise InvalidSignalError("event", f"{kind[:40]!r} is none of {', '.join(sorted(_READERS))}")
    media_type = content_type.partition(";")[0].strip().lower()
    return reader(body, media_type in PROTOBUF_TYPES)


def _up(event: _Up) -> list[Signal]:
    dedup = _id(event.deduplication_id, "deduplicationId")
    best = max(event.rx_info or [], key=_loudness, default=_NOBODY)
    info = event.device_info or _DeviceInfo()
    return [
        Uplink(
            id=f"up:{dedup}",
            device=_device(event),
            at=_time(event),
            dedup=dedup,
            data=event.data or b"",
            f_port=event.f_port or 0,
            gateway=_gateway(best.gateway_id),
            snr=_finite(best.snr),
            rssi=_finite(best.rssi),
            profile=_text(info.device_profile_name) or None,
        )
    ]


def _ack(event: _Ack) -> list[Signal]:
    item = _id(event.queue_item_id, "queueItemId")
    # A nack that no uplink triggered has an empty deduplicationId.
    dedup = _id(event.deduplication_id, "deduplicationId") if event.deduplication_id else ""
    acknowledged = event.acknowledged is True
    return [
        Ack(
            id=f"ack:{item}:{str(acknowledged).lower()}:{dedup}",
            device=_device(event),
            at=_time(event),
            external_id=item,
            acknowledged=acknowledged,
            dedup=dedup,
        )
    ]


def _txack(event: _TxAck) -> list[Signal]:
    if not event.queue_item_id:
        return []  # MAC commands only: nothing of ours
    item = _id(event.queue_item_id, "queueItemId")
    downlink = _id(str(event.downlink_id or 0), "downlinkId")
    return [
        TxAck(
            id=f"txack:{item}:{downlink}",
            device=_device(event),
            at=_time(event),
            external_id=item,
            gateway=_gateway(event.gateway_id),
        )
    ]


def _log(event: _Log) -> list[Signal]:
    code, context = event.code, event.context or {}
    details = _text(event.description)
    if code == "DOWNLINK_GATEWAY":
        refused = GatewayRefused(id=_log_id(event), device=_device(event), at=_time(event), details=details)
        return [refused]
    item = context.get("queue_item_id")
    if code not in DISCARDS or not item:
        return []
    return [
        Discarded(
            id=_log_id(event),
            device=_device(event),
            at=_time(event),
            external_id=_id(str(item), "context.queue_item_id"),
            code=str(code),
            details=details,
        )
    ]


def _status(event: _Status) -> list[Signal]:
    dedup = _id(event.deduplication_id, "deduplicationId")
    data = {
        "margin": event.margin,
        "external_power_source": event.external_power_source,
        "battery_level": None if event.battery_level_unavailable else _finite(event.battery_level),
    }
    return [Status(id=f"status:{dedup}", device=_device(event), at=_time(event), data=data)]


def _join(event: _Join) -> list[Signal]:
    dedup = _id(event.deduplication_id, "deduplicationId")
    return [Joined(id=f"join:{dedup}", device=_device(event), at=_time(event))]


def _device(event: _AnyEvent) -> str:
    """The device's key, the same as `Device.key`."""
    eui = (event.device_info or _DeviceInfo()).dev_eui or ""
    if not _EUI.fullmatch(eui.lower()):
        raise InvalidSignalError("deviceInfo.devEui", "missing" if not eui else "not 16 hex digits")
    return f"{Protocol.LORAWAN}:{eui.lower()}"


def _time(event: _AnyEvent) -> datetime:
    if event.time is None:
        raise InvalidSignalError("time", "missing")
    try:
        return event.time.replace(tzinfo=UTC) if event.time.tzinfo is None else event.time.astimezone(UTC)
    except OverflowError:
        raise InvalidSignalError("time", "out of range") from None


def _id(value: str | None, field: str) -> str:
    if not value:
        raise InvalidSignalError(field, "missing")
    if not _ID.fullmatch(value):
        raise InvalidSignalError(field, "not 1 to 64 printable characters")
    return value


def _log_id(event: _Log) -> str:
    """Logs have no id of their own: the digest of what they say."""
    said = (
        _device(event),
        _time(event).isoformat(),
        event.code,
        event.description or "",
        event.context or {},
    )
    return f"log:{hashlib.sha256(msgspec.json.encode(said, order='sorted')).hexdigest()[:32]}"


def _gateway(value: str | None) -> str | None:
    return value.lower() if value and _ID.fullmatch(value) else None


def _text(value: str | None) -> str:
    """Free text, of a length that may be stored, and without what some databases cannot store."""
    return (value or "").replace("\0", "")[:_LONGEST_DETAILS]


def _finite(value: _Number) -> float | None:
    try:
        number = math.nan if value is None else float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _loudness(heard: _RxInfo) -> tuple[float, float]:
    snr, rssi = _finite(heard.snr), _finite(heard.rssi)
    return (-math.inf if snr is None else snr, -math.inf if rssi is None else rssi)


_Some = TypeVar("_Some", bound=_AnyEvent)
_Reader: TypeAlias = Callable[[bytes, bool], list[Signal]]


def _reader(shape: type[_Some], message: Any, read: Callable[[_Some], list[Signal]]) -> _Reader:
    """How one kind of event is read, from JSON or (`packed`) from its protobuf message."""
    decoder = msgspec.json.Decoder(shape)
    # What no signal is made of (a decoded object, radio settings) is not even put into shape.
    wanted = {name.encode_name for name in msgspec.structs.fields(shape)}
    unread = [field.name for field in message.DESCRIPTOR.fields if field.json_name not in wanted]

    def of_body(body: bytes, packed: bool) -> list[Signal]:
        try:
            if packed:
                event = msgspec.convert(_unpacked(message, unread, body), shape)
            else:
                event = decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidSignalError("body", _problem(error)) from None
        return read(event)

    return of_body


def _unpacked(message: Any, unread: list[str], body: bytes) -> Any:
    """A protobuf event in the shape of its JSON."""
    event = message()
    try:
        event.ParseFromString(body)
        for field in unread:
            event.ClearField(field)
        return json_format.MessageToDict(event, always_print_fields_with_no_presence=True)
    except (DecodeError, json_format.Error, ValueError, OverflowError):
        raise InvalidSignalError("body", f"not a protobuf {message.DESCRIPTOR.full_name}") from None


def _problem(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)[:_LONGEST_DETAILS]


_READERS: Mapping[str, _Reader] = MappingProxyType(
    {
        "up": _reader(_Up, integration.UplinkEvent, _up),
        "ack": _reader(_Ack, integration.AckEvent, _ack),
        "txack": _reader(_TxAck, integration.TxAckEvent, _txack),
        "log": _reader(_Log, integration.LogEvent, _log),
        "status": _reader(_Status, integration.StatusEvent, _status),
        "join": _reader(_Join, integration.JoinEvent, _join),
    }
)
