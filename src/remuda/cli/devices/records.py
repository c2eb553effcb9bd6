"""What `--json` prints of commands, lanes and fleets, and how a token is shown: by its last digits.

Names are those of the Python API. Times are ISO 8601 in UTC, durations are seconds.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from remuda.devices.command import Command
from remuda.stores.commands import CommandStats, LaneStats

_SHOWN = 4
_FEWEST = 12  # digits: of a shorter text the last four would be too much


def command_fields(command: Command) -> dict[str, Any]:
    """Everything that is known of a command, except the digits of a token."""
    fields: dict[str, Any] = msgspec.to_builtins(command, builtin_types=(datetime,))
    for inner in ("key", "heard", "version"):
        del fields[inner]  # the engine's own
    if command.is_single_use:
        fields["data"] = masked(command.data)
    return fields


def masked(data: Any) -> Any:
    """Data that holds a token, with all of it but its last digits hidden."""
    if isinstance(data, dict):
        return {name: masked(value) for name, value in data.items()}
    if data is None:
        return None
    digits = "".join(each for each in str(data) if each.isalnum())
    return f"…{digits[-_SHOWN:]}" if len(digits) >= _FEWEST else "…"


def lane_fields(lane: LaneStats) -> dict[str, Any]:
    """A lane in numbers."""
    return {field: getattr(lane, field) for field in LaneStats.__struct_fields__}


def stats_fields(fleet: str, stats: CommandStats) -> dict[str, Any]:
    """A fleet in numbers."""
    from remuda.lifecycle import CommandStatus

    return {
        "fleet": fleet,
        "by_status": {each.value: stats.by_status.get(each, 0) for each in CommandStatus},
        "signals": stats.signals,
        "unpublished": stats.unpublished,
    }
