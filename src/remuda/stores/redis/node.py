"""One server, and the connections to it: one for all calls, and one for each command that blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from remuda.errors import StoreUnavailableError
from remuda.stores.redis.connection import Connection
from remuda.stores.redis.refusals import DEMOTED, LostError, Refusal, unavailable
from remuda.stores.redis.urls import Address

T = TypeVar("T")
Connect = Callable[[], Awaitable[Connection]]


class Joined(Generic[T]):
    """Work that is done once for everybody who asks for it at the same time, with one result or error."""

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._work = work
        self._task: asyncio.Task[T] | None = None

    async def join(self) -> T:
        """Its result. Who is cancelled leaves; the work goes on for the others."""
        task = self._task
        if task is None:
            task = self._task = asyncio.ensure_future(self._once())
            task.add_done_callback(_take_notice)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and not _is_cancelled():
                raise StoreUnavailableError("the store was closed meanwhile") from None
            raise

    async def _once(self) -> T:
        try:
            return await self._work()
        finally:
            self._task = None

    async def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


def _is_cancelled() -> bool:
    """Whoever runs this is to stop; it is not only what it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _take_notice(task: asyncio.Task[Any]) -> None:
    """Nobody may be left to hear of a failure; that is no reason for a warning."""
    if not task.cancelled():
        task.exception()


class Node:
    """A server that `connect` reaches; it is asked again whenever a connection is gone."""

    def __init__(self, connect: Connect, address: Address, name: str) -> None:
        self.name = name
        self._connect = connect
        self._timeout = address.timeout
        self._shared: Connection | None = None
        self._reconnection = Joined(self._reconnect)
        self._idle: list[Connection] = []
        self._connections: set[Connection] = set()
        self._closed = False
        limit = address.max_connections
        self._seats = asyncio.Semaphore(limit - 1) if limit else None

    async def reach(self) -> None:
        """See to it that there is a connection."""
        if self._shared is None or not self._shared.usable:
            await self._reconnection.join()

    async def ask(self, packed: bytes, replies: int | None = None) -> Any:
        """Send and wait for the reply; with `replies` for a list of so many. Error replies are in it."""
        try:
            connection = self._shared
            if connection is None or not connection.usable:
                connection = await self._reconnection.join()
            reply = await connection.send(packed, replies)
        except LostError as error:
            raise unavailable(self.name, error) from error
        if _tells_of_demotion(reply) or (replies is not None and any(map(_tells_of_demotion, reply))):
            self.forget()
        return reply

    async def wait(self, packed: bytes, within: float) -> Any:
        """Send a command that may take `within` seconds to answer, on a connection of its own."""
        if self._seats is None:
            return await self._wait(packed, within)
        try:
            async with asyncio.timeout(self._timeout):
                await self._seats.acquire()
        except TimeoutError:
            raise StoreUnavailableError(
                f"{self.name}: all connections that max_connections allows are waiting; allow more"
            ) from None
        try:
            return await self._wait(packed, within)
        finally:
            self._seats.release()

    async def _wait(self, packed: bytes, within: float) -> Any:
        connection = self._take_idle() or await self._new()
        connection.be_patient(within + self._timeout)
        try:
            reply = await connection.send(packed)
        except LostError as error:
            raise unavailable(self.name, error) from error
        except BaseException:
            # Its server must not go on waiting in our name and hand the answer to nobody.
            connection.drop(LostError("the call that waited on it is over"))
            raise
        if _tells_of_demotion(reply):
            connection.drop(LostError("its server is no primary any more"))
            self.forget()
        else:
            self._idle.append(connection)
        return reply

    @property
    def in_use(self) -> bool:
        return any(connection.lost is None for connection in self._connections)

    def forget(self) -> None:
        """Use none of these connections again. Calls that are under way still get their replies."""
        if self._shared is not None:
            self._shared.retire()
            self._shared = None
        while self._idle:
            self._idle.pop().drop(LostError("its server is no primary any more"))

    async def close(self) -> None:
        self._closed = True
        await self._reconnection.cancel()
        for connection in self._connections:
            connection.drop(LostError("the store was closed"))
        for connection in self._connections:
            await connection.ended()
        self._connections.clear()
        self._idle.clear()
        self._shared = None

    # -- connections

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def _reconnect(self) -> Connection:
        self._shared = await self._new()
        return self._shared

    async def _new(self) -> Connection:
        connection = await self._connect()
        if self._closed:
            connection.drop(LostError("the store was closed"))
            raise StoreUnavailableError(f"{self.name} was closed")
        self._connections = {each for each in self._connections if each.lost is None}
        self._connections.add(connection)
        return connection


def _tells_of_demotion(reply: Any) -> bool:
    return type(reply) is Refusal and reply.code in DEMOTED
