"""``python -m bench.lake``: the lake beside DuckDB and Polars on the same files, in one run.

1. Ingest: a store is filled by the real store (add, fetch, settle), then ingested: transitions a second.
2. Histories and measures over generated transitions: Spark, DuckDB and Polars, each reading the same Parquet
   files and writing Parquet; the second of two runs counts, above 20 million the only one. Memory: the most
   that each had.
3. What-if over a million histories.

Ratios are what counts: the machine is the same for all, and whatever else it does hits all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil

from bench import catalogue, machine
from remuda import Queue
from remuda.lifecycle import State
from remuda.message import NewJob
from remuda.stores import open_store
from remuda.stores.contract import Settlement

LEASE = timedelta(minutes=5)
START = datetime(2026, 1, 5, tzinfo=UTC)
WARM_UP_TO = 20  # million transitions
AIMS = {"valkey": 300_000, "postgres": 200_000}


# -- ingest


async def fill(url: str, jobs: int) -> None:
    """Jobs that are added, fetched and settled, three transitions each, some of them dead."""
    async with open_store(url) as store:
        queue = Queue("bench", store)
        for start in range(0, jobs, 5_000):
            count = min(5_000, jobs - start)
            await queue.add_many([NewJob(name=f"name-{n % 7}", payload={"n": n}) for n in range(count)])
        while deliveries := await store.fetch("bench", limit=1_000, lease=LEASE, who="bench"):
            outcomes = [
                Settlement(delivery=each, state=State.COMPLETED, started_at=each.acquired_at, keep=False)
                for each in deliveries
            ]
            await store.settle("bench", outcomes, who="bench")


@contextmanager
def _served(store: str, directory: Path) -> Iterator[Any]:
    directory.mkdir()
    with catalogue.serve(store, directory) as server:
        yield server


def ingest(spark: Any, store: str, transitions: int) -> dict[str, Any]:
    """Transitions a second from a store into a fresh lake, after a small one to warm up."""
    from remuda.lake.ingest import ingest as carry
    from remuda.lake.place import Lake

    with tempfile.TemporaryDirectory() as folder, _served(store, Path(folder) / "server") as server:
        with server.fresh() as url:
            asyncio.run(fill(url, 10_000))
            carry(Lake(f"{folder}/warm"), spark, url, source="main", on_round=lambda _: None)
        with server.fresh() as url:
            asyncio.run(fill(url, transitions // 3))
            began = time.perf_counter()
            carried = carry(Lake(f"{folder}/lake"), spark, url, source="main", on_round=lambda _: None)
            seconds = time.perf_counter() - began
    return {
        "transitions": carried,
        "seconds": seconds,
        "per_second": carried / seconds,
        "aim": AIMS.get(store),
    }


# -- tables


@contextmanager
def most_memory() -> Iterator[list[int]]:
    """The most memory that this process's children (the JVM, its Python workers) held together, in bytes."""
    most, over = [0], threading.Event()

    def watch() -> None:
        me = psutil.Process()
        while not over.wait(0.2):
            held = 0
            for child in me.children(recursive=True):
                try:
                    held += child.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            most[0] = max(most[0], held)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield most
    finally:
        over.set()
        watcher.join()


