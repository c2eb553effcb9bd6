"""Tables of the lake: what counts, what a commit does, and that other engines read the same."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import duckdb
import polars
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from remuda.errors import ConfigurationError
from remuda.lake.delta import LakeConflictError, LakeTable
from remuda.lake.paths import Root
from remuda.lake.place import Lake
from remuda.lake.schemas import HISTORIES, MEASURES, Column, TableSpec

NUMBERS = TableSpec(
    name="numbers",
    meaning="for tests",
    columns=(
        Column("number", "bigint", "a number"),
        Column("at", "timestamp", "a moment"),
        Column("parts", "array<struct<bucket:int,count:bigint>>", "a histogram"),
    ),
    partition=Column("day", "date", "the day of `at`"),
    partition_of="to_date(`at`)",
    stats=("number",),
)
MONDAY = datetime(2026, 11, 16, 8, 30, 0, 123_456, tzinfo=UTC)


def _rows(spark: SparkSession, *numbers: int, at: datetime | None = MONDAY) -> object:
    return spark.createDataFrame([(each, at, [(each, 2)]) for each in numbers], NUMBERS.spark_schema())


def _read(table: LakeTable, spark: SparkSession) -> list[int]:
    return sorted(row["number"] for row in table.read(spark).collect())


def test_files_count_from_their_commit_on_and_other_engines_read_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = LakeTable(Root(str(tmp_path / "t")), NUMBERS)
    first = table.write(_rows(spark, 1, 2))
    assert _read(table, spark) == []
    table.commit(first, progress={"me": 4}, since=table.version(), what="test")
    table.commit(
        table.write(_rows(spark, 3, at=None)),
        progress={"me": 5, "you": 1},
        since=table.version(),
        what="test",
    )
    assert _read(table, spark) == [1, 2, 3]
    assert table.all_progress(["me", "you", "nobody"]) == {"me": 5, "you": 1, "nobody": 0}
    assert {each.partition for each in table.files()} == {"2026-11-16", None}
    assert [each.records for each in table.files(partitions={None})] == [1]
    assert sum(each.records for each in table.files(above=("number", 2))) == 1

    place = str(tmp_path / "t")
    expected = [(1, MONDAY, 1, date(2026, 11, 16)), (2, MONDAY, 2, date(2026, 11, 16)), (3, None, 3, None)]
    rows = polars.read_delta(place).sort("number").to_dicts()
    assert [(row["number"], row["at"], row["parts"][0]["bucket"], row["day"]) for row in rows] == expected
    pandas = DeltaTable(place).to_pandas().sort_values("number")
    assert list(pandas["number"]) == [1, 2, 3]
    arrow = DeltaTable(place).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("numbers", arrow)
        found = connection.execute(
            "SELECT number, parts[1].bucket, day FROM numbers ORDER BY number"
        ).fetchall()
    assert found == [(number, bucket, day) for number, _, bucket, day in expected]


def test_a_commit_replaces_files_and_notes_progress_in_one_step(spark: SparkSession, tmp_path: Path) -> None:
    table = LakeTable(Root(str(tmp_path / "t")), NUMBERS)
    table.commit(table.write(_rows(spark, 1, 2)), since=table.version(), what="test")
    table.commit(
        table.write(_rows(spark, 9)),
        removed=table.files(),
        progress={"me": 1},
        since=table.version(),
        what="test",
    )
    assert _read(table, spark) == [9]
    # A second program that had looked at the table before, and takes away the same files, is refused.
    looked_at, gone = table.version(), table.files()
    late = table.write(_rows(spark, 10))
    table.commit([], removed=gone, progress={"me": 2}, since=looked_at, what="test")
    with pytest.raises(LakeConflictError, match="numbers was changed by another program"):
        table.commit(late, removed=gone, since=looked_at, what="test")
    assert _read(table, spark) == []
    assert table.progress("me") == 2


def test_two_programs_that_note_progress_of_the_same_name_cannot_both_commit(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = LakeTable(Root(str(tmp_path / "t")), NUMBERS)
    table.commit(table.write(_rows(spark, 1)), progress={"ingest": 1}, since=table.version(), what="test")
    looked_at = table.version()
    slow, quick, other = (table.write(_rows(spark, each)) for each in (2, 2, 3))
    table.commit(quick, progress={"ingest": 2}, since=looked_at, what="the quicker one")
    with pytest.raises(LakeConflictError):
        table.commit(slow, progress={"ingest": 2}, since=looked_at, what="the slower one")
    table.commit(other, progress={"another": 1}, since=looked_at, what="nothing to do with them")
    assert _read(table, spark) == [1, 2, 3]


def test_a_table_of_an_older_version_is_given_the_columns_that_are_new(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = Root(str(tmp_path / "t"))
    old = LakeTable(root, NUMBERS)
    old.commit(old.write(_rows(spark, 1)), since=old.version(), what="test")
    grown = NUMBERS._replace(columns=(*NUMBERS.columns, Column("word", "string", "came later")))
    new = LakeTable(root, grown)
    assert [row["word"] for row in new.read(spark).collect()] == [None]
    rows = spark.createDataFrame([(2, MONDAY, [], "two")], grown.spark_schema())
    new.commit(new.write(rows), since=new.version(), what="test")
    read = new.read(spark).orderBy("number").select("number", "word", "day").collect()
    assert [tuple(row) for row in read] == [(1, None, MONDAY.date()), (2, "two", MONDAY.date())]
    assert polars.read_delta(root.uri).sort("number")["word"].to_list() == [None, "two"]


@pytest.mark.parametrize("spec", [HISTORIES, MEASURES], ids=lambda spec: spec.name)
def test_an_empty_table_has_its_columns(spec: TableSpec, spark: SparkSession, tmp_path: Path) -> None:
    frame = Lake(str(tmp_path)).tables[spec.name].read(spark)
    assert frame.columns == [*spec.names, spec.partition.name]
    assert frame.count() == 0


def test_places_are_named_as_each_library_wants_them(tmp_path: Path) -> None:
    assert Root("s3a://bucket/lake/").uri == "s3://bucket/lake"
    assert Root("s3://bucket/lake").for_spark("x/y") == "s3a://bucket/lake/x/y"
    assert Root(f"file://{tmp_path}/lake").uri == f"{tmp_path}/lake"
    for bad in ("", "ftp://host/lake"):
        with pytest.raises(ConfigurationError):
            Root(bad)
    with pytest.raises(ConfigurationError, match="there is no lake at"):
        Lake(str(tmp_path)).check_there()
