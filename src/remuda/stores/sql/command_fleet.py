"""Being alone with a fleet, and the marks on its lanes that say whether anything in them can be claimed."""

from __future__ import annotations

from collections.abc import Iterable

from remuda.stores.sql.phrasing import Phrasing
from remuda.stores.sql.schema import command_fleet, command_lane
from remuda.stores.sql.steps import Steps

_SERVED = "SELECT served FROM command_fleet WHERE fleet = :fleet"
_KNOWN = "SELECT lane, ready FROM command_lane WHERE fleet = :fleet AND lane IN :lanes"
_MARK = "UPDATE command_lane SET ready = 1 WHERE fleet = :fleet AND lane IN :lanes"
# Not in the words of EXISTS: PostgreSQL would look at everything that is ready, to join it to the lanes.
_UNMARK = """
    UPDATE command_lane SET ready = 0
    WHERE fleet = :fleet AND lane IN :lanes AND ready = 1
      AND (SELECT id FROM command BY(command_ready)
           WHERE command.fleet = :fleet AND command.ready_lane = command_lane.lane LIMIT 1) IS NULL
"""


def make(say: Phrasing, fleet: str) -> Steps[None]:
    """The fleet's own row, if it is not there."""
    yield say.put(command_fleet, ("fleet", "served"), [(fleet, 0)], over=False)


def alone(say: Phrasing, fleet: str) -> Steps[None]:
    """Wait until nobody else changes the fleet; the others then wait for the end of this transaction."""
    if say.alone is not None:
        yield say.ask(say.alone, fleet=fleet)


def served(say: Phrasing, fleet: str) -> Steps[int]:
    """How many commands have left the lanes of the fleet."""
    rows = yield say.ask(_SERVED, fleet=fleet)
    return rows[0][0] if rows else 0


def enter_lanes(say: Phrasing, fleet: str, lanes: Iterable[str], *, ready: Iterable[str]) -> Steps[None]:
    """Make the rows of new lanes, as if they had just been served; mark those with something `ready`."""
    named, marked = set(lanes), set(ready)
    if not named | marked:
        return
    rows = yield say.ask(_KNOWN, fleet=fleet, lanes=sorted(named | marked))
    known = {row[0]: bool(row[1]) for row in rows}
    if unknown := sorted((named | marked) - set(known)):
        number = yield from served(say, fleet)
        made = [(fleet, lane, int(lane in marked), number) for lane in unknown]
        yield say.put(command_lane, ("fleet", "lane", "ready", "served"), made, over=False)
    if unmarked := sorted(lane for lane in marked if known.get(lane) is False):
        yield say.ask(_MARK, fleet=fleet, lanes=unmarked)


def unmark_lanes(say: Phrasing, fleet: str, lanes: Iterable[str]) -> Steps[None]:
    """Take the mark off those of these lanes in which nothing is ready any more."""
    if left := sorted(set(lanes)):
        yield say.ask(_UNMARK, fleet=fleet, lanes=left)
