"""The table of dead letters: one row for each death that was ingested, each of them exactly once.

The new deaths are read from the transitions, and their errors from the store while it still has them. One
commit then adds the rows and notes the batch up to which deaths were captured: killed at any moment and
started again, it neither loses nor repeats one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

import msgspec

from remuda.lake.building.news import new_transitions
from remuda.lake.deaths.letters import MAX_MESSAGE, MAX_TRACE, Death, Description, described
from remuda.lake.delta import DataFile, LakeConflictError
from remuda.lake.fingerprint import fault_of, fingerprint
from remuda.lake.place import Lake
from remuda.lifecycle import CommandStatus, State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEAD_STATES = (State.FAILED.value, CommandStatus.DELIVERY_FAILED.value)
_ROWS_AT_ONCE = 20_000  # that the driver holds, traces and all
_ABOUT = ("name", "device", "lane", "gateway")

Known = tuple[Death, Description]


class Captured(msgspec.Struct, frozen=True, kw_only=True):
    """What a capture did: the batch that it came up to, the deaths in it, those with their error."""

    batch: int
    deaths: int
    described: int


def program_of_deaths(source: str) -> str:
    """The name under which `dead_letters` notes the batch up to which a store's deaths were captured."""
    return f"dead_letters:{source}"


def capture_deaths(
    lake: Lake,
    spark: SparkSession,
    url: str | None,
    *,
    source: str,
    on_step: Callable[[str], None] = lambda _: None,
) -> Captured:
    """Add the deaths of a source that were ingested since the last time, with what its store says of them.

    Without a `url` none of them is described. Run again, it adds nothing.
    """
    while True:
        try:
            return _capture(lake, spark, url, source, on_step)
        except LakeConflictError:
            continue  # another program captured the same: what is left is less


def _capture(
    lake: Lake, spark: SparkSession, url: str | None, source: str, on_step: Callable[[str], None]
) -> Captured:
    # Here, for an ingest may capture deaths itself.
    from remuda.lake.ingest import BATCHES

    table = lake.dead_letters
    program = program_of_deaths(source)
    looked_at = table.version()
    captured, target = table.progress(program), lake.transitions.progress(BATCHES)
    if captured >= target:
        return Captured(batch=target, deaths=0, described=0)
    on_step("deaths: reading")
    news = new_transitions(lake, spark, above=captured, up_to=target).where(_is(source))
    deaths = _deaths_in(news)
    on_step("deaths: describing")
    known = _known(lake, spark, news, url, source, deaths)
    files: list[DataFile] = []
    with_error = 0
    for some in _pieces(known):
        with_error += sum(about.described for _, about in some)
        on_step("deaths: writing")
        files += table.write(_frame(spark, lake, [_row(source, *each) for each in some]))
    on_step("deaths: committing")
    table.commit(
        files,
        progress={program: target},
        since=looked_at,
        what=f"{len(deaths)} deaths of {source}, batches {captured + 1} to {target}",
    )
    on_step("deaths: committed")
    return Captured(batch=target, deaths=len(deaths), described=with_error)


def _is(source: str) -> Any:
    from pyspark.sql import functions as F

    return F.col("source") == source


def _deaths_in(news: DataFrame) -> list[Death]:
    """The deaths among new transitions, queue by queue."""
    from pyspark.sql import functions as F

    rows = news.where(F.col("entered").isin(*DEAD_STATES)).select(*Death._fields).toArrow().to_pylist()
    return sorted(Death(**row) for row in rows)


def _known(
    lake: Lake, spark: SparkSession, news: DataFrame, url: str | None, source: str, deaths: Sequence[Death]
) -> Iterator[Known]:
    """Every death with what the store says of it, or with the name that the lake knows."""
    rest: list[Death] = []
    for queue, each in groupby(deaths, key=lambda death: death.queue):
        of_queue = list(each)
        seen: set[int] = set()
        for death, about in described(url, queue, of_queue) if url is not None else ():
            seen.add(death.seq)
            yield death, about
        rest += (death for death in of_queue if death.seq not in seen)
    yield from _named(lake, spark, news, source, rest)


def _named(
    lake: Lake, spark: SparkSession, news: DataFrame, source: str, deaths: Sequence[Death]
) -> Iterator[Known]:
    """Deaths of which only the lake can say what they were: from their adding, or from their history."""
    from pyspark.sql import functions as F

    if not deaths:
        return
    names: dict[tuple[str, int], Description] = {}
    missing = list(deaths)
    births = news.where(F.col("left").isNull())
    histories = lake.histories.read(spark).where(_is(source)).withColumn("seq", F.col("first_seq"))
    for rows in (births, histories):
        if missing:
            names |= _names_in(spark, rows, missing)
            missing = [each for each in missing if (each.queue, each.seq) not in names]
    for death in deaths:
        yield death, names.get((death.queue, death.seq), Description())


def _names_in(
    spark: SparkSession, known: DataFrame, deaths: Sequence[Death]
) -> dict[tuple[str, int], Description]:
    """For each death what the last row of its message before it says (an id may live more than once)."""
    from pyspark.sql import functions as F

    wanted = spark.createDataFrame(
        [(each.queue, each.message, each.seq) for each in deaths],
        "queue string, message string, death bigint",
    )
    rows = (
        known.select("queue", "message", "seq", F.struct(*_ABOUT).alias("about"))
        .join(F.broadcast(wanted), ["queue", "message"])
        .where("seq <= death")
        .groupBy("queue", "death")
        .agg(F.max_by("about", "seq").alias("about"))
        .collect()
    )
    return {(row["queue"], row["death"]): Description(**row["about"].asDict()) for row in rows}


def _pieces(known: Iterable[Known]) -> Iterator[list[Known]]:
    rest = iter(known)
    while some := list(islice(rest, _ROWS_AT_ONCE)):
        yield some


def _row(source: str, death: Death, about: Description) -> dict[str, Any]:
    fault = fault_of(death.reason, about.error_type, about.error_message)
    return {
        "source": source,
        "queue": death.queue,
        "message": death.message,
        "seq": death.seq,
        "died_at": death.at,
        "name": about.name,
        "reason": death.reason,
        "attempts": death.attempt,
        "error_type": about.error_type,
        "error_message": (about.error_message or "")[:MAX_MESSAGE] or None,
        "error_trace": (about.error_trace or "")[-MAX_TRACE:] or None,
        "worker": about.worker or death.who,
        "payload_bytes": about.payload_bytes,
        "fingerprint": fingerprint(death.queue, about.name, death.reason, fault, about.error_trace),
        "fault": fault,
        "device": about.device,
        "lane": about.lane,
        "gateway": about.gateway,
        "described": about.described,
        "batch": death.batch,
    }


def _frame(spark: SparkSession, lake: Lake, rows: Sequence[dict[str, Any]]) -> DataFrame:
    import pyarrow as pa

    spec = lake.dead_letters.spec
    return spark.createDataFrame(
        pa.Table.from_pylist(rows, schema=spec.arrow_schema()), schema=spec.spark_schema()
    ).coalesce(1)
