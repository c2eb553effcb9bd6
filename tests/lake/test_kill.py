"""A real ingest, killed with SIGKILL and started again: the tables are the same."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from remuda.lake.build import build
from remuda.lake.histories import histories_of
from remuda.lake.ingest import ingest
from remuda.lake.place import Lake
from remuda.lake.schemas import HISTORIES
from tests.lake.stores import worked

pytestmark = pytest.mark.faults


def _killed_at(step: str, url: str, place: str) -> None:
    program = [sys.executable, "-m", "tests.lake.ingest_program", url, place, step]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == step:
                break
        else:
            raise AssertionError(f"it ended without coming to {step!r}")
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for each in family:
            each.send_signal(signal.SIGKILL)


def test_killed_and_started_again_the_tables_are_the_same(
    sqlite_url: str, spark: SparkSession, tmp_path: Path
) -> None:
    worked(sqlite_url, "emails", 60, dead_every=9)
    place = str(tmp_path / "lake")
    _killed_at("histories: committing", sqlite_url, place)
    lake = Lake(place)
    ingest(lake, spark, sqlite_url, source="main", on_round=lambda _: None)
    build(lake, spark, now=datetime.now(UTC))
    transitions = lake.transitions.read(spark)
    assert sorted(row["seq"] for row in transitions.collect()) == list(range(1, 181))
    names = [name for name in HISTORIES.names if name != "batch"]
    assertDataFrameEqual(lake.histories.read(spark).select(*names), histories_of(transitions).select(*names))
