"""Stores for code without an event loop: pages of a short-lived one, and one that stays open in a thread."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from remuda.backoff import Backoff
from remuda.errors import StoreUnavailableError
from remuda.stores import open_store
from remuda.stores.contract import Store

log = logging.getLogger("remuda.lake")

S = TypeVar("S")
T = TypeVar("T")

PATIENCE_S = 60.0  # how long a stream waits for a store that is away before it fails
IDLE_S = (
    0.25  # how soon a stream asks again a store that had nothing; Spark itself would ask 100 times a second
)


def paged(store: AbstractAsyncContextManager[S], pages: Callable[[S], AsyncIterator[T]]) -> Iterator[T]:
    """What an async generator makes of a store, page by page; the store is closed at the end."""
    loop = asyncio.new_event_loop()
    try:
        opened = loop.run_until_complete(store.__aenter__())
        try:
            made = pages(opened)
            while True:
                try:
                    page = loop.run_until_complete(anext(made))
                except StopAsyncIteration:
                    return
                yield page
        finally:
            loop.run_until_complete(store.__aexit__(None, None, None))
    finally:
        loop.close()


class StoreThread:
    """A store that stays open, on an event loop in a thread of its own. Nothing happens before the first use.

    It is part of a reader, which Spark sends to the tasks: there it is a new one.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._store: Store | None = None
        self._running: list[Future[None]] = []

    def __reduce__(self) -> tuple[type[StoreThread], tuple[str]]:
        return StoreThread, (self._url,)

    def run(self, use: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        """What a coroutine makes of the store. A store that is away is waited for, up to a minute."""
        store, loop = self._opened()
        for each in self._running:
            if each.done():
                each.result()
        return asyncio.run_coroutine_threadsafe(_patiently(store, use), loop).result()

    def keep_running(self, use: Callable[[Store], Coroutine[Any, Any, None]]) -> None:
        """Start a coroutine that goes on in the background as long as this process lives.

        Should it end all the same, the next `run` raises what ended it.
        """
        store, loop = self._opened()
        self._running.append(asyncio.run_coroutine_threadsafe(use(store), loop))

    def close(self) -> None:
        """End what runs in the background, and give everything back."""
        if self._store is None or self._loop is None or self._thread is None:
            return
        for each in self._running:
            each.cancel()
        asyncio.run_coroutine_threadsafe(self._store.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = self._store = None
        self._running = []

    def _opened(self) -> tuple[Store, asyncio.AbstractEventLoop]:
        if self._store is None or self._loop is None:
            self._loop = asyncio.new_event_loop()
            # A daemon: Spark ends the process of a reader without a word.
            self._thread = threading.Thread(target=self._loop.run_forever, name="remuda-store", daemon=True)
            self._thread.start()
            self._store = asyncio.run_coroutine_threadsafe(_made(self._url), self._loop).result()
        return self._store, self._loop


async def _made(url: str) -> Store:
    """Inside the loop, for what it holds belongs to the loop."""
    return open_store(url)


async def _patiently(store: Store, use: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
    backoff = Backoff("the store does not answer a stream", log)
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        try:
            await store.open()
            result = await use(store)
        except StoreUnavailableError as error:
            if time.monotonic() > give_up_at:
                raise
            await backoff.wait(error)
        else:
            backoff.over()
            return result


class Pace:
    """Keeps a stream that has nothing to read from asking all the time."""

    def __init__(self) -> None:
        self._empty_at: float | None = None

    def wait(self) -> None:
        """Before asking: if the last answer was empty, not at once."""
        if self._empty_at is not None:
            time.sleep(max(0.0, self._empty_at + IDLE_S - time.monotonic()))

    def note(self, *, empty: bool) -> None:
        self._empty_at = time.monotonic() if empty else None
