"""A crew: the workers of one process, side by side in one event loop, stopped together."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TypeVar

from remuda.backoff import Backoff
from remuda.cli.opening import opening
from remuda.errors import StoreUnavailableError
from remuda.queue import Queue
from remuda.worker import Worker
from remuda.worker.signals import STOP_SIGNALS, end_process

log = logging.getLogger("remuda.worker")

T = TypeVar("T")

AT_ONCE_S = 12.0  # after the second signal: long enough for the last writes
IDLE_THREADS_S = 0.5  # what idle threads take to end


class Crew:
    """The workers. `stop` drains them; a second time ends them at once."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers
        self._stopping = asyncio.Event()
        self.at_once = False

    def stop(self) -> None:
        """From the loop."""
        self.at_once = self._stopping.is_set()
        self._stopping.set()
        for worker in self._workers:
            worker.stop()

    def drain(self) -> None:
        """`stop`, but never the second time."""
        if not self._stopping.is_set():
            self.stop()

    async def run(self, *, until_empty: bool, on_ready: Callable[[], None]) -> None:
        """Work until stopped. If one of the workers fails the others drain, and its error is raised."""
        try:
            await self._open()
            if not self._stopping.is_set():
                on_ready()
                await self._work(until_empty=until_empty)
        finally:
            await self._close()

    async def _open(self) -> None:
        """Open every store, however long it takes to be there, unless told to stop."""
        opening = asyncio.create_task(_open_all(self._queues))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([opening, stopping], return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                opening.result()
        finally:
            opening.cancel()
            stopping.cancel()
            await asyncio.gather(opening, stopping, return_exceptions=True)

    async def _work(self, *, until_empty: bool) -> None:
        tasks = [asyncio.create_task(self._run_one(each, until_empty)) for each in self._workers]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            if not all(task.done() for task in tasks):
                self.drain()
                await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            raise
        for task in tasks:
            task.result()

    async def _run_one(self, worker: Worker, until_empty: bool) -> None:
        # The store is open, so nothing waits between this look and the moment from which `stop` is heard.
        if not self._stopping.is_set():
            await worker.run(until_empty=until_empty, signals=False)

    async def _close(self) -> None:
        """This process ends: also the stores that queues share have no further use."""
        for queue in self._queues:
            await queue.close()
        for store in {id(queue.store): queue.store for queue in self._queues}.values():
            await store.close()

    @property
    def _queues(self) -> list[Queue]:
        return list({id(worker.queue): worker.queue for worker in self._workers}.values())


async def _open_all(queues: Sequence[Queue]) -> None:
    await asyncio.gather(*map(_open_patiently, queues))


async def _open_patiently(queue: Queue) -> None:
    backoff = Backoff("the store cannot be opened", log)
    while True:
        try:
            with opening(queue.store):
                await queue.open()
        except StoreUnavailableError as error:
            await backoff.wait(error)
        else:
            backoff.over()
            return


class StopSignals:
    """SIGTERM and SIGINT. The first drains, the second ends at once, the third does not even say goodbye.

    Python's own handlers instead of the loop's: they are also heard while a handler blocks the loop.
    `counted=False` is for a child of a supervisor, which hears the same signal twice when a whole
    group of processes is sent it: it only ever drains, and the supervisor says when to hurry.
    """

    def __init__(self, crew: Crew, *, counted: bool) -> None:
        self._crew = crew
        self._loop = asyncio.get_running_loop()
        self._counted = counted
        self._heard = 0
        for each in STOP_SIGNALS:
            signal.signal(each, self._hear)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        self._heard += 1
        if not self._counted:
            self._loop.call_soon_threadsafe(self._crew.drain)
        elif self._heard > 2:
            leave_now(1)
        else:
            self._loop.call_soon_threadsafe(self._crew.stop)
            if self._heard == 2:
                leave_within(AT_ONCE_S, 1)


def leave_within(seconds: float, code: int) -> None:
    """End by then, whatever does not let go: a handler that cannot be cancelled, a thread, an exit hook."""
    timer = threading.Timer(seconds, leave_now, (code,))
    timer.daemon = True
    timer.start()


def leave_now(code: int) -> None:
    """End without waiting for threads, which cannot be stopped."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def leave_threads_behind() -> None:
    """End the process if handlers still run in threads: Python would wait for them."""
    deadline = time.monotonic() + IDLE_THREADS_S
    while (running := _handler_threads()) and time.monotonic() < deadline:
        time.sleep(0.01)
    if running:
        end_process(running)


def _handler_threads() -> int:
    return sum(each.name.startswith("remuda-handler") for each in threading.enumerate())
