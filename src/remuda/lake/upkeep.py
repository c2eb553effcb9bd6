"""Upkeep: finished days in few files, old ones gone by rule, and what nobody needs any more off the disk."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta

import msgspec

from remuda.errors import ConfigurationError
from remuda.lake.delta import DataFile, LakeTable
from remuda.lake.place import Lake

TARGET_BYTES = 128 * 1024 * 1024
# A reader may be at work on files that were replaced a while ago, and an ingest on files that do not count
# yet: neither are swept away before this has passed.
LEAST_GRACE = timedelta(hours=1)
GRACE = timedelta(days=7)


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What was done to one table."""

    table: str
    days_compacted: int = 0
    files_before: int = 0
    files_after: int = 0
    days_expired: int = 0
    rows_expired: int = 0
    files_swept: int = 0


def upkeep(
    lake: Lake,
    *,
    now: datetime,
    keep: Mapping[str, timedelta] | None = None,
    grace: timedelta = GRACE,
) -> list[Kept]:
    """Expire, compact and sweep every table. `keep` says how long which table's days are kept."""
    rules = dict(keep or {})
    check_rules(lake, rules, grace)
    return [
        _kept(name, table, now=now, keep=rules.get(name), grace=grace)
        for name, table in lake.tables.items()
        if table.exists()
    ]


def check_rules(lake: Lake, rules: Mapping[str, timedelta], grace: timedelta) -> None:
    """An error that names the rule, if one makes no sense."""
    for name, age in rules.items():
        if name not in lake.tables or name == "anomalies":
            known = ", ".join(each for each in lake.tables if each != "anomalies")
            raise ConfigurationError(f"no table {name!r} can expire by the day; these can: {known}")
        if age < timedelta(days=1):
            raise ConfigurationError(f"{name} must be kept for a day at least, not {age}")
    if grace < LEAST_GRACE:
        raise ConfigurationError(
            f"the grace must be {LEAST_GRACE} at least, not {grace}: readers may be at work"
        )


def _kept(name: str, table: LakeTable, *, now: datetime, keep: timedelta | None, grace: timedelta) -> Kept:
    expired = _expire(table, before=(now - keep).date()) if keep is not None else []
    before = len(table.files())
    days = _compact(table, today=now.date())
    hours = int(grace.total_seconds() // 3600)
    swept = table.open().vacuum(
        retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=True
    )
    return Kept(
        table=name,
        days_compacted=days,
        files_before=before,
        files_after=len(table.files()),
        days_expired=len({each.partition for each in expired}),
        rows_expired=sum(each.records for each in expired),
        files_swept=len(swept),
    )


def _expire(table: LakeTable, *, before: date) -> list[DataFile]:
    """Take away the days before a day. What is open has no day, and stays."""
    day, looked_at = before.isoformat(), table.version()
    old = [each for each in table.files() if each.partition is not None and each.partition < day]
    if old:
        table.commit([], removed=old, since=looked_at, what=f"expired: days before {before}")
    return old


def _compact(table: LakeTable, *, today: date) -> int:
    """Put the small files of each finished day together; the number of days."""
    by_day: dict[str, list[DataFile]] = {}
    for each in table.files():
        if each.partition is not None and each.size < TARGET_BYTES // 2:
            by_day.setdefault(each.partition, []).append(each)
    days = [day for day, small in by_day.items() if len(small) > 1 and day < today.isoformat()]
    for day in sorted(days):
        column = table.spec.partition.name
        table.open().optimize.compact(partition_filters=[(column, "=", day)], target_size=TARGET_BYTES)
    return len(days)
