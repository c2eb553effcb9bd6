"""The trail of a fleet's commands: its name, and the entries that the moves of a write become."""

from __future__ import annotations

from collections.abc import Sequence

from remuda.stores.commands import Change
from remuda.stores.opening_commands import is_fleet
from remuda.transition import MAX_PER_ENTRY, pack_mixed, to_ms

_PREFIX = "devices:"


def trail_name(fleet: str) -> str:
    """The `queue` that a fleet's transitions name."""
    return _PREFIX + fleet


def fleet_of(trail: str) -> str | None:
    """The fleet whose trail has this name; None where it is a queue's."""
    fleet = trail.removeprefix(_PREFIX)
    return fleet if fleet != trail and is_fleet(fleet) else None


def pack_moves(changes: Sequence[Change], *, who: str) -> list[tuple[int, bytes]]:
    """The moves of written changes, in order, as packed entries with their number of transitions each."""
    rows = [
        (
            change.id,
            None if move.left is None else move.left.value,
            move.entered.value,
            to_ms(move.at),
            move.dwell_ms,
            move.attempt,
            move.reason,
            move.name,
            move.about,
        )
        for change in changes
        for move in change.moves
    ]
    parts = (rows[start : start + MAX_PER_ENTRY] for start in range(0, len(rows), MAX_PER_ENTRY))
    return [(len(part), pack_mixed(part, who=who)) for part in parts]
