"""Holds: what a fetch took, under one lease, and where each delivery of it lies."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from remuda.stores.contract import Delivery, Settlement
from remuda.stores.redis.wire import Extra
from remuda.transition import Batch

Argument = bytes | str | int  # of a script
SPLIT = "~"  # in the name of a consumer, before the number of a part of its hold


def recorded(batches: Sequence[Batch]) -> list[Argument]:
    """What `record_args` takes."""
    entries = [entry for batch in batches for entry in batch.entries()]
    arguments: list[Argument] = [len(entries)]
    for count, packed in entries:
        arguments += (count, packed)
    return arguments


class Hold:
    """What one fetch took, under one lease and in the hands of a consumer of its own."""

    __slots__ = ("consumer", "live", "streams")

    def __init__(self, consumer: str, streams: set[int], live: int) -> None:
        self.consumer = consumer
        self.streams = streams  # among the scripts' KEYS
        self.live = live  # deliveries of which nothing has been said


class Place(msgspec.Struct, gc=False):
    """Where a delivery lies, and what its settlement needs of it: the `key` of a `Delivery`."""

    index: int  # of its stream among the scripts' KEYS
    entry: bytes
    hold: Hold
    count: int  # deliveries of this entry, this one included
    extra: Extra
    created_ms: int
    retry: Any = None  # as it stands on the wire
    raw: bytes | None = None  # field `d`, where it could not be read
    has_extras: bool = False  # which go with the job, readable or not
    is_over: bool = False  # settled or put back by us
    is_unsure: bool = False  # an outcome was sent, and no answer came


T = TypeVar("T")


class Sorted(Generic[T]):
    """Items that each stand for a delivery, by hold and stream, as `held.lua` takes them."""

    def __init__(self, items: Sequence[T], place_of: Callable[[T], Place]) -> None:
        parts: dict[Hold, dict[int, tuple[list[T], list[bytes]]]] = {}
        look_closely = False
        last_hold: Hold | None = None
        last_index = -1
        same: list[T] = []
        entries: list[bytes] = []
        for each in items:
            place = place_of(each)
            if place.hold is not last_hold or place.index != last_index:
                last_hold, last_index = place.hold, place.index
                same, entries = parts.setdefault(last_hold, {}).setdefault(last_index, ([], []))
            same.append(each)
            entries.append(place.entry)
            look_closely = look_closely or place.is_unsure
        self.items: list[T] = []  # in the order by whose places the scripts answer
        self.holds: dict[Hold, int] = {}  # and how many of each
        self.arguments: list[Argument] = ["1" if look_closely else "0", len(parts)]
        for hold, by_stream in parts.items():
            self.holds[hold] = 0
            self.arguments += (hold.consumer, len(by_stream))
            for index, (same, entries) in by_stream.items():
                self.arguments += (index, len(same))
                self.arguments += entries
                self.items += same
                self.holds[hold] += len(same)

    def ended_holds(self) -> list[Argument]:
        """What `end_holds` takes: the holds of which these are the last."""
        over = [hold for hold, count in self.holds.items() if count >= hold.live]
        arguments: list[Argument] = [len(over)]
        for hold in over:
            arguments += (hold.consumer, len(hold.streams), *hold.streams)
        return arguments

    def without(self, lost: Sequence[int]) -> list[T]:
        """Those that are not at these places."""
        gone = set(lost)
        return [each for place, each in enumerate(self.items, 1) if place not in gone]


def place_of(delivery: Delivery) -> Place:
    place: Place = delivery.key
    return place


def place_of_settlement(settlement: Settlement) -> Place:
    place: Place = settlement.delivery.key
    return place


def let_go(places: Iterable[Place]) -> None:
    """Note that a delivery is ours no more, by our own doing."""
    for place in places:
        place.is_over = True
        place.hold.live -= 1


def renewed_holds(by_hold: Sorted[Delivery]) -> dict[Hold, Hold]:
    """For each hold itself, or a new one for the part of it that is renewed: the rest keeps its lease."""
    renewed: dict[Hold, Hold] = {}
    for hold, count in by_hold.holds.items():
        if count >= hold.live:
            renewed[hold] = hold
        else:
            # The same name before the mark: an outcome that is on its way under the old name still counts.
            consumer = f"{hold.consumer.partition(SPLIT)[0]}{SPLIT}{secrets.randbits(31)}"
            renewed[hold] = Hold(consumer, set(hold.streams), 0)
    return renewed


def move(place: Place, hold: Hold) -> None:
    """From one hold to another."""
    if place.hold is not hold:
        place.hold.live -= 1
        hold.live += 1
        place.hold = hold
