"""Ids for rows that have none: made from what the row says, so that the same row gets the same id again.

They begin with noughts and so stand before the ids that Remuda makes itself: commands of equal priority go
in the order of their ids, and those of a DataFrame must not wait for ever behind newer ones.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PREFIX = "0" * 10  # where an id of ours says when it was made
_DIGITS = 22
# Spark's types that msgpack has no word for are told apart by their text.
_encoder = msgspec.msgpack.Encoder(enc_hook=str)


class RowIds:
    """The ids of a task's rows. `token` says which write it is: the same token, the same ids.

    Equal rows are numbered, so that each gets an id of its own. That takes a few bytes for every row.
    """

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._seen: dict[bytes, int] = {}
        self._marks = array("Q")

    def make(self, row: Mapping[str, Any]) -> str:
        digest = hashlib.blake2b(_encoder.encode(sorted(row.items())), key=_key(self._token)).digest()[:16]
        number = self._seen.get(digest, 0)
        self._seen[digest] = number + 1
        named = hashlib.blake2b(digest + number.to_bytes(8, "big"), digest_size=_DIGITS // 2).digest()
        self._marks.append(int.from_bytes(named[:8], "big"))
        return PREFIX + named.hex().upper()

    @property
    def marks(self) -> bytes:
        """The ids in short: what `repeated` compares between tasks."""
        return self._marks.tobytes()


def _key(token: bytes) -> bytes:
    return token if len(token) <= hashlib.blake2b.MAX_KEY_SIZE else hashlib.blake2b(token).digest()


def repeated(marks: Iterable[bytes]) -> int:
    """How many rows of several tasks got an id that another task's row has."""
    seen: set[int] = set()
    total = 0
    for part in marks:
        numbers = array("Q")
        numbers.frombytes(part)
        seen.update(numbers)
        total += len(numbers)
    return total - len(seen)


def with_ids(frame: DataFrame, *, batch: str, column: str = "job_id") -> DataFrame:
    """The rows, each with an id of its own, also those that are equal: the same for the same `batch`.

    It costs a shuffle, which the sink cannot do by itself. For commands the column is `id`.

    >>> with_ids(mails, batch="2030-01-31").write.format("remuda_queue").options(…).mode("append").save()
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    row = F.to_json(F.struct(*[F.col(f"`{name}`") for name in sorted(frame.columns)]))
    digest = F.sha2(F.concat(F.lit(f"{batch}\n"), row), 256)
    number = F.row_number().over(Window.partitionBy(digest).orderBy(digest))
    named = F.sha2(F.concat_ws("/", digest, number.cast("string")), 256)
    return frame.withColumn(column, F.concat(F.lit(PREFIX), F.upper(F.substring(named, 1, _DIGITS))))
