"""`sql` and `export`: the tables, asked by hand or taken elsewhere."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remuda.cli import output
from remuda.cli.exits import ExitCode, fail, told_in_one_line
from remuda.cli.lake.options import (
    DEFAULT_LAKE,
    LakePath,
    Master,
    Memory,
    Remote,
    SparkWhere,
    existing_lake,
    opened_spark,
)
from remuda.cli.options import AsJson
from remuda.cli.output import Column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Format(StrEnum):
    """What a table or an answer is written as."""

    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"


def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Spark SQL; - reads it from standard input.")],
    lake: LakePath = DEFAULT_LAKE,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, metavar="N", help="At most so many rows.")
    ] = 100,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    master: Master = None,
    remote: Remote = None,
    memory: Memory = None,
    as_json: AsJson = False,
) -> None:
    """Ask the tables in SQL.

    They are transitions, histories, measures, dead_letters and anomalies; `DESCRIBE histories` shows columns.

    \b
    remuda lake sql "SELECT queue, outcome, count(*) FROM histories GROUP BY ALL"
    """
    with told_in_one_line():
        text = sys.stdin.read() if query == "-" else query
        place = existing_lake(lake)
        with opened_spark(SparkWhere(master, remote, memory)) as spark, output.waiting("asking …"):
            place.register(spark)
            answer = asked(spark.sql, text)
            rows = answer.limit(limit + 1).collect()
            names = answer.columns
    shown = [tuple(row) for row in rows[:limit]]
    if as_json:
        output.emit([dict(zip(names, map(_plain, row), strict=True)) for row in shown])
    elif as_csv:
        _print_csv(names, shown)
    else:
        columns = [Column(name, right=_is_number(shown, place)) for place, name in enumerate(names)]
        output.table(columns, [[_text(value) for value in row] for row in shown])
    if len(rows) > limit:
        output.note(f"the first {limit:,} rows; --limit shows more, `remuda lake export` takes all")


def asked(run: Any, text: str) -> DataFrame:
    """What Spark makes of a query; what is wrong with it in one line."""
    from pyspark.errors import AnalysisException, ParseException

    try:
        frame: DataFrame = run(text)
    except (ParseException, AnalysisException) as error:
        fail(f"the query does not make sense: {str(error).splitlines()[0]}", ExitCode.USAGE)
    return frame


def _print_csv(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    writer = csv.writer(sys.stdout)
    writer.writerow(names)
    writer.writerows([_text(value) for value in row] for row in rows)


def _is_number(rows: Sequence[Sequence[Any]], place: int) -> bool:
    values = [row[place] for row in rows if row[place] is not None]
    return bool(values) and all(isinstance(value, int | float) for value in values)


def _plain(value: Any) -> Any:
    """A value as JSON has it: rows are objects."""
    if hasattr(value, "asDict"):
        return {name: _plain(each) for name, each in value.asDict().items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list) or hasattr(value, "asDict"):
        return json.dumps(_plain(value), default=str)
    return output.printable(str(value))


def export(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="One of the tables, or a query in Spark SQL.")
    ],
    to: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the files go; must not be there yet.")],
    lake: LakePath = DEFAULT_LAKE,
    written_as: Annotated[
        Format, typer.Option("--format", "-f", metavar="FORMAT", help="parquet, csv or json.")
    ] = Format.PARQUET,
    files: Annotated[
        int | None,
        typer.Option("--files", min=1, metavar="N", help="Into so many files.", show_default=False),
    ] = None,
    master: Master = None,
    remote: Remote = None,
    memory: Memory = None,
    as_json: AsJson = False,
) -> None:
    """Write a table, or the answer to a query, to files.

    \b
    remuda lake export histories out
    remuda lake export "SELECT * FROM dead_letters WHERE queue = 'emails'" out --format csv
    """
    with told_in_one_line():
        if to.exists():
            fail(f"{to} is there already: nothing was written", ExitCode.USAGE)
        place = existing_lake(lake)
        with opened_spark(SparkWhere(master, remote, memory)) as spark, output.waiting("writing …"):
            place.register(spark)
            frame = spark.table(table) if table in place.tables else asked(spark.sql, table)
            _write(frame if files is None else frame.coalesce(files), to, written_as)
    if as_json:
        output.emit({"folder": str(to), "format": written_as})
    else:
        output.say(f"written to {to}")


def _write(frame: DataFrame, to: Path, written_as: Format) -> None:
    from pyspark.sql import functions as F

    target = to.absolute().as_uri()
    if written_as is Format.CSV:
        nested = [name for name, kind in frame.dtypes if kind.startswith(("array", "struct", "map"))]
        flat = frame.withColumns({name: F.to_json(name) for name in nested}) if nested else frame
        flat.write.option("header", "true").csv(target)
    elif written_as is Format.JSON:
        frame.write.json(target)
    else:
        frame.write.parquet(target)
