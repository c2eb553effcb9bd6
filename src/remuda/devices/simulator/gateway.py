"""A gateway: it sends one frame at a time, hears nothing meanwhile, keeps to its duty cycle, and fails."""

from __future__ import annotations

import random
from collections import deque
from datetime import datetime, timedelta

import msgspec

from remuda.errors import ConfigurationError

STATS_EVERY = timedelta(seconds=30)
_WINDOW = timedelta(hours=1)  # over which the duty cycle is reckoned
_AHEAD = timedelta(seconds=5)  # frames for class A windows stand in the list a little before their time


class Outages(msgspec.Struct, frozen=True, kw_only=True):
    """Outages in bursts: the mean time between two, and the mean time that one lasts (both exponential)."""

    every: timedelta = timedelta(hours=12)
    lasting: timedelta = timedelta(minutes=20)


class Gateway:
    """One gateway of a grid. Moments that it is asked about never go back.

    >>> Gateway("0016c001f1500812", "grid-7", rng=random.Random(1), outages=Outages())
    """

    def __init__(
        self,
        id: str,  # noqa: A002  # the word of the wire
        grid: str | None = None,
        *,
        rng: random.Random,
        duty: float = 0.1,
        outages: Outages | None = None,
    ) -> None:
        if not 0.0 < duty <= 1.0:
            raise ConfigurationError(f"duty is a share above 0, not {duty}")
        self.id = id
        self.grid = grid
        self.duty = duty
        self.refusals = 0
        self._rng = rng
        self._outages = outages
        self._budget = _WINDOW * duty
        self._used = timedelta(0)
        self._sent: deque[tuple[datetime, datetime]] = deque()  # (from, until) of the last hour
        self._up = True
        self._turns_at: datetime | None = None  # when the next outage begins, or this one ends
        self._went_down_at: datetime | None = None
        self._cut = False

    def is_up(self, now: datetime) -> bool:
        """Whether it has power and a connection. Its outages begin to count with the first question."""
        self._live_until(now)
        return self._up and not self._cut

    def cut(self, now: datetime) -> None:
        """Take it down by hand, until `restore`."""
        if self.is_up(now):
            self._went_down_at = now
        self._cut = True

    def restore(self) -> None:
        self._cut = False

    def last_seen(self, now: datetime) -> datetime | None:
        """When the network server last heard from it; None: never."""
        return now if self.is_up(now) else self._went_down_at

    def transmit(self, now: datetime, airtime: timedelta, *, at: datetime | None = None) -> str | None:
        """Take a frame to be sent at once, or `at` a moment; None when taken, else why it is refused."""
        start = now if at is None else at
        refusal = self._refusal(now, start, airtime)
        if refusal is None:
            self._sent.append((start, start + airtime))
            self._used += airtime
        else:
            self.refusals += 1
        return refusal

    def hears(self, start: datetime, end: datetime) -> bool:
        """Whether a frame that was in the air from `start` until `end` (now) was received."""
        return self.is_up(end) and not self._sends_between(start, end)

    def _refusal(self, now: datetime, start: datetime, airtime: timedelta) -> str | None:
        if start < now:
            return "TOO_LATE"
        if self._sends_between(start, start + airtime):
            return "COLLISION_PACKET"
        self._forget(now - _WINDOW)
        return "DUTY_CYCLE_OVERFLOW" if self._used + airtime > self._budget else None

    def _sends_between(self, start: datetime, end: datetime) -> bool:
        for sent_from, sent_until in reversed(self._sent):
            if sent_from < end and sent_until > start:
                return True
            if sent_until <= start - _AHEAD:
                break
        return False

    def _forget(self, before: datetime) -> None:
        while self._sent and self._sent[0][1] <= before:
            since, until = self._sent.popleft()
            self._used -= until - since

    def _live_until(self, now: datetime) -> None:
        """Let the outages happen that were to happen until now."""
        if self._outages is None:
            return
        if self._turns_at is None:
            self._turns_at = now + self._draw(self._outages.every)
        while self._turns_at <= now:
            if self._up:
                self._went_down_at = self._turns_at
            self._up = not self._up
            self._turns_at += self._draw(self._outages.every if self._up else self._outages.lasting)

    def _draw(self, mean: timedelta) -> timedelta:
        return mean * self._rng.expovariate(1.0)
