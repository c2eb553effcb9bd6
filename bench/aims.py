"""What Remuda means to reach on Redis and Valkey, set against the other rows of the same run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.report import Row, aligned

STORES = ("redis", "valkey")


@dataclass(frozen=True)
class Outcome:
    """An aim, and what came of it on one store; ``reached`` is None where something was not measured."""

    store: str
    aim: str
    wanted: str
    reached: float | None
    spread: tuple[float, float] | None
    beside: str
    met: bool | None

    def as_json(self) -> dict[str, Any]:
        return vars(self)


@dataclass(frozen=True)
class Times:
    """Our rate is at least so many times another row's: the best of those that ``beside`` accepts."""

    aim: str
    measure: str
    least: float
    beside: Callable[[Row], bool]
    variant: str = ""

    def outcome(self, store: str, rows: list[Row]) -> Outcome:
        wanted = f"{self.least:g}x or more"
        ours = _ours(rows, self.measure, self.variant)
        others = [row for row in rows if row.measure == self.measure and row.good and self.beside(row)]
        if ours is None or not others:
            return Outcome(store, self.aim, wanted, None, None, "", None)
        best = max(others, key=lambda row: row.median() or 0)
        reached = round((ours.median() or 0) / (best.median() or 1), 2)
        return Outcome(
            store, self.aim, wanted, reached, _paired(ours, best), best.label, reached >= self.least
        )


@dataclass(frozen=True)
class AtMost:
    """A figure of our own stays below a limit."""

    aim: str
    measure: str
    most: float
    figure: Callable[[dict[str, Any]], float]
    unit: str = ""

    def outcome(self, store: str, rows: list[Row]) -> Outcome:
        wanted = f"below {self.most:g}{self.unit}"
        ours = _ours(rows, self.measure)
        if ours is None:
            return Outcome(store, self.aim, wanted, None, None, "", None)
        values = sorted(round(self.figure(run.figures), 2) for run in ours.good)
        middle = values[len(values) // 2]
        spread = (values[0], values[-1]) if len(values) > 1 else None
        return Outcome(store, self.aim, wanted, middle, spread, "", middle < self.most)


def _is(peer: str, variant: str = "") -> Callable[[Row], bool]:
    return lambda row: (row.peer, row.variant) == (peer, variant)


def _pure_python_with_acks(row: Row) -> bool:
    return row.acks and not (row.native or row.bare or row.peer == "remuda")


AIMS: list[Times | AtMost] = [
    Times("drain beside chasquimq with its events", "settle", 5, _is("chasquimq")),
    Times("drain beside the best pure-Python peer with acks", "settle", 20, _pure_python_with_acks),
    Times("drain beside the bare loop", "settle", 0.5, _is("bare-redis-py")),
    Times("two processes beside one", "settle", 1.6, _is("remuda", "processes-1"), "processes-2"),
    Times("bulk add beside chasquimq", "publish-bulk", 1.5, _is("chasquimq")),
    AtMost("add to handler, p99", "latency", 10, lambda figures: figures["p99_ms"], " ms"),
    AtMost("memory at the end, of that at a tenth", "memory", 1.05, lambda f: f["end_mib"] / f["tenth_mib"]),
]


def outcomes(rows: list[Row]) -> list[Outcome]:
    """Every aim on every store that it is about and that Remuda was measured on."""
    by_store = {store: [row for row in rows if row.store == store] for store in STORES}
    return [
        aim.outcome(store, of_store)
        for store, of_store in by_store.items()
        if any(row.peer == "remuda" and row.good for row in of_store)
        for aim in AIMS
    ]


def table(found: list[Outcome]) -> str:
    """The outcomes to read; what was not measured in this run is left out."""
    lines = [["aims", "wanted", "reached", "least-most", "met", "beside"]]
    for each in found:
        if each.reached is not None:
            spread = "{:g}-{:g}".format(*each.spread) if each.spread else ""
            met = "yes" if each.met else "NO"
            lines.append(
                [f"{each.store}: {each.aim}", each.wanted, f"{each.reached:g}", spread, met, each.beside]
            )
    return "\n".join(aligned(lines)) if len(lines) > 1 else ""


def _ours(rows: list[Row], measure: str, variant: str = "") -> Row | None:
    return next(
        (row for row in rows if row.measure == measure and row.good and _is("remuda", variant)(row)), None
    )


def _paired(ours: Row, other: Row) -> tuple[float, float] | None:
    """The least and the most ratio of runs that were taken in the same turn."""
    ratios = [
        round(our.figures["rate"] / theirs.figures["rate"], 2)
        for our, theirs in zip(ours.runs, other.runs, strict=False)
        if not (our.failure or theirs.failure)
    ]
    return (min(ratios), max(ratios)) if len(ratios) > 1 else None
