"""What a network server tells by itself, in the network's own order, or twice, or never.

A signal is what an ingress stores before it answers. Which command it belongs to is found out later.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from remuda.errors import DecodeError


class _Signal(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """What every signal has.

    id      the same for the same event, however often it is sent
    device  the device's key, as `Device.key` gives it
    at      when the network server says that it happened
    """

    id: str
    device: str
    at: datetime


class TxAck(_Signal, frozen=True, kw_only=True, tag="txack"):
    """A gateway has taken the frame for transmission."""

    external_id: str
    gateway: str | None = None


class Ack(_Signal, frozen=True, kw_only=True, tag="ack"):
    """The device's MAC layer acknowledged the frame, or not. `dedup` is empty where no uplink said so."""

    external_id: str
    acknowledged: bool
    dedup: str = ""


class Uplink(_Signal, frozen=True, kw_only=True, tag="up"):
    """The device sent something."""

    dedup: str
    data: bytes
    f_port: int
    gateway: str | None = None
    snr: float | None = None
    rssi: float | None = None
    profile: str | None = None


class Discarded(_Signal, frozen=True, kw_only=True, tag="discarded"):
    """The network server threw the item away without sending it."""

    external_id: str
    code: str
    details: str = ""


class GatewayRefused(_Signal, frozen=True, kw_only=True, tag="gateway_refused"):
    """A gateway refused a frame for the device; which one is not said. The item stays queued."""

    details: str


class Joined(_Signal, frozen=True, kw_only=True, tag="join"):
    """The device has joined the network."""


class Status(_Signal, frozen=True, kw_only=True, tag="status"):
    """The device's battery and link margin."""

    data: dict[str, Any] = {}


Signal = TxAck | Ack | Uplink | Discarded | GatewayRefused | Joined | Status

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Signal)


def pack(signal: Signal) -> bytes:
    """The stored form of a signal."""
    return _encoder.encode(signal)


def unpack(body: bytes) -> Signal:
    """What `pack` wrote; `DecodeError` for anything else."""
    try:
        signal: Signal = _decoder.decode(body)
        return signal
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise DecodeError(f"the stored signal is not readable: {error}") from error
