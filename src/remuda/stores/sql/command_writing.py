"""Writing commands: the version decides, then keys; the rest moves along. A batch is a dozen statements."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from remuda.stores.command_trail import pack_moves, trail_name
from remuda.stores.commands import Arrival, Change, Home, Placing
from remuda.stores.sql import command_fleet, command_turns
from remuda.stores.sql.command_turns import Leaving, Step, Turns
from remuda.stores.sql.phrasing import Phrasing
from remuda.stores.sql.schema import command, command_name, transition
from remuda.stores.sql.steps import Steps

EXTERNAL = "external"
CORRELATION = "correlation"

_BEFORE = """
    SELECT id, version, home, lane, standing, ready_lane, turn_held, turn_wanted, merge_key, slot_lane,
        slot_until, names_digest
    FROM command WHERE fleet = :fleet AND id IN :ids
"""
_OWNERS = """
    SELECT merge_key, id FROM command BY(command_key) WHERE fleet = :fleet AND merge_key IN :keys
"""

_COLUMNS = (
    "fleet",
    "id",
    "version",
    "home",
    "status",
    "type",
    "device",
    "lane",
    "standing",
    "due_at",
    "taken_until",
    "ready_lane",
    "turn_held",
    "turn_wanted",
    "merge_key",
    "slot_lane",
    "slot_until",
    "hears",
    "expires_at",
    "airtime_ms",
    "names_digest",
    "record",
)


class _Before(NamedTuple):
    """What a row said; `slot_until` as the driver gives it, for it only ever goes back."""

    id: str
    version: int
    home: str
    lane: str
    standing: int
    ready_lane: str | None
    turn_held: str | None
    turn_wanted: str | None
    key: str | None
    slot_lane: str | None
    slot_until: Any
    names_digest: int

    @property
    def leaving(self) -> Leaving:
        return Leaving(self.home, self.standing, self.turn_held, self.turn_wanted)


class Written(NamedTuple):
    """For each change whether it was written, and what has come in by that."""

    verdicts: list[bool]
    arrivals: list[Arrival]


def write(
    say: Phrasing, fleet: str, changes: Sequence[Change], *, who: str, whole: bool, now: datetime
) -> Steps[Written]:
    """Write what can be written, in the order of the changes, and record it."""
    yield from command_fleet.alone(say, fleet)
    rows = yield say.ask(_BEFORE, fleet=fleet, ids=[change.id for change in changes])
    before = {row[0]: _Before(*row) for row in rows}
    verdicts = yield from _judge(say, fleet, changes, before)
    if whole and not all(verdicts):
        return Written([False] * len(changes), [])
    written = [change for change, accepted in zip(changes, verdicts, strict=True) if accepted]
    if not written:
        return Written(verdicts, [])
    steps = [
        Step(change.id, before[change.id].leaving if change.base else None, change.placing)
        for change in written
    ]
    turns = yield from command_turns.pass_on(say, fleet, steps)
    new_rows = [_row(fleet, change, before.get(change.id), turns, now) for change in written]
    yield say.put(command, _COLUMNS, new_rows, over=True)
    yield from _call(say, fleet, written, before)
    yield from _mark(say, fleet, written, before, turns, new_rows)
    yield from _record(say, fleet, written, who=who, now=now)
    return Written(verdicts, _arrivals(written, turns))


def _judge(
    say: Phrasing, fleet: str, changes: Sequence[Change], before: dict[str, _Before]
) -> Steps[list[bool]]:
    """For each change whether it can be written after those before it."""
    keys = sorted({change.placing.key for change in changes if change.placing.key is not None})
    owners: dict[str, str | None] = {}
    if keys:
        owners.update((row[0], row[1]) for row in (yield say.ask(_OWNERS, fleet=fleet, keys=keys)))
    verdicts: list[bool] = []
    for change in changes:
        row = before.get(change.id)
        key = change.placing.key
        owner = None if key is None else owners.get(key)
        accepted = (row.version if row else 0) == change.base and owner in (None, change.id)
        verdicts.append(accepted)
        if accepted and row is not None and row.key is not None:
            owners[row.key] = None
        if accepted and key is not None:
            owners[key] = change.id
    return verdicts


_READY_LANE = _COLUMNS.index("ready_lane")


def _row(fleet: str, change: Change, was: _Before | None, turns: Turns, now: datetime) -> tuple[Any, ...]:
    """A command's new row, in the order of `_COLUMNS`."""
    placing = change.placing
    waits = placing.home is Home.LANE
    has_turn = placing.turn is not None and (not waits or change.id in turns.fronts)
    slot_lane = was.slot_lane if was is not None and placing.uses_slot else None
    if slot_lane != placing.lane:
        slot_lane = None  # a slot is of one lane
    return (
        fleet,
        change.id,
        change.base + 1,
        placing.home.value,
        placing.status.value,
        placing.type,
        placing.device,
        placing.lane,
        -placing.priority,
        None if waits else placing.due_at or now,
        None,
        placing.lane if waits and (placing.turn is None or has_turn) else None,
        placing.turn if has_turn else None,
        None if has_turn else placing.turn,
        placing.key,
        slot_lane,
        was.slot_until if was is not None and slot_lane else None,
        placing.hears,
        None if placing.home is Home.ENDED else placing.expires_at,
        placing.airtime_ms,
        _digest(placing),
        change.record,
    )


