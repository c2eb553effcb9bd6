"""What runs in the processes of these tests: a worker, and programs that add jobs.

A worker writes down every run of a handler, in a file of its own that outlives it: see `journal`.
What it logs goes to another file, one JSON object to a line.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import create_engine

from remuda import Job, NewJob, Queue, StoreUnavailableError, Worker

GLANCE_S = 0.005


class Program(msgspec.Struct, kw_only=True):
    """What a process is to do. `options` are a worker's, durations in seconds."""

    role: str
    url: str
    queue: str
    directory: str
    options: dict[str, Any] = {}
    arguments: dict[str, Any] = {}


def run(program: Program) -> None:
    """Do it, in this process, to the end."""
    _log_to(Path(program.directory, f"{os.getpid()}.log"))
    asyncio.run(_ROLES[program.role](program))


def gate(directory: str | Path, pid: int) -> Path:
    """The file that lets the waiting handlers of one process go on."""
    return Path(directory, f"{pid}.gate")


# -- the worker


async def _work(program: Program) -> None:
    queue = Queue(program.queue, program.url)  # opened by the worker, which has the patience to
    worker = Worker(
        queue,
        **{
            name: timedelta(seconds=value) if name.endswith(("_interval", "_timeout")) else value
            for name, value in program.options.items()
        },
    )
    _register(worker, program.directory)
    await worker.run()
    await queue.close()
    logging.getLogger("counts").info("%s", worker.counts, extra=msgspec.structs.asdict(worker.counts))


def _register(worker: Worker, directory: str) -> None:
    """Handlers by what they do; a job's payload says for how long."""
    note = _journal(directory)
    opened = gate(directory, os.getpid())

    @worker.handler("sleep")
    async def sleep(job: Job) -> None:
        note("start", job.id)
        await asyncio.sleep(job.payload)
        note("end", job.id)

    @worker.handler("wait for the gate")
    async def wait(job: Job) -> None:
        note("start", job.id)
        while not opened.exists():  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(GLANCE_S)
        note("end", job.id)

    @worker.handler("wait in a thread")
    def wait_in_a_thread(job: Job) -> None:
        note("start", job.id)
        while not opened.exists():
            time.sleep(GLANCE_S)
        note("end", job.id)

    @worker.handler("die")
    async def die(job: Job) -> None:
        note("start", job.id)
        os.kill(os.getpid(), signal.SIGKILL)

    @worker.handler("block the loop")
    async def block(job: Job) -> None:
        note("start", job.id)
        while not opened.exists():
            time.sleep(GLANCE_S)  # noqa: ASYNC251 - what must not be done is what is tested
        note("end", job.id)


def _journal(directory: str) -> Callable[[str, str], None]:
    """A function that writes down what happened to a job; there even if the process dies at once."""
    file = os.open(Path(directory, f"{os.getpid()}.journal"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    return lambda event, job: (
        os.write(file, b"%s %d %s\n" % (event.encode(), time.monotonic_ns(), job.encode())) and None
    )


# -- programs that add


async def _publish(program: Program) -> None:
    """Add numbered jobs one by one and in batches, again and again until the store has taken them."""
    arguments = program.arguments
    async with Queue(program.queue, program.url) as queue:
        for number in range(arguments["batches"]):
            mark = f"{arguments['mark']}-{number}"
            jobs = [
                NewJob(
                    "sleep",
                    0,
                    job_id=f"{mark}-{place}",
                    headers={"batch": mark},
                    unique_for=timedelta(hours=1),
                )
                for place in range(arguments["size"])
            ]
            single = NewJob("sleep", 0, job_id=f"{mark}-single", unique_for=timedelta(hours=1))
            await _insist(lambda jobs=jobs: queue.add_many(jobs))
            await _insist(lambda single=single: queue.add_many([single]))


async def _insist(add: Callable[[], Any]) -> None:
    while True:
        with suppress(StoreUnavailableError):
            await add()
            return
        await asyncio.sleep(GLANCE_S)


async def _hold_transaction(program: Program) -> None:
    """Add a job in a transaction of our own, say so, and never commit."""
    engine = create_engine(program.url)
    async with Queue(program.queue, program.url) as queue:
        with engine.begin() as connection:
            await queue.add("sleep", 0, connection=connection)
            logging.getLogger("transaction").info("open", extra={"action": "transaction_open"})
            await asyncio.Event().wait()


_ROLES = {"worker": _work, "publisher": _publish, "transaction": _hold_transaction}


# -- the log


class _AsJson(logging.Formatter):
    _PLAIN = frozenset(vars(logging.makeLogRecord({})))

    def format(self, record: logging.LogRecord) -> str:
        more = {name: value for name, value in vars(record).items() if name not in self._PLAIN}
        line = {"logger": record.name, "level": record.levelname, "message": record.getMessage(), **more}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _log_to(file: Path) -> None:
    handler = logging.FileHandler(file)
    handler.setFormatter(_AsJson())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
