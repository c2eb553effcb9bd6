"""What a network is: the adapter to a network server, for push or for pull.

A third one is one module: a class with `send`, and with `look` and `withdraw` (push) or `poll` (pull).
An adapter decides nothing. It says what the network server said, and whether that is certain.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from remuda.devices.codecs.contract import Downlink
from remuda.devices.command import CommandType, Device, Execution, Phase, Protocol
from remuda.errors import ConfigurationError, RemudaError
from remuda.lifecycle import EndReason


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be sent to one device: for push as a frame, for pull as words."""

    command_id: str
    attempt: int
    device: Device
    type: CommandType
    data: Any = None
    phase: Phase | None = None
    downlink: Downlink | None = None
    expires_at: datetime | None = None


class SendError(RemudaError):
    """A hand-over failed.

    certain  the network server has nothing of it for certain: it may be sent again without a second thought
    final    a reason for which no retry can help (skip-retry)
    """

    def __init__(
        self,
        message: str,
        *,
        code: str,
        certain: bool,
        final: EndReason | None = None,
    ) -> None:
        super().__init__(message)
        if final is not None and not isinstance(final, EndReason):
            # It becomes part of the command's record, which nobody could read.
            raise ConfigurationError(f"final must be an EndReason or None, not {final!r}")
        self.code = code
        self.certain = certain
        self.final = final


class NetworkError(RemudaError):
    """A question to the network server (a look, a poll, a withdrawal) was not answered: ask again later."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class QueueItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item in the network server's queue for a device. `pending`: transmitted, waits for its ack."""

    id: str
    data: bytes
    f_port: int
    pending: bool


class Withdrawal(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an attempt to take an item back. `certain`: it was taken back, and never transmitted."""

    certain: bool
    details: str = ""


class TaskResult(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a task. `refused`: the device itself said no; else a failure may hide an effect."""

    execution: Execution
    data: Any = None
    refused: bool = False
    code: str | None = None


class GatewayState(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway, the grid that it serves where that is known, and whether it is up; None: not known."""

    id: str
    grid: str | None = None
    is_up: bool | None = None


class Network(ABC):
    """The adapter to one network server. Calls may run side by side; each has a deadline of its own."""

    protocol: Protocol

    async def open(self) -> None:  # noqa: B027  # most need nothing
        """Get ready. Nothing is sent before the first call."""

    async def close(self) -> None:  # noqa: B027  # as above
        """Give everything back."""

    @abstractmethod
    async def send(self, order: Order) -> str:
        """Hand an order over; the network server's id for it (a queue item, or a task). Else `SendError`."""

    async def look(self, device: Device) -> list[QueueItem]:
        """Push: what the network server still holds for a device. `NetworkError` when it does not answer."""
        raise NotImplementedError

    async def withdraw(self, device: Device, external_id: str) -> Withdrawal:
        """Push: take an item back, and say whether it is certain that it was never transmitted."""
        raise NotImplementedError

    async def poll(self, order: Order, external_id: str) -> TaskResult | None:
        """Pull: the end of a task; None while it goes on. `NetworkError` when it cannot be learnt now."""
        raise NotImplementedError

    async def gateways(self) -> Sequence[GatewayState]:
        """Which gateways are up, as far as the network server tells."""
        return ()
