"""What has come due, and what has ended: each is given to one caller, for a while."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from remuda.stores.commands import TIMED_HOMES, Home, StoredCommand
from remuda.stores.sql import command_fleet, command_turns
from remuda.stores.sql.command_looking import stored
from remuda.stores.sql.command_turns import Leaving, Step
from remuda.stores.sql.phrasing import Phrasing
from remuda.stores.sql.steps import Steps

PUBLISHED = "published"  # the home of one that has ended and whose subscribers know

_DUE = """
    SELECT due_at AS moment, id FROM command BY(command_due)
    WHERE fleet = :fleet AND home = {each} AND due_at <= :now ORDER BY due_at, id LIMIT {limit}
"""
_EXPIRED = """
    SELECT expires_at AS moment, id FROM command BY(command_expires)
    WHERE fleet = :fleet AND expires_at <= :now ORDER BY expires_at, id LIMIT :limit
"""
_RECORDS = "SELECT id, version, record FROM command WHERE fleet = :fleet AND id IN :ids"
# One that is past its `expires_at`, or will be before then, is not given to anybody else either.
_LOOK_AGAIN = """
    UPDATE command
    SET due_at = CASE WHEN home IN :homes THEN :again ELSE due_at END,
        expires_at = CASE WHEN expires_at < :again THEN :again ELSE expires_at END
    WHERE fleet = :fleet AND id IN :ids
"""
_ENDED = f"""
    SELECT id, version, record FROM command BY(command_due)
    WHERE fleet = :fleet AND home = '{Home.ENDED}' AND due_at IS NOT NULL
      AND (taken_until IS NULL OR taken_until <= :now)
    ORDER BY due_at, id LIMIT :limit
"""
_TAKE_ENDED = "UPDATE command SET taken_until = :until WHERE fleet = :fleet AND id IN :ids"
_PUBLISH = f"""
    UPDATE command SET home = '{PUBLISHED}', taken_until = NULL
    WHERE fleet = :fleet AND id IN :ids AND home = '{Home.ENDED}'
"""
_OLD = f"""
    SELECT id, home, standing, turn_held, turn_wanted FROM command BY(command_due)
    WHERE fleet = :fleet AND home = '{PUBLISHED}' AND due_at < :before ORDER BY due_at, id LIMIT :limit
"""
_REMOVE = "DELETE FROM command WHERE fleet = :fleet AND id IN :ids"
_REMOVE_NAMES = "DELETE FROM command_name WHERE fleet = :fleet AND command_id IN :ids"


def due(
    say: Phrasing, fleet: str, homes: Sequence[Home], *, limit: int, hold: timedelta, now: datetime
) -> Steps[list[StoredCommand]]:
    """What somebody has to look at, earliest first."""
    yield from command_fleet.alone(say, fleet)
    rows = list((yield say.ask(_EXPIRED, fleet=fleet, now=now, limit=limit)))
    timed = [home.value for home in dict.fromkeys(homes) if home in TIMED_HOMES]
    if timed:
        rows += yield from say.look_for_each(_DUE, timed, [limit] * len(timed), fleet=fleet, now=now)
    ids = list(dict.fromkeys(row[1] for row in sorted(map(tuple, rows))))[:limit]
    if not ids:
        return []
    yield say.ask(
        _LOOK_AGAIN, fleet=fleet, ids=ids, again=now + hold, homes=[home.value for home in TIMED_HOMES]
    )
    records = yield say.ask(_RECORDS, fleet=fleet, ids=ids)
    by_id = {row[0]: stored(row) for row in records}
    return [by_id[each] for each in ids]


def take_ended(
    say: Phrasing, fleet: str, *, limit: int, hold: timedelta, now: datetime
) -> Steps[list[StoredCommand]]:
    """Those whose subscribers do not know yet, oldest first."""
    yield from command_fleet.alone(say, fleet)
    rows = yield say.ask(_ENDED, fleet=fleet, now=now, limit=limit)
    if rows:
        yield say.ask(_TAKE_ENDED, fleet=fleet, ids=[row[0] for row in rows], until=now + hold)
    return [stored(row) for row in rows]


def mark_published(say: Phrasing, fleet: str, ids: Sequence[str]) -> Steps[None]:
    """Their subscribers know."""
    yield from command_fleet.alone(say, fleet)
    yield say.ask(_PUBLISH, fleet=fleet, ids=list(ids))


def prune(say: Phrasing, fleet: str, *, before: datetime, limit: int) -> Steps[int]:
    """Remove those that ended before then, with all their names; a turn that one still had is passed on."""
    yield from command_fleet.alone(say, fleet)
    rows = yield say.ask(_OLD, fleet=fleet, before=before, limit=limit)
    if not rows:
        return 0
    ids = [row[0] for row in rows]
    turns = yield from command_turns.pass_on(
        say, fleet, [Step(row[0], Leaving(*row[1:]), None) for row in rows]
    )
    yield from command_fleet.enter_lanes(say, fleet, (), ready=turns.gained)
    yield say.ask(_REMOVE_NAMES, fleet=fleet, ids=ids)
    yield say.ask(_REMOVE, fleet=fleet, ids=ids)
    return len(ids)
