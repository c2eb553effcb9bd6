"""What a codec does: a command as the bytes that a device understands, and its answer back.

A codec is a plug-in by device type. It knows no network and no store, and is pure.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

import msgspec

from remuda.devices.command import Answer, CommandType, Device, Family, Phase
from remuda.errors import RemudaError


class UnsupportedCommandError(RemudaError):
    """The device type has no such command, or not with this data. Sending it again cannot help."""


class Downlink(msgspec.Struct, frozen=True, kw_only=True):
    """A frame for a device."""

    data: bytes
    f_port: int = 1
    confirmed: bool = True


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a device tells by itself."""

    type: CommandType
    data: Any = None


class Codec(Protocol):
    """The bytes of one type of device."""

    def encode(
        self, device: Device, command: CommandType, *, data: Any, phase: Phase | None, now: datetime
    ) -> Downlink:
        """The frame of a command; `UnsupportedCommandError` where there is none, naming the value."""
        ...

    def decode(self, data: bytes, f_port: int) -> Answer | Report | None:
        """What a device sent, or None when it is nothing that this codec knows (a damaged frame, say)."""
        ...


_WRITTEN = frozenset({Family.CONTROL, Family.WRITE})


def answers(answer: Answer, command: CommandType, family: Family, phase: Phase | None) -> bool:
    """Whether an answer can be the one to a command."""
    # A bare reply to a write does not say whether a switch or a setting was written.
    is_bare = answer.type is None and answer.family in _WRITTEN and family in _WRITTEN
    if answer.family is not family and not is_bare:
        return False
    if answer.type is not None and answer.type is not command:
        return False
    return answer.phase is None or phase is None or answer.phase is phase
