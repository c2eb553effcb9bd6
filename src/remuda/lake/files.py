"""Files of transitions, one for each day that occurs, written where the task is that has the rows."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from remuda.lake.paths import Root
from remuda.lake.schemas import TRANSITIONS

_SCHEMA = TRANSITIONS.arrow_schema()
# Ids hardly ever repeat: a dictionary of them would be built and thrown away. The rest repeats a lot.
_DICTIONARIES = [each for each in TRANSITIONS.names if each not in ("seq", "message", "at", "dwell_ms")]


class Written(NamedTuple):
    """One file that was written."""

    path: str
    size: int
    day: str
    records: int
    low: tuple[int, int]
    high: tuple[int, int]


class _DayFile:
    """One file while it is being written, with the bounds of `seq` and `batch` in it."""

    def __init__(self, root: Root, path: str, day: str) -> None:
        self.path, self.day, self.records = path, day, 0
        self._root = root
        self.low, self.high = [2**63 - 1, 2**63 - 1], [-1, -1]
        root.make_folder(path.rpartition("/")[0])
        self._writer = pq.ParquetWriter(
            root.inside(path),
            _SCHEMA,
            filesystem=root.filesystem,
            compression="zstd",
            compression_level=1,
            use_dictionary=_DICTIONARIES,
        )

    def write(self, rows: pa.RecordBatch) -> None:
        self._writer.write_batch(rows)
        self.records += rows.num_rows
        for place, name in enumerate(("seq", "batch")):
            bounds: dict[str, Any] = pc.min_max(rows.column(name)).as_py()
            self.low[place] = min(self.low[place], bounds["min"])
            self.high[place] = max(self.high[place], bounds["max"])

    def close(self) -> Written:
        self._writer.close()
        size = self._root.filesystem.get_file_info(self._root.inside(self.path)).size
        return Written(
            self.path, size, self.day, self.records, (self.low[0], self.low[1]), (self.high[0], self.high[1])
        )


class DayFiles:
    """Takes batches of transitions, and puts each row into the file of its day."""

    def __init__(self, root: Root, name: str) -> None:
        self._root, self._name = root, name
        self._open: dict[str, _DayFile] = {}
        self.written: list[Written] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.written = [each.close() for each in self._open.values()]

    def write(self, rows: pa.RecordBatch) -> None:
        days = rows.column("at").cast(pa.date32())
        distinct = pc.unique(days)
        if len(distinct) == 1:
            self._file(str(distinct[0])).write(rows)
            return
        for day in distinct:
            self._file(str(day)).write(rows.filter(pc.equal(days, day)))

    def _file(self, day: str) -> _DayFile:
        if day not in self._open:
            # A name that no other run of the same task has: Spark may run one twice, even at once.
            path = f"{self._name}/day={day}/{uuid.uuid4().hex}.parquet"
            self._open[day] = _DayFile(self._root, path, day)
        return self._open[day]


def described(written: Sequence[Written]) -> pa.RecordBatch:
    """The files as rows, for the driver."""
    longs = pa.list_(pa.field("element", pa.int64()))
    columns: list[Any] = list(zip(*written, strict=True)) if written else [[] for _ in Written._fields]
    types = (pa.string(), pa.int64(), pa.string(), pa.int64(), longs, longs)
    return pa.record_batch(
        [pa.array(list(column), kind) for column, kind in zip(columns, types, strict=True)],
        names=list(Written._fields),
    )
