"""`inspect`, `watch`, `jobs`, `pause`, `resume`, `drain`, `purge`."""

from __future__ import annotations

import json
import signal
from datetime import UTC, datetime, timedelta

import pytest

from remuda import NewJob, Queue
from remuda.cli.exits import ExitCode
from tests.cli.conftest import Remuda, until
from tests.redis_servers import ValkeyServer
from tests.servers import PostgresServer


def test_inspect_tells_a_queue_in_numbers(remuda: Remuda) -> None:
    remuda.work([NewJob("good"), NewJob("good"), NewJob("fail", 1), NewJob("bad")])
    remuda.add(NewJob("good"), NewJob("good", delay=timedelta(hours=1)))
    found = remuda.json("inspect", "emails")
    lag = found.pop("oldest_due_seconds")
    assert 0 <= lag < 30
    assert found == {
        "queue": "emails",
        "pending": 2,
        "retryable": 0,
        "processing": 0,
        "delayed": 1,
        "completed": 2,
        "failed": 2,
        "paused": False,
        "dead": {"retries_exhausted": 1, "unrecoverable": 1},
        "rate_limits": {"queue": None, "key": None},
        "repeatables": 0,
        "next_repeatable_at": None,
    }
    told = remuda.ok("inspect", "emails").split()
    assert told[told.index("completed") + 1] == "2"
    assert told[told.index("retries_exhausted") + 1] == "1"


def test_inspect_without_a_queue_shows_all(remuda: Remuda) -> None:
    remuda.add(NewJob("good"), queue="emails")
    remuda.add(NewJob("good"), NewJob("good"), queue="invoices")
    found = remuda.json("inspect")["queues"]
    assert [(each["queue"], each["pending"]) for each in found] == [("emails", 1), ("invoices", 2)]
    head, *rows = remuda.ok("inspect").splitlines()
    assert head.split()[:3] == ["QUEUE", "PENDING", "DELAYED"]
    assert [row.split()[0] for row in rows] == ["emails", "invoices"]


def test_a_mistyped_queue_is_no_error_but_is_noticed(on_sqlite: Remuda) -> None:
    on_sqlite.add(NewJob("good"))
    for command in (
        ("inspect", "email"),
        ("jobs", "list", "email"),
        ("dlq", "peek", "email"),
        ("purge", "email"),
    ):
        ended = on_sqlite(*command)
        assert ended.code == 0
        assert "nothing is known of a queue 'email' in this store; it has: emails" in ended.err


def test_jobs_are_listed_in_the_order_of_their_turn(remuda: Remuda) -> None:
    first, second = remuda.add(NewJob("a"), NewJob("b", {"x": 1}, priority=1))
    assert [each["id"] for each in remuda.json("jobs", "list", "emails")["jobs"]] == [second, first]
    assert [each["id"] for each in remuda.json("jobs", "list", "emails", "--name", "a")["jobs"]] == [first]
    assert len(remuda.json("jobs", "list", "emails", "--limit", "1")["jobs"]) == 1
    assert remuda.json("jobs", "list", "emails", "--state", "failed")["jobs"] == []
    job = remuda.json("jobs", "list", "emails", "--state", "pending", "--name", "b")["jobs"][0]
    assert (job["payload"], job["payload_encoding"], job["payload_error"]) == ({"x": 1}, "json", None)


def test_show_tells_all_facts_and_the_history(remuda: Remuda) -> None:
    (job_id,) = remuda.add(NewJob("fail", {"n": 1}, headers={"trace": "abc"}))
    remuda.work()
    shown = remuda.json("jobs", "show", "emails", job_id)
    job, history = shown["job"], shown["history"]
    assert (job["state"], job["reason"], job["attempts"]) == ("FAILED", "retries_exhausted", 3)
    assert (job["error_type"], job["error_message"]) == ("ConnectionError", "no connection for {'n': 1}")
    assert "Traceback" in job["error_trace"]
    assert [each["entered"] for each in history] == [
        *("PENDING", "PROCESSING", "RETRYABLE", "PROCESSING", "RETRYABLE", "PROCESSING", "FAILED")
    ]
    assert [each["seq"] for each in history] == sorted(each["seq"] for each in history)
    assert history[0]["dwell_seconds"] is None
    assert all(each["dwell_seconds"] >= 0 for each in history[1:])
    assert history[-1]["reason"] == "retries_exhausted"
    assert all(each["who"] for each in history)
    assert datetime.fromisoformat(history[-1]["at"]).utcoffset() == timedelta(0)

    told = remuda.ok("jobs", "show", "emails", job_id)
    assert "trace=abc" in told
    assert "ConnectionError: no connection for {'n': 1}" in told
    assert "acquired by a worker for another attempt" in told
    assert remuda.json("jobs", "show", "emails", job_id, "--no-history")["history"] == []


