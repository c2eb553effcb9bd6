"""`obliterate`: a queue goes, when that is what is wanted; and `bench`, which leaves nothing behind."""

from __future__ import annotations

from datetime import timedelta

from remuda import NewJob, Queue
from remuda.cli.exits import ExitCode
from tests.cli.conftest import Remuda

MINUTE = timedelta(minutes=1)


def fill(remuda: Remuda) -> None:
    remuda.work([NewJob("good"), NewJob("bad")])
    remuda.add(NewJob("good"), NewJob("good", delay=MINUTE))
    remuda.add(NewJob("good"), queue="other")


def test_a_queue_is_removed_with_all_that_is_in_it(remuda: Remuda) -> None:
    fill(remuda)
    refused = remuda("obliterate", "emails")
    assert refused.code == ExitCode.NOT_CONFIRMED
    assert "Remove emails for good, with 2 waiting, 1 completed, 1 dead?" in refused.err
    assert remuda.counts("pending", "completed", "failed") == (2, 1, 1)
    assert remuda.ok("obliterate", "emails", "--yes") == "obliterated emails: 4 jobs\n"
    assert [each["queue"] for each in remuda.json("inspect")["queues"]] == ["other"]
    assert remuda.do(lambda queue: queue.store.trail_span("emails")).first == 1  # the record stays …
    again = remuda("obliterate", "emails", "--yes")
    assert (again.code, again.out) == (0, "obliterated emails: 0 jobs\n")
    assert "nothing is known of a queue 'emails' in this store; it has: other" in again.err
    forgotten = remuda.json("obliterate", "emails", "--records", "--yes")  # … unless one wants
    assert forgotten["removed"] == 0
    assert forgotten["records_forgotten"] > 4
    span = remuda.do(lambda queue: queue.store.trail_span("emails"))
    assert span.first == span.last + 1


async def hold_one(queue: Queue) -> object:
    return await queue.store.fetch(queue.name, limit=1, lease=MINUTE, who="worker")


def test_what_runs_is_taken_away_by_force_alone(remuda: Remuda) -> None:
    remuda.add(NewJob("good"), NewJob("good"))
    remuda.do(hold_one)
    refused = remuda("obliterate", "emails", "--yes")
    assert refused.code == ExitCode.ERROR
    assert "1 jobs of the queue 'emails' run" in refused.err
    assert remuda.counts("pending", "processing") == (1, 1)
    assert remuda.ok("obliterate", "emails", "--force", "--yes") == "obliterated emails: 2 jobs\n"
    assert remuda.counts("pending", "processing") == (0, 0)


def test_a_bench_tells_of_the_store_and_leaves_nothing_behind(remuda: Remuda) -> None:
    remuda.add(NewJob("good"))
    found = remuda.json("bench", "--jobs", "200", "--size", "10")
    rates = ("add_one_per_second", "add_bulk_per_second", "work_per_second")
    assert all(found[name] > 0 for name in rates)
    assert 0 < found["latency_p50_ms"] <= found["latency_p99_ms"]
    assert (found["jobs"], found["payload_bytes"]) == (200, 10)
    assert [each["queue"] for each in remuda.json("inspect")["queues"]] == ["emails"]
    assert remuda.count("pending") == 1
    assert remuda.do(lambda opened: opened.store.trails()) == ["emails"]


def test_a_bench_for_people(on_sqlite: Remuda) -> None:
    on_sqlite.ok("init")
    told = on_sqlite("bench", "--jobs", "100")
    lines = told.out.splitlines()
    assert lines[0].startswith("store   sqlite:///")
    assert [line.split("  ")[0] for line in lines[4:7]] == ["add, one by one", "add, in bulk", "work"]
    assert "jobs/s" in lines[4]
    assert told.err == "100 jobs of 200 bytes each, at this hour, from this machine\n"
    elsewhere = on_sqlite("bench", "--url", "sqlite:////nowhere/at/all.db")
    assert elsewhere.code == ExitCode.UNAVAILABLE
