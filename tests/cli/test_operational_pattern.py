"""The pattern for dead letters, with the commands as they are documented: peek, mend, try, watch, drain."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from remuda import NewJob
from tests.cli.conftest import Remuda
from tests.samples.terminal import Terminal

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
    _work(remuda)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    terminal = Terminal(REMUDA_URL=remuda.url, PATH=path)

    # 1. What is failing, and why?
    told = terminal.give("remuda dlq peek emails")
    assert re.search(r"retries_exhausted +600 ", told)
    assert re.search(r"600 +welcome +KeyError: 'adress'", told)

    # 2. A sample payload, decoded, and where it failed.
    assert re.search(r'\{"address":"user\d+@example.org"\}', told)
    (sample,) = remuda.json("dlq", "peek", "emails", "--limit", "1")["letters"]
    assert sample["payload"]["address"].endswith("@example.org")
    assert "program.py" in sample["error_trace"]

    # 3. Ship the fix.
    _ship(remuda, fixed=True)

    # 4. Try it on a small cohort, which takes no confirmation.
    told = terminal.give("remuda dlq replay emails --limit 10")
    assert "[y/N]" not in told
    assert "replayed 10 dead letters of emails" in told
    _work(remuda)
    assert remuda.counts("completed", "failed") == (10, 590)

    # 5. The dead letters do not grow.
    told = terminal.give("remuda watch emails")
    assert re.search(r"failed +590 +0 ", told)

    # 6. Drain the rest, which is asked about.
    told = terminal.give("remuda dlq replay emails --limit 1000")
    assert "Replay 590 dead letters of emails: 590 retries_exhausted? [y/N]: y" in told
    assert "replayed 590 dead letters of emails" in told
    remuda.add(NewJob("invoice", {"customer": 4711}), NewJob("invoice", {"customer": 4712}))
    _work(remuda)
    assert remuda.counts("completed", "failed", "pending") == (600, 2, 0)

    # What is beyond help is exported and dropped.
    file = Path(remuda.directory, "dead.jsonl")
    assert remuda("dlq", "export", "emails", str(file)).code == 0
    assert len(file.read_text().splitlines()) == 2
    assert remuda.json("dlq", "drop", "emails", "--yes")["dropped"] == 2
    assert remuda("dlq", "peek", "emails").err == "no dead letters\n"
