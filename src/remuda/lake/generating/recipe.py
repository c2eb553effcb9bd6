"""What was asked for: the trails, the time, the faults; and how many messages that takes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cached_property
from math import ceil
from typing import NamedTuple

import msgspec

from remuda.errors import ConfigurationError
from remuda.lake.generating.command_paths import bad_gateway_paths, outage_paths, pull_paths, push_paths
from remuda.lake.generating.faulty_paths import FAULTY, NO_FAULTS, Faults
from remuda.lake.generating.job_paths import job_paths
from remuda.lake.generating.paths import Path
from remuda.stores.command_trail import trail_name
from remuda.transition import to_ms

QUEUES = ("emails", "payments", "reports", "housekeeping")
FLEETS = ("north", "south")

# What a message meets: the tables of paths that it is drawn from, in the order of their numbers.
JOB, PUSH, BAD_GATEWAY, PULL, OUTAGE = range(5)

GATEWAYS = 8  # of each fleet
PULL_GATEWAYS = (6, 7)  # the others push
BAD_GATEWAYS = (3,)
DEVICES = 240  # of each fleet

_JOBS_TO_COMMANDS = (3, 2)
_FLEET_SHARES = {
    PUSH: (GATEWAYS - len(PULL_GATEWAYS) - len(BAD_GATEWAYS)) / GATEWAYS,
    BAD_GATEWAY: len(BAD_GATEWAYS) / GATEWAYS,
    PULL: len(PULL_GATEWAYS) / GATEWAYS,
}
_SHORTEST_FOR_STOPPED = timedelta(days=4)
_PER_BLOCK = 100_000
_PER_PARTITION = 1_000_000


class Fault(NamedTuple):
    """A fault that is planted in a message: the numbers of its paths, by what the message is."""

    number: int
    job: int
    push: int
    pull: int


class Recipe(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The wish for transitions (see `remuda.lake.generate.Wish`), checked."""

    transitions: int
    start: datetime
    span: timedelta
    seed: int = 0
    queues: Sequence[str] = QUEUES
    fleets: Sequence[str] = FLEETS
    faults: Faults = NO_FAULTS
    partitions: int | None = None
    source: str = "generated"
    batch: int = 1

    def __post_init__(self) -> None:
        if self.transitions < 1:
            raise ConfigurationError(f"transitions must be at least 1, not {self.transitions}")
        if not self.queues and not self.fleets:
            raise ConfigurationError("name at least one queue or fleet to make transitions for")
        if len(set(self.trails)) < len(self.trails):
            raise ConfigurationError(f"queues and fleets must differ in name: {', '.join(self.trails)}")
        if self.start.tzinfo is None:
            raise ConfigurationError(f"start must have a time zone, and {self.start} has none")
        if self.span < timedelta(minutes=1):
            raise ConfigurationError(f"span must be at least a minute, not {self.span}")
        if self.partitions is not None and self.partitions < 1:
            raise ConfigurationError(f"partitions must be at least 1, not {self.partitions}")
        if self.faults.stopped and self.span < _SHORTEST_FOR_STOPPED:
            raise ConfigurationError(
                f"messages that stopped need a span of {_SHORTEST_FOR_STOPPED.days} days to be told from "
                f"those that are on their way, not {self.span}"
            )
        if self.faults.total > self.messages:
            raise ConfigurationError(
                f"{self.faults.total:,} faults do not fit into {self.messages:,} messages: ask for more "
                "transitions or for fewer faults"
            )

    # -- where and when

    @property
    def trails(self) -> tuple[str, ...]:
        """The `queue` of each trail: queues first."""
        return (*self.queues, *(trail_name(fleet) for fleet in self.fleets))

    @cached_property
    def shares(self) -> list[float]:
        """How much of all messages each trail has: the first of its kind the most."""
        jobs, commands = _JOBS_TO_COMMANDS
        return [
            *_falling(len(self.queues), jobs / (jobs + commands) if self.fleets else 1.0),
            *_falling(len(self.fleets), commands / (jobs + commands) if self.queues else 1.0),
        ]

    @property
    def start_ms(self) -> int:
        return to_ms(self.start)

    @property
    def span_ms(self) -> int:
        return self.span // timedelta(milliseconds=1)

    @property
    def end_ms(self) -> int:
        return self.start_ms + self.span_ms

    @property
    def outage_ms(self) -> tuple[int, int]:
        """When the network servers were down: an hour, or less of a short time."""
        begin = self.start_ms + self.span_ms * 11 // 20
        return begin, begin + min(3_600_000, self.span_ms // 24)

    # -- how many

    @cached_property
    def messages(self) -> int:
        """As many as make about so many transitions."""
        jobs = sum(self.shares[: len(self.queues)])
        fleets = 1.0 - jobs
        length = jobs * _length(JOB) + fleets * sum(
            share * _length(meeting) for meeting, share in _FLEET_SHARES.items()
        )
        return max(1, round(self.transitions / length))

    @property
    def blocks(self) -> int:
        """Equal parts of the time in which records are numbered side by side."""
        return max(1, ceil(self.transitions / _PER_BLOCK))

    @property
    def tasks(self) -> int:
        return self.partitions or max(2, ceil(self.transitions / _PER_PARTITION))

    # -- what becomes of them

    @cached_property
    def paths(self) -> list[Path]:
        """Every path, faulty ones last; its place is its number."""
        usual = [path for table in TABLES for _, path in table]
        return [*usual, *(path for path, _ in self._faulty)]

    @cached_property
    def choices(self) -> list[list[tuple[float, int]]]:
        """For each table its paths' probabilities and numbers, the likely ones first."""
        first, found = 0, []
        for table in TABLES:
            numbered = [(share, first + place) for place, (share, _) in enumerate(table)]
            found.append(sorted(numbered, reverse=True))
            first += len(table)
        return found

    @cached_property
    def _faulty(self) -> list[tuple[Path, tuple[str, int, int]]]:
        """The paths of all faults, each with (kind, whose, which variant)."""
        return [
            (path, (kind, whose, which))
            for kind, make in FAULTY.items()
            for whose, variants in enumerate(make(self.faults))
            for which, path in enumerate(variants)
        ]

    @cached_property
    def planted(self) -> list[Fault]:
        """The messages with faults, spread evenly over all, and the paths that they take."""
        first = sum(len(table) for table in TABLES)
        paths: dict[tuple[str, int], list[int]] = {}
        for place, (_, (kind, whose, _)) in enumerate(self._faulty):
            paths.setdefault((kind, whose), []).append(first + place)
        kinds = [(kind, nth) for kind, count in self.faults.counts.items() for nth in range(count)]
        return [
            Fault(
                (2 * place + 1) * self.messages // (2 * len(kinds)),
                *(paths[kind, whose][nth % len(paths[kind, whose])] for whose in range(3)),
            )
            for place, (kind, nth) in enumerate(kinds)
        ]


def _falling(count: int, total: float) -> list[float]:
    """Shares of a total, the second half as large as the first, the third a third …"""
    weights = [1 / place for place in range(1, count + 1)]
    return [total * weight / sum(weights) for weight in weights]


def _length(meeting: int) -> float:
    """The mean number of records of a path of a table."""
    return sum(share * len(path.steps) for share, path in TABLES[meeting])


TABLES = (job_paths(), push_paths(), bad_gateway_paths(), pull_paths(), outage_paths())
