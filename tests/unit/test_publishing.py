"""What a caller asks, checked before anything is written. What is refused is in the contract's tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.codec import PayloadFormat, decode_headers, decode_payload
from remuda.errors import InvalidJobError
from remuda.ids import IdMaker
from remuda.message import NewJob
from remuda.publishing import MAX_DELAY, encode_jobs
from remuda.retry import Constant, unpack_policy
from remuda.stores.contract import EncodedJob

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def encoded(*jobs: NewJob, payload_format: PayloadFormat = PayloadFormat.MSGPACK) -> list[EncodedJob]:
    return encode_jobs(jobs, ids=IdMaker(), now=NOW, payload_format=payload_format, max_payload_bytes=1_000)


def one(job: NewJob) -> EncodedJob:
    (made,) = encoded(job)
    return made


def test_a_plain_job_is_due_now_and_not_unique() -> None:
    job = one(NewJob("mail", {"n": 1}))
    assert (job.name, job.next_attempt_at, job.priority) == ("mail", NOW, 0)
    assert (job.headers, job.expires_at, job.retry, job.unique, job.unique_for) == (
        None,
        None,
        None,
        False,
        None,
    )
    assert decode_payload(job.payload, None) == {"n": 1}
    assert len(job.id) == 26


def test_every_option_arrives() -> None:
    policy = Constant(every=HOUR)
    job = one(
        NewJob(
            "mail",
            delay=HOUR,
            priority=2,
            headers={"h": 1},
            expires_in=2 * HOUR,
            retry=policy,
            job_id="mine",
            unique_for=3 * HOUR,
        )
    )
    assert (job.id, job.unique, job.unique_for) == ("mine", True, 3 * HOUR)
    assert (job.next_attempt_at, job.expires_at, job.priority) == (NOW + HOUR, NOW + 2 * HOUR, 2)
    assert decode_headers(job.headers) == {"h": 1}
    assert job.retry is not None
    assert unpack_policy(job.retry) == policy


@given(
    st.datetimes(
        datetime(2029, 1, 1),  # noqa: DTZ001 - zones are drawn beside it
        datetime(2031, 1, 1),  # noqa: DTZ001
        timezones=st.integers(-12, 14).map(lambda hours: timezone(timedelta(hours=hours))),
    )
)
def test_a_moment_is_kept_as_the_same_moment_in_utc(moment: datetime) -> None:
    job = one(NewJob("mail", next_attempt_at=moment, expires_at=moment))
    assert job.next_attempt_at == job.expires_at == moment
    assert job.next_attempt_at.tzinfo is UTC


def test_the_longest_delay_is_taken_and_no_longer_one() -> None:
    assert one(NewJob("mail", delay=MAX_DELAY)).next_attempt_at == NOW + MAX_DELAY
    for job in (
        NewJob("mail", delay=MAX_DELAY + timedelta(seconds=1)),
        NewJob("mail", next_attempt_at=NOW + MAX_DELAY + timedelta(seconds=1)),
        NewJob("mail", expires_in=timedelta.max),
        NewJob("mail", expires_at=datetime.max.replace(tzinfo=UTC)),
        NewJob("mail", job_id="a", unique_for=timedelta.max),
    ):
        with pytest.raises(InvalidJobError, match="3650 days"):
            one(job)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"delay": 5}, "delay of job 'mail' must be a timedelta"),
        ({"next_attempt_at": "tomorrow"}, "next_attempt_at of job 'mail' must be a datetime"),
        ({"next_attempt_at": datetime(2030, 1, 1)}, "no time zone"),  # noqa: DTZ001 - that is the point
        ({"delay": HOUR, "next_attempt_at": NOW}, "both delay and next_attempt_at"),
        ({"expires_in": HOUR, "expires_at": NOW}, "both expires_in and expires_at"),
        ({"expires_in": -HOUR}, "expires_in of job 'mail'"),
        ({"priority": 3}, "priority of job 'mail'"),
        ({"priority": 0.5}, "priority of job 'mail'"),
        ({"priority": True}, "priority of job 'mail'"),
        ({"unique_for": HOUR}, "unique_for but no job_id"),
        ({"job_id": "a", "unique_for": -HOUR}, "unique_for of job 'mail'"),
        ({"job_id": "a", "unique_for": 5}, "unique_for of job 'mail'"),
        ({"retry": lambda attempts, error: None}, "retry override of job 'mail'"),
        ({"next_attempt_at": datetime.min.replace(tzinfo=timezone(HOUR))}, "'mail'"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidJobError, match=says):
        one(NewJob("mail", **options))


def test_no_time_of_uniqueness_is_none() -> None:
    job = one(NewJob("mail", job_id="a", unique_for=timedelta(0)))
    assert (job.unique, job.unique_for) == (True, None)


def test_json_says_that_it_is_json() -> None:
    (job,) = encoded(NewJob("mail", [1]), payload_format=PayloadFormat.JSON)
    assert decode_headers(job.headers) == {"content-type": "application/json"}
    assert job.payload == b"[1]"


def test_ids_are_given_in_order_and_beside_those_of_the_caller() -> None:
    jobs = encoded(*(NewJob("mail", job_id="mine" if n == 2 else None) for n in range(5)))
    own = [each.id for each in jobs if each.id != "mine"]
    assert own == sorted(set(own))
    assert jobs[2].id == "mine"
