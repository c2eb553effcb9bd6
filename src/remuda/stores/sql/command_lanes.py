"""Lanes: what leaves them and when, and holds.

A claim goes round the open lanes, those served longest ago first, one command from each at a time.
What a lane's pace allows is asked of the rows of lanes and slots, so that commands that cannot leave
are not looked at, however many wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from remuda.stores.commands import Claimed, Home, Pace, StoredCommand
from remuda.stores.sql import command_fleet
from remuda.stores.sql.phrasing import Phrasing
from remuda.stores.sql.schema import command_lane
from remuda.stores.sql.steps import Steps

FOREVER = datetime(9999, 12, 31, tzinfo=UTC)  # a hold without an end

# When the last slot but none comes free, or NULL when there is a free one: the n-th use, from the last.
_FULL_UNTIL = """
    (SELECT slot_until FROM command BY(command_slots)
     WHERE command.fleet = :fleet AND command.slot_lane = lanes.lane AND slot_until > :now
     ORDER BY slot_until DESC LIMIT 1 OFFSET :others_{n})"""
_OPEN = """
    SELECT {n} AS pace, lane, served, opens_at, earned_at FROM command_lane AS lanes
    WHERE fleet = :fleet AND ready = 1 AND (held_until IS NULL OR held_until <= :now) AND {fits}"""
_NEXT = """
    SELECT min(GREATEST(MOMENT(:now), coalesce(held_until, MOMENT(:now)){moments})) AS opens
    FROM command_lane AS lanes
    WHERE fleet = :fleet AND ready = 1 AND (held_until IS NULL OR held_until < :forever) AND {fits}"""
_SLOTS_USED = """
    SELECT slot_lane, count(*) FROM command BY(command_slots)
    WHERE fleet = :fleet AND slot_lane IN :lanes AND slot_until > :now GROUP BY slot_lane
"""
_FIRST_READY = """
    SELECT ready_lane, id, version, record, airtime_ms FROM command BY(command_ready)
    WHERE fleet = :fleet AND ready_lane = {each} ORDER BY standing, id LIMIT {limit}
"""
_TAKE_OFF = """
    UPDATE command
    SET home = :home, due_at = :due_at, ready_lane = NULL, slot_lane = lane, slot_until = :slot_until
    WHERE fleet = :fleet AND id IN :ids
"""
_SERVE = "UPDATE command_fleet SET served = :served WHERE fleet = :fleet"
_HOLD = """
    UPDATE command_lane SET held_until = :until, held_why = :why WHERE fleet = :fleet AND lane = :lane
