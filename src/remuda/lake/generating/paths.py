"""What may become of a message, step by step: a path, written down as it is walked."""

from __future__ import annotations

from typing import NamedTuple, Self

from remuda.lifecycle import CommandStatus, State

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR


class Wait(NamedTuple):
    """How long a state lasts: `fixed`, plus up to `spread`, plus an exponential time of that `mean` (ms)."""

    fixed: int = 0
    spread: int = 0
    mean: int = 0


def about(mean: int) -> Wait:
    """Mostly short, now and then long; never nothing."""
    return Wait(fixed=1, mean=mean)


def between(least: int, most: int) -> Wait:
    """Any time from `least` to `most`."""
    return Wait(fixed=least, spread=most - least)


def backoff(attempts: int, *, initial: int, cap: int = HOUR) -> Wait:
    """A retry policy's delay after so many attempts: doubled each time, plus up to half of it."""
    delay = min(cap, initial << (attempts - 1))
    return between(delay, delay + delay // 2)


class Step(NamedTuple):
    """One record of a path. `turn` numbers the hand-overs: one worker does all of one.

    The rest is for faults: `mark` names the anomaly that this record shows, `lost` ones have a number but are
    not written, `twice` ones are written twice, and `behind` is how far (ms) the clock has been set back.
    """

    left: str | None
    entered: str
    wait: Wait
    attempt: int
    reason: str | None
    who: str
    turn: int
    mark: str | None = None
    lost: bool = False
    twice: bool = False
    behind: int = 0


class Path(NamedTuple):
    """The steps of a message from its adding on, and when that is, unless it may be at any time.

    late    so shortly (ms) before the end
    within  in that part of the whole time: (0.1, 0.6) is between a tenth and six tenths of it
    """

    steps: tuple[Step, ...]
    late: int = 0
    within: tuple[float, float] | None = None


class Walk:
    """A path in the making: the state, attempts and hand-overs so far."""

    def __init__(self, entered: State | CommandStatus, *, who: str) -> None:
        self.steps = [Step(None, entered.value, Wait(), 0, None, who, 0)]
        self.attempt = 0
        self.turn = 0

    def to(
        self,
        entered: State | CommandStatus,
        wait: Wait,
        *,
        reason: str | None = None,
        who: str = "worker",
        left: State | CommandStatus | None = None,
    ) -> Self:
        """Go on to a state after a wait; `left` only where the record is to tell something else."""
        was = self.steps[-1].entered if left is None else left.value
        self.steps.append(Step(was, entered.value, wait, self.attempt, reason, who, self.turn))
        return self

    def path(self, *, late: int = 0, within: tuple[float, float] | None = None) -> Path:
        return Path(tuple(self.steps), late, within)


class JobWalk(Walk):
    """The path of a job, in the engine's own words."""

    def __init__(self, wait: Wait | None = None) -> None:
        super().__init__(State.PENDING, who="client")
        self.first_wait = wait or about(400)

    def fetched(self, wait: Wait | None = None) -> Self:
        self.turn += 1
        usual = self.first_wait if len(self.steps) == 1 else about(400)
        return self.to(State.PROCESSING, wait or usual)

    def completed(self) -> Self:
        self.attempt += 1
        return self.to(State.COMPLETED, about(800))

    def retried(self, *, initial: int = 2 * SECOND) -> Self:
        """An attempt fails; the next one begins after its backoff."""
        self.attempt += 1
        self.to(State.RETRYABLE, about(1_200))
        return self.fetched(backoff(self.attempt, initial=initial))

    def died(self, reason: str, *, ran: bool = True) -> Self:
        self.attempt += ran
        return self.to(State.FAILED, about(1_200) if ran else about(3), reason=reason)

    def given_back(self, reason: str, wait: Wait) -> Self:
        return self.to(State.PENDING, wait, reason=reason)

    def recovered(self) -> Self:
        """Its worker died; another one found it."""
        self.turn += 1
        return self.given_back("lease_expired", between(60 * SECOND, 72 * SECOND))

    def replayed(self) -> Self:
        self.attempt = 0
        return self.to(State.PENDING, between(20 * MINUTE, 9 * HOUR), reason="replay", who="cli")

    def removed(self, reason: str, wait: Wait, *, who: str = "cli") -> Self:
        return self.to(State.REMOVED, wait, reason=reason, who=who)


class CommandWalk(Walk):
    """The path of a command, in the engine's own words."""

    def __init__(self) -> None:
        super().__init__(CommandStatus.QUEUED, who="sender")

    def then(self, entered: CommandStatus, wait: Wait, reason: str | None = None) -> Self:
        return self.to(entered, wait, reason=reason, who="engine")

    def sent(self, reason: str | None = None) -> Self:
        # The attempt that begins here is counted from the next record on.
        self.turn += 1
        self.then(CommandStatus.SENT_TO_NS, about(1_800), reason)
        self.attempt += 1
        return self

    def accepted(self) -> Self:
        return self.sent().then(CommandStatus.DELIVERED_TO_NS, about(150))

    def transmitted(self) -> Self:
        return self.accepted().then(CommandStatus.SENT_TO_DEVICE, about(2_500))

    def answered(self, wait: Wait | None = None, reason: str | None = None) -> Self:
        return self.then(CommandStatus.DELIVERY_SUCCESSFUL, wait or about(1_500), reason)

    def retried(self, reason: str, wait: Wait) -> Self:
        """An attempt fails; it is back in its lane after its backoff."""
        self.then(CommandStatus.TO_RETRY, wait, reason)
        return self.then(CommandStatus.QUEUED, backoff(self.attempt, initial=2 * SECOND))

    def failed(self, reason: str, wait: Wait) -> Self:
        return self.then(CommandStatus.DELIVERY_FAILED, wait, reason)

    def stopped_by(self, reason: str, wait: Wait, who: str) -> Self:
        """A person or program ends it while it waits."""
        return self.to(CommandStatus.DELIVERY_FAILED, wait, reason=reason, who=who)

    def replayed(self) -> Self:
        return self.to(CommandStatus.QUEUED, between(20 * MINUTE, 9 * HOUR), reason="replayed", who="cli")
