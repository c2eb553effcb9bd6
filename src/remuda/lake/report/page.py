"""The page: its head, the sections in their order, and what makes it a file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from importlib import resources

from remuda.lake.report.data import QueueCounts, ReportData, share_of
from remuda.lake.report.markup import Markup, element
from remuda.lake.report.parts import Figures, Head, behind, long_text
from remuda.lake.report.rankings import (
    anomalies_section,
    faults_section,
    ranking_section,
    slowest_section,
)
from remuda.lake.report.sections import (
    delivery_section,
    latency_section,
    lifecycle_section,
    survival_section,
)
from remuda.lake.report.wording import count, cut, duration, moment, ratio, share

_CONTENTS = (
    ("delivery", "Delivery"),
    ("latency", "Latency"),
    ("survival", "Attempts"),
    ("lifecycle", "Lifecycle"),
    ("faults", "Dead letters"),
    ("ranking", "Ranking"),
    ("slowest", "Slowest"),
    ("anomalies", "Anomalies"),
)
# Browsers that cannot open <details> by style alone do it before they print.
_SCRIPT = (
    "addEventListener('beforeprint',()=>document.querySelectorAll('details').forEach(d=>{"
    "if(!d.open){d.open=true;d.dataset.shut=1}}));"
    "addEventListener('afterprint',()=>document.querySelectorAll('details[data-shut]').forEach(d=>{"
    "d.open=false;delete d.dataset.shut}))"
)


def render(data: ReportData, *, made_at: datetime | None = None) -> str:
    """The whole page as text: one file, no other resource, nothing that depends on a script."""
    title = f"Remuda report: {data.queue}" if data.queue else "Remuda report"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(_style())),
    )
    body = element("body", _patterns(), element("main", *_content(data, made_at)), _script())
    return "<!doctype html>\n" + element("html", head, body, lang="en") + "\n"


def _content(data: ReportData, made_at: datetime | None) -> list[Markup]:
    top = _header(data)
    foot = _footer(made_at)
    if data.period is None:
        asked = f" for the queue {data.queue}" if data.queue else ""
        asked += f" since {moment(data.since)} UTC" if data.since else ""
        asked += f" until {moment(data.until)} UTC" if data.until else ""
        empty = element("p", f"The lake has nothing{asked}: no message was added or ended.", class_="empty")
        return [top, empty, anomalies_section(data), foot]
    links = (element("a", words, href=f"#{anchor}") for anchor, words in _CONTENTS)
    return [
        top,
        _summary(data),
        element("nav", *links, aria_label="Sections"),
        delivery_section(data, data.period),
        latency_section(data, data.period),
        survival_section(data),
        lifecycle_section(data),
        faults_section(data),
        ranking_section(data),
        slowest_section(data),
        anomalies_section(data),
        foot,
    ]


def _header(data: ReportData) -> Markup:
    about = []
    if data.period is not None:
        about.append(f"{moment(data.period.since)} to {moment(data.period.until)} UTC")
    sources = sorted({queue.source for queue in data.queues})
    queues = sorted({queue.queue for queue in data.queues if queue.kind == "job"})
    fleets = sorted({queue.queue for queue in data.queues if queue.kind == "command"})
    about += [
        f"{one if len(names) == 1 else many}: {_listed(names)}"
        for one, many, names in (
            ("source", "sources", sources),
            ("queue", "queues", queues),
            ("fleet", "fleets", [name.removeprefix("devices:") for name in fleets]),
        )
        if names
    ]
    lines = (element("li", words) for words in about)
    return element("header", element("h1", "Delivery report"), element("ul", *lines, class_="about"))


def _listed(names: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(cut(name, 40) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {count(len(names) - most)} more"


def _summary(data: ReportData) -> Markup:
    counts = (
        _tile("delivery rate", share(data.delivery_rate), "of delivered + dead", class_="main"),
        _tile("added", count(data.total("added"))),
        _tile("delivered", count(data.total("delivered"))),
        _tile("dead", count(data.total("dead")), class_="bad" if data.total("dead") else ""),
        _tile("removed", count(data.total("removed"))),
        _tile("live", count(data.total("live")), "at the end"),
    )
    ways = (
        *(_latency_tile(data, kind) for kind in data.kinds),
        _tile("retries per message", ratio(data.retries_per_message), "of those that ended"),
        _anomalies_tile(data),
    )
    return element(
        "div",
        element("dl", *counts, class_="tiles"),
        element("dl", *ways, class_="tiles even"),
        _queues_table(data),
        class_="summary",
    )


def _tile(name: str, figure: str, *notes: str, class_: str = "") -> Markup:
    remarks = (element("dd", note, class_="remark") for note in notes)
    return element(
        "div", element("dt", name), element("dd", figure), *remarks, class_=f"tile {class_}".strip()
    )


def _latency_tile(data: ReportData, kind: str) -> Markup:
    p50, p90, p99 = (duration(data.latency(kind, part)) for part in (0.5, 0.9, 0.99))
    return _tile(f"{kind} latency, median", p50, f"90 % within {p90}", f"99 % within {p99}")


def _anomalies_tile(data: ReportData) -> Markup:
    found = sum(kind.count for kind in data.anomalies)
    kinds = ", ".join(f"{count(kind.count)} {kind.kind}" for kind in data.anomalies)
    figure = count(found) if found else "none"
    return _tile("anomalies", figure, kinds or "in this period", class_="bad" if found else "")


def _queues_table(data: ReportData) -> Markup:
    heads = (
        Head("source"),
        Head("queue"),
        *(Figures(name) for name in ("added", "delivered", "dead", "removed", "live", "delivery rate")),
        Figures("retries per message"),
    )
    rows = [_queue_row(queue) for queue in data.queues]
    return behind(heads, rows, "queue")


def _queue_row(queue: QueueCounts) -> tuple[str, ...]:
    return (
        queue.source,
        long_text(queue.queue, 50),
        count(queue.added),
        count(queue.delivered),
        count(queue.dead),
        count(queue.removed),
        count(queue.live),
        share(share_of(queue.delivered, queue.settled)),
        ratio(share_of(queue.retries, queue.settled + queue.removed)),
    )


def _footer(made_at: datetime | None) -> Markup:
    when = f" on {moment(made_at)} UTC" if made_at else ""
    return element("footer", f"Made by remuda lake report{when} from the tables of the lake. Times are UTC.")


def _style() -> str:
    return resources.files("remuda.lake.report").joinpath("style.css").read_text(encoding="utf-8")


def _script() -> Markup:
    return element("script", Markup(_SCRIPT))


def _patterns() -> Markup:
    """The hatching that marks what is dead, for eyes and printers that do not tell the colours apart."""
    ground = element("rect", class_="hatch-ground", width=6, height=6)
    line = element("path", class_="hatch-line", d="M -1 1 l 2 -2 M 0 6 l 6 -6 M 5 7 l 2 -2")
    pattern = element("pattern", ground, line, id="hatch", patternUnits="userSpaceOnUse", width=6, height=6)
    return element("svg", element("defs", pattern), class_="patterns", aria_hidden="true")