"""


class _Lane(msgspec.Struct):
    """An open lane in the course of a claim. `left` counts what its pace lets out; None: all there is."""

    name: str
    pace: Pace
    served: int
    opens_at: datetime | None
    earned_at: datetime | None
    left: int | None = None
    waiting: list[tuple[StoredCommand, int]] = []
    more: bool = False  # than were looked up

    def lets_out(self, now: datetime) -> bool:
        if not self.waiting or self.left == 0:
            return False
        burst = self.pace.burst
        return self.pace.duty is None or self.earned_at is None or self.earned_at - burst <= now

    def let_out(self, now: datetime) -> StoredCommand:
        command, airtime_ms = self.waiting.pop(0)
        if self.left is not None:
            self.left -= 1
        if self.pace.duty is not None:
            cost = timedelta(milliseconds=airtime_ms / self.pace.duty)
            self.earned_at = max(self.earned_at or now, now) + cost
            self.opens_at = self.earned_at - self.pace.burst
        elif self.pace.every is not None:
            self.opens_at = now + self.pace.every
        return command


class _Left(NamedTuple):
    """A command that left its lane."""

    command: StoredCommand
    lane: _Lane


def claim(
    say: Phrasing, fleet: str, paces: Sequence[Pace], *, limit: int, hold: timedelta, now: datetime
) -> Steps[Claimed]:
    """Take off what may leave."""
    if not paces:
        return Claimed([], None)
    yield from command_fleet.alone(say, fleet)
    values = _values(fleet, paces, now)
    found: list[_Left] = []
    going_on = True
    while going_on and len(found) < limit:
        lanes = yield from _open_lanes(say, paces, values, at_most=limit - len(found))
        if not lanes:
            break
        left, going_on = yield from _go_round(say, fleet, lanes, at_most=limit - len(found), now=now)
        found += left
        yield from _write_down(say, fleet, lanes, left, due_at=now + hold, now=now)
    opens = yield say.ask(_next_sql(paces), **values)
    next_at = min((say.moment(row[0]) for row in opens if row[0] is not None), default=None)
    return Claimed([each.command for each in found], next_at)


def _open_lanes(
    say: Phrasing, paces: Sequence[Pace], values: dict[str, Any], *, at_most: int
) -> Steps[list[_Lane]]:
    """Lanes from which something may leave now, the one served longest ago first, and how much may."""
    rows = yield say.ask(_open_sql(paces), at_most=at_most, **values)
    lanes = [
        _Lane(lane, paces[n], served, say.moment_or_none(opens_at), say.moment_or_none(earned_at))
        for n, lane, served, opens_at, earned_at in rows
    ]
    with_slots = [lane.name for lane in lanes if lane.pace.slots is not None]
    used: dict[str, int] = {}
    if with_slots:
        counts = yield say.ask(_SLOTS_USED, fleet=values["fleet"], lanes=with_slots, now=values["now"])
        used = {row[0]: row[1] for row in counts}
    for lane in lanes:
        limits = []
        if lane.pace.slots is not None:
            limits.append(max(0, lane.pace.slots - used.get(lane.name, 0)))
        if lane.pace.duty is None and lane.pace.every:
            limits.append(1)
        lane.left = min(limits, default=None)
    return lanes


def _go_round(
    say: Phrasing, fleet: str, lanes: Sequence[_Lane], *, at_most: int, now: datetime
) -> Steps[tuple[list[_Left], bool]]:
    """One command from each lane in turn, as far as each one's share; whether it is worth to go on."""
    share = -(-at_most // len(lanes))
    shares = [share if lane.left is None else min(share, lane.left) for lane in lanes]
    by_name = {lane.name: lane for lane in lanes}
    rows = yield from say.look_for_each(_FIRST_READY, list(by_name), shares, fleet=fleet)
    for lane in lanes:
        lane.waiting = []
    for name, command_id, version, record, airtime_ms in rows:
        stored = StoredCommand(id=command_id, version=version, record=bytes(record))
        by_name[name].waiting.append((stored, airtime_ms))
    for lane, looked_up in zip(lanes, shares, strict=True):
        lane.more = len(lane.waiting) == looked_up and lane.left != looked_up
    found: list[_Left] = []
    going = list(lanes)
    while going and len(found) < at_most:
        going = [lane for lane in going if lane.lets_out(now)]
        found += [_Left(lane.let_out(now), lane) for lane in going[: at_most - len(found)]]
    # Others were perhaps not even looked at, when there are as many as could be served.
    return found, bool(found) and (len(lanes) >= at_most or any(lane.more for lane in lanes))


def _write_down(
    say: Phrasing,
    fleet: str,
    lanes: Sequence[_Lane],
    found: Sequence[_Left],
    *,
    due_at: datetime,
    now: datetime,
) -> Steps[None]:
    """Commands on their way, each with a slot; lanes locked, and served for the time being."""
    number = yield from command_fleet.served(say, fleet)
    by_slot: dict[timedelta, list[str]] = {}
    for place, each in enumerate(found, start=1):
        by_slot.setdefault(each.lane.pace.slot_for, []).append(each.command.id)
        each.lane.served = number + place
    for slot_for, ids in by_slot.items():
        yield say.ask(
            _TAKE_OFF,
            fleet=fleet,
            ids=ids,
            home=Home.TO_NS.value,
            due_at=due_at,
            slot_until=now + slot_for,
        )
    if served := {each.lane.name: each.lane for each in found}:
        rows = [(fleet, lane.name, lane.served, lane.opens_at, lane.earned_at) for lane in served.values()]
        yield say.put(command_lane, ("fleet", "lane", "served", "opens_at", "earned_at"), rows, over=True)
        yield say.ask(_SERVE, fleet=fleet, served=number + len(found))
    yield from command_fleet.unmark_lanes(say, fleet, [lane.name for lane in lanes])


# -- what the paces become in SQL


def _values(fleet: str, paces: Sequence[Pace], now: datetime) -> dict[str, Any]:
    values: dict[str, Any] = {"fleet": fleet, "now": now, "forever": FOREVER}
    for n, pace in enumerate(paces):
        values[f"prefix_{n}"] = pace.prefix
        values[f"length_{n}"] = len(pace.prefix)
        values[f"earned_{n}"] = now + pace.burst
        values[f"others_{n}"] = (pace.slots or 1) - 1
    return values


def _fits(n: int) -> str:
    """Pace `n` is the first one that fits."""
    own = f"substr(lane, 1, :length_{n}) = :prefix_{n}"
    return " AND ".join([own, *(f"substr(lane, 1, :length_{m}) <> :prefix_{m}" for m in range(n))])


def _open_sql(paces: Sequence[Pace]) -> str:
    parts = []
    for n, pace in enumerate(paces):
        if pace.slots is not None and pace.slots <= 0:
            continue
        sql = _OPEN.format(n=n, fits=_fits(n))
        if pace.every is not None:
            sql += " AND (opens_at IS NULL OR opens_at <= :now)"
        if pace.duty is not None:
            sql += f" AND (earned_at IS NULL OR earned_at <= :earned_{n})"
        if pace.slots is not None:
            sql += f" AND {_FULL_UNTIL.format(n=n)} IS NULL"
        parts.append(sql)
    union = " UNION ALL ".join(parts or [_OPEN.format(n=0, fits="1 = 0")])
    return f"SELECT * FROM ({union}) AS open_lanes ORDER BY served, lane LIMIT :at_most"


def _next_sql(paces: Sequence[Pace]) -> str:
    parts = []
    for n, pace in enumerate(paces):
        if pace.slots is not None and pace.slots <= 0:
            continue
        moments = ""
        if pace.every is not None or pace.duty is not None:
            moments += ", coalesce(opens_at, MOMENT(:now))"
        if pace.slots is not None:
            moments += f", coalesce({_FULL_UNTIL.format(n=n)}, MOMENT(:now))"
        parts.append(_NEXT.format(moments=moments, fits=_fits(n)))
    return " UNION ALL ".join(parts or [_NEXT.format(moments="", fits="1 = 0")])


# -- holds


def hold(say: Phrasing, fleet: str, lane: str, *, until: datetime | None, why: str) -> Steps[None]:
    """Nothing leaves the lane until then."""
    yield from command_fleet.alone(say, fleet)
    yield from command_fleet.enter_lanes(say, fleet, [lane], ready=())
    yield say.ask(_HOLD, fleet=fleet, lane=lane, until=until or FOREVER, why=why)


def release(say: Phrasing, fleet: str, lane: str) -> Steps[None]:
    """End a hold."""
    yield from command_fleet.alone(say, fleet)
    yield say.ask(_HOLD, fleet=fleet, lane=lane, until=None, why=None)
