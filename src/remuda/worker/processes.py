"""Several worker processes under one supervisor.

Children are fresh processes, not forks: no threads, connections or event loops come along. Each has
a lifeline to the supervisor, a pair of sockets. On it the child says that it is ready, the
supervisor says `drain` and `hurry`, and either sees at once that the other is gone, however it
ended. Orders go that way instead of as signals because a signal to the whole group, as systemd and
a terminal send it, reaches the children too: they would count it twice and end at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence

from remuda.worker.signals import STOP_SIGNALS

log = logging.getLogger("remuda.supervisor")

READY = b"ready\n"
DRAIN = b"drain\n"
HURRY = b"hurry\n"

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
STEADY_AFTER_S = 60.0  # a child that lived this long is no crash loop
KILL_AFTER_S = 15.0  # children that were told to hurry have this long


class Lifeline:
    """The child's end. From the start on, a supervisor that hurries or is gone is heard."""

    def __init__(self, descriptor: int, *, end_now: Callable[[], None]) -> None:
        os.set_inheritable(descriptor, False)  # a handler's own children must not hold it open
        self._socket = socket.socket(fileno=descriptor)
        self._lock = threading.Lock()
        self._drain: Callable[[], object] | None = None
        self._hurry: Callable[[], object] = end_now
        self._draining = False
        threading.Thread(target=self._hear, name="remuda-lifeline", daemon=True).start()

    def say_ready(self) -> None:
        """The workers are loaded and their stores are open."""
        with contextlib.suppress(OSError):  # the supervisor is gone; the thread sees it too
            self._socket.sendall(READY)

    def listen(self, *, drain: Callable[[], object], hurry: Callable[[], object]) -> None:
        """From now on these are called, from another thread; `drain` at once if it was missed."""
        with self._lock:
            self._drain, self._hurry = drain, hurry
            if self._draining:
                drain()

    def _hear(self) -> None:
        heard = b""
        while True:
            try:
                part = self._socket.recv(64)
            except OSError:
                part = b""
            heard += part
            with self._lock:
                if HURRY in heard:
                    self._hurry()
                    return
                if (not part or DRAIN in heard) and not self._draining:
                    self._draining = True
                    if self._drain is not None:
                        self._drain()
            if not part:
                return


class _Child:
    """The supervisor's end, and the process."""

    def __init__(
        self,
        number: int,
        process: asyncio.subprocess.Process,
        line: asyncio.StreamWriter,
        hearing: asyncio.Task[None],
    ) -> None:
        self.number = number
        self.started_at = time.monotonic()
        self.process = process
        self._line = line
        self._hearing = hearing

    def say(self, word: bytes) -> None:
        if not self._line.is_closing():
            self._line.write(word)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    async def wait(self) -> int:
        code = await self.process.wait()
        self._line.close()
        with contextlib.suppress(OSError):
            await self._line.wait_closed()
        await self._hearing
        return code


class Supervisor:
    """Keeps `processes` children running `command`. `run` returns the exit code for the whole.

    The first child is a trial: as long as none has been ready, one that ends in an error ends it all,
    with that child's exit code. Later a child that ends is started again, later each time.
    `ends_by_itself`: a child that ends without error has done its work.
    """

    def __init__(self, command: Sequence[str], processes: int, *, ends_by_itself: bool = False) -> None:
        self._command = command
        self._processes = processes
        self._ends_by_itself = ends_by_itself
        self._children: set[_Child] = set()
        self._ready = asyncio.Event()
        self._stopping = asyncio.Event()
        self._signals = 0
        self._failures: list[int] = []

    async def run(self) -> int:
        """Until every child has ended for good."""
        loop = asyncio.get_running_loop()
        for each in STOP_SIGNALS:
            loop.add_signal_handler(each, self._signalled)
        log.info("%d worker processes", self._processes, extra={"action": "supervisor_started"})
        first = asyncio.create_task(self._keep(1))
        ready = asyncio.create_task(self._ready.wait())
        await asyncio.wait({first, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        others = [] if self._stopping.is_set() else range(2, self._processes + 1)
        await asyncio.gather(first, *map(self._keep, others))
        log.info("all worker processes have ended", extra={"action": "supervisor_stopped"})
        if self._signals > 1:
            return 1
        return 1 if any(code < 0 for code in self._failures) else max(self._failures, default=0)

    # -- signals

    def _signalled(self) -> None:
        """The first drains, the second hurries, the third kills."""
        self._signals += 1
        if self._signals == 1:
            self._drain()
        elif self._signals == 2:
            self._tell(HURRY)
            asyncio.get_running_loop().call_later(KILL_AFTER_S, self._kill)
        else:
            self._kill()

    def _drain(self) -> None:
        self._stopping.set()
        self._tell(DRAIN)

    def _tell(self, word: bytes) -> None:
        for child in self._children:
            child.say(word)

    def _kill(self) -> None:
        for child in self._children:
            child.kill()

    # -- one place among the children

    async def _keep(self, number: int) -> None:
        """Start a child, and another one when it has ended, until that is enough."""
        delay = FIRST_DELAY_S
        while not self._stopping.is_set():
            child = await self._start(number)
            code = await child.wait()
            self._children.discard(child)
            if self._is_over(child, code):
                return
            if time.monotonic() - child.started_at > STEADY_AFTER_S:
                delay = FIRST_DELAY_S
            log.warning(
                "worker process %d (%d) ended with %s; starting it again in %.1f s",
                number,
                child.process.pid,
                _told(code),
                delay,
                extra={"action": "child_ended", "child": child.process.pid, "code": code},
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)
            delay = min(delay * 2, LONGEST_DELAY_S)

    def _is_over(self, child: _Child, code: int) -> bool:
        """Whether the end of this child is final."""
        if self._stopping.is_set():
            if code:
                self._failures.append(code)
            return True
        if code == 0 and self._ends_by_itself:
            return True
        if code and not self._ready.is_set():
            log.error(
                "worker process %d (%d) could not start: it ended with %s",
                child.number,
                child.process.pid,
                _told(code),
                extra={"action": "child_failed", "child": child.process.pid, "code": code},
            )
            self._failures.append(code)
            self._drain()
            return True
        return False

    async def _start(self, number: int) -> _Child:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                "--lifeline",
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C is for the supervisor, which passes it on
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        child = _Child(number, process, writer, asyncio.create_task(self._hear(reader)))
        self._children.add(child)
        if self._stopping.is_set():
            child.say(DRAIN)
        log.info(
            "worker process %d started (%d)",
            number,
            process.pid,
            extra={"action": "child_started", "child": process.pid},
        )
        return child

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            async for line in reader:
                if line == READY:
                    self._ready.set()


def _told(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
