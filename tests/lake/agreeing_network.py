"""An engine at work beside a test, on a network whose devices do what they are told at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Event, Thread

from remuda.devices.command import Execution, Protocol
from remuda.devices.engine import Engine
from remuda.devices.fleet import Fleet
from remuda.devices.networks.contract import Network, Order, SendError, TaskResult
from remuda.devices.timings import Timings
from remuda.lifecycle import EndReason

SOON = timedelta(milliseconds=50)
QUICK = Timings(polls=((timedelta(days=1), SOON),), sweep=SOON, reap=SOON)
# The one device that the network server does not know.
STRANGER = "4709"


class AgreeingNetwork(Network):
    """Carries out everything."""

    protocol = Protocol.API_V1

    async def send(self, order: Order) -> str:
        if order.device.reference == STRANGER:
            raise SendError(
                "no such device", code="unknown_device", certain=True, final=EndReason.UNKNOWN_DEVICE
            )
        return f"task-{order.device.reference}-{order.type}"

    async def poll(self, order: Order, external_id: str) -> TaskResult:
        return TaskResult(execution=Execution.EXECUTION_SUCCESS)


@contextmanager
def engine_at_work(url: str) -> Iterator[None]:
    """An engine in a thread of its own, until the end of the block."""
    loop = asyncio.new_event_loop()
    started, stopped = Event(), asyncio.Event()

    async def work() -> None:
        async with Fleet(url, timings=QUICK) as fleet, Engine(fleet, [AgreeingNetwork()]):
            started.set()
            await stopped.wait()

    thread = Thread(target=loop.run_until_complete, args=(work(),))
    thread.start()
    assert started.wait(30)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join()
        loop.close()
