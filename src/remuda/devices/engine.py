"""Engine: carries commands to their devices. Any number of engines work on one store side by side.

All state is in the store. An engine claims commands from their lanes and hands them to the networks,
listens to signals, polls tasks, and looks after every deadline; what an engine that dies leaves
behind, another one finds when its deadline passes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Self

from remuda.backoff import Backoff
from remuda.devices.airtime import DutyCycle
from remuda.devices.bell import Bell
from remuda.devices.calling import Caller
from remuda.devices.command import Protocol
from remuda.devices.fleet import Fleet
from remuda.devices.gatekeeping import Gatekeeper
from remuda.devices.happenings import Dispatched, Happening, TimePassed
from remuda.devices.ledger import Upshot, opened_all
from remuda.devices.listening import TAKEN_AT_ONCE, Listener, keep
from remuda.devices.networks.contract import Network
from remuda.devices.networks.signals import Signal
from remuda.devices.publishing import Publisher, Subscriber
from remuda.devices.timings import Timings
from remuda.errors import ConfigurationError, StoreError
from remuda.stores.commands import Arrival, Home, Pace

_log = logging.getLogger("remuda.devices")

_DUE_AT_ONCE = 500
_CLAIMED_AT_ONCE = 200
_SETTLED_AT_ONCE = 500
_REAPED = (Home.TO_NS, Home.TO_GATEWAY, Home.TO_DEVICE, Home.RETRY)
_POLLED = (Home.TASK_V1, Home.TASK_V2)
_IN_USE = 0.97  # of a duty cycle: exactly at the share, an hour holds one frame too many
_PRUNE_EVERY = timedelta(minutes=5)
_PRUNED_AT_ONCE = 1_000


_LOOPS = ("dispatch", "settle", "listen", "reap", "poll", "publish", "gateways", "prune")
_ANSWERS = {Arrival.LANE: "dispatch", Arrival.SIGNAL: "listen", Arrival.END: "publish"}


class Engine:
    """One replica.

    networks   the adapter for each protocol; commands of other protocols stay in their lanes
    airtime    share out the air time of each gateway instead of locking each lane for a fixed while;
               then give the fleet `lanes_by_gateway=True`
    max_calls  calls to network servers side by side

    >>> engine = Engine(fleet, [ChirpStack(address="…", token=…), CalinV1(base_url="…", …)])
    >>> engine.subscribe(lambda command: print(command.id, command.status, command.outcome))
    >>> await engine.run()
    """

    def __init__(
        self,
        fleet: Fleet,
        networks: Iterable[Network],
        *,
        airtime: DutyCycle | None = None,
        max_calls: int = 256,
        gateways_every: timedelta | None = timedelta(seconds=30),
        default_type: str = "calin-meter",
    ) -> None:
        self.fleet = fleet
        self.networks: Mapping[Protocol, Network] = {each.protocol: each for each in networks}
        if not self.networks:
            raise ConfigurationError("an engine needs at least one network")
        if max_calls < 1:
            raise ConfigurationError(f"max_calls must be at least 1, not {max_calls}")
        self._store, self._ledger, self._timings = fleet.store, fleet.ledger, fleet.timings
        self._paces = list(_paces(self._timings, self.networks, airtime))
        self._max_calls = max_calls
        self._gateways_every = gateways_every
        self._told: list[tuple[str, Happening]] = []
        self._bells = {name: Bell() for name in _LOOPS}
        self._caller = Caller(self.networks, fleet.codecs, self._timings, store=self._store, tell=self._tell)
        self._publisher = Publisher(self._store)
        self._gatekeeper = Gatekeeper(self._store, self.networks.values())
        self._listener = Listener(
            self._ledger, fleet.codecs, report=self._publisher.report, default_type=default_type
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._store.on_arrival(self._on_arrival)

    # -- what a program does with it

    def subscribe(self, subscriber: Subscriber) -> None:
        """From now on be told of every command that ends (at least once), and of reports."""
        self._publisher.subscribe(subscriber)

    async def keep(self, told: Sequence[Signal]) -> None:
        """Put signals of a network server into the inbox: what an ingress calls before it answers."""
        await keep(self._ledger, told)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def run(self) -> None:
        """Work until `stop` is called."""
        await self.start()
        try:
            await self._stopping.wait()
        finally:
            await self.stop()

    async def start(self) -> None:
        """Begin to work in the background."""
        await self._store.open()
        for network in self.networks.values():
            await network.open()
        loops: list[tuple[str, Callable[[], Awaitable[float]]]] = [
            ("dispatch", self._dispatch),
            ("settle", self._settle),
            ("listen", self._listen),
            ("reap", self._reap),
            ("publish", self._publish),
            ("prune", self._prune),
        ]
        if any(not each.is_push for each in self.networks):
            loops.append(("poll", self._poll))
        if self._gateways_every is not None:
            loops.append(("gateways", self._look_at_gateways))
        self._tasks = [asyncio.create_task(self._loop(name, step), name=name) for name, step in loops]

    async def stop(self, grace: timedelta = timedelta(seconds=10)) -> None:
        """Claim nothing more, wait for the calls that run, write down what they told, and end."""
        if self._stopping.is_set() and not self._tasks:
            return
        self._stopping.set()
        await self._caller.finish(grace.total_seconds())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        with contextlib.suppress(StoreError):
            # What is not written now is found by another engine, or by the next run, at its deadline.
            while self._told:
                await self._settle_told()
        for network in self.networks.values():
            await network.close()

    # -- loops

    def _on_arrival(self, what: Arrival) -> None:
        self._bells[_ANSWERS[what]].ring()

    async def _loop(self, name: str, step: Callable[[], Awaitable[float]]) -> None:
        """Take one step after another. A step says how long to rest, at most, before the next."""
        backoff = Backoff(f"the device engine cannot {name}", _log)
        bell = self._bells[name]
        while True:
            try:
                rest = await step()
            except StoreError as error:
                await backoff.wait(error)
                continue
            except Exception:  # noqa: BLE001  # a subscriber's or an adapter's mistake must not end a loop
                _log.exception("the device engine failed to %s, and goes on", name)
                await asyncio.sleep(1)
                continue
            backoff.over()
            if rest > 0:
                await bell.wait(rest)
            else:
                await asyncio.sleep(0)

    async def _dispatch(self) -> float:
        """Claim what may leave its lane, write that it is about to be sent, then send it."""
        room = min(self._max_calls - self._caller.running, _CLAIMED_AT_ONCE)
        rest = self._timings.reap.total_seconds()
        if room <= 0 or self._stopping.is_set():
            return rest
        claimed = await self._store.claim(self._paces, limit=room, hold=self._timings.accept)
        if claimed.commands:
            known = {each.id: each for each in opened_all(claimed.commands)}
            upshots = await self._ledger.happen({each: [Dispatched()] for each in known}, known)
            self._carry_out(upshots)
            if len(claimed.commands) == room:
                return 0
        if claimed.next_at is not None:
            rest = min(rest, max(0.0, (claimed.next_at - self._store.now()).total_seconds()))
        return rest

    def _carry_out(self, upshots: Iterable[Upshot]) -> None:
        for upshot in upshots:
            for effect in upshot.effects:
                self._caller.start(upshot.command, effect)

    def _tell(self, command_id: str, happening: Happening) -> None:
        self._told.append((command_id, happening))
        self._bells["settle"].ring()

    async def _settle(self) -> float:
        """Write down what calls have told, as many together as have come in meanwhile."""
        await self._settle_told()
        return 0 if self._told else 3600

    async def _settle_told(self) -> None:
        told, self._told = self._told[:_SETTLED_AT_ONCE], self._told[_SETTLED_AT_ONCE:]
        happenings: dict[str, list[Happening]] = {}
        for command_id, happening in told:
            happenings.setdefault(command_id, []).append(happening)
        if not happenings:
            return
        try:
            upshots = await self._ledger.happen(happenings)
        except BaseException:
            self._told = told + self._told
            raise
        self._carry_out(upshots)
        self._bells["dispatch"].ring()  # calls have ended: there is room for more

    async def _listen(self) -> float:
        heard = await self._listener.listen()
        self._carry_out(heard.upshots)
        if heard.taken >= TAKEN_AT_ONCE:
            return 0
        return heard.look_again_in or self._timings.reap.total_seconds()

    async def _reap(self) -> float:
        """Look after every deadline that has passed, then let what came free be dispatched."""
        await self._look_at_due(_REAPED)
        self._bells["dispatch"].ring()
        return self._timings.reap.total_seconds()

    async def _poll(self) -> float:
        await self._look_at_due(_POLLED)
        return self._timings.sweep.total_seconds()

    async def _look_at_due(self, homes: Sequence[Home]) -> None:
        while True:
            # What it asks of a network server has an answer, or none, by then.
            due = await self._store.due(homes, limit=_DUE_AT_ONCE, hold=self._timings.call)
            known = {each.id: each for each in opened_all(due)}
            upshots = await self._ledger.happen({each: [TimePassed()] for each in known}, known)
            self._carry_out(upshots)
            if len(due) < _DUE_AT_ONCE:
                return

    async def _publish(self) -> float:
        published = await self._publisher.publish()
        return 0 if published else self._timings.reap.total_seconds()

    async def _look_at_gateways(self) -> float:
        await self._gatekeeper.look()
        return self._gateways_every.total_seconds() if self._gateways_every is not None else 3600

    async def _prune(self) -> float:
        before = self._store.now() - self._timings.keep_ended
        while await self._store.prune(ended_before=before, limit=_PRUNED_AT_ONCE) >= _PRUNED_AT_ONCE:
            pass
        return _PRUNE_EVERY.total_seconds()


def _paces(
    timings: Timings, networks: Mapping[Protocol, Network], airtime: DutyCycle | None
) -> Iterable[Pace]:
    """How quickly the lanes of each kind may be emptied. Lanes that no network of ours serves stay."""
    if any(each.is_push for each in networks):
        for prefix in ("lorawan_gateway:", "lorawan_network:"):
            if airtime is None:
                yield Pace(prefix=prefix, every=timings.lock)
            else:
                yield Pace(prefix=prefix, duty=airtime.share * _IN_USE, burst=airtime.burst)
    if any(not each.is_push for each in networks):
        yield Pace(prefix="gateway:", slots=timings.per_gateway, slot_for=timings.slot_for)