def _digest(placing: Placing) -> int:
    """Tells whether the names of a command are those that were written last, without asking for them."""
    if not placing.external_ids and not placing.correlation_ids:
        return 0
    told = msgspec.msgpack.encode((placing.external_ids, placing.correlation_ids))
    return int.from_bytes(hashlib.blake2b(told, digest_size=8).digest(), "big", signed=True)


def _call(say: Phrasing, fleet: str, written: Sequence[Change], before: dict[str, _Before]) -> Steps[None]:
    """Keep the names of commands, where they are not those that were kept before."""
    names: dict[tuple[str, str, str, str], None] = {}
    for change in written:
        was = before.get(change.id)
        if _digest(change.placing) != (was.names_digest if was else 0):
            for kind, own in (
                (EXTERNAL, change.placing.external_ids),
                (CORRELATION, change.placing.correlation_ids),
            ):
                names.update(((fleet, name, kind, change.id), None) for name in own)
    if names:
        yield say.put(command_name, ("fleet", "name", "kind", "command_id"), list(names), over=False)


def _mark(
    say: Phrasing,
    fleet: str,
    written: Sequence[Change],
    before: dict[str, _Before],
    turns: Turns,
    new_rows: Sequence[Sequence[Any]],
) -> Steps[None]:
    """Have the lanes say whether anything in them can be claimed."""
    entered = {change.placing.lane for change in written if change.placing.home is Home.LANE}
    ready = {row[_READY_LANE] for row in new_rows} - {None} | turns.gained
    left = {lane for change in written if change.base and (lane := before[change.id].ready_lane)} | turns.lost
    yield from command_fleet.enter_lanes(say, fleet, entered, ready=ready)
    yield from command_fleet.unmark_lanes(say, fleet, left - ready)


def _record(say: Phrasing, fleet: str, written: Sequence[Change], *, who: str, now: datetime) -> Steps[None]:
    entries = [(trail_name(fleet), count, now, packed) for count, packed in pack_moves(written, who=who)]
    if entries:
        yield say.put(transition, ("queue", "count", "written_at", "entry"), entries, over=False)


def _arrivals(written: Sequence[Change], turns: Turns) -> list[Arrival]:
    homes = {change.placing.home for change in written}
    arrivals = []
    if Home.LANE in homes or turns.gained:
        arrivals.append(Arrival.LANE)
    if Home.ENDED in homes:
        arrivals.append(Arrival.END)
    return arrivals
