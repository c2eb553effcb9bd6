"""How Remuda reaches the executors of a cluster, and whether they have what it needs there.

The package is pure Python and goes along as a zip. What it builds on is compiled, so it must be installed
in the executors' own Python: `check_executors` asks them.
"""

from __future__ import annotations

import atexit
import hashlib
import platform
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import remuda
from remuda.errors import ConfigurationError
from remuda.lake.session import address_of, is_local

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

REQUIRED = ("msgspec", "pyarrow", "sqlalchemy")
DRIVERS = {
    "sqlite": (),
    "postgresql": ("asyncpg", "greenlet"),
    "postgres": ("asyncpg", "greenlet"),
    "mysql": ("asyncmy", "greenlet"),
    "mariadb": ("asyncmy", "greenlet"),
    "redis": ("hiredis",),
    "rediss": ("hiredis",),
    "valkey": ("hiredis",),
    "valkeys": ("hiredis",),
}
# A date that zip files can hold: the same files always give the same bytes, hence the same name.
EPOCH = (1980, 1, 1, 0, 0, 0)


class ExecutorsUnfitError(ConfigurationError):
    """The executors' Python cannot run Remuda; the message says what it lacks."""


@dataclass(frozen=True)
class Executor:
    """What a task saw of the Python that it ran in."""

    host: str
    process: int
    python: str
    remuda: str
    missing: tuple[str, ...]


def pack(folder: Path) -> Path:
    """Write the package as a zip into `folder`; its name holds the version and a digest of the content."""
    source = Path(remuda.__file__).parent
    files = sorted(file for file in source.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    digest = hashlib.sha256()
    draft = folder / "remuda.zip"
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            name, content = file.relative_to(source.parent).as_posix(), file.read_bytes()
            digest.update(f"{name}\n{len(content)}\n".encode() + content)
            archive.writestr(zipfile.ZipInfo(name, EPOCH), content, zipfile.ZIP_DEFLATED)
    return draft.rename(folder / f"remuda-{digest.hexdigest()[:12]}.zip")


@lru_cache(maxsize=1)
def _packed() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="remuda-ship-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return pack(folder)


def ship(spark: SparkSession) -> Path | None:
    """Give the package to the executors of this session; None where they run in this process anyway.

    May be called again: what is there already is not sent twice.
    """
    if is_local(address_of(spark)):
        return None
    package = _packed()
    spark.addArtifacts(str(package), pyfile=True)
    return package


def modules_for(store: str | None = None) -> tuple[str, ...]:
    """The compiled modules that executors need, to read from or write to the store at this URL."""
    scheme = (store or "sqlite").partition(":")[0].partition("+")[0]
    return (*REQUIRED, *DRIVERS.get(scheme, ()))


def check_executors(spark: SparkSession, store: str | None = None, tasks: int = 1) -> list[Executor]:
    """Run a small task or more on the executors and say what they are; ExecutorsUnfitError if they won't do.

    Ship the package first. With a `store` URL, its driver is asked for too.
    """
    from pyspark.errors import PySparkException

    try:
        seen = _ask(spark, modules_for(store), tasks)
    except PySparkException as error:
        raise ExecutorsUnfitError(explain_failure(str(error))) from error
    if problems := find_problems(seen, platform.python_version()):
        raise ExecutorsUnfitError(_advise(problems))
    return seen


def find_problems(executors: Iterable[Executor], driver_python: str) -> list[str]:
    """What keeps Remuda from running there: modules that are missing, another Python than the driver's."""
    problems: list[str] = []
    for executor in executors:
        where = f"{executor.host} (Python {executor.python})"
        if executor.missing:
            problems.append(f"{where} lacks {', '.join(executor.missing)}")
        if executor.python.split(".")[:2] != driver_python.split(".")[:2]:
            problems.append(f"{where} is not the driver's Python {driver_python}")
    return list(dict.fromkeys(problems))


def explain_failure(message: str) -> str:
    """A failure of the task itself, in a line: Spark stops at once without pyarrow or with another Python."""
    lines = [line.strip() for line in message.splitlines()]
    telling = ("ModuleNotFoundError", "ImportError", "PACKAGE_NOT_INSTALLED", "PYTHON_VERSION_MISMATCH")
    causes = [line for line in lines if any(word in line for word in (*telling, "Cannot run program"))]
    return _advise(causes[-1:] or lines[:1])


def _advise(problems: Sequence[str]) -> str:
    return (
        f"the executors cannot run Remuda: {'; '.join(problems)}. Install 'remuda[lake]' and the store's "
        "extra in their Python, or send an environment with spark.archives, and name that Python in "
        "PYSPARK_PYTHON (docs/lake-cluster.md)"
    )


def _ask(spark: SparkSession, modules: tuple[str, ...], tasks: int) -> list[Executor]:
    # Defined here so that it travels by value: an executor without the package can still run it.
    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import importlib
        import os
        import platform
        import socket

        import pyarrow as pa

        def attempt(module: str) -> str | None:
            try:
                return getattr(importlib.import_module(module), "__file__", None) or module
            except ImportError:
                return None

        for _ in batches:
            place = attempt("remuda")
            row = {
                "host": socket.gethostname(),
                "process": os.getpid(),
                "python": platform.python_version(),
                "remuda": place or "",
                "missing": [name for name in ("remuda", *modules) if attempt(name) is None],
            }
            yield pa.RecordBatch.from_pylist([row])

    schema = "host string, process long, python string, remuda string, missing array<string>"
    frame = spark.range(0, tasks, 1, tasks).mapInArrow(look, schema)
    return [
        Executor(row.host, row.process, row.python, row.remuda, tuple(row.missing)) for row in frame.collect()
    ]
