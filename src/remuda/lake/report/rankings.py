"""The parts of the page that name names: faults, gateways, devices, anomalies."""

from __future__ import annotations

from remuda.lake.report.data import AnomalyExample, Fault, Ranking, ReportData, Slow, wilson
from remuda.lake.report.markup import Child, Markup, element, join
from remuda.lake.report.parts import Figures, Head, behind, figure, long_text, section, sentence, table
from remuda.lake.report.plots.ranking import ranking_plot
from remuda.lake.report.plots.small import bar, spark_line, time_range
from remuda.lake.report.wording import NOTHING, brief_moment, count, counted, cut, duration, moment, share

_MANY = {"gateway": "Gateways", "lane": "Lanes", "queue": "Queues"}


def faults_section(data: ReportData) -> Markup:
    """Dead letters by fingerprint, the most frequent first."""
    title = "Dead letters by fault"
    if not data.faults:
        return section("faults", title, sentence("No message died in this period."))
    words = f"{counted(data.deaths, 'death')} with {counted(data.fault_kinds, 'fault')}"
    if len(data.faults) < data.fault_kinds:
        top = sum(fault.count for fault in data.faults)
        words += f"; the {len(data.faults)} most frequent account for {share(top / max(1, data.deaths))}"
    words += (
        ". The trend is that of the period, each on its own scale. "
        "A message may die again after a replay, and counts each time."
    )
    heads = (Head("fault"), Figures("deaths"), Head(""), Head("trend"), Head("first seen"), Head("last seen"))
    highest = data.faults[0].count
    rows = [
        (
            _fault_cell(fault),
            count(fault.count),
            bar(fault.count, highest),
            spark_line(fault.trend),
            brief_moment(fault.first),
            brief_moment(fault.last),
        )
        for fault in data.faults
    ]
    return section(
        "faults",
        title,
        sentence(words),
        element("figure", table(heads, rows, class_="picture")),
        _faults_table(data.faults),
    )


def _fault_cell(fault: Fault) -> Markup:
    where = element("span", cut(", ".join((*fault.queues, *fault.reasons)), 70), class_="about-fault")
    return join((long_text(fault.fault or fault.fingerprint, 110, "fault"), where))


def _faults_table(faults: tuple[Fault, ...]) -> Markup:
    heads = (
        Head("fingerprint"),
        Figures("deaths"),
        Head("reason"),
        Head("queues"),
        Head("first (UTC)"),
        Head("last (UTC)"),
        Head("fault"),
    )
    rows = [
        (
            element("code", fault.fingerprint),
            count(fault.count),
            ", ".join(fault.reasons),
            long_text(", ".join(fault.queues), 60),
            moment(fault.first),
            moment(fault.last),
            long_text(fault.fault, 300, "fault"),
        )
        for fault in faults
    ]
    return behind(heads, rows, "fault")


def ranking_section(data: ReportData) -> Markup:
    """Gateways, lanes or queues by delivery rate."""
    ranking = data.ranking
    if ranking is None or not ranking.worst:
        return section("ranking", "Gateways and queues", sentence("No message ended in this period."))
    heads = (
        Head(ranking.dimension),
        Head("source"),
        Head("queue"),
        Figures("delivered"),
        Figures("dead"),
        Figures("delivery rate"),
        Figures("at least"),
        Figures("at most"),
    )
    rows = []
    for row in ranking.worst:
        low, high = wilson(row.delivered, row.delivered + row.dead)
        rows.append(
            (
                long_text(row.key, 60),
                row.source,
                row.queue,
                count(row.delivered),
                count(row.dead),
                share(row.rate),
                share(low),
                share(high),
            )
        )
    return section(
        "ranking",
        f"{_MANY[ranking.dimension]} by delivery rate",
        sentence(_ranking_words(ranking)),
        figure(ranking_plot(ranking)),
        behind(heads, rows, ranking.dimension),
    )


def _ranking_words(ranking: Ranking) -> str:
    shown = len(ranking.worst)
    whole = f"The {shown} worst of {count(ranking.of)}" if shown < ranking.of else f"All {count(ranking.of)}"
    if ranking.of == 1:
        whole = "The only one"
    return (
        f"{whole}, ordered by the upper end of the interval in which the true rate lies with 95 % confidence "
        "(Wilson): those that are surely bad come first, and few messages make a wide interval."
    )


def slowest_section(data: ReportData) -> Markup:
    """The slowest devices and names."""
    parts: list[Child] = []
    for what, title in (("device", "Devices"), ("name", "Job names and command types")):
        rows = [slow for slow in data.slowest if slow.what == what]
        if rows:
            parts += [element("h3", title), _slow_table(what, rows)]
    if not parts:
        parts = [sentence("No message was delivered in this period.")]
    else:
        words = (
            "By the time within which 9 of 10 of their messages were delivered. The dot is the median, "
            "the thick line reaches to 9 of 10, the thin one to the slowest (logarithmic). "
            "Those with fewer than three deliveries come last."
        )
        parts.insert(0, sentence(words))
    return section("slowest", "The slowest", *parts)


def _slow_table(what: str, rows: list[Slow]) -> Markup:
    heads = (
        Head(what),
        Head("queue"),
        Figures("delivered"),
        Head(""),
        Figures("median"),
        Figures("9 of 10 within"),
        Figures("slowest"),
    )
    lowest, highest = min(row.p50_ms for row in rows), max(row.max_ms for row in rows)
    cells = [
        (
            long_text(row.key, 40),
            long_text(row.queue, 30),
            count(row.delivered),
            time_range(row.p50_ms, row.p90_ms, row.max_ms, lowest, highest),
            duration(row.p50_ms),
            duration(row.p90_ms),
            duration(row.max_ms),
        )
        for row in rows
    ]
    return table(heads, cells, class_="picture")


def anomalies_section(data: ReportData) -> Markup:
    """What cannot be, or should not."""
    title = "Anomalies"
    if not data.anomalies:
        words = (
            "None found: no move that the lifecycle does not know, no record missing or doubled, "
            "no clock that ran backwards, no message that stopped."
        )
        return section("anomalies", title, sentence(words))
    heads = (Head("kind"), Figures("found"), Head("first (UTC)"), Head("last (UTC)"), Head("meaning"))
    rows = [
        (kind.kind, count(kind.count), moment(kind.first), moment(kind.last), _meaning(kind.kind))
        for kind in data.anomalies
    ]
    found = sum(kind.count for kind in data.anomalies)
    return section(
        "anomalies",
        title,
        sentence(
            f"{counted(found, 'record')} that cannot be, or should not. Examples of each kind are below."
        ),
        table(heads, rows),
        _examples(data.examples),
    )


def _meaning(kind: str) -> str:
    from remuda.lake.anomalies import ANOMALY_MEANINGS, Anomaly

    known = {anomaly.value: ANOMALY_MEANINGS[anomaly] for anomaly in Anomaly}
    return known.get(kind, NOTHING)


def _examples(examples: tuple[AnomalyExample, ...]) -> Markup | None:
    if not examples:
        return None
    heads = (
        Head("kind"),
        Head("queue"),
        Head("message"),
        Figures("record"),
        Head("at (UTC)"),
        Head("what"),
    )
    rows = [
        (
            example.kind,
            long_text(example.queue, 40),
            long_text(example.message or NOTHING, 40),
            count(example.seq),
            moment(example.at),
            long_text(example.detail or NOTHING, 120),
        )
        for example in examples
    ]
    return element(
        "details", element("summary", f"Examples ({counted(len(rows), 'record')})"), table(heads, rows)
    )
