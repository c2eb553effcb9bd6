"""What became of a rehearsal in virtual time, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from remuda.cli import output
from remuda.cli.jobs import state_cell
from remuda.cli.output import Cell, Column
from remuda.cli.times import span
from remuda.devices.command import Command, Outcome
from remuda.lifecycle import CommandStatus

if TYPE_CHECKING:
    from remuda.devices.simulator.rehearsal import Rehearsed
    from remuda.devices.simulator.world import Deeds, WorldOptions

_SHARES = (0.5, 0.9, 0.99)
_SHOWN_LIES = 10


def percentile(values: Sequence[timedelta], share: float) -> timedelta:
    """The value that this share of all is not above. `values` are in order."""
    return values[min(len(values) - 1, int(share * len(values)))]


def summary_of(told: Rehearsed) -> dict[str, Any]:
    """As JSON."""
    return {
        "asked": told.asked,
        "sent": told.sent,
        "ended": len(told.ended),
        "unended": told.unended,
        "told_again": told.told_again,
        "by_outcome": dict(Counter(_outcome(each) for each in told.ended)),
        "types": [_type_fields(*each) for each in _by_type(told.ended)],
        "attempts": {str(n): c for n, c in sorted(Counter(len(e.attempts) for e in told.ended).items())},
        "deeds": {field: getattr(told.deeds, field) for field in told.deeds.__struct_fields__},
        "lies": [{field: getattr(each, field) for field in each.__struct_fields__} for each in told.lies],
        "virtual_seconds": told.lasted.total_seconds(),
        "real_seconds": round(told.took.total_seconds(), 3),
        "speed_up": round(told.lasted / told.took),
    }


Group = tuple[str, str, CommandStatus, str, str]


def _by_type(ended: Sequence[Command]) -> list[tuple[Group, list[Command]]]:
    groups: dict[Group, list[Command]] = {}
    for each in ended:
        reason = "" if each.reason is None else each.reason.value
        key = (each.type.value, each.device.protocol.value, each.status, _outcome(each), reason)
        groups.setdefault(key, []).append(each)
    return sorted(groups.items(), key=lambda pair: (pair[0][:2], -len(pair[1])))


def _outcome(command: Command) -> str:
    return "" if command.outcome is None else command.outcome.value


def _latencies(commands: Sequence[Command]) -> list[timedelta]:
    return sorted(each.status_since - each.created_at for each in commands)


def _type_fields(group: Group, commands: Sequence[Command]) -> dict[str, Any]:
    kind, protocol, status, outcome, reason = group
    latencies = _latencies(commands)
    return {
        "type": kind,
        "protocol": protocol,
        "status": status.value,
        "outcome": outcome or None,
        "reason": reason or None,
        "commands": len(commands),
        "attempts": sum(len(each.attempts) for each in commands),
        **{f"p{share * 100:.0f}_seconds": percentile(latencies, share).total_seconds() for share in _SHARES},
    }


_TABLE = (
    Column("type"),
    Column("by"),
    Column("status"),
    Column("outcome"),
    Column("commands", right=True),
    Column("attempts", right=True),
    *(Column(f"p{share * 100:.0f}", right=True) for share in _SHARES),
    Column("reason", flexible=True),
)


def say_summary(told: Rehearsed, summary: dict[str, Any], options: WorldOptions) -> None:
    """For people."""
    output.table(_TABLE, [_row(*each) for each in _by_type(told.ended)])
    tries = Counter(min(len(each.attempts), 6) for each in told.ended)
    output.say()
    output.say("commands by attempts", "bold")
    output.bars(
        {_tries(number): tries[number] for number in range(min(tries), 7) if tries[number]},
        {},
        default="cyan",
    )
    output.say()
    output.facts(_facts(told, summary, options))
    for lie in told.lies[:_SHOWN_LIES]:
        output.say(f"  {lie.command}  {lie.type} to {lie.device}: {lie.why} ({lie.said})", "red")


def _tries(number: int) -> str:
    return "6 or more" if number == 6 else str(number)


def _row(group: Group, commands: Sequence[Command]) -> output.Cells:
    from remuda.cli.devices.looking import OUTCOME_STYLES

    kind, protocol, status, outcome, reason = group
    latencies = _latencies(commands)
    return (
        kind,
        Cell(protocol, output.FAINT),
        state_cell(status),
        Cell(outcome, OUTCOME_STYLES.get(outcome, "")),
        f"{len(commands):,}",
        f"{sum(len(each.attempts) for each in commands):,}",
        *(span(percentile(latencies, share)) for share in _SHARES),
        reason,
    )


def _facts(
    told: Rehearsed, summary: dict[str, Any], options: WorldOptions
) -> list[tuple[str | Cell, str | Cell]]:
    unknown = sum(each.outcome is Outcome.UNKNOWN for each in told.ended)
    open_end = f", {told.unended:,} WITHOUT AN END" if told.unended else ""
    joined = told.asked - told.sent
    others = f", {joined:,} joined others" if joined else ""
    speed = f"{summary['speed_up']:,} times as fast as real"
    return [
        ("world", f"{output.plural(options.meters, 'meter')}, {options.loss:.0%} loss, seed {options.seed}"),
        ("commands", f"{told.sent:,} sent{others}, {len(told.ended):,} ended{open_end}"),
        ("the meters", _deeds_text(told.deeds)),
        ("truth", _truth(told, unknown)),
        ("time", f"{span(told.lasted)} in {span(told.took)}: {speed}"),
    ]


def _deeds_text(deeds: Deeds) -> str:
    return (
        f"{deeds.reads:,} reads answered, {deeds.switched:,} times switched, {deeds.written:,} times set, "
        f"{deeds.tokens:,} tokens applied, {output.plural(deeds.refused, 'refusal')}"
    )


def _truth(told: Rehearsed, unknown: int) -> Cell:
    if told.lies:
        return Cell(f"{output.plural(len(told.lies), 'record')} say what the meters did not do", "bold red")
    honest = f"; {unknown:,} honestly unknown" if unknown else ""
    return Cell(f"every record agrees with its meter{honest}", "green")
