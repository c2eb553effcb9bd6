"""One connection to a server: commands go out in order, and their replies come back in that order.

Whoever sends does not wait for those before: commands of several callers are under way at the same
time. A caller that goes away leaves its place in the line, and its reply is dropped when it comes.
So nothing can be read by the wrong caller, and one connection serves many.

redis-py is not used for this: its asyncio connection carries one command at a time and sets up a timer,
and often a task, for each. Measured on Redis 7.0, a lone command costs about a third of the processor
time that redis-py's client takes, and one of fifty at the same time about a sixth.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from typing import Any, cast

from remuda.stores.redis.packing import NOT_YET, reply_reader
from remuda.stores.redis.refusals import GarbledError, LostError


class Connection(asyncio.Protocol):
    """A connection. Silence for `patience` seconds while a reply is owed ends it."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self.lost: LostError | None = None  # why it ended
        self._loop = asyncio.get_running_loop()
        self._reader = reply_reader()
        self._owed: deque[tuple[asyncio.Future[Any], list[Any] | None, int]] = deque()
        self._heard_at = self._loop.time()
        self._watch: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._hangup: select.poll | None = None  # tells whether the server has closed it
        self._retired = False
        self._ended = self._loop.create_future()

    # -- sending

    def send(self, packed: bytes, replies: int | None = None) -> asyncio.Future[Any]:
        """The reply to come, or with `replies` the list of so many. Error replies are `Refusal`s in it."""
        future = self._loop.create_future()
        if self.lost is not None or self._transport is None:
            future.set_exception(self.lost.copy() if self.lost else LostError("not connected"))
            return future
        if not self._owed:
            self._heard_at = self._loop.time()
            if self._watch is None:
                self._watch = self._loop.call_at(self._heard_at + self._patience, self._check_silence)
        self._owed.append((future, None if replies is None else [], replies or 1))
        self._transport.write(packed)
        return future

    @property
    def usable(self) -> bool:
        """It is connected, as far as can be told without a round trip."""
        if self.lost is not None or self._retired:
            return False
        # While the event loop was busy elsewhere, an idle connection may have been closed by its server.
        if not self._owed and self._hangup is not None and self._hangup.poll(0):
            self.drop(LostError("the server closed the connection"))
            return False
        return True

    # -- ending

    def retire(self) -> None:
        """Take no more callers; end when the last reply that is owed has come."""
        self._retired = True
        self._end_if_retired()

    def _end_if_retired(self) -> None:
        if self._retired and not self._owed:
            self.drop(LostError("it was retired"))

    def drop(self, reason: LostError) -> None:
        """End it now; whoever still waits for a reply learns the reason."""
        self._lose(reason)
        if self._transport is not None:
            # Not `close`: that would first send what is left, to a server that may never read it.
            self._transport.abort()

    async def ended(self) -> None:
        """Return when its socket is closed."""
        if self._transport is not None:
            await asyncio.shield(self._ended)

    def _lose(self, reason: LostError) -> None:
        if self.lost is None:
            self.lost = reason
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        while self._owed:
            future, _, _ = self._owed.popleft()
            if not future.done():
                future.set_exception(self.lost.copy())

    def be_patient(self, seconds: float) -> None:
        """Take this much silence for normal, beginning with what is sent next."""
        self._patience = seconds
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _check_silence(self) -> None:
        self._watch = None
        if not self._owed:
            return
        until = self._heard_at + self._patience
        if self._loop.time() < until:
            self._watch = self._loop.call_at(until, self._check_silence)
        else:
            self.drop(LostError(f"no answer within {self._patience:g} s"))

    # -- what the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        if hasattr(select, "POLLRDHUP"):
            self._hangup = select.poll()
            self._hangup.register(transport.get_extra_info("socket").fileno(), select.POLLRDHUP)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        self._reader.feed(data)
        gets, owed = self._reader.gets, self._owed
        try:
            while (reply := gets()) is not NOT_YET:
                if not owed:
                    self.drop(LostError(f"the server said what nobody had asked for: {str(reply)[:100]}"))
                    return
                future, batch, count = owed[0]
                if batch is not None:
                    batch.append(reply)
                    if len(batch) < count:
                        continue
                    reply = batch
                owed.popleft()
                if not future.done():
                    future.set_result(reply)
        except GarbledError as error:
            self.drop(error)
        if self._retired:
            self._end_if_retired()

    def connection_lost(self, error: Exception | None) -> None:
        self._lose(
            LostError(f"the connection broke: {error}" if error else "the server closed the connection")
        )
        if not self._ended.done():
            self._ended.set_result(None)
