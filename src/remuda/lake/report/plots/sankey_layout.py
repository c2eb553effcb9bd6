"""Where the states and moves of a lifecycle stand in its Sankey: the geometry, without the drawing.

States stand in columns in the order of the lifecycle, one lane below the other: the way to delivery on top,
the dead below it, those to be tried again at the bottom. A move that jumps columns is given a slot of its own
in each of them, so that it passes beside their states. A move back leaves on the right, runs on a track of
its own below everything, and enters on the left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from remuda.lake.report.data import Move
from remuda.lake.report.markup import path
from remuda.lake.report.plots.axes import RIGHT
from remuda.lifecycle import CommandStatus, State

ADDED = "added"  # where a message comes from: no state
NODE = 12.0  # the breadth of a state
_FIRST = 8.0
_TOP, _FLOW = 8.0, 230.0  # the room for the messages of the fullest column
_LABEL, _SLOT_GAP = 46.0, 8.0
_TRACK_GAP, _THICKEST_BACK = 22.0, 56.0
_THIN = 3.0


class Place(NamedTuple):
    """Where a state belongs: `column` from left to right, `lane` from top to bottom."""

    column: int
    lane: int


JOB_PLACES: Mapping[str, Place] = {
    ADDED: Place(0, 0),
    State.PENDING.value: Place(1, 0),
    State.PROCESSING.value: Place(2, 0),
    State.RETRYABLE.value: Place(3, 2),
    State.COMPLETED.value: Place(4, 0),
    State.FAILED.value: Place(4, 1),
    State.REMOVED.value: Place(5, 1),
}
COMMAND_PLACES: Mapping[str, Place] = {
    ADDED: Place(0, 0),
    CommandStatus.QUEUED.value: Place(1, 0),
    CommandStatus.SENT_TO_NS.value: Place(2, 0),
    CommandStatus.DELIVERED_TO_NS.value: Place(3, 0),
    CommandStatus.SENT_TO_DEVICE.value: Place(4, 0),
    CommandStatus.TO_RETRY.value: Place(5, 2),
    CommandStatus.DELIVERY_SUCCESSFUL.value: Place(6, 0),
    CommandStatus.DELIVERY_FAILED.value: Place(6, 1),
}


class Node(NamedTuple):
    """A state as it is drawn."""

    state: str
    column: int
    x: float
    y: float
    height: float
    entries: int
    exits: int


class Link(NamedTuple):
    """A move as it is drawn: a line along `d`, as broad as its count, with a place for a label."""

    move: Move
    width: float
    d: str
    back: bool
    label_x: float
    label_y: float
    room: float  # for words beside it


class Layout(NamedTuple):
    """A whole Sankey."""

    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    height: float
    columns: int


class _Flow(NamedTuple):
    """A move between two places; `slots` are the columns that it passes on its way."""

    move: Move
    source: str
    target: str
    back: bool
    slots: tuple[int, ...]


def drawable(moves: Sequence[Move], places: Mapping[str, Place]) -> list[Move]:
    """Those of the moves whose states both have a place."""
    return [
        move for move in moves if move.count > 0 and (move.left or ADDED) in places and move.entered in places
    ]


def lay_out(moves: Sequence[Move], places: Mapping[str, Place]) -> Layout:
    """The Sankey of the moves. Every breadth is the count times the same scale."""
    moves = drawable(moves, places)
    if not moves:
        return Layout((), (), 0.0, 0)
    columns = _used_columns(moves, places)
    flows = [_flow(move, places, columns) for move in moves]
    return _Drawing(flows, places, columns).layout()


def _used_columns(moves: Sequence[Move], places: Mapping[str, Place]) -> dict[str, int]:
    """The column of each state that occurs; columns in which there is none are left out."""
    states = {move.left or ADDED for move in moves} | {move.entered for move in moves}
    used = sorted({places[state].column for state in states})
    return {state: used.index(places[state].column) for state in states}


def _flow(move: Move, places: Mapping[str, Place], columns: Mapping[str, int]) -> _Flow:
    source, target = move.left or ADDED, move.entered
    first, last = columns[source], columns[target]
    return _Flow(move, source, target, last <= first, tuple(range(first + 1, last)))


class _Drawing:
    """The layout while it is made: first the stacks of the columns, then the ways between them."""

    def __init__(
        self, flows: Sequence[_Flow], places: Mapping[str, Place], columns: Mapping[str, int]
    ) -> None:
        self.flows = flows
        self.places = places
        self.columns = columns
        self.count = max(columns.values()) + 1
        self.entries: dict[str, int] = defaultdict(int)
        self.exits: dict[str, int] = defaultdict(int)
        for flow in flows:
            self.exits[flow.source] += flow.move.count
            self.entries[flow.target] += flow.move.count
        self.scale = self._scale()
        self.nodes: dict[str, Node] = {}
        self.slots: dict[tuple[_Flow, int], float] = {}  # the middle of a passing flow in a column
        self.bottom = 0.0
        for column in range(self.count):
            self._stack(column)

    def _value(self, state: str) -> int:
        return max(self.entries[state], self.exits[state])

    def _scale(self) -> float:
        """Units for one message: the fullest column fits, and no way back is too thick for its bends."""
        totals: dict[int, int] = defaultdict(int)
        for state, column in self.columns.items():
            totals[column] += self._value(state)
        for flow in self.flows:
            for column in flow.slots:
                totals[column] += flow.move.count
        back = max((flow.move.count for flow in self.flows if flow.back), default=0)
        return min(_FLOW / max(totals.values()), _THICKEST_BACK / back if back else _FLOW)

    def _x(self, column: int) -> float:
        gap = (RIGHT - _FIRST - NODE) / max(1, self.count - 1)
        return _FIRST + gap * column

    def _stack(self, column: int) -> None:
        """Give the states of a column, and the flows that pass it, their heights from the top down."""
        passing = [flow for flow in self.flows if column in flow.slots]
        items: list[tuple[tuple[float, int, int], str | _Flow]] = [
            ((self.places[state].lane, 1, 0), state) for state, at in self.columns.items() if at == column
        ]
        items += [(self._passing_order(flow), flow) for flow in passing]
        y = _TOP + _LABEL
        ordered = [item for _, item in sorted(items, key=lambda pair: pair[0])]
        thin = [item for item in ordered if isinstance(item, _Flow) and self._runs_above(item)]
        for place, flow in enumerate(thin):
            self.slots[flow, column] = 2.0 + 5 * place
        for place, item in enumerate(item for item in ordered if item not in thin):
            if isinstance(item, _Flow):
                height = self.scale * item.move.count
                y = max(y, self._level(item) - height / 2) if self.places[item.target].lane else y
                self.slots[item, column] = y + height / 2
            else:
                y += _LABEL - _SLOT_GAP if place else 0
                height = self.scale * self._value(item)
                y = max(y, self._wanted(item) - height / 2) if self.places[item].lane else y
                entries, exits = self.entries[item], self.exits[item]
                self.nodes[item] = Node(item, column, self._x(column), y, height, entries, exits)
            y += height + _SLOT_GAP
        self.bottom = max(self.bottom, y)

    def _runs_above(self, flow: _Flow) -> bool:
        """Whether it is so thin that it may pass above the names, and need not push the states down."""
        return self.places[flow.target].lane == 0 and self.scale * flow.move.count < _THIN

    def _level(self, flow: _Flow) -> float:
        """How low a flow has come so far: what is no way to delivery does not rise again."""
        passed = [self.slots[flow, column] for column in flow.slots if (flow, column) in self.slots]
        return passed[-1] if passed else 0.0

    def _wanted(self, state: str) -> float:
        """The level of what comes into a state, so that it stands beside it."""
        coming = [flow for flow in self.flows if flow.target == state and not flow.back]
        total = sum(flow.move.count for flow in coming)
        levels = (flow.move.count * self._other_end(flow, leaving=False) for flow in coming)
        return sum(levels) / total if total else 0.0

    def _passing_order(self, flow: _Flow) -> tuple[float, int, int]:
        lane = self.places[flow.target].lane
        # What passes on its way to delivery goes above the states of the column, the rest below them.
        return (lane - 0.5 if lane == 0 else float(lane), 0, self.columns[flow.source])

    def layout(self) -> Layout:
        leaving = self._ends(leaving=True)
        arriving = self._ends(leaving=False)
        tracks, height = self._tracks()
        links = []
        for flow in self.flows:
            start, end = leaving[flow], arriving[flow]
            width = self.scale * flow.move.count
            if flow.back:
                links.append(self._back(flow, width, start, end, tracks[flow]))
            else:
                links.append(self._forward(flow, width, start, end))
        return Layout(tuple(self.nodes.values()), tuple(links), height, self.count)

    def _ends(self, *, leaving: bool) -> dict[_Flow, float]:
        """Where each flow leaves or enters its state: in the order in which the other ends stand."""
        by_state: dict[str, list[_Flow]] = defaultdict(list)
        for flow in self.flows:
            by_state[flow.source if leaving else flow.target].append(flow)
        ends: dict[_Flow, float] = {}
        for state, flows in by_state.items():
            y = self.nodes[state].y
            for flow in sorted(flows, key=lambda flow: (flow.back, self._other_end(flow, leaving=leaving))):
                height = self.scale * flow.move.count
                ends[flow] = y + height / 2
                y += height
        return ends

    def _other_end(self, flow: _Flow, *, leaving: bool) -> float:
        if flow.slots:
            return self.slots[flow, flow.slots[0 if leaving else -1]]
        node = self.nodes[flow.target if leaving else flow.source]
        return node.y + node.height / 2

    def _forward(self, flow: _Flow, width: float, start: float, end: float) -> Link:
        x, y = self._x(self.columns[flow.source]) + NODE, start
        parts: list[str | float] = ["M", x, y]
        stops = [(self._x(column), self.slots[flow, column]) for column in flow.slots]
        stops.append((self._x(self.columns[flow.target]), end))
        for at, level in stops:
            middle = (x + at) / 2
            parts += ["C", middle, y, middle, level, at, level]
            if at != stops[-1][0]:
                parts += ["H", at + NODE]
            x, y = at + NODE, level
        label = self._x(self.columns[flow.source]) + NODE + 6
        return Link(flow.move, width, path(*parts), False, label, start, stops[0][0] - label)

    def _tracks(self) -> tuple[dict[_Flow, float], float]:
        """The level of each way back, the shortest on top, and the height of the whole."""
        back = [flow for flow in self.flows if flow.back]
        back.sort(key=lambda flow: (self.columns[flow.source] - self.columns[flow.target], flow.move.count))
        y = self.bottom + (4 if back else 0)
        tracks = {}
        for flow in back:
            width = self.scale * flow.move.count
            tracks[flow] = y + _TRACK_GAP + width / 2
            y += _TRACK_GAP + width
        return tracks, y + 12

    def _back(self, flow: _Flow, width: float, start: float, end: float, track: float) -> Link:
        radius = width / 2 + 6
        right = min(self._x(self.columns[flow.source]) + NODE, RIGHT - width - 8)
        left = self._x(self.columns[flow.target])
        parts: list[str | float] = ["M", self._x(self.columns[flow.source]) + NODE, start, "H", right]
        parts += ["a", radius, radius, 0, 0, 1, radius, radius, "V", track - radius]
        parts += ["a", radius, radius, 0, 0, 1, -radius, radius, "H", left]
        parts += ["a", radius, radius, 0, 0, 1, -radius, -radius, "V", end + radius]
        parts += ["a", radius, radius, 0, 0, 1, radius, -radius]
        middle, above = (left + right) / 2, track - width / 2 - 5
        return Link(flow.move, width, path(*parts), True, middle, above, right - left)
