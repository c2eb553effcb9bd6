"""What if: recorded messages under another retry policy or other deadlines, by the engine's own rules.

`what_if_jobs` and `what_if_commands` give a `WhatIf`; `parse_policy` and `parse_timings` read what a person
writes. Inside: `trails` brings a message's records together, `job_play` and `command_play` let it live again
(pure: no Spark, no clock), `survival` says how unrecorded attempts fare, `result` counts.
"""

from __future__ import annotations

from remuda.lake.whatif.commands import what_if_commands
from remuda.lake.whatif.jobs import what_if_jobs
from remuda.lake.whatif.parsing import parse_policy, parse_timings
from remuda.lake.whatif.result import Change, Side, WhatIf

__all__ = ["Change", "Side", "WhatIf", "parse_policy", "parse_timings", "what_if_commands", "what_if_jobs"]
