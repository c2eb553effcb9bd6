"""Commands in a database: the tables are migrated with what they hold, and batches are all or nothing."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest

from remuda import Queue, SchemaError
from remuda.clock import VirtualClock
from remuda.lifecycle import CommandStatus
from remuda.stores.commands import TIMED_HOMES, CommandStore, Home, Pace
from remuda.stores.sql import command_ends, command_fleet, command_lanes, command_signals, command_writing
from remuda.stores.sql.commands import SqlCommands
from remuda.stores.sql.schema import SCHEMA_VERSION
from remuda.stores.sql.steps import Query, Rows, Steps
from tests.commands.workbench import (
    ANY_LANE,
    HOLD,
    HOUR,
    LANE,
    START,
    WHO,
    claimed,
    ended,
    keep,
    move,
    new,
    next_of,
    picture,
    put,
    signal,
    stored,
    taken,
    trail,
)
from tests.contract.test_sql_schema import TABLES, migrated, opened, sql
from tests.contract.workbench import checked_trail, record_of

COMMAND_TABLES = [table for table in TABLES if table.startswith("command")]


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
async def store(url: str) -> AsyncIterator[SqlCommands]:
    async with SqlCommands(url, clock=VirtualClock()) as store:
        yield store


# -- the tables


async def test_tables_of_version_2_are_migrated_with_all_they_hold(url: str) -> None:
    async with Queue("orders", url) as queue:
        job_id = await queue.add("job", {"n": 1})
        assert len(await checked_trail(queue)) == 1
    sql(
        url,
        *(f"DROP TABLE {table}" for table in COMMAND_TABLES),
        f"UPDATE message_schema SET version = 2 WHERE version = {SCHEMA_VERSION}",
    )
    with pytest.raises(SchemaError, match=r"table command is missing.*migrate"):
        await opened(url)
    assert await migrated(url) == [3, 4, 5]
    assert await migrated(url) == []

    async with Queue("orders", url) as queue, SqlCommands(url) as commands:
        assert (await record_of(queue, job_id)).value() == {"n": 1}
        await put(commands, new("a", moves=(move(None, CommandStatus.QUEUED),)))
        assert await claimed(commands) == ["a"]
        assert [each.message for each in await trail(commands)] == ["a"]
        assert [each.message for each in await checked_trail(queue)] == [job_id]


async def test_the_trail_of_a_fleet_is_not_taken_for_a_queue(url: str, store: SqlCommands) -> None:
    await put(store, new("a", moves=(move(None, CommandStatus.QUEUED),)))
    assert len(await trail(store)) == 1
    async with Queue("orders", url) as queue:
        await queue.add("job")
        assert await queue.store.queues() == ["orders"]


async def test_commands_and_jobs_share_a_database_and_fleets_a_table(url: str, store: SqlCommands) -> None:
    async with SqlCommands(url, fleet="others") as others:
        await put(store, new("a", key="key-1"))
        await put(others, new("a", key="key-1", record=b"another"))
        assert (await others.load(["a"]))["a"].record == b"another"
        assert await claimed(store) == ["a"]
        assert await claimed(store) == []
        assert await claimed(others) == ["a"]


# -- all or nothing


class Crashed(Exception):
    pass


def crashing_at(steps: Callable[[], Steps[object]], place: int) -> Steps[object]:
    """The same steps, but an error instead of the statement at `place`."""
    running = steps()
    rows: Rows = ()
    asked = 0
    try:
        query: Query = next(running)
        while True:
            if asked == place:
                running.close()
                raise Crashed
            asked += 1
            rows = yield query
            query = running.send(rows)
    except StopIteration as end:
        return end.value


async def crash_everywhere(store: SqlCommands, steps: Callable[[], Steps[object]], *ids: str) -> None:
    """Break an operation off before each of its statements in turn; then let it pass."""
    before = await picture(store, *ids)
    for place in range(100):
        try:
            await store._store.change(lambda place=place: crashing_at(steps, place))  # type: ignore[misc]
        except Crashed:
            assert await picture(store, *ids) == before
        else:
            assert place > 2
            assert await picture(store, *ids) != before
            return
    raise AssertionError("it does not end")


async def test_a_write_that_breaks_off_changes_nothing(store: SqlCommands) -> None:
    await put(store, new("a", turn="dev-1", key="key-1"), new("b", turn="dev-1"))
    changes = [
        ended("a", 1, moves=(move(CommandStatus.QUEUED, CommandStatus.DELIVERY_FAILED),)),
        new(
            "c",
            lane="gateway:new",
            key="key-1",
            external_ids=("ext-1",),
            moves=(move(None, CommandStatus.QUEUED),),
        ),
    ]
    await crash_everywhere(
        store,
        lambda: command_writing.write(store._say, "devices", changes, who=WHO, whole=False, now=store.now()),
        "a",
        "b",
        "c",
    )
    assert sorted(await claimed(store)) == ["b", "c"]


async def test_a_claim_that_breaks_off_takes_nothing(store: SqlCommands) -> None:
    await put(store, *(new(f"c{n}", lane=f"gateway:g{n % 3}", turn=f"dev-{n}") for n in range(9)))
    paces = [Pace(prefix="gateway:", every=HOUR, slots=2)]
    now = store.now()
    await crash_everywhere(
        store, lambda: command_lanes.claim(store._say, "devices", paces, limit=2, hold=HOLD, now=now)
    )
    assert await claimed(store, *paces) == ["c2"]


async def test_a_round_of_the_reaper_that_breaks_off_takes_nothing(store: SqlCommands) -> None:
    await put(store, new("a", Home.TO_NS), new("b", Home.RETRY), new("c", expires_at=START))
    broken = 0
    for place in range(100):
        try:
            found = await store._store.change(
                lambda place=place: crashing_at(  # type: ignore[misc]  # mypy cannot type the default
                    lambda: command_ends.due(
                        store._say, "devices", TIMED_HOMES, limit=9, hold=HOLD, now=START
                    ),
                    place,
                )
            )
        except Crashed:
            broken += 1
        else:
            assert found == [stored("a", 1), stored("b", 1), stored("c", 1)]
            break
    assert broken >= 4
    assert await store.due(TIMED_HOMES, limit=9, hold=HOLD) == []


async def test_signals_that_break_off_are_kept_whole_or_not_at_all(store: SqlCommands) -> None:
    signals = [signal(f"s{n}") for n in range(3)]
    await crash_everywhere(
        store,
        lambda: _padded(
            command_signals.keep(store._say, "devices", signals, remember=HOUR, now=store.now()), store
        ),
    )
    assert [each for each, _ in await taken(store)] == ["s0", "s1", "s2"]
    assert await keep(store, *signals) == 0


def _padded(steps: Steps[int], store: SqlCommands) -> Steps[int]:
    """The steps, and a harmless one behind them, before which all of their statements have run."""
    result = yield from steps
    yield from command_fleet.served(store._say, "devices")
    return result


# -- side by side


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mariadb"])
async def test_engines_side_by_side_lose_nothing_and_double_nothing(
    request: pytest.FixtureRequest, kind: str
) -> None:
    """Several connections add, claim and end commands of few devices at once, until all have ended."""
    url = str(request.getfixturevalue(f"{kind}_url"))
    count, engines = 240, 4
    moved = (move(None, CommandStatus.QUEUED),)
    claims: Counter[str] = Counter()
    on_their_way: set[str] = set()

    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(SqlCommands(url)) for _ in range(engines)]

        async def add(store: CommandStore, mine: range) -> None:
            for start in mine[::10]:
                batch = [
                    new(f"c{n:04d}", turn=f"dev-{n % 12}", lane=f"gateway:g{n % 5}", moves=moved)
                    for n in range(start, start + 10)
                ]
                assert await store.write(batch, who=WHO) == [True] * 10

        async def work(store: CommandStore) -> None:
            while sum(claims.values()) < count:
                found = (await store.claim(ANY_LANE, limit=7, hold=HOUR)).commands
                claims.update(each.id for each in found)
                turns = [f"dev-{int(each.id[1:]) % 12}" for each in found]
                assert len(set(turns)) == len(turns)
                assert not on_their_way.intersection(turns)
                on_their_way.update(turns)
                sent = [
                    next_of(each.id, 1, Home.TO_NS, turn=turn, lane=f"gateway:g{int(each.id[1:]) % 5}")
                    for each, turn in zip(found, turns, strict=True)
                ]
                assert await store.write(sent, who=WHO) == [True] * len(sent)
                on_their_way.difference_update(turns)  # before they can be anybody else's
                over = [ended(each.id, 2, lane=f"gateway:g{int(each.id[1:]) % 5}") for each in found]
                assert await store.write(over, who=WHO) == [True] * len(over)
                if not found:
                    await asyncio.sleep(0)

        share = count // 2
        await asyncio.gather(
            add(stores[0], range(share)),
            add(stores[1], range(share, count)),
            *(work(store) for store in stores),
        )
        assert claims == Counter(f"c{n:04d}" for n in range(count))
        stats = await stores[0].stats()
        assert stats.by_status == {CommandStatus.DELIVERY_FAILED: count}
        assert await stores[0].lanes() == []
        assert Counter(each.message for each in await trail(stores[0])) == claims


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
async def test_of_many_who_write_the_same_version_or_key_one_does(
    request: pytest.FixtureRequest, kind: str
) -> None:
    url = str(request.getfixturevalue(f"{kind}_url"))
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(SqlCommands(url)) for _ in range(6)]
        await put(stores[0], new("a"))
        same = await asyncio.gather(*(each.write([next_of("a", 1)], who=WHO) for each in stores))
        assert sorted(verdict for (verdict,) in same) == [False] * 5 + [True]
        keyed = await asyncio.gather(
            *(each.write([new(f"k{n}", key="key-1")], who=WHO) for n, each in enumerate(stores))
        )
        assert sorted(verdict for (verdict,) in keyed) == [False] * 5 + [True]
        kept = await asyncio.gather(*(keep(each, signal("s")) for each in stores))
        assert sorted(kept) == [0] * 5 + [1]


# -- at any size


async def test_a_crowd_does_not_slow_a_claim_or_a_write(store: SqlCommands) -> None:
    """The best of several rounds, with a crowd that waits in the lanes and behind turns, and without it."""
    quick = await _best_round(store, "a")
    for start in range(0, 10_000, 1_000):
        await put(
            store,
            *(
                new(f"w{n:05d}", lane=f"other:{n % 20}", turn=f"dev-{n % 500}", key=f"crowd-{n}")
                for n in range(start, start + 1_000)
            ),
        )
    crowded = await _best_round(store, "b")
    assert crowded < 5 * quick + 0.02


async def _best_round(store: SqlCommands, prefix: str) -> float:
    best = float("inf")
    for place in range(4):
        ids = [f"{prefix}{place}{n:03d}" for n in range(50)]
        start = time.perf_counter()
        await put(store, *(new(each, turn=f"turn-{each}", key=f"key-{each}") for each in ids))
        assert await claimed(store, Pace(prefix=LANE), limit=50, hold=timedelta(hours=1)) == ids
        await put(store, *(ended(each, 1) for each in ids))
        best = min(best, time.perf_counter() - start)
    return best
