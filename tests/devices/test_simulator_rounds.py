"""Rounds: at whole intervals, in batches, and only while somebody waits."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from remuda.clock import Clock
from remuda.devices.simulator.rounds import Rounds
from remuda.devices.simulator.virtual_time import VirtualTimeLoop, run_virtually

START = datetime(2030, 1, 1, tzinfo=UTC)


def visits(plans: list[tuple[float, str, float]], *, batch: int = 100) -> tuple[list[tuple[float, str]], int]:
    """Who was visited when, after each (when, who, at) was planned, and the loop's steps over an hour."""

    async def main(clock: Clock) -> tuple[list[tuple[float, str]], int]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        seen: list[tuple[float, str]] = []
        rounds = Rounds[str](1.0, batch, lambda who: seen.append((loop.time(), who)))
        for when, who, at in plans:
            loop.call_at(when, rounds.plan, who, at)
        await asyncio.sleep(3600)
        return seen, loop.steps

    return run_virtually(main, start=START)


def test_a_device_is_looked_at_in_the_first_round_after_its_time() -> None:
    seen, _ = visits([(0.3, "a", 0.3), (0.4, "b", 7.2)])
    assert seen == [(1.0, "a"), (8.0, "b")]


def test_a_new_plan_takes_the_place_of_the_old_one() -> None:
    seen, _ = visits(
        [(0.1, "a", 5.5), (0.2, "a", 1.5), (0.1, "b", 1.5), (0.2, "b", 5.5), (0.3, "c", 2.0), (0.3, "c", 2.0)]
    )
    assert seen == [(2.0, "a"), (2.0, "c"), (6.0, "b")]


def test_a_round_takes_no_more_than_its_batch_and_the_longest_waiting_first() -> None:
    seen, _ = visits([(0.5, who, 0.1 * (9 - number)) for number, who in enumerate("abcde")], batch=2)
    assert [who for _, who in seen] == ["e", "d", "c", "b", "a"]
    assert [at for at, _ in seen] == [1.0, 1.0, 2.0, 2.0, 3.0]


def test_who_plans_anew_in_a_round_waits_for_the_next() -> None:
    async def main(clock: Clock) -> list[float]:
        loop, seen = asyncio.get_running_loop(), list[float]()

        def visit(who: str) -> None:
            seen.append(loop.time())
            if len(seen) < 3:
                rounds.plan(who, loop.time())

        rounds = Rounds[str](1.0, 100, visit)
        rounds.plan("a", 0.5)
        await asyncio.sleep(60)
        return seen

    assert run_virtually(main, start=START) == [1.0, 2.0, 3.0]


def test_there_are_no_rounds_while_nobody_waits() -> None:
    seen, steps = visits([(10.0, "a", 10.0), (3000.0, "b", 3500.0)])
    assert [who for _, who in seen] == ["a", "b"]
    assert steps < 20
