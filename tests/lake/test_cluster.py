"""On a real cluster: a master, two workers and their executors, each a process of its own; and Connect."""

from __future__ import annotations

import json
import os
import platform
import queue
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest

from remuda.lake.java import find_java, java_home
from remuda.lake.session import _archive
from remuda.lifecycle import State, meaning_of
from tests.lake.stores import worked
from tests.samples.reading import ROOT
from tests.samples.steps import steps_of

SPARK_HOME = Path(pyspark.__file__).parent
SMALL_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
ARCHIVE = _archive(find_java())
QUICK_JAVA = " ".join([SMALL_JAVA, *(ARCHIVE.options() if ARCHIVE.usable() else [])])
SECONDS = 110
MEANING = meaning_of(State.PENDING, State.PROCESSING)

# Both programs run code of the package on executors: in a function, and in a data source.
SHARED = """
    import json, os, sys
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
    from remuda.errors import ConfigurationError
    from remuda.lake.session import session
    from remuda.lake.shipping import check_executors, ship

    def legal(batches):
        import pyarrow as pa
        import remuda
        from remuda.lifecycle import State, meaning_of
        meaning = meaning_of(State.PENDING, State.PROCESSING)
        for batch in batches:
            row = {"process": os.getpid(), "folder": os.getcwd(), "file": remuda.__file__, "meaning": meaning}
            yield pa.RecordBatch.from_pylist([row])

    SEEN = "process long, folder string, file string, meaning string"

    class Moves(DataSource):
        @classmethod
        def name(cls):
            return "moves"

        def schema(self):
            return "file string, meaning string"

        def reader(self, schema):
            return MovesReader()

    class MovesReader(DataSourceReader):
        def partitions(self):
            return [InputPartition(0), InputPartition(1)]

        def read(self, partition):
            import remuda
            from remuda.lifecycle import State, meaning_of
            yield remuda.__file__, meaning_of(State.PENDING, State.PROCESSING)

    def carry(spark, url, place):
        from datetime import UTC, datetime
        from remuda.lake.build import build
        from remuda.lake.ingest import ingest
        from remuda.lake.place import Lake
        lake = Lake(place)
        carried = ingest(lake, spark, url, source="main", tasks=2, on_round=lambda _: None)
        build(lake, spark, now=datetime.now(UTC))
        rows = lake.histories.read(spark).groupBy("outcome").count().collect()
        return [carried, {row["outcome"]: row["count"] for row in rows}]

    def read_moves(spark):
        spark.dataSource.register(Moves)
        return [list(row) for row in spark.read.format("moves").load().collect()]
"""
ON_A_CLUSTER = """
    master, bare_python, driver_java, executor_java, url, place, sample = sys.argv[1:]
    settings = {
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": executor_java,
        "spark.driver.extraJavaOptions": driver_java,
        "spark.driver.host": "127.0.0.1",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # both executors are there for the first task
        "spark.sql.shuffle.partitions": "2",
        "spark.task.maxFailures": "1",
    }
    with session(master=master, memory="512m", settings=settings) as spark:
        package = ship(spark)
        checked = check_executors(spark, tasks=2)
        seen = spark.range(0, 4, 1, 4).mapInArrow(legal, SEEN).collect()
        moves = read_moves(spark)
        total = spark.range(1000).repartition(2).agg({"id": "sum"}).first()[0]
        again = ship(spark)
        exec(sample)
        carried = carry(spark, url, place)
        spark.sparkContext.pythonExec = bare_python
        try:
            check_executors(spark)
            complaint = ""
        except ConfigurationError as error:
            complaint = str(error)
    print(json.dumps({
        "package": package.name,
        "shipped twice": again != package,
        "driver": os.getpid(),
        "checked": [[executor.python, executor.remuda] for executor in checked],
        "seen": [row.asDict() for row in seen],
        "moves": moves,
        "total": total,
        "carried": carried,
        "complaint": complaint,
    }))
"""
THROUGH_CONNECT = """
    remote, url, place = sys.argv[1:]
    with session(remote=remote, settings={"spark.sql.shuffle.partitions": "2"}) as spark:
        package = ship(spark)
        check_executors(spark)
        seen = spark.range(0, 2, 1, 2).mapInArrow(legal, SEEN).collect()
        moves = read_moves(spark)
        zone = spark.conf.get("spark.sql.session.timeZone")
        partitions = spark.conf.get("spark.sql.shuffle.partitions")
        carried = carry(spark, url, place)
    print(json.dumps({
        "package": package.name,
        "driver": os.getpid(),
        "seen": [row.asDict() for row in seen],
        "moves": moves,
        "settings": [zone, partitions],
        "carried": carried,
    }))
"""


