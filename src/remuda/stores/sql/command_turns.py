"""Turns: of the commands that want the same one only those that left their lane have it, or one that waits.

The rule is `remuda.stores.memory_lanes.Turn`; here it is fed from the rows and written back to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from remuda.stores.commands import Home, Placing
from remuda.stores.memory_lanes import Turn
from remuda.stores.sql.phrasing import Phrasing
from remuda.stores.sql.steps import Rows, Steps

_HELD = """
    SELECT turn_held, id, home, standing, lane FROM command BY(command_turn_held)
    WHERE fleet = :fleet AND turn_held IN :turns
"""
_WANTED = """
    SELECT DISTINCT turn_wanted FROM command BY(command_turn_wanted)
    WHERE fleet = :fleet AND turn_wanted IN :turns
"""
_FIRST_BEHIND = """
    SELECT turn_wanted, id, standing, lane FROM command BY(command_turn_wanted)
    WHERE fleet = :fleet AND turn_wanted = {each} ORDER BY standing, id LIMIT {limit}
"""
_STEP_UP = """
    UPDATE command SET turn_held = turn_wanted, turn_wanted = NULL, ready_lane = lane
    WHERE fleet = :fleet AND id IN :ids
"""
_STEP_BACK = """
    UPDATE command SET turn_wanted = turn_held, turn_held = NULL, ready_lane = NULL
    WHERE fleet = :fleet AND id IN :ids
"""


class Leaving(NamedTuple):
    """What a command is leaving: where it is, its rank (lower is sooner) and its turn."""

    home: str
    standing: int
    turn_held: str | None
    turn_wanted: str | None

    @property
    def turn(self) -> str | None:
        return self.turn_held or self.turn_wanted


class Step(NamedTuple):
    """A command that changes: from where (None: it is new) to where (None: it goes for good)."""

    id: str
    was: Leaving | None
    to: Placing | None

    @property
    def old_turn(self) -> str | None:
        return None if self.was is None else self.was.turn

    @property
    def new_turn(self) -> str | None:
        return None if self.to is None else self.to.turn

    def concerns_others(self) -> bool:
        """Whether it can make a difference to anybody else; one that is on its way and stays so cannot."""
        if self.old_turn is None and self.new_turn is None:
            return False
        return not (
            self.was is not None
            and self.to is not None
            and self.was.home != Home.LANE
            and self.to.home is not Home.LANE
            and self.was.turn_held == self.to.turn
        )


class Turns(NamedTuple):
    """Which of the changed commands have their turn, and the lanes of others that got or lost one."""

    fronts: frozenset[str]
    gained: frozenset[str]
    lost: frozenset[str]


def pass_on(say: Phrasing, fleet: str, steps: Sequence[Step]) -> Steps[Turns]:
    """Take the steps in order; commands that are not among them are moved up or back in their rows."""
    names = sorted({name for each in steps if each.concerns_others() for name in _turns_of(each)})
    if not names:
        return Turns(frozenset(), frozenset(), frozenset())
    changed = {each.id for each in steps}
    turns = {name: Turn() for name in names}
    lanes: dict[str, str] = {}
    for name, command_id, home, standing, lane in (yield say.ask(_HELD, fleet=fleet, turns=names)):
        lanes[command_id] = lane
        if home == Home.LANE:
            turns[name].front = standing, command_id
        else:
            turns[name].away.add(command_id)
    for name, command_id, standing, lane in (yield from _first_behind(say, fleet, turns, steps)):
        lanes[command_id] = lane
        turns[name].behind.put(command_id, standing)
    for each in steps:
        if each.was is not None and each.was.turn_wanted in turns:
            turns[each.was.turn_wanted].behind.put(each.id, each.was.standing)
    before = _fronts(turns.values())
    for each in steps:
        _take(each, turns)
    after = _fronts(turns.values())
    up, back = sorted(after - before - changed), sorted(before - after - changed)
    if up:
        yield say.ask(_STEP_UP, fleet=fleet, ids=up)
    if back:
        yield say.ask(_STEP_BACK, fleet=fleet, ids=back)
    return Turns(after, frozenset(lanes[each] for each in up), frozenset(lanes[each] for each in back))


def _first_behind(say: Phrasing, fleet: str, turns: dict[str, Turn], steps: Sequence[Step]) -> Steps[Rows]:
    """The first that waits for each turn and does not change by itself, where it may get the turn."""
    changed = {each.id for each in steps}
    # Nobody waits for a turn that nobody has, and nobody gets one that others go on having.
    names = [name for name, turn in turns.items() if (own := _having(turn)) and own <= changed]
    wanted = [row[0] for row in (yield say.ask(_WANTED, fleet=fleet, turns=names))] if names else []
    if not wanted:
        return []
    changing = Counter(each.was.turn_wanted for each in steps if each.was is not None)
    return (
        yield from say.look_for_each(
            _FIRST_BEHIND, wanted, [changing[name] + 1 for name in wanted], fleet=fleet
        )
    )


def _having(turn: Turn) -> set[str]:
    return turn.away | ({turn.front[1]} if turn.front is not None else set())


def _turns_of(step: Step) -> list[str]:
    return [name for name in (step.old_turn, step.new_turn) if name is not None]


def _fronts(turns: Iterable[Turn]) -> frozenset[str]:
    """Those that wait in their lane with their turn."""
    return frozenset(turn.front[1] for turn in turns if turn.front is not None)


def _take(step: Step, turns: dict[str, Turn]) -> None:
    old, new = step.old_turn, step.new_turn
    if old in turns and old != new:
        turns[old].give_up(step.id)
        turns[old].pass_on()
    if new not in turns or step.to is None:
        return
    if step.to.home is Home.LANE:
        turns[new].wait(step.id, -step.to.priority)
        turns[new].pass_on()
    else:
        turns[new].go(step.id)
