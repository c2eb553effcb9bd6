"""A whole world from a few options: meters over several protocols, gateways, weather, network servers.

The same options give the same world. In virtual time its networks are inside the process
(`networks`, `connect`); in real time sockets stand before `chirpstack` and `calin`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta

import msgspec

from remuda.clock import Clock
from remuda.devices.command import FAMILIES, Device, Family, Protocol
from remuda.devices.command import Gateway as NearGateway
from remuda.devices.networks.contract import Network
from remuda.devices.networks.signals import Signal
from remuda.devices.simulator.calin import SimulatedCalin
from remuda.devices.simulator.calin_network import InProcessCalin
from remuda.devices.simulator.chirpstack import Deliver, SimulatedChirpStack
from remuda.devices.simulator.chirpstack_network import InProcessChirpStack, SignalCourier
from remuda.devices.simulator.events import Event
from remuda.devices.simulator.gateway import Gateway, Outages
from remuda.devices.simulator.meter import Deed, Meter
from remuda.devices.simulator.radio import Weather
from remuda.errors import ConfigurationError

_FIRST_SERIAL = 47_003_000_000
_METERS_PER_GATEWAY = 150
_METERS_PER_CONCENTRATOR = 40
# Of a hundred meters, how many are reached at each spreading factor, and the SNR that goes with it.
_REACH = ((7, 45, 7.0), (8, 25, 2.0), (9, 20, -2.0), (10, 10, -4.0))


class WorldOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a world is made of.

    meters     how many there are in all; `api_v1` and `api_v2` are the shares reached by Calin's APIs
    gateways   of LoRaWAN; None: one for every 150 meters
    loss       the share of frames that the air swallows on each leg. The other troubles (webhooks that are
               lost, doubled or out of order, calls that fail or take 37 s) grow with it: 0 is a clear day
    refuse     the share of tokens and switchings that a meter refuses by chance
    outages    let gateways fail now and then
    slow_calin  a call to Calin takes seconds, as it does in life; else as long as one to ChirpStack
    """

    meters: int = 100
    seed: int = 0
    loss: float = 0.1
    api_v1: float = 0.1
    api_v2: float = 0.1
    gateways: int | None = None
    refuse: float = 0.02
    outages: bool = False
    calin_latency: timedelta = timedelta(seconds=20)
    slow_calin: bool = True

    def __post_init__(self) -> None:
        if self.meters < 1:
            raise ConfigurationError(f"a world has at least 1 meter, not {self.meters}")
        if not 0.0 <= self.loss <= 1.0:
            raise ConfigurationError(f"loss is a share from 0 to 1, not {self.loss}")
        if self.api_v1 < 0 or self.api_v2 < 0 or self.api_v1 + self.api_v2 > 1:
            raise ConfigurationError(
                f"api_v1 ({self.api_v1}) and api_v2 ({self.api_v2}) are shares, together at most 1"
            )
        if self.gateways is not None and self.gateways < 1:
            raise ConfigurationError(f"a world has at least 1 gateway, not {self.gateways}")


def weather_of(seed: int | str, loss: float, *, slow: bool = False) -> Weather:
    """The weather that goes with a loss; `slow`: calls take seconds, as Calin's do."""
    least, most = (timedelta(seconds=2), timedelta(seconds=30)) if slow else _QUICK
    return Weather(
        seed,
        downlink_loss=loss,
        uplink_loss=loss,
        webhook_loss=loss / 5,
        webhook_duplicates=loss / 2,
        webhook_reorder=loss / 2,
        slow_calls=loss / 15,
        failures_before=loss / 8,
        failures_after=loss / 8,
        accept_delay=(least, most),
    )


_QUICK = (timedelta(milliseconds=20), timedelta(milliseconds=300))


class Deeds(msgspec.Struct, frozen=True, kw_only=True):
    """What all meters of a world have done so far."""

    reads: int = 0
    switched: int = 0
    written: int = 0
    tokens: int = 0
    refused: int = 0


