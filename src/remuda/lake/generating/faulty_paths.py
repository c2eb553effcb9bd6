"""Faults to plant, and the paths of the messages that show them: each path shows one, in one record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from remuda.errors import ConfigurationError
from remuda.lake.generating.paths import SECOND, CommandWalk, JobWalk, Path, Step, Wait, Walk, about, between
from remuda.lifecycle import CommandStatus, EndReason, Reason, State

MOST_LOST = 50
_CLOCK_BACK = 120 * SECOND
_MIDDLE = (0.1, 0.6)  # all that follows is over before the end
_BEGINNING = (0.0, 0.01)

W = TypeVar("W", bound=Walk)


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """How many of each kind to plant, each in a message of its own.

    illegal_move     a move that the lifecycle does not know
    after_end        a record that leaves an end
    broken_chain     a legal move out of a state that the message was not in
    clock_backwards  a record two minutes before the one that it follows
    duplicate        a record that stands twice
    gap              a hole in a trail's numbers, of `lost` records each
    stopped          a message that stays with a worker or on its way for ever
    """

    illegal_move: int = 0
    after_end: int = 0
    broken_chain: int = 0
    clock_backwards: int = 0
    duplicate: int = 0
    gap: int = 0
    stopped: int = 0
    lost: int = 3

    def __post_init__(self) -> None:
        for kind, count in self.counts.items():
            if count < 0:
                raise ConfigurationError(f"faults of kind {kind} must be 0 or more, not {count}")
        if not 1 <= self.lost <= MOST_LOST:
            raise ConfigurationError(f"a gap may lose 1 to {MOST_LOST} records, not {self.lost}")

    @property
    def counts(self) -> dict[str, int]:
        """How many of each kind, by the name of the anomaly."""
        return {kind: getattr(self, kind) for kind in FAULTY}

    @property
    def total(self) -> int:
        return sum(self.counts.values())


NO_FAULTS: Faults


class Variants(NamedTuple):
    """The paths that show a fault: of a job, of a pushed command, of a pulled one; used in turn."""

    job: tuple[Path, ...]
    push: tuple[Path, ...]
    pull: tuple[Path, ...]


def _showing(mark: str, walk: W, **values: object) -> W:
    """The walk, whose last record shows this anomaly (and is otherwise changed like this)."""
    walk.steps[-1] = walk.steps[-1]._replace(mark=mark, **values)  # type: ignore[arg-type]  # fields of Step
    return walk


def _middle(*walks: Walk) -> tuple[Path, ...]:
    return tuple(walk.path(within=_MIDDLE) for walk in walks)


def _variants(jobs: tuple[Walk, ...], commands: tuple[Walk, ...]) -> Variants:
    return Variants(_middle(*jobs), _middle(*commands), _middle(*commands))


def _illegal_move(_: Faults) -> Variants:
    mark = "illegal_move"
    unfetched = _showing(mark, JobWalk().to(State.COMPLETED, about(800)))
    purged = _showing(mark, JobWalk().fetched().to(State.REMOVED, about(500), reason="purged"))
    unsent = _showing(mark, CommandWalk().then(CommandStatus.SENT_TO_DEVICE, about(SECOND)))
    retried = CommandWalk().sent().then(CommandStatus.TO_RETRY, about(200), "call_failed")
    unqueued = _showing(mark, retried.sent()).then(CommandStatus.DELIVERED_TO_NS, about(150))
    return _variants((unfetched, purged), (unsent.answered(), unqueued.answered()))


def _after_end(_: Faults) -> Variants:
    mark = "after_end"
    done = _showing(mark, JobWalk().fetched().completed().fetched(about(5 * SECOND))).completed()
    died = JobWalk().fetched().died(Reason.REJECTED).fetched(about(5 * SECOND))
    died = _showing(mark, died).died(Reason.REJECTED)
    late = CommandWalk().transmitted().answered().then(CommandStatus.SENT_TO_DEVICE, about(SECOND))
    failed = CommandWalk().sent().failed(EndReason.BAD_TOKEN, about(200)).sent()
    failed = _showing(mark, failed).failed(EndReason.BAD_TOKEN, about(200))
    return _variants((done, died), (_showing(mark, late).answered(), failed))


def _broken_chain(_: Faults) -> Variants:
    mark = "broken_chain"
    failed = JobWalk().fetched()
    failed.attempt += 1
    failed.to(State.RETRYABLE, about(SECOND))
    acked = _showing(mark, failed.to(State.COMPLETED, about(4 * SECOND), left=State.PROCESSING))
    again = JobWalk().to(State.PROCESSING, about(SECOND), left=State.RETRYABLE)
    held = CommandWalk().accepted()
    held.to(CommandStatus.QUEUED, about(4 * SECOND), who="engine", left=CommandStatus.TO_RETRY)
    waiting = CommandWalk().to(
        CommandStatus.DELIVERED_TO_NS, about(SECOND), who="engine", left=CommandStatus.SENT_TO_NS
    )
    return _variants(
        (acked, _showing(mark, again).completed()),
        (_showing(mark, held).accepted().answered(), _showing(mark, waiting).answered()),
    )


def _clock_backwards(_: Faults) -> Variants:
    mark = "clock_backwards"
    soon = between(SECOND, 2 * SECOND)
    back = {"wait": soon, "behind": _CLOCK_BACK}
    at_end = _showing(mark, JobWalk().fetched().completed(), **back)
    midway = _from_here_on(_showing(mark, JobWalk().fetched(), **back).retried().completed())
    command = _showing(mark, CommandWalk().accepted(), **back).then(
        CommandStatus.SENT_TO_DEVICE, about(2_500)
    )
    return _variants((at_end, midway), (_from_here_on(command.answered()),))


def _from_here_on(walk: W) -> W:
    """A clock that was set back stays back."""
    behind = 0
    for place, step in enumerate(walk.steps):
        behind = max(behind, step.behind)
        walk.steps[place] = step._replace(behind=behind)
    return walk


def _duplicate(_: Faults) -> Variants:
    mark, twice = "duplicate", {"twice": True}
    return _variants(
        (
            _showing(mark, JobWalk().fetched().completed(), **twice),
            _showing(mark, JobWalk().fetched(), **twice).completed(),
        ),
        (_showing(mark, CommandWalk().accepted(), **twice).answered(),),
    )


def _gap(faults: Faults) -> Variants:
    """Numbers that no record has, between two records of one message: holes never touch, nor end a trail."""
    return _variants(
        (_with_hole(JobWalk().fetched(), faults.lost).completed(),),
        (_with_hole(CommandWalk().accepted(), faults.lost).answered(),),
    )


def _with_hole(walk: W, lost: int) -> W:
    last = walk.steps[-1]
    hole = Step(last.entered, last.entered, Wait(), 0, None, last.who, last.turn, lost=True)
    walk.steps += [hole._replace(mark="gap"), *[hole] * (lost - 1)]
    return walk


def _stopped(_: Faults) -> Variants:
    """Long ago, so that they have stayed for longer than anything may."""
    mark = "stopped"

    def paths(*walks: Walk) -> tuple[Path, ...]:
        return tuple(_showing(mark, walk).path(within=_BEGINNING) for walk in walks)

    return Variants(
        job=paths(JobWalk().fetched(), JobWalk().fetched().retried()),
        push=paths(CommandWalk().sent(), CommandWalk().transmitted()),
        pull=paths(CommandWalk().accepted(), CommandWalk().sent()),
    )


FAULTY: Mapping[str, Callable[[Faults], Variants]] = {
    "illegal_move": _illegal_move,
    "after_end": _after_end,
    "broken_chain": _broken_chain,
    "clock_backwards": _clock_backwards,
    "duplicate": _duplicate,
    "gap": _gap,
    "stopped": _stopped,
}
NO_FAULTS = Faults()
