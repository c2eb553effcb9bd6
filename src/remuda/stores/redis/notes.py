"""Notes: how far jobs are, and what their handlers said. Each carries the moment at which it is over."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from remuda.message import LogLine
from remuda.stores.contract import Note, Progressed
from remuda.stores.redis.holding import Argument
from remuda.stores.redis.keys import Keys
from remuda.stores.redis.link import Link
from remuda.stores.redis.wire import encode, from_us, to_us

_KEPT_MS = 3600 * 1000  # beyond the moment, should the clocks differ


class _Far(msgspec.Struct, array_like=True):
    over_us: int
    at_us: int
    value: bytes


class _Line(msgspec.Struct, array_like=True):
    over_us: int
    at_us: int
    attempt: int
    text: str


_fars = msgspec.msgpack.Decoder(_Far)
_lines = msgspec.msgpack.Decoder(_Line)


def note_arguments(notes: Sequence[Note], *, now: datetime, ttl: timedelta) -> list[Argument]:
    """What `note.lua` takes."""
    now_us, over_us = to_us(now), to_us(now + ttl)
    arguments: list[Argument] = [ttl // timedelta(milliseconds=1) + _KEPT_MS, len(notes)]
    for each in notes:
        far = b"" if each.progress is None else encode(_Far(over_us, now_us, each.progress))
        lines = [encode(_Line(over_us, to_us(line.at), line.attempt, line.text)) for line in each.lines]
        arguments += (each.job_id, far, len(lines), *lines)
    return arguments


async def how_far(link: Link, keys: Keys, job_ids: Sequence[str], *, now: datetime) -> dict[str, Progressed]:
    """How far jobs are, of those that have said so."""
    values = await link.call("MGET", *(keys.progress(each) for each in job_ids))
    found: dict[str, Progressed] = {}
    for job_id, packed in zip(job_ids, values, strict=True):
        if packed is not None:
            far = _fars.decode(packed)
            if far.over_us > to_us(now):
                found[job_id] = Progressed(far.value, from_us(far.at_us))
    return found


async def lines(
    link: Link, keys: Keys, job_id: str, *, now: datetime, after: int, limit: int
) -> list[LogLine]:
    """What a job's handler said, in order. All of it is there as long as its last line."""
    key = keys.lines(job_id)
    packed, last = await link.call_many([("LRANGE", key, after, after + limit - 1), ("LRANGE", key, -1, -1)])
    if not last or _lines.decode(last[0]).over_us <= to_us(now):
        return []
    opened = map(_lines.decode, packed)
    return [LogLine(from_us(line.at_us), line.attempt, line.text) for line in opened]
