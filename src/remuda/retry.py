"""Retry policies, and the one decision they serve: again at T, or dead because R.

A policy is a value: it can be compared, stored with a job (as a per-job override) and run inside
the data pipeline. Nothing here looks at a clock or a global random source.
"""

from __future__ import annotations

import random
from asyncio import CancelledError
from collections.abc import Callable
from datetime import datetime, timedelta
from math import inf
from typing import TypeAlias

import msgspec

from remuda.errors import ConfigurationError, DecodeError, JobCancelledError, UnrecoverableError
from remuda.lifecycle import Reason

_LONGEST = timedelta(days=3650)  # what an unbounded exponential comes to rest at


class _Policy(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """What every policy has.

    max_attempts     handler runs in all, the first one included; None: no limit
    max_total_delay  no attempt starts later than this after the first one; None: no limit
    cap              no single delay is longer (before jitter); None: no limit
    jitter           a share, such as 0.5: up to half of the delay is added;
                     or a timedelta: up to that much is added or taken away
    """

    max_attempts: int | None = None
    max_total_delay: timedelta | None = None
    cap: timedelta | None = None
    jitter: float | timedelta = 0.0

    def __post_init__(self) -> None:
        if self.max_attempts is not None and self.max_attempts < 1:
            raise ConfigurationError(f"max_attempts must be at least 1, not {self.max_attempts}")
        for name in ("max_total_delay", "cap"):
            value = getattr(self, name)
            if value is not None and value < timedelta(0):
                raise ConfigurationError(f"{name} must not be negative, not {value}")
        if isinstance(self.jitter, timedelta):
            if self.jitter < timedelta(0):
                raise ConfigurationError(f"jitter must not be negative, not {self.jitter}")
        elif not 0.0 <= self.jitter <= 10.0:
            raise ConfigurationError(f"jitter as a share must be between 0 and 10, not {self.jitter}")

    def base_delay(self, attempts: int) -> timedelta:
        """The delay after `attempts` handler runs, before cap and jitter."""
        raise NotImplementedError

    def delay(self, attempts: int, rng: random.Random) -> timedelta:
        """The delay after `attempts` handler runs; never negative."""
        delay = self.base_delay(attempts)
        if self.cap is not None:
            delay = min(delay, self.cap)
        if isinstance(self.jitter, timedelta):
            delay += self.jitter * rng.uniform(-1.0, 1.0)
        elif self.jitter:
            delay += delay * rng.uniform(0.0, self.jitter)
        return max(delay, timedelta(0))


def _require_not_negative(**delays: timedelta) -> None:
    for name, value in delays.items():
        if value < timedelta(0):
            raise ConfigurationError(f"{name} must not be negative, not {value}")


class Constant(_Policy, frozen=True, kw_only=True, tag="constant"):
    """The same delay every time."""

    every: timedelta

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_not_negative(every=self.every)

    def base_delay(self, attempts: int) -> timedelta:
        return self.every


class Linear(_Policy, frozen=True, kw_only=True, tag="linear"):
    """`initial`, then `step` more each time."""

    initial: timedelta
    step: timedelta

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_not_negative(initial=self.initial, step=self.step)

    def base_delay(self, attempts: int) -> timedelta:
        try:
            return min(self.initial + self.step * (attempts - 1), _LONGEST)
        except OverflowError:
            return _LONGEST


class Exponential(_Policy, frozen=True, kw_only=True, tag="exponential"):
    """`initial`, then `multiplier` times as long each time.

    >>> policy = Exponential(initial=timedelta(seconds=2), cap=timedelta(hours=1), jitter=0.5)
    """

    initial: timedelta = timedelta(seconds=1)
    multiplier: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_not_negative(initial=self.initial)
        if not 1.0 <= self.multiplier < inf:
            raise ConfigurationError(f"multiplier must be at least 1, not {self.multiplier}")

    def base_delay(self, attempts: int) -> timedelta:
        if not self.initial:
            return self.initial
        try:
            return min(self.initial * (self.multiplier ** (attempts - 1)), _LONGEST)
        except OverflowError:
            return _LONGEST


class NoRetry(_Policy, frozen=True, kw_only=True, tag="none"):
    """One attempt, no more."""

    max_attempts: int | None = 1

    def base_delay(self, attempts: int) -> timedelta:
        return timedelta(0)


RetryPolicy: TypeAlias = Constant | Linear | Exponential | NoRetry

# Called with the number of handler runs so far and the error; None means no further attempt.
RetryCallable: TypeAlias = Callable[[int, BaseException | None], timedelta | None]

DEFAULT_RETRY = Exponential(
    initial=timedelta(seconds=1), cap=timedelta(minutes=10), jitter=0.25, max_attempts=10
)


class Again(msgspec.Struct, frozen=True):
    """Another attempt, not before `at`."""

    at: datetime


class Dead(msgspec.Struct, frozen=True):
    """No further attempt, and why."""

    reason: Reason


def final_reason(error: BaseException | None) -> Reason | None:
    """The reason of an error after which no policy is asked; None for every other error."""
    if isinstance(error, UnrecoverableError):
        return Reason.UNRECOVERABLE
    if isinstance(error, JobCancelledError):
        return Reason.CANCELLED
    if error is None or isinstance(error, Exception | CancelledError):
        return None
    return Reason.PANIC


def decide(
    policy: RetryPolicy | RetryCallable,
    *,
    attempts: int,
    first_attempt_at: datetime,
    now: datetime,
    error: BaseException | None,
    rng: random.Random,
    asked_delay: timedelta | None = None,
) -> Again | Dead:
    """What becomes of a job whose handler failed or nacked it, after `attempts` runs.

    `UnrecoverableError` beats every policy. `asked_delay` (a nack with a delay of the handler's
    choosing) replaces the policy's delay, not its limits.
    """
    final = final_reason(error)
    if final is not None:
        return Dead(final)
    if not isinstance(policy, _Policy):
        chosen = policy(attempts, error)
        if chosen is None:
            return Dead(Reason.RETRIES_EXHAUSTED)
        return Again(now + max(timedelta(0), chosen if asked_delay is None else asked_delay))
    if policy.max_attempts is not None and attempts >= policy.max_attempts:
        return Dead(Reason.RETRIES_EXHAUSTED)
    delay = policy.delay(attempts, rng) if asked_delay is None else max(timedelta(0), asked_delay)
    at = now + delay
    if policy.max_total_delay is not None and at - first_attempt_at > policy.max_total_delay:
        return Dead(Reason.RETRIES_EXHAUSTED)
    return Again(at)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(RetryPolicy)


def pack_policy(policy: RetryPolicy) -> bytes:
    """The stored form of a per-job override."""
    return _encoder.encode(policy)


def unpack_policy(packed: bytes) -> RetryPolicy:
    """The override that `pack_policy` wrote; `DecodeError` for anything else."""
    try:
        policy: RetryPolicy = _decoder.decode(packed)
        return policy
    except (msgspec.DecodeError, ConfigurationError) as error:
        raise DecodeError(f"the stored retry override is not readable: {error}") from error
