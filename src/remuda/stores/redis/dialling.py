"""Making a connection: the socket, TLS, and the greeting that says who we are and who answers."""

from __future__ import annotations

import asyncio
import socket
import ssl
from functools import cached_property
from typing import Any

from msgspec import structs

from remuda.errors import ConfigurationError, StoreError
from remuda.stores.redis.connection import Connection
from remuda.stores.redis.packing import pack_all
from remuda.stores.redis.probing import Greeting, read_greeting
from remuda.stores.redis.refusals import GarbledError, LostError, Refusal, translate, unavailable
from remuda.stores.redis.urls import Address, Place

# A peer that vanished without a word is noticed after about a minute, also by whoever waits for it.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
_SOON_S = 3.0


class Dialler:
    """Connects to any server of an address, as the user that the address names."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def impatient(self) -> Dialler:
        """One for asking around: who does not answer soon is passed over, since others know as much."""
        return Dialler(structs.replace(self._address, timeout=min(self._address.timeout, _SOON_S)))

    async def dial(self, where: Place | str) -> tuple[Connection, Greeting]:
        """A connection that is ready for commands, and how its server greeted us."""
        url = self._named(where)
        connection = None
        try:
            async with asyncio.timeout(self._address.timeout):
                connection = await self._connect(where)
                greeting = await self._greet(connection, url)
        except BaseException as error:
            if connection is not None:
                connection.drop(LostError("it did not get as far as a greeting"))
            if isinstance(error, UnicodeError):
                raise ConfigurationError(f"{where} is no name of a host: {error}") from error
            if isinstance(error, OSError | LostError):
                raise _explain(error, url, self._address.timeout) from error
            raise
        return connection, greeting

    def _named(self, where: Place | str) -> str:
        """The URL, with the server when the URL itself leaves open which one it is."""
        plain = self._address.mode in ("single", "embedded")
        return self._address.url if plain else f"{where} of {self._address.url}"

    async def _connect(self, where: Place | str) -> Connection:
        loop = asyncio.get_running_loop()

        def make() -> Connection:
            return Connection(self._address.timeout)

        if isinstance(where, str):
            _, connection = await loop.create_unix_connection(make, where)
            return connection
        transport, connection = await loop.create_connection(
            make,
            where.host,
            where.port,
            ssl=self._tls,
            ssl_handshake_timeout=self._address.timeout if self._tls else None,
        )
        _keep_alive(transport.get_extra_info("socket"))
        return connection

    async def _greet(self, connection: Connection, url: str) -> Greeting:
        address = self._address
        hello: list[Any] = ["HELLO", 2]
        if address.password or address.username:
            hello += ["AUTH", address.username or "default", address.password or ""]
        hello += ["SETNAME", address.client_name]
        commands = [hello, ["SELECT", address.db]] if address.db else [hello]
        replies = await connection.send(pack_all(commands), len(commands))
        for reply in replies:
            if isinstance(reply, Refusal):
                raise _turned_away(reply, url, address)
        return read_greeting(replies[0])

    @cached_property
    def _tls(self) -> ssl.SSLContext | None:
        address = self._address
        if not address.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=address.ssl_ca_certs)
            if address.ssl_certfile:
                context.load_cert_chain(address.ssl_certfile, address.ssl_keyfile)
        except OSError as error:
            files = (address.ssl_ca_certs, address.ssl_certfile, address.ssl_keyfile)
            shown = ", ".join(filter(None, files))
            raise ConfigurationError(f"TLS cannot be set up with {shown}: {error}") from error
        context.check_hostname = address.ssl_check_hostname and address.ssl_cert_reqs != "none"
        context.verify_mode = ssl.VerifyMode[f"CERT_{address.ssl_cert_reqs.upper()}"]
        return context


def _keep_alive(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):  # not on every system
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _turned_away(refusal: Refusal, url: str, address: Address) -> StoreError:
    if "unknown command" in str(refusal):
        return StoreError(f"{url} does not know HELLO, so it is older than Redis 6.2, which is needed")
    return translate(refusal, url, address.username or ("default" if address.password else None))


def _explain(error: OSError | LostError, url: str, timeout: float) -> StoreError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return StoreError(f"{url} shows a certificate that is not trusted: {error.verify_message or error}")
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return StoreError(f"{url} does not speak TLS; write redis:// or valkey://")
    if isinstance(error, GarbledError):
        return StoreError(
            f"{url} does not answer like a Redis server ({error}); if it wants TLS, write rediss://"
        )
    if isinstance(error, TimeoutError):
        return unavailable(url, TimeoutError(f"no connection within {timeout:g} s"))
    return unavailable(url, error)
