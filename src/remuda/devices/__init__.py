"""Commands to devices: from a lane, through a network server, to a device, and what it answered back.

`Fleet` sends commands and looks after them, `Engine` carries them. `command` and `happenings` are the
words, `rules` decides (purely), `ledger` writes, `networks` and `codecs` are plug-ins, `simulator` is a
world to try it in. From outside only what is named here may be touched, and the plug-ins' contracts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remuda.devices.airtime import DutyCycle
    from remuda.devices.command import (
        Command,
        CommandType,
        Device,
        Execution,
        Expectation,
        Gateway,
        Outcome,
        Phase,
        Priority,
        Protocol,
    )
    from remuda.devices.engine import Engine
    from remuda.devices.fleet import Cancellation, Fleet, Sent
    from remuda.devices.listening import DeviceReport
    from remuda.devices.publishing import BatchSubscriber
    from remuda.devices.sending import InvalidCommandError, NewCommand
    from remuda.devices.timings import Timings
    from remuda.devices.webhooks import WebhookSubscriber, WebhookTarget, webhook_worker
    from remuda.lifecycle import CommandStatus, EndReason

_HOMES = {
    "remuda.devices.airtime": ("DutyCycle",),
    "remuda.devices.command": (
        "Command",
        "CommandType",
        "Device",
        "Execution",
        "Expectation",
        "Gateway",
        "Outcome",
        "Phase",
        "Priority",
        "Protocol",
    ),
    "remuda.devices.engine": ("Engine",),
    "remuda.devices.fleet": ("Cancellation", "Fleet", "Sent"),
    "remuda.devices.listening": ("DeviceReport",),
    "remuda.devices.publishing": ("BatchSubscriber",),
    "remuda.devices.sending": ("InvalidCommandError", "NewCommand"),
    "remuda.devices.timings": ("Timings",),
    "remuda.devices.webhooks": ("WebhookSubscriber", "WebhookTarget", "webhook_worker"),
    "remuda.lifecycle": ("CommandStatus", "EndReason"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "BatchSubscriber",
    "Cancellation",
    "Command",
    "CommandStatus",
    "CommandType",
    "Device",
    "DeviceReport",
    "DutyCycle",
    "EndReason",
    "Engine",
    "Execution",
    "Expectation",
    "Fleet",
    "Gateway",
    "InvalidCommandError",
    "NewCommand",
    "Outcome",
    "Phase",
    "Priority",
    "Protocol",
    "Sent",
    "Timings",
    "WebhookSubscriber",
    "WebhookTarget",
    "webhook_worker",
]


def __getattr__(name: str) -> Any:
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(module), name)