class Daemon:
    """A process of Spark's whose log is read until it says what one waits for."""

    def __init__(self, arguments: list[str], folder: Path) -> None:
        environment = os.environ | {
            "JAVA_HOME": str(java_home(find_java())),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_DIRS": str(folder),
            "SPARK_DAEMON_MEMORY": "512m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
        }
        self._process = subprocess.Popen(
            [str(SPARK_HOME / "bin" / "spark-class"), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=folder,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def said(self, pattern: str) -> str:
        """The first group of the pattern, once a line of the log has it."""
        lines: list[str] = []
        while (line := self._lines.get(timeout=SECONDS)) is not None:
            lines.append(line)
            if found := re.search(pattern, line):
                return found[1]
        raise AssertionError(f"ended without saying {pattern}:\n{''.join(lines)}")

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=SECONDS)
        self._reader.join()
        assert self._process.stdout
        self._process.stdout.close()


@contextmanager
def daemon(arguments: list[str], folder: Path) -> Iterator[Daemon]:
    folder.mkdir(parents=True, exist_ok=True)
    started = Daemon(arguments, folder)
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a master with two workers of one core each."""
    folder = tmp_path_factory.mktemp("cluster")
    local = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with ExitStack() as stack:
        master = stack.enter_context(
            daemon(["org.apache.spark.deploy.master.Master", *local], folder / "master")
        )
        address = master.said(r"Starting Spark master at (spark://\S+)")
        size = ["--cores", "1", "--memory", "512m"]
        workers = [
            stack.enter_context(
                daemon(
                    ["org.apache.spark.deploy.worker.Worker", address, *local, *size, "-d", str(home)], home
                )
            )
            for home in (folder / "first", folder / "second")
        ]
        for worker in workers:
            worker.said(r"(Successfully registered) with master")
        yield address


@pytest.fixture
def connect_server(tmp_path: Path) -> Iterator[str]:
    """The address of a Spark Connect server on this machine."""
    settings = {
        "spark.master": "local[2]",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(tmp_path),
        "spark.sql.warehouse.dir": str(tmp_path),
    }
    options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    submit = ["org.apache.spark.deploy.SparkSubmit", *options, "--class", server, "spark-internal"]
    with daemon(submit, tmp_path / "server") as started:
        port = started.said(r"Spark Connect server started at: \S*:(\d+)")
        yield f"sc://127.0.0.1:{port}"


def run(program: str, *arguments: str, folder: Path) -> dict[str, Any]:
    """What a program in a process of its own printed as JSON in its last line."""
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SHARED) + textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=environment,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.fixture
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The URL of a store with something in it, and a place for a lake."""
    folder = tmp_path_factory.mktemp("filled")
    url = f"sqlite:///{folder}/app.db"
    worked(url, "emails", 20, dead_every=10)
    return url, str(folder / "lake")


def test_executors_in_processes_of_their_own_run_the_package_that_was_shipped(
    cluster: str, filled: tuple[str, str], tmp_path: Path
) -> None:
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)

    (sample,) = steps_of(ROOT / "docs" / "lake-cluster.md", {}, with_spark=True)
    shown = sample["source"].replace("spark://host:7077", cluster)
    assert cluster in shown

    answer = run(ON_A_CLUSTER, cluster, str(bare), SMALL_JAVA, QUICK_JAVA, *filled, shown, folder=tmp_path)

    seen = answer["seen"]
    assert all(answer["package"] in row["file"] for row in seen)
    assert {row["meaning"] for row in seen} == {MEANING}
    # …/first/app-…/0 and …/second/app-…/1: an executor of each worker.
    assert {Path(row["folder"]).parts[-3] for row in seen} == {"first", "second"}
    assert len({answer["driver"], *(row["process"] for row in seen)}) == 3
    assert [python for python, _ in answer["checked"]] == [platform.python_version()] * 2
    assert all(answer["package"] in file and meaning == MEANING for file, meaning in answer["moves"])
    assert answer["total"] == 499_500
    assert answer["carried"] == [60, {"delivered": 18, "dead": 2}]
    assert not answer["shipped twice"]
    assert "No module named 'pyarrow'" in answer["complaint"]
    assert [file.name for file in tmp_path.iterdir()] == ["bare-python"]


def test_connect_runs_the_package_a_data_source_and_the_pipeline_on_the_server(
    connect_server: str, filled: tuple[str, str], tmp_path: Path
) -> None:
    answer = run(THROUGH_CONNECT, connect_server, *filled, folder=tmp_path)

    assert all(answer["package"] in row["file"] for row in answer["seen"])
    assert answer["driver"] not in {row["process"] for row in answer["seen"]}
    assert len(answer["moves"]) == 2
    assert all(answer["package"] in file and meaning == MEANING for file, meaning in answer["moves"])
    assert answer["settings"] == ["UTC", "2"]
    assert answer["carried"] == [60, {"delivered": 18, "dead": 2}]