def test_show_of_what_is_not_there_is_not_found(remuda: Remuda) -> None:
    remuda.ok("init")
    ended = remuda("jobs", "show", "emails", "nobody", "--json")
    assert (ended.code, ended.out) == (ExitCode.NOT_FOUND, "")
    assert ended.err == "remuda: there is no job 'nobody' in emails\n"


def test_of_a_job_that_is_gone_the_history_is_left(remuda: Remuda) -> None:
    (job_id,) = remuda.add(NewJob("good"))
    remuda.ok("purge", "emails", "--yes")
    ended = remuda("jobs", "show", "emails", job_id, "--json")
    assert ended.code == ExitCode.NOT_FOUND
    shown = json.loads(ended.out)
    assert shown["job"] is None
    assert [each["entered"] for each in shown["history"]] == ["PENDING", "REMOVED"]


def test_a_payload_that_cannot_be_decoded_is_base64(on_sqlite: Remuda) -> None:
    job = on_sqlite.json("jobs", "show", "emails", on_sqlite.add_undecodable())["job"]
    assert (job["payload_encoding"], job["payload"]) == ("base64", "wQ==")
    assert "not decode as msgpack" in job["payload_error"]
    assert r"b'\xc1'" in on_sqlite.ok("jobs", "show", "emails", "broken")


def test_cancel_removes_what_waits_and_names_what_does_not(remuda: Remuda) -> None:
    due, later = remuda.add(NewJob("good"), NewJob("good", delay=timedelta(hours=1)))
    refused = remuda("jobs", "cancel", "emails", due, later)
    assert (refused.code, "Cancel 2 jobs of emails?" in refused.err) == (ExitCode.NOT_CONFIRMED, True)
    assert remuda.ok("jobs", "cancel", "emails", due, later, "--yes") == "cancelled 2 jobs of emails\n"
    (stays,) = remuda.add(NewJob("good"))
    ended = remuda("jobs", "cancel", "emails", later, stays, "nobody", "--yes", "--json")
    assert ended.code == ExitCode.NOT_FOUND
    assert json.loads(ended.out) == {
        "queue": "emails",
        "cancelled": [stays],
        "told": [],
        "not_waiting": [later, "nobody"],
    }
    assert ended.err == f"remuda: neither waiting nor running in emails: {later}, nobody\n"
    gone = json.loads(remuda("jobs", "show", "emails", due, "--json").out)
    assert gone["history"][-1]["reason"] == "cancelled"
    assert remuda.counts("pending", "completed") == (0, 0)


def test_pause_and_resume(remuda: Remuda) -> None:
    remuda.add(NewJob("good"))
    assert remuda.ok("pause", "emails") == "paused emails: 1 job waiting, 0 still running\n"
    assert remuda.json("inspect", "emails")["paused"] is True
    remuda.work()
    assert remuda.count("completed") == 0
    assert remuda.ok("resume", "emails") == "resumed emails: 1 job waiting\n"
    remuda.work()
    assert remuda.count("completed") == 1


def test_purge_removes_what_waits(remuda: Remuda) -> None:
    remuda.work([NewJob("bad")])
    remuda.add(*(NewJob("good") for _ in range(1_200)))
    refused = remuda("purge", "emails")
    assert refused.code == ExitCode.NOT_CONFIRMED
    assert "Remove 1,200 waiting jobs of emails for good?" in refused.err
    assert "Say --yes" in refused.err
    assert remuda.count("pending") == 1_200

    assert remuda.json("purge", "emails", "--yes") == {"queue": "emails", "removed": 1_200}
    assert remuda.counts("pending", "failed") == (0, 1)
    assert remuda.ok("purge", "emails") == "removed 0 jobs of emails\n"


def test_watch_writes_a_line_for_each_look(remuda: Remuda) -> None:
    remuda.add(NewJob("good"))
    lines = remuda.ok("watch", "emails", "--interval", "10ms", "--count", "3").splitlines()
    assert len(lines) == 3
    assert "pending=1(+0)" in lines[-1]


