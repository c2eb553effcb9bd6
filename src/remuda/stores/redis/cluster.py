"""A cluster: every command goes to the primary that serves its slot.

A node that does not serve a slot says so and does nothing, so that a command may follow its answer
(MOVED, ASK). After that, and after any connection is lost, the map of slots is read anew.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from remuda.errors import StoreError, StoreUnavailableError
from remuda.stores.redis.connection import Connection
from remuda.stores.redis.dialling import Dialler
from remuda.stores.redis.node import Joined, Node
from remuda.stores.redis.packing import pack
from remuda.stores.redis.probing import Greeting
from remuda.stores.redis.refusals import LostError, Refusal, translate, unavailable
from remuda.stores.redis.slots import SLOTS, slot_of_command
from remuda.stores.redis.urls import Address, Place

_REDIRECTIONS = 5
_ASKING = pack(("ASKING",))


class Cluster:
    """The primaries of a cluster. `check` may refuse a server by its greeting."""

    def __init__(self, address: Address, check: Callable[[Greeting], None]) -> None:
        self._address = address
        self._check = check
        self._dialler = Dialler(address)
        self._quick_dialler = self._dialler.impatient()
        self._informants = list(address.places)  # who is asked for the map: first the one that knew it last
        self._nodes: dict[Place, Node] = {}
        self._former: set[Node] = set()
        self._owners: list[Place | None] = [None] * SLOTS
        self._outdated = True
        self._closed = False
        self._survey = Joined(self._read_map)

    async def reach(self) -> None:
        """See to it that the map is known."""
        await self._serving(None)

    async def ask(self, command: Sequence[Any], packed: bytes) -> Any:
        """The reply to a command, which is given plain and packed."""
        [reply] = await self._ask([packed], await self._serving(slot_of_command(command)))
        return reply

    async def ask_many(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """The replies to commands of one slot, in one round trip unless that slot is on the move."""
        slots = (slot_of_command(command) for command in commands)
        slot = next((each for each in slots if each is not None), None)
        return await self._ask([pack(command) for command in commands], await self._serving(slot))

    async def wait(self, command: Sequence[Any], within: float) -> Any:
        packed = pack(command)
        node = await self._serving(slot_of_command(command))
        reply = await self._watching(node.wait(packed, within))
        if _redirects(reply):
            node = await self._redirected(reply)
            reply = await self._watching(node.wait(packed, within))
        return reply

    async def primaries(self) -> list[Node]:
        await self._serving(None)
        return [self._node(place) for place in sorted(set(filter(None, self._owners)))]

    async def ask_at(self, node: Node, command: Sequence[Any]) -> Any:
        return await self._watching(node.ask(pack(command)))

    async def close(self) -> None:
        self._closed = True
        await self._survey.cancel()
        for node in (*self._nodes.values(), *self._former):
            await node.close()
        self._nodes.clear()
        self._former.clear()

    # -- asking, and following redirections

    async def _ask(self, packed: list[bytes], node: Node) -> list[Any]:
        replies = await self._send(packed, node)
        for _ in range(_REDIRECTIONS):
            refused = [at for at, reply in enumerate(replies) if _redirects(reply)]
            if not refused:
                break
            # Those that were refused keep their order: nothing of the same slot overtakes them.
            asking = replies[refused[0]].code == "ASK"
            node = await self._redirected(replies[refused[0]])
            again = await self._send([packed[at] for at in refused], node, asking=asking)
            for at, reply in zip(refused, again, strict=True):
                replies[at] = reply
        return replies

    async def _send(self, packed: list[bytes], node: Node, *, asking: bool = False) -> list[Any]:
        parts = [part for each in packed for part in (_ASKING, each)] if asking else packed
        replies: list[Any] = await self._watching(node.ask(b"".join(parts), len(parts)))
        return replies[1::2] if asking else replies

    async def _watching(self, exchange: Awaitable[Any]) -> Any:
        """Whatever goes wrong with a node may mean that another one has its slots now."""
        try:
            reply = await exchange
        except StoreUnavailableError:
            self._outdated = True
            raise
        if any(map(_says_it_is_down, reply if isinstance(reply, list) else [reply])):
            self._outdated = True
            # Whoever gave the map that led here may be cut off from the others: ask somebody else next.
            self._informants.append(self._informants.pop(0))
        return reply

    async def _redirected(self, refusal: Refusal) -> Node:
        """The node that a MOVED or ASK names: `MOVED 3999 10.0.0.5:6379`."""
        _, slot, told = str(refusal).split(" ", 2)
        host, _, port = told.rpartition(":")
        if refusal.code == "MOVED":
            self._outdated = True
            if host in ("", "?"):  # the same host as the one that answered; the map says which that is
                return await self._serving(int(slot))
        return self._node(Place(host, int(port)))

    # -- the map

    async def _serving(self, slot: int | None) -> Node:
        if self._outdated:
            await self._survey.join()
        place = next(filter(None, self._owners), None) if slot is None else self._owners[slot]
        if place is None:
            raise StoreUnavailableError(
                f"{self._address.url} is not available just now: no node serves slot {slot}"
            )
        return self._node(place)

    def _node(self, place: Place) -> Node:
        if self._closed:
            raise StoreUnavailableError(f"{self._address.url} was closed")
        if place not in self._nodes:

            async def connect() -> Connection:
                return await self._reach(place)

            self._nodes[place] = Node(connect, self._address, f"{place} of {self._address.url}")
        return self._nodes[place]

    async def _reach(self, place: Place, dialler: Dialler | None = None) -> Connection:
        connection, greeting = await (dialler or self._dialler).dial(place)
        try:
            self._check(greeting)
        except StoreError:
            connection.drop(LostError("it is not the server that is wanted"))
            raise
        return connection

    async def _read_map(self) -> None:
        """Ask one node after the other, until one tells who serves which slots."""
        failures: list[str] = []
        for place in tuple(self._informants):
            try:
                ranges = await self._ask_for_map(place)
            except StoreUnavailableError as error:
                failures.append(str(error))
                continue
            self._adopt(ranges, place)
            return
        raise StoreUnavailableError("; ".join(failures))

    async def _ask_for_map(self, place: Place) -> list[Any]:
        connection = await self._reach(place, self._quick_dialler)
        try:
            reply = await connection.send(pack(("CLUSTER", "SLOTS")))
        except LostError as error:
            raise unavailable(f"{place} of {self._address.url}", error) from error
        finally:
            connection.drop(LostError("it was asked"))
        if isinstance(reply, Refusal):
            raise translate(reply, f"{place} of {self._address.url}", self._address.username)
        ranges: list[Any] = reply
        return ranges

    def _adopt(self, ranges: list[Any], asked: Place) -> None:
        owners: list[Place | None] = [None] * SLOTS
        for first, last, primary, *_ in ranges:
            # A node that does not know its own address leaves it out: it is the one we asked.
            host = (primary[0] or b"").decode()
            place = Place(host if host not in ("", "?") else asked.host, int(primary[1]))
            owners[first : last + 1] = [place] * (last - first + 1)
        self._owners = owners
        self._outdated = False
        known = (asked, *sorted(set(filter(None, owners))), *self._address.places)
        self._informants = list(dict.fromkeys(known))
        self._former = {node for node in self._former if node.in_use}
        for place in set(self._nodes) - set(owners):
            node = self._nodes.pop(place)
            node.forget()
            self._former.add(node)


def _redirects(reply: Any) -> bool:
    return type(reply) is Refusal and reply.code in ("MOVED", "ASK")


def _says_it_is_down(reply: Any) -> bool:
    return type(reply) is Refusal and reply.code == "CLUSTERDOWN"
