"""The seed's pattern for dead letters, step by step: peek, decode, mend, try, watch, drain."""

from __future__ import annotations

from pathlib import Path

from remuda import NewJob
from tests.cli.conftest import Remuda

PROGRAM = """
import os
from datetime import timedelta
from remuda import Constant, Job, Queue, UnrecoverableError, Worker

worker = Worker(
    Queue("emails", os.environ["REMUDA_URL"]),
    retry=Constant(every=timedelta(0), max_attempts=2),
)

@worker.handler("welcome")
async def welcome(job: Job):
    job.payload["address" if FIXED else "adress"]

@worker.handler("invoice")
async def invoice(job: Job):
    raise UnrecoverableError("no such customer")
"""


def _ship(remuda: Remuda, *, fixed: bool) -> None:
    Path(remuda.directory, "program.py").write_text(f"FIXED = {fixed}\n{PROGRAM}")


def _work(remuda: Remuda) -> None:
    ended = remuda.run("worker", "program:worker", "--until-empty", "--log-level", "error")
    assert ended.code == 0, ended
    assert remuda.count("live") == 0


def test_fix_the_bug_and_requeue(everywhere: Remuda) -> None:
    _fix_and_requeue(everywhere)


def test_fix_the_bug_and_requeue_on_a_private_server(embedded: Remuda) -> None:
    """Each command starts the server and stops it again."""
    embedded.ok("init")
    _fix_and_requeue(embedded)


def _fix_and_requeue(remuda: Remuda) -> None:
    _ship(remuda, fixed=False)
    remuda.add(*(NewJob("welcome", {"address": f"user{n}@example.org"}) for n in range(600)))
    remuda.add(NewJob("invoice", {"customer": 4711}), NewJob("invoice", {"customer": 4712}))
    _work(remuda)

    # 1. What is failing, and why?
    peeked = remuda.json("dlq", "peek", "emails")
    assert peeked["by_reason"] == {"retries_exhausted": 600, "unrecoverable": 2}
    told = remuda.ok("dlq", "peek", "emails", "--reason", "retries_exhausted", "--limit", "1")
    assert "KeyError: 'adress'" in told

    # 2. A sample payload, decoded, and where it failed.
    (sample,) = remuda.json("dlq", "peek", "emails", "--name", "welcome", "--limit", "1")["letters"]
    assert sample["payload"]["address"].endswith("@example.org")
    assert "program.py" in sample["error_trace"]

    # 3. Ship the fix.
    _ship(remuda, fixed=True)

    # 4. Try it on a small cohort, which takes no confirmation.
    tried = remuda.json("dlq", "replay", "emails", "--reason", "retries_exhausted", "--limit", "10")
    assert tried["replayed"] == 10
    _work(remuda)
    done = remuda.json("jobs", "list", "emails", "--state", "completed")["jobs"]
    assert {each["id"] for each in done} == set(tried["ids"])

    # 5. The dead letters do not grow.
    lines = remuda.ok("watch", "emails", "--interval", "10ms", "--count", "2").splitlines()
    assert "failed=592(+0)" in lines[-1]

    # 6. Drain the rest; what is beyond help is exported and dropped.
    drained = remuda.json("dlq", "replay", "emails", "--reason", "retries_exhausted", "--yes")
    assert drained["replayed"] == 590
    _work(remuda)
    file = Path(remuda.directory, "dead.jsonl")
    assert remuda("dlq", "export", "emails", str(file)).code == 0
    assert len(file.read_text().splitlines()) == 2
    assert remuda.json("dlq", "drop", "emails", "--yes")["dropped"] == 2
    assert remuda("dlq", "peek", "emails").err == "no dead letters\n"
    found = remuda.json("inspect", "emails")
    assert (found["completed"], found["failed"], found["pending"]) == (600, 0, 0)
