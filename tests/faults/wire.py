"""A wire to a server that a test can cut at an exact byte: a TCP proxy in the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal, NamedTuple, Self

Kept = Callable[[int], int]
"""How many bytes of a message come through, given its length (as much of it as comes at once)."""

Budget = Callable[[], int | None]
"""How many bytes a new connection lives for, both ways together; None for ever."""


class _Cut(NamedTuple):
    marker: bytes
    side: Literal["request", "reply"]
    kept: Kept


class Wire:
    """Passes everything on to a server on this machine, until it is cut."""

    def __init__(self, port: int, budget: Budget = lambda: None) -> None:
        self._server_port = port
        self._budget = budget
        self._next_cut: _Cut | None = None
        self._pumps: set[asyncio.Task[None]] = set()
        self.cuts = 0

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        for task in self._pumps:
            task.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    def url(self, **parameters: float) -> str:
        port = self._listener.sockets[0].getsockname()[1]
        query = "&".join(f"{name}={value}" for name, value in parameters.items())
        return f"valkey://127.0.0.1:{port}?{query}"

    def lose_request(self, marker: bytes, kept: Kept) -> None:
        """Cut in the middle of the next message to the server in which `marker` stands."""
        self._next_cut = _Cut(marker, "request", kept)

    def lose_reply(self, marker: bytes, kept: Kept) -> None:
        """Pass that message on whole, and cut in the middle of what comes back."""
        self._next_cut = _Cut(marker, "reply", kept)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._server_port)
        strand = _Strand(self, (writer, back), self._budget())
        for pump in (strand.requests(reader, back), strand.replies(there, writer)):
            task = asyncio.create_task(pump)
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    def cut_due(self, message: bytes) -> _Cut | None:
        cut = self._next_cut
        if cut is None or cut.marker not in message:
            return None
        self._next_cut = None
        return cut


class _Strand:
    """One connection over the wire."""

    def __init__(
        self, wire: Wire, ends: tuple[asyncio.StreamWriter, asyncio.StreamWriter], budget: int | None
    ) -> None:
        self._wire = wire
        self._ends = ends
        self._left = budget
        self._mute: Kept | None = None  # the reply that is owed comes through so far

    async def requests(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        await self._pump(source, sink, self._request)

    async def replies(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        await self._pump(source, sink, self._reply)

    def _request(self, message: bytes) -> int:
        cut = self._wire.cut_due(message)
        if cut is None:
            return len(message)
        if cut.side == "request":
            return cut.kept(len(message))
        self._mute = cut.kept
        return len(message)

    def _reply(self, message: bytes) -> int:
        return len(message) if self._mute is None else self._mute(len(message))

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, kept: Callable[[bytes], int]
    ) -> None:
        try:
            while message := await source.read(65_536):
                share = self._afforded(kept(message))
                sink.write(message[:share])
                await sink.drain()
                if share < len(message):
                    self._wire.cuts += 1
                    break
        except ConnectionError:
            pass
        finally:
            for end in self._ends:
                end.close()

    def _afforded(self, length: int) -> int:
        if self._left is not None:
            length = min(length, self._left)
            self._left -= length
        return length
