"""Calin's vending system, simulated: tasks, the way to the meters, and what is told of it. No sockets.

A task is carried out some time after it was created: rarely within 10 s, sometimes after minutes. A frame
can be lost on its way to the meter, and the answer on its way back; the vendor then tries again. When it
gives up it says "failed", whether the meter did the thing or not: it cannot know.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from typing import Any

import msgspec

from remuda.clock import Clock
from remuda.devices.command import FAMILIES, PHASED, CommandType, Family, Phase
from remuda.devices.networks.calin_words import (
    V1_DATA_ITEMS,
    V2_FAILED,
    V2_PROCESSING,
    V2_PROTOCOL_IDS,
    V2_SUCCEEDED,
    V2_TOKEN_REFUSED,
)
from remuda.devices.simulator.meter import Meter, Reply
from remuda.devices.simulator.radio import Call, Weather
from remuda.errors import RemudaError

_SPREAD = 0.5  # of the logarithm of a task's latency: one in twelve comes in less than half of the usual time
_LONG_TAIL = 0.02
_LONG = (5.0, 30.0)
_FIRST_ID = 3800
_UNITS = {CommandType.READ_VOLTAGE: " V", CommandType.READ_CURRENT: " A", CommandType.READ_POWER: " kW"}
_V2_NAMES = {
    CommandType.READ_CREDIT: "Current Credit Balance",
    CommandType.READ_VOLTAGE: "Phase-A Voltage",
    CommandType.READ_CURRENT: "Phase-A Current(A)",
    CommandType.READ_POWER: "Power",
    CommandType.READ_POWER_LIMIT: "Maximum power threshold",
    CommandType.READ_VERSION: "Meter Firmware Version",
    CommandType.READ_DATE: "Clock(time)",
    CommandType.SET_DATE: "Clock(time)",
    CommandType.TURN_ON: "Relay On/Off",
    CommandType.TURN_OFF: "Relay On/Off",
}


class RefusedError(RemudaError):
    """The vendor makes no task of what it was asked; the text is the reason that it gives."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a task asks of a meter. Of a token the vendor does not know what it is for."""

    type: CommandType
    data: Any = None
    phase: Phase | None = None


class VendorTask(msgspec.Struct, kw_only=True):
    """A task and how far it is. `status` is V2's; `relay_on` is the relay's state when it was done."""

    id: int
    meter: str
    asked: Asked
    created_at: datetime
    updated_at: datetime
    status: int = V2_PROCESSING
    value: Any = None
    relay_on: bool = True


class SimulatedCalin:
    """The vendor's system. Everything that happens by chance comes from the weather's seed.

    latency      the usual time until a task is carried out, and between the vendor's own tries
    tries        how often the vendor sends a frame that is not answered
    html_errors  the share of failing calls that are answered with an HTML page; the others are cut off

    >>> calin = SimulatedCalin({"47003333771": meter}, clock, weather=Weather(7, uplink_loss=0.1))
    >>> task_id = calin.create_task("47003333771", Asked(type=CommandType.TURN_OFF))
    """

    def __init__(
        self,
        meters: Mapping[str, Meter],
        clock: Clock,
        *,
        weather: Weather | None = None,
        latency: timedelta = timedelta(seconds=20),
        tries: int = 3,
        html_errors: float = 0.5,
        company: str = "Acme",
        user: str = "admin",
        password: str = "secret",  # noqa: S107  # of a simulation
    ) -> None:
        self.meters = meters
        self.clock = clock
        self.weather = weather or Weather()
        self.company = company
        self.user = user
        self.password = password
        self.tasks: dict[int, VendorTask] = {}
        self._latency_s = latency.total_seconds()
        self._tries = tries
        self._html_errors = html_errors
        self._offline: dict[str, asyncio.Event] = {}
        self._spent: set[tuple[str, str]] = set()
        self._running: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Stop everything that is under way; tasks stay as they are."""
        running = list(self._running)
        for each in running:
            each.cancel()
        if running:
            await asyncio.wait(running)

    def set_offline(self, serial: str) -> None:
        """Cut a meter off: its tasks stay in processing."""
        self._offline.setdefault(serial, asyncio.Event())

    def set_online(self, serial: str) -> None:
        """Bring a meter back: its tasks go on."""
        back = self._offline.pop(serial, None)
        if back is not None:
            back.set()

    def call(self, name: str) -> tuple[Call, bool]:
        """What becomes of the next call made for `name`, and whether a failure of it is an HTML page."""
        is_html = self.weather.source(f"html/{name}").random() < self._html_errors
        return self.weather.call(name), is_html

    def create_task(self, serial: str, asked: Asked) -> int:
        """Take a task on: its id. `RefusedError` for an unknown meter, or a token that was used."""
        if serial not in self.meters:
            raise RefusedError(f"Meter {serial} does not exist")
        if (serial, str(asked.data)) in self._spent:
            raise RefusedError("Token has been used")
        now = self.clock.now()
        task = VendorTask(
            id=_FIRST_ID + len(self.tasks), meter=serial, asked=asked, created_at=now, updated_at=now
        )
        self.tasks[task.id] = task
        running = asyncio.get_running_loop().create_task(self._carry_out(task), name=f"calin-task-{task.id}")
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return task.id

    def result(self, task_id: int) -> VendorTask | None:
        """The task of that id; None where there is none."""
        return self.tasks.get(task_id)

    async def _carry_out(self, task: VendorTask) -> None:
        source = self.weather.source(f"latency/{task.meter}")
        await asyncio.sleep(self._latency(source))
        for number in range(1, self._tries + 1):
            while (back := self._offline.get(task.meter)) is not None:
                await back.wait()
            reply = self._transmit(task)
            if reply is not None:
                self._settle(task, _status(task, reply, is_first=number == 1), reply.data)
                return
            await asyncio.sleep(self._latency(source))
        self._settle(task, V2_FAILED, None)

    def _latency(self, source: random.Random) -> float:
        usual = self._latency_s * math.exp(source.gauss(0.0, _SPREAD))
        tail, length = source.random(), source.uniform(*_LONG)
        return usual * length if tail < _LONG_TAIL else usual

    def _transmit(self, task: VendorTask) -> Reply | None:
        """The meter's answer; None where a frame was lost, there or back."""
        if self.weather.loses_downlink(task.meter):
            return None
        asked, meter = task.asked, self.meters[task.meter]
        reply = meter.carry_out(asked.type, asked.data, asked.phase, self.clock.now())
        task.relay_on = meter.relay_on
        return None if self.weather.loses_uplink(task.meter) else reply

    def _settle(self, task: VendorTask, status: int, value: Any) -> None:
        task.status, task.value, task.updated_at = status, value, self.clock.now()
        if FAMILIES[task.asked.type] is Family.TOKEN and status == V2_SUCCEEDED:
            self._spent.add((task.meter, task.asked.data))


