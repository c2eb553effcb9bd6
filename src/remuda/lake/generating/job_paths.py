"""What becomes of jobs, and how often."""

from __future__ import annotations

from remuda.lake.generating.paths import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    JobWalk,
    Path,
    about,
    between,
)
from remuda.lifecycle import Reason, State

MOST_RETRIES = 5


def _after_retries(retries: int) -> JobWalk:
    """A job whose worker is about to tell what became of its last attempt."""
    walk = JobWalk().fetched()
    for _ in range(retries):
        walk.retried()
    return walk


def _poison() -> JobWalk:
    """A job that takes every worker down with it."""
    walk = JobWalk().fetched()
    for _ in range(MOST_RETRIES):
        walk.recovered().fetched()
    return walk.died(Reason.MAX_DELIVERIES, ran=False)


def _dead() -> list[tuple[float, JobWalk]]:
    unread = (Reason.DECODE_FAIL, Reason.MALFORMED, Reason.OVERSIZE)
    return [
        (0.006, _after_retries(MOST_RETRIES).died(Reason.RETRIES_EXHAUSTED)),
        (0.004, JobWalk().fetched().died(Reason.UNRECOVERABLE)),
        (0.003, JobWalk().fetched().died(Reason.REJECTED)),
        (0.002, JobWalk(between(HOUR, 5 * HOUR)).fetched().died(Reason.EXPIRED, ran=False)),
        (0.001, _after_retries(1).died(Reason.PANIC)),
        (0.001, _poison()),
        *((0.0007, JobWalk().fetched().died(reason, ran=False)) for reason in unread),
    ]


def _dead_and_then() -> list[tuple[float, JobWalk]]:
    """Replayed and mended, replayed in vain, dropped, or forgotten."""
    exhausted = Reason.RETRIES_EXHAUSTED
    week = between(DAY, 7 * DAY)
    return [
        (0.002, _after_retries(MOST_RETRIES).died(exhausted).replayed().fetched().completed()),
        (0.001, JobWalk().fetched().died(Reason.UNRECOVERABLE).replayed().fetched().completed()),
        (0.0007, _after_retries(1).died(exhausted).replayed().fetched().retried().died(exhausted)),
        (0.0005, JobWalk().fetched().died(Reason.REJECTED).replayed().fetched().died(Reason.REJECTED)),
        (0.0008, JobWalk().fetched().died(Reason.UNRECOVERABLE).removed("dropped", between(MINUTE, DAY))),
        (0.0004, JobWalk().fetched().died(Reason.REJECTED).removed("retention", week, who="worker")),
    ]


def _taken_back() -> list[tuple[float, JobWalk]]:
    """Removed while they waited, or given back by their worker."""
    failed_once = JobWalk().fetched()
    failed_once.attempt += 1
    failed_once.to(State.RETRYABLE, about(1_200))
    moment = about(40)
    return [
        (0.005, JobWalk().removed("cancelled", between(SECOND, 20 * MINUTE), who="client")),
        (0.001, failed_once.removed("purged", between(SECOND, 10 * SECOND))),
        (0.006, JobWalk().fetched().recovered().fetched().completed()),
        (0.001, JobWalk().fetched().recovered().fetched().retried().completed()),
        (0.004, JobWalk().fetched().given_back("unstarted", moment).fetched().completed()),
        (0.002, JobWalk().fetched().given_back("cancelled_at_stop", moment).fetched().completed()),
        (0.005, JobWalk().fetched().given_back("rate_limited", moment).fetched(about(SECOND)).completed()),
    ]


def _live() -> list[tuple[float, Path]]:
    """Added shortly before the end, and not through yet."""
    failed = JobWalk().fetched()
    failed.attempt += 1
    failed.to(State.RETRYABLE, about(1_200))
    return [
        (0.0015, JobWalk().path(late=2 * MINUTE)),
        (0.001, JobWalk().fetched().path(late=2 * MINUTE)),
        (0.001, failed.path(late=2 * MINUTE)),
    ]


def job_paths() -> list[tuple[float, Path]]:
    """Every path of a job with its probability; the first one, straight through, has what is left."""
    others: list[tuple[float, Path]] = [
        (0.03, JobWalk(between(SECOND, 6 * HOUR)).fetched().completed().path()),  # it was to begin later
        *(
            (share, _after_retries(number).completed().path())
            for number, share in enumerate((0.05, 0.025, 0.012, 0.008, 0.005), start=1)
        ),
        *((share, walk.path()) for share, walk in (*_dead(), *_dead_and_then(), *_taken_back())),
        *_live(),
    ]
    straight = JobWalk().fetched().completed().path()
    return [(1.0 - sum(share for share, _ in others), straight), *others]
