"""What a campaign is: the command, its pace, its waves, and when it is to stop. And how it stands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec

from remuda.devices.command import CommandType, Phase
from remuda.errors import ConfigurationError
from remuda.rate import RateLimit
from remuda.stores.opening_commands import check_fleet

REST = "rest"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_WAVE = re.compile(r"(\d+(?:\.\d+)?)\s*(%?)\Z")
_RATE = re.compile(r"(\d+)\s*/\s*(s|m|h|d)\Z")
_PERIODS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class Campaign(msgspec.Struct, frozen=True, kw_only=True):
    """One command for many devices.

    data, phase    of every command whose row has none of its own
    rate           so many commands in so long a time; None: as quickly as the waves allow
    waves          sizes (`10`, `100`), shares of all up to which a wave goes (`1%`, `10%`), or `rest`
    proceed_share  the next wave begins when so large a share of those sent has ended …
    abort_share    … unless so large a share of those that ended has failed: then it is aborted …
    abort_after    … once so many have ended; abort_share None: it never is
    expires_in     a command that was not sent to its device after so long is not sent any more
    shuffle        wave by wave a mixture of all devices; False: in the order of the rows

    >>> Campaign(name="clock-2030", type=CommandType.SET_TIME, waves=("10", "10%", "rest"))
    """

    name: str
    type: CommandType
    data: Any = None
    phase: Phase | None = None
    rate: RateLimit | None = None
    waves: tuple[str, ...] = (REST,)
    proceed_share: float = 0.9
    abort_share: float | None = 0.2
    abort_after: int = 10
    expires_in: timedelta | None = None
    priority: int | None = None
    by_person: bool = False
    fleet: str = "devices"
    shuffle: bool = True

    def check(self) -> None:
        """`ConfigurationError` for what makes no sense."""
        if not _NAME.match(self.name):
            raise ConfigurationError(
                f"a campaign's name is 1 to 64 letters A to Z, digits, '_', '-' and '.', not {self.name!r}"
            )
        check_fleet(self.fleet)
        wave_ends(self.waves, 1)
        for what, share in (("proceed_share", self.proceed_share), ("abort_share", self.abort_share)):
            if share is not None and not 0 < share <= 1:
                raise ConfigurationError(f"{what} is a share above 0 and up to 1, not {share}")
        if self.abort_after < 1:
            raise ConfigurationError(f"abort_after is 1 or more, not {self.abort_after}")


def parse_rate(text: str) -> RateLimit:
    """`10/s`, `100/m`, `1000/h`."""
    found = _RATE.match(text.strip().lower())
    if found is None:
        raise ConfigurationError(f"not a rate: {text!r}; write 10/s, 100/m, 1000/h or 5000/d")
    return RateLimit(int(found[1]), timedelta(seconds=_PERIODS[found[2]]))


def wave_ends(waves: Sequence[str], total: int) -> list[int]:
    """For each wave the number of devices that have their command at its end; the last one ends with all."""
    ends: list[int] = []
    for wave in waves:
        before = ends[-1] if ends else 0
        found = _WAVE.match(wave.strip())
        if wave.strip().lower() == REST:
            end = total
        elif found is None or float(found[1]) <= 0 or (not found[2] and "." in found[1]):
            raise ConfigurationError(f"not a wave: {wave!r}; write a number (10), a share (5%) or {REST}")
        elif found[2]:
            end = max(before + 1, -int(-total * float(found[1]) // 100))  # a share of a few is one at least
        else:
            end = before + int(found[1])
        ends.append(min(end, total))
    # What the waves leave over is one more; waves beyond the end are none.
    distinct = [end for place, end in enumerate(ends) if place == 0 or end > ends[place - 1]]
    return distinct if distinct and distinct[-1] == total else [*distinct, total]


class CampaignState(StrEnum):
    """How a campaign stands. FINISHED and ABORTED are ends, but commands may still be under way."""

    RUNNING = "running"
    PAUSED = "paused"
    ABORTED = "aborted"
    FINISHED = "finished"


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the commands of a campaign.

    under_way   sent, and not ended
    executed    the device did it
    refused     the device, or its network server, answered that it did not
    failed      not delivered, by reason
    unknown     it ended, and nobody knows what the device did
    called_off  cancelled, or superseded by a newer command: nobody's failure
    """

    total: int
    sent: int = 0
    under_way: int = 0
    executed: int = 0
    refused: int = 0
    unknown: int = 0
    called_off: int = 0
    failed: dict[str, int] = {}

    @property
    def left(self) -> int:
        return self.total - self.sent

    @property
    def ended(self) -> int:
        return self.sent - self.under_way

    @property
    def failures(self) -> int:
        return self.refused + self.unknown + sum(self.failed.values())

    @property
    def judged(self) -> int:
        """Those that ended and say something about the campaign."""
        return self.executed + self.failures

    @property
    def failed_share(self) -> float | None:
        return self.failures / self.judged if self.judged else None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How a campaign stands: its state and why, the wave it is in (from 1), and its counts.

    `next_at` is when something can be sent next, where only time has to pass. `is_over`: nothing will be sent
    any more, and nothing is under way.
    """

    name: str
    state: CampaignState
    why: str
    wave: int
    waves: list[int]
    counts: Counts
    sent_now: int = 0
    next_at: datetime | None = None

    @property
    def is_over(self) -> bool:
        ended = self.state in (CampaignState.ABORTED, CampaignState.FINISHED)
        return ended and self.counts.under_way == 0
