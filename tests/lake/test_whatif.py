"""What if jobs had been retried otherwise: the recorded policy gives the record back."""

from __future__ import annotations

import logging
import random
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from remuda.devices.timings import Timings
from remuda.errors import ConfigurationError, UnrecoverableError
from remuda.lake.whatif import parse_policy, parse_timings, what_if_jobs
from remuda.lake.whatif.job_play import Model, Plan, play_job
from remuda.lake.whatif.survival import Curves, Evidence, step_in_time, step_in_time_column
from remuda.lake.whatif.trails import Message, Record, Verdict
from remuda.lifecycle import State
from remuda.retry import DEFAULT_RETRY, Constant, Exponential, Linear, NoRetry, RetryPolicy
from remuda.testing import InlineQueue
from remuda.transition import Transition, to_ms
from tests.devices.rules_workbench import EXACT, MINUTE, SECOND, START
from tests.lake.whatif_workbench import frames, lives_of, message_of, same_on_both_sides

NO_CURVES = Curves.of(())


# -- words


def test_a_policy_is_read_from_words() -> None:
    assert parse_policy("exponential:initial=2s,cap=1h,max_attempts=8,jitter=0.5") == Exponential(
        initial=2 * SECOND, cap=timedelta(hours=1), max_attempts=8, jitter=0.5
    )
    assert parse_policy("constant: every=30s, max_attempts=5, jitter=5s") == Constant(
        every=30 * SECOND, max_attempts=5, jitter=5 * SECOND
    )
    assert parse_policy("linear:initial=1s,step=500ms,max_total_delay=1h30m") == Linear(
        initial=SECOND, step=SECOND / 2, max_total_delay=timedelta(minutes=90)
    )
    assert parse_policy("none") == NoRetry()
    assert parse_policy("default") == DEFAULT_RETRY
    assert parse_policy("exponential") == Exponential()
    told = parse_timings(["device=30s", "gateway=5m", "retry=exponential:max_attempts=3"])
    assert told == Timings(device=30 * SECOND, gateway=5 * MINUTE, retry=Exponential(max_attempts=3))
    assert parse_timings(["accept=5s"], EXACT).retry == EXACT.retry


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("sometimes", "'sometimes'"),
        ("constant:every=soon", "every=soon"),
        ("constant:max_attempts=3", "needs every"),
        ("linear:step=1s", "needs initial"),
        ("exponential:max_attempts=many", "max_attempts=many"),
        ("exponential:max_attempts=0", "at least 1, not 0"),
        ("exponential:multiplier=x", "multiplier=x"),
        ("exponential:jitter=11", "not 11"),
        ("exponential:speed=3", "'speed'"),
        ("exponential:initial", "'initial'"),
        ("none:every=3s", "'every'"),
    ],
)
def test_a_policy_that_makes_no_sense_is_named(text: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        parse_policy(text)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("device=never", "device=never"),
        ("sweep=3s", "'sweep'"),
        ("device", "'device'"),
        ("device=0s", "longer than nothing"),
        ("call=1s", "must not be shorter than accept"),
        ("retry=none", "retry=exponential"),
    ],
)
def test_deadlines_that_make_no_sense_are_named(text: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        parse_timings([text])


# -- jobs, one at a time


def job(*runs: str, message: str = "m", every_s: float = 10, took_s: float = 1) -> Message:
    """A job whose runs went so: `ok`, `no` (to be retried), `replay`, or the reason of its death."""
    records = [Record(None, "PENDING", to_ms(START), 0, None)]
    now, attempt, state = START, 0, "PENDING"

    def move(entered: str, reason: str | None = None) -> None:
        nonlocal state
        records.append(Record(state, entered, to_ms(now), attempt, reason))
        state = entered

    for run in runs:
        if run == "replay":
            now += timedelta(hours=1)
            attempt = 0
            move("PENDING", "replay")
            continue
        if attempt:
            now += timedelta(seconds=every_s)
        move("PROCESSING")
        now += timedelta(seconds=took_s)
        attempt += run not in ("expired", "malformed")
        move({"ok": "COMPLETED", "no": "RETRYABLE"}.get(run, "FAILED"), None if run in ("ok", "no") else run)
    is_delivered = state == "COMPLETED"
    return Message(
        *("main", "q", message, 1, "a", None, None),
        outcome="delivered" if is_delivered else "dead",
        reason=records[-1].reason,
        retries=runs.count("no"),
        added_ms=to_ms(START),
        started_ms=to_ms(START),
        latency_ms=to_ms(now) - to_ms(START),
        records=records,
    )


def under(policy: RetryPolicy, told: Message, *, curves: Curves = NO_CURVES, **more: Any) -> Verdict:
    more.setdefault("model", Model.ATTEMPT)
    return play_job(Plan(policy=policy, seed=7, curves=curves, **more), told)


def every(seconds: float, most: int | None, **more: Any) -> Constant:
    return Constant(every=timedelta(seconds=seconds), max_attempts=most, **more)


EXHAUSTED = "retries_exhausted"


def test_fewer_attempts_end_a_job_where_the_engine_would_end_it() -> None:
    told = job("no", "no", "ok")
    assert under(every(10, 3), told).tried == under(every(10, 3), told).recorded
    cut = under(every(10, 2), told)
    assert cut.tried[:5] == ("dead", EXHAUSTED, 2, 1, None)
    assert (cut.evidence, cut.at_best) == (Evidence.RECORDED, False)
    assert under(NoRetry(), told).tried[:3] == ("dead", EXHAUSTED, 1)
    too_late = every(10, None, max_total_delay=timedelta(seconds=15))
    assert under(too_late, told).tried[:3] == ("dead", EXHAUSTED, 2)


def test_other_delays_move_the_end_and_nothing_else() -> None:
    told = job("no", "no", "ok", every_s=10, took_s=1)
    quick = under(every(2, 5), told)
    assert quick.recorded[:5] == ("delivered", None, 3, 2, 23_000)
    assert quick.tried[:5] == ("delivered", None, 3, 2, 7_000)
    assert [each - to_ms(START) // 60_000 for each in under(every(60, 5), told).tried.minutes] == [0, 1, 2]


@pytest.mark.parametrize("reason", ["unrecoverable", "panic", "rejected", "expired", "malformed"])
def test_what_no_policy_is_asked_about_stays_dead(reason: str) -> None:
    told = job("no", reason)
    for model in Model:
        generous = under(every(10, 50), told, model=model)
        assert generous.tried == generous.recorded
        assert (generous.tried.reason, generous.at_best) == (reason, False)
    assert generous.tried.attempts == (1 if reason in ("expired", "malformed") else 2)


def test_in_time_an_attempt_goes_as_the_nearest_one_went() -> None:
    # Runs at 0, 20, 40 s fail, the one at 60 s succeeds.
    told = job("no", "no", "no", "ok", every_s=19, took_s=1)
    slow = under(every(100, 2), told, model=Model.TIME)
    assert slow.tried[:5] == ("delivered", None, 2, 1, 102_000)
    assert slow.evidence is Evidence.RECORDED
    before = under(every(45, 2), told, model=Model.TIME)  # at 46 s: nearer to the failure
    assert before.tried[:3] == ("dead", EXHAUSTED, 2)
    assert (before.evidence, before.at_worst, before.at_best) == (Evidence.BETWEEN, False, True)
    after = under(every(55, 2), told, model=Model.TIME)  # at 56 s: nearer to the success
    assert after.tried[:3] == ("delivered", None, 2)
    assert (after.evidence, after.at_worst, after.at_best) == (Evidence.BETWEEN, False, True)
    often = under(every(1, 100), told, model=Model.TIME)
    assert (often.tried.outcome, often.at_worst, often.tried.attempts > 20) == ("delivered", True, True)


def test_attempts_that_nobody_made_fare_as_those_of_others_did() -> None:
    told = job("no", EXHAUSTED)
    nobody = under(every(10, 9), told)
    assert nobody.tried[:3] == ("dead", EXHAUSTED, 9)
    assert (nobody.evidence, nobody.at_worst, nobody.at_best) == (Evidence.NO_DATA, False, True)
    always = Curves.of([("q", "a", 3, 40, 0), ("q", "a", 4, 40, 40)])
    some = under(every(10, 9), told, curves=always)
    assert some.tried[:5] == ("delivered", None, 4, 3, 34_000)
    assert (some.evidence, some.at_worst, some.at_best) == (Evidence.ESTIMATED, False, True)
    half = Curves.of([("q", "a", 3, 100, 50)])
    jobs = [job("no", EXHAUSTED, message=f"m{number}") for number in range(400)]
    delivered = [under(every(10, 3), each, curves=half).at_worst for each in jobs]
    drawn = [under(every(10, 3), each, curves=half).tried.outcome for each in jobs]
    assert not any(delivered)
    assert 160 < drawn.count("delivered") < 240
    assert drawn == [under(every(10, 3), each, curves=half).tried.outcome for each in jobs]
    # In time a step is a doubling: the many tries from 15 to 26 s are one chance, not many.
    later = Curves.of([("q", "a", step, 100, 50) for step in range(1, 12)])
    dense = [under(every(1, 14), each, curves=later, model=Model.TIME).tried.outcome for each in jobs]
    assert 160 < dense.count("delivered") < 240


def test_the_smallest_group_that_shows_enough_is_believed() -> None:
    curves = Curves.of([("q", "a", 2, 29, 29), ("q", "b", 2, 31, 0), ("r", "c", 2, 40, 10)])
    assert curves.chance("q", "b", 2) == 0
    assert curves.chance("q", "a", 2) == 29 / 60
    assert curves.chance("s", "x", 2) == 39 / 100
    assert curves.chance("q", "b", 3) is None


def test_a_replay_comes_when_it_came_if_the_job_is_dead_by_then() -> None:
    told = job("no", EXHAUSTED, "replay", "no", "ok")
    same = under(every(10, 2), told)
    assert same.tried == same.recorded
    assert same.recorded[:4] == ("delivered", None, 4, 2)
    sooner = under(every(10, 3), told, curves=Curves.of([("q", "a", 3, 40, 40)]))
    assert sooner.tried[:3] == ("delivered", None, 3)
    slower = under(every(3 * 3600, 2), told)  # it dies after the moment of the replay
    assert slower.tried[:3] == ("dead", EXHAUSTED, 2)


def test_a_policy_without_an_end_is_given_up_and_said_so() -> None:
    verdict = under(every(10, None), job("no", EXHAUSTED))
    assert (verdict.tried.outcome, verdict.tried.reason, verdict.evidence) == (
        "dead",
        "no_end",
        Evidence.NO_DATA,
    )
    assert under(Exponential(initial=timedelta(days=900)), job("no", EXHAUSTED)).tried.reason == "no_end"


def test_what_workers_took_beyond_their_policy_is_kept_where_that_is_known() -> None:
    told = job("no", "ok", every_s=25)  # due after 10 s, begun after 25 s
    same = under(every(10, 5), told, base=every(10, 5))
    assert same.tried == same.recorded
    assert under(every(60, 5), told, base=every(10, 5)).tried.latency_ms == 77_000
    jittered = every(10, 5, jitter=1.0)  # up to 20 s
    assert under(every(60, 5), told, base=jittered).tried.latency_ms == 67_000
    assert under(every(60, 5), told).tried.latency_ms == 62_000


went = st.lists(st.sampled_from(["no"]), max_size=6).flatmap(
    lambda fails: st.sampled_from(["ok", EXHAUSTED, "unrecoverable"]).map(lambda last: (*fails, last))
)
shares = st.lists(st.integers(0, 50), min_size=12, max_size=12).map(
    lambda counts: Curves.of([("q", "a", step, 50, count) for step, count in enumerate(counts, 1)])
)


@settings(max_examples=150, deadline=None)
@given(runs=went, curves=shares, most=st.integers(1, 9), more=st.integers(0, 4), jitter=st.floats(0, 1))
def test_a_larger_budget_never_delivers_fewer(
    runs: tuple[str, ...], curves: Curves, most: int, more: int, jitter: float
) -> None:
    told = job(*runs)
    for model in Model:
        small = under(every(10, most, jitter=jitter), told, curves=curves, model=model)
        large = under(every(10, most + more, jitter=jitter), told, curves=curves, model=model)
        assert (large.tried.outcome == "delivered") >= (small.tried.outcome == "delivered")
        assert large.tried.attempts >= small.tried.attempts
        for each in (small, large):
            assert each.at_worst <= (each.tried.outcome == "delivered") <= each.at_best


# -- jobs on Spark


async def recorded_jobs(policy: RetryPolicy) -> list[Transition]:
    """Jobs that the real worker carried out on a clock that a test moves, one after the other."""
    rng = random.Random(5)
    async with InlineQueue("mail", start=datetime(2030, 1, 1, tzinfo=UTC)) as mail:
        worker = mail.worker(retry=policy)
        runs: dict[str, int] = defaultdict(int)

        async def handle(job: Any) -> None:
            mail.clock.advance(timedelta(milliseconds=rng.randrange(1, 900)))
            runs[job.id] += 1
            if runs[job.id] <= job.payload["fails"]:
                raise ValueError("not yet")
            if job.payload.get("never"):
                raise UnrecoverableError("no use")

        for name in ("welcome", "invoice"):
            worker.handler(name)(handle)
        for number in range(60):
            payload = {"fails": (0, 0, 1, 2, 7, 3)[number % 6], "never": number % 20 == 3}
            await mail.add(("welcome", "invoice")[number % 2], payload)
            await mail.run_until_settled(worker)
            if number == 30:
                await mail.dead.replay(reason=EXHAUSTED, limit=1)
                await mail.run_until_settled(worker)
            mail.clock.advance(timedelta(seconds=17))
        await mail.add("welcome", {"fails": 0}, delay=timedelta(days=1))  # lives
        gone = await mail.add("welcome", {"fails": 0}, delay=timedelta(days=1))
        await mail.cancel(gone)
        await mail.dead.drop(limit=2)
        return [each async for each in mail.transitions()]


@pytest.fixture
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


POLICY = Exponential(initial=2 * SECOND, cap=MINUTE, max_attempts=4)


@pytest.mark.usefixtures("quiet")
async def test_jobs_under_the_recorded_policy_fare_as_recorded(spark: SparkSession) -> None:
    histories, transitions = frames(spark, await recorded_jobs(POLICY))
    same = what_if_jobs(histories, transitions, policy=POLICY)
    side = same.recorded
    assert (side.messages, side.delivered, side.dead, side.retries > 50) == (60, 48, 12, True)
    assert side.attempts == side.retries + 61  # each job once, and the replayed one twice
    assert (side.delivery_rate, same.left_out) == (0.8, {"live": 1, "removed": 1})
    assert (same.played, same.estimated, same.no_data, same.between) == (41, 0, 0, 0)
    assert (same.delivered_at_least, same.delivered_at_most) == (48, 48)
    same_on_both_sides(same)
    same_on_both_sides(what_if_jobs(histories, transitions, policy=POLICY, model="time", base=POLICY))


@pytest.mark.usefixtures("quiet")
async def test_jobs_under_another_policy(spark: SparkSession) -> None:
    trail = await recorded_jobs(POLICY)
    histories, transitions = frames(spark, trail)
    fewer = what_if_jobs(histories, transitions, policy=Constant(every=SECOND, max_attempts=2))
    # Of sixty, twenty fail never and ten once; three of those that fail once or never are unrecoverable.
    assert fewer.what_if.delivered < fewer.recorded.delivered
    assert fewer.delivered_at_least == fewer.delivered_at_most == fewer.what_if.delivered
    assert fewer.what_if.attempts < fewer.recorded.attempts
    assert fewer.what_if.messages == fewer.recorded.messages
    first, second = fewer.changes
    lost = [each.recorded_delivered - each.delivered for each in (first, second)]
    assert lost == sorted(lost, reverse=True)
    assert sum(lost) == fewer.recorded.delivered - fewer.what_if.delivered
    plain = fewer.figures()
    assert plain["what_if"]["delivered"] == fewer.what_if.delivered
    assert "rows" not in plain
    # What Spark counted is what the rules say of each job by itself.
    told = [message_of(life) for life in lives_of(trail) if life[-1].entered not in LIVE]
    verdicts = [
        under(Constant(every=SECOND, max_attempts=2), each) for each in told if each.outcome != "removed"
    ]
    assert sum(each.tried.outcome == "delivered" for each in verdicts) == fewer.what_if.delivered
    assert sum(each.tried.attempts for each in verdicts) == fewer.what_if.attempts
    with pytest.raises(ConfigurationError, match="'guess'"):
        what_if_jobs(histories, transitions, policy=POLICY, model="guess")


LIVE = (State.PENDING, State.RETRYABLE, State.PROCESSING)


@pytest.mark.usefixtures("quiet")
async def test_what_is_not_known_is_counted(spark: SparkSession) -> None:
    trail = await recorded_jobs(POLICY)
    histories, transitions = frames(spark, trail)
    forgotten = next(each.message for each in trail if each.entered is State.RETRYABLE)
    seen_later = next(each.message for each in trail if each.entered is State.COMPLETED)
    histories = histories.withColumn("added_at", F.when(F.col("message") != seen_later, F.col("added_at")))
    kept = transitions.where(F.col("message") != forgotten)
    more = what_if_jobs(histories, kept, policy=every(2, 5), model="attempt", seed=1)
    assert more.left_out == {"live": 1, "removed": 1, "incomplete": 2}
    assert more.recorded.messages == 58
    # Ten jobs fail seven times: their fifth attempt is one that no job has ever made.
    assert (more.no_data, more.estimated) == (10, 0)
    assert more.what_if.delivered == more.delivered_at_least == more.recorded.delivered
    assert more.delivered_at_most == more.delivered_at_least + 9  # one was replayed, and is delivered anyway
    # In time the dead letter that was replayed tells of later moments itself; of the others nobody knows.
    later = what_if_jobs(histories, kept, policy=every(60, 9), model="time", seed=3)
    assert later.between + later.estimated + later.no_data == 9


def test_steps_in_time_are_the_same_on_spark(spark: SparkSession) -> None:
    spans = [0, 1, 999, 1_000, 2_999, 3_000, 59_999, 3_600_000, 10**10]
    rows = spark.createDataFrame([(each,) for each in spans], "ms bigint").select(
        "ms", step_in_time_column(F.col("ms")).alias("step")
    )
    told = {row["ms"]: row["step"] for row in rows.collect()}
    assert told == {each: step_in_time(timedelta(milliseconds=each)) for each in spans}
    assert [told[each] for each in (0, 999, 1_000, 2_999, 3_000)] == [1, 1, 2, 2, 3]
