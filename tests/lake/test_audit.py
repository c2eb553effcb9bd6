"""Everything adds up, or the audit names what does not, while the store goes on."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession
from sqlalchemy import create_engine, text

from remuda import Queue
from remuda.lake.audit import Audit, Finding, Snapshot, audit, look, offsets
from remuda.lake.building.histories import build_histories
from remuda.lake.ingest import BATCHES, ingest, no_step
from remuda.lake.place import Lake
from remuda.lake.sources import register
from remuda.message import NewJob
from remuda.stores.contract import Store
from tests.lake.stores import LEASE, on_store, work, worked


def _brought_up(lake: Lake, spark: SparkSession, url: str) -> None:
    ingest(lake, spark, url, source="main", on_round=lambda _: None)
    build_histories(lake, spark, lake.transitions.progress(BATCHES), no_step)


def _audited(lake: Lake, spark: SparkSession, seen: Snapshot, before: dict[str, int]) -> Audit:
    return audit(
        spark,
        transitions=lake.transitions.read(spark),
        histories=lake.histories.read(spark),
        snapshot=seen,
        before=before,
    )


def test_it_adds_up_while_the_store_goes_on_and_names_what_is_missing(
    sqlite_url: str, spark: SparkSession, tmp_path: Path
) -> None:
    register(spark)
    lake = Lake(str(tmp_path / "lake"))
    worked(sqlite_url, "emails", 40, dead_every=8)

    async def add(store: Store) -> list[str]:
        return await Queue("emails", store).add_many([NewJob(name="later") for _ in range(6)])

    waiting = on_store(sqlite_url, add)
    _brought_up(lake, spark, sqlite_url)
    before = offsets(lake, sqlite_url, "main")
    # After the first ingest and before the look: some run, some are new. After the look they end.

    async def fetch(store: Store) -> object:
        return await store.fetch("emails", limit=2, lease=LEASE, who="worker-1")

    on_store(sqlite_url, fetch)
    seen = look(spark, sqlite_url)
    on_store(sqlite_url, lambda store: work(store, "emails", 3))
    _brought_up(lake, spark, sqlite_url)
    clean = _audited(lake, spark, seen, before)
    assert clean.is_clean, clean
    (balance,) = clean.balances
    assert (balance.added, balance.delivered, balance.dead, balance.live) == (49, 42, 5, 2)
    assert balance.in_store == 6

    # Now rows are taken away behind the store's back, one is added, and one changes its state.
    engine = create_engine(sqlite_url)
    with engine.begin() as connection:
        running = connection.execute(text("SELECT job_id FROM message ORDER BY id")).scalars().all()
        connection.execute(text("DELETE FROM message WHERE job_id = :id"), {"id": running[0]})
        connection.execute(
            text("UPDATE message SET state = 'PENDING' WHERE job_id = :id"), {"id": running[1]}
        )
        dead = connection.execute(
            text("SELECT job_id FROM message_archive WHERE state = 'FAILED' ORDER BY id LIMIT 1")
        ).scalar_one()
        connection.execute(text("DELETE FROM message_archive WHERE job_id = :id"), {"id": dead})
        connection.execute(
            text(
                "INSERT INTO message (queue, payload, state, created_at, next_attempt_at, job_id, name) "
                "SELECT queue, payload, 'PENDING', created_at, next_attempt_at, 'smuggled', name "
                "FROM message LIMIT 1"
            )
        )
    engine.dispose()
    before = offsets(lake, sqlite_url, "main")
    found = _audited(lake, spark, look(spark, sqlite_url), before)
    assert {(each.message, each.finding) for each in found.found} == {
        (running[0], Finding.VANISHED),
        (running[1], Finding.DIFFERS),
        (dead, Finding.LETTER_GONE),
        ("smuggled", Finding.UNRECORDED),
    }
    assert set(running) <= set(waiting)
    assert not found.is_clean
