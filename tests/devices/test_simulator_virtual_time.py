"""A loop whose time jumps: order, exactness, dead ends, and that waiting costs nothing."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.clock import Clock
from remuda.devices.simulator.virtual_time import DeadlockError, VirtualTimeLoop, run_virtually

START = datetime(2030, 1, 1, tzinfo=UTC)


def test_a_month_passes_at_once_and_the_clock_shows_it() -> None:
    async def nap(clock: Clock) -> datetime:
        assert clock.now() == START
        await clock.sleep(timedelta(days=30, microseconds=1))
        return clock.now()

    assert run_virtually(nap, start=START) == START + timedelta(days=30, microseconds=1)


@given(st.lists(st.floats(0, 1e8), min_size=1, max_size=30))
@settings(max_examples=30, deadline=None)
def test_timers_fire_in_their_order_and_never_early(delays: list[float]) -> None:
    async def wait_all(clock: Clock) -> list[tuple[float, float]]:
        loop, woken = asyncio.get_running_loop(), []

        async def nap(delay: float) -> None:
            await asyncio.sleep(delay)
            woken.append((delay, loop.time()))

        await asyncio.gather(*map(nap, delays))
        return woken

    woken = run_virtually(wait_all, start=START)
    assert [delay for delay, _ in woken] == sorted(delays)
    assert all(at == pytest.approx(delay, abs=1e-6) for delay, at in woken)


def test_waiting_forever_is_an_error_that_names_who_waits() -> None:
    async def hang(clock: Clock) -> None:
        asyncio.current_task().set_name("the one that hangs")  # type: ignore[union-attr]
        await asyncio.sleep(5)
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError, match="the one that hangs"):
        run_virtually(hang, start=START)


def test_time_limits_work() -> None:
    async def limited(clock: Clock) -> timedelta:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(12):
                await asyncio.Event().wait()
        return clock.now() - START

    assert run_virtually(limited, start=START) == timedelta(seconds=12)


def test_what_is_given_to_a_thread_runs_in_place_while_time_stands_still() -> None:
    async def ask(clock: Clock) -> tuple[int, datetime]:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return await asyncio.to_thread(threading.get_ident), clock.now()

    assert run_virtually(ask, start=START) == (threading.get_ident(), START)


def test_a_hundred_thousand_timers_take_one_step_each() -> None:
    async def count(clock: Clock) -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        left, done = 100_000, asyncio.Event()

        def tick() -> None:
            nonlocal left
            left -= 1
            if left:
                loop.call_later(3600.0, tick)
            else:
                done.set()

        loop.call_later(3600.0, tick)
        await done.wait()
        assert clock.now() - START == timedelta(hours=100_000)
        return loop.steps

    assert run_virtually(count, start=START) < 100_100
