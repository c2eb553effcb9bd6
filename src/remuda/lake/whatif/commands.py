"""What if the commands of some histories had been given other deadlines."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from remuda.devices.command import CommandType, Protocol
from remuda.devices.timings import Timings
from remuda.lake.whatif.command_play import KEPT, Pace, Plan, play_command
from remuda.lake.whatif.result import WhatIf, answer
from remuda.lake.whatif.survival import count_steps
from remuda.lake.whatif.trails import DEAD, is_whole, unplayed_rows, with_records
from remuda.lifecycle import CommandStatus

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PUSHED = f"{Protocol.LORAWAN}:"
_SECOND = timedelta(seconds=1)
_USUAL = Pace(_SECOND, _SECOND, _SECOND)  # where no command at all went well


def what_if_commands(
    histories: DataFrame,
    transitions: DataFrame,
    *,
    timings: Timings,
    base: Timings | None = None,
    seed: int = 0,
) -> WhatIf:
    """The commands of these histories under other deadlines, beside how they fared.

    `transitions` hold at least the records of these histories; others are passed over. `base` are the
    deadlines that were in force (the defaults, unless given): they tell what a record does not say.

    >>> what_if_commands(histories, transitions, timings=parse_timings(["device=30s", "gateway=5m"]))
    """
    from pyspark.sql import functions as F

    before = base or Timings()
    commands = histories.where(F.col("kind") == "command")
    asked = commands.where(is_whole() & is_known())
    calm = is_calm(timings, before)
    trails = with_records(asked.where(~calm), transitions).persist()
    try:
        plan = Plan(
            timings=timings,
            base=before,
            seed=seed,
            curves=count_steps(steps(trails.where("all_there"))),
            paces=paces(asked),
        )
        return answer(
            commands,
            trails,
            unplayed=unplayed_rows(asked.where(calm), F.col("deliveries")),
            player=partial(play_command, plan),
            kind="command",
            model="attempt",
            seed=seed,
        )
    finally:
        trails.unpersist()


def is_known() -> Column:
    """Whether a history names a command and a device that the rules can be asked about."""
    from pyspark.sql import functions as F

    protocol = F.substring_index("device", ":", 1)
    known = F.col("name").isin(*CommandType) & protocol.isin(*Protocol)
    return F.coalesce(known, F.lit(False))


def is_calm(timings: Timings, base: Timings) -> Column:
    """Whether a command met no deadline, nor would have: its record is what the rules would make of it."""
    from pyspark.sql import functions as F

    def within(column: str, *limits: timedelta) -> Column:
        return F.coalesce(F.col(column), F.lit(0)) < min(limits) // timedelta(milliseconds=1)

    straight = (
        (F.col("outcome") == "delivered")
        & (F.col("retries") == 0)
        & (F.col("deaths") == 0)
        & (F.col("deliveries") == 1)
        & F.col("reason").isNull()
    )
    pushed = (
        within("sent_to_ns_ms", timings.accept)
        & within("delivered_to_ns_ms", timings.gateway, timings.held_for)
        & within("sent_to_device_ms", timings.device, timings.correlation, base.device, base.correlation)
    )
    pulled = within("sent_to_ns_ms", timings.accept) & within("latency_ms", timings.max_age)
    is_push = F.col("device").startswith(_PUSHED)
    # A command that was cancelled or expired before it was ever sent.
    never_sent = (F.col("outcome") == DEAD) & F.col("reason").isin(*KEPT) & (F.col("deliveries") == 0)
    calm = never_sent | (straight & F.when(is_push, pushed).otherwise(pulled))
    return F.coalesce(calm, F.lit(False))


def steps(trails: DataFrame) -> DataFrame:
    """Every hand-over of commands that met trouble: its number, and whether it was the one that delivered."""
    from pyspark.sql import functions as F

    sent = F.filter("records", lambda move: move["entered"] == CommandStatus.SENT_TO_NS)
    successes = F.filter("records", lambda move: move["entered"] == CommandStatus.DELIVERY_SUCCESSFUL)
    last = F.try_element_at(successes, F.lit(1))["attempt"]
    moves = trails.select(
        *("source", "queue", "message", "first_seq", "name"),
        last.alias("last"),
        F.explode(sent).alias("sent"),
    )
    step = F.col("sent.attempt") + 1  # the record of a hand-over counts those before it
    return moves.withColumn("step", step).withColumn("delivered", step == F.col("last"))


def paces(histories: DataFrame) -> dict[bool, Pace]:
    """How long each stage takes in the middle, of commands that went well, for push and for pull."""
    from pyspark.sql import functions as F

    well = histories.where("outcome = 'delivered' AND retries = 0")
    middle = {
        name: F.percentile_approx(F.coalesce(F.col(name), F.lit(0)), 0.5).alias(name)
        for name in ("sent_to_ns_ms", "delivered_to_ns_ms", "sent_to_device_ms")
    }
    found = well.groupBy(F.col("device").startswith(_PUSHED).alias("is_push")).agg(*middle.values()).collect()
    read = {row["is_push"]: Pace(*(timedelta(milliseconds=row[name]) for name in middle)) for row in found}
    return {True: read.get(True, _USUAL), False: read.get(False, _USUAL)}
