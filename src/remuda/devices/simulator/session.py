"""A device as a network server knows it: its queue, its counters, its name in events."""

from __future__ import annotations

import uuid
from collections import deque
from datetime import datetime

import msgspec

from remuda.devices.simulator import events
from remuda.devices.simulator.gateway import Gateway
from remuda.devices.simulator.meter import Meter
from remuda.devices.simulator.radio import Weather


class Item(msgspec.Struct, kw_only=True):
    """An item in a device's queue. `f_cnt_down` is set when it is scheduled for the first time."""

    id: str
    data: bytes
    f_port: int
    confirmed: bool
    expires_at: datetime | None = None
    is_pending: bool = False
    f_cnt_down: int | None = None
    times_out_at: float | None = None  # of the loop's time; None for class A, which waits for an uplink


class Session:
    """What a network server keeps of a device, and the gateway that reaches it."""

    def __init__(self, meter: Meter, gateway: Gateway, weather: Weather) -> None:
        self.meter = meter
        self.eui = meter.dev_eui
        self.gateway = gateway
        self.info = events.device_info(meter, gateway.grid)
        self.queue: deque[Item] = deque()
        self.ids = weather.source(f"ids/{self.eui}")
        self.f_cnt_down = self.ids.randint(100, 5000)  # its session is not new
        self.heard_down = self.f_cnt_down - 1  # the device's side: what is not above this is a replay
        self.f_cnt_up = self.ids.randint(100, 5000)
        self.dev_addr = f"{self.ids.getrandbits(32):08x}"
        self.rssi = self.ids.randint(-118, -80)
        self.snr = round(self.ids.uniform(-8.0, 10.0), 1)

    @property
    def is_class_c(self) -> bool:
        return self.meter.device_class == "C"

    def new_id(self) -> str:
        """A UUID that nobody else has, the same in each run of one seed."""
        return str(uuid.UUID(int=self.ids.getrandbits(128), version=4))

    def item(self, item_id: str) -> Item | None:
        """The queue's item of that id; None when it is gone."""
        return next((each for each in self.queue if each.id == item_id), None)
