"""Plans: which dead letters are to be replayed, chosen from the lake and kept beside its tables.

A plan names each letter by its message and the moment of its death, so that whoever carries it out can tell
a letter that was planned from one that has died again since.
"""

from __future__ import annotations

import io
import secrets
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from remuda.errors import ConfigurationError
from remuda.lake.folder import Folder
from remuda.lake.place import Lake
from remuda.lake.triage.fates import dead_now
from remuda.lifecycle import PRODUCER_REASONS, EndReason

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

PLAN = "plan.json"
LETTERS = "letters.parquet"
PROGRESS = "progress.json"
_KEY = ("source", "queue", "message")
_KEPT = ("queue", "message", "died_at", "name", "reason")
_SHOWN = 5


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters: every condition that is given must hold. `limit`: so many of the oldest.

    `sql` is a query over the lake's tables that gives the columns `queue` and `message` (and `source`).
    """

    source: str | None = None
    queue: str | None = None
    name: str | None = None
    reason: str | None = None
    fingerprint: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    sql: str | None = None
    limit: int | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A replay before it is carried out: how many letters, of which kinds, and what to mind.

    `letters` of nought means that nothing that was asked for is dead now; such a plan is not kept.
    """

    id: str
    made_at: datetime
    selection: Selection
    source: str
    letters: int
    by_queue: dict[str, int]
    by_reason: dict[str, int]
    by_name: dict[str, int]
    oldest: datetime | None = None
    newest: datetime | None = None
    examples: list[str] = []
    cautions: list[str] = []

    @property
    def who(self) -> str:
        """The name under which its replays stand in the trail."""
        return f"replay-plan-{self.id}"


def make_plan(lake: Lake, spark: SparkSession, selection: Selection, *, now: datetime) -> Plan:
    """A plan of what is dead now according to the lake, kept in the lake's folder `plans`."""
    _check(selection)
    chosen = _chosen(lake, spark, selection)
    return keep_plan(lake, chosen.orderBy("queue", "died_at", "seq").toArrow(), selection, now=now)


def keep_plan(lake: Lake, letters: pa.Table, selection: Selection, *, now: datetime) -> Plan:
    """A plan of these letters (rows of `dead_letters`), which are in the order in which they are replayed."""
    sources = sorted(set(letters.column("source").to_pylist()))
    if len(sources) > 1:
        raise ConfigurationError(
            f"these dead letters are of several stores ({', '.join(sources)}): choose one with --source"
        )
    plan = _described(letters, selection, sources, now)
    if plan.letters:
        folder = folder_of(lake, plan.id)
        folder.write(LETTERS, _as_parquet(letters.select(list(_KEPT))))
        folder.save(PLAN, plan)  # last: a plan without it was never made
    return plan


def load_plan(lake: Lake, plan_id: str) -> Plan:
    """A plan that was made before."""
    try:
        return folder_of(lake, plan_id).load(PLAN, Plan)
    except FileNotFoundError:
        known = ", ".join(each.id for each in list_plans(lake)[:_SHOWN]) or "none"
        raise ConfigurationError(
            f"there is no plan {plan_id!r} in {lake.root.uri}; there are: {known}"
        ) from None


def list_plans(lake: Lake) -> list[Plan]:
    """All plans, newest first."""
    names = Folder(lake.root.below("plans")).names()
    kept = (name for name in names if folder_of(lake, name).has(PLAN))
    return sorted((load_plan(lake, name) for name in kept), key=lambda plan: plan.made_at, reverse=True)


def folder_of(lake: Lake, plan_id: str) -> Folder:
    if not plan_id or not all(each.isalnum() or each == "-" for each in plan_id):
        raise ConfigurationError(f"not the id of a plan: {plan_id!r}")
    return Folder(lake.root.below("plans").below(plan_id))


def letters_of(folder: Folder) -> pa.Table:
    """The letters of a plan, by queue, oldest first."""
    import pyarrow.parquet as pq

    return pq.read_table(io.BytesIO(folder.read(LETTERS)))


