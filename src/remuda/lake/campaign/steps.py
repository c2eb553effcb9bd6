"""What a campaign does next: a function of how it stands, and of nothing else."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from remuda.lake.campaign.spec import Campaign, CampaignState, Counts
from remuda.rate import RateLimit, take

AT_ONCE = 500  # commands that are sent in one step
_AT_A_TIME = timedelta(seconds=5)  # what a rate allows in this time may go at once


class StepKind(StrEnum):
    SEND = "send"
    WAIT = "wait"
    ABORT = "abort"
    FINISH = "finish"


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What to do: send so many, wait (until a moment, if only time has to pass), abort, or nothing more.

    `full_at` is the state of the rate after it.
    """

    kind: StepKind
    why: str
    send: int = 0
    until: datetime | None = None
    full_at: datetime | None = None


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How a campaign stands, as far as it decides what comes next. `full_at`: the state of its rate."""

    state: CampaignState
    waves: list[int]
    full_at: datetime | None = None


def next_step(campaign: Campaign, standing: Standing, counts: Counts, now: datetime) -> Step:
    """What to do now."""
    if standing.state is CampaignState.ABORTED:
        return Step(kind=StepKind.ABORT, why="it was aborted")
    too_many = _too_many_failed(campaign, counts)
    if too_many is not None:
        return Step(kind=StepKind.ABORT, why=too_many)
    if counts.left == 0:
        return Step(kind=StepKind.FINISH, why="every device has its command")
    if standing.state is CampaignState.PAUSED:
        return Step(kind=StepKind.WAIT, why="it is paused")
    room = _room(campaign, standing, counts)
    if room == 0:
        return Step(kind=StepKind.WAIT, why=_waits_for(campaign, counts))
    return _at_its_rate(campaign, standing, min(room, AT_ONCE), now)


def wave_of(waves: list[int], sent: int) -> int:
    """The wave, from 0, that those sent last belong to."""
    return next((place for place, end in enumerate(waves) if sent <= end), len(waves) - 1)


def _too_many_failed(campaign: Campaign, counts: Counts) -> str | None:
    share = counts.failed_share
    if campaign.abort_share is None or share is None or counts.judged < campaign.abort_after:
        return None
    if share < campaign.abort_share:
        return None
    return f"{counts.failures:,} of {counts.judged:,} that ended have failed ({share:.0%}): too many"


def _room(campaign: Campaign, standing: Standing, counts: Counts) -> int:
    """How many may be sent before the wave is full, or the next one may begin."""
    wave = wave_of(standing.waves, counts.sent)
    end = standing.waves[wave]
    if counts.sent < end:
        return end - counts.sent
    if counts.ended < campaign.proceed_share * counts.sent:
        return 0
    return standing.waves[wave + 1] - end


def _waits_for(campaign: Campaign, counts: Counts) -> str:
    return (
        f"the next wave begins when {campaign.proceed_share:.0%} of the {counts.sent:,} sent have ended "
        f"({counts.ended:,} have)"
    )


def _at_its_rate(campaign: Campaign, standing: Standing, wanted: int, now: datetime) -> Step:
    if campaign.rate is None:
        return Step(kind=StepKind.SEND, why="sending", send=wanted)
    limit = evenly(campaign.rate)
    granted, full_at = take(limit, standing.full_at, wanted=wanted, now=now)
    if granted:
        return Step(kind=StepKind.SEND, why="sending", send=granted, full_at=full_at)
    until = full_at - limit.burst + limit.interval
    return Step(kind=StepKind.WAIT, why="its rate", until=until, full_at=standing.full_at)


def evenly(rate: RateLimit) -> RateLimit:
    """The same rate without its burst: a thousand an hour is not a thousand at once."""
    at_once = max(1, _AT_A_TIME // rate.interval)
    return RateLimit(at_once, rate.interval * at_once)
