"""From runs to a table to read and JSON to keep."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from bench.run import Run

TITLES = {
    "publish-one": "publish one by one (jobs/s)",
    "publish-bulk": "publish in batches of 1,000 (jobs/s)",
    "settle": "handled and settled (jobs/s)",
    "latency": "from add to handler start (ms)",
    "memory": "worker's resident memory (MiB)",
}
HEADLINES = {"latency": "p50_ms", "memory": "end_mib"}
"""The figure that rows are compared by, where it is not the rate."""


@dataclass
class Row:
    """All runs of one peer (or variant of it) in one measure on one store."""

    store: str
    measure: str
    peer: str
    variant: str
    bare: bool
    runs: list[Run] = field(default_factory=list)
    native: bool = False
    acks: bool = True

    @property
    def label(self) -> str:
        return f"{self.peer} ({self.variant})" if self.variant else self.peer

    @property
    def headline(self) -> str:
        return HEADLINES.get(self.measure, "rate")

    @property
    def good(self) -> list[Run]:
        return [run for run in self.runs if not run.failure]

    @property
    def failures(self) -> list[str]:
        return [run.failure for run in self.runs if run.failure]

    def values(self, figure: str) -> list[float]:
        return [run.figures[figure] for run in self.good if figure in run.figures]

    def median(self, figure: str = "") -> float | None:
        """The median over the runs that succeeded; None if none did."""
        values = self.values(figure or self.headline)
        return statistics.median(values) if values else None

    def as_json(self) -> dict[str, Any]:
        figures = sorted({figure for run in self.good for figure in run.figures})
        newest = self.good[-1] if self.good else Run()
        return {
            "store": self.store,
            "measure": self.measure,
            "peer": self.peer,
            "variant": self.variant,
            "bare": self.bare,
            "native": self.native,
            "acks": self.acks,
            "settings": newest.settings,
            "versions": newest.versions,
            "median": {figure: self.median(figure) for figure in figures},
            "least": {figure: min(self.values(figure)) for figure in figures},
            "most": {figure: max(self.values(figure)) for figure in figures},
            "runs": [run.figures for run in self.good],
            "failures": self.failures,
        }


def tables(rows: list[Row]) -> str:
    """A table for each store and measure, in the order the rows were made."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.store, row.measure), []).append(row)
    return "\n\n".join(_table(store, measure, group) for (store, measure), group in groups.items())


def _table(store: str, measure: str, rows: list[Row]) -> str:
    remuda = next((row.median() for row in rows if row.peer == "remuda" and not row.variant), None)
    bare = _best([row for row in rows if row.bare], measure)
    lines = [["", *_columns(measure), "vs remuda", "vs bare driver"]]
    notes = []
    for row in rows:
        if row.good:
            lines.append([row.label, *_cells(row), _ratio(row.median(), remuda), _ratio(row.median(), bare)])
        if row.failures:
            share = f"{len(row.failures)} of {len(row.runs)} failed"
            notes.append(f"  {row.label}: {share}: {row.failures[-1]}")
    return "\n".join([f"{store}: {TITLES[measure]}", *aligned(lines), *notes])


def _best(rows: list[Row], measure: str) -> float | None:
    medians = [median for row in rows if (median := row.median()) is not None]
    if not medians:
        return None
    return min(medians) if measure in HEADLINES else max(medians)


def _columns(measure: str) -> list[str]:
    if measure == "latency":
        return ["p50", "least-most", "p99", "least-most", "at jobs/s"]
    if measure == "memory":
        return ["jobs", "start", "a tenth", "end", "since the tenth"]
    if measure == "settle":
        return ["median", "least-most", "jobs a run", "acks"]
    return ["median", "least-most", "jobs a run"]


def _cells(row: Row) -> list[str]:
    if row.measure == "latency":
        waits = [*_median_and_spread(row, "p50_ms", 1), *_median_and_spread(row, "p99_ms", 1)]
        return [*waits, f"{row.median('rate') or 0:.0f}"]
    if row.measure == "memory":
        figures = row.good[-1].figures
        resident = [figures[figure] for figure in ("start_mib", "tenth_mib", "end_mib")]
        grown = f"{figures['end_mib'] - figures['tenth_mib']:+.1f}"
        return [f"{figures['jobs']:,}", *(f"{mib:.1f}" for mib in resident), grown]
    rates = [*_median_and_spread(row, "rate", 0), f"{row.median('jobs') or 0:,.0f}"]
    return [*rates, "yes" if row.acks else "NO"] if row.measure == "settle" else rates


def _median_and_spread(row: Row, figure: str, digits: int) -> list[str]:
    values = row.values(figure)
    spread = f"{min(values):,.{digits}f}-{max(values):,.{digits}f}" if len(values) > 1 else ""
    return [f"{statistics.median(values):,.{digits}f}", spread]


def _ratio(value: float | None, reference: float | None) -> str:
    return f"{value / reference:.2f}x" if value is not None and reference else "-"


def aligned(lines: list[list[str]]) -> list[str]:
    """Columns side by side: labels to the left, everything else to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return [
        "  " + "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
        for line in lines
    ]
