"""What if commands had been given other deadlines: the recorded ones give the record back."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import timedelta

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from remuda.devices.command import CommandType
from remuda.devices.happenings import Accepted, Acknowledged, Answered, CallFailed, Transmitted
from remuda.devices.simulator import rehearsal
from remuda.devices.simulator.world import WorldOptions
from remuda.devices.timings import Timings
from remuda.lake.whatif import what_if_commands
from remuda.lake.whatif.command_play import Pace, Plan, play_command
from remuda.lake.whatif.commands import is_calm
from remuda.lake.whatif.survival import Curves, Evidence
from remuda.lake.whatif.trails import Lived, Message, Verdict
from remuda.lifecycle import CommandStatus, EndReason
from remuda.retry import Exponential
from remuda.stores.memory_commands import MemoryCommands
from remuda.transition import Transition
from tests.devices.rules_workbench import (
    DONE,
    EXACT,
    MINUTE,
    OK,
    SECOND,
    START,
    Story,
    pull,
    push,
    token_answer,
)
from tests.lake.whatif_workbench import frames, lives_of, message_of, same_on_both_sides

NO_CURVES = Curves.of(())
PACES = dict.fromkeys((True, False), Pace(SECOND, SECOND, SECOND))
SUDDEN = timedelta(
    microseconds=2
)  # a reaper that is always there: then a story's times come out to the second


def prompt(timings: Timings = EXACT, **more: object) -> Timings:
    return replace(timings, reap=SUDDEN, **more)


def under(timings: Timings, told: Message, *, base: Timings = EXACT, curves: Curves = NO_CURVES) -> Verdict:
    return play_command(Plan(timings, base, 7, curves, PACES), told)


def told_of(story: Story) -> Message:
    """A command as the lake knows it: its trail alone."""
    command = story.command
    about = {"device": command.device.key, "lane": command.lane}
    added = Transition(
        message="01",
        queue="devices:main",
        entered=CommandStatus.QUEUED,
        at=START,
        name=command.type.value,
        about=about,
    )
    moves = [
        Transition(
            message="01",
            queue="devices:main",
            left=each.left,
            entered=each.entered,
            at=each.at,
            dwell=timedelta(milliseconds=each.dwell_ms or 0),
            attempt=each.attempt,
            reason=each.reason,
        )
        for each in story.moves
    ]
    return message_of([added, *moves])


def answered(story: Story, *, after: timedelta) -> Story:
    """Transmitted, and answered after a while."""
    story.transmitted()
    number = story.sends
    told = Acknowledged(attempt=number, acknowledged=True, dedup="up")
    return story.then(told, Answered(attempt=number, dedup="up", answer=OK), after=after)


def brief(lived: Lived) -> tuple[str, str | None, int, int, float | None]:
    latency = None if lived.latency_ms is None else lived.latency_ms / 1000
    return lived.outcome, lived.reason, lived.attempts, lived.retries, latency


def test_an_answer_that_comes_after_a_shorter_deadline_is_a_late_result() -> None:
    told = told_of(answered(push(), after=8 * SECOND))  # sent, accepted and transmitted within 2 s
    same = under(EXACT, told)
    assert same.tried == same.recorded
    assert brief(same.tried) == ("delivered", None, 1, 0, 10)
    shorter = under(prompt(device=5 * SECOND), told)
    # Given up after 7 s, sent again after 9 s; the answer to the first attempt comes at 10 s all the same.
    assert brief(shorter.tried) == ("delivered", None, 2, 1, 10)
    assert (shorter.at_worst, shorter.at_best) == (True, True)


def test_a_longer_deadline_helps_where_a_late_answer_shows_it() -> None:
    story = push().unanswered()  # transmitted at 2 s, given up at 14 s
    assert story.status is CommandStatus.TO_RETRY
    told = Acknowledged(attempt=1, acknowledged=True, dedup="up")
    story.then(told, Answered(attempt=1, dedup="up", answer=OK), after=SECOND)  # at 15 s, before the retry
    record = told_of(story)
    assert under(EXACT, record).tried == under(EXACT, record).recorded
    longer = under(replace(EXACT, device=20 * SECOND), record)
    assert brief(longer.recorded) == ("delivered", None, 1, 1, 15)
    assert brief(longer.tried) == ("delivered", None, 1, 0, 15)
    assert longer.evidence is Evidence.RECORDED


def test_a_longer_deadline_only_costs_time_where_the_device_was_silent() -> None:
    story = push().unanswered().released()
    story = answered(story, after=SECOND)
    record = told_of(story)
    longer = under(prompt(device=15 * SECOND), record)
    assert longer.tried.latency_ms == (longer.recorded.latency_ms or 0) + 3_000
    assert longer.tried.attempts == 2
    # For an hour nobody listened: that the first attempt would not have been answered then is not known.
    unknown = under(prompt(device=60 * MINUTE), record)
    assert (unknown.evidence, unknown.at_worst, unknown.at_best) == (Evidence.NO_DATA, True, True)


def test_fewer_and_more_attempts() -> None:
    story = push().unanswered().released()
    record = told_of(answered(story, after=SECOND))
    once = replace(EXACT, retry=Exponential(initial=2 * SECOND, max_attempts=1))
    assert brief(under(once, record).tried) == ("dead", "retries_exhausted", 1, 0, None)
    dead = Story(timings=once).unanswered()
    assert dead.status is CommandStatus.DELIVERY_FAILED
    record = told_of(dead)
    thrice = prompt(retry=Exponential(initial=2 * SECOND, max_attempts=3))
    none = under(thrice, record, base=once)
    assert brief(none.tried) == ("dead", "retries_exhausted", 3, 2, None)
    assert (none.evidence, none.at_worst, none.at_best) == (Evidence.NO_DATA, False, True)
    third = Curves.of([("devices:main", "READ_CREDIT", 2, 30, 0), ("devices:main", "READ_CREDIT", 3, 30, 30)])
    some = under(thrice, record, base=once, curves=third)
    assert some.tried[:4] == ("delivered", None, 3, 2)
    assert (some.evidence, some.at_worst, some.at_best) == (Evidence.ESTIMATED, False, True)


def test_a_refusal_for_good_and_a_cancellation_stay() -> None:
    story = push().dispatched()
    final = CallFailed(attempt=1, code="404", certain=True, final=EndReason.UNKNOWN_DEVICE)
    generous = replace(EXACT, retry=Exponential(max_attempts=50), accept=MINUTE)
    refused = under(generous, told_of(story.then(final, after=SECOND)))
    assert refused.tried == refused.recorded
    assert brief(refused.tried) == ("dead", "unknown_device", 1, 0, None)
    moved = told_of(push().unanswered())
    cancelled = moved._replace(outcome="dead", reason="cancelled")
    assert under(generous, cancelled).tried == under(generous, cancelled).recorded


def test_a_task_that_outlives_a_shorter_age_is_given_up() -> None:
    story = pull().accepted()
    story.then(after=timedelta(hours=30)).polled(DONE)
    record = told_of(story)
    assert under(EXACT, record).tried == under(EXACT, record).recorded
    shorter = under(replace(EXACT, max_age=timedelta(hours=24)), record)
    assert brief(shorter.tried) == ("dead", "max_age", 1, 0, None)
    too_old = pull().accepted()
    too_old.wait(timedelta(hours=49))
    longer = under(replace(EXACT, max_age=timedelta(hours=72)), told_of(too_old))
    assert (longer.tried.outcome, longer.evidence, longer.at_best) == ("dead", Evidence.NO_DATA, True)


def test_a_frame_that_its_network_server_holds_is_waited_for() -> None:
    story = push().accepted()
    story.then(Transmitted(attempt=1), after=timedelta(hours=5))
    told = Acknowledged(attempt=1, acknowledged=True, dedup="up")
    record = told_of(story.then(told, Answered(attempt=1, dedup="up", answer=OK), after=SECOND))
    patient = under(replace(EXACT, gateway=2 * MINUTE), record)
    assert patient.tried == patient.recorded  # it is looked for every two minutes, and is there
    impatient = under(replace(EXACT, held_for=timedelta(hours=3)), record)
    assert brief(impatient.tried) == ("dead", "max_age", 1, 0, None)


def test_a_token_is_not_sent_twice_in_any_try() -> None:
    story = Story(push(CommandType.TOP_UP).command).transmitted()
    told = Acknowledged(attempt=1, acknowledged=True, dedup="up")
    answer = Answered(attempt=1, dedup="up", answer=token_answer())
    record = told_of(story.then(told, answer, after=8 * SECOND))
    hasty = under(prompt(device=5 * SECOND), record)
    assert brief(hasty.tried) == ("delivered", None, 1, 1, 10)  # it waits for a late result
    assert under(prompt(device=SECOND, late_result=4 * SECOND), record).tried.reason == "outcome_unknown"


def test_an_accept_after_a_shorter_deadline_is_waited_for_while_the_call_runs() -> None:
    story = push().dispatched()
    story.then(Accepted(attempt=1, external_id="x"), after=12 * SECOND)
    story.then(Transmitted(attempt=1), after=SECOND)
    told = Acknowledged(attempt=1, acknowledged=True, dedup="up")
    record = told_of(story.then(told, Answered(attempt=1, dedup="up", answer=OK), after=SECOND))
    hasty = under(prompt(accept=5 * SECOND), record)
    assert brief(hasty.tried) == ("delivered", None, 1, 1, 14)


def test_half_of_an_answer_in_time_keeps_the_wait_open() -> None:
    story = push().transmitted()
    story.then(Acknowledged(attempt=1, acknowledged=True, dedup="up"), after=11 * SECOND)
    record = told_of(story.then(Answered(attempt=1, dedup="up", answer=OK), after=8 * SECOND))
    same = under(EXACT, record)  # 19 s after the tx-ack, though the device has but 12
    assert same.tried == same.recorded
    assert (same.evidence, same.tried.retries) == (Evidence.RECORDED, 0)


def test_a_record_that_the_rules_do_not_explain_stays_as_it_is() -> None:
    story = Story(push(CommandType.TOP_UP).command).unanswered()
    # No engine sends a token again like this.
    told = told_of(story)
    again = [
        each._replace(at_ms=each.at_ms + 3_600_000)
        for each in told_of(answered(push(), after=SECOND)).records
    ]
    released = again[0]._replace(left="TO_RETRY")
    told = told._replace(outcome="delivered", records=[*told.records, released, *again[1:]])
    verdict = under(replace(EXACT, device=MINUTE), told)
    assert verdict.tried == verdict.recorded
    assert (verdict.evidence, verdict.at_worst, verdict.at_best) == (Evidence.UNEXPLAINED, False, True)


# -- a whole fleet


class _Kept(MemoryCommands):
    """A store that is still there when its rehearsal is over."""

    last: _Kept

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        type(self).last = self


@pytest.fixture(scope="module")
def trail() -> Iterator[Sequence[Transition]]:
    """What a real engine recorded in bad weather, in virtual time."""
    logging.disable(logging.CRITICAL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rehearsal, "MemoryCommands", _Kept)
        world = WorldOptions(meters=80, seed=2, loss=0.3, outages=True, gateways=2)
        rehearsal.rehearse(world, lasting=timedelta(hours=3), timings=EXACT)
    yield _Kept.last._trail.page(after=0, limit=10**9).transitions
    logging.disable(logging.NOTSET)


def test_a_fleet_under_its_own_deadlines_fares_as_recorded(trail: Sequence[Transition]) -> None:
    told = [message_of(life) for life in lives_of(trail)]
    retried = [each for each in told if each.retries]
    assert (len(told) > 200, len(retried) > 100) == (True, True)
    for each in told:
        verdict = under(EXACT, each)
        assert verdict.tried == verdict.recorded, each
        assert verdict.evidence is Evidence.RECORDED


def test_a_fleet_on_spark(spark: SparkSession, trail: Sequence[Transition]) -> None:
    histories, transitions = frames(spark, trail)
    same = what_if_commands(histories, transitions, timings=EXACT, base=EXACT)
    same_on_both_sides(same)
    assert same.unexplained == 0
    assert 0 < same.played < same.recorded.messages == len(lives_of(trail))
    hasty = replace(EXACT, device=3 * SECOND, accept=5 * SECOND)
    told = what_if_commands(histories, transitions, timings=hasty, base=EXACT)
    assert told.what_if.retries > told.recorded.retries
    # Others of a kind do not come into it: each command by itself gives the same.
    verdicts = [under(hasty, message_of(life)) for life in lives_of(trail)]
    assert sum(each.tried.retries for each in verdicts) == told.what_if.retries
    assert told.delivered_at_least <= told.what_if.delivered <= told.delivered_at_most
    # Those that Spark answers by itself are those of whom the rules say nothing else.
    calm = {row["message"] for row in histories.where(is_calm(hasty, EXACT)).collect()}
    messages = {life[0].message: message_of(life) for life in lives_of(trail)}
    assert (len(calm), told.played) == (len(messages) - told.played, len(messages) - len(calm))
    assert len(calm) > 50
    for each in calm:
        verdict = under(hasty, messages[each])
        assert verdict.tried == verdict.recorded
