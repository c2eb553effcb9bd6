"""The record of a state change, and its packed form: many transitions in one entry.

An entry holds columns instead of rows, and a column whose values are all the same holds just that
value: a batch of 500 acks costs little more than the 500 ids. It is msgpack, or JSON where a database
server packs it in the statement that changes the state. The entry's first sequence number
and its length are stored beside it, so that a reader sees a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from remuda.errors import DecodeError
from remuda.lifecycle import CommandStatus, State, check_move, state_of

MAX_PER_ENTRY = 5_000
_VERSION = 1
JSON_VERSION = _VERSION  # the same columns as JSON, told by its first bracket
MIXED_VERSION = 2  # every column may be a list, and there is one more, `about`: the entries of commands
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """One state change of one message.

    seq       its place in the queue's trail, without gaps; 0 while it is not recorded
    left      the state it left; None for a message that was just added
    dwell     the time it spent there; None when there was no state before
    attempt   handler runs so far
    reason    why, where there is something to say (a dead letter's reason, `lease_expired`, …)
    who       the worker or program that did it
    name      the job's name, or the command's type; only on the record of its adding
    about     a command's device, lane, gateway and grid; only on the record of its adding
    """

    message: str
    entered: State | CommandStatus
    at: datetime
    left: State | CommandStatus | None = None
    dwell: timedelta | None = None
    attempt: int = 0
    reason: str | None = None
    who: str | None = None
    name: str | None = None
    about: dict[str, str] | None = None
    queue: str = ""
    seq: int = 0


def to_ms(moment: datetime) -> int:
    """Milliseconds since 1970."""
    return (moment - _EPOCH) // _MILLISECOND


def from_ms(moment_ms: int) -> datetime:
    """The aware datetime of `to_ms`."""
    return _EPOCH + timedelta(milliseconds=moment_ms)


def between_ms(start: datetime, end: datetime) -> int:
    """Whole milliseconds from `start` to `end`; never negative, for clocks differ a little."""
    return max(0, (end - start) // _MILLISECOND)


class Batch(msgspec.Struct, kw_only=True):
    """Transitions that are about to be written together, as columns.

    Every column but `messages` is one value for all of them, or a list of the same length.
    """

    messages: list[str]
    left: State | list[State] | None
    entered: State
    at: datetime
    dwell_ms: int | list[int] | None = None
    attempt: int | list[int] = 0
    reason: str | list[str | None] | None = None
    who: str | None = None
    name: str | list[str] | None = None

    def __post_init__(self) -> None:
        for left in set(self.left) if isinstance(self.left, list) else (self.left,):
            check_move(left, self.entered)
        for column in (self.left, self.dwell_ms, self.attempt, self.reason, self.name):
            if isinstance(column, list) and len(column) != len(self.messages):
                raise ValueError(f"a column of {len(column)} values for {len(self.messages)} messages")

    def entries(self) -> Iterator[tuple[int, bytes]]:
        """The packed entries, each with its number of transitions."""
        for start in range(0, len(self.messages), MAX_PER_ENTRY):
            part = slice(start, start + MAX_PER_ENTRY)
            messages = self.messages[part]
            yield (
                len(messages),
                _encoder.encode(
                    (
                        _VERSION,
                        messages,
                        _cut(self.left, part),
                        self.entered,
                        to_ms(self.at),
                        _cut(self.dwell_ms, part),
                        _cut(self.attempt, part),
                        _cut(self.reason, part),
                        self.who,
                        _cut(self.name, part),
                    )
                ),
            )


def _cut(column: Any, part: slice) -> Any:
    """The part of a column, folded to one value where all of them are the same."""
    if not isinstance(column, list):
        return column
    values = column[part]
    first = values[0]
    return first if values.count(first) == len(values) else values


def pack_mixed(
    rows: Sequence[
        tuple[str, str | None, str, int, int | None, int, str | None, str | None, dict[str, str] | None]
    ],
    *,
    who: str,
) -> bytes:
    """One entry of transitions that have little in common: of commands.

    A row is (message, left, entered, at_ms, dwell_ms, attempt, reason, name, about).
    """
    messages, left, entered, at_ms, dwell_ms, attempt, reason, name, about = (
        list(column) for column in zip(*rows, strict=True)
    )
    whole = slice(None)
    folded = (_cut(column, whole) for column in (left, entered, at_ms, dwell_ms, attempt, reason))
    return _encoder.encode((MIXED_VERSION, messages, *folded, who, _cut(name, whole), _cut(about, whole)))


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder()
_json_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def columns_of(entry: bytes) -> Sequence[Any]:
    """What a packed entry holds, as it stands there: messages, left, entered, at_ms, dwell_ms, attempt,
    reason, who, name, about. All but `messages` are one value for every message, or a list.
    """
    columns: list[Any]
    version, *columns = (_json_decoder if entry[:1] == b"[" else _decoder).decode(entry)
    if version == _VERSION:
        columns.append(None)  # nothing to say about them
    elif version != MIXED_VERSION:
        raise DecodeError(f"a transition entry of version {version!r}; this program reads 1 and 2")
    messages = columns[0]
    if not isinstance(messages, list) or not all(isinstance(each, str) for each in messages):
        raise ValueError("its messages are not a list of ids")
    return columns


def unpack(entry: bytes, *, queue: str, first_seq: int) -> list[Transition]:
    """The transitions of one packed entry, in order; `DecodeError` when it is not one."""
    try:
        messages, left, entered, at_ms, dwell_ms, attempt, reason, who, name, about = columns_of(entry)
        count = len(messages)
        rows = zip(
            messages,
            _spread(left, count, _state_or_none),
            _spread(entered, count, state_of),
            _spread(at_ms, count, from_ms),
            _spread(dwell_ms, count, _span_or_none),
            *(_spread(column, count, _as_it_is) for column in (attempt, reason, name, about)),
            strict=True,
        )
        return [
            Transition(
                queue=queue,
                seq=first_seq + place,
                message=message,
                left=was,
                entered=now,
                at=at,
                dwell=dwell,
                attempt=tries,
                reason=why,
                who=who,
                name=called,
                about=context,
            )
            for place, (message, was, now, at, dwell, tries, why, called, context) in enumerate(rows)
        ]
    except (msgspec.DecodeError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise DecodeError(f"entry {first_seq} of the trail of {queue!r} is not readable: {error}") from error


def _spread(column: Any, length: int, read: Callable[[Any], Any]) -> Sequence[Any]:
    """A value for each row; one that all of them share is read once."""
    return [read(value) for value in column] if isinstance(column, list) else [read(column)] * length


def _state_or_none(name: str | None) -> State | CommandStatus | None:
    return None if name is None else state_of(name)


def _span_or_none(spent_ms: int | None) -> timedelta | None:
    return None if spent_ms is None else timedelta(milliseconds=spent_ms)


def _as_it_is(value: Any) -> Any:
    return value
