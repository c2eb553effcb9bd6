"""The tables of the lake: every column with its type and its meaning, in one place.

Spark, the Delta log and the documentation all take them from here. A schema grows by columns at its end
that may be NULL: a table of an older version is given them when it is next opened, and its old rows have
NULL there. Columns are never renamed, retyped or taken away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class Column(NamedTuple):
    """One column: `type` is Spark's name for it."""

    name: str
    type: str
    meaning: str


class TableSpec(NamedTuple):
    """One table. `partition` is a column that the log keeps, worked out from `partition_of` (SQL)."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    partition: Column
    partition_of: str
    stats: tuple[
        str, ...
    ] = ()  # whole-number columns whose least and greatest value the log keeps for each file

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    def spark_schema(self) -> StructType:
        """The columns that stand in the files: all but the partition."""
        from pyspark.sql.types import StructType

        # Spark's own names of types, back-quoted names: `left` and `at` are words of SQL.
        ddl = ", ".join(f"`{column.name}` {column.type}" for column in self.columns)
        schema = StructType.fromDDL(ddl)
        assert isinstance(schema, StructType)  # noqa: S101 - of several columns nothing else is made
        return schema

    def arrow_schema(self, *, partition: bool = False) -> pa.Schema:
        """The same for Arrow."""
        import pyarrow as pa

        columns = (*self.columns, self.partition) if partition else self.columns
        return pa.schema([(column.name, arrow_type(column.type)) for column in columns])


def arrow_type(name: str) -> pa.DataType:
    """The Arrow type of one of Spark's names of types."""
    import pyarrow as pa

    if name.startswith("array<"):
        # Spark calls an array's items `element`.
        return pa.list_(pa.field("element", arrow_type(name[6:-1])))
    if name.startswith("struct<"):
        fields = (field.split(":", 1) for field in name[7:-1].split(","))
        return pa.struct([(field, arrow_type(kind)) for field, kind in fields])
    types = {
        "string": pa.string(),
        "bigint": pa.int64(),
        "int": pa.int32(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "date": pa.date32(),
        "binary": pa.binary(),
    }
    return types[name]


_SOURCE = Column("source", "string", "the store, by the name that the ingest was given (`--source`)")
_QUEUE = Column("queue", "string", "the queue, or `devices:<fleet>` for the commands of a fleet")
_MESSAGE = Column("message", "string", "the id of the job or command")
_NAME = Column("name", "string", "the job's name, or the command's type")
_DEVICE = Column("device", "string", "commands: the device")
_LANE = Column("lane", "string", "commands: the lane")
_GATEWAY = Column("gateway", "string", "commands: the gateway")
_GRID = Column("grid", "string", "commands: the grid")
_BATCH = Column("batch", "bigint", "the ingest that brought it")

TRANSITIONS = TableSpec(
    name="transitions",
    meaning="every state change, as it was recorded",
    columns=(
        _SOURCE,
        _QUEUE,
        Column("seq", "bigint", "its number in the trail of the queue, without gaps"),
        _MESSAGE,
        Column("left", "string", "the state that was left; NULL when the message was added"),
        Column("entered", "string", "the state that was entered"),
        Column("at", "timestamp", "when, on the store's clock"),
        Column("dwell_ms", "bigint", "the time spent in the state that was left"),
        Column("attempt", "int", "handler runs, or hand-overs to the network server, so far"),
        Column("reason", "string", "why, where there is something to say"),
        Column("who", "string", "the worker, engine or program that did it"),
        Column("name", "string", "the job's name, or the command's type; only on the record of its adding"),
        Column("device", "string", "commands, only on adding: the device"),
        Column("lane", "string", "commands, only on adding: the lane"),
        Column("gateway", "string", "commands, only on adding: the gateway"),
        Column("grid", "string", "commands, only on adding: the grid"),
        _BATCH,
    ),
    partition=Column("day", "date", "the day (UTC) of `at`"),
    partition_of="to_date(`at`)",
    stats=("seq", "batch"),
)

# The stages in which a message spends its time. A job and a command never share one.
JOB_STAGES = ("PENDING", "PROCESSING", "RETRYABLE")
COMMAND_STAGES = ("QUEUED", "SENT_TO_NS", "DELIVERED_TO_NS", "SENT_TO_DEVICE", "TO_RETRY")
STAGES = (*JOB_STAGES, *COMMAND_STAGES)

HISTORIES = TableSpec(
    name="histories",
    meaning="one row for each message (for each life of it, where an id was used again after its end)",
    columns=(
        _SOURCE,
        _QUEUE,
        Column("kind", "string", "`job` or `command`"),
        _MESSAGE,
        Column("added_seq", "bigint", "the number of the record of its adding; NULL if that was not seen"),
        Column("first_seq", "bigint", "the number of its first record"),
        Column("last_seq", "bigint", "the number of its last record"),
        _NAME,
        _DEVICE,
        _LANE,
        _GATEWAY,
        _GRID,
        Column("state", "string", "the state it is in"),
        Column("outcome", "string", "`delivered`, `dead` or `removed`; NULL while it lives"),
        Column("reason", "string", "the reason on its last record"),
        Column("added_at", "timestamp", "when it was added; NULL if that was not seen"),
        Column("started_at", "timestamp", "when it was first handed to a worker or to the network server"),
        Column("ended_at", "timestamp", "when it ended; NULL while it lives"),
        Column("last_at", "timestamp", "when its last record was made"),
        Column("latency_ms", "bigint", "from its adding to its end"),
        *(Column(f"{stage.lower()}_at", "timestamp", f"when it first entered {stage}") for stage in STAGES),
        *(Column(f"{stage.lower()}_ms", "bigint", f"the time it spent in {stage}") for stage in STAGES),
        Column("attempts", "int", "the highest number of attempts on its records (a replay begins anew)"),
        Column("deliveries", "int", "hand-overs to a worker or to the network server"),
        Column("retries", "int", "times that another attempt was to follow (RETRYABLE, TO_RETRY)"),
        Column("recoveries", "int", "jobs: given back unstarted, or recovered from a dead worker"),
        Column("deaths", "int", "times that it became a dead letter"),
        Column("replays", "int", "times that it was replayed"),
        Column("illegal", "int", "records of a move that the lifecycle does not know"),
        Column("records", "int", "records in all"),
        Column("first_at", "timestamp", "when its first record was made"),
        Column("dwell_ms", "bigint", "the time in all states that it has left"),
        Column("chain", "bigint", "sums up its moves: shows a broken chain (see `remuda.lake.chain`)"),
        Column("batch", "bigint", "the ingest that brought its last record"),
    ),
    partition=Column("ended_on", "date", "the day (UTC) of `ended_at`; NULL while it lives"),
    partition_of="to_date(`ended_at`)",
    stats=("batch",),
)

DIMENSIONS = ("queue", "name", "lane", "gateway", "device")
HISTOGRAM = "array<struct<bucket:int,count:bigint>>"

MEASURES = TableSpec(
    name="measures",
    meaning="rates, latencies, retries and times in stage, by period and by what is measured",
    columns=(
        Column("grain", "string", "the length of the period: `minute`, `hour` or `day`"),
        Column("period", "timestamp", "when the period begins"),
        Column("dimension", "string", "what is measured: `queue`, `name`, `lane`, `gateway` or `device`"),
        _SOURCE,
        _QUEUE,
        Column("key", "string", "which one of them"),
        Column("added", "bigint", "messages added in the period"),
        Column("ended", "bigint", "messages that ended in the period; all that follows is about them"),
        Column("delivered", "bigint", "of these: delivered"),
        Column("dead", "bigint", "of these: dead letters"),
        Column("removed", "bigint", "of these: purged, cancelled or dropped"),
        Column("delivery_rate", "double", "delivered / (delivered + dead)"),
        Column("per_second", "double", "ended / the length of the period"),
        Column("attempts", "bigint", "their attempts"),
        Column("deliveries", "bigint", "their deliveries"),
        Column("retries", "bigint", "their retries"),
        Column("replays", "bigint", "their replays"),
        Column("latency_mean_ms", "double", "from adding to end, of those delivered"),
        Column("latency_p50_ms", "bigint", "the median of it; from the histogram, within 2 %"),
        Column("latency_p90_ms", "bigint", "nine of ten are quicker"),
        Column("latency_p99_ms", "bigint", "99 of 100 are quicker"),
        Column("latency_max_ms", "bigint", "the slowest"),
        Column(
            "latency_histogram",
            HISTOGRAM,
            "how many in which bucket (see `remuda.lake.buckets`); empty where none was delivered",
        ),
        *(Column(f"{stage.lower()}_ms", "bigint", f"the time they spent in {stage}") for stage in STAGES),
    ),
    partition=Column("day", "date", "the day (UTC) of `period`"),
    partition_of="to_date(`period`)",
)

DEAD_LETTERS = TableSpec(
    name="dead_letters",
    meaning="one row for each death: a message may die again after a replay",
    columns=(
        _SOURCE,
        _QUEUE,
        _MESSAGE,
        Column("seq", "bigint", "the number of the record of its death"),
        Column("died_at", "timestamp", "when"),
        _NAME,
        Column("reason", "string", "why"),
        Column("attempts", "int", "attempts until then"),
        Column("error_type", "string", "what its handler raised; for commands the last failure's reason"),
        Column("error_message", "string", "what it said (at most 2,000 characters)"),
        Column("error_trace", "string", "where (at most 8,000 characters)"),
        Column("worker", "string", "who settled it"),
        Column("payload_bytes", "bigint", "the size of its payload"),
        Column("fingerprint", "string", "16 hex digits: the same for what is the same fault"),
        Column("fault", "string", "the fault in words, without the parts that vary"),
        _DEVICE,
        _LANE,
        _GATEWAY,
        Column("described", "boolean", "False: it had left the store before its error could be read"),
        _BATCH,
    ),
    partition=Column("day", "date", "the day (UTC) of `died_at`"),
    partition_of="to_date(`died_at`)",
    stats=("batch",),
)

ANOMALIES = TableSpec(
    name="anomalies",
    meaning="what cannot be, or should not",
    columns=(
        _SOURCE,
        _QUEUE,
        Column("kind", "string", "which (see `remuda.lake.anomalies.Anomaly`)"),
        Column("message", "string", "the id of the job or command; NULL for a gap"),
        Column("seq", "bigint", "the record that shows it; for a gap the first number that is missing"),
        Column("at", "timestamp", "when that record was made"),
        Column("left", "string", "the state that it left"),
        Column("entered", "string", "the state that it entered"),
        Column("missing", "bigint", "gaps: how many records are missing"),
        Column("detail", "string", "in words"),
        _BATCH,
    ),
    partition=Column("sort", "string", "`lasting`, or `passing` for what may yet mend (made anew each time)"),
    partition_of="CASE WHEN `kind` = 'stopped' THEN 'passing' ELSE 'lasting' END",
    stats=("batch",),
)

TABLES = {spec.name: spec for spec in (TRANSITIONS, HISTORIES, MEASURES, DEAD_LETTERS, ANOMALIES)}
