"""`jobs show` and `jobs log`: what handlers said; `jobs expire`: another end for what waits."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from remuda import Job, LogLine, NewJob, Queue, Worker
from remuda.cli.exits import ExitCode
from remuda.stores.contract import Note
from tests.cli.conftest import Remuda

HOUR = timedelta(hours=1)


async def talk(queue: Queue) -> str:
    """A job whose handler says how far it is, and twelve lines."""
    worker = Worker(queue)

    @worker.handler("report")
    async def report(job: Job) -> None:
        for page in range(12):
            job.progress({"page": page + 1, "of": 12})
            job.log(f"page {page}\nis written" if page == 11 else f"page {page}")

    job_id = await queue.add("report")
    await worker.step()
    return job_id


def test_what_a_handler_said_is_shown_with_its_job(remuda: Remuda) -> None:
    job_id = remuda.do(talk)
    found = remuda.json("jobs", "show", "emails", job_id)
    assert found["progress"]["value"] == {"page": 12, "of": 12}
    assert len(found["log"]) == 12
    assert {key: found["log"][0][key] for key in ("attempt", "text")} == {"attempt": 1, "text": "page 0"}
    told = remuda("jobs", "show", "emails", job_id)
    lines = told.out.splitlines()
    assert lines[lines.index("progress") + 1].startswith('  {"page":12,"of":12}  (')
    assert lines[lines.index("log") + 1].endswith("  1  page 2")
    assert told.err == "the last 10 of 12 lines; `remuda jobs log` shows all\n"
    said = remuda.ok("jobs", "log", "emails", job_id).splitlines()
    assert len(said) == 13
    assert said[0].endswith("  1  page 0")
    assert said[-1].strip() == "is written"
    assert said[-1].index("is written") == said[-2].index("page 11")


def test_a_log_as_json_is_a_line_each(on_sqlite: Remuda) -> None:
    job_id = on_sqlite.do(talk)
    lines = [
        json.loads(line) for line in on_sqlite.ok("jobs", "log", "emails", job_id, "--json").splitlines()
    ]
    assert [each["text"] for each in lines[:2]] == ["page 0", "page 1"]


def test_a_log_is_followed_until_the_job_has_ended(on_sqlite: Remuda) -> None:
    (job_id,) = on_sqlite.add(NewJob("good"))
    say(on_sqlite, job_id, "before")
    following = on_sqlite.start("jobs", "log", "emails", job_id, "--follow")
    assert following.readline().endswith("before\n")
    say(on_sqlite, job_id, "meanwhile")
    assert following.readline().endswith("meanwhile\n")
    on_sqlite.work()
    assert following.finish().code == 0


def say(remuda: Remuda, job_id: str, text: str) -> None:
    note = Note(job_id, None, [LogLine(datetime.now(UTC), 1, text)])
    remuda.do(lambda queue: queue.store.note("emails", [note], ttl=HOUR))


def test_a_silent_job_and_an_unknown_one(on_sqlite: Remuda) -> None:
    (job_id,) = on_sqlite.add(NewJob("good"))
    assert on_sqlite("jobs", "log", "emails", job_id).err == f"the handler of {job_id} has said nothing\n"
    assert on_sqlite("jobs", "log", "emails", "nobody").code == ExitCode.NOT_FOUND


def test_what_waits_expires_sooner_later_or_never(remuda: Remuda) -> None:
    first, second = remuda.add(NewJob("good", expires_in=HOUR), NewJob("good", expires_in=HOUR))
    moment = f"{datetime.now(UTC) + timedelta(days=365):%Y-%m-%dT%H:%M:%SZ}"
    changed = remuda.json("jobs", "expire", "emails", first, second, "--at", moment)
    assert changed["changed"] == [first, second]
    assert changed["expires_at"] == moment
    assert remuda.json("jobs", "show", "emails", first)["job"]["expires_at"] == moment
    assert remuda.ok("jobs", "expire", "emails", first, "--never") == "1 job of emails expires never\n"
    assert remuda.json("jobs", "show", "emails", first)["job"]["expires_at"] is None
    assert "1 job of emails expires at " in remuda.ok("jobs", "expire", "emails", second, "--in", "0s")
    remuda.work()
    assert remuda.counts("completed", "failed") == (1, 1)
    too_late = remuda("jobs", "expire", "emails", first, "--never")
    assert too_late.code == ExitCode.NOT_FOUND
    assert f"not waiting in emails: {first}" in too_late.err


def test_an_expiry_needs_one_moment(on_sqlite: Remuda) -> None:
    (job_id,) = on_sqlite.add(NewJob("good"))
    for moments in ((), ("--never", "--in", "1h"), ("--in", "1h", "--at", "2090-01-31")):
        ended = on_sqlite("jobs", "expire", "emails", job_id, *moments)
        assert (ended.code, "Give one of --in, --at and --never" in ended.err) == (ExitCode.USAGE, True)
