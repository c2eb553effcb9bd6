"""A simulated ChirpStack inside the process: a network without sockets, and its events as signals.

For virtual time. Calls take as long, fail as often and leave as much doubt as those over gRPC would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import msgspec

from remuda.devices.command import Device, Protocol
from remuda.devices.networks.chirpstack_events import parse_event
from remuda.devices.networks.contract import (
    GatewayState,
    Network,
    NetworkError,
    Order,
    QueueItem,
    SendError,
    Withdrawal,
)
from remuda.devices.networks.signals import Signal
from remuda.devices.simulator.chirpstack import (
    InvalidItemError,
    SimulatedChirpStack,
    UnknownDeviceError,
)
from remuda.devices.simulator.events import Event
from remuda.devices.simulator.radio import Call, Fault, Weather
from remuda.devices.simulator.session import Item
from remuda.errors import RemudaError
from remuda.lifecycle import EndReason

T = TypeVar("T")


class _CallError(RemudaError):
    """A call was not answered; whether it had its effect is not known."""

    def __init__(self, code: str) -> None:
        super().__init__(f"the network server did not answer: {code}")
        self.code = code


class InProcessChirpStack(Network):
    """The adapter to a simulated ChirpStack in the same process. `calls` counts what it asked.

    A call that outlasts `call_deadline` is given up; its effect comes all the same, in its own time.
    """

    protocol = Protocol.LORAWAN

    def __init__(
        self, core: SimulatedChirpStack, *, call_deadline: timedelta = timedelta(seconds=30)
    ) -> None:
        self.calls = 0
        self._core = core
        self._deadline_s = call_deadline.total_seconds()
        self._running: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """Let calls that were given up go on to their end no more."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def send(self, order: Order) -> str:
        frame = order.downlink
        if frame is None:
            raise SendError(
                f"command {order.command_id} has no frame",
                code="INVALID_ARGUMENT",
                certain=True,
                final=EndReason.UNSUPPORTED_COMMAND,
            )
        try:
            return await self._call(
                order.device.address,
                lambda: self._core.enqueue(
                    order.device.address,
                    confirmed=frame.confirmed,
                    f_port=frame.f_port,
                    data=frame.data,
                    expires_at=order.expires_at,
                ),
            )
        except UnknownDeviceError as error:
            raise SendError(
                str(error), code="INTERNAL", certain=True, final=EndReason.UNKNOWN_DEVICE
            ) from error
        except InvalidItemError as error:
            raise SendError(
                str(error), code="INVALID_ARGUMENT", certain=True, final=EndReason.UNSUPPORTED_COMMAND
            ) from error
        except _CallError as error:
            raise SendError(str(error), code=error.code, certain=False) from error

    async def look(self, device: Device) -> list[QueueItem]:
        return [
            QueueItem(id=each.id, data=each.data, f_port=each.f_port, pending=each.is_pending)
            for each in await self._queue(device)
        ]

    async def withdraw(self, device: Device, external_id: str) -> Withdrawal:
        """Take an item back by a flush, if that loses nothing else and the item was never scheduled."""
        eui = device.address
        kept = _why_not_flush(await self._queue(device), external_id)
        if kept is None:
            await self._ask(eui, lambda: self._core.flush(eui))
        return Withdrawal(
            certain=False, details=kept or "taken back; it may have been transmitted just before"
        )

    async def gateways(self) -> Sequence[GatewayState]:
        rows = await self._ask("gateways", self._core.gateways)
        return [GatewayState(id=each.id, grid=each.grid, is_up=each.online) for each in rows]

    async def _queue(self, device: Device) -> list[Item]:
        return await self._ask(device.address, lambda: self._core.queue(device.address))

    async def _ask(self, name: str, effect: Callable[[], T]) -> T:
        try:
            return await self._call(name, effect)
        except _CallError as error:
            raise NetworkError(str(error), code=error.code) from error
        except UnknownDeviceError as error:
            raise NetworkError(str(error), code="NOT_FOUND") from error

    async def _call(self, name: str, effect: Callable[[], T]) -> T:
        self.calls += 1
        call = self._core.weather.call(name)
        task = asyncio.create_task(_perform(call, effect))
        self._running.add(task)
        task.add_done_callback(self._forget)
        try:
            async with asyncio.timeout(self._deadline_s):
                return await asyncio.shield(task)
        except TimeoutError:
            raise _CallError("DEADLINE_EXCEEDED") from None

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # nobody may be left to ask for it


async def _perform(call: Call, effect: Callable[[], T]) -> T:
    await asyncio.sleep(call.before_s)
    if call.fault is Fault.BEFORE:
        raise _CallError("UNAVAILABLE")
    result = effect()
    await asyncio.sleep(call.after_s)
    if call.fault is Fault.AFTER:
        raise _CallError("UNAVAILABLE")
    return result


def _why_not_flush(items: Sequence[Item], external_id: str) -> str | None:
    """Why a flush of this queue would be of no use, or would do harm; None if it can be done."""
    ours = [each for each in items if each.id == external_id]
    if not ours:
        return "the item is no longer queued"
    if len(items) > 1:
        return f"a flush would lose {len(items) - 1} other items of the device"
    if ours[0].is_pending:
        return "the item was transmitted and waits for its ack"
    return None if ours[0].f_cnt_down is None else "the item was given to a gateway"


def to_signals(kind: str, event: Event) -> list[Signal]:
    """An event as the signals that an ingress would have made of its webhook."""
    return parse_event(kind, msgspec.json.encode(event), content_type="application/json")


class SignalCourier:
    """The `deliver` of a simulated ChirpStack that hands signals to `take`, as the weather lets it.

    `lost` counts the events that the weather swallowed.
    """

    def __init__(self, weather: Weather, take: Callable[[list[Signal]], Awaitable[None] | None]) -> None:
        self.lost = 0
        self._weather = weather
        self._take = take
        self._taking: set[asyncio.Future[None]] = set()

    def __call__(self, kind: str, event: Event) -> None:
        delays = self._weather.webhook(event["deviceInfo"]["devEui"])
        if not delays:
            self.lost += 1
            return
        signals = to_signals(kind, event)
        for delay_s in delays:
            asyncio.get_running_loop().call_later(delay_s, self._hand_over, signals)

    def _hand_over(self, signals: list[Signal]) -> None:
        awaitable = self._take(signals)
        if awaitable is not None:
            taking = asyncio.ensure_future(awaitable)
            self._taking.add(taking)
            taking.add_done_callback(self._taking.discard)
