"""The contract of a store for commands: what the device engine may rely on, the same on every backend.

A store knows nothing of devices. It keeps records (opaque bytes) with a version, and for each record
a *placing*: where it waits, until when, and what it holds on to meanwhile. The rules of
`remuda.devices` decide; a store compares versions and moves. Each call is atomic. `write` is the only
way to change a record, and writes the transitions of what it changes in the same step.

Any number of engines and programs may work on one store side by side.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from types import TracebackType
from typing import Self

import msgspec

from remuda.lifecycle import CommandStatus, check_move
from remuda.stores.contract import Capabilities, TrailPage


class Home(StrEnum):
    """Where a command is. Each is a set in order; all but `LANE` are in the order of `due_at`.

    LANE is one set for each lane, in the order of priority (higher first), then of age.
    """

    LANE = "lane"
    TO_NS = "in_flight_to_ns"
    TO_GATEWAY = "in_flight_to_gw"
    TO_DEVICE = "in_flight_to_device"
    TASK_V1 = "awaiting_task:V1"
    TASK_V2 = "awaiting_task:V2"
    RETRY = "awaiting_retry"
    ENDED = "ended"


TIMED_HOMES = tuple(home for home in Home if home not in (Home.LANE, Home.ENDED))


class Placing(msgspec.Struct, frozen=True, kw_only=True):
    """What a store has to know of a record.

    due_at       when somebody has to look at it (all homes but LANE); the moment of its end in ENDED
    turn         the name of a turn that only one command can have at a time (a device's): in LANE it needs
                 the turn before it can be claimed, elsewhere it has it and keeps it. None: it needs none,
                 and gives up the one that it had
    key          while it holds this key no other new command can have it; None: it holds none
    uses_slot    it still counts against the slots of its lane
    hears        the device whose signals may be for it; None: none can be
    external_ids  the network server's names for its attempts, kept until the record is removed
    """

    home: Home
    lane: str
    priority: int
    status: CommandStatus
    type: str
    device: str
    due_at: datetime | None = None
    turn: str | None = None
    key: str | None = None
    uses_slot: bool = False
    hears: str | None = None
    expires_at: datetime | None = None
    airtime_ms: int = 0
    external_ids: tuple[str, ...] = ()
    correlation_ids: tuple[str, ...] = ()


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """One state change, as it goes into the trail. `about` (device, lane, gateway, grid) only on adding."""

    left: CommandStatus | None
    entered: CommandStatus
    at: datetime
    dwell_ms: int | None = None
    attempt: int = 0
    reason: str | None = None
    name: str | None = None
    about: dict[str, str] | None = None

    def __post_init__(self) -> None:
        check_move(self.left, self.entered)


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The next record of a command. `base` is the version that it was made from; 0 for a new command.

    The version after it is `base + 1`.
    """

    id: str
    base: int
    record: bytes
    placing: Placing
    moves: tuple[Move, ...] = ()


class StoredCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A record as it was read, with its version."""

    id: str
    version: int
    record: bytes


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How quickly commands may leave the lanes whose name begins with `prefix`.

    every      a lane is locked for so long after each command that leaves it (the flood-prevention lock)
    duty       instead: each command costs its air time divided by this share of the time …
    burst      … and a lane may be that far ahead of what has been earned
    slots      at most so many commands of a lane at once; a slot comes free when the command no longer
               uses it, or after `slot_for` at the latest
    """

    prefix: str
    every: timedelta | None = None
    duty: float | None = None
    burst: timedelta = timedelta(0)
    slots: int | None = None
    slot_for: timedelta = timedelta(minutes=10)


class Claimed(msgspec.Struct, frozen=True):
    """Commands that were taken off their lanes, and when a lane with more of them opens next, if any."""

    commands: list[StoredCommand]
    next_at: datetime | None


class StoredSignal(msgspec.Struct, frozen=True, kw_only=True):
    """A signal in the inbox. `looks` counts how often it was taken before."""

    id: str
    device: str
    body: bytes
    received_at: datetime
    looks: int = 0


class LaneStats(msgspec.Struct, frozen=True, kw_only=True):
    """A lane in numbers. `waiting` includes commands that wait for their device's turn."""

    lane: str
    waiting: int
    slots_used: int = 0
    opens_at: datetime | None = None
    held_until: datetime | None = None
    held_why: str | None = None


class CommandStats(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet in numbers. `unpublished` commands have ended, and their subscribers do not know yet."""

    by_status: dict[CommandStatus, int]
    signals: int
    unpublished: int


class Arrival(StrEnum):
    """What has come in: something in a lane, a signal, an end."""

    LANE = "lane"
    SIGNAL = "signal"
    END = "end"


class CommandStore(ABC):
    """The commands of one fleet. Times are on the store's own clock (`now`)."""

    fleet: str
    url: str

    def __init__(self) -> None:
        self._callbacks: list[Callable[[Arrival], None]] = []

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @abstractmethod
    def now(self) -> datetime:
        """The store's time, so that all engines agree."""

    @abstractmethod
    async def open(self) -> Capabilities:
        """Connect, create what is missing, check what is there. Safe to call again."""

    @abstractmethod
    async def close(self) -> None:
        """Give everything back. Calls after this raise."""

    # -- records

    @abstractmethod
    async def write(self, changes: Sequence[Change], *, who: str, whole: bool = False) -> list[bool]:
        """Write the next record of each command, its placing and its moves; for each whether it was written.

        A change is refused when the version in the store is not its `base`, or when it takes a key that
        another command holds and does not give up in an earlier change of this call. With `whole`
        one refusal means that nothing is written. One id stands in one change at most.

        A command in LANE with a turn that another has waits behind it; when the turn comes free the
        next in order (priority, then id) gets it. One that waits in its lane without having been claimed
        yields its turn to a new one of higher priority.
        """

    @abstractmethod
    async def load(self, ids: Sequence[str]) -> dict[str, StoredCommand]:
        """The records of those ids that there are."""

    @abstractmethod
    async def owners(self, keys: Sequence[str]) -> dict[str, StoredCommand]:
        """Who holds each key, where somebody does."""

    @abstractmethod
    async def hearers(self, devices: Sequence[str]) -> dict[str, list[StoredCommand]]:
        """For each device the commands that its signals may be for, oldest first."""

    @abstractmethod
    async def find(self, external_ids: Sequence[str]) -> dict[str, str]:
        """The id of the command, live or ended, that each external id belongs to, where there is one."""

    # -- work

    @abstractmethod
    async def claim(self, paces: Sequence[Pace], *, limit: int, hold: timedelta) -> Claimed:
        """Take commands off the lanes that are open, fairly between lanes, in order within each.

        The first pace whose prefix fits a lane is its pace; a lane that none fits is not touched. A claimed
        command is in TO_NS, due after `hold`, with its turn and a slot; its record and version are as
        before: the claimer writes the next one before it does anything, or the command is due again.
        """

    @abstractmethod
    async def due(self, homes: Sequence[Home], *, limit: int, hold: timedelta) -> list[StoredCommand]:
        """Commands of these homes whose `due_at` has come, and those of any home that are past `expires_at`.

        Each is given to one caller, earliest first, and is due again after `hold`; one without a record is
        swept away and starves nobody.
        """

    # -- signals

    @abstractmethod
    async def keep_signals(self, signals: Sequence[StoredSignal], *, remember: timedelta) -> int:
        """Put signals into the inbox; how many are new. An id that is in the inbox or was done less than
        `remember` ago is not new."""

    @abstractmethod
    async def take_signals(self, *, limit: int, hold: timedelta) -> list[StoredSignal]:
        """Signals that are due, in the order in which they came; each is due again after `hold`."""

    @abstractmethod
    async def settle_signals(self, *, done: Sequence[str], later: Sequence[tuple[str, datetime]]) -> None:
        """Take signals out of the inbox for good, or have them due again at a moment."""

    # -- ends

    @abstractmethod
    async def take_ended(self, *, limit: int, hold: timedelta) -> list[StoredCommand]:
        """Ended commands that were not published yet, oldest first; each is due again after `hold`."""

    @abstractmethod
    async def mark_published(self, ids: Sequence[str]) -> None:
        """Their subscribers know."""

    @abstractmethod
    async def prune(self, *, ended_before: datetime, limit: int) -> int:
        """Remove published commands that ended before a moment, and signals remembered longer; how many."""

    # -- lanes

    @abstractmethod
    async def hold_lane(self, lane: str, *, until: datetime | None, why: str) -> None:
        """Nothing is claimed from the lane until a moment (None: until it is released)."""

    @abstractmethod
    async def release_lane(self, lane: str) -> None:
        """End a hold."""

    @abstractmethod
    async def lanes(self) -> list[LaneStats]:
        """Every lane in which something waits, or that is held, by name."""

    # -- looking

    @abstractmethod
    async def stats(self) -> CommandStats:
        """The fleet in numbers."""

    @abstractmethod
    async def commands(
        self,
        *,
        status: CommandStatus | None = None,
        lane: str | None = None,
        device: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[StoredCommand]:
        """Commands, newest first (by id); with `before` only those whose id is below it: the next page."""

    @abstractmethod
    async def named(self, name: str) -> list[str]:
        """The ids of commands with this id, external id or correlation id."""

    # -- the trail

    @abstractmethod
    async def transitions(self, *, after: int, limit: int) -> TrailPage:
        """Recorded transitions with a sequence number above `after`, about `limit` of them."""

    @abstractmethod
    async def trail_offset(self, *, since: datetime) -> int:
        """A sequence number after which every transition since a moment stands, and few older ones."""

    @abstractmethod
    async def trim_transitions(self, *, up_to: int) -> int:
        """Forget entries whose every transition has a number of at most `up_to`; how many transitions."""

    # -- waking

    def on_arrival(self, callback: Callable[[Arrival], None]) -> None:
        """From now on call `callback` when this object has put something in that an engine waits for."""
        self._callbacks.append(callback)

    def _arrived(self, what: Arrival) -> None:
        for callback in self._callbacks:
            callback(what)
