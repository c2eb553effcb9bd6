"""Replay plans: chosen from the lake, carried out on the store, each letter once whatever happens."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from remuda import Queue, Reason, State
from remuda.clock import VirtualClock
from remuda.devices.command import CommandType, Device, Protocol
from remuda.devices.fleet import Fleet
from remuda.devices.happenings import Accepted, Dispatched, TimePassed, Transmitted
from remuda.devices.sending import NewCommand
from remuda.errors import ConfigurationError
from remuda.lake.place import Lake
from remuda.lake.replay import Plan, Selection, carry_out, list_plans, load_plan, make_plan, report_of
from remuda.lake.replay.plans import cautions_of, keep_plan
from remuda.lake.replay.targets import QueueTarget
from remuda.lake.schemas import DEAD_LETTERS
from remuda.lifecycle import CommandStatus
from remuda.transition import Transition, from_ms, to_ms
from tests.contract.workbench import HOUR, SECOND, trail
from tests.lake.dead_workbench import (
    METER,
    SOURCE,
    START,
    Killed,
    die,
    fail_again,
    fail_command,
    gather,
    killed_at,
    succeed,
)

STORES = ["sqlite", "valkey", "postgres"]
IDS = [f"id-{n}" for n in range(7)]
FEW = IDS[:5]


class JumpingClock(VirtualClock):
    """Nobody waits: a sleep moves it on."""

    async def sleep(self, duration: timedelta) -> None:
        self.advance(duration)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


@pytest.fixture
def clock() -> JumpingClock:
    return JumpingClock(START)


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


async def plan_of(lake: Lake, queue: Queue, *, now: Any = START) -> Plan:
    """A plan of all dead letters of a queue, as the lake would make it: with the moments of the trail."""
    letters = [each async for each in queue.dead.export()]
    rows = [
        {
            "source": SOURCE,
            "queue": queue.name,
            "message": each.id,
            "died_at": from_ms(to_ms(each.died_at or START)),
            "name": each.name,
            "reason": each.reason,
        }
        for each in letters
    ]
    table = pa.Table.from_pylist(rows, schema=DEAD_LETTERS.arrow_schema())
    return keep_plan(lake, table, Selection(queue=queue.name), now=now)


def replays(transitions: list[Transition]) -> Counter[str]:
    """How often each message was put back."""
    return Counter(
        each.message for each in transitions if (each.left, each.entered) == (State.FAILED, State.PENDING)
    )


async def test_a_plan_killed_between_any_two_steps_replays_each_letter_once(
    url: str, lake: Lake, clock: JumpingClock
) -> None:
    """The worker fails at once, and the clock stands still: a letter that died again looks like the first."""
    for step in range(1, 6):  # the four of the first batch, and one of the second
        async with Queue(f"orders-{step}", url, clock=clock) as queue:
            await die(queue, FEW)
            plan = await plan_of(lake, queue)
            with killed_at(step) as on_step:
                await carry_out(lake, plan, url, batch=3, clock=clock, on_step=on_step)
                pytest.fail("it was not killed")
            died_again = await fail_again(queue)
            report = await carry_out(lake, plan, url, batch=2, clock=clock)
            assert (report.replayed, report.done, report.left_alone) == (5, 5, {}), step
            assert replays(await trail(queue)) == Counter(FEW), step
            assert len(died_again) + len(await fail_again(queue)) == 5
    again = await carry_out(lake, plan, url, clock=clock)
    assert (again, report_of(lake, plan)) == (report, report)


async def test_a_plan_killed_inside_the_stores_step_does_the_rest_once(
    url: str, lake: Lake, clock: JumpingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Queue("orders", url, clock=clock) as queue:
        await die(queue, IDS, clock=clock)
        plan = await plan_of(lake, queue)
        whole = QueueTarget._replay

        async def part(target: QueueTarget, there: dict[str, Any]) -> Any:
            await whole(target, dict(list(there.items())[:2]))
            raise Killed

        monkeypatch.setattr(QueueTarget, "_replay", part)
        with pytest.raises(Killed):
            await carry_out(lake, plan, url, batch=5, clock=clock)
        monkeypatch.undo()
        assert report_of(lake, plan).done == 0
        assert sorted(await fail_again(queue)) == IDS[:2]
        report = await carry_out(lake, plan, url, batch=5, clock=clock)
        assert (report.replayed, report.left, report.left_alone) == (7, 0, {})
        assert replays(await trail(queue)) == Counter(IDS)


async def test_a_trail_that_was_trimmed_meanwhile_costs_the_count_but_no_second_replay(
    sqlite_url: str, lake: Lake, clock: JumpingClock
) -> None:
    async with Queue("orders", sqlite_url, clock=clock) as queue:
        await die(queue, IDS)
        plan = await plan_of(lake, queue)
        with killed_at(3) as on_step:
            await carry_out(lake, plan, sqlite_url, batch=3, clock=clock, on_step=on_step)
        clock.advance(SECOND)
        assert len(await fail_again(queue)) == 3
        end = (await queue.store.trail_span("orders")).last
        await queue.store.trim_transitions("orders", up_to=end)
        report = await carry_out(lake, plan, sqlite_url, clock=clock)
        assert (report.replayed, report.died_again) == (4, 3)
        assert replays(await trail(queue, after=end)) == Counter(IDS[3:])


async def test_what_has_changed_since_the_plan_is_left_alone_and_told(
    url: str, lake: Lake, clock: JumpingClock
) -> None:
    async with Queue("orders", url, clock=clock) as queue:
        await die(queue, IDS, clock=clock)
        plan = await plan_of(lake, queue)
        clock.advance(HOUR)
        await queue.dead.drop(ids=["id-0"])
        await queue.dead.replay(ids=["id-1", "id-2"])
        assert sorted(await fail_again(queue, 1)) == ["id-1"]
        assert await succeed(queue) == ["id-2"]
        await queue.add_unique("charge", job_id="id-3")  # its id is free again, and lives

        report = await carry_out(lake, plan, url, batch=4, clock=clock)

        assert report.left_alone == {
            "gone": ["id-0", "id-2"],
            "died_again": ["id-1"],
            "still_live": ["id-3"],
        }
        assert (report.replayed, report.gone, report.died_again, report.still_live) == (3, 2, 1, 1)
        assert await queue.dead.count() == {"retries_exhausted": 2}
        by_plan = [each.message for each in await trail(queue) if each.who == plan.who]
        assert by_plan == ["id-4", "id-5", "id-6"]


async def test_of_two_letters_of_one_id_the_planned_one_is_replayed(
    url: str, lake: Lake, clock: JumpingClock
) -> None:
    async with Queue("orders", url, clock=clock) as queue:
        await die(queue, ["a", "b", "a"], clock=clock)
        clock.advance(HOUR)
        letters = [each async for each in queue.dead.export()]
        assert [each.id for each in letters] == ["a", "b", "a"]
        rows = [
            {"source": SOURCE, "queue": "orders", "message": each.id, "died_at": each.died_at}
            for each in letters[1:]
        ]
        table = pa.Table.from_pylist(rows, schema=DEAD_LETTERS.arrow_schema())
        plan = keep_plan(lake, table, Selection(queue="orders"), now=START)
        report = await carry_out(lake, plan, url, clock=clock)
        assert report.replayed == 2
        (left,) = await queue.dead.peek()
        assert (left.id, left.value()) == ("a", {"n": 1})


async def test_a_run_keeps_to_its_rate_and_its_limit(
    sqlite_url: str, lake: Lake, clock: JumpingClock
) -> None:
    async with Queue("orders", sqlite_url, clock=clock) as queue:
        await die(queue, IDS)
        plan = await plan_of(lake, queue)
        began = clock.now()
        seen: list[tuple[int, timedelta]] = []

        def note(report: Any) -> None:
            seen.append((report.replayed, clock.now() - began))

        report = await carry_out(lake, plan, sqlite_url, rate=2, clock=clock, on_progress=note, limit=5)
        assert seen == [(2, 0 * SECOND), (4, SECOND), (5, 2 * SECOND)]
        assert (report.replayed, report.left) == (5, 2)
        assert [each.id for each in await queue.dead.peek()] == ["id-6", "id-5"]
        began, seen = clock.now(), []
        await carry_out(lake, plan, sqlite_url, rate=0.5, clock=clock, on_progress=note)
        assert seen == [(6, 0 * SECOND), (7, 2 * SECOND)]
        for wrong in ({"rate": 0}, {"batch": 0}):
            with pytest.raises(ConfigurationError, match="not 0"):
                await carry_out(lake, plan, sqlite_url, **wrong)


def on_fleet(url: str, clock: VirtualClock, story: Callable[[Fleet], Coroutine[Any, Any, Any]]) -> Any:
    async def opened() -> Any:
        async with Fleet(url, name="meters", clock=clock) as fleet:
            return await story(fleet)

    return asyncio.run(opened())


@pytest.mark.parametrize("kind", ["sqlite", "valkey"])
def test_failed_commands_are_replayed_once_and_tokens_in_doubt_are_refused(
    kind: str, request: pytest.FixtureRequest, lake: Lake, clock: JumpingClock
) -> None:
    url = request.getfixturevalue(f"{kind}_url")
    meters = [Device(reference=f"4700000000{n}", protocol=Protocol.LORAWAN) for n in range(6)]

    async def fail_all(fleet: Fleet) -> list[str]:
        ids = [await fail_command(fleet, meter) for meter in meters]
        token = NewCommand(type=CommandType.TOP_UP, device=METER, data={"token": "1234"})
        doubtful = (await fleet.send(token)).id
        sent = [Dispatched(), Accepted(attempt=1, external_id="x"), Transmitted(attempt=1)]
        await fleet.ledger.happen({doubtful: sent})
        for _ in range(2):
            clock.advance(HOUR)
            await fleet.ledger.happen({doubtful: [TimePassed()]})
        return [*ids, doubtful]

    ids = on_fleet(url, clock, fail_all)

    async def rows(fleet: Fleet) -> list[dict[str, Any]]:
        found = await fleet.ledger.load(ids)
        return [
            {
                "source": SOURCE,
                "queue": "devices:meters",
                "message": each,
                "died_at": from_ms(to_ms(found[each].status_since)),
                "reason": found[each].reason,
            }
            for each in ids
        ]

    table = pa.Table.from_pylist(on_fleet(url, clock, rows), schema=DEAD_LETTERS.arrow_schema())
    plan = keep_plan(lake, table, Selection(queue="devices:meters"), now=START)
    assert plan.cautions[0].startswith("1 may have been carried out")
    clock.advance(HOUR)

    async def meanwhile(fleet: Fleet) -> None:
        assert await fleet.replay(ids[0])
        assert await fleet.replay(ids[1])
        await fleet.cancel(ids[1])

    on_fleet(url, clock, meanwhile)
    with killed_at(3) as on_step:  # after the store's step, before its note
        asyncio.run(carry_out(lake, plan, url, batch=4, clock=clock, on_step=on_step))
    report = asyncio.run(carry_out(lake, plan, url, batch=4, clock=clock))
    assert report.left_alone == {"gone": [ids[0]], "died_again": [ids[1]], "refused": [ids[6]]}
    assert report.replayed == 4

    async def after(fleet: Fleet) -> list[tuple[CommandStatus, int]]:
        found = await fleet.ledger.load(ids)
        return [(found[each].status, found[each].replays) for each in ids]

    queued, failed = CommandStatus.QUEUED, CommandStatus.DELIVERY_FAILED
    assert on_fleet(url, clock, after) == [(queued, 1), (failed, 1), *[(queued, 1)] * 4, (failed, 0)]


def test_a_plan_is_chosen_from_the_lake_by_any_filter_or_by_sql(
    sqlite_url: str, lake: Lake, clock: JumpingClock, spark: SparkSession
) -> None:
    async def first(queue: Queue) -> None:
        await die(queue, ["a", "b"], clock=clock)
        await die(queue, ["bad"], lambda _: None, name="refund", reason=Reason.DECODE_FAIL, clock=clock)
        await die(queue, ["c"], clock=clock)
        await queue.dead.replay(ids=["a"])
        await succeed(queue)

    def on_queue(story: Callable[[Queue], Coroutine[Any, Any, Any]]) -> Any:
        async def opened() -> Any:
            async with Queue("orders", sqlite_url, clock=clock) as queue:
                return await story(queue)

        return asyncio.run(opened())

    on_queue(first)
    gather(lake, spark, sqlite_url)

    def planned(**selection: Any) -> Plan:
        return make_plan(lake, spark, Selection(**selection), now=START)

    everything = planned(queue="orders")
    assert everything.by_reason == {"retries_exhausted": 3, "decode_fail": 1}  # no histories: `a` may be dead
    assert everything.by_name == {"charge": 3, "refund": 1}
    assert everything.examples == ["a", "b", "bad", "c"]
    assert (everything.oldest, everything.newest) == (START, START + 3 * SECOND)
    assert everything.cautions == cautions_of({"decode_fail": 1})
    some = planned(reason="retries_exhausted", since=START + SECOND, until=START + 3 * SECOND, limit=1)
    assert some.examples == ["b"]
    by_sql = planned(sql="SELECT queue, message FROM dead_letters WHERE name = 'refund' OR message = 'c'")
    assert by_sql.examples == ["bad", "c"]
    nothing = planned(name="nobody")
    assert (nothing.letters, nothing.source) == (0, "")
    assert {each.id for each in list_plans(lake)} >= {everything.id, by_sql.id}
    assert nothing.id not in {each.id for each in list_plans(lake)}
    for wrong, words in (
        ({}, "say which"),
        ({"queue": "orders", "limit": 0}, "not 0"),
        ({"since": START.replace(tzinfo=None)}, "no time zone"),
        ({"sql": "SELECT message FROM dead_letters"}, "no column queue"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            planned(**wrong)
    with pytest.raises(ConfigurationError, match="no plan 'x'"):
        load_plan(lake, "x")
    with pytest.raises(ConfigurationError, match="not the id"):
        load_plan(lake, "../x")

    plan = load_plan(lake, everything.id)
    assert plan == everything
    report = asyncio.run(carry_out(lake, plan, sqlite_url, clock=clock))
    assert (report.replayed, report.gone, report.left_alone) == (3, 1, {"gone": ["a"]})
