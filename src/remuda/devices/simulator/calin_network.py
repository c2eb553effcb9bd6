"""Calin's vending system inside the process: a network without sockets, for virtual time.

It says what `CalinV1` and `CalinV2` say in the same cases, after the same delays.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from remuda.devices.command import FAMILIES, Execution, Protocol
from remuda.devices.networks.calin_words import (
    V1_REFUSED,
    V2_PROCESSING,
    V2_SUCCEEDED,
    V2_TOKEN_REFUSED,
    reading_of,
    refusal,
    v1_words,
    v2_words,
)
from remuda.devices.networks.contract import Network, NetworkError, Order, SendError, TaskResult
from remuda.devices.simulator.calin import (
    Asked,
    RefusedError,
    SimulatedCalin,
    VendorTask,
    read_v1,
    read_v2,
    v1_result,
    v2_row,
)
from remuda.devices.simulator.radio import Fault
from remuda.errors import ConfigurationError

_LOST = "connection_lost"


class InProcessCalin(Network):
    """The adapter to a simulated vendor, by its V1 or its V2."""

    def __init__(
        self,
        calin: SimulatedCalin,
        protocol: Protocol,
        *,
        call_deadline: timedelta = timedelta(seconds=45),
    ) -> None:
        if protocol.is_push:
            raise ConfigurationError(f"Calin is reached by API_V1 or API_V2, not by {protocol}")
        self.protocol = protocol
        self.call_deadline = call_deadline
        self._calin = calin

    async def send(self, order: Order) -> str:
        asked = self._asked(order)
        call, is_html = self._calin.call(f"create/{order.device.reference}")
        try:
            async with asyncio.timeout(self.call_deadline.total_seconds()):
                await asyncio.sleep(call.before_s)
                _check_not(Fault.BEFORE, call.fault, is_html=is_html)
                task_id = self._create(order, asked)
                await asyncio.sleep(call.after_s)
                _check_not(Fault.AFTER, call.fault, is_html=is_html)
        except TimeoutError as error:
            raise SendError("the create was not answered in time", code="timeout", certain=False) from error
        except NetworkError as error:
            raise SendError(str(error), code=error.code, certain=False) from error
        return str(task_id)

    async def poll(self, order: Order, external_id: str) -> TaskResult | None:
        call, is_html = self._calin.call(f"poll/{external_id}")
        try:
            async with asyncio.timeout(self.call_deadline.total_seconds()):
                await asyncio.sleep(call.before_s)
                task = self._calin.result(int(external_id)) if external_id.isdecimal() else None
                await asyncio.sleep(call.after_s)
        except TimeoutError as error:
            raise NetworkError("the poll was not answered in time", code="timeout") from error
        if call.fault is not None:
            _check_not(call.fault, call.fault, is_html=is_html)
        if task is None:
            raise NetworkError(f"the vendor knows no task {external_id}", code="task_not_found")
        return self._end_of(order, task)

    def _asked(self, order: Order) -> Asked:
        """What the vendor reads in the words that the adapter would write."""
        now, family = self._calin.clock.now(), FAMILIES[order.type]
        if self.protocol is Protocol.API_V1:
            return read_v1(family, v1_words(order, now))
        return read_v2(family, v2_words(order, now))

    def _create(self, order: Order, asked: Asked) -> int:
        try:
            return self._calin.create_task(order.device.reference, asked)
        except RefusedError as error:
            code = V1_REFUSED if self.protocol is Protocol.API_V1 else "1"
            raise refusal(order, code, str(error)) from error

    def _end_of(self, order: Order, task: VendorTask) -> TaskResult | None:
        if task.status == V2_PROCESSING:
            return None
        is_v1 = self.protocol is Protocol.API_V1
        if task.status == V2_SUCCEEDED:
            data = v1_result(task)["Data"] if is_v1 else v2_row(task)["data"]
            return TaskResult(execution=Execution.EXECUTION_SUCCESS, data=reading_of(order, data))
        return TaskResult(
            execution=Execution.EXECUTION_FAILURE,
            refused=not is_v1 and task.status == V2_TOKEN_REFUSED,
            code="False" if is_v1 else str(task.status),
        )


def _check_not(fault: Fault, happened: Fault | None, *, is_html: bool) -> None:
    if fault is happened:
        raise NetworkError("the call failed", code="http_502" if is_html else _LOST)
