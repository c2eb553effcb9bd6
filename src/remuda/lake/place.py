"""Lake: a place with its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remuda.errors import ConfigurationError
from remuda.lake.delta import LakeTable
from remuda.lake.paths import Root
from remuda.lake.schemas import ANOMALIES, DEAD_LETTERS, HISTORIES, MEASURES, TABLES, TRANSITIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Lake:
    """The tables at a place: a folder, or an object store's URL. Nothing is made before it is needed.

    >>> lake = Lake("lake")
    >>> lake.histories.read(spark).groupBy("queue", "outcome").count()
    """

    def __init__(self, place: str) -> None:
        self.root = Root(place)
        self.transitions = LakeTable(self.root.below(TRANSITIONS.name), TRANSITIONS)
        self.histories = LakeTable(self.root.below(HISTORIES.name), HISTORIES)
        self.measures = LakeTable(self.root.below(MEASURES.name), MEASURES)
        self.dead_letters = LakeTable(self.root.below(DEAD_LETTERS.name), DEAD_LETTERS)
        self.anomalies = LakeTable(self.root.below(ANOMALIES.name), ANOMALIES)

    @property
    def tables(self) -> dict[str, LakeTable]:
        return {name: getattr(self, name) for name in TABLES}

    def check_there(self) -> None:
        """An error unless something was ingested here: what only looks must not make an empty lake."""
        if not self.transitions.exists():
            raise ConfigurationError(
                f"there is no lake at {self.root.uri}: `remuda lake ingest` makes one, or give --lake"
            )

    def frames(self, spark: SparkSession) -> dict[str, DataFrame]:
        """Every table as a DataFrame."""
        return {name: table.read(spark) for name, table in self.tables.items()}

    def register(self, spark: SparkSession) -> None:
        """Every table as a view of its name, for SQL."""
        for name, frame in self.frames(spark).items():
            frame.createOrReplaceTempView(name)