class World:
    """Meters and the network servers that reach them. `start` and `stop` belong around its use.

    meters   by serial; the truth of what they did is in their `deeds`
    devices  by serial: where a command for the meter goes
    grids    by serial, for those of LoRaWAN

    >>> world = World(WorldOptions(meters=600, seed=7), clock)
    >>> engine = Engine(fleet, world.networks())
    >>> world.connect(engine.keep)
    >>> world.start()
    """

    def __init__(self, options: WorldOptions, clock: Clock) -> None:
        self.options = options
        self.clock = clock
        self.weather = weather_of(options.seed, options.loss)
        self.meters: dict[str, Meter] = {}
        self.devices: dict[str, Device] = {}
        self.grids: dict[str, str] = {}
        pushed, v1, v2 = _split(options)
        self.gateways = self._make_gateways(pushed)
        self._make_pushed(pushed)
        self._make_pulled(v1, Protocol.API_V1)
        self._make_pulled(v2, Protocol.API_V2)
        self.courier: SignalCourier | None = None
        self._deliver: Deliver | None = None
        self.chirpstack = SimulatedChirpStack(
            [each for each in self.meters.values() if self._protocol(each).is_push],
            self.gateways,
            self.weather,
            clock,
            deliver=self._tell,
        )
        self.calin = SimulatedCalin(
            {serial: each for serial, each in self.meters.items() if not self._protocol(each).is_push},
            clock,
            weather=weather_of(f"{options.seed}/calin", options.loss, slow=options.slow_calin),
            latency=options.calin_latency,
        )

    # -- use

    def protocols(self) -> list[Protocol]:
        """Those by which at least one meter is reached."""
        found = {each.protocol for each in self.devices.values()}
        return [each for each in Protocol if each in found]

    def networks(self) -> list[Network]:
        """The adapters to its network servers, inside the process."""
        return [
            InProcessChirpStack(self.chirpstack) if each.is_push else InProcessCalin(self.calin, each)
            for each in self.protocols()
        ]

    def connect(self, take: Callable[[list[Signal]], Awaitable[None] | None]) -> None:
        """Hand what ChirpStack tells to `take` (an engine's `keep`), as the weather lets it."""
        self.courier = SignalCourier(self.weather, take)
        self._deliver = self.courier

    def deliver_by(self, deliver: Deliver) -> None:
        """Have ChirpStack's events delivered by something else: a `WebhookSender`."""
        self._deliver = deliver

    def start(self) -> None:
        """Let the world live, in the running loop."""
        self.chirpstack.start()

    async def stop(self) -> None:
        """Let it stand still."""
        self.chirpstack.stop()
        await self.calin.close()

    def deeds(self) -> Deeds:
        """What the meters have done so far, in numbers."""
        counts: Counter[str] = Counter()
        for meter in self.meters.values():
            counts.update(_kind(each) for each in meter.deeds)
        return Deeds(**{field: counts[field] for field in Deeds.__struct_fields__})

    def of(self, protocol: Protocol) -> list[Device]:
        """The devices that are reached by a protocol, in order."""
        return [each for each in self.devices.values() if each.protocol is protocol]

    # -- making

    def _make_gateways(self, pushed: int) -> list[Gateway]:
        count = self.options.gateways or max(1, round(pushed / _METERS_PER_GATEWAY))
        return [
            Gateway(
                f"0016c001f15{number:05x}",
                f"grid-{number + 1}",
                rng=self.weather.source(f"gateway/{number}"),
                outages=Outages() if self.options.outages else None,
            )
            for number in range(count)
        ]

    def _make_pushed(self, count: int) -> None:
        for number in range(count):
            gateway = self.gateways[number % len(self.gateways)]
            factor, snr = _reach(self.weather.source("reach").random())
            meter = self._make_meter(gateway.id, factor)
            self.grids[meter.serial] = gateway.grid or ""
            self.devices[meter.serial] = Device(
                reference=meter.serial,
                protocol=Protocol.LORAWAN,
                gateway=NearGateway(id=gateway.id, snr=snr),
                spreading_factor=factor,
            )

    def _make_pulled(self, count: int, protocol: Protocol) -> None:
        concentrators = max(1, round(count / _METERS_PER_CONCENTRATOR))
        for number in range(count):
            meter = self._make_meter(None, 9)
            name = f"{protocol.value.removeprefix('API_').lower()}-concentrator-{number % concentrators + 1}"
            self.devices[meter.serial] = Device(
                reference=meter.serial, protocol=protocol, gateway=NearGateway(id=name)
            )

    def _make_meter(self, gateway: str | None, factor: int) -> Meter:
        serial = str(_FIRST_SERIAL + len(self.meters))
        source = self.weather.source(f"meter/{serial}")
        credit = round(source.uniform(5.0, 80.0), 1)
        meter = self.meters[serial] = Meter(
            serial,
            rng=source,
            refuse=self.options.refuse,
            credit_kwh=credit,
            gateway=gateway,
            spreading_factor=factor,
        )
        return meter

    def _protocol(self, meter: Meter) -> Protocol:
        return self.devices[meter.serial].protocol

    def _tell(self, kind: str, event: Event) -> Awaitable[None] | None:
        return None if self._deliver is None else self._deliver(kind, event)


def _split(options: WorldOptions) -> tuple[int, int, int]:
    v1, v2 = round(options.meters * options.api_v1), round(options.meters * options.api_v2)
    v2 = min(v2, options.meters - v1)
    return options.meters - v1 - v2, v1, v2


def _reach(draw: float) -> tuple[int, float]:
    for factor, share, snr in _REACH:
        draw -= share / 100
        if draw < 0:
            return factor, snr
    return _REACH[-1][0], _REACH[-1][2]


_KINDS: Mapping[Family, str] = {
    Family.READ: "reads",
    Family.CONTROL: "switched",
    Family.WRITE: "written",
    Family.TOKEN: "tokens",
}


def _kind(deed: Deed) -> str:
    if not deed.accepted or deed.type is None:
        return "refused"
    return _KINDS[FAMILIES[deed.type]]
