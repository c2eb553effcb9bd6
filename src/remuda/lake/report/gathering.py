"""What the report needs, asked of Spark: few queries, each of which answers with a few rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING

from remuda.errors import ConfigurationError
from remuda.lake.report.data import (
    AnomalyExample,
    AnomalyKind,
    Fault,
    Move,
    Period,
    QueueCounts,
    Ranked,
    Ranking,
    ReportData,
    Slow,
    StageTimes,
    StepCounts,
    StepLatencies,
)
from remuda.lake.report.periods import Extent, Slicing, ceil_to, floor_to, slicing
from remuda.lake.report.questions import TREND, Asked, extents_of, moment_of, questions
from remuda.lake.schemas import STAGES, TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

_AT_ONCE = 4
Answers = Mapping[str, "Sequence[Row]"]


def gather(
    tables: Mapping[str, DataFrame],
    *,
    since: datetime | None,
    until: datetime | None,
    queue: str | None = None,
) -> ReportData:
    """What the tables of a lake say about a period, in whole steps of the plots; of one queue, if given."""
    missing = [name for name in TABLES if name not in tables]
    if missing:
        raise ConfigurationError(
            f"a report needs the tables {', '.join(TABLES)}; not given: {', '.join(missing)}"
        )
    asked = Asked(tables, since, until, queue)
    extents = {
        row["grain"]: Extent(moment_of(row["first"]), moment_of(row["last"]))
        for row in extents_of(asked).collect()
    }
    chosen = slicing(extents, since, until)
    if chosen is None:
        return ReportData(since=since, until=until, queue=queue)
    answers = _collected(questions(_in_whole_steps(asked, chosen), chosen))
    return _report(answers, chosen.period, asked)


def _in_whole_steps(asked: Asked, chosen: Slicing) -> Asked:
    """The bounds as the plots show them, so that all figures of the page are about the same messages."""
    step = chosen.period.step
    return asked._replace(
        since=floor_to(asked.since, step) if asked.since else None,
        until=ceil_to(asked.until, step) if asked.until else None,
    )


def _collected(frames: Mapping[str, DataFrame]) -> Answers:
    # Several at once: much of a small query is waiting for its next stage.
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        answers = {name: threads.submit(frame.collect) for name, frame in frames.items()}
        return {name: answer.result() for name, answer in answers.items()}


def _report(answers: Answers, period: Period, asked: Asked) -> ReportData:
    faults = answers["faults"]
    return ReportData(
        since=asked.since,
        until=asked.until,
        queue=asked.queue,
        period=period,
        queues=_queues(answers["counts"]),
        steps=_steps(answers["steps"], period),
        latencies=_latencies(answers["latencies"], period),
        stages=_stages(answers["stages"]),
        moves=_moves(answers["moves"]),
        deaths=faults[0]["all_deaths"] if faults else 0,
        faults=tuple(_fault(row) for row in faults),
        fault_kinds=faults[0]["all_faults"] if faults else 0,
        ranking=_ranking(answers["ranking"]),
        slowest=_slowest(answers["slowest"]),
        anomalies=_anomaly_kinds(answers["anomalies"]),
        examples=_examples(answers["anomalies"]),
    )


def _queues(rows: Sequence[Row]) -> tuple[QueueCounts, ...]:
    by_queue: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        by_queue[row["source"] or "", row["queue"], row["kind"]].append(row)
    counted = (_queue(*names, rows=of_queue) for names, of_queue in by_queue.items())
    return tuple(sorted(counted, key=lambda queue: (queue.kind != "job", -queue.settled, queue.queue)))


def _queue(source: str, queue: str, kind: str, *, rows: Sequence[Row]) -> QueueCounts:
    ended: dict[str, int] = defaultdict(int)
    attempts: dict[int, int] = {}
    for row in rows:
        ended[row["outcome"]] += row["messages"]
        if row["outcome"] == "delivered":
            attempts[row["attempts"] or 0] = row["messages"]
    return QueueCounts(
        source=source,
        queue=queue,
        kind=kind,
        added=sum(row["added"] for row in rows),
        delivered=ended["delivered"],
        dead=ended["dead"],
        removed=ended["removed"],
        live=sum(row["live"] for row in rows),
        retries=sum(row["retries"] or 0 for row in rows),
        delivered_at_attempt=attempts,
    )


def _steps(rows: Sequence[Row], period: Period) -> tuple[StepCounts, ...]:
    """Every step of the period, the empty ones too."""
    known = {row["step"]: row for row in rows}
    names = ("added", "delivered", "dead", "removed")
    return tuple(
        StepCounts(
            period.since + n * period.step, *(known[n][name] or 0 if n in known else 0 for name in names)
        )
        for n in range(period.steps)
    )


def _latencies(rows: Sequence[Row], period: Period) -> tuple[StepLatencies, ...]:
    histograms: dict[tuple[bool, int], dict[int, int]] = defaultdict(dict)
    for row in rows:
        histograms[row["commands"], row["step"]][row["bucket"]] = row["messages"]
    return tuple(
        StepLatencies("command" if commands else "job", period.since + step * period.step, histogram)
        for (commands, step), histogram in sorted(histograms.items(), key=lambda item: item[0])
    )


def _stages(rows: Sequence[Row]) -> tuple[StageTimes, ...]:
    histograms: dict[str, dict[int, int]] = defaultdict(dict)
    for row in rows:
        histograms[row["stage"]][row["bucket"]] = row["messages"]
    return tuple(StageTimes(stage, histograms[stage]) for stage in STAGES if stage in histograms)


def _moves(rows: Sequence[Row]) -> tuple[Move, ...]:
    moves = (Move(row["left"], row["entered"], row["times"], row["dwell_ms"]) for row in rows)
    return tuple(sorted(moves, key=lambda move: (-move.count, move.left or "", move.entered)))


def _fault(row: Row) -> Fault:
    trend = {part["part"]: part["deaths"] for part in row["trend"]}
    return Fault(
        fingerprint=row["fingerprint"] or "",
        fault=row["fault"] or "",
        count=row["deaths"],
        first=moment_of(row["first"]),
        last=moment_of(row["last"]),
        reasons=tuple(row["reasons"]),
        queues=tuple(row["queues"]),
        trend=tuple(trend.get(part, 0) for part in range(TREND)),
    )


def _ranking(rows: Sequence[Row]) -> Ranking | None:
    """Of gateways where there are any, else of lanes, else of queues."""
    for dimension in ("gateway", "lane", "queue"):
        of_it = sorted((row for row in rows if row["dimension"] == dimension), key=lambda row: row["place"])
        if of_it:
            return Ranking(dimension, tuple(_ranked(row) for row in of_it), of_it[0]["all"])
    return None


def _ranked(row: Row) -> Ranked:
    return Ranked(
        source=row["source"] or "",
        queue=row["queue"] or "",
        key=row["key"],
        delivered=row["delivered"],
        dead=row["dead"],
    )


def _slowest(rows: Sequence[Row]) -> tuple[Slow, ...]:
    return tuple(
        Slow(
            what=row["what"],
            source=row["source"] or "",
            queue=row["queue"],
            key=row["key"],
            delivered=row["delivered"],
            p50_ms=row["p50"],
            p90_ms=row["p90"],
            max_ms=row["slowest"],
        )
        for row in sorted(rows, key=lambda row: (row["what"], row["place"]))
    )


def _anomaly_kinds(rows: Sequence[Row]) -> tuple[AnomalyKind, ...]:
    kinds = (
        AnomalyKind(row["kind"], row["found"], _moment(row["first"]), _moment(row["last"]))
        for row in rows
        if row["place"] == 1
    )
    return tuple(sorted(kinds, key=lambda kind: (-kind.count, kind.kind)))


def _examples(rows: Sequence[Row]) -> tuple[AnomalyExample, ...]:
    return tuple(
        AnomalyExample(
            kind=row["kind"],
            source=row["source"] or "",
            queue=row["queue"],
            message=row["message"],
            seq=row["seq"],
            at=_moment(row["at"]),
            detail=row["detail"],
        )
        for row in sorted(rows, key=lambda row: (row["kind"], row["place"]))
    )


def _moment(value: int | None) -> datetime | None:
    return None if value is None else moment_of(value)
