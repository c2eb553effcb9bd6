"""Looking at commands: by id, key, device or name; lanes; numbers. Nobody is kept waiting by it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from remuda.lifecycle import CommandStatus
from remuda.stores.commands import CommandStats, Home, LaneStats, StoredCommand
from remuda.stores.sql.command_lanes import FOREVER
from remuda.stores.sql.command_writing import EXTERNAL
from remuda.stores.sql.phrasing import Phrasing
from remuda.stores.sql.steps import Row, Steps

_LOAD = "SELECT id, version, record FROM command WHERE fleet = :fleet AND id IN :ids"
_OWNERS = """
    SELECT id, version, record, merge_key FROM command BY(command_key)
    WHERE fleet = :fleet AND merge_key IN :keys
"""
_HEARERS = """
    SELECT id, version, record, hears FROM command BY(command_hears)
    WHERE fleet = :fleet AND hears IN :devices
"""
_FIND = f"""
    SELECT name, max(command_id) FROM command_name
    WHERE fleet = :fleet AND name IN :names AND kind = '{EXTERNAL}' GROUP BY name
"""
_NAMED = """
    SELECT id FROM command WHERE fleet = :fleet AND id = :name
    UNION SELECT command_id FROM command_name WHERE fleet = :fleet AND name = :name
"""
_LANES = """
    SELECT lane, opens_at, held_until, held_why FROM command_lane WHERE fleet = :fleet
"""
_WAITING = f"""
    SELECT lane, count(*) FROM command BY(command_waiting)
    WHERE fleet = :fleet AND home = '{Home.LANE}' GROUP BY lane
"""
_SLOTS_USED = """
    SELECT slot_lane, count(*) FROM command BY(command_slots)
    WHERE fleet = :fleet AND slot_lane IS NOT NULL AND slot_until > :now GROUP BY slot_lane
"""
_BY_STATUS = "SELECT status, count(*) FROM command WHERE fleet = :fleet GROUP BY status"
_UNPUBLISHED = f"""
    SELECT count(*) FROM command WHERE fleet = :fleet AND home = '{Home.ENDED}' AND due_at IS NOT NULL
"""
_SIGNALS = "SELECT count(*) FROM command_signal WHERE fleet = :fleet AND forget_at IS NULL"


def stored(row: Row) -> StoredCommand:
    """A record from its id, its version and its bytes."""
    return StoredCommand(id=row[0], version=row[1], record=bytes(row[2]))


def _id(row: Row) -> Any:
    return row[0]


def load(say: Phrasing, fleet: str, ids: Sequence[str]) -> Steps[dict[str, StoredCommand]]:
    rows = yield say.ask(_LOAD, fleet=fleet, ids=list(ids))
    return {row[0]: stored(row) for row in rows}


def owners(say: Phrasing, fleet: str, keys: Sequence[str]) -> Steps[dict[str, StoredCommand]]:
    rows = yield say.ask(_OWNERS, fleet=fleet, keys=list(keys))
    return {row[3]: stored(row) for row in rows}


def hearers(say: Phrasing, fleet: str, devices: Sequence[str]) -> Steps[dict[str, list[StoredCommand]]]:
    found: dict[str, list[StoredCommand]] = {}
    for row in sorted((yield say.ask(_HEARERS, fleet=fleet, devices=list(devices))), key=_id):
        found.setdefault(row[3], []).append(stored(row))
    return found


def find(say: Phrasing, fleet: str, external_ids: Sequence[str]) -> Steps[dict[str, str]]:
    """Where two commands have the same external id, the newer one's is meant."""
    rows = yield say.ask(_FIND, fleet=fleet, names=list(external_ids))
    return {row[0]: row[1] for row in rows}


def named(say: Phrasing, fleet: str, name: str) -> Steps[list[str]]:
    rows = yield say.ask(_NAMED, fleet=fleet, name=name)
    return sorted(row[0] for row in rows)


def lanes(say: Phrasing, fleet: str, *, now: datetime) -> Steps[list[LaneStats]]:
    """Lanes in which something waits, or that are held, by name."""
    waiting = {row[0]: row[1] for row in (yield say.ask(_WAITING, fleet=fleet))}
    used = {row[0]: row[1] for row in (yield say.ask(_SLOTS_USED, fleet=fleet, now=now))}
    found = []
    for lane, opens_at, held_until, held_why in (yield say.ask(_LANES, fleet=fleet)):
        until = _later(say.moment_or_none(held_until), now)
        if waiting.get(lane) or until is not None:
            found.append(
                LaneStats(
                    lane=lane,
                    waiting=waiting.get(lane, 0),
                    slots_used=used.get(lane, 0),
                    opens_at=_later(say.moment_or_none(opens_at), now),
                    held_until=None if until == FOREVER else until,
                    held_why=None if until is None else held_why,
                )
            )
    return sorted(found, key=lambda each: each.lane)


def _later(moment: datetime | None, now: datetime) -> datetime | None:
    return moment if moment is not None and moment > now else None


def stats(say: Phrasing, fleet: str) -> Steps[CommandStats]:
    by_status = yield say.ask(_BY_STATUS, fleet=fleet)
    unpublished = yield say.ask(_UNPUBLISHED, fleet=fleet)
    signals = yield say.ask(_SIGNALS, fleet=fleet)
    return CommandStats(
        by_status={CommandStatus(row[0]): row[1] for row in by_status},
        signals=signals[0][0],
        unpublished=unpublished[0][0],
    )


def commands(
    say: Phrasing, fleet: str, *, before: str | None, limit: int, **wanted: str | None
) -> Steps[list[StoredCommand]]:
    """Those with the wanted `status`, `lane` and `device`, newest first, from below an id on."""
    asked: dict[str, Any] = {column: value for column, value in wanted.items() if value is not None}
    conditions = "".join(f" AND {column} = :{column}" for column in sorted(asked))
    if before is not None:
        conditions += " AND id < :before"
        asked["before"] = before
    sql = f"""
        SELECT id, version, record FROM command WHERE fleet = :fleet{conditions}
        ORDER BY id DESC LIMIT :limit"""
    rows = yield say.ask(sql, fleet=fleet, limit=limit, **asked)
    return [stored(row) for row in rows]
