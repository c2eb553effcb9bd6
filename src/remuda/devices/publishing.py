"""Those who want to know how commands ended: callbacks in the process, and webhooks as jobs.

A command that has ended stays in the store's outbox until every subscriber was told, so that each is
told at least once, whatever happens in between.
"""

from __future__ import annotations

import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

from remuda.devices.command import Command
from remuda.devices.ledger import opened_all
from remuda.devices.listening import DeviceReport
from remuda.errors import StoreError
from remuda.stores.commands import CommandStore

_log = logging.getLogger("remuda.devices")

_TOLD_AT_ONCE = 500
_HOLD = timedelta(seconds=30)
_TRIES = 5  # of a callback that fails, before it is passed over


class BatchSubscriber(ABC):
    """One who is told of many ends at once."""

    @abstractmethod
    async def told(self, commands: list[Command]) -> None:
        """These have ended. A `StoreError` means: not now, all of them again later."""

    @abstractmethod
    async def reported(self, report: DeviceReport) -> None:
        """A device told something by itself."""


Callback: TypeAlias = Callable[[Command], Awaitable[None] | None]
Subscriber: TypeAlias = Callback | BatchSubscriber


class Publisher:
    """Takes ended commands from the outbox to the subscribers."""

    def __init__(self, store: CommandStore) -> None:
        self._store = store
        self._subscribers: list[BatchSubscriber] = []

    def subscribe(self, subscriber: Subscriber) -> None:
        """From now on tell this one, too."""
        if isinstance(subscriber, BatchSubscriber):
            self._subscribers.append(subscriber)
        else:
            self._subscribers.append(_OneByOne(subscriber))

    async def publish(self) -> int:
        """One batch of ends; how many subscribers now know of."""
        stored = await self._store.take_ended(limit=_TOLD_AT_ONCE, hold=_HOLD)
        if not stored:
            return 0
        commands = opened_all(stored)
        for subscriber in self._subscribers:
            await _several_times(partial(subscriber.told, commands))
        await self._store.mark_published([each.id for each in stored])
        return len(stored)

    async def report(self, report: DeviceReport) -> None:
        """Something that a device told by itself."""
        for subscriber in self._subscribers:
            await _several_times(partial(subscriber.reported, report))


class _OneByOne(BatchSubscriber):
    """A plain callback. One that fails is tried again a few times, then logged and passed over."""

    def __init__(self, callback: Callback) -> None:
        self._callback = callback

    async def told(self, commands: list[Command]) -> None:
        for command in commands:
            await _several_times(partial(self._tell, command))

    async def reported(self, report: DeviceReport) -> None:
        """A plain callback is for commands."""

    async def _tell(self, command: Command) -> None:
        answer: Any = self._callback(command)
        if inspect.isawaitable(answer):
            await answer


async def _several_times(tell: Callable[[], Awaitable[None]]) -> None:
    """Tell a subscriber; one that fails is told again at once, a few times, then passed over."""
    for tries in range(1, _TRIES + 1):
        try:
            return await tell()
        except StoreError:
            raise  # later, all of them
        except Exception:  # noqa: BLE001  # a subscriber's error must not keep others from being told
            if tries == _TRIES:
                _log.exception("a subscriber failed %d times, and is passed over", _TRIES)
    return None
