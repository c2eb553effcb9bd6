"""The one primary of a store, where the URL says or where Sentinels say it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import structs

from remuda.errors import StoreError, StoreUnavailableError
from remuda.stores.redis.connection import Connection
from remuda.stores.redis.dialling import Dialler
from remuda.stores.redis.node import Node
from remuda.stores.redis.packing import pack, pack_all
from remuda.stores.redis.probing import Greeting
from remuda.stores.redis.refusals import LostError, Refusal, translate, unavailable
from remuda.stores.redis.urls import Address, Place

Check = Callable[[Greeting], None]


class Primary:
    """One server, with the face that a cluster has too. `check` may refuse a server by its greeting."""

    def __init__(self, address: Address, check: Check) -> None:
        self._address = address
        self._check = check
        self._dialler = Dialler(address)
        self._node = Node(self._connect, address, address.url)

    async def reach(self) -> None:
        """See to it that there is a connection."""
        await self._node.reach()

    async def ask(self, command: Sequence[Any], packed: bytes) -> Any:
        """The reply to a command, which is given plain and packed."""
        return await self._node.ask(packed)

    async def ask_many(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        replies: list[Any] = await self._node.ask(pack_all(commands), len(commands))
        return replies

    async def wait(self, command: Sequence[Any], within: float) -> Any:
        return await self._node.wait(pack(command), within)

    async def primaries(self) -> list[Node]:
        return [self._node]

    async def ask_at(self, node: Node, command: Sequence[Any]) -> Any:
        return await node.ask(pack(command))

    async def close(self) -> None:
        await self._node.close()

    async def _connect(self) -> Connection:
        return await self._reach(self._address.path or self._address.places[0])

    async def _reach(self, where: Place | str) -> Connection:
        connection, greeting = await self._dialler.dial(where)
        try:
            self._accept(greeting, where)
        except StoreError:
            connection.drop(LostError("it is not the server that is wanted"))
            raise
        return connection

    def _accept(self, greeting: Greeting, where: Place | str) -> None:
        self._check(greeting)


class WatchedPrimary(Primary):
    """The primary of a service that Sentinels watch; they are asked for it before every connection."""

    def __init__(self, address: Address, check: Check) -> None:
        super().__init__(address, check)
        self._sentinels = list(address.places)
        theirs = structs.replace(
            address, db=0, username=address.sentinel_username, password=address.sentinel_password
        )
        self._sentinel_dialler = Dialler(theirs).impatient()

    async def _connect(self) -> Connection:
        """Ask one Sentinel after the other, until one names a server that says itself that it is primary."""
        failures: list[StoreError] = []
        for sentinel in tuple(self._sentinels):
            try:
                connection = await self._reach(await self._ask_sentinel(sentinel))
            except StoreError as error:
                failures.append(error)
                continue
            # The next one who asks begins with the Sentinel that knew.
            self._sentinels.remove(sentinel)
            self._sentinels.insert(0, sentinel)
            return connection
        texts = "; ".join(map(str, failures))
        if any(isinstance(each, StoreUnavailableError) for each in failures):
            raise StoreUnavailableError(texts)
        raise StoreError(texts)

    def _accept(self, greeting: Greeting, where: Place | str) -> None:
        super()._accept(greeting, where)
        if greeting.role != "master":
            raise StoreUnavailableError(
                f"{where}, which a Sentinel of {self._address.url} names, is a {greeting.role} just now"
            )

    async def _ask_sentinel(self, sentinel: Place) -> Place:
        address = self._address
        connection, greeting = await self._sentinel_dialler.dial(sentinel)
        try:
            if greeting.mode != "sentinel":
                raise StoreError(
                    f"{sentinel} of {address.url} is no Sentinel; write redis://host:port for it"
                )
            found = await connection.send(pack(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", address.service)))
        except LostError as error:
            raise unavailable(f"{sentinel} of {address.url}", error) from error
        finally:
            connection.drop(LostError("it was asked"))
        if isinstance(found, Refusal):
            raise translate(found, f"{sentinel} of {address.url}", address.sentinel_username)
        if found is None:
            raise StoreError(f"{sentinel} of {address.url} watches no service {address.service!r}")
        return Place(found[0].decode(), int(found[1]))
