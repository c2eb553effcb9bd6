"""Where a command belongs in its store, read off its record: nothing else decides it."""

from __future__ import annotations

from remuda.devices.certainty import is_guarded
from remuda.devices.command import Command, Device, Protocol, pack
from remuda.lifecycle import IN_FLIGHT_STATUSES, CommandStatus
from remuda.stores.commands import Change, Home, Move, Placing

_HOMES = {
    CommandStatus.QUEUED: Home.LANE,
    CommandStatus.SENT_TO_NS: Home.TO_NS,
    CommandStatus.SENT_TO_DEVICE: Home.TO_DEVICE,
    CommandStatus.TO_RETRY: Home.RETRY,
    CommandStatus.DELIVERY_SUCCESSFUL: Home.ENDED,
    CommandStatus.DELIVERY_FAILED: Home.ENDED,
}
_AT_THE_NETWORK = {
    Protocol.LORAWAN: Home.TO_GATEWAY,
    Protocol.API_V1: Home.TASK_V1,
    Protocol.API_V2: Home.TASK_V2,
}


def lane_of(device: Device, grid: str | None, *, by_gateway: bool) -> str:
    """The lane in which commands for a device wait.

    Push: one for each LoRaWAN network (a grid), or for each gateway where air time is shared out by
    gateway. Pull: one for each gateway.
    """
    gateway = device.gateway.id if device.gateway is not None else None
    if not device.protocol.is_push:
        return f"gateway:{gateway or 'default'}"
    if by_gateway and gateway is not None:
        return f"lorawan_gateway:{gateway}"
    return f"lorawan_network:{grid or 'default'}"


def place(command: Command) -> Placing:
    """What the store has to know of a command."""
    status = command.status
    waits = status in (CommandStatus.QUEUED, CommandStatus.TO_RETRY)
    hears = command.is_push and bool(command.attempts) and not command.has_ended
    correlation = () if command.correlation_id is None else (command.correlation_id,)
    return Placing(
        home=_home(command),
        lane=command.lane,
        priority=command.priority,
        status=status,
        type=command.type.value,
        device=command.device.key,
        due_at=command.due_at,
        turn=_turn(command),
        key=None if command.has_ended or command.stop is not None else command.key,
        uses_slot=not command.is_push and status in IN_FLIGHT_STATUSES,
        hears=command.device.key if hears else None,
        expires_at=command.expires_at if waits else None,
        airtime_ms=command.airtime_ms,
        external_ids=tuple(each.external_id for each in command.attempts if each.external_id is not None),
        correlation_ids=(*correlation, *command.joined),
    )


def _home(command: Command) -> Home:
    if command.status is CommandStatus.DELIVERED_TO_NS:
        return _AT_THE_NETWORK[command.device.protocol]
    return _HOMES[command.status]


def _turn(command: Command) -> str | None:
    """Push: one frame at a time for each device. Pull: one token at a time.

    A command that waits for its retry gives its turn away, but not while a call for it may still
    succeed, nor a token whose outcome is unknown: another one would blur what a read can tell.
    """
    if command.has_ended:
        return None
    if command.is_push:
        turn = command.device.key
    elif command.is_single_use:
        turn = f"{command.device.key}/token"
    else:
        return None
    if command.status is CommandStatus.TO_RETRY:
        calling = any(each.call_until is not None for each in command.attempts)
        probing = command.expectation is not None and (is_guarded(command) or command.baseline is not None)
        return turn if calling or probing else None
    return turn


def change_of(command: Command, moves: tuple[Move, ...]) -> Change:
    """The next record of a command whose `version` is still the one that it was read with."""
    base = command.version
    return Change(id=command.id, base=base, record=pack(command), placing=place(command), moves=moves)
