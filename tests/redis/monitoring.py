"""What a server is asked to do: its MONITOR, without what scripts do on its own ground."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.redis_servers import RedisServer

_LINE = re.compile(rb'\+[0-9.]+ \[\d+ ([^\]]+)\] "([^"]*)"')
_MARK = "that was all"


class Asked:
    """The commands that came from clients, in order."""

    def __init__(self) -> None:
        self.commands: list[str] = []

    def count(self, *names: str) -> int:
        return sum(command in names for command in self.commands)


@asynccontextmanager
async def monitored(server: RedisServer) -> AsyncIterator[Asked]:
    """The commands that a server is sent meanwhile; they are there at the end."""
    asked = Asked()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=64 * 1024 * 1024)
    try:
        writer.write(b"MONITOR\r\n")
        assert await reader.readline() == b"+OK\r\n"
        yield asked
        _, marker = await asyncio.open_connection("127.0.0.1", server.port)
        marker.write(f'ECHO "{_MARK}"\r\n'.encode())
        await marker.drain()
        async for line in reader:
            if _MARK.encode() in line:
                break
            said = _LINE.match(line)
            assert said is not None, line
            if said[1] != b"lua":
                asked.commands.append(said[2].decode().upper())
        marker.close()
        await marker.wait_closed()
    finally:
        writer.close()
        await writer.wait_closed()
