"""A table of the lake: Parquet files that Spark or a task wrote, and the log that says which of them count.

The log is Delta's, kept by `deltalake`, so that other engines read the same rows. Files are written
first, into a folder of their own; one commit then makes them count, takes others away and notes how far a
program has come (`progress`), all or nothing. What a program that died had written counts for nothing.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from remuda.errors import RemudaError
from remuda.lake.paths import Root
from remuda.lake.schemas import TableSpec

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

_ENCODED_AS_NULL = "__HIVE_DEFAULT_PARTITION__"
_STATS = "delta.dataSkippingStatsColumns"  # what a compaction has to keep the bounds of


class LakeConflictError(RemudaError):
    """Another program changed the table at the same time; nothing was written. The same call may succeed."""


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a table. `low` and `high` bound the columns of `TableSpec.stats`, as far as is known."""

    path: str
    size: int
    records: int
    partition: str | None
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}


class LakeTable:
    """One table at a place. Nothing is kept open: each call sees the table as it is then."""

    def __init__(self, root: Root, spec: TableSpec) -> None:
        self.root = root
        self.spec = spec

    # -- the log

    def open(self) -> DeltaTable:
        """The log as it is now; the table is made if it is missing, and given columns that are new."""
        from deltalake import DeltaTable

        schema = self.spec.arrow_schema(partition=True)
        table = DeltaTable.create(
            self.root.uri,
            schema=schema,
            mode="ignore",
            partition_by=[self.spec.partition.name],
            name=self.spec.name,
            description=self.spec.meaning,
            configuration={_STATS: ",".join(self.spec.stats)} if self.spec.stats else None,
        )
        return self._grown(table)

    def exists(self) -> bool:
        from deltalake import DeltaTable

        return bool(DeltaTable.is_deltatable(self.root.uri))

    def _grown(self, table: DeltaTable) -> DeltaTable:
        from deltalake import DeltaTable, Schema

        known = {field.name for field in table.schema().fields}
        wanted = Schema.from_arrow(self.spec.arrow_schema(partition=True)).fields
        missing = [field for field in wanted if field.name not in known]
        if not missing:
            return table
        table.alter.add_columns(missing)
        return DeltaTable(self.root.uri)

    def progress(self, program: str) -> int:
        """How far a program has come, as its last commit noted; 0 when it never committed."""
        return self.open().transaction_version(program) or 0

    def all_progress(self, programs: Iterable[str]) -> dict[str, int]:
        """The same for several."""
        table = self.open()
        return {program: table.transaction_version(program) or 0 for program in programs}

    def files(
        self,
        *,
        partitions: Collection[str | None] | None = None,
        above: tuple[str, int] | None = None,
    ) -> list[DataFile]:
        """The files that count; only those of `partitions`, or that may hold a value of a column `above`."""
        import pyarrow as pa

        actions = pa.table(self.open().get_add_actions(flatten=True)).to_pylist()
        found = (_data_file(each, self.spec) for each in actions)
        return [
            each
            for each in found
            if (partitions is None or each.partition in partitions)
            and (above is None or each.high.get(above[0]) is None or each.high[above[0]] > above[1])
        ]

    def version(self) -> int:
        return int(self.open().version())

    # -- rows

    def read(self, spark: SparkSession, files: Sequence[DataFile] | None = None) -> DataFrame:
        """The rows of the files (all that count, unless some are named), with the partition's column."""
        from pyspark.sql import functions as F

        chosen = self.files() if files is None else files
        schema = self.spec.spark_schema()
        if chosen:
            # No discovery of partitions: where a file lies says nothing, the log does.
            paths = [self.root.for_spark(each.path) for each in chosen]
            rows = spark.read.schema(schema).option("recursiveFileLookup", "true").parquet(*paths)
        else:
            rows = spark.createDataFrame([], schema)
        return rows.withColumn(self.spec.partition.name, F.expr(self.spec.partition_of))

    def write(self, rows: DataFrame) -> list[DataFile]:
        """Write rows to files that do not count yet."""
        from pyspark.sql import functions as F

        folder = f"{uuid.uuid4().hex}"
        partition = self.spec.partition.name
        (
            rows.select(*self.spec.names)
            .withColumn(partition, F.expr(self.spec.partition_of))
            .write.partitionBy(partition)
            .option("compression", "zstd")
            .mode("error")
            .parquet(self.root.for_spark(folder))
        )
        return [self._described(path, size) for path, size in self.root.parquet_files(folder)]

    def _described(self, path: str, size: int) -> DataFile:
        import pyarrow.parquet as pq

        with self.root.filesystem.open_input_file(self.root.inside(path)) as file:
            metadata = pq.read_metadata(file)
        label = path.split("/")[-2].partition("=")[2]
        low, high = _bounds(metadata, self.spec.stats)
        return DataFile(
            path=path,
            size=size,
            records=metadata.num_rows,
            partition=None if label == _ENCODED_AS_NULL else label,
            low=low,
            high=high,
        )

    # -- changing

    def commit(
        self,
        added: Sequence[DataFile],
        *,
        removed: Sequence[DataFile] = (),
        progress: Mapping[str, int] | None = None,
        since: int,
        what: str,
    ) -> None:
        """Make files count, take others away, note progress: all in one step, or none of it.

        `since` is the version of the table that was looked at to decide this. `LakeConflictError` when
        somebody has since noted progress of the same programs, or taken away the same files.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import CommitProperties, Transaction

        now_ms = int(time.time() * 1000)
        partition = self.spec.partition.name
        noted = [Transaction(program, version) for program, version in (progress or {}).items()]
        try:
            DeltaTable(self.root.uri, version=since).create_write_transaction(
                [
                    *(_remove_action(each, partition, now_ms) for each in removed),
                    *(_add_action(each, partition, now_ms) for each in added),
                ],
                "append",
                self.spec.arrow_schema(partition=True),
                [partition],
                commit_properties=CommitProperties(
                    app_transactions=noted, custom_metadata={"userMetadata": what}
                ),
            )
        except CommitFailedError as error:
            raise LakeConflictError(
                f"the table {self.spec.name} was changed by another program meanwhile ({error}); "
                "nothing was written: run it again"
            ) from error


def _data_file(action: Mapping[str, Any], spec: TableSpec) -> DataFile:
    value = action.get(f"partition.{spec.partition.name}")
    return DataFile(
        path=action["path"],
        size=action["size_bytes"],
        records=action["num_records"] or 0,
        partition=None if value is None else str(value),
        low={name: action.get(f"min.{name}") for name in spec.stats},
        high={name: action.get(f"max.{name}") for name in spec.stats},
    )


def _bounds(metadata: Any, names: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The least and greatest value of whole-number columns, over all row groups."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for place in range(row_group.num_columns):
            column = row_group.column(place)
            name, statistics = column.path_in_schema, column.statistics
            if name not in names or statistics is None or not statistics.has_min_max:
                continue
            if isinstance(statistics.min, int):
                low[name] = min(low.get(name, statistics.min), statistics.min)
                high[name] = max(high.get(name, statistics.max), statistics.max)
    return low, high


def _add_action(file: DataFile, partition: str, now_ms: int) -> Any:
    from deltalake.transaction import AddAction

    whole = {name: value for name, value in file.low.items() if isinstance(value, int)}
    stats = {
        "numRecords": file.records,
        "minValues": whole,
        "maxValues": {name: file.high[name] for name in whole},
        "nullCount": {},
    }
    return AddAction(file.path, file.size, {partition: file.partition}, now_ms, True, json.dumps(stats))


def _remove_action(file: DataFile, partition: str, now_ms: int) -> Any:
    from deltalake.transaction import RemoveAction

    return RemoveAction(file.path, True, now_ms, file.size, {partition: file.partition})
