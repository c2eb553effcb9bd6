"""Campaigns: one command for many devices, sent in waves, at a rate, and stopped when too many fail.

`spec` says what a campaign is, `devices` reads and checks its rows, `steps` decides what to do next (pure),
`running` does it and keeps the state beside the lake's tables. From outside only what stands here is needed.
"""

from __future__ import annotations

from remuda.lake.campaign.devices import (
    CampaignError,
    Problem,
    rows_from_file,
    rows_from_frame,
    rows_from_sql,
)
from remuda.lake.campaign.running import (
    abort,
    advance,
    list_campaigns,
    load_campaign,
    pause,
    resume,
    start,
    status,
)
from remuda.lake.campaign.spec import Campaign, CampaignState, Counts, Status, parse_rate
from remuda.lake.campaign.steps import Step, StepKind, next_step

__all__ = [
    "Campaign",
    "CampaignError",
    "CampaignState",
    "Counts",
    "Problem",
    "Status",
    "Step",
    "StepKind",
    "abort",
    "advance",
    "list_campaigns",
    "load_campaign",
    "next_step",
    "parse_rate",
    "pause",
    "resume",
    "rows_from_file",
    "rows_from_frame",
    "rows_from_sql",
    "start",
    "status",
]
