"""One run of one peer: its file as a process of its own, on a fresh database, within a time limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from dataclasses import dataclass, field
from typing import Any

from bench.catalogue import ROOT, PeerFile, Server
from bench.complaints import last_line, without_paths
from bench.environments import EnvironmentFailure, python_for
from bench.measures import Order


@dataclass(frozen=True)
class Run:
    """What came of a run: figures, or the reason why there are none."""

    figures: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    failure: str = ""


def run_peer(peer: PeerFile, server: Server, order: Order, time_limit: float) -> Run:
    """Carry out ``order`` (its URL filled in here).  A peer's failure is an answer, not an error."""
    try:
        python = python_for(peer)
    except (EnvironmentFailure, OSError) as failure:
        return Run(failure=without_paths(str(failure)))
    with server.fresh() as url:
        arguments = Order(**{**vars(order), "url": url}).arguments()
        return _run([str(python), "-P", "-m", peer.module, *arguments], time_limit)


def _run(command: list[str], time_limit: float) -> Run:
    # A session of its own, so that a run past its time ends together with the processes it started.
    with subprocess.Popen(
        command,
        cwd=tempfile.gettempdir(),
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            answer, complaint = process.communicate(timeout=time_limit)
        except subprocess.TimeoutExpired:
            return Run(failure=f"not done within {time_limit:g} s")
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode != 0:
        return Run(failure=without_paths(last_line(complaint)))
    return Run(**json.loads(answer.splitlines()[-1]))
