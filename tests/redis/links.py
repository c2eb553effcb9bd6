"""Links to test servers, and what stands between a link and its server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from remuda.stores.redis.link import Link
from remuda.stores.redis.urls import parse
from tests.redis_servers import RedisServer


@asynccontextmanager
async def linked(url: str, **parameters: Any) -> AsyncIterator[Link]:
    """An open link; `parameters` are added to the URL."""
    link = Link(parse(with_parameters(url, **parameters)))
    try:
        await link.open()
        yield link
    finally:
        await link.close()


def with_parameters(url: str, **parameters: Any) -> str:
    query = "&".join(f"{name}={value}" for name, value in parameters.items())
    return f"{url}{'&' if '?' in url else '?'}{query}" if query else url


def clients(server: RedisServer, name: str) -> list[dict[str, str]]:
    """The connections with this name that a server has."""
    with server.client() as client:
        return [each for each in client.client_list() if each["name"] == name]


async def until_blocked(server: RedisServer, name: str, number: int = 1) -> None:
    """Return when so many connections of this name wait for something on the server."""
    async with asyncio.timeout(10):
        while True:
            if len([each for each in clients(server, name) if "b" in each["flags"]]) >= number:
                return
            await asyncio.sleep(0.005)


async def until_gone(server: RedisServer, name: str, left: int = 0) -> None:
    """Return when a server has no more than so many connections of this name."""
    async with asyncio.timeout(10):
        while True:
            if len(clients(server, name)) <= left:
                return
            await asyncio.sleep(0.005)
