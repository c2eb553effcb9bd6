"""From what a caller asks to what a store writes: every check happens here, before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from remuda.codec import (
    CONTENT_TYPE,
    CONTENT_TYPES,
    PayloadFormat,
    check_name,
    encode_headers,
    encode_payload,
)
from remuda.errors import InvalidJobError
from remuda.ids import IdMaker
from remuda.message import HIGHEST_PRIORITY, LOWEST_PRIORITY, NewJob
from remuda.retry import Constant, Exponential, Linear, NoRetry, pack_policy
from remuda.stores.contract import EncodedJob
from remuda.transition import to_ms

MAX_DELAY = timedelta(days=3650)
_POLICIES = (Constant, Linear, Exponential, NoRetry)


def encode_jobs(
    jobs: Sequence[NewJob],
    *,
    ids: IdMaker,
    now: datetime,
    payload_format: PayloadFormat,
    max_payload_bytes: int,
) -> list[EncodedJob]:
    """All jobs, checked and encoded; the first that is wrong raises, and none is written."""
    return [
        _encode(job, fresh_id, now, payload_format, max_payload_bytes)
        for job, fresh_id in zip(jobs, ids.make(len(jobs), to_ms(now)), strict=True)
    ]


def _encode(
    job: NewJob, fresh_id: str, now: datetime, payload_format: PayloadFormat, max_payload_bytes: int
) -> EncodedJob:
    if not isinstance(job, NewJob):
        raise InvalidJobError(f"add_many takes NewJob values, not {type(job).__name__}: {job!r:.100}")
    name = _check_job_name(job.name)
    payload = encode_payload(
        job.payload, name=name, max_bytes=max_payload_bytes, payload_format=payload_format
    )
    if payload_format is PayloadFormat.MSGPACK and _has_no_options(job):
        return EncodedJob(id=fresh_id, name=name, payload=payload, next_attempt_at=now)
    if type(job.priority) is not int or not LOWEST_PRIORITY <= job.priority <= HIGHEST_PRIORITY:
        raise InvalidJobError(
            f"the priority of job {name!r} must be a whole number from {LOWEST_PRIORITY} to "
            f"{HIGHEST_PRIORITY}, not {job.priority!r}"
        )
    if job.unique_for is not None and job.job_id is None:
        raise InvalidJobError(f"job {name!r} has unique_for but no job_id to be unique by")
    headers = job.headers
    if payload_format is PayloadFormat.JSON or (headers and CONTENT_TYPE in headers):
        headers = {**(headers or {}), CONTENT_TYPE: CONTENT_TYPES[payload_format]}
    return EncodedJob(
        id=fresh_id if job.job_id is None else check_name(job.job_id, "a job id", InvalidJobError),
        name=name,
        payload=payload,
        next_attempt_at=_moment(name, "delay", job.delay, "next_attempt_at", job.next_attempt_at, now) or now,
        headers=encode_headers(headers, name=name) if headers else None,
        priority=job.priority,
        expires_at=_moment(name, "expires_in", job.expires_in, "expires_at", job.expires_at, now),
        retry=_packed_retry(job),
        unique=job.job_id is not None,
        unique_for=_unique_for(job),
        rate_key=None if job.rate_key is None else check_name(job.rate_key, "a rate key", InvalidJobError),
    )


def _has_no_options(job: NewJob) -> bool:
    """The job of a bulk load: spares it ten checks of what is not there."""
    return (
        job.priority == 0
        and job.delay is None
        and job.next_attempt_at is None
        and job.headers is None
        and job.expires_in is None
        and job.expires_at is None
        and job.retry is None
        and job.job_id is None
        and job.unique_for is None
        and job.rate_key is None
    )


def _check_job_name(name: str) -> str:
    return _known_name(name) if type(name) is str else check_name(name, "a job's name", InvalidJobError)


@lru_cache(maxsize=4096)
def _known_name(name: str) -> str:
    """Names come again and again; each is looked at once."""
    return check_name(name, "a job's name", InvalidJobError)


def _moment(
    name: str,
    duration_name: str,
    duration: timedelta | None,
    moment_name: str,
    moment: datetime | None,
    now: datetime,
) -> datetime | None:
    """A duration from now, or a moment: one of the two, in UTC."""
    if duration is None and moment is None:
        return None
    if duration is not None and moment is not None:
        raise InvalidJobError(f"job {name!r} has both {duration_name} and {moment_name}; give one")
    if duration is not None:
        if not _is_a(timedelta, duration) or not timedelta(0) <= duration <= MAX_DELAY:
            raise InvalidJobError(
                f"{duration_name} of job {name!r} must be a timedelta from nought to {MAX_DELAY.days} days, "
                f"not {duration!r}"
            )
        return now + duration
    if not isinstance(moment, datetime):
        raise InvalidJobError(f"{moment_name} of job {name!r} must be a datetime, not {moment!r}")
    if moment.utcoffset() is None:
        raise InvalidJobError(
            f"{moment_name} of job {name!r} has no time zone: {moment!r}; use an aware datetime, "
            "such as datetime.now(UTC)"
        )
    try:
        moment = moment.astimezone(UTC)
    except OverflowError:
        raise InvalidJobError(f"{moment_name} of job {name!r} is out of range: {moment!r}") from None
    if moment - now > MAX_DELAY:
        raise InvalidJobError(
            f"{moment_name} of job {name!r} is more than {MAX_DELAY.days} days away: {moment}"
        )
    return moment


def moment_to_run(job_id: str, *, delay: timedelta | None, at: datetime | None, now: datetime) -> datetime:
    """When a job that waits is to run instead, checked as when it is added."""
    moment = _moment(job_id, "delay", delay, "at", at, now)
    if moment is None:
        raise InvalidJobError(f"job {job_id!r} is to run at another time, but when? Give delay or at")
    return moment


def moment_to_expire(
    job_id: str, *, after: timedelta | None, at: datetime | None, now: datetime
) -> datetime | None:
    """When a job that waits is to expire instead; None for never."""
    return _moment(job_id, "after", after, "at", at, now)


def _is_a(kind: type, value: object) -> bool:
    """What the annotation promises, checked all the same: callers need not be typed."""
    return isinstance(value, kind)


def _packed_retry(job: NewJob) -> bytes | None:
    if job.retry is None:
        return None
    if not isinstance(job.retry, _POLICIES):
        raise InvalidJobError(
            f"the retry override of job {job.name!r} must be Constant, Linear, Exponential or NoRetry, "
            f"for it is stored with the job; not {job.retry!r}"
        )
    return pack_policy(job.retry)


def _unique_for(job: NewJob) -> timedelta | None:
    if job.unique_for is None:
        return None
    if not _is_a(timedelta, job.unique_for) or not timedelta(0) <= job.unique_for <= MAX_DELAY:
        raise InvalidJobError(
            f"unique_for of job {job.name!r} must be a timedelta from nought to {MAX_DELAY.days} days, "
            f"not {job.unique_for!r}"
        )
    return job.unique_for or None
