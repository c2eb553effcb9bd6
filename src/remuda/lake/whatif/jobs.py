"""What if the jobs of some histories had been retried by another policy."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from remuda.errors import ConfigurationError
from remuda.lake.whatif.job_play import UNHEARD, Model, Plan, play_job
from remuda.lake.whatif.result import WhatIf, answer
from remuda.lake.whatif.survival import count_steps, step_in_time_column
from remuda.lake.whatif.trails import is_whole, unplayed_rows, with_records
from remuda.lifecycle import State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from remuda.retry import RetryPolicy


def what_if_jobs(
    histories: DataFrame,
    transitions: DataFrame,
    *,
    policy: RetryPolicy,
    model: str = Model.ATTEMPT,
    seed: int = 0,
    base: RetryPolicy | None = None,
) -> WhatIf:
    """The jobs of these histories under another retry policy, beside how they fared.

    `transitions` hold at least the records of these histories; others are passed over. `model` is
    `attempt` (the third attempt goes as the third one went) or `time` (an attempt goes as one did about
    that moment). `base` is the policy that was in force: with it, delays of the workers' own are kept.

    >>> what_if_jobs(histories, transitions, policy=parse_policy("constant:every=30s,max_attempts=5"))
    """
    from pyspark.sql import functions as F

    chosen = _model(model)
    jobs = histories.where(F.col("kind") == "job")
    asked = jobs.where(is_whole())
    # A job that never failed does not meet the policy.
    has_failed = (F.col("retries") > 0) | (F.col("deaths") > 0) | (F.col("replays") > 0)
    trails = with_records(asked.where(has_failed), transitions).persist()
    try:
        curves = count_steps(steps(trails.where("all_there"), chosen))
        plan = Plan(policy=policy, model=chosen, seed=seed, curves=curves, base=base)
        return answer(
            jobs,
            trails,
            unplayed=unplayed_rows(asked.where(~has_failed), F.col("attempts")),
            player=partial(play_job, plan),
            kind="job",
            model=chosen.value,
            seed=seed,
        )
    finally:
        trails.unpersist()


def _model(text: str) -> Model:
    try:
        return Model(text)
    except ValueError:
        there = " and ".join(each.value for each in Model)
        raise ConfigurationError(f"no model {text!r}; there are {there}") from None


def steps(trails: DataFrame, model: Model) -> DataFrame:
    """Every attempt of jobs that have failed: at which step it was, and whether it delivered."""
    from pyspark.sql import functions as F

    runs = trails.select(
        "source", "queue", "message", "first_seq", "name", "started_ms", F.explode("records").alias("run")
    )
    heard = F.coalesce(~F.col("run.reason").isin(*UNHEARD), F.lit(True))
    ended = F.col("run.entered").isin(State.COMPLETED, State.RETRYABLE, State.FAILED)
    since_first = F.col("run.at_ms") - F.coalesce(F.col("run.dwell_ms"), F.lit(0)) - F.col("started_ms")
    return runs.where((F.col("run.left") == State.PROCESSING) & ended & heard).select(
        *("source", "queue", "message", "first_seq", "name"),
        (F.col("run.attempt") if model is Model.ATTEMPT else step_in_time_column(since_first)).alias("step"),
        (F.col("run.entered") == State.COMPLETED).alias("delivered"),
    )
