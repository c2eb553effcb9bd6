"""The connections of one store: single, Sentinel, Cluster, Unix socket, TLS or embedded, with one face.

Nothing is ever sent a second time after a connection broke: whether the first was carried out cannot
be known here, so the store decides. What a server refused unread (an unknown script, a slot that has
moved) is sent again, since nothing was done.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import AsyncIterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from remuda.errors import ConfigurationError, StoreError
from remuda.stores.redis.cluster import Cluster
from remuda.stores.redis.packing import pack
from remuda.stores.redis.primary import Primary, WatchedPrimary
from remuda.stores.redis.probing import Greeting, Server, judge
from remuda.stores.redis.refusals import Refusal, translate
from remuda.stores.redis.urls import Address

_SCAN_COUNT = 1000


class _Form(NamedTuple):
    """A script as one kind of server wants it."""

    body: str
    sha: str


class Script:
    """Lua that a server runs in one step. With `allow_oom` it also runs while the server is out of memory.

    Servers before 7.0 know no such flag: there, a script that adds something is refused.
    """

    def __init__(self, name: str, body: str, allow_oom: bool = False) -> None:
        self.name = name
        self.body = body
        self.allow_oom = allow_oom

    def __repr__(self) -> str:
        return f"Script({self.name!r})"

    def form(self, has_flags: bool) -> _Form:
        return self._flagged if has_flags and self.allow_oom else self._plain

    @cached_property
    def _plain(self) -> _Form:
        return _form(self.body)

    @cached_property
    def _flagged(self) -> _Form:
        return _form(f"#!lua flags=allow-oom\n{self.body}")


def _form(body: str) -> _Form:
    return _Form(body, hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest())


class Link:
    """Commands and scripts for the server, or the servers, of an address. Replies are raw, as in RESP2.

    What a server refuses is a `RefusedError` with its `code`; what may work later is a
    `StoreUnavailableError`. A call that is cancelled may have been carried out.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.url = address.url
        self._server: Server | None = None
        self._servers: Primary | Cluster | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    @property
    def server(self) -> Server:
        """What answered when the store was opened."""
        if self._server is None:
            raise StoreError(f"the store {self.url} is not open")
        return self._server

    async def open(self) -> Server:
        """Connect and look at the server, once; safe to call again."""
        if self._servers is None:
            async with self._opening:
                if self._closed:
                    raise StoreError(f"the store {self.url} was closed; open a new one")
                if self._servers is None:
                    await self._open()
        return self.server

    async def _open(self) -> None:
        servers = self._make_servers()
        try:
            await servers.reach()
        except BaseException:
            await servers.close()
            raise
        self._servers = servers

    def _make_servers(self) -> Primary | Cluster:
        match self.address.mode:
            case "single":
                return Primary(self.address, self._look_at)
            case "sentinel":
                return WatchedPrimary(self.address, self._look_at)
            case "cluster":
                return Cluster(self.address, self._look_at)
            case "embedded":
                if sys.platform == "win32":
                    raise ConfigurationError(
                        "an embedded server needs Unix sockets and flock: not on Windows"
                    )
                from remuda.stores.redis.embedded import EmbeddedPrimary

                return EmbeddedPrimary(self.address, self._look_at)

    def _look_at(self, greeting: Greeting) -> None:
        mode = "single" if self.address.mode == "embedded" else self.address.mode
        server = judge(greeting, mode, self.url)
        if self._servers is None:
            self._server = server

    async def close(self) -> None:
        """Give everything back; the last user of an embedded server stops it. Calls after this raise."""
        async with self._opening:
            self._closed = True
            self._server = None
            servers, self._servers = self._servers, None
            if servers is not None:
                await servers.close()

    # -- commands

    async def call(self, *args: Any) -> Any:
        """One command."""
        servers = self._servers or await self._opened()
        reply = await servers.ask(args, pack(args))
        if type(reply) is Refusal:
            raise self._error(reply)
        return reply

    async def run(
        self,
        script: Script,
        keys: Sequence[str | bytes],
        args: Sequence[bytes | str | int | float],
    ) -> Any:
        """A script, known to the server or not. In a cluster it goes where the first key lives."""
        servers = self._servers or await self._opened()
        body, sha = script.form(self.server.has_flags)
        command = ("EVALSHA", sha, len(keys), *keys, *args)
        reply = await servers.ask(command, pack(command))
        if type(reply) is Refusal and reply.code == "NOSCRIPT":
            command = ("EVAL", body, len(keys), *keys, *args)
            reply = await servers.ask(command, pack(command))
        if type(reply) is Refusal:
            raise self._error(reply)
        return reply

    async def call_many(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Several commands in one round trip, in order; the first error is raised after all were tried.

        In a cluster all their keys must be of one slot.
        """
        if not commands:
            return []
        servers = self._servers or await self._opened()
        return self._checked(await servers.ask_many(commands))

    async def block(self, *args: Any, within: float) -> Any:
        """A command that waits on the server for up to `within` seconds, on a connection of its own."""
        servers = self._servers or await self._opened()
        reply = await servers.wait(args, within)
        if type(reply) is Refusal:
            raise self._error(reply)
        return reply

    async def everywhere(self, *args: Any) -> list[Any]:
        """One command on every primary; a reply for each."""
        servers = self._servers or await self._opened()
        return self._checked([await servers.ask_at(node, args) for node in await servers.primaries()])

    async def scan(self, pattern: str) -> AsyncIterator[bytes]:
        """Every key that matches, on every primary; one may come twice."""
        servers = self._servers or await self._opened()
        for node in await servers.primaries():
            cursor = b"0"
            while True:
                command = ("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_COUNT)
                cursor, keys = self._checked([await servers.ask_at(node, command)])[0]
                for key in keys:
                    yield key
                if cursor == b"0":
                    break

    async def _opened(self) -> Primary | Cluster:
        await self.open()
        if self._servers is None:
            raise StoreError(f"the store {self.url} was closed; open a new one")
        return self._servers

    def _checked(self, replies: list[Any]) -> list[Any]:
        for reply in replies:
            if type(reply) is Refusal:
                raise self._error(reply)
        return replies

    def _error(self, refusal: Refusal) -> StoreError:
        return translate(refusal, self.url, self.address.username)
