"""Lanes are held while their gateway is down: nothing piles up at the network server meanwhile."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence

from remuda.devices.command import Protocol
from remuda.devices.networks.contract import GatewayState, Network, NetworkError
from remuda.stores.commands import CommandStore

_log = logging.getLogger("remuda.devices")

_MISSED_IN_A_ROW = 5
WHY = "gateway down"  # holds with another reason are an operator's, and are left alone


class Gatekeeper:
    """Compares what the networks say of their gateways with the holds in the store."""

    def __init__(self, store: CommandStore, networks: Iterable[Network]) -> None:
        self._store = store
        self._networks = list(networks)
        self._missed = Counter[Protocol]()

    async def look(self) -> None:
        """Hold the lanes of gateways that are down, and release those that are up again."""
        for network in self._networks:
            try:
                gateways = await network.gateways()
            except NetworkError as error:
                self._miss(network.protocol, error)
                continue
            self._missed[network.protocol] = 0
            if gateways:
                await self._hold_and_release(*lanes_down_and_up(network.protocol, gateways))

    async def _hold_and_release(self, down: set[str], up: set[str]) -> None:
        held = {each.lane: each.held_why for each in await self._store.lanes()}
        for lane in sorted(down):
            # Also one in which nothing waits: what comes into it would go out before the next look.
            if held.get(lane) is None:
                await self._store.hold_lane(lane, until=None, why=WHY)
                _log.warning("lane %s is held: its gateway is down", lane)
        for lane in sorted(up):
            if held.get(lane) == WHY:
                await self._store.release_lane(lane)
                _log.info("lane %s is released: its gateway is up", lane)

    def _miss(self, protocol: Protocol, error: NetworkError) -> None:
        """One look that fails says little; several in a row are said once."""
        self._missed[protocol] += 1
        if self._missed[protocol] == _MISSED_IN_A_ROW:
            _log.warning("the gateways of %s cannot be looked at: %s", protocol, error)


def lanes_down_and_up(protocol: Protocol, gateways: Sequence[GatewayState]) -> tuple[set[str], set[str]]:
    """The lanes whose gateways are all down, and those with at least one that is up.

    A gateway of which nothing is known says nothing about its lanes.
    """
    states: dict[str, list[bool]] = {}
    for gateway in gateways:
        if gateway.is_up is None:
            continue
        own = f"lorawan_gateway:{gateway.id}" if protocol.is_push else f"gateway:{gateway.id}"
        states.setdefault(own, []).append(gateway.is_up)
        if protocol.is_push and gateway.grid is not None:
            states.setdefault(f"lorawan_network:{gateway.grid}", []).append(gateway.is_up)
    down = {lane for lane, up in states.items() if not any(up)}
    return down, set(states) - down
