"""The core alone, without any extra: what `pip install remuda` gives."""

from __future__ import annotations

import subprocess
import sys
import textwrap

PROGRAM = """
    import asyncio, sys
    for extra in ("greenlet", "asyncpg", "asyncmy", "pydantic"):
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
        for url in ("postgresql://localhost/db", "mysql://localhost/db"):
            try:
                Queue("jobs", url)
            except ConfigurationError as error:
                print(error)

    asyncio.run(main())
"""


def test_sqlite_needs_no_extra_and_the_others_say_what_they_need(sqlite_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), sqlite_url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    hello, completed, postgres, mysql = done.stdout.splitlines()
    assert (hello, completed) == ("hello world", "1")
    assert "pip install 'remuda[postgres]'" in postgres
    assert "pip install 'remuda[mysql]'" in mysql
