"""`worker`: in one process and in several, how they stop, and what happens when one dies."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from remuda import ConfigurationError, NewJob
from remuda.cli.exits import ExitCode
from remuda.cli.work import load, with_concurrency, workers_of
from tests.cli.conftest import Remuda, Started, until
from tests.servers import alive

# Handlers tell that they have started by making a file named for the job, with their process's id in it.
PROGRAM = """
import asyncio, os, time
from datetime import timedelta
from pathlib import Path
from remuda import Job, Queue, Worker

def make(name="emails"):
    queue = Queue(name, os.environ["REMUDA_URL"])
    worker = Worker(queue, concurrency=4, fetch_batch_size=8, graceful_timeout=timedelta(seconds=20))

    def started(job):
        Path(f"{job.id}.tmp").write_text(str(os.getpid()))
        Path(f"{job.id}.tmp").rename(f"{job.id}.started")

    @worker.handler("quick")
    async def quick(job: Job):
        await asyncio.sleep(0.001)
        started(job)

    @worker.handler("wait")
    async def wait(job: Job):
        started(job)
        while not Path("gate").exists():
            await asyncio.sleep(0.01)

    @worker.handler("block")
    def block(job: Job):
        started(job)
        time.sleep(120)

    @worker.handler("crash")
    async def crash(job: Job):
        os._exit(7)

    return worker

async def make_both():
    return [make("emails"), make("invoices")]

worker = make()
both = [worker]
mixed = [worker, "no worker"]
"""


@pytest.fixture
def program(on_sqlite: Remuda) -> Remuda:
    """A program with workers, on SQLite."""
    Path(on_sqlite.directory, "program.py").write_text(PROGRAM)
    return on_sqlite


@pytest.fixture(params=["sqlite", "postgres", "valkey"])
def shared_program(request: pytest.FixtureRequest) -> Remuda:
    """The same on the stores that processes usually share."""
    made: Remuda = request.getfixturevalue(f"on_{request.param}")
    Path(made.directory, "program.py").write_text(PROGRAM)
    return made


def _process_of(remuda: Remuda, job_id: str) -> int:
    """The process that runs a job, once it does."""
    file = Path(remuda.directory, f"{job_id}.started")
    until(file.exists, f"job {job_id} started")
    return int(file.read_text())


def _open_gate(remuda: Remuda) -> None:
    Path(remuda.directory, "gate").touch()


# -- one process


def test_the_first_signal_drains(program: Remuda) -> None:
    running, _waiting = program.add(NewJob("wait"), NewJob("quick", priority=-2))
    started = program.start("worker", "program:worker", "--concurrency", "1")
    _process_of(program, running)
    started.signal(signal.SIGTERM)
    until(lambda: program.count("pending") == 1, "what was not started went back")
    _open_gate(program)
    ended = started.finish()
    assert ended.code == 0
    assert "has stopped" in ended.err
    assert program.counts("completed", "pending") == (1, 1)


def test_the_second_signal_ends_at_once_though_a_thread_goes_on(program: Remuda) -> None:
    blocked, waiting = program.add(NewJob("block"), NewJob("wait"))
    started = program.start("worker", "program:worker")
    _process_of(program, blocked)
    _process_of(program, waiting)
    started.signal(signal.SIGINT)
    started.signal(signal.SIGTERM)
    assert started.finish(within_s=8).code == ExitCode.ERROR
    # What could be cancelled went back; what could not stays leased until it is known to have ended.
    assert program.json("jobs", "show", "emails", waiting)["job"]["state"] == "PENDING"
    assert program.json("jobs", "show", "emails", blocked)["job"]["state"] == "PROCESSING"


def test_two_workers_run_side_by_side(program: Remuda) -> None:
    program.add(NewJob("quick"), queue="emails")
    program.add(NewJob("quick"), queue="invoices")
    ended = program.run("worker", "program:make_both", "--until-empty", "--log-json")
    assert ended.code == 0
    logged = [json.loads(line) for line in ended.err.splitlines()]
    assert {"at", "level", "logger", "process", "message", "action"} <= logged[0].keys()
    assert (program.count("completed", "emails"), program.count("completed", "invoices")) == (1, 1)


@pytest.fixture
def here(program: Remuda, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process in the program's folder, where `load` finds it; its modules are forgotten afterwards."""
    monkeypatch.chdir(program.directory)
    monkeypatch.setenv("REMUDA_URL", program.url)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path(program.directory, "broken.py").write_text("import not_installed")
    yield
    for name in ("program", "broken"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("attribute", "count"), [("make_both", 2), ("make", 1), ("both", 1), ("worker", 1)])
