"""What a report is made from: small aggregates, as plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from math import sqrt

import msgspec

from remuda.lake.buckets import quantile

Histogram = Mapping[int, int]  # see `remuda.lake.buckets`
Z = 1.959964  # standard deviations on either side hold 95 %


class Period(msgspec.Struct, frozen=True):
    """The time that the report is about, in whole steps of its plots over time."""

    since: datetime
    until: datetime
    step: timedelta

    @property
    def steps(self) -> int:
        return max(1, -(-(self.until - self.since) // self.step))


class QueueCounts(msgspec.Struct, frozen=True, kw_only=True):
    """One queue, or one fleet: what became of its messages in the period, and how many live at its end."""

    source: str
    queue: str
    kind: str
    added: int = 0
    delivered: int = 0
    dead: int = 0
    removed: int = 0
    live: int = 0
    retries: int = 0
    delivered_at_attempt: Mapping[int, int] = {}

    @property
    def settled(self) -> int:
        """Those whose delivery was decided, one way or the other."""
        return self.delivered + self.dead


class StepCounts(msgspec.Struct, frozen=True):
    """One step of time."""

    at: datetime
    added: int = 0
    delivered: int = 0
    dead: int = 0
    removed: int = 0


class StepLatencies(msgspec.Struct, frozen=True):
    """How long those took that were delivered in one step; `kind` is `job` or `command`."""

    kind: str
    at: datetime
    histogram: Histogram


class StageTimes(msgspec.Struct, frozen=True):
    """The time that messages spent in one stage."""

    stage: str
    histogram: Histogram


class Move(msgspec.Struct, frozen=True):
    """One move of the lifecycle, and how often it was made."""

    left: str | None
    entered: str
    count: int
    mean_dwell_ms: float | None = None


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same fault among the dead letters. `trend` are its deaths in equal parts of the period."""

    fingerprint: str
    fault: str
    count: int
    first: datetime
    last: datetime
    reasons: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    trend: tuple[int, ...] = ()


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """One gateway, lane or queue, by what became of its messages."""

    source: str
    queue: str
    key: str
    delivered: int
    dead: int

    @property
    def rate(self) -> float:
        return self.delivered / max(1, self.delivered + self.dead)


class Ranking(msgspec.Struct, frozen=True):
    """The worst of a dimension (`gateway`, `lane` or `queue`), and how many there are in all."""

    dimension: str
    worst: tuple[Ranked, ...]
    of: int


class Slow(msgspec.Struct, frozen=True, kw_only=True):
    """One of the slowest. `what` is `device` or `name`."""

    what: str
    source: str
    queue: str
    key: str
    delivered: int
    p50_ms: int
    p90_ms: int
    max_ms: int


class AnomalyKind(msgspec.Struct, frozen=True):
    """How often one kind of anomaly was found."""

    kind: str
    count: int
    first: datetime | None
    last: datetime | None


class AnomalyExample(msgspec.Struct, frozen=True, kw_only=True):
    """One anomaly."""

    kind: str
    source: str
    queue: str
    message: str | None
    seq: int | None
    at: datetime | None
    detail: str | None


class ReportData(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on the page. `period` is None where the lake has nothing for what was asked."""

    since: datetime | None = None
    until: datetime | None = None
    queue: str | None = None
    period: Period | None = None
    queues: tuple[QueueCounts, ...] = ()
    steps: tuple[StepCounts, ...] = ()
    latencies: tuple[StepLatencies, ...] = ()
    stages: tuple[StageTimes, ...] = ()
    moves: tuple[Move, ...] = ()
    deaths: int = 0
    faults: tuple[Fault, ...] = ()
    fault_kinds: int = 0
    ranking: Ranking | None = None
    slowest: tuple[Slow, ...] = ()
    anomalies: tuple[AnomalyKind, ...] = ()
    examples: tuple[AnomalyExample, ...] = ()

    def total(self, what: str) -> int:
        """The sum of one of the counts (`added`, `delivered`, `retries` …) over all queues."""
        return sum(getattr(queue, what) for queue in self.queues)

    @property
    def delivery_rate(self) -> float | None:
        """Delivered / (delivered + dead); None where none of both ended."""
        return share_of(self.total("delivered"), self.total("settled"))

    @property
    def retries_per_message(self) -> float | None:
        return share_of(self.total("retries"), self.total("settled") + self.total("removed"))

    @property
    def kinds(self) -> tuple[str, ...]:
        """`job`, `command`: those of which there are any."""
        there = {queue.kind for queue in self.queues} | {step.kind for step in self.latencies}
        return tuple(kind for kind in ("job", "command") if kind in there)

    def latency(self, kind: str, share: float) -> int | None:
        """A quantile of the time from adding to delivery, of all jobs or of all commands."""
        return quantile(added_up(step.histogram for step in self.latencies if step.kind == kind), share)


def share_of(part: int, whole: int) -> float | None:
    """`part / whole`; None where there is no whole."""
    return part / whole if whole else None


def added_up(histograms: Iterable[Histogram]) -> Histogram:
    """The histogram of all of them together."""
    total: Counter[int] = Counter()
    for histogram in histograms:
        total.update(histogram)
    return total


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a rate: where it may truly lie, given that few trials say little."""
    if trials <= 0:
        return 0.0, 1.0
    rate, spread = successes / trials, Z * Z / trials
    middle = rate + spread / 2
    half = Z * sqrt(rate * (1 - rate) / trials + spread / (4 * trials))
    low, high = (middle - half) / (1 + spread), (middle + half) / (1 + spread)
    # Exactly so by the formula, but not always in floating point.
    return (0.0 if successes == 0 else max(0.0, low)), (1.0 if successes == trials else min(1.0, high))
