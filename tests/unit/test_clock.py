"""The virtual clock: stands still until it is moved, and wakes sleepers in order."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from remuda.clock import SystemClock, VirtualClock

SECOND = timedelta(seconds=1)


def test_it_stands_still_until_it_is_moved() -> None:
    clock = VirtualClock(datetime(2030, 1, 1, tzinfo=UTC))
    assert clock.now() == clock.now() == datetime(2030, 1, 1, tzinfo=UTC)
    clock.advance(timedelta(days=2))
    assert clock.now() == datetime(2030, 1, 3, tzinfo=UTC)


def test_it_does_not_go_back() -> None:
    clock = VirtualClock()
    with pytest.raises(ValueError, match="moved back"):
        clock.advance(-SECOND)


async def test_sleepers_wake_at_their_time_and_in_its_order() -> None:
    clock = VirtualClock()
    woken: list[int] = []

    async def sleeper(seconds: int) -> None:
        await clock.sleep(seconds * SECOND)
        woken.append(seconds)

    tasks = [asyncio.create_task(sleeper(seconds)) for seconds in (3, 1, 2, 2)]
    await asyncio.sleep(0)
    clock.advance(SECOND - timedelta(microseconds=1))
    await asyncio.sleep(0)
    assert woken == []
    clock.advance(timedelta(microseconds=1))
    await asyncio.sleep(0)
    assert woken == [1]
    clock.advance(5 * SECOND)
    await asyncio.gather(*tasks)
    assert woken == [1, 2, 2, 3]


async def test_a_cancelled_sleeper_is_no_trouble() -> None:
    clock = VirtualClock()
    task = asyncio.create_task(clock.sleep(SECOND))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    clock.advance(2 * SECOND)


async def test_no_time_at_all_is_over_at_once() -> None:
    await asyncio.wait_for(VirtualClock().sleep(timedelta(0)), 1)
    await asyncio.wait_for(SystemClock().sleep(timedelta(0)), 1)


def test_the_systems_clock_is_aware() -> None:
    assert SystemClock().now().utcoffset() == timedelta(0)
