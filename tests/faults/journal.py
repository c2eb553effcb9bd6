"""What was run, by the workers' own word: every run, from its start to its end or to a SIGKILL."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from tests.faults.stable import Running

FOR_EVER_NS = 2**63


class Run(NamedTuple):
    """One run of a handler. `ended` is false when its process was killed, or still runs."""

    job: str
    pid: int
    start_ns: int
    end_ns: int
    ended: bool


def runs_of(workers: Iterable[Running]) -> list[Run]:
    """Every run that these workers have written down so far."""
    return [run for worker in workers for run in _runs(worker)]


def _runs(worker: Running) -> list[Run]:
    file = worker.directory / f"{worker.pid}.journal"
    if not file.exists():
        return []
    started: dict[str, int] = {}
    runs = []
    for line in file.read_text().splitlines():
        event, moment, job = line.split(" ", 2)
        if event == "start":
            assert job not in started, f"worker {worker.pid} ran job {job} twice at the same time"
            started[job] = int(moment)
        else:
            runs.append(Run(job, worker.pid, started.pop(job), int(moment), True))
    last_ns = FOR_EVER_NS if worker.died_at_ns is None else worker.died_at_ns
    return runs + [Run(job, worker.pid, start_ns, last_ns, False) for job, start_ns in started.items()]


def by_job(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """The runs of each job, in the order in which they began."""
    found: dict[str, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.start_ns):
        found[run.job].append(run)
    return found


def overlaps(runs: Iterable[Run]) -> list[tuple[Run, Run]]:
    """Runs of one job that were under way at the same time."""
    return [
        (first, second)
        for each in by_job(runs).values()
        for first, second in itertools.pairwise(each)
        if second.start_ns < first.end_ns
    ]
