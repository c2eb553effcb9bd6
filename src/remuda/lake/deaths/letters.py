"""What the store still knows of deaths: the error of each, found by its message and its moment."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import NamedTuple, TypeVar

import msgspec

from remuda.devices.command import Command, Failure
from remuda.devices.ledger import opened_all
from remuda.message import DeadLetter, DeadLetterFilter
from remuda.stores import open_store
from remuda.stores.command_trail import fleet_of
from remuda.stores.commands import CommandStore
from remuda.stores.contract import Store
from remuda.stores.opening_commands import open_commands

MAX_MESSAGE = 2_000
MAX_TRACE = 8_000
# A death and its letter are written in one step, but one moment may be cut to milliseconds.
SAME_MOMENT = timedelta(seconds=1)
_AT_ONCE = 500  # letters or commands to a call of the store

S = TypeVar("S")
T = TypeVar("T")


class Death(NamedTuple):
    """One record of the trail: a message entered FAILED or DELIVERY_FAILED."""

    queue: str
    seq: int
    message: str
    at: datetime
    attempt: int
    reason: str | None
    who: str | None
    batch: int


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a death beyond its record. `described`: its error could be read."""

    name: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    error_trace: str | None = None
    worker: str | None = None
    payload_bytes: int | None = None
    device: str | None = None
    lane: str | None = None
    gateway: str | None = None
    described: bool = False


class Deaths:
    """Deaths of one queue that nothing was said of yet."""

    def __init__(self, deaths: Sequence[Death]) -> None:
        self._by_message: dict[str, list[Death]] = defaultdict(list)
        for each in deaths:
            self._by_message[each.message].append(each)

    def take(self, message: str, at: datetime) -> Death | None:
        """The death of a message at a moment; it is not given twice."""
        known = self._by_message.get(message)
        if not known:
            return None
        nearest = min(known, key=lambda each: abs(each.at - at))
        if abs(nearest.at - at) > SAME_MOMENT:
            return None
        known.remove(nearest)
        return nearest

    def take_all(self, message: str) -> list[Death]:
        """Those of a message that were not given yet."""
        return self._by_message.pop(message, [])


def described(url: str, queue: str, deaths: Sequence[Death]) -> Iterator[tuple[Death, Description]]:
    """The deaths of a queue, or of a fleet, of which the store still has something to say."""
    open_deaths = Deaths(deaths)
    fleet = fleet_of(queue)
    if fleet is not None:
        ids = list(dict.fromkeys(each.message for each in deaths))
        for commands in _paging(lambda: open_commands(url, fleet=fleet), lambda store: _commands(store, ids)):
            for command in commands:
                yield from _of_command(command, open_deaths)
        return
    which = DeadLetterFilter(
        since=min(each.at for each in deaths) - SAME_MOMENT,
        until=max(each.at for each in deaths) + SAME_MOMENT,
    )
    for letters in _paging(lambda: open_store(url), lambda store: _letters(store, queue, which)):
        for letter in letters:
            death = None if letter.died_at is None else open_deaths.take(letter.id, letter.died_at)
            if death is not None:
                yield death, _of_letter(letter)


async def _letters(store: Store, queue: str, which: DeadLetterFilter) -> AsyncIterator[list[DeadLetter]]:
    after: str | None = None
    while page := await store.peek_dead(queue, which, limit=_AT_ONCE, after=after, oldest_first=True):
        yield page
        after = page[-1].cursor


async def _commands(store: CommandStore, ids: Sequence[str]) -> AsyncIterator[list[Command]]:
    for start in range(0, len(ids), _AT_ONCE):
        yield opened_all((await store.load(ids[start : start + _AT_ONCE])).values())


def _of_letter(letter: DeadLetter) -> Description:
    return Description(
        name=letter.name,
        error_type=letter.error_type,
        error_message=letter.error_message,
        error_trace=letter.error_trace,
        worker=letter.worker,
        payload_bytes=len(letter.payload),
        described=True,
    )


def _of_command(command: Command, deaths: Deaths) -> Iterator[tuple[Death, Description]]:
    """Every death of a command: with its error, unless so much has gone wrong since that it was forgotten."""
    about = Description(
        name=command.type.value,
        payload_bytes=len(msgspec.msgpack.encode(command.data)),
        device=command.device.key,
        lane=command.lane,
        gateway=None if command.device.gateway is None else command.device.gateway.id,
    )
    for place, failure in enumerate(command.failures):
        death = deaths.take(command.id, failure.at) if failure.final else None
        if death is not None:
            yield death, _with_cause(about, command.failures[place:])
    for death in deaths.take_all(command.id):
        yield death, about


def _with_cause(about: Description, failures: Sequence[Failure]) -> Description:
    """The end itself where it says more than its reason, else what went wrong last before it."""
    cause = failures[0]
    if cause.code is None and cause.details is None and len(failures) > 1 and not failures[1].final:
        cause = failures[1]
    words = ": ".join(each for each in (cause.code, cause.details) if each)
    return msgspec.structs.replace(
        about, error_type=cause.reason, error_message=words or None, described=True
    )


def _paging(
    open_it: Callable[[], AbstractAsyncContextManager[S]], use: Callable[[S], AsyncIterator[T]]
) -> Iterator[T]:
    """What an open store gives, page by page, for a program without an event loop."""

    async def opened() -> AsyncGenerator[T, None]:
        async with open_it() as store:
            async for page in use(store):
                yield page

    loop = asyncio.new_event_loop()
    pages = opened()
    try:
        while True:
            try:
                page = loop.run_until_complete(anext(pages))
            except StopAsyncIteration:
                return
            yield page
    finally:
        loop.run_until_complete(pages.aclose())
        loop.close()
