"""`import remuda` is quick and loads no database, web or Spark package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import remuda

HEAVY = {
    "sqlalchemy",
    "asyncpg",
    "asyncmy",
    "redis",
    "pyspark",
    "fastapi",
    "typer",
    "rich",
    "pydantic",
    "uvloop",
}
AT_MOST_S = 0.15


def python(code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(remuda.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def modules_after(code: str) -> set[str]:
    loaded = json.loads(python(f"{code}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"))
    return {each.partition(".")[0] for each in loaded}


def test_importing_remuda_loads_nothing_heavy() -> None:
    assert not modules_after("import remuda") & HEAVY


def test_the_queue_and_the_worker_need_no_database_package_until_a_store_is_opened() -> None:
    assert not modules_after("from remuda import Queue, Worker, Job, NewJob, Exponential, AckPolicy") & HEAVY


def test_sqlite_loads_no_driver_of_another_database() -> None:
    loaded = modules_after("from remuda import Queue; Queue('orders', 'sqlite://')")
    assert "sqlalchemy" in loaded
    assert not loaded & {"asyncpg", "asyncmy", "redis", "pyspark", "fastapi", "typer"}


def test_importing_remuda_is_quick() -> None:
    def best_of(code: str) -> float:
        def timed() -> float:
            start = time.perf_counter()
            python(code)
            return time.perf_counter() - start

        return min(timed() for _ in range(5))

    assert best_of("import remuda") - best_of("pass") < AT_MOST_S


def test_every_public_name_is_there() -> None:
    for name in remuda.__all__:
        assert getattr(remuda, name) is not None, name
    assert set(dir(remuda)) == set(remuda.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    assert not hasattr(remuda, "nonsense")
