"""Replay: a plan of dead letters that is made from the lake, shown, and then carried out on the store.

`plans` makes and keeps plans, `carrying` carries them out, `targets` are what it is carried out on: the
dead letters of a queue, or the failed commands of a fleet. From outside only what stands here is needed.
"""

from __future__ import annotations

from remuda.lake.replay.carrying import Report, carry_out, report_of
from remuda.lake.replay.plans import Plan, Selection, list_plans, load_plan, make_plan

__all__ = [
    "Plan",
    "Report",
    "Selection",
    "carry_out",
    "list_plans",
    "load_plan",
    "make_plan",
    "report_of",
]
