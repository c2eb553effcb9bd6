"""A crash at any line: what a store does is a row of scripts, and it may break before and after each.

A script is one step for the server, so there is nowhere else that it could break.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, Literal, TypeVar

import pytest

from remuda import NewJob, Queue, Reason, State, StoreUnavailableError
from remuda.clock import VirtualClock
from remuda.stores.contract import Delivery
from remuda.stores.redis.keys import keys_of
from remuda.stores.redis.link import Script
from tests.contract.workbench import ALL, LEASE, acked, checked_trail, dead, nacked
from tests.faults.trail import audited, states

pytestmark = pytest.mark.faults

T = TypeVar("T")
When = Literal["before", "after"]
Insist = Callable[[Callable[[], Awaitable[T]]], Awaitable[T]]

MOMENT = timedelta(seconds=1)
JOBS = 12
ENDED = {State.COMPLETED, State.FAILED, State.REMOVED}


class Break(Exception):
    """The process dies here."""


class Breaking:
    """A store's `Link.run` that breaks once, at its script number `at`."""

    def __init__(
        self, run: Callable[..., Awaitable[Any]], at: int | None, when: When, error: Exception
    ) -> None:
        self._run = run
        self._at = at
        self._when = when
        self._error = error
        self.ran: list[str] = []

    async def __call__(self, script: Script, keys: Sequence[Any], arguments: Sequence[Any]) -> Any:
        self.ran.append(script.name)
        due = len(self.ran) - 1 == self._at
        if due and self._when == "before":
            raise self._error
        answer = await self._run(script, keys, arguments)
        if due:
            raise self._error
        return answer


async def test_whatever_step_is_not_answered_each_job_comes_to_its_end_once(redis_store_url: str) -> None:
    """The connection breaks, and the program goes on: it says again what may be said again."""
    async with _fresh(redis_store_url, "whole") as queue:
        steps = await _steps(queue, None, "before", StoreUnavailableError("cut"))
    assert {"add", "fetch", "extend", "settle", "release", "recover", "replay"} <= set(steps)
    for at, name in enumerate(steps):
        for when in ("before", "after"):
            async with _fresh(redis_store_url, f"cut-{when}-{at}-{name}") as queue:
                await _steps(queue, at, when, StoreUnavailableError("cut"))


async def test_whatever_step_a_program_dies_at_each_job_that_is_there_comes_to_its_end_once(
    redis_store_url: str,
) -> None:
    """The process dies, and another one finds what it left."""
    async with _fresh(redis_store_url, "whole") as queue:
        steps = await _steps(queue, None, "before", Break())
    for at, name in enumerate(steps):
        for when in ("before", "after"):
            async with _fresh(redis_store_url, f"died-{when}-{at}-{name}") as queue:
                await _steps(queue, at, when, Break())


@asynccontextmanager
async def _fresh(url: str, name: str) -> AsyncIterator[Queue]:
    print(name)  # noqa: T201 - pytest shows with a failure where it broke
    async with Queue(name, url, clock=VirtualClock()) as queue:
        yield queue


async def _steps(queue: Queue, at: int | None, when: When, error: Exception) -> list[str]:
    """A life of jobs that breaks at one step, and what another program makes of it; the steps there are."""
    link = queue.store._link  # type: ignore[attr-defined]
    breaking = Breaking(link.run, at, when, error)
    link.run = breaking
    with suppress(Break):
        await _live(queue)
    link.run = breaking._run
    await _another_program_takes_over(queue)
    await _nothing_is_lost(queue, died=isinstance(error, Break))
    return breaking.ran


async def _insist(do: Callable[[], Awaitable[T]]) -> T:
    """As a worker does with what it must know the answer to."""
    try:
        return await do()
    except StoreUnavailableError:
        return await do()


async def _live(queue: Queue) -> None:
    """Each kind of job, and everything that can become of one."""
    store, name, clock = queue.store, queue.name, queue.store._clock  # type: ignore[attr-defined]
    for number in range(JOBS):
        await _insist(lambda number=number: store_add(queue, number))
    clock.advance(MOMENT)
    taken = await _insist(lambda: _fetch(queue, JOBS - 2))
    clock.advance(MOMENT)
    await _insist(lambda: store.extend(name, taken[::2], lease=LEASE))
    outcomes = [_outcome(queue, place, each) for place, each in enumerate(taken[:6])]
    await _insist(lambda: store.settle(name, outcomes, who="worker"))
    with suppress(StoreUnavailableError):
        await store.release(name, taken[6:7], who="worker", counted=True)
    with suppress(StoreUnavailableError):
        turn = clock.now() + MOMENT
        await store.release(name, taken[7:8], who="worker", counted=False, until=[turn] * len(taken[7:8]))
    clock.advance(MOMENT)
    again = await _insist(lambda: _fetch(queue, 2))
    await _insist(lambda: store.settle(name, [acked(each) for each in again], who="worker"))
    clock.advance(LEASE)
    await _insist(lambda: store.recover(name, timeout=LEASE, who="worker"))
    await _insist(lambda: store.replay_dead(name, ALL, limit=1, who="operator"))
    await _insist(lambda: store.drop_dead(name, ALL, limit=1, who="operator"))
    await _insist(lambda: queue.cancel(_id(JOBS - 1)))


def _id(number: int) -> str:
    return f"job-{number}"


async def store_add(queue: Queue, number: int) -> None:
    """One that can be added again without harm: every job here has an id of its own."""
    job = NewJob(
        "job",
        number,
        job_id=_id(number),
        unique_for=timedelta(hours=1),
        priority=number % 3 - 1,
        delay=MOMENT if number % 4 == 1 else None,
        headers={"number": str(number)} if number % 2 else {},
    )
    await queue.add_many([job])


async def _fetch(queue: Queue, limit: int) -> list[Delivery]:
    return await queue.store.fetch(queue.name, limit=limit, lease=LEASE, who="worker")


def _outcome(queue: Queue, place: int, delivery: Delivery) -> Any:
    if place % 3 == 0:
        return acked(delivery)
    if place % 3 == 1:
        return nacked(delivery, queue.store.now() + MOMENT)
    return dead(delivery, Reason.UNRECOVERABLE)


async def _another_program_takes_over(queue: Queue) -> None:
    """After the leases of the one that broke: recover, and bring everything to its end."""
    store, name = queue.store, queue.name
    store._clock.advance(2 * LEASE)  # type: ignore[attr-defined]
    await store.recover(name, timeout=LEASE, who="heir")
    while deliveries := await _fetch(queue, 5):
        assert await store.settle(name, [acked(each) for each in deliveries], who="heir") == []


async def _nothing_is_lost(queue: Queue, *, died: bool) -> None:
    await checked_trail(queue)
    trail = await audited(queue)
    added = {_id(number) for number in range(JOBS)}
    assert trail.keys() <= added if died else trail.keys() == added
    for history in trail.values():
        path = states(history)
        assert path[-1] in ENDED, history
        assert path.count(State.COMPLETED) <= 1, history
    assert (await queue.stats()).live == 0
    await _nothing_is_left_behind(queue)


async def _nothing_is_left_behind(queue: Queue) -> None:
    """What a store notes of live jobs is gone with the last of them."""
    link, keys = queue.store._link, keys_of(queue.name)  # type: ignore[attr-defined]
    for key in (keys.leases, keys.extra, keys.delayed, keys.retryable, keys.returned):
        assert await link.call("EXISTS", key) == 0, f"{key} is not empty"
    for stream in keys.streams:
        if await link.call("EXISTS", stream):
            assert (await link.call("XPENDING", stream, "default"))[0] == 0
