"""What is in a lake, and how far it is behind its stores."""

from __future__ import annotations

import msgspec

from remuda.lake.building.news import BUILT
from remuda.lake.deaths import program_of_deaths
from remuda.lake.ingest import BATCHES
from remuda.lake.place import Lake
from remuda.lake.schemas import DEAD_LETTERS, TRANSITIONS
from remuda.lake.trails import program_of, spans


class TableStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A table in numbers. `built` is the batch up to which it goes; `days` are its oldest and newest."""

    table: str
    rows: int
    files: int
    bytes: int
    built: int
    oldest: str | None
    newest: str | None


class TrailStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far a trail was ingested. `lost` were trimmed in the store before they could be."""

    trail: str
    ingested: int
    recorded: int
    behind: int
    lost: int


class LakeStatus(msgspec.Struct, frozen=True, kw_only=True):
    place: str
    batches: int
    tables: list[TableStatus]
    trails: list[TrailStatus]


def status(lake: Lake, *, url: str | None = None, source: str) -> LakeStatus:
    """The lake in numbers; with the store's URL also what waits there. Needs no Spark."""
    programs = {TRANSITIONS.name: BATCHES, DEAD_LETTERS.name: program_of_deaths(source)}
    tables = [
        _table(lake, name, programs.get(name, BUILT)) for name in lake.tables if lake.tables[name].exists()
    ]
    return LakeStatus(
        place=lake.root.uri,
        batches=lake.transitions.progress(BATCHES),
        tables=tables,
        trails=[] if url is None else _trails(lake, url, source),
    )


def _table(lake: Lake, name: str, program: str) -> TableStatus:
    table = lake.tables[name]
    files = table.files()
    dated = table.spec.partition.type == "date"
    days = sorted(each.partition for each in files if dated and each.partition is not None)
    return TableStatus(
        table=name,
        rows=sum(each.records for each in files),
        files=len(files),
        bytes=sum(each.size for each in files),
        built=table.progress(program),
        oldest=days[0] if days else None,
        newest=days[-1] if days else None,
    )


def _trails(lake: Lake, url: str, source: str) -> list[TrailStatus]:
    found = spans(url)
    noted = lake.transitions.all_progress(program_of(source, trail) for trail in found)
    return [
        TrailStatus(
            trail=trail,
            ingested=(ingested := noted[program_of(source, trail)]),
            recorded=span.last,
            behind=max(0, span.last - max(ingested, span.first - 1)),
            lost=max(0, span.first - 1 - ingested),
        )
        for trail, span in sorted(found.items())
    ]
