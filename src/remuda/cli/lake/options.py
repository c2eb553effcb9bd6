"""What the commands under `remuda lake` have in common: where the lake is, and where Spark runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from remuda.cli import output

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from remuda.lake.place import Lake

LakePath = Annotated[
    str,
    typer.Option(
        "--lake",
        "-l",
        envvar="REMUDA_LAKE",
        metavar="PLACE",
        help="Where the tables are: a folder, or s3://bucket/lake and the like.",
    ),
]
Source = Annotated[
    str,
    typer.Option(
        "--source",
        metavar="NAME",
        help="What the lake calls this store; give each store of a lake a name of its own.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        envvar="REMUDA_SPARK_MASTER",
        metavar="MASTER",
        help="Spark's master, such as spark://host:7077; without it this machine, all cores.",
        show_default=False,
    ),
]
Remote = Annotated[
    str | None,
    typer.Option(
        "--remote",
        envvar="REMUDA_SPARK_REMOTE",
        metavar="ADDRESS",
        help="A Spark Connect server instead, such as sc://host:15002.",
        show_default=False,
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory", metavar="SIZE", help="Memory for Spark's driver, such as 4g.", show_default=False
    ),
]


class SparkWhere(NamedTuple):
    """Where Spark runs."""

    master: str | None = None
    remote: str | None = None
    memory: str | None = None


DEFAULT_LAKE = "lake"
DEFAULT_SOURCE = "main"


def made_lake(place: str) -> Lake:
    """A lake that may not be there yet."""
    _require()
    from remuda.lake.place import Lake

    return Lake(place)


def existing_lake(place: str) -> Lake:
    """A lake that is there; an error otherwise."""
    lake = made_lake(place)
    lake.check_there()
    return lake


def _require() -> None:
    """An error that says what to install, where the extra is missing."""
    from remuda.errors import ConfigurationError

    try:
        import deltalake  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(f"the lake needs {error.name}: pip install 'remuda[lake]'") from error


@contextlib.contextmanager
def opened_spark(where: SparkWhere) -> Iterator[SparkSession]:
    """A session for one command, stopped at its end."""
    from remuda.lake.session import open_session
    from remuda.lake.shipping import check_executors, ship

    with output.waiting("starting Spark …"):
        spark = open_session(master=where.master, remote=where.remote, memory=where.memory)
    try:
        if ship(spark) is not None:
            check_executors(spark)  # says what they lack, instead of a trace from far away
        yield spark
    finally:
        spark.stop()
