"""The parts of the page with plots, each from the data to its markup."""

from __future__ import annotations

from remuda.lake.buckets import quantile
from remuda.lake.report.data import Move, Period, ReportData, StageTimes, StepCounts, share_of
from remuda.lake.report.markup import Child, Markup, element, join
from remuda.lake.report.parts import Figures, Head, behind, figure, section, sentence
from remuda.lake.report.plots.delivery import delivery_legend, delivery_plot
from remuda.lake.report.plots.heat import heat_legend, heat_plot
from remuda.lake.report.plots.legend import stroke_swatch
from remuda.lake.report.plots.ridges import ridges_plot
from remuda.lake.report.plots.sankey import kind_of, sankey_legend, sankey_plot, words_of
from remuda.lake.report.plots.survival import LARGEST, Survival, survival_plot, survivals
from remuda.lake.report.wording import count, counted, duration, moment, share, span
from remuda.lake.schemas import COMMAND_STAGES, JOB_STAGES

_STAGES = {"job": JOB_STAGES, "command": COMMAND_STAGES}
_ENDED_NONE = "No message ended in this period."


def delivery_section(data: ReportData, period: Period) -> Markup:
    """Delivered and dead over time."""
    if not any(step.delivered + step.dead for step in data.steps):
        return section("delivery", "Delivery over time", sentence(_ENDED_NONE))
    rows = [
        (
            moment(step.at),
            count(step.added),
            count(step.delivered),
            count(step.dead),
            count(step.removed),
            share(share_of(step.delivered, step.delivered + step.dead)),
        )
        for step in data.steps
        if step.added or step.delivered or step.dead or step.removed
    ]
    heads = (
        Head("from (UTC)"),
        Figures("added"),
        Figures("delivered"),
        Figures("dead"),
        Figures("removed"),
        Figures("delivery rate"),
    )
    return section(
        "delivery",
        "Delivery over time",
        sentence(_delivery_words(data, period)),
        figure(delivery_plot(data.steps, period), delivery_legend()),
        behind(heads, rows, "step"),
    )


