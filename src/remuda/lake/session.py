"""The Spark session of the lake: on this machine with no server, on a cluster, or through Spark Connect."""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from remuda.errors import ConfigurationError
from remuda.lake.java import ClassArchive, Java, class_archive, find_java, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GIB = 1 << 30
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# What the tables rely on, in every session; may be set while it runs, so also on Spark Connect.
NEEDED: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.python.filterPushdown.enabled": "true",
}
# What suits one machine; a cluster has been tuned by whoever runs it.
ONE_MACHINE: Mapping[str, str] = {
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.adaptive.enabled": "true",
    # Joins whose partitions are small enough are made by hash, once their sizes are known.
    "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold": "256m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
# Spark lowers the level of a shell, and says so, unless this logger has the level of the root.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""
CONNECT_PACKAGES = {
    "grpc": "grpcio",
    "grpc_status": "grpcio-status",
    "google.rpc": "googleapis-common-protos",
    "zstandard": "zstandard",
}
CONNECT_PORT = 15002
CONNECT_SECONDS = 10
# Set to 0, no class archive is made or used.
ARCHIVE_SWITCH = "REMUDA_CLASS_ARCHIVE"
# These put folders among the jars, and Java archives no classes then.
CLASS_FOLDERS = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")
KEPT_ARCHIVES = 3
RECORDING_SECONDS = 300


def open_session(
    *,
    master: str | None = None,
    remote: str | None = None,
    app: str = "remuda lake",
    memory: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A Spark session: on this machine (`local[*]`), on the cluster at `master`, or at the Connect `remote`.

    `memory` is the driver's ("4g"); `settings` are Spark's own and win over ours. Stop it when done. Under
    spark-submit, or with SPARK_REMOTE set, what those say is used where nothing is given.
    """
    if master and remote:
        raise ConfigurationError(f"give a master ({master}) or a Spark Connect address ({remote}), not both")
    _require_pyspark()
    if not master and (remote := remote or os.environ.get("SPARK_REMOTE")):
        return _connect(remote, app, settings or {})
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return _join(master, app, settings or {})
    return _start(master or "local[*]", app, memory, settings or {})


def current_or_open(
    *,
    master: str | None = None,
    remote: str | None = None,
    app: str = "remuda lake",
    memory: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """The session that runs in this process, made fit for the lake; else `open_session` with the rest."""
    _require_pyspark()
    running = _running()
    if running is None:
        return open_session(master=master, remote=remote, app=app, memory=memory, settings=settings)
    there = address_of(running)
    wanted = f"sc://{connect_address(remote)[0]}" if remote else master
    if wanted and wanted != there:
        raise ConfigurationError(f"a Spark session runs on {there} already; stop it to open {wanted}")
    _apply(running, {**NEEDED, **(settings or {})})
    return running


@contextmanager
def session(
    *,
    master: str | None = None,
    remote: str | None = None,
    app: str = "remuda lake",
    memory: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """`current_or_open` for a `with` block; stopped at its end unless it ran before."""
    _require_pyspark()
    before = _running()
    spark = current_or_open(master=master, remote=remote, app=app, memory=memory, settings=settings)
    try:
        yield spark
    finally:
        if before is None:
            spark.stop()


def is_local(master: str) -> bool:
    """Whether executors run in the driver's own process, with its Python and its packages."""
    return master == "local" or master.startswith("local[")


def driver_memory(machine_bytes: int) -> str:
    """About a third of the machine for the driver, between 1 and 8 GiB, as Spark writes it."""
    return f"{min(8, max(1, round(machine_bytes / GIB / 3)))}g"


def machine_memory() -> int:
    """The memory this process may use, in bytes: the machine's, or its container's if that is less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        # No such file, or "max".
        with suppress(OSError, ValueError):
            limits.append(int(Path(file).read_text()))
    return min(limits)


def start_settings(
    master: str, memory: str | None, given: Mapping[str, str], scratch: Path
) -> dict[str, str]:
    """What a session of this process is started with; nothing that it writes lands in the caller's folder."""
    ours = {
        **NEEDED,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Looks up the caller of each function of a column, which takes longer than a small query.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    if is_local(master):
        ours |= {
            **ONE_MACHINE,
            "spark.driver.memory": driver_memory(machine_memory()),
            "spark.local.dir": str(scratch / "local"),
            "spark.pyspark.python": sys.executable,
            "spark.pyspark.driver.python": sys.executable,
        }
    return {**ours, **({"spark.driver.memory": memory} if memory else {}), **given}


def java_options(given: str, logging: Path, archive: list[str]) -> str:
    """Options for the driver's Java: quiet, a collector for throughput; those given come last and win."""
    names_a_collector = "-XX:+Use" in given and "GC" in given
    collector = [] if names_a_collector else ["-XX:+UseParallelGC"]
    ours = [f"-Dlog4j2.configurationFile={logging.as_uri()}", *collector, *archive]
    return " ".join([*ours, given]).rstrip()


def connect_address(remote: str) -> tuple[str, int]:
    """Host and port of a Spark Connect address: `sc://host:port/;token=…`."""
    parts = urlsplit(remote)
    if parts.scheme != "sc" or not parts.hostname:
        shown = remote.partition(";")[0]  # what follows may be a token
        raise ConfigurationError(f"{shown!r} is no Spark Connect address: write sc://host:{CONNECT_PORT}")
    return parts.hostname, parts.port or CONNECT_PORT


def missing_for_connect() -> list[str]:
    """The packages that Spark Connect needs and that are not installed."""
    return [package for module, package in CONNECT_PACKAGES.items() if not _importable(module)]


def _importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _require_pyspark() -> None:
    if not _importable("pyspark"):
        raise ConfigurationError("the lake needs PySpark: pip install 'remuda[lake]'")


def _running() -> SparkSession | None:
    """The session of this process, also when another thread opened it."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        return SparkSession.builder.getOrCreate()
    return SparkSession.getActiveSession()


def address_of(spark: SparkSession) -> str:
    """Where a session runs: its master, or the address of its Connect server."""
    # Connect's sessions are of another class with no context, though PySpark's types say otherwise.
    if "connect" in type(spark).__module__:
        return f"sc://{spark.client.host}"
    return str(spark.sparkContext.master)


def _apply(spark: SparkSession, settings: Mapping[str, str]) -> None:
    """Set what may be set on a session that runs; what only a start can set is left as it is."""
    for name, value in settings.items():
        if spark.conf.isModifiable(name):
            spark.conf.set(name, value)


def _start(master: str, app: str, memory: str | None, given: Mapping[str, str]) -> SparkSession:
    """A session whose driver is this process, on a Java of our choice."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    scratch, java = _scratch(), find_java()
    logging = scratch / "log4j2.properties"
    logging.write_text(LOGGING)
    environment = {"JAVA_HOME": str(java_home(java)), "PYSPARK_DRIVER_PYTHON": sys.executable}
    if is_local(master):
        environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}

    def start(archive: list[str]) -> SparkSession:
        options = java_options(given.get(JAVA_OPTIONS, ""), logging, archive)
        settings: dict[str, Any] = start_settings(master, memory, given, scratch) | {JAVA_OPTIONS: options}
        with _environment(environment):
            return SparkSession.builder.master(master).appName(app).config(map=settings).getOrCreate()

    archive = _archive_options(java, given.get(JAVA_OPTIONS, ""))
    try:
        return start(archive)
    except PySparkRuntimeError as error:
        if not archive or error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
    # A damaged archive is the one thing that we added: go without, and have it made anew.
    _archive(java).forget()
    return start([])


def _join(master: str | None, app: str, settings: Mapping[str, str]) -> SparkSession:
    """The session of a program that spark-submit started: its Java runs already, and says where."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app).config(map={**NEEDED, **settings})
    return (builder.master(master) if master else builder).getOrCreate()


def _connect(remote: str, app: str, settings: Mapping[str, str]) -> SparkSession:
    """A client of the Spark Connect server at `remote`; what may be set on a running session is set."""
    host, port = connect_address(remote)
    if missing := missing_for_connect():
        needs = ", ".join(missing)
        raise ConfigurationError(f"Spark Connect needs {needs}, not installed: pip install 'remuda[connect]'")
    from pyspark.sql import SparkSession

    try:
        # Spark itself would try for ten minutes.
        socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise ConfigurationError(f"no Spark Connect server answers at {host}:{port}: {error}") from error
    spark = SparkSession.builder.remote(remote).appName(app).getOrCreate()
    _apply(spark, {**NEEDED, **settings})
    return spark


@lru_cache(maxsize=1)
def _scratch() -> Path:
    """A folder for what Spark writes beside the tables; gone with this process."""
    folder = Path(tempfile.mkdtemp(prefix="remuda-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """os.environ with these changes; as it was afterwards."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _archive_options(java: Java, given: str) -> list[str]:
    """Options that use the class archive; without one, it is made after this process has ended."""
    switched_off = os.environ.get(ARCHIVE_SWITCH, "").lower() in ("0", "off", "no", "false")
    if switched_off or "Archive" in given or any(name in os.environ for name in CLASS_FOLDERS):
        return []
    archive = _archive(java)
    if archive.usable():
        return archive.options()
    if not archive.failed.exists():
        atexit.register(_record_later)
    return []


def _archive(java: Java) -> ClassArchive:
    import pyspark
    from pyspark.find_spark_home import _find_spark_home

    return class_archive(java, Path(_find_spark_home()), pyspark.__version__)


def _record_later() -> None:
    """Start a process that makes the archive, and leave it to itself."""
    with suppress(OSError):
        subprocess.Popen(
            [sys.executable, "-c", "from remuda.lake.session import record_archive; record_archive()"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def record_archive() -> bool:
    """Make the class archive for this Java and this PySpark; False if another process is at it or it failed.

    It takes half a minute at the lowest priority and 190 MB in the cache folder, once per version of either.
    """
    archive = _archive(find_java())
    with archive.claim(2 * RECORDING_SECONDS) as mine:
        if not mine:
            return False
        if archive.usable():
            return True
        with suppress(OSError):
            os.nice(19)
        archive.drop_drafts()
        archive.make_base()
        draft = archive.file.with_suffix(f".new-{os.getpid()}")
        try:
            if _record(archive, draft) == 0 and draft.is_file():
                archive.accept(draft)
        finally:
            draft.unlink(missing_ok=True)
        made = archive.usable()
        if not made:
            archive.failed.write_text("No class archive could be made; delete this file to try again.\n")
        archive.forget_others(KEPT_ARCHIVES)
        return made


def _record(archive: ClassArchive, draft: Path) -> int:
    """Run what sessions commonly do in a Java that writes `draft` when it ends; how it ended."""
    options = " ".join([*archive.recording_options(draft), "-XX:+UseSerialGC"])
    spark = open_session(master="local[1]", memory="1g", settings={JAVA_OPTIONS: options})
    gateway: Any = spark.sparkContext._gateway
    table = str(_scratch() / "table")
    spark.range(100).selectExpr("id", "id % 7 AS k", "cast(id AS string) AS s").write.parquet(table)
    frame = spark.read.parquet(table).groupBy("k").agg({"id": "sum", "s": "max"})
    frame.join(spark.range(7).withColumnRenamed("id", "k"), "k").orderBy("k").toArrow()
    spark.range(1).mapInArrow(lambda batches: batches, "id long").collect()
    spark.stop()
    process: subprocess.Popen[bytes] = gateway.proc
    gateway.shutdown()
    if process.stdin:
        process.stdin.close()  # how the driver's Java learns that it is to end
    try:
        return process.wait(timeout=RECORDING_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
