"""Adding: what `add.lua` takes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from remuda.stores import recording
from remuda.stores.contract import EncodedJob
from remuda.stores.redis import wire
from remuda.stores.redis.holding import Argument, recorded
from remuda.stores.redis.keys import stream_index
from remuda.stores.redis.wire import Extra
from remuda.transition import to_ms

_LATE = timedelta(milliseconds=500)  # a job asked for at a moment longer ago than this waits by that moment
_MILLISECOND = timedelta(milliseconds=1)


def add_arguments(
    jobs: Sequence[EncodedJob], *, now: datetime, who: str, max_live: int | None
) -> tuple[list[Argument], list[EncodedJob]]:
    """What `add.lua` takes; and the jobs that are not plain, by whose places it answers."""
    plain: list[Argument] = []
    special: list[Argument] = []
    not_plain: list[EncodedJob] = []
    late = now - _LATE
    now_ms = to_ms(now)
    moments: dict[datetime, int] = {}
    for job in jobs:
        if _is_plain(job) and late <= job.next_attempt_at <= now:
            created_ms = moments.get(job.next_attempt_at)
            if created_ms is None:
                created_ms = moments[job.next_attempt_at] = to_ms(job.next_attempt_at)
            plain += (wire.encode((job.id, job.payload, created_ms, 0)), job.name)
        else:
            special += _special(job, now, late, now_ms)
            not_plain.append(job)
    arguments: list[Argument] = [
        -1 if max_live is None else max_live,
        len(plain) // 2,
        len(special) // 8,
        *plain,
        *special,
        *recorded([recording.added(jobs, now=now, who=who)]),
    ]
    return arguments, not_plain


def _is_plain(job: EncodedJob) -> bool:
    return (
        job.headers is None
        and job.priority == 0
        and job.expires_at is None
        and job.retry is None
        and not job.unique
        and job.rate_key is None
    )


def _special(job: EncodedJob, now: datetime, late: datetime, now_ms: int) -> tuple[Argument, ...]:
    envelope = wire.pack_envelope(job.id, job.payload, now_ms, 0, wire.retry_to_wire(job.retry))
    extra = Extra(
        headers=job.headers,
        priority=job.priority,
        expires_us=wire.maybe_to_us(job.expires_at),
        packed_retry=None if job.retry is None else job.retry.decode("latin-1"),
        unique=job.unique,
        unique_for_ms=None if job.unique_for is None else job.unique_for // _MILLISECOND,
        rate_key=job.rate_key,
    )
    waits = not late <= job.next_attempt_at <= now
    return (
        stream_index(job.priority),
        wire.to_score(job.next_attempt_at) if waits else "",
        job.id,
        b"" if extra == wire.NO_EXTRA else wire.encode(extra),
        "1" if job.unique else "0",
        envelope,
        job.name,
        wire.pack_member(job.name, envelope) if waits else b"",
    )
