"""The core of a simulated ChirpStack: queues, scheduler, frames on the air, events. It has no sockets.

It does what the real one does where that matters to a client. The server gives ids; a client's own are
ignored. An item becomes pending, and the frame counter moves, when the gateway's tx-ack arrives; an item
that was flushed before that is transmitted all the same, without a word. A pending item blocks its
device. A time-out is told lazily, at the next attempt to send.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from remuda.clock import Clock
from remuda.devices.airtime import max_payload, time_on_air
from remuda.devices.simulator import events
from remuda.devices.simulator.events import Event
from remuda.devices.simulator.gateway import STATS_EVERY, Gateway
from remuda.devices.simulator.meter import Meter
from remuda.devices.simulator.radio import Weather
from remuda.devices.simulator.rounds import Rounds
from remuda.devices.simulator.session import Item, Session
from remuda.errors import ConfigurationError, RemudaError

Deliver = Callable[[str, Event], Awaitable[None] | None]

_BATCH = 100
_DEDUPLICATION_S = 0.2
_RX1 = timedelta(seconds=1)  # a class A device listens this long after its own uplink


class UnknownDeviceError(RemudaError, KeyError):
    """The network server has no such device."""

    def __str__(self) -> str:
        return str(self.args[0])


class InvalidItemError(RemudaError, ValueError):
    """A queue item that the network server does not take."""


class GatewayRow(msgspec.Struct, frozen=True, kw_only=True):
    """What the server tells of a gateway. It is online while its statistics arrive."""

    id: str
    grid: str | None
    last_seen: datetime | None
    online: bool


class SimulatedChirpStack:
    """A network server with its gateways and meters. `start` and `stop` belong around its use.

    deliver            is given every event, as (kind, JSON); what it returns is awaited on the side
    schedule_every     how often class C queues are looked at
    confirmed_timeout  how long a class C device may take to acknowledge
    silence            how long the server waits for a gateway's word on a frame before it sends it again
    report_every       about how often class A meters send by themselves; `class_c_reports`: class C meters
    """

    def __init__(
        self,
        meters: Iterable[Meter],
        gateways: Sequence[Gateway],
        weather: Weather,
        clock: Clock,
        *,
        deliver: Deliver,
        schedule_every: timedelta = timedelta(seconds=1),
        confirmed_timeout: timedelta = timedelta(seconds=5),
        silence: timedelta = timedelta(seconds=5),
        report_every: timedelta | None = timedelta(hours=1),
        class_c_reports: timedelta | None = None,
    ) -> None:
        if not gateways:
            raise ConfigurationError("a network needs at least one gateway")
        self.weather = weather
        self.clock = clock
        self._deliver = deliver
        self._timeout_s = confirmed_timeout.total_seconds()
        self._silence_s = silence.total_seconds()
        self._report_every = {"A": report_every, "C": class_c_reports}
        self._gateways = {each.id: each for each in gateways}
        self._devices = {
            device.eui: device
            for device in (
                Session(meter, self._gateway_of(meter, index), weather) for index, meter in enumerate(meters)
            )
        }
        self._rounds = Rounds[Session](schedule_every.total_seconds(), _BATCH, self._attempt)
        self._deliveries: set[asyncio.Future[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._epoch = 0  # a timer of an earlier start does nothing

    def _gateway_of(self, meter: Meter, index: int) -> Gateway:
        if meter.gateway is None:
            return list(self._gateways.values())[index % len(self._gateways)]
        try:
            return self._gateways[meter.gateway]
        except KeyError:
            raise ConfigurationError(
                f"meter {meter.serial} is reached by gateway {meter.gateway!r}, which is not there"
            ) from None

    def start(self) -> None:
        """Let the world live, in the running loop."""
        self._loop = asyncio.get_running_loop()
        for gateway in self._gateways.values():
            gateway.is_up(self.clock.now())  # its outages count from here
        for device in self._devices.values():
            every = self._report_every[device.meter.device_class]
            if every is not None:
                phase = self.weather.source(f"reports/{device.eui}").random()
                self._later(every.total_seconds() * phase, self._report_and_again, device, every)
            if device.queue:
                self._look_at(device, 0.0)

    def stop(self) -> None:
        """Let it stand still: nothing more is sent, and no event told."""
        self._epoch += 1
        self._loop = None
        self._rounds.clear()

    async def drain(self) -> None:
        """Return when every event that was told so far has been delivered."""
        while self._deliveries:
            await asyncio.wait(self._deliveries)

    # What a client asks

    def enqueue(
        self,
        dev_eui: str,
        *,
        confirmed: bool,
        f_port: int,
        data: bytes,
        expires_at: datetime | None = None,
        flush_queue: bool = False,
    ) -> str:
        """Put an item at the end of a device's queue; the id that the server gives it."""
        if not 1 <= f_port <= 255:
            raise InvalidItemError(f"FPort must be between 1 - 255, not {f_port}")
        device = self._device(dev_eui)
        if flush_queue:
            device.queue = deque(each for each in device.queue if each.is_pending)
        item = Item(id=device.new_id(), data=data, f_port=f_port, confirmed=confirmed, expires_at=expires_at)
        device.queue.append(item)
        if len(device.queue) == 1:  # else the scheduler will come by in any case
            self._look_at(device, 0.0)
        return item.id

    def queue(self, dev_eui: str) -> list[Item]:
        """What waits for a device, in order; copies."""
        return [msgspec.structs.replace(each) for each in self._device(dev_eui).queue]

    def flush(self, dev_eui: str) -> None:
        """Throw away everything that waits for a device, pending or not."""
        self._device(dev_eui).queue.clear()

    def next_f_cnt_down(self, dev_eui: str) -> int:
        """The frame counter of the next downlink: as many as gateways have acknowledged."""
        return self._device(dev_eui).f_cnt_down

    def gateways(self) -> list[GatewayRow]:
        """Every gateway, as the server knows it."""
        now = self.clock.now()
        return [self._gateway_row(each, now) for each in self._gateways.values()]

    def _gateway_row(self, gateway: Gateway, now: datetime) -> GatewayRow:
        seen = gateway.last_seen(now)
        online = seen is not None and now - seen <= 2 * STATS_EVERY
        return GatewayRow(id=gateway.id, grid=gateway.grid, last_seen=seen, online=online)

    def _device(self, dev_eui: str) -> Session:
        device = self._devices.get(dev_eui.lower())
        if device is None:
            raise UnknownDeviceError(f"no device {dev_eui!r}")
        return device

    # The scheduler

    def _look_at(self, device: Session, in_s: float) -> None:
        """Have the scheduler look at a device, if it is one that listens all the time."""
        if self._loop is not None and device.is_class_c:
            self._rounds.plan(device, self._loop.time() + in_s)

    def _attempt(self, device: Session, *, dedup: str = "", sent: datetime | None = None) -> None:
        """Send the next item that can be sent. `sent`: when the uplink ended that opened a class A window."""
        now = asyncio.get_running_loop().time()
        item = self._next_item(device, now, dedup)
        if item is None:
            return
        if item.is_pending:
            if item.times_out_at is not None:
                self._look_at(device, item.times_out_at - now)
            return
        item.f_cnt_down = device.f_cnt_down
        self._look_at(device, self._silence_s)
        start = None if sent is None else sent + _RX1
        self._later(self.weather.delay_s(device.eui), self._at_gateway, device, item, start)

    def _next_item(self, device: Session, now: float, dedup: str) -> Item | None:
        """The head of the queue, after what has timed out, has expired or does not fit was thrown away."""
        while device.queue:
            item = device.queue[0]
            if item.is_pending:
                if item.times_out_at is not None and item.times_out_at > now:
                    return item
                self._tell_ack(device, item, acknowledged=False, dedup=dedup)
            elif item.expires_at is not None and item.expires_at <= self.clock.now():
                self._tell_discarded(device, item, "EXPIRED", "the item has expired")
            elif len(item.data) > max_payload(device.meter.spreading_factor):
                self._tell_discarded(
                    device, item, "DOWNLINK_PAYLOAD_SIZE", "the item exceeds the max. payload size"
                )
            else:
                return item
            device.queue.popleft()
        return None

    # A frame on its way to the meter

    def _at_gateway(self, device: Session, item: Item, start: datetime | None) -> None:
        now = self.clock.now()
        if not device.gateway.is_up(now):
            return  # and nobody says so
        airtime = time_on_air(len(item.data), device.meter.spreading_factor)
        refusal = device.gateway.transmit(now, airtime, at=start)
        back = self.weather.delay_s(device.eui)
        if refusal is not None:
            self._later(back, self._on_refusal, device, refusal)
            return
        # The frame's own counter goes with it: the item may be gone when the gateway's word comes.
        counter = device.f_cnt_down if item.f_cnt_down is None else item.f_cnt_down
        self._later(back, self._on_tx_ack, device, item.id, counter)
        on_air = airtime if start is None else start - now + airtime
        if not self.weather.loses_downlink(device.eui):
            self._later(on_air.total_seconds(), self._at_meter, device, item, counter)

    def _on_refusal(self, device: Session, refusal: str) -> None:
        self._tell(
            "log",
            events.log(
                device.info, self.clock.now(), code="DOWNLINK_GATEWAY", description=refusal, context={}
            ),
        )
        if device.queue:
            self._look_at(device, 0.0)

    def _on_tx_ack(self, device: Session, item_id: str, counter: int) -> None:
        item = device.item(item_id)
        if item is None:
            return  # flushed while it was on its way: no event, and the counter stands still
        device.f_cnt_down = counter + 1
        if not item.confirmed:
            device.queue.remove(item)
        else:
            item.is_pending = True
            if device.is_class_c and self._loop is not None:
                item.times_out_at = self._loop.time() + self._timeout_s
        self._tell(
            "txack",
            events.txack(
                device.info,
                self.clock.now(),
                downlink_id=device.ids.getrandbits(32),
                queue_item=item_id,
                f_cnt_down=counter,
                gateway=device.gateway.id,
                spreading_factor=device.meter.spreading_factor,
            ),
        )
        if device.queue:
            self._look_at(device, self._timeout_s if item.is_pending else 0.0)

    def _at_meter(self, device: Session, item: Item, counter: int) -> None:
        if counter <= device.heard_down:
            return  # a replay, says its MAC layer: the server did not count a frame that was flushed
        device.heard_down = counter
        answer = device.meter.receive(item.data, self.clock.now())
        if answer is None and not item.confirmed:
            return
        delay = self.weather.answer_delay_s(device.eui)
        self._later(delay, self._send_up, device, answer or b"", counter if item.confirmed else None)

    # A frame on its way from the meter

    def report(self, meter: Meter) -> None:
        """Let a meter tell by itself how it is."""
        device = self._device(meter.dev_eui)
        self._send_up(device, meter.report(self.clock.now()), None)

    def join(self, meter: Meter) -> None:
        """Let a meter join the network anew: its counters begin again."""
        device = self._device(meter.dev_eui)
        device.f_cnt_down = device.f_cnt_up = 0
        device.heard_down = -1
        device.dev_addr = f"{device.ids.getrandbits(32):08x}"
        self._tell(
            "join",
            events.join(device.info, self.clock.now(), dedup=device.new_id(), dev_addr=device.dev_addr),
        )

    def _report_and_again(self, device: Session, every: timedelta) -> None:
        self.report(device.meter)
        drift = self.weather.source(f"reports/{device.eui}").uniform(0.98, 1.02)
        self._later(every.total_seconds() * drift, self._report_and_again, device, every)

    def _send_up(self, device: Session, data: bytes, acks: int | None) -> None:
        """One uplink, which carries the meter's bytes and the acknowledgement of a frame."""
        device.f_cnt_up += 1
        airtime = time_on_air(len(data), device.meter.spreading_factor, uplink=True)
        start = self.clock.now()
        self._later(airtime.total_seconds(), self._heard, device, start, data, acks, device.f_cnt_up)

    def _heard(self, device: Session, start: datetime, data: bytes, acks: int | None, f_cnt: int) -> None:
        end = self.clock.now()
        lost = self.weather.loses_uplink(device.eui)
        if lost or not device.gateway.hears(start, end):
            return
        delay = self.weather.delay_s(device.eui) + _DEDUPLICATION_S
        self._later(delay, self._on_uplink, device, end, data, acks, f_cnt)

    def _on_uplink(self, device: Session, sent: datetime, data: bytes, acks: int | None, f_cnt: int) -> None:
        dedup = device.new_id()
        pending = device.queue[0] if device.queue and device.queue[0].is_pending else None
        if pending is not None and acks is not None and pending.f_cnt_down == acks:
            self._tell_ack(device, pending, acknowledged=True, dedup=dedup)
            device.queue.popleft()
            if device.queue:
                self._look_at(device, 0.0)
        if data:
            self._tell_up(device, data, dedup, f_cnt)
        if not device.is_class_c:
            self._attempt(device, dedup=dedup, sent=sent)

    # Events

    def _tell_up(self, device: Session, data: bytes, dedup: str, f_cnt: int) -> None:
        event = events.up(
            device.info,
            self.clock.now(),
            dedup=dedup,
            dev_addr=device.dev_addr,
            spreading_factor=device.meter.spreading_factor,
            f_cnt=f_cnt,
            data=data,
            gateway=device.gateway.id,
            rssi=device.rssi,
            snr=device.snr,
        )
        self._tell("up", event)

    def _tell_ack(self, device: Session, item: Item, *, acknowledged: bool, dedup: str) -> None:
        event = events.ack(
            device.info,
            self.clock.now(),
            dedup=dedup,
            queue_item=item.id,
            acknowledged=acknowledged,
            f_cnt_down=item.f_cnt_down or 0,
        )
        self._tell("ack", event)

    def _tell_discarded(self, device: Session, item: Item, code: str, why: str) -> None:
        description = f"Device queue-item discarded because {why}"
        context = {"queue_item_id": item.id}
        event = events.log(device.info, self.clock.now(), code=code, description=description, context=context)
        self._tell("log", event)

    def _tell(self, kind: str, event: Event) -> None:
        awaitable = self._deliver(kind, event)
        if awaitable is not None:
            delivery = asyncio.ensure_future(awaitable)
            self._deliveries.add(delivery)
            delivery.add_done_callback(self._deliveries.discard)

    def _later(self, delay_s: float, then: Callable[..., None], *args: Any) -> None:
        if self._loop is not None:
            self._loop.call_later(delay_s, self._if_alive, self._epoch, then, args)

    def _if_alive(self, epoch: int, then: Callable[..., None], args: tuple[Any, ...]) -> None:
        if epoch == self._epoch:
            then(*args)
