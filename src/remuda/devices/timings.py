"""Every deadline of a command's life, with its default and its name."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from remuda.errors import ConfigurationError
from remuda.retry import Exponential

_DEFAULT_RETRY = Exponential(
    initial=timedelta(seconds=2), cap=timedelta(hours=1), jitter=0.5, max_attempts=12
)
# (younger than, look again after); the last one has no end.
_DEFAULT_POLLS = (
    (timedelta(seconds=20), timedelta(seconds=10)),
    (timedelta(seconds=50), timedelta(seconds=15)),
    (timedelta(seconds=90), timedelta(seconds=20)),
    (timedelta.max, timedelta(seconds=30)),
)


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """How long each stage may take, and how often the engine looks.

    accept       the network server accepts a command, or it is retried
    gateway      push: the gateway transmits it; extended while the network server still holds it
    held_for     push: … but not for ever: a device that never listens is given up after this
    device       push: the device answers after the tx-ack
    correlation  push: an ACK and its uplink come within this of each other
    max_age      pull: no result within this is a permanent failure
    polls        pull: how long after a task was accepted it is asked for how often
    sweep        how often the poller looks for tasks to ask for
    reap         how often the reaper looks for deadlines that have passed
    lock         push: a lane rests this long after each command (the flood-prevention lock)
    per_gateway  pull: commands of one gateway at once
    slot_for     pull: a command that has no result for so long no longer counts as one of them
    retry        11 retries: 2 s, doubled each time, at most 1 h, plus up to half of it
    call         a call to a network server has ended, one way or the other, within this
    look_again   a question that the network server did not answer is repeated after this
    late_result  a single-use token that no read can settle waits so long for a late result
    unmatched    a signal that fits no command waits so long for one (its accept may be slow)
    remember     a signal that comes again within this is not looked at again
    keep_ended   ended commands are kept so long, to be shown and replayed
    """

    accept: timedelta = timedelta(seconds=20)
    gateway: timedelta = timedelta(minutes=15)
    held_for: timedelta = timedelta(days=7)
    device: timedelta = timedelta(seconds=12)
    correlation: timedelta = timedelta(seconds=10)
    max_age: timedelta = timedelta(hours=48)
    polls: tuple[tuple[timedelta, timedelta], ...] = _DEFAULT_POLLS
    sweep: timedelta = timedelta(seconds=5)
    reap: timedelta = timedelta(seconds=2)
    lock: timedelta = timedelta(seconds=2)
    per_gateway: int = 5
    slot_for: timedelta = timedelta(minutes=10)
    retry: Exponential = _DEFAULT_RETRY
    call: timedelta = timedelta(seconds=60)
    look_again: timedelta = timedelta(seconds=30)
    late_result: timedelta = timedelta(minutes=15)
    unmatched: timedelta = timedelta(minutes=2)
    remember: timedelta = timedelta(hours=1)
    keep_ended: timedelta = timedelta(days=7)

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if isinstance(value, timedelta) and value <= timedelta(0) and field not in ("lock", "keep_ended"):
                raise ConfigurationError(f"{field} must be longer than nothing, not {value}")
        if self.per_gateway < 1:
            raise ConfigurationError(f"per_gateway must be at least 1, not {self.per_gateway}")
        if not self.polls or any(wait <= timedelta(0) for _, wait in self.polls):
            raise ConfigurationError(f"polls must be pairs of an age and a delay, not {self.polls!r}")
        if self.call < self.accept:
            raise ConfigurationError(
                f"call ({self.call}) must not be shorter than accept ({self.accept}): a call that still runs "
                "when its command is given up would not be waited for"
            )

    def poll_delay(self, age: timedelta) -> timedelta:
        """How long after a poll the next one comes, for a task of this age."""
        for younger_than, delay in self.polls:
            if age < younger_than:
                return delay
        return self.polls[-1][1]
