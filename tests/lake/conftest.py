"""One Spark session for all tests of a process: starting it costs more than most of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from remuda.lake.session import open_session

# For many small queries: one collector thread, and no compiler that needs minutes to pay off. What the quick
# one makes outgrows its usual room, and all that comes later would be interpreted. Programs that run in
# processes of their own (on a cluster) have Spark's generated code.
JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
FOR_TESTS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": JAVA,
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on two cores, with two shuffle partitions."""
    session = open_session(master="local[2]", app="remuda tests", memory="2g", settings=FOR_TESTS)
    yield session
    session.stop()
