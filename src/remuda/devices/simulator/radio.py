"""The weather of a simulated world: what is lost, late, doubled or refused on each leg of the way.

Each leg of each device draws from a random source of its own, named after it and seeded from one seed.
So what happens to a device does not depend on what the others do, nor on the order of coroutines.
"""

from __future__ import annotations

import random
from datetime import timedelta
from enum import StrEnum
from typing import NamedTuple

from remuda.errors import ConfigurationError

Span = tuple[timedelta, timedelta]  # the least and the most


class Fault(StrEnum):
    """How a call to a network server fails: before it had its effect, or after."""

    BEFORE = "before"
    AFTER = "after"


class Call(NamedTuple):
    """One call's fortune: the seconds before and after its effect, and how it fails, if it does."""

    before_s: float
    after_s: float
    fault: Fault | None


class Weather:
    """What the legs do to what passes over them. All shares are from 0 to 1; the default is a clear day.

    downlink_loss, uplink_loss  the share of frames that the air swallows, on each leg
    delay              between gateway and network server, each way
    answer_delay       how long a meter takes to answer
    webhook_delay      how long an event takes to be sent
    webhook_loss, webhook_duplicates  the share of events that never arrive, or arrive twice
    webhook_reorder    the share of events that are held up, by up to `webhook_reorder_by`
    accept_delay       how long a call to the network server takes
    slow_calls         the share of calls that take `slow_call` (37 s was seen)
    failures_before, failures_after  the share of calls that fail before, or after, they had their effect

    >>> Weather(7, downlink_loss=0.1, uplink_loss=0.1)
    """

    def __init__(
        self,
        seed: int | str = 0,
        *,
        downlink_loss: float = 0.0,
        uplink_loss: float = 0.0,
        delay: Span = (timedelta(milliseconds=20), timedelta(milliseconds=120)),
        answer_delay: Span = (timedelta(milliseconds=200), timedelta(milliseconds=800)),
        webhook_delay: Span = (timedelta(milliseconds=5), timedelta(milliseconds=50)),
        webhook_loss: float = 0.0,
        webhook_duplicates: float = 0.0,
        webhook_reorder: float = 0.0,
        webhook_reorder_by: timedelta = timedelta(seconds=5),
        accept_delay: Span = (timedelta(milliseconds=20), timedelta(milliseconds=300)),
        slow_calls: float = 0.0,
        slow_call: timedelta = timedelta(seconds=37),
        failures_before: float = 0.0,
        failures_after: float = 0.0,
    ) -> None:
        self.seed = seed
        self.downlink_loss = _share("downlink_loss", downlink_loss)
        self.uplink_loss = _share("uplink_loss", uplink_loss)
        self.webhook_loss = _share("webhook_loss", webhook_loss)
        self.webhook_duplicates = _share("webhook_duplicates", webhook_duplicates)
        self.webhook_reorder = _share("webhook_reorder", webhook_reorder)
        self.slow_calls = _share("slow_calls", slow_calls)
        self.failures_before = _share("failures_before", failures_before)
        self.failures_after = _share("failures_after", failures_after)
        self._delay = _seconds("delay", delay)
        self._answer_delay = _seconds("answer_delay", answer_delay)
        self._webhook_delay = _seconds("webhook_delay", webhook_delay)
        self._accept_delay = _seconds("accept_delay", accept_delay)
        self._reorder_by_s = webhook_reorder_by.total_seconds()
        self._slow_call_s = slow_call.total_seconds()
        self._sources: dict[str, random.Random] = {}

    def source(self, name: str) -> random.Random:
        """The random source of this name: always the same one, and the same numbers for the same seed."""
        source = self._sources.get(name)
        if source is None:
            # A string is hashed with SHA-512 here, not with the interpreter's own salt.
            source = self._sources[name] = random.Random(f"{self.seed}/{name}")
        return source

    def loses_downlink(self, device: str) -> bool:
        """Whether the air swallows this frame on its way to the device."""
        return self.source(f"downlink/{device}").random() < self.downlink_loss

    def loses_uplink(self, device: str) -> bool:
        """Whether the air swallows this frame on its way to the gateway."""
        return self.source(f"uplink/{device}").random() < self.uplink_loss

    def delay_s(self, device: str) -> float:
        """How long a message of this device takes between gateway and network server."""
        return self.source(f"delay/{device}").uniform(*self._delay)

    def answer_delay_s(self, device: str) -> float:
        """How long the device takes to answer."""
        return self.source(f"answer/{device}").uniform(*self._answer_delay)

    def call(self, name: str) -> Call:
        """What becomes of the next call to the network server that is made for `name`."""
        source = self.source(f"call/{name}")
        # Every call takes the same number of draws, so that a changed share does not change the rest.
        lasts, slow, split, fault = (source.random() for _ in range(4))
        least, most = self._accept_delay
        takes = self._slow_call_s if slow < self.slow_calls else least + (most - least) * lasts
        return Call(takes * split, takes * (1.0 - split), self._fault(fault))

    def _fault(self, draw: float) -> Fault | None:
        if draw < self.failures_before:
            return Fault.BEFORE
        return Fault.AFTER if draw < self.failures_before + self.failures_after else None

    def webhook(self, device: str) -> tuple[float, ...]:
        """After how many seconds an event of this device arrives: never, once or twice."""
        source = self.source(f"webhook/{device}")
        lost, doubled, *lots = (source.random() for _ in range(8))
        if lost < self.webhook_loss:
            return ()
        first = self._webhook_delay_s(*lots[:3])
        if doubled >= self.webhook_duplicates:
            return (first,)
        return (first, self._webhook_delay_s(*lots[3:]))

    def _webhook_delay_s(self, lasts: float, held: float, by: float) -> float:
        least, most = self._webhook_delay
        extra = self._reorder_by_s * by if held < self.webhook_reorder else 0.0
        return least + (most - least) * lasts + extra


def _share(name: str, value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise ConfigurationError(f"{name} is a share from 0 to 1, not {value}")
    return value


def _seconds(name: str, span: Span) -> tuple[float, float]:
    least, most = span
    if not timedelta(0) <= least <= most:
        raise ConfigurationError(f"{name} is a span from the least to the most, not {least} to {most}")
    return least.total_seconds(), most.total_seconds()