# -- choosing


def _check(selection: Selection) -> None:
    if selection == Selection(source=selection.source, limit=selection.limit):
        raise ConfigurationError("a plan of everything is none: say which, by fingerprint, queue or SQL")
    for what in ("since", "until"):
        moment = getattr(selection, what)
        if moment is not None and moment.utcoffset() is None:
            raise ConfigurationError(f"{what} has no time zone: {moment!r}")
    if selection.limit is not None and selection.limit < 1:
        raise ConfigurationError(f"the limit of a plan is 1 or more, not {selection.limit}")


def _chosen(lake: Lake, spark: SparkSession, selection: Selection) -> DataFrame:
    from pyspark.sql import functions as F

    # All deaths of a message tell whether it is dead now, so the filter comes after.
    letters = dead_now(lake.dead_letters.read(spark), lake.histories.read(spark))
    for name in ("source", "queue", "name", "reason", "fingerprint"):
        wanted = getattr(selection, name)
        if wanted is not None:
            letters = letters.where(F.col(name) == wanted)
    if selection.since is not None:
        letters = letters.where(F.col("died_at") >= F.lit(selection.since))
    if selection.until is not None:
        letters = letters.where(F.col("died_at") <= F.lit(selection.until))
    if selection.sql is not None:
        letters = letters.join(*_named_by(lake, spark, selection.sql), "left_semi")
    return letters if selection.limit is None else letters.orderBy("died_at", "seq").limit(selection.limit)


def _named_by(lake: Lake, spark: SparkSession, sql: str) -> tuple[DataFrame, list[str]]:
    """The messages that a query gives, and the columns that name them."""
    lake.register(spark)
    rows = spark.sql(sql)
    missing = [name for name in _KEY[1:] if name not in rows.columns]
    if missing:
        raise ConfigurationError(
            f"the query gives no column {' and no column '.join(missing)}, only {', '.join(rows.columns)}: "
            "a plan needs queue and message (and source, where there are several)"
        )
    keys = [name for name in _KEY if name in rows.columns]
    return rows.select(*keys).distinct(), keys


# -- describing


def _described(letters: pa.Table, selection: Selection, sources: list[str], now: datetime) -> Plan:
    moments = letters.column("died_at").to_pylist()
    by_reason = _counted(letters, "reason")
    by_queue = _counted(letters, "queue")
    return Plan(
        id=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        made_at=now,
        selection=selection,
        source=sources[0] if sources else selection.source or "",
        letters=letters.num_rows,
        by_queue=by_queue,
        by_reason=by_reason,
        by_name=_counted(letters, "name"),
        oldest=min(moments, default=None),
        newest=max(moments, default=None),
        examples=letters.column("message").to_pylist()[:_SHOWN],
        cautions=cautions_of(by_reason),
    )


def _counted(letters: pa.Table, column: str) -> dict[str, int]:
    counts = Counter(each or "" for each in letters.column(column).to_pylist())
    return dict(counts.most_common())


def cautions_of(by_reason: dict[str, int]) -> list[str]:
    """What somebody should know before a plan with these reasons is carried out."""
    producer = sum(by_reason.get(each, 0) for each in PRODUCER_REASONS)
    said = []
    if producer:
        said.append(f"{producer:,} will come straight back: no handler can read what their producer wrote")
    if unknown := by_reason.get(EndReason.OUTCOME_UNKNOWN, 0):
        said.append(f"{unknown:,} may have been carried out: those that no read can tell of will be refused")
    stale = sum(by_reason.get(each, 0) for each in (EndReason.CANCELLED, EndReason.SUPERSEDED))
    if stale:
        said.append(f"{stale:,} were cancelled or superseded: somebody did not want them any more")
    if expired := by_reason.get(EndReason.EXPIRED, 0):
        said.append(f"{expired:,} had expired: they will run although their time was over")
    return said


def _as_parquet(letters: pa.Table) -> bytes:
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(letters, buffer, compression="zstd")
    return buffer.getvalue()
