"""A recorded job lives again under another retry policy. Pure: `remuda.retry.decide` says what follows."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import NamedTuple

import msgspec

from remuda.errors import UnrecoverableError
from remuda.lake.whatif.delays import longest_delay, shortest_delay
from remuda.lake.whatif.survival import Curves, Evidence, Guess, Leaning, step_in_time
from remuda.lake.whatif.trails import (
    DEAD,
    DELIVERED,
    NO_END,
    Lived,
    Message,
    Record,
    Verdict,
    minutes_of,
)
from remuda.lifecycle import PRODUCER_REASONS, Reason, State
from remuda.retry import Dead, RetryPolicy, decide
from remuda.transition import from_ms, to_ms

# Ends of a delivery that no handler was given: not an attempt.
UNHEARD = frozenset({*PRODUCER_REASONS, Reason.MAX_DELIVERIES, Reason.EXPIRED})
# What a handler must have raised for a death that no policy is asked about.
_RAISED: Mapping[str, BaseException] = {
    Reason.UNRECOVERABLE: UnrecoverableError(),
    Reason.PANIC: SystemExit(),
}

MOST_ATTEMPTS = 200
_LONGEST = timedelta(days=3650)
_EARLIEST = timedelta(seconds=-1)  # a settlement is written a moment after it was decided, not more
_NOTHING = timedelta(0)
_UNUSED = random.Random(0)


class Model(StrEnum):
    """What an attempt that was never made like this goes by: its number, or its moment."""

    ATTEMPT = "attempt"
    TIME = "time"


class Went(IntEnum):
    """How a run went, from worst to best."""

    FINAL = 0  # dead whatever the policy
    FAILED = 1
    DONE = 2


class Run(NamedTuple):
    """One delivery as recorded.

    asked_at  when a worker was first given it, for this attempt; it may have been given back since
    waited    from the failure before it until a worker began; None for the first of a life
    """

    asked_at: datetime
    start: datetime
    took: timedelta
    went: Went
    reason: str | None
    waited: timedelta | None


class Plan(msgspec.Struct, frozen=True):
    """What is tried: the same for all jobs, and taken to Spark's workers.

    base  the policy that was in force, where it is known: how long a worker took beyond its delays is kept
    """

    policy: RetryPolicy
    model: Model
    seed: int
    curves: Curves
    base: RetryPolicy | None = None


def play_job(plan: Plan, job: Message) -> Verdict:
    """How a job fared, and how it would have."""
    lives = read_lives(job.records)
    recorded = _as_recorded(job, lives)
    tried, evidence = _try(plan, job, lives, Leaning.LIKELY)
    at_worst = at_best = tried.outcome == DELIVERED
    if evidence is not Evidence.RECORDED:
        at_worst = _try(plan, job, lives, Leaning.WORST)[0].outcome == DELIVERED
        at_best = _try(plan, job, lives, Leaning.BEST)[0].outcome == DELIVERED
    return Verdict(recorded, tried, evidence, at_worst, at_best)


def read_lives(records: Sequence[Record]) -> list[list[Run]]:
    """The runs of a job, in its first life and after each replay."""
    lives: list[list[Run]] = [[]]
    asked_at: datetime | None = None
    start: datetime | None = None
    failed_at: datetime | None = None
    for record in records:
        at = from_ms(record.at_ms)
        if record.entered == State.PROCESSING:
            start, asked_at = at, asked_at or at
        elif record.left == State.PROCESSING and record.entered != State.PENDING:
            waited = None if failed_at is None or start is None else start - failed_at
            lives[-1].append(_run(record, asked_at or at, start or at, at, waited))
            asked_at = start = None
            failed_at = at
        elif record.left == State.FAILED and record.entered == State.PENDING:
            lives.append([])
            asked_at = start = failed_at = None
    return lives


def _run(record: Record, asked_at: datetime, start: datetime, at: datetime, waited: timedelta | None) -> Run:
    if record.entered == State.COMPLETED:
        went = Went.DONE
    elif record.entered == State.RETRYABLE or record.reason == Reason.RETRIES_EXHAUSTED:
        went = Went.FAILED
    else:
        went = Went.FINAL
    return Run(asked_at, start, at - start, went, record.reason, waited)


def _was_heard(run: Run) -> bool:
    return run.went is not Went.FINAL or run.reason not in UNHEARD


def _as_recorded(job: Message, lives: list[list[Run]]) -> Lived:
    starts = [run.start for life in lives for run in life if _was_heard(run)]
    latency = job.latency_ms if job.outcome == DELIVERED else None
    # Not the history's: that of a dead letter which was dropped later tells of the dropping.
    reason = next((run.reason for life in reversed(lives) for run in reversed(life)), None)
    return Lived(job.outcome, reason, len(starts), job.retries, latency, minutes_of(starts))


def _try(plan: Plan, job: Message, lives: list[list[Run]], leaning: Leaning) -> tuple[Lived, Evidence]:
    seed = f"{plan.seed}/{job.queue}/{job.message}"
    guess = Guess(plan.curves, job.queue, job.name, seed, leaning)
    # Seeding takes longer than most jobs; without jitter nobody draws.
    rng = random.Random(seed) if plan.policy.jitter else _UNUSED
    attempt = _Try(plan, lives, guess, rng)
    lived = attempt.live()
    ended, outcome = attempt.ended, DELIVERED if lived is None else DEAD
    latency = to_ms(ended) - job.added_ms if lived is None and ended is not None else None
    counted = Lived(outcome, lived, len(attempt.starts), attempt.retries, latency, minutes_of(attempt.starts))
    return counted, guess.evidence


class _Try:
    """One job under one policy."""

    def __init__(self, plan: Plan, lives: list[list[Run]], guess: Guess, rng: random.Random) -> None:
        self._plan, self._lives, self._guess, self._rng = plan, lives, guess, rng
        self._world = _World(lives, guess) if plan.model is Model.TIME else None
        self.starts: list[datetime] = []
        self.retries = 0
        self.ended: datetime | None = None

    def live(self) -> str | None:
        """None when it is delivered, else why it is dead. A replay comes when it came, if it is dead then."""
        reason: str | None = NO_END
        for life in self._lives:
            if not life or (self.ended is not None and life[0].asked_at < self.ended):
                break
            reason = self._live_once(life)
            if reason is None:
                break
        return reason

    def _live_once(self, life: list[Run]) -> str | None:
        policy, first = self._plan.policy, life[0].start
        start = first
        for attempts in range(1, MOST_ATTEMPTS + 1):
            run = self._goes(life, attempts, start)
            if _was_heard(run):
                self.starts.append(start)
            self.ended = now = start + run.took
            if run.went is Went.DONE:
                return None
            error = _RAISED.get(run.reason or "") if run.went is Went.FINAL else None
            if run.went is Went.FINAL and error is None:
                return run.reason
            decision = decide(
                policy, attempts=attempts, first_attempt_at=first, now=now, error=error, rng=self._rng
            )
            if isinstance(decision, Dead):
                return decision.reason.value
            self.retries += 1
            start = max(now, decision.at + self._lag(life, attempts))
            if start - first > _LONGEST:
                break
        return NO_END

    def _goes(self, life: list[Run], number: int, start: datetime) -> Run:
        if self._world is not None:
            return self._world.run_at(start)
        if number <= len(life):
            return life[number - 1]
        return _guessed(life[-1], self._guess.delivers(number))

    def _lag(self, life: list[Run], attempts: int) -> timedelta:
        """How much later than it was due the next attempt began."""
        if attempts >= len(life):
            return _NOTHING
        run = life[attempts]
        if self._plan.base is None or run.waited is None:
            return run.start - run.asked_at
        shortest = shortest_delay(self._plan.base, attempts)
        longest = longest_delay(self._plan.base, attempts)
        if run.waited > longest:
            return run.waited - longest
        return max(_EARLIEST, min(_NOTHING, run.waited - shortest))


class _World:
    """Whether the job would have succeeded at a moment, from when it did and when it did not.

    Between two runs that went differently it is as the nearer one; a success or a final failure lasts.
    """

    def __init__(self, lives: list[list[Run]], guess: Guess) -> None:
        self._runs = sorted((run for life in lives for run in life), key=lambda run: run.start)
        self._starts = [run.start for run in self._runs]
        self._guess = guess
        self._step = self._step_at(self._starts[-1]) if self._runs else 0

    def run_at(self, moment: datetime) -> Run:
        place = bisect_right(self._starts, moment)
        before = self._runs[max(0, place - 1)]
        if place < len(self._runs):
            return self._between(before, self._runs[place], moment)
        if before.went is not Went.FAILED:
            return before
        return self._beyond(before, self._step_at(moment))

    def _step_at(self, moment: datetime) -> int:
        return step_in_time(moment - self._runs[0].asked_at)

    def _beyond(self, last: Run, step: int) -> Run:
        """After the last one, which failed. One chance for each doubling of the time, however many tries."""
        if step > self._step:
            self._step = step
            return _guessed(last, self._guess.delivers(step))
        self._guess.rests_on(Evidence.ESTIMATED)
        return _guessed(last, self._guess.leaning is Leaning.BEST)

    def _between(self, before: Run, after: Run, moment: datetime) -> Run:
        if before.went is after.went or before.start == moment:
            return before
        self._guess.rests_on(Evidence.BETWEEN)
        if self._guess.leaning is Leaning.WORST:
            return min(before, after, key=lambda run: run.went)
        if self._guess.leaning is Leaning.BEST:
            return max(before, after, key=lambda run: run.went)
        return before if moment - before.start < after.start - moment else after


def _guessed(like: Run, is_delivered: bool) -> Run:
    """A run that was never made; it takes as long as the last one that was."""
    return like._replace(went=Went.DONE if is_delivered else Went.FAILED, reason=None)