def _status(task: VendorTask, reply: Reply, *, is_first: bool) -> int:
    if reply.ok:
        return V2_SUCCEEDED
    if FAMILIES[task.asked.type] is not Family.TOKEN:
        return V2_FAILED
    # "Used" as the answer to a repeated frame: the first one may have used it. The vendor cannot tell.
    return V2_TOKEN_REFUSED if is_first or reply.code != "TOKEN_USED" else V2_FAILED


def usual_weather(seed: int | str) -> Weather:
    """What the vendor is like on most days: slow, now and then out of order, over a lossy radio."""
    return Weather(
        seed,
        downlink_loss=0.1,
        uplink_loss=0.1,
        accept_delay=(timedelta(seconds=2), timedelta(seconds=30)),
        slow_calls=0.02,
        failures_before=0.02,
        failures_after=0.02,
    )


def read_v1(family: Family, body: Mapping[str, Any]) -> Asked:
    """What a V1 create asks; `RefusedError` for what it does not know."""
    if family is Family.TOKEN:
        return Asked(type=CommandType.DELIVER_PREEXISTING_TOKEN, data=str(body.get("Token")))
    item = str(body.get("DataItem"))
    for kind, name in V1_DATA_ITEMS.items():
        if FAMILIES[kind] is not family:
            continue
        if item == name:
            return Asked(type=kind, data=_v1_date(body) if family is Family.WRITE else None)
        if kind in PHASED and item[:-1] == name and item[-1] in Phase.__members__:
            return Asked(type=kind, phase=Phase(item[-1]))
    raise RefusedError(f"DataItem {item} error")


def _v1_date(body: Mapping[str, Any]) -> str:
    text = str(body.get("Data"))
    try:
        if len(text) == 8 and text[6:] in {f"0{day}" for day in range(7)}:
            return date(2000 + int(text[:2]), int(text[2:4]), int(text[4:6])).isoformat()
    except ValueError:
        pass  # said below
    raise RefusedError(f"Data {text} error")


def read_v2(family: Family, item: Mapping[str, Any]) -> Asked:
    """What one item of a V2 create asks; `RefusedError` for what it does not know."""
    if family is Family.TOKEN and item.get("protocolId") == 30000:
        return Asked(type=CommandType.DELIVER_PREEXISTING_TOKEN, data=str(item.get("data")))
    for kind, protocol_id in V2_PROTOCOL_IDS.items():
        if FAMILIES[kind] is family and item.get("protocolId") == protocol_id:
            return Asked(type=kind, data=_v2_date(item) if family is Family.WRITE else None)
    raise RefusedError("protocolId error")


def _v2_date(item: Mapping[str, Any]) -> str:
    try:
        return datetime.strptime(str(item.get("data")), "%Y-%m-%d %H:%M:%S").isoformat()  # noqa: DTZ007
    except ValueError:
        raise RefusedError("data error") from None


def v1_result(task: VendorTask) -> dict[str, Any]:
    """A task as V1 tells it."""
    asked = task.asked
    status = {V2_PROCESSING: "unknown", V2_SUCCEEDED: "True"}.get(task.status, "False")
    item = (
        "Token" if FAMILIES[asked.type] is Family.TOKEN else V1_DATA_ITEMS[asked.type] + (asked.phase or "")
    )
    return {"TaskNo": str(task.id), "Status": status, "DataItem": item, "Data": _v1_data(task)}


def _v1_data(task: VendorTask) -> str:
    if task.value is None:
        return ""
    if task.asked.type is CommandType.READ_CREDIT:
        return f"{task.value},{'ON' if task.relay_on else 'OFF'}"
    if task.asked.type is CommandType.READ_DATE:
        shown = date.fromisoformat(task.value)
        return f"{shown:%y-%m-%d} {shown.isoweekday() % 7}"
    return f"{task.value}{_UNITS.get(task.asked.type, '')}"


def v2_row(task: VendorTask) -> dict[str, Any]:
    """A task as V2 tells it."""
    value = task.value
    if value is not None and task.asked.type is CommandType.READ_DATE:
        value = f"{value} 00:00:00"
    return {
        "id": task.id,
        "meterId": task.meter,
        "name": _V2_NAMES.get(task.asked.type, "Token"),
        "data": None if value is None else str(value),
        "status": task.status,
        "createDate": f"{task.created_at:%Y-%m-%d %H:%M:%S}",
    }
