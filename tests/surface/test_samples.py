"""What the documents show is run: every Python sample, in the order in which a reader meets it.

The samples of a document share one namespace and one process, in an empty folder, and may await at the top.
A URL of a server in them becomes that of a server of the tests. A sample that works until it is told to
stop is told so, by SIGTERM, as `remuda worker` would be. One that cannot be run here has
`<!-- not run: why -->` on the line above it, and stands in the list below.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from remuda import Worker

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")])

# Every sample that is not run, by document and reason. Those of the lake need Spark, and a lake that is
# not empty: tests/lake calls what they call, if not in the same words.
NOT_RUN = Counter(
    {
        ("devices.md", "needs a ChirpStack"): 1,
        ("from-celery.md", "needs Celery"): 1,
        ("lake.md", "tests/lake"): 2,
        ("lake-campaigns.md", "tests/lake"): 1,
        ("lake-cluster.md", "tests/lake"): 1,
        ("lake-sources.md", "tests/lake"): 10,
        ("lake-triage.md", "tests/lake"): 1,
        ("lake-whatif.md", "tests/lake"): 1,
    }
)

_SHOP = """
from datetime import timedelta
from sqlalchemy import Column, Integer, MetaData, Table, insert
from sqlalchemy.ext.asyncio import create_async_engine
from remuda import Job, Queue, RateLimit, Worker

queue = emails = Queue("orders", "postgresql://app@db/shop")
engine = create_async_engine("postgresql+asyncpg://app@db/shop")
orders = Table("orders", MetaData(), Column("id", Integer, primary_key=True))
async with engine.begin() as connection:
    await connection.run_sync(orders.create)
"""

# What a fragment takes for granted, by document and the number of the sample before which it is run.
GIVEN = {
    ("README.md", 2): _SHOP,
    ("adding-jobs.md", 1): _SHOP,
    ("adding-jobs.md", 3): """
job_id, another_id = [await queue.add("later", delay=timedelta(hours=1)) for _ in range(2)]
""",
    ("chasquimq.md", 1): "from remuda import Queue",
    ("devices.md", 3): """
from remuda.devices import Engine
from remuda.devices.networks.calin_v1 import CalinV1

calin = CalinV1("https://calin.example/api", company="Acme", user="admin", password="secret")
engine, secret = Engine(Fleet("memory://"), [calin]), "a secret of the receiver's"
""",
    ("workers.md", 1): """
from datetime import timedelta
from remuda import Job, Queue, RateLimit, Worker

queue = Queue("orders", "sqlite:///app.db")
""",
    ("workers.md", 2): """
reporter = Worker(queue, store_results=True)
reporter.handler("report")(lambda job: 42)
job_id = await queue.add("report")
await reporter.run(until_empty=True)
""",
}

# Which URLs become those of a server of the tests: what follows the scheme is replaced.
SERVERS = {
    r'(?<=")(postgresql(?:\+\w+)?)://[^"]*': "postgres_url",
    r'(?<=")((?:mysql|mariadb)(?:\+\w+)?)://[^"]*': "mariadb_url",
    r'(?<=")(redis|valkey)://[^"]*': "valkey_url",
}

_SAMPLE = re.compile(
    r"^(?:<!-- not run: (?P<why>.+?) -->\n+)?```python\n(?P<source>.*?)^```$", re.MULTILINE | re.DOTALL
)
# Mistakes that a worker only logs, for it takes them for a handler's failure.
_MISTAKE = re.compile(r"\b(?:Attribute|Import|Name|Syntax|Type|UnboundLocal)Error\b")
_RUNS_ON = "await worker.run()"
RUNS_FOR_S = 0.3
AT_MOST_S = 60


class Sample(NamedTuple):
    """A sample, and the line before it."""

    line: int
    source: str
    why_not: str | None


def samples_of(document: Path) -> list[Sample]:
    text = document.read_text()
    found = [
        Sample(text.count("\n", 0, each.start("source")), each["source"], each["why"])
        for each in _SAMPLE.finditer(text)
    ]
    assert len(found) == len(re.findall(r"```\s*py", text)), f"{document.name} has a sample that is not seen"
    return found


def steps_of(document: Path) -> list[tuple[int, str]]:
    """What is run of a document, each with the line before it."""
    steps = []
    for number, sample in enumerate(samples_of(document), 1):
        if sample.why_not is None:
            if (document.name, number) in GIVEN:
                steps.append((sample.line, GIVEN[document.name, number]))
            steps.append((sample.line, sample.source))
    return steps


@pytest.mark.parametrize(
    "document", [each for each in DOCUMENTS if steps_of(each)], ids=lambda document: document.name
)
def test_the_samples_of_a_document_run(
    document: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    steps = [(line, _on_our_servers(source, request)) for line, source in steps_of(document)]
    done = subprocess.run(
        [sys.executable, __file__, document.name],
        input=json.dumps(steps),
        cwd=tmp_path,
        env={**os.environ, "REMUDA_URL": "sqlite:///app.db"},
        capture_output=True,
        text=True,
        timeout=AT_MOST_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not _MISTAKE.search(done.stderr), done.stderr


def _on_our_servers(source: str, request: pytest.FixtureRequest) -> str:
    for pattern, fixture in SERVERS.items():
        if re.search(pattern, source):
            place = request.getfixturevalue(fixture).partition("://")[2]
            source = re.sub(pattern, rf"\1://{place}", source)
    return source


def test_what_is_not_run_is_known() -> None:
    marked = Counter(
        (document.name, sample.why_not)
        for document in DOCUMENTS
        for sample in samples_of(document)
        if sample.why_not is not None
    )
    assert marked == NOT_RUN


def test_what_is_given_is_for_a_sample_that_is_run() -> None:
    samples = {document.name: samples_of(document) for document in DOCUMENTS}
    assert [each for each in GIVEN if samples[each[0]][each[1] - 1].why_not is not None] == []


# -- in the process that runs a document


def _run(document: str, steps: list[tuple[int, str]]) -> None:
    """All steps in one namespace, which is the main module, as in a program of the reader's own."""
    sys.path[0] = ""
    sys.modules["__main__"] = module = ModuleType("__main__")
    with asyncio.Runner() as runner:
        for line, source in steps:
            # Lines are counted as in the document, for traces.
            code = compile(
                "\n" * line + source,
                document,
                "exec",
                flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
                dont_inherit=True,
            )
            if code.co_flags & inspect.CO_COROUTINE:
                running = eval(code, vars(module))
                runner.run(_until_stopped(running, vars(module)) if _RUNS_ON in source else running)
            else:
                exec(code, vars(module))  # it may have a loop of its own


async def _until_stopped(running: Coroutine[Any, Any, None], scope: dict[str, Any]) -> None:
    """Let workers do what is due, then stop them as an operator would."""
    task = asyncio.ensure_future(running)
    while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and not task.done():
        await asyncio.wait({task}, timeout=0.01)  # nobody would hear it yet
    await asyncio.wait({task}, timeout=RUNS_FOR_S)
    while await _is_due(scope) and not task.done():
        await asyncio.wait({task}, timeout=0.01)
    if task.done():
        await task  # says what went wrong
        raise AssertionError("a worker that runs until it is stopped has ended by itself")
    os.kill(os.getpid(), signal.SIGTERM)
    await task


async def _is_due(scope: dict[str, Any]) -> bool:
    queues = [each.queue for each in scope.values() if isinstance(each, Worker)]
    found = [await queue.stats() for queue in queues]
    return any(stats.live > stats.delayed for stats in found)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    _run(sys.argv[1], json.load(sys.stdin))