def spark_tables(spark: Any, lake: Any, out: Path, *, runs: int) -> dict[str, Any]:
    """Histories and measures, each written to Parquet; the last of several runs counts."""
    from pyspark.sql import functions as F

    from remuda.lake.histories import quick_histories
    from remuda.lake.measures import measures_of

    transitions = lake.transitions.read(spark)
    made = quick_histories(transitions).drop("reborn")
    seconds: dict[str, float] = {}
    with most_memory() as most:
        for _ in range(runs):
            seconds["histories"] = timed(lambda: made.write.mode("overwrite").parquet(str(out / "histories")))
        histories = spark.read.parquet(str(out / "histories"))
        measured = measures_of(histories, transitions.where(F.col("left").isNull()))
        for _ in range(runs):
            seconds["measures"] = timed(
                lambda: measured.write.mode("overwrite").parquet(str(out / "measures"))
            )
    return {**seconds, "memory": most[0]}


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def peer(engine: str, what: str, transitions: list[str], out: Path, *, runs: int) -> dict[str, float]:
    """The same by another engine, in a process of its own, so that its memory can be told."""
    asked = {"engine": engine, "what": what, "transitions": transitions, "out": str(out), "runs": runs}
    request = json.dumps(asked)
    done = subprocess.run(
        [sys.executable, "-m", "bench.lake_peers"], input=request, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{engine} {what}: {done.stderr[-2_000:]}")
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def tables(spark: Any, millions: float, folder: Path) -> dict[str, Any]:
    """One size: generated, then by Spark, DuckDB and Polars."""
    from remuda.lake.generate import generate
    from remuda.lake.place import Lake

    lake = Lake(str(folder / f"lake-{millions}"))
    wish = {"transitions": int(millions * 1_000_000), "start": START, "span": timedelta(days=30), "seed": 1}
    made = timed(lambda: _keep(lake, generate(spark, **wish)))
    files = [lake.transitions.root.inside(each.path) for each in lake.transitions.files()]
    out = folder / f"out-{millions}"
    found: dict[str, Any] = {"generate": made, "rows": sum(each.records for each in lake.transitions.files())}
    runs = 2 if millions <= WARM_UP_TO else 1
    found["spark"] = spark_tables(spark, lake, out / "spark", runs=runs)
    for engine in ("duckdb", "polars"):
        found[engine] = {}
        for what in ("histories", "measures"):
            try:
                answer = peer(engine, what, files, out / engine, runs=runs)
            except RuntimeError as error:
                found[engine][what] = None
                found[engine]["failed"] = str(error)[-300:]
                continue
            if answer:
                found[engine][what] = answer["seconds"]
                found[engine]["memory"] = max(found[engine].get("memory", 0), answer["memory"])
    shutil.rmtree(out, ignore_errors=True)
    return found


def _keep(lake: Any, rows: Any) -> None:
    from remuda.lake.ingest import BATCHES

    table = lake.transitions
    table.commit(table.write(rows), progress={BATCHES: 1}, since=table.version(), what="bench")


# -- what if


def what_if(spark: Any, millions: float, folder: Path) -> dict[str, Any]:
    """Jobs under another policy: seconds for so many histories."""
    from remuda.lake.histories import quick_histories
    from remuda.lake.place import Lake
    from remuda.lake.whatif import parse_policy, what_if_jobs

    lake = Lake(str(folder / f"lake-{millions}"))
    transitions = lake.transitions.read(spark)
    place = str(folder / "histories-for-what-if")
    quick_histories(transitions).drop("reborn").write.mode("overwrite").parquet(place)
    histories = spark.read.parquet(place)
    policy = parse_policy("exponential:initial=5s,cap=1h,max_attempts=8")
    answers: list[Any] = []
    seconds = timed(lambda: answers.append(what_if_jobs(histories, transitions, policy=policy)))
    return {"histories": answers[0].recorded.messages, "played": answers[0].played, "seconds": seconds}


def report(found: dict[str, Any]) -> None:
    print(json.dumps(found["machine"]))
    for store, each in found.get("ingest", {}).items():
        print(f"ingest {store}: {each['per_second']:,.0f}/s of {each['transitions']:,}, aim {each['aim']}")
    for millions, each in found.get("tables", {}).items():
        print(f"{millions} M transitions ({each['rows']:,} rows, generated in {each['generate']:.1f} s)")
        for what in ("histories", "measures"):
            spark, duck, polars = (each[engine].get(what) for engine in ("spark", "duckdb", "polars"))
            shown = [f"spark {spark:.1f} s"]
            shown += [f"duckdb {duck:.1f} s, ratio {spark / duck:.2f}"] if duck else []
            shown += [f"polars {polars:.1f} s, ratio {spark / polars:.2f}"] if polars else []
            print(f"  {what}: {'; '.join(shown)}")
        memory = {engine: each[engine].get("memory", 0) / 2**30 for engine in ("spark", "duckdb", "polars")}
        print("  memory: " + ", ".join(f"{engine} {held:.1f} GiB" for engine, held in memory.items()))
    if "what_if" in found:
        each = found["what_if"]
        print(
            f"what-if: {each['histories']:,} histories ({each['played']:,} played) in {each['seconds']:.1f} s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", default="1,10,50", help="millions of transitions, separated by commas")
    parser.add_argument("--stores", default="valkey,postgres", help="stores to ingest from")
    parser.add_argument("--ingest", type=int, default=3_000_000, help="transitions to ingest from each")
    parser.add_argument("--what-if", default="", help="millions of transitions of the lake that is asked")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    from remuda.lake.session import open_session

    found: dict[str, Any] = {"machine": machine.facts()}
    spark = open_session(app="remuda bench")
    with tempfile.TemporaryDirectory(dir=".") as folder:
        stores = [each for each in options.stores.split(",") if each]
        if stores and options.ingest:
            found["ingest"] = {store: ingest(spark, store, options.ingest) for store in stores}
        sizes = [float(each) for each in options.sizes.split(",") if each]
        if sizes:
            found["tables"] = {size: tables(spark, size, Path(folder)) for size in sizes}
            if options.what_if:
                found["what_if"] = what_if(spark, float(options.what_if), Path(folder))
    spark.stop()
    report(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