def _delivery_words(data: ReportData, period: Period) -> str:
    settled = data.total("settled")
    words = (
        f"Of {counted(settled, 'message')} that came to an end, {share(data.delivery_rate)} were delivered. "
    )
    words += f"Each bar is {span(period.step)}."
    rated = [step for step in data.steps if step.delivered + step.dead >= max(1, settled // 1000)]
    if data.total("dead") and rated:
        worst = min(rated, key=_rate)
        words += f" The worst began on {moment(worst.at)}, with {share(_rate(worst))} delivered."
    return words


def _rate(step: StepCounts) -> float:
    return step.delivered / (step.delivered + step.dead)


def latency_section(data: ReportData, period: Period) -> Markup:
    """Time in each stage, and the whole way over time; jobs and commands apart."""
    parts = [part for kind in ("job", "command") for part in _latency_of(kind, data, period)]
    if not parts:
        return section("latency", "Where the time goes", sentence(_ENDED_NONE))
    return section("latency", "Where the time goes", *parts)


def _latency_of(kind: str, data: ReportData, period: Period) -> list[Markup]:
    order = _STAGES[kind]
    stages = sorted(
        (stage for stage in data.stages if stage.stage in order and stage.histogram),
        key=lambda stage: order.index(stage.stage),
    )
    latencies = [step for step in data.latencies if step.kind == kind and step.histogram]
    parts: list[Markup] = []
    if stages:
        parts += _stages_part(kind, stages)
    if latencies:
        heads = (
            Head("from (UTC)"),
            Figures("delivered"),
            Figures("median"),
            Figures("9 of 10 within"),
            Figures("99 of 100 within"),
        )
        rows = [
            (
                moment(step.at),
                count(sum(step.histogram.values())),
                *(duration(quantile(step.histogram, part)) for part in (0.5, 0.9, 0.99)),
            )
            for step in latencies
        ]
        words = f"From adding to delivery: the stronger a field, the more {kind}s took so long at that time."
        parts += [
            element("h3", f"The whole way of {kind}s, over time"),
            sentence(words),
            figure(heat_plot(latencies, period), heat_legend(latencies)),
            behind(heads, rows, "step"),
        ]
    return parts


def _stages_part(kind: str, stages: list[StageTimes]) -> list[Markup]:
    heads = (
        Head("stage"),
        Figures("messages"),
        Figures("median"),
        Figures("9 of 10 within"),
        Figures("99 of 100 within"),
    )
    rows = [
        (
            stage.stage,
            count(sum(stage.histogram.values())),
            *(duration(quantile(stage.histogram, part)) for part in (0.5, 0.9, 0.99)),
        )
        for stage in stages
    ]
    slowest = max(stages, key=lambda stage: quantile(stage.histogram, 0.5) or 0)
    words = (
        f"The time that ended {kind}s spent in each stage. The longest median is that of {slowest.stage}: "
        f"{duration(quantile(slowest.histogram, 0.5))}. Each ridge has the height of its own peak."
    )
    keys = join((stroke_swatch("mark half", "median"), stroke_swatch("mark most", "9 of 10 within (dashed)")))
    return [
        element("h3", f"Stages of {kind}s"),
        sentence(words),
        figure(ridges_plot(stages), keys),
        behind(heads, rows, "stage"),
    ]


def survival_section(data: ReportData) -> Markup:
    """What retries achieve."""
    title = "What another attempt achieves"
    curves = survivals(data.queues)
    if not curves:
        return section("survival", title, sentence(_ENDED_NONE))
    attempts = len(curves[0].left) - 1
    heads = (Head("queue"), Figures("messages"), *(Figures(f"after {k}") for k in range(1, attempts + 1)))
    rows = [
        (curve.queue.queue, count(curve.queue.settled), *(share(left) for left in curve.left[1:]))
        for curve in curves
    ]
    more = f" The {LARGEST} largest queues are shown." if len(data.queues) > LARGEST else ""
    return section(
        "survival",
        title,
        sentence(
            "The share of messages that is not yet delivered after each attempt: a steep step is an attempt "
            "that pays, a level line one that does not. A curve ends at the share that was never delivered. "
            f"{_first_words(curves)}{more}"
        ),
        figure(survival_plot(curves)),
        behind(heads, rows, "queue"),
    )


def _first_words(curves: list[Survival]) -> str:
    largest = curves[0]
    first, last = 1 - largest.left[1], share_of(largest.queue.delivered, largest.queue.settled)
    name = largest.queue.queue
    return f"In {name}, the first attempt delivered {share(first)}; with all attempts it was {share(last)}."


def lifecycle_section(data: ReportData) -> Markup:
    """The moves, as they were made."""
    title = "The lifecycle, as it was lived"
    if not data.moves:
        return section("lifecycle", title, sentence("No state changed in this period."))
    parts: list[Child] = []
    for kind in ("job", "command"):
        moves = sorted((move for move in data.moves if kind_of(move) == kind), key=_move_order)
        if moves:
            parts += _lifecycle_of(kind, moves)
    unknown = [move for move in data.moves if kind_of(move) is None]
    if unknown:
        parts += [
            element("h3", "States that the lifecycle does not know"),
            behind(_MOVE_HEADS, [_move_row(move) for move in unknown], "move"),
        ]
    words = (
        "Each band is a move from one state to the next, as broad as the times that it was made; "
        "ways back run below. A message that is tried again passes a state more than once."
    )
    return section("lifecycle", title, sentence(words), *parts)


_MOVE_HEADS = (
    Head("from"),
    Head("to"),
    Figures("times"),
    Figures("mean time before it"),
    Head("meaning"),
)


def _lifecycle_of(kind: str, moves: list[Move]) -> list[Markup]:
    plot = sankey_plot(moves, kind)
    parts = [element("h3", f"{kind.capitalize()}s")]
    if plot is not None:
        parts.append(figure(plot, sankey_legend(moves)))
    return [*parts, behind(_MOVE_HEADS, [_move_row(move) for move in moves], "move")]


def _move_order(move: Move) -> tuple[bool, int]:
    return (move.left is not None, -move.count)


def _move_row(move: Move) -> tuple[Child, ...]:
    time = duration(move.mean_dwell_ms) if move.left else "–"
    return (move.left or "(added)", move.entered, count(move.count), time, words_of(move))