def test_watch_tells_deltas_and_rates_as_json_lines(on_sqlite: Remuda) -> None:
    on_sqlite.add(NewJob("bad"))
    watching = on_sqlite.start("watch", "emails", "--interval", "50ms", "--json")
    first = json.loads(watching.readline())
    assert (first["failed"], first["deltas"]["failed"], first["per_second"]["failed"]) == (0, 0, 0.0)

    on_sqlite.work()
    while (look := json.loads(watching.readline()))["failed"] == 0:
        pass
    assert look["deltas"]["failed"] == 1
    assert look["per_second"]["failed"] > 0
    assert look["dead"] == {"unrecoverable": 1}

    watching.signal(signal.SIGINT)
    ended = watching.finish()
    assert (ended.code, ended.err) == (0, "")


def test_a_watch_outlives_an_outage(on_postgres: Remuda, postgres_server: PostgresServer) -> None:
    on_postgres.add(NewJob("good"))
    watching = on_postgres.start("watch", "emails", "--interval", "20ms", "--json")
    assert json.loads(watching.readline())["pending"] == 1
    postgres_server.stop()
    watching.logs("still trying: PostgreSQL is not available just now")
    postgres_server.start()
    at = datetime.now(UTC)
    until(
        lambda: datetime.fromisoformat(json.loads(watching.readline())["at"]) > at, "a look after the outage"
    )


def test_a_watch_outlives_an_outage_of_valkey(on_valkey: Remuda, valkey_server: ValkeyServer) -> None:
    on_valkey.add(NewJob("good"))
    watching = on_valkey.start("watch", "emails", "--interval", "20ms", "--json")
    assert json.loads(watching.readline())["pending"] == 1
    valkey_server.stop()
    watching.logs("is not available just now")
    valkey_server.start()
    at = datetime.now(UTC)
    until(
        lambda: datetime.fromisoformat(json.loads(watching.readline())["at"]) > at, "a look after the outage"
    )


@pytest.mark.parametrize("store", ["on_sqlite", "on_valkey"])
def test_a_running_job_says_where_it_runs(store: str, request: pytest.FixtureRequest) -> None:
    remuda: Remuda = request.getfixturevalue(store)

    async def acquire(queue: Queue) -> None:
        await queue.add("slow")
        await queue.store.fetch("emails", limit=1, lease=timedelta(minutes=1), who="worker-7")

    remuda.do(acquire)
    assert "on worker-7" in remuda.ok("jobs", "list", "emails", "--state", "processing")


def test_jobs_are_tried_again_at_once(remuda: Remuda) -> None:
    dead, later, done = remuda.add(NewJob("bad"), NewJob("good", delay=timedelta(hours=1)), NewJob("good"))
    remuda.work()
    assert remuda.counts("completed", "failed", "delayed") == (1, 1, 1)
    told = remuda.json("jobs", "retry", "emails", dead, later, later)
    assert (told["replayed"], told["due_now"], told["not_waiting"]) == ([dead], [later], [])
    assert remuda.counts("pending", "failed", "delayed") == (2, 0, 0)
    ended = remuda("jobs", "retry", "emails", done, later)
    assert (ended.code, ended.out) == (ExitCode.NOT_FOUND, "1 job of emails due now\n")
    assert ended.err == f"remuda: neither waiting nor dead in emails: {done}\n"


def test_a_drain_waits_for_the_workers(on_sqlite: Remuda) -> None:
    on_sqlite.add(NewJob("good"), NewJob("good", delay=timedelta(hours=1)))
    stuck = on_sqlite("drain", "emails", "--timeout", "0s")
    assert stuck.code == ExitCode.ERROR
    assert "1 job of emails left" in stuck.err
    assert "is there a worker?" in stuck.err
    draining = on_sqlite.start("drain", "emails", "--json")
    draining.logs("waiting for 1 job of emails")
    on_sqlite.work()
    assert json.loads(draining.finish().out)["jobs"] == 1
    assert on_sqlite.ok("drain", "emails") == "nothing is left to do in emails; 1 job due later\n"
    assert on_sqlite("drain", "emails", "--delayed", "--timeout", "0s").code == ExitCode.ERROR


def test_a_running_job_is_told_to_end(remuda: Remuda) -> None:
    (job_id,) = remuda.add(NewJob("good"))
    remuda.do(lambda queue: queue.store.fetch("emails", limit=1, lease=timedelta(minutes=1), who="worker-7"))
    told = remuda.ok("jobs", "cancel", "emails", job_id, "--yes")
    assert told == "told the workers of 1 running job of emails\n"
    assert list(remuda.do(lambda queue: queue.store.asked_to_cancel("emails"))) == [job_id]
