"""The report: what the page says, what its plots show, and what is gathered for it."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from remuda.errors import ConfigurationError
from remuda.lake.buckets import bucket_of, quantile
from remuda.lake.report import ReportData, gather, render
from remuda.lake.report.data import (
    AnomalyExample,
    AnomalyKind,
    Fault,
    Move,
    Period,
    QueueCounts,
    Ranked,
    Ranking,
    Slow,
    StageTimes,
    StepCounts,
    StepLatencies,
    wilson,
)
from remuda.lake.report.periods import Extent, slicing
from remuda.lake.report.plots.axes import count_ticks, duration_ticks, share_ticks, time_ticks
from remuda.lake.report.plots.sankey import sankey_plot, words_of
from remuda.lake.report.plots.sankey_layout import COMMAND_PLACES, JOB_PLACES, NODE, lay_out
from remuda.lake.report.plots.spreading import smoothed, spread
from remuda.lake.report.plots.survival import survival_of
from remuda.lake.report.wording import count, duration, moment, share
from remuda.lake.schemas import TABLES
from remuda.lifecycle import COMMAND_MOVES, JOB_MOVES

START = datetime(2025, 11, 9, tzinfo=UTC)
HOUR = timedelta(hours=1)
NASTY = "<script>alert('x')</script>\"'&\x00\u202e" + "long " * 60
VOID = {"meta", "br", "path", "rect", "line", "circle"}


class Page(HTMLParser):
    """A page taken apart: its tables by section, its tags, its texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: dict[str, list[str]] = defaultdict(list)
        self.tables: dict[str, list[list[list[str]]]] = defaultdict(list)
        self.open: list[str] = []
        self.section = "head"
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.tags.append((tag, values))
        if tag != "meta":
            self.open.append(tag)
        if tag == "section":
            self.section = values["id"]
        if tag == "table":
            self.tables[self.section].append([])
        if tag == "tr":
            self.tables[self.section][-1].append([])
        if tag in {"td", "th"}:
            self.tables[self.section][-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another tag"

    def handle_data(self, data: str) -> None:
        words = data.replace("\N{NO-BREAK SPACE}", " ")
        if not {"title", "style", "script"} & set(self.open):
            self.texts[self.section].append(words)
        if {"td", "th"} & set(self.open) and "svg" not in self.open:
            self.tables[self.section][-1][-1][-1] += words

    def of(self, tag: str, class_: str | None = None) -> Iterator[dict[str, str]]:
        for name, values in self.tags:
            if name == tag and (class_ is None or class_ in values.get("class", "").split()):
                yield values

    def said(self, section: str) -> str:
        return " ".join(self.texts[section])


def plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


def histogram(*durations_ms: int) -> dict[int, int]:
    counts: dict[int, int] = defaultdict(int)
    for ms in durations_ms:
        counts[bucket_of(ms)] += 1
    return dict(counts)


def all_moves(seed: int = 1) -> tuple[Move, ...]:
    pick = random.Random(seed)
    pairs = [*JOB_MOVES, *COMMAND_MOVES]
    return tuple(
        Move(left and left.value, entered.value, pick.choice([1, 40, 9_000, 250_000]), 12.5)
        for left, entered in pairs
    )


def sample(name: str = "emails") -> ReportData:
    """A small report with something in every part."""
    period = Period(START, START + 48 * HOUR, HOUR)
    steps = tuple(StepCounts(START + n * HOUR, 100 + n, 90 + n, n % 5, 1) for n in range(48))
    return ReportData(
        period=period,
        queues=(
            QueueCounts(
                source="main",
                queue=name,
                kind="job",
                added=5_928,
                delivered=5_448,
                dead=94,
                removed=48,
                live=338,
                retries=559,
                delivered_at_attempt={1: 5_000, 2: 400, 4: 48},
            ),
            QueueCounts(source="main", queue="devices:north", kind="command", delivered=1, dead=0),
        ),
        steps=steps,
        latencies=tuple(
            StepLatencies(kind, step.at, histogram(0, 3, 250 + 9 * n, 90_000))
            for kind in ("job", "command")
            for n, step in enumerate(steps)
        ),
        stages=(
            StageTimes("PENDING", histogram(0, 1, 2, 900)),
            StageTimes("PROCESSING", histogram(*range(20, 900, 7))),
            StageTimes("SENT_TO_NS", histogram(86_400_000)),
        ),
        moves=all_moves(),
        deaths=1_234,
        faults=(
            Fault(
                fingerprint="00ff00ff00ff00ff",
                fault=f"KeyError: {name}",
                count=1_230,
                first=START,
                last=START + HOUR,
                reasons=("panic",),
                queues=(name,),
                trend=(0, 1_200, 30),
            ),
        ),
        fault_kinds=3,
        ranking=Ranking(
            "gateway",
            tuple(
                Ranked(source="main", queue="devices:north", key=f"{name}-{n}", delivered=90 + n, dead=20 - n)
                for n in range(3)
            ),
            of=70,
        ),
        slowest=(
            Slow(
                what="device",
                source="main",
                queue="devices:north",
                key=name,
                delivered=12,
                p50_ms=1_500,
                p90_ms=60_000,
                max_ms=7_200_000,
            ),
        ),
        anomalies=(AnomalyKind("gap", 2, START, START), AnomalyKind("stopped", 1_000, None, None)),
        examples=(
            AnomalyExample(
                kind="gap", source="main", queue=name, message=name, seq=7, at=START, detail=f"missing {name}"
            ),
        ),
    )


def test_every_number_of_the_data_stands_in_a_table() -> None:
    data = sample()
    page = Page(render(data))
    assert not page.open
    assert page.tables["head"][0][1] == [
        "main", "emails", "5,928", "5,448", "94", "48", "338", "98.3 %", "0.10",
    ]  # fmt: skip
    shown = {row[0]: row[1:5] for row in page.tables["delivery"][0][1:]}
    assert shown == {
        plain(moment(step.at)): [count(n) for n in (step.added, step.delivered, step.dead, step.removed)]
        for step in data.steps
    }
    moves = {(row[0], row[1]): (row[2], row[4]) for table in page.tables["lifecycle"] for row in table[1:]}
    assert moves == {
        (move.left or "(added)", move.entered): (count(move.count), words_of(move)) for move in data.moves
    }
    stages = [row for table in page.tables["latency"] for row in table if row[0] == "PROCESSING"]
    times = data.stages[1].histogram
    assert stages == [
        ["PROCESSING", "126", *(plain(duration(quantile(times, part))) for part in (0.5, 0.9, 0.99))]
    ]
    survival = page.tables["survival"][0]
    assert survival[1] == ["emails", "5,542", "9.8 %", "2.6 %", "2.6 %", "1.7 %"]
    assert page.tables["faults"][1][1][:4] == ["00ff00ff00ff00ff", "1,230", "panic", "emails"]
    assert page.tables["ranking"][0][1] == [
        "emails-0", "main", "devices:north", "90", "20", "81.8 %", "73.6 %", "87.9 %",
    ]  # fmt: skip
    assert page.tables["slowest"][0][1][4:] == ["1.5 s", "1 min", "2 h"]
    assert [row[:2] for row in page.tables["anomalies"][0][1:]] == [["gap", "2"], ["stopped", "1,000"]]


def test_the_head_says_how_it_went() -> None:
    said = Page(render(sample())).said("head")
    for words in (
        "9 Nov 2025 00:00 to 11 Nov 2025 00:00 UTC",
        "source: main",
        "queue: emails",
        "fleet: north",
        "delivery rate 98.3 %",
        "job latency, median 3 ms 90 % within 1 min 29 s 99 % within 1 min 29 s",
        "retries per message 0.10",
        "anomalies 1,002 2 gap, 1,000 stopped",
    ):
        assert words in said
    assert "anomalies none" in Page(render(ReportData(period=sample().period))).said("head")


def test_whatever_a_name_holds_it_stays_text() -> None:
    text = render(sample(NASTY))
    page = Page(text)
    assert sum(tag == "script" for tag, _ in page.tags) == 1, "only the page's own"
    assert not [name for _, values in page.tags for name in values if name.startswith("on")]
    assert "\x00" not in text
    assert "\u202e" not in text
    assert text.encode()
    titles = [values["title"] for _, values in page.tags if "title" in values]
    whole = "<script>alert('x')</script>\"'&\ufffd\ufffd" + "long " * 60
    assert whole in titles, "the whole of a name that was cut"
    assert "<script>alert('x')</script>" in page.said("slowest")
    assert whole not in page.said("slowest")


def test_the_page_needs_nothing_but_itself() -> None:
    text = render(sample())
    assert not re.search(r"(https?:)?//[a-z]", text.replace("<!doctype", ""))
    page = Page(text)
    links = [values[name] for _, values in page.tags for name in ("href", "src") if name in values]
    assert links
    anchors = {values["id"] for values in page.of("section")}
    assert {link.removeprefix("#") for link in links} == anchors
    assert set(re.findall(r"url\(([^)]*)\)", text)) == {"#hatch"}
    used = set(re.findall(r"var\((--[a-z0-9-]+)\)", text))
    assert used <= set(re.findall(r"(--[a-z0-9-]+):", text)), "a colour that the style does not know"


def test_every_picture_can_be_read_without_seeing_it() -> None:
    page = Page(render(sample()))
    pictures = [values for values in page.of("svg") if values.get("role") == "img"]
    assert all(values["aria-label"] for values in pictures)
    assert len([values for values in pictures if values["class"] == "plot"]) == 9
    assert all(values["scope"] == "col" for values in page.of("th"))
    for section in ("delivery", "latency", "survival", "lifecycle", "faults", "ranking"):
        assert page.tables[section], section


def test_no_coordinate_is_lost() -> None:
    for seed in range(3):
        text = render(ReportData(period=sample().period, moves=all_moves(seed)))
        assert not re.search(r"\b(nan|inf)\b", text)
    assert not re.search(r"[ \"](nan|inf)[ \"]", render(sample()))


def test_a_lake_without_anything_says_so() -> None:
    asked = ReportData(queue="<b>", since=START)
    page = Page(render(asked))
    assert "nothing for the queue <b> since 9 Nov 2025 00:00 UTC" in page.said("head")
    # Something in the period, but no message came to an end.
    waiting = ReportData(
        period=Period(START, START + HOUR, timedelta(minutes=1)),
        queues=(QueueCounts(source="main", queue="q", kind="job", added=1, live=1),),
        steps=(StepCounts(START, 1),),
        moves=(Move(None, "PENDING", 1),),
    )
    page = Page(render(waiting))
    for section in ("delivery", "latency", "survival", "ranking"):
        assert "No message ended in this period." in page.said(section)
    assert "No message died" in page.said("faults")


def test_one_message_makes_a_page() -> None:
    one = ReportData(
        period=Period(START, START + timedelta(minutes=1), timedelta(minutes=1)),
        queues=(
            QueueCounts(source="s", queue="q", kind="job", added=1, delivered=1, delivered_at_attempt={1: 1}),
        ),
        steps=(StepCounts(START, 1, 1),),
        latencies=(StepLatencies("job", START, histogram(0)),),
        stages=(StageTimes("PENDING", histogram(0)),),
        moves=(Move(None, "PENDING", 1), Move("PENDING", "PROCESSING", 1, 0.0)),
        ranking=Ranking("queue", (Ranked(source="s", queue="q", key="q", delivered=1, dead=0),), 1),
    )
    page = Page(render(one))
    assert page.tables["survival"][0][1] == ["q", "1", "0 %", "0 %"]
    assert "Of 1 message that came to an end, 100 % were delivered." in page.said("delivery")


@pytest.mark.parametrize("kind", ["job", "command"])
def test_the_bands_of_the_lifecycle_are_as_broad_as_their_counts(kind: str) -> None:
    places = JOB_PLACES if kind == "job" else COMMAND_PLACES
    for seed in range(20):
        layout = lay_out(all_moves(seed), places)
        moves = JOB_MOVES if kind == "job" else COMMAND_MOVES
        assert len(layout.links) == len(moves)
        scale = layout.links[0].width / layout.links[0].move.count
        assert all(link.width == pytest.approx(scale * link.move.count) for link in layout.links)
        for node in layout.nodes:
            assert node.height == pytest.approx(scale * max(node.entries, node.exits))
        nodes = sorted(layout.nodes, key=lambda node: (node.column, node.y))
        for above, below in pairwise(nodes):
            assert above.column < below.column or above.y + above.height + 20 < below.y, "room for a name"
        lowest = max(node.y + node.height for node in nodes)
        assert lowest < layout.height
        assert all(link.label_y > lowest for link in layout.links if link.back), "ways back run below"
    drawn = Page(sankey_plot(all_moves(), kind) or "")
    bands = [float(band["stroke-width"]) for band in drawn.of("path", "band")]
    wanted = sorted((link.width for link in lay_out(all_moves(), places).links), reverse=True)
    assert bands == pytest.approx(wanted, abs=0.006)


def test_a_move_back_is_drawn_from_right_to_left() -> None:
    moves = [Move("PENDING", "PROCESSING", 10), Move("PROCESSING", "RETRYABLE", 4)]
    layout = lay_out([*moves, Move("RETRYABLE", "PROCESSING", 4)], JOB_PLACES)
    back = {(link.move.left, link.move.entered) for link in layout.links if link.back}
    assert back == {("RETRYABLE", "PROCESSING")}
    place = {node.state: node for node in layout.nodes}
    d = next(link.d for link in layout.links if link.back).split()
    assert float(d[1]) == pytest.approx(place["RETRYABLE"].x + NODE, abs=0.01)
    turns = [float(d[n + 1]) for n, part in enumerate(d) if part == "H"]
    assert turns[-1] == pytest.approx(place["PROCESSING"].x, abs=0.01)
    assert layout.columns == 3, "columns without a state are left out"
    assert place["PROCESSING"].height == pytest.approx(layout.links[0].width * 14 / 10)


def test_moves_that_the_lifecycle_does_not_know_are_told() -> None:
    moves = (Move("COMPLETED", "PENDING", 3), Move("PENDING", "LOST", 1), Move("QUEUED", "PENDING", 2))
    page = Page(render(ReportData(period=sample().period, moves=moves)))
    rows = [row for table in page.tables["lifecycle"] for row in table[1:]]
    assert sorted(row[:3] for row in rows) == [
        ["COMPLETED", "PENDING", "3"],
        ["PENDING", "LOST", "1"],
        ["QUEUED", "PENDING", "2"],
    ]
    assert {row[4] for row in rows} == {"not a move of the lifecycle"}


def test_the_survival_curve_ends_at_the_share_that_died() -> None:
    queue = QueueCounts(
        source="", queue="q", kind="job", delivered=90, dead=10, delivered_at_attempt={1: 60, 2: 20, 5: 10}
    )
    assert survival_of(queue, 5).left == (1.0, 0.4, 0.2, 0.2, 0.2, 0.1)
    assert survival_of(queue, 2).left == (1.0, 0.4, 0.2)
    # A curve that is cut short does not make those that were delivered later die.
    late = QueueCounts(source="", queue="q", kind="job", delivered=50, delivered_at_attempt={1: 49, 99: 1})
    page = Page(render(ReportData(period=sample().period, queues=(late,))))
    assert "0 % never, of 50 messages" in page.said("survival")
    assert "with all attempts it was 100 %" in page.said("survival")


def test_wilson_agrees_with_the_book() -> None:
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(10, 10)[1] == 1.0
    assert wilson(0, 0) == (0.0, 1.0)


def test_spreading_a_histogram_keeps_its_messages() -> None:
    durations = [0, 0, 1, 2, 5, 31, 32, 63, 64, 65, 1_000, 86_400_000]
    cells = spread(histogram(*durations), 0.3, 864_000_000, 48)
    assert sum(cells) == pytest.approx(len(durations))
    assert sum(smoothed([0.0] * 30 + [4.0] + [0.0] * 30, 2.5)) == pytest.approx(4)
    # Beyond the axis is at its edge.
    assert spread(histogram(10_000), 1, 100, 4)[-1] == pytest.approx(1)


def test_ticks_are_round_and_enclose_what_is_shown() -> None:
    assert [tick.label for tick in duration_ticks(3, 50_000)][::3] == ["1 ms", "1 s"]
    assert [tick.label for tick in duration_ticks(3, 50_000)][-1] == "1 min"
    assert duration_ticks(1e15, 1e16)[-1].label == "1 year"
    assert [tick.label for tick in count_ticks(1_700)] == ["0", "500", "1k", "1.5k", "2k"]
    assert [tick.label for tick in count_ticks(1)] == ["0", "1"]
    assert count_ticks(0)[-1].value > 0
    assert [tick.label for tick in share_ticks(0.93)][:2] == ["90 %", "92 %"]
    assert share_ticks(0.0)[0].value == 0
    labels = [tick.label for tick in time_ticks(START, START + 24 * HOUR)]
    assert labels == ["9 Nov", "03:00", "06:00", "09:00", "12:00", "15:00", "18:00", "21:00", "10 Nov"]
    for days in (1 / 144, 0.5, 3, 9, 40, 400, 3_000):
        ticks = time_ticks(START, START + timedelta(days=days))
        assert 2 <= len(ticks) <= 11, days


def test_numbers_are_written_for_people() -> None:
    assert count(1_234_567) == "1,234,567"
    assert [plain(share(value)) for value in (1, 0, 0.99999, 0.00001, 0.985, 0.9912, None)] == [
        "100 %", "0 %", ">99.99 %", "<0.01 %", "98.5 %", "99.12 %", "–",
    ]  # fmt: skip
    times = (0, 850, 3_200, 59_999, 250_000, 3_599_999, 7_500_000, 86_399_999, 273_600_000)
    assert [plain(duration(ms)) for ms in times] == [
        "0 ms", "850 ms", "3.2 s", "1 min", "4 min 10 s", "60 min", "2 h 5 min", "24 h", "3 d 4 h",
    ]  # fmt: skip


def extents(first: datetime, length: timedelta) -> dict[str, Extent]:
    """Those of measures of all grains."""
    last = first + length - timedelta(minutes=1)
    midnight = {"hour": 0, "minute": 0, "second": 0}
    return {
        "minute": Extent(first, last),
        "hour": Extent(first.replace(minute=0), last.replace(minute=0)),
        "day": Extent(first.replace(**midnight), last.replace(**midnight)),
    }


def test_a_period_of_any_length_has_steps_that_can_be_seen() -> None:
    first = START + timedelta(hours=5, minutes=17)
    for hours in (1, 2, 4, 11, 24, 100, 168, 1_000, 9_000, 30_000):
        chosen = slicing(extents(first, hours * HOUR), None, None)
        assert chosen is not None
        period = chosen.period
        assert 55 <= period.steps <= 202, hours
        assert period.since <= first < period.since + period.step
        assert period.since + period.steps * period.step == period.until >= first + hours * HOUR
        length = {"minute": timedelta(minutes=1), "hour": HOUR, "day": 24 * HOUR}[chosen.grain]
        assert not period.step % length


def test_a_period_reaches_as_far_as_there_is_something_to_show() -> None:
    there = extents(START, 10 * HOUR)
    assert slicing(there, START + 10 * HOUR, None) is None
    assert slicing(there, None, START) is None
    assert slicing({}, None, None) is None
    chosen = slicing(there, START - 900 * HOUR, START + 12 * HOUR)
    assert chosen is not None
    assert (chosen.period.since, chosen.period.until) == (START, START + 12 * HOUR)
    chosen = slicing(there, None, datetime(2099, 1, 1, tzinfo=UTC))
    assert chosen is not None
    assert chosen.period.until == START + 10 * HOUR
    # The minutes of the first days have expired: hours tell of them.
    expired = {**extents(START, 100 * HOUR), "minute": Extent(START + 90 * HOUR, START + 100 * HOUR)}
    chosen = slicing(expired, None, None)
    assert chosen is not None
    assert (chosen.grain, chosen.period.since, chosen.period.step) == ("hour", START, HOUR)


MINUTE = timedelta(minutes=1)
GRAINS = {"minute": MINUTE, "hour": HOUR, "day": 24 * HOUR}
Rows = list[dict[str, Any]]


def frame(spark: SparkSession, table: str, rows: Rows) -> DataFrame:
    """A table of the lake from what its rows have; the rest is NULL."""
    spec = TABLES[table]
    return spark.createDataFrame(
        [tuple(row.get(name) for name in spec.names) for row in rows], spec.spark_schema()
    )


def history(minute: int, outcome: str | None, **about: Any) -> dict[str, Any]:
    """A message that ended in that minute after START (or was added in it, if it lives)."""
    latency = about.get("latency_ms", 60_000)
    ended = START + minute * MINUTE if outcome else None
    added = ended - timedelta(milliseconds=latency) if ended else START + minute * MINUTE
    row = {"source": "main", "queue": "emails", "kind": "job", "name": "welcome", "outcome": outcome}
    row |= {"added_at": added, "first_at": added, "ended_at": ended, "latency_ms": latency}
    row |= {"attempts": 1, "retries": 0, "pending_at": added, "pending_ms": 40, "retryable_ms": 0}
    return row | about


def command(minute: int, outcome: str, gateway: str, device: str, **about: Any) -> dict[str, Any]:
    row = {"queue": "devices:north", "kind": "command", "name": "token", "gateway": gateway, "device": device}
    return history(minute, outcome, pending_at=None, queued_at=START, queued_ms=7, **row, **about)


def messages() -> Rows:
    """What the tests below gather: the period is the first two hours after START."""
    return [
        *(history(n % 100 + 6, "delivered", latency_ms=100 + n) for n in range(30)),
        *(
            history(50, "delivered", attempts=3, retries=2, retryable_at=START, retryable_ms=900)
            for _ in "12345"
        ),
        *(history(110, "dead", attempts=5, retries=4, latency_ms=5_000) for _ in range(4)),
        *(history(20, "removed") for _ in range(2)),
        *(history(30, None) for _ in range(3)),
        history(-200, "dead"),
        history(130, "delivered", latency_ms=20 * 60_000),  # within the period it was added, but still lived
        *(command(70, "dead" if n < 2 else "delivered", "g1", "d1") for n in range(10)),
        *(command(75, "delivered", "g2", "d2", latency_ms=90_000) for _ in range(20)),
        command(75, "delivered", "g2", "<d3>", latency_ms=3_600_000),
    ]


def measures(histories: Rows) -> Rows:
    """The measures of histories, in plain Python, as far as a report reads them."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}

    def add(at: datetime | None, of: Mapping[str, Any], what: str) -> None:
        for grain, length in GRAINS.items() if at else ():
            for dimension in ("queue", "gateway"):
                if of.get(dimension) is None:
                    continue
                period = START + (at - START) // length * length
                key = (grain, period, dimension, of["source"], of["queue"], of[dimension])
                names = ("grain", "period", "dimension", "source", "queue", "key")
                new = dict(zip(names, key, strict=True)) | {"histogram": defaultdict(int)}
                row = rows.setdefault(key, new | dict.fromkeys(("added", "delivered", "dead", "removed"), 0))
                row[what] += 1
                if what == "delivered":
                    row["histogram"][bucket_of(of["latency_ms"])] += 1

    for of in histories:
        add(of["added_at"], of, "added")
        add(of["ended_at"], of, of["outcome"] or "")
    return [row | {"latency_histogram": list(row["histogram"].items())} for row in rows.values()]


def transition(minute: int, left: str | None, entered: str, dwell_ms: int = 0) -> dict[str, Any]:
    at = START + minute * MINUTE
    return {"queue": "emails", "left": left, "entered": entered, "at": at, "dwell_ms": dwell_ms}


def death(minute: int, fingerprint: str, queue: str = "emails") -> dict[str, Any]:
    row = {"source": "main", "queue": queue, "fingerprint": fingerprint, "died_at": START + minute * MINUTE}
    return row | {"fault": f"fault {fingerprint}", "reason": "panic"}


def anomaly(minute: int | None, kind: str, seq: int) -> dict[str, Any]:
    at = None if minute is None else START + minute * MINUTE
    return {
        "source": "main",
        "queue": "emails",
        "kind": kind,
        "seq": seq,
        "at": at,
        "detail": f"{kind} {seq}",
    }


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> dict[str, DataFrame]:
    histories = messages()
    rows = {
        "histories": histories,
        "measures": measures(histories),
        "transitions": [
            *(transition(n, None, "PENDING") for n in range(10)),
            *(transition(n, "PENDING", "PROCESSING", 10 * n) for n in range(9)),
            transition(-1, None, "PENDING"),
            transition(120, None, "PENDING"),
        ],
        "dead_letters": [
            *(death(n, "aa") for n in (0, 1, 1, 119)),
            death(60, "bb", "devices:north"),
            death(120, "cc"),
            *(death(30, f"{n:02}") for n in range(20)),
        ],
        "anomalies": [
            *(anomaly(n, "gap", n) for n in range(7)),
            anomaly(-9_000, "stopped", 1),
            anomaly(-9_000, "illegal_move", 2),
        ],
    }
    return {name: frame(spark, name, of) for name, of in rows.items()}


@pytest.fixture(scope="module")
def gathered(tables: dict[str, DataFrame]) -> ReportData:
    """The two hours, asked for in other than whole minutes."""
    since, until = START + timedelta(seconds=30), START + 2 * HOUR - timedelta(seconds=30)
    return gather(tables, since=since, until=until)


def test_what_is_gathered_counts_each_message_once(gathered: ReportData) -> None:
    emails, north = gathered.queues
    assert emails == QueueCounts(
        source="main",
        queue="emails",
        kind="job",
        added=45,
        delivered=35,
        dead=4,
        removed=2,
        live=4,
        retries=26,
        delivered_at_attempt={1: 30, 3: 5},
    )
    assert (north.queue, north.kind, north.added, north.delivered, north.dead) == (
        "devices:north", "command", 31, 29, 2,
    )  # fmt: skip
    assert gathered.kinds == ("job", "command")
    assert gathered.delivery_rate == pytest.approx(64 / 70)


def test_the_steps_add_up_to_the_head(gathered: ReportData) -> None:
    assert gathered.period == Period(START, START + 2 * HOUR, MINUTE)
    assert len(gathered.steps) == 120
    for name in ("added", "delivered", "dead", "removed"):
        assert sum(getattr(step, name) for step in gathered.steps) == gathered.total(name)
    assert gathered.steps[110] == StepCounts(START + 110 * MINUTE, 1, 0, 4, 0)
    assert sum(sum(step.histogram.values()) for step in gathered.latencies) == gathered.total("delivered")
    commands = [step for step in gathered.latencies if step.kind == "command"]
    assert [step.at for step in commands] == [START + 70 * MINUTE, START + 75 * MINUTE]
    assert gathered.latency("command", 0.5) == pytest.approx(90_000, rel=0.02)
    assert gathered.latency("job", 1.0) == pytest.approx(60_000, rel=0.02)


def test_a_stage_that_was_not_entered_has_no_time(gathered: ReportData) -> None:
    stages = {stage.stage: stage.histogram for stage in gathered.stages}
    assert list(stages) == ["PENDING", "RETRYABLE", "QUEUED"]
    assert stages["PENDING"] == {bucket_of(40): 41}
    assert stages["RETRYABLE"] == {bucket_of(900): 5}
    assert stages["QUEUED"] == {7: 31}


def test_moves_and_deaths_are_those_of_the_period(gathered: ReportData) -> None:
    assert gathered.moves == (Move(None, "PENDING", 10, 0.0), Move("PENDING", "PROCESSING", 9, 40.0))
    assert (gathered.deaths, gathered.fault_kinds, len(gathered.faults)) == (25, 22, 15)
    first = gathered.faults[0]
    assert (first.fingerprint, first.fault, first.count) == ("aa", "fault aa", 4)
    assert (first.first, first.last) == (START, START + 119 * MINUTE)
    assert first.trend == (3, *[0] * 22, 1)


def test_gateways_are_ranked_and_the_slow_are_named(gathered: ReportData) -> None:
    assert gathered.ranking is not None
    assert (gathered.ranking.dimension, gathered.ranking.of) == ("gateway", 2)
    assert [(row.key, row.delivered, row.dead) for row in gathered.ranking.worst] == [
        ("g1", 8, 2),
        ("g2", 21, 0),
    ]
    devices = [slow for slow in gathered.slowest if slow.what == "device"]
    # The slowest of all was delivered only once, which says little.
    assert [(slow.key, slow.delivered, slow.p90_ms) for slow in devices] == [
        ("d2", 20, 90_000), ("d1", 8, 60_000), ("<d3>", 1, 3_600_000),
    ]  # fmt: skip
    names = {slow.key: slow.max_ms for slow in gathered.slowest if slow.what == "name"}
    assert names == {"welcome": 60_000, "token": 3_600_000}


def test_what_has_stopped_is_told_however_long_ago(gathered: ReportData) -> None:
    assert [(kind.kind, kind.count) for kind in gathered.anomalies] == [("gap", 7), ("stopped", 1)]
    assert [example.seq for example in gathered.examples] == [6, 5, 4, 3, 2, 1]
    page = Page(render(gathered))
    assert "7 gap, 1 stopped" in page.said("head")
    assert "numbers of a trail that no record has" in page.said("anomalies")


def test_one_queue_alone_can_be_reported(tables: dict[str, DataFrame]) -> None:
    data = gather(tables, since=None, until=None, queue="emails")
    assert [(queue.queue, queue.delivered, queue.dead, queue.live) for queue in data.queues] == [
        ("emails", 36, 5, 3)
    ]
    assert data.ranking is not None
    assert (data.ranking.dimension, data.ranking.worst[0].key) == ("queue", "emails")
    assert data.period is not None
    assert data.period.since <= START - 200 * MINUTE
    for name in ("added", "delivered", "dead", "removed"):
        assert sum(getattr(step, name) for step in data.steps) == data.total(name)
    assert "queue: emails" in Page(render(data)).said("head")


def test_a_period_without_anything_is_empty(spark: SparkSession, tables: dict[str, DataFrame]) -> None:
    asked = START + 400 * HOUR
    assert gather(tables, since=asked, until=None) == ReportData(since=asked)
    with pytest.raises(ConfigurationError, match="not given: measures, anomalies"):
        gather(
            {name: tables[name] for name in ("transitions", "histories", "dead_letters")},
            since=None,
            until=None,
        )
