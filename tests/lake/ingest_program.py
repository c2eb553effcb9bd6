"""Ingests and builds in a process of its own, and tells each step: to be killed by a test."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

from remuda.lake.build import build
from remuda.lake.ingest import ingest_round
from remuda.lake.place import Lake
from remuda.lake.session import open_session
from tests.lake.conftest import FOR_TESTS


def told(step: str) -> None:
    sys.stdout.write(f"{step}\n")
    sys.stdout.flush()
    if step == sys.argv[3]:
        sys.stdin.readline()  # waits here to be killed


def main() -> None:
    url, place = sys.argv[1:3]
    spark = open_session(master="local[1]", memory="1g", settings=FOR_TESTS)
    lake = Lake(place)
    while ingest_round(lake, spark, url, source="main", limit=90, on_step=told):
        build(lake, spark, now=datetime.now(UTC), on_step=told)
    spark.stop()


if __name__ == "__main__":
    main()
