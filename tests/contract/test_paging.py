"""All records of a queue in pages: what stays where it is comes once, whatever others do meanwhile."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import Connection, Select

from remuda import NewJob, Queue, State
from remuda.clock import VirtualClock
from remuda.errors import StoreError
from remuda.message import JobRecord
from remuda.stores.contract import Failure
from remuda.stores.sql import inspection
from remuda.stores.sql.store import SqlStore
from tests.contract.workbench import (
    HOUR,
    MINUTE,
    acked,
    bury,
    dead,
    fetch,
    fetch_one,
    nacked,
    record_of,
    release,
    settle,
)


async def paged(queue: Queue, *, ended: bool, limit: int, after: str | None = None) -> list[JobRecord]:
    """Everything from a cursor on, page by page."""
    found: list[JobRecord] = []
    while True:
        page = await queue.store.records(queue.name, ended=ended, after=after, limit=limit)
        assert len(page.records) <= limit
        found += page.records
        after = page.next
        if after is None:
            return found
        assert len(page.records) == limit


def ids_of(records: list[JobRecord]) -> list[str]:
    return [each.id for each in records]


async def in_every_place(queue: Queue, clock: VirtualClock) -> list[str]:
    """Live jobs that wait, run, were put back, wait for another attempt or for their time; their ids."""
    ids = await queue.add_many([NewJob("job", n, priority=n % 5 - 2) for n in range(20)])
    running = await fetch(queue, 6)
    await release(queue, running[0])
    await settle(queue, nacked(running[1], clock.now() + HOUR, Failure("ValueError", "no")))
    later = [clock.now() + MINUTE * (n // 4) for n in range(12)]
    return ids + await queue.add_many(
        [NewJob("later", n, next_attempt_at=at, priority=n % 3) for n, at in enumerate(later)]
    )


async def ended_in_every_way(queue: Queue) -> list[str]:
    """Completed jobs, together and one by one, and dead letters; their ids."""
    ids = await queue.add_many([NewJob("job", n) for n in range(12)])
    for batch in (7, 1, 4):
        await settle(queue, *(acked(each) for each in await fetch(queue, batch)))
    for failure in (None, Failure("ValueError", "no", "a trace")):
        ids += await bury(queue, *("dead" for _ in range(3)), failure=failure)
    return ids


async def test_an_empty_queue_has_no_page_but_the_first(queue: Queue, other_queue: Queue) -> None:
    await other_queue.add("job")
    for ended in (False, True):
        page = await queue.store.records(queue.name, ended=ended, after=None, limit=10)
        assert (page.records, page.next) == ([], None)


@pytest.mark.parametrize("limit", [1, 3, 7, 32, 33, 1_000])
async def test_live_records_come_once_each_with_all_that_is_known(
    queue: Queue, other_queue: Queue, clock: VirtualClock, limit: int
) -> None:
    await ended_in_every_way(other_queue)
    await other_queue.add_many([NewJob("job", n) for n in range(5)])
    ids = await in_every_place(queue, clock)
    records = await paged(queue, ended=False, limit=limit)
    assert sorted(ids_of(records)) == sorted(ids)
    assert {each.state for each in records} == {State.PENDING, State.PROCESSING, State.RETRYABLE}
    for each in records:
        assert each == await record_of(queue, each.id)


@pytest.mark.parametrize("limit", [1, 3, 8, 18, 1_000])
async def test_ended_records_come_once_each_with_all_that_is_known(
    queue: Queue, other_queue: Queue, limit: int
) -> None:
    await ended_in_every_way(other_queue)
    ids = await ended_in_every_way(queue)
    await queue.add_many([NewJob("live", n) for n in range(5)])
    records = await paged(queue, ended=True, limit=limit)
    assert sorted(ids_of(records)) == sorted(ids)
    assert sum(each.state is State.COMPLETED for each in records) == 12
    assert {each.error_trace for each in records} == {None, "a trace"}
    assert {type(each) for each in records} == {JobRecord}
    known = {each.id: each for each in await queue.jobs(limit=100)}
    for each in records:
        assert each == as_record(known[each.id])


def as_record(record: JobRecord) -> JobRecord:
    return JobRecord(**{name: getattr(record, name) for name in JobRecord.__struct_fields__})


async def test_what_stays_comes_once_while_others_come_and_go(queue: Queue, clock: VirtualClock) -> None:
    soon = await queue.add_many([NewJob("job", n) for n in range(30)])
    same_moment = clock.now() + HOUR
    later = await queue.add_many([NewJob("later", n, next_attempt_at=same_moment) for n in range(30)])
    seen: list[str] = []
    gone: set[str] = set()
    after: str | None = None
    while True:
        page = await queue.store.records(queue.name, ended=False, after=after, limit=7)
        seen += ids_of(page.records)
        after = page.next
        if after is None:
            break
        # The last one seen goes, and with it the place where the walk stood; so does one ahead of it.
        unseen = [each for each in (*soon, *later) if each not in seen and each not in gone]
        gone.update(await queue.cancel(seen[-1], *unseen[1:2]))
        await queue.add("job")
        await queue.add("later", next_attempt_at=same_moment)
    stayed = {*soon, *later} - gone
    assert len(gone) > 10
    assert [seen.count(each) for each in stayed] == [1] * len(stayed)


async def test_what_ends_meanwhile_moves_no_other(queue: Queue) -> None:
    ids = await ended_in_every_way(queue)
    seen: list[str] = []
    after: str | None = None
    while True:
        page = await queue.store.records(queue.name, ended=True, after=after, limit=4)
        seen += ids_of(page.records)
        after = page.next
        if after is None:
            break
        await queue.add("job")
        await settle(queue, acked(await fetch_one(queue)))
        await bury(queue, "dead")
    assert [seen.count(each) for each in ids] == [1] * len(ids)


async def test_ended_records_go_on_where_the_last_one_seen_was_dropped(queue: Queue) -> None:
    ids = await bury(queue, *("dead" for _ in range(6)))
    page = await queue.store.records(queue.name, ended=True, after=None, limit=3)
    await queue.dead.drop(ids=[page.records[-1].id])
    rest = await paged(queue, ended=True, limit=2, after=page.next)
    assert sorted(ids_of([*page.records, *rest])) == sorted(ids)


async def test_what_is_moved_meanwhile_is_not_missed(queue: Queue, clock: VirtualClock) -> None:
    """From what runs to what waits for its time, and from there, when it has come, to what can run."""
    soon = await queue.add_many([NewJob("job", n) for n in range(6)])
    later = await queue.add_many(
        [NewJob("later", n, next_attempt_at=clock.now() + MINUTE * (1 + n)) for n in range(6)]
    )
    page = await queue.store.records(queue.name, ended=False, after=None, limit=4)
    seen = ids_of(page.records)
    for delivery in await fetch(queue, 6):
        await settle(queue, nacked(delivery, clock.now() + HOUR))
    page = await queue.store.records(queue.name, ended=False, after=page.next, limit=4)
    seen += ids_of(page.records)
    clock.advance(10 * MINUTE)
    assert len(await fetch(queue, 6)) == 6
    seen += ids_of(await paged(queue, ended=False, limit=4, after=page.next))
    assert set(seen) == {*soon, *later}


async def test_thousands_are_read_in_pages_of_any_size(queue: Queue, clock: VirtualClock) -> None:
    moment = clock.now() + timedelta(days=1)
    soon = await queue.add_many([NewJob("job", n) for n in range(2_500)])
    later = await queue.add_many([NewJob("later", n, next_attempt_at=moment) for n in range(2_500)])
    for limit in (400, 2_400, 10_000):
        assert sorted(ids_of(await paged(queue, ended=False, limit=limit))) == sorted([*soon, *later])
    deliveries = await fetch(queue, 2_500)
    for start in range(0, 2_000, 100):
        await settle(queue, *(acked(each) for each in deliveries[start : start + 100]))
    for each in deliveries[2_000:2_300]:
        await settle(queue, acked(each))
    await settle(queue, *(dead(each) for each in deliveries[2_300:]))
    for limit in (70, 1_000, 10_000):
        assert sorted(ids_of(await paged(queue, ended=True, limit=limit))) == sorted(soon)


async def test_what_is_no_cursor_is_refused(queue: Queue) -> None:
    await queue.add_many([NewJob("job", n) for n in range(3)])
    await settle(queue, *(acked(each) for each in await fetch(queue, 2)))
    await queue.add("job")
    page = await queue.store.records(queue.name, ended=False, after=None, limit=1)
    for cursor in ("", "live/", "live/x", "live/-1", "nothing", "bGl2ZQ==", "żółw", f"live/{10**30}"):
        with pytest.raises(StoreError, match="not a cursor"):
            await queue.store.records(queue.name, ended=False, after=cursor, limit=1)
    with pytest.raises(StoreError, match="not a cursor of the ended records"):
        await queue.store.records(queue.name, ended=True, after=page.next, limit=1)


@pytest.mark.parametrize("ended", [False, True])
async def test_sqlite_walks_by_the_number_of_the_row(sqlite_url: str, ended: bool) -> None:
    """It would sort the whole queue for each page, if it could."""
    async with Queue("orders", sqlite_url) as queue:
        await queue.add("job")
        store = queue.store
        assert isinstance(store, SqlStore)

        def look(connection: Connection) -> str:
            query = next(inspection.records(store.dialect, "orders", ended=ended, after=None, limit=10))
            assert isinstance(query, Select)
            asked = query.compile(connection, compile_kwargs={"literal_binds": True})
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {asked}")
            return "\n".join(str(row[-1]) for row in plan)

        plan = await store.run_sync(look)
        assert "TEMP B-TREE" not in plan
        assert "INDEX" not in plan