async def test_workers_come_alone_in_lists_and_from_functions(attribute: str, count: int) -> None:
    workers = with_concurrency(await workers_of(load(f"program:{attribute}")), 17)
    assert [each.options.concurrency for each in workers] == [17] * count


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("target", "error", "told"),
    [
        ("program", ConfigurationError, "write MODULE:ATTR"),
        ("nowhere:worker", ConfigurationError, "there is no module 'nowhere'"),
        ("program:nothing", ConfigurationError, "program has no 'nothing'"),
        ("program:os.sep", ConfigurationError, "a Worker or a list of Workers is wanted, not '/'"),
        ("program:mixed", ConfigurationError, "a Worker is wanted, not 'no worker'"),
        ("broken:worker", ModuleNotFoundError, "No module named 'not_installed'"),
    ],
)
async def test_what_holds_no_workers_is_refused(target: str, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        await workers_of(load(target))


def test_a_program_that_cannot_be_loaded_ends_with_one_line(program: Remuda) -> None:
    ended = program.run("worker", "nowhere:worker")
    assert ended.code == ExitCode.USAGE
    assert ended.err == "remuda: there is no module 'nowhere' here or on Python's path\n"


def test_a_worker_waits_for_a_store_that_is_not_there_and_can_be_stopped(program: Remuda) -> None:
    started = program.start("worker", "program:worker", REMUDA_URL="postgresql://nobody@127.0.0.1:1/x")
    started.logs("the store cannot be opened; trying again")
    started.signal()
    assert started.finish().code == 0


# -- several processes


def test_several_processes_drain_a_queue_and_stop(shared_program: Remuda) -> None:
    started = shared_program.start("worker", "program:worker", "--processes", "2", "--concurrency", "2")
    started.logs("runs queue", times=2)
    ids = shared_program.add(*(NewJob("quick") for _ in range(300)))
    until(lambda: shared_program.count("completed") == 300, "all jobs are done")
    assert len({_process_of(shared_program, each) for each in ids}) == 2
    started.signal(signal.SIGTERM)
    ended = started.finish()
    assert ended.code == 0
    assert ended.err.count("has stopped") == 2


def test_a_signal_to_the_whole_group_drains_all_the_same(program: Remuda) -> None:
    """As systemd sends it: the children get it directly, and the supervisor passes it on."""
    (job_id,) = program.add(NewJob("wait"))
    started = program.start("worker", "program:worker", "--processes", "2")
    _process_of(program, job_id)
    started.logs("runs queue", times=2)
    for pid in (*started.children(), started.process.pid):
        os.kill(pid, signal.SIGTERM)
    started.logs("has stopped")
    _open_gate(program)
    assert started.finish().code == 0
    assert program.count("completed") == 1


def test_the_second_signal_ends_all_processes_at_once(program: Remuda) -> None:
    (job_id,) = program.add(NewJob("block"))
    started = program.start("worker", "program:worker", "--processes", "2")
    _process_of(program, job_id)
    started.logs("runs queue", times=2)
    children = started.children().values()
    started.signal(signal.SIGTERM)
    started.logs("has stopped")
    started.signal(signal.SIGTERM)
    assert started.finish(within_s=8).code == ExitCode.ERROR
    assert not any(map(alive, children))


def test_a_process_that_dies_is_started_again(program: Remuda) -> None:
    started = program.start("worker", "program:worker", "--processes", "2")
    started.logs("runs queue", times=2)
    before = started.children()
    victim = next(iter(before.values()))
    victim.kill()
    started.logs(f"({victim.pid}) ended with SIGKILL; starting it again in 0.5 s")
    started.logs("runs queue", times=3)
    assert len(started.children()) == 2
    assert started.children().keys() != before.keys()
    program.add(NewJob("crash"))
    started.logs("ended with exit code 7; starting it again in")
    started.signal()
    assert started.finish().code == 0


def test_processes_that_cannot_start_end_it_all(program: Remuda) -> None:
    ended = program.run("worker", "nowhere:worker", "--processes", "3")
    assert ended.code == ExitCode.USAGE
    assert ended.err.count("there is no module 'nowhere'") == 1
    assert "could not start" in ended.err


def test_several_processes_end_by_themselves_when_all_is_done(program: Remuda) -> None:
    program.add(*(NewJob("quick") for _ in range(50)))
    ended = program.run("worker", "program:worker", "--processes", "2", "--until-empty")
    assert ended.code == 0
    assert program.count("completed") == 50


def test_the_processes_of_a_supervisor_that_is_killed_drain_and_end(program: Remuda) -> None:
    (job_id,) = program.add(NewJob("wait"))
    started: Started = program.start("worker", "program:worker", "--processes", "2")
    _process_of(program, job_id)
    started.logs("runs queue", times=2)
    children = started.children().values()
    started.signal(signal.SIGKILL)
    until(lambda: "has stopped" in started.log(), "the one with nothing to do has ended")
    _open_gate(program)
    until(lambda: not any(map(alive, children)), "the children have ended")
    assert program.count("completed") == 1
