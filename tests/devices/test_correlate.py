"""Which command a signal is for: by name in any stage, by its ACK, or as the only one that it can answer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from remuda.devices.codecs import default_codecs
from remuda.devices.codecs.contract import Report
from remuda.devices.codecs.dlt645 import answer_frame, parse_request
from remuda.devices.command import Answer, Command, CommandType, Family, Phase, Purpose
from remuda.devices.correlate import Routed, Verdict, asked, decode, has_unnamed, names_attempt, route
from remuda.devices.happenings import (
    Accepted,
    Acknowledged,
    Answered,
    CallFailed,
    Discarded,
    GatewayRefused,
    Transmitted,
)
from remuda.devices.networks import signals
from tests.devices.rules_workbench import (
    METER,
    MINUTE,
    OK,
    RISE,
    SECOND,
    START,
    Story,
    credit,
    push,
    token_answer,
    written,
)


def common(at: datetime) -> dict[str, Any]:
    return {"id": "s", "device": METER.key, "at": at}


def txack(name: str, at: datetime = START) -> signals.TxAck:
    return signals.TxAck(**common(at), external_id=name)


def ack(name: str, *, acknowledged: bool = True, dedup: str = "up-1", at: datetime = START) -> signals.Ack:
    return signals.Ack(**common(at), external_id=name, acknowledged=acknowledged, dedup=dedup)


def uplink(dedup: str = "up-1", at: datetime = START) -> signals.Uplink:
    return signals.Uplink(**common(at), dedup=dedup, data=b"", f_port=1)


def routed(signal: signals.Signal, hearers: Sequence[Command], heard: Answer | None = None) -> Routed:
    where = route(signal, hearers, heard)
    assert isinstance(where, Routed)
    return where


def lost(**options: Any) -> Story:
    """A call whose answer was lost."""
    return push(**options).dispatched().then(CallFailed(attempt=1, code="timeout"))


# -- by name


@pytest.mark.parametrize("stage", ["accepted", "transmitted", "unanswered"])
def test_a_name_is_found_in_whatever_stage_the_command_is(stage: str) -> None:
    command = getattr(push(), stage)().command
    assert routed(txack("item-1"), [command]) == Routed(command, Transmitted(attempt=1))
    expected = Acknowledged(attempt=1, acknowledged=False, dedup="")
    assert routed(ack("item-1", acknowledged=False, dedup=""), [command]).happening == expected
    gone = signals.Discarded(**common(START), external_id="item-1", code="EXPIRED", details="d")
    assert routed(gone, [command]).happening == Discarded(attempt=1, code="EXPIRED", details="d")


def test_every_attempt_of_every_command_can_be_named() -> None:
    first = push(id="01").unanswered().released().unanswered().released().accepted().command
    second = replace(push(id="02").accepted().command.attempts[0], external_id="other")
    other = replace(push(id="02").accepted().command, attempts=(second,))
    for number in (1, 2, 3):
        where = routed(ack(f"item-{number}"), [other, first])
        assert (where.command.id, where.happening) == (
            "01",
            Acknowledged(attempt=number, acknowledged=True, dedup="up-1"),
        )
    assert routed(txack("other"), [first, other]).command.id == "02"


def test_a_name_that_nobody_knows_yet_waits_for_its_accept() -> None:
    calling = push().dispatched().command
    assert route(txack("item-1"), [calling], None) is Verdict.LATER
    assert route(txack("item-1"), [], None) is Verdict.LATER


def test_a_name_that_nobody_knows_is_that_of_the_one_lost_call() -> None:
    command = lost().command
    assert routed(txack("item-9"), [command]).happening == Transmitted(attempt=1, external_id="item-9")
    assert routed(ack("item-9"), [command]).happening == Acknowledged(
        attempt=1, acknowledged=True, dedup="up-1", external_id="item-9"
    )


def test_a_signal_from_before_the_lost_call_is_not_its_own() -> None:
    command = lost().command
    assert isinstance(route(txack("item-9", START - SECOND), [command], None), Routed), "clocks differ"
    before = START - SECOND - timedelta(microseconds=1)
    assert route(txack("item-9", before), [command], None) is Verdict.LATER


def test_a_name_is_not_taken_for_a_lost_calls_while_another_call_may_yet_tell_it() -> None:
    calling = push(id="02").dispatched()
    hearers = [lost(id="01").command, calling.command]
    assert route(txack("item-1"), hearers, None) is Verdict.LATER
    hearers[1] = calling.then(Accepted(attempt=1, external_id="item-1")).command
    assert routed(txack("item-1"), hearers).command.id == "02"


def test_a_name_that_belongs_to_somebody_is_not_taken_for_a_lost_calls() -> None:
    command = lost().command
    assert route(ack("item-9"), [command], None, {"item-9"}) is Verdict.LATER
    assert isinstance(route(ack("item-8"), [command], None, {"item-9"}), Routed)


@pytest.mark.parametrize(("name", "named"), [("item-1", True), ("item-2", False)])
def test_whether_a_signal_names_an_attempt(name: str, named: bool) -> None:
    hearers = [push().command, push().accepted().command]
    assert names_attempt(txack(name), hearers) is named
    assert not names_attempt(uplink(), hearers)


@pytest.mark.parametrize(
    ("kind", "answer", "ended"),
    [
        (CommandType.TURN_ON, Answer(family=Family.WRITE, ok=True), False),
        (CommandType.TURN_ON, Answer(family=Family.CONTROL, ok=True, type=CommandType.TURN_ON), True),
        (CommandType.TOP_UP, token_answer(), True),
    ],
)
def test_a_guessed_name_is_not_ended_by_a_reply_that_every_switch_and_setting_gets(
    kind: CommandType, answer: Answer, ended: bool
) -> None:
    story = lost(kind=kind)
    story.then(routed(ack("item-9", dedup="up-9"), [story.command]).happening)
    assert story.last.guessed
    story.then(routed(uplink("up-9", at=START + MINUTE), [story.command], answer).happening)
    assert story.command.has_ended is ended


@pytest.mark.parametrize(("dedup", "ended"), [("up-1", True), ("up-2", False)])
def test_a_bare_reply_counts_only_with_its_own_ack(dedup: str, ended: bool) -> None:
    bare = Answer(family=Family.WRITE, ok=True)
    for first, second in ((0, 1), (1, 0)):
        story = push(CommandType.TURN_ON).transmitted()
        happenings = (
            Acknowledged(attempt=1, acknowledged=True, dedup="up-1"),
            Answered(attempt=1, dedup=dedup, answer=bare),
        )
        story.then(happenings[first], happenings[second])
        assert story.command.has_ended is ended
        if not ended:
            assert story.wait_till_due().last_reason == "correlation_timeout"


def test_a_bare_reply_without_its_ack_settles_nothing() -> None:
    story = (
        push(CommandType.TOP_UP).transmitted().then(Answered(attempt=1, dedup="up-1", answer=token_answer()))
    )
    assert not story.wait_till_due().command.has_ended


def test_of_two_lost_calls_neither_is_guessed() -> None:
    hearers = [lost(id="01").command, lost(id="02").command]
    assert route(txack("item-9"), hearers, None) is Verdict.LATER


def test_whether_an_attempt_may_have_a_name_that_nobody_knows() -> None:
    assert has_unnamed(push().dispatched().command)
    assert has_unnamed(lost().command)
    assert not has_unnamed(push().command)
    assert not has_unnamed(push().transmitted().command)


def test_a_call_that_was_certainly_not_made_is_not_guessed() -> None:
    failed = CallFailed(attempt=1, code="UNAVAILABLE", certain=True)
    assert route(txack("item-9"), [push().dispatched().then(failed).command], None) is Verdict.LATER


# -- by answer


def test_an_uplink_is_joined_to_its_ack_by_their_deduplication_id() -> None:
    one, other = push(id="01"), push(id="02")
    for story, dedup in ((one, "up-1"), (other, "up-2")):
        story.transmitted().then(Acknowledged(attempt=1, acknowledged=True, dedup=dedup))
    where = routed(uplink("up-2"), [one.command, other.command], OK)
    assert (where.command.id, where.happening) == ("02", Answered(attempt=1, dedup="up-2", answer=OK))


def test_an_uplink_is_joined_to_the_attempt_that_was_acknowledged() -> None:
    story = push().transmitted().then(Acknowledged(attempt=1, acknowledged=True, dedup="up-1"))
    story.wait_till_due().released().transmitted()
    happening = routed(uplink("up-1", story.now), [story.command], OK).happening
    assert happening == Answered(attempt=1, dedup="up-1", answer=OK)


def test_an_uplink_before_its_ack_goes_to_the_only_one_that_it_can_answer() -> None:
    voltage = push(CommandType.READ_VOLTAGE, id="01").transmitted().command
    reading = push(id="02").transmitted().command
    assert routed(uplink(), [voltage, reading], OK).command.id == "02"


def test_an_uplink_that_two_could_have_asked_for_waits_for_its_ack() -> None:
    hearers = [push(id=each).transmitted().command for each in ("01", "02")]
    assert route(uplink(), hearers, OK) is Verdict.LATER


def test_the_newest_attempt_that_was_transmitted_is_answered() -> None:
    story = push().unanswered().released().transmitted()
    assert routed(uplink(at=story.now), [story.command], OK).happening == Answered(
        attempt=2, dedup="up-1", answer=OK
    )
    story = push().unanswered().released().accepted()
    assert routed(uplink(at=story.now), [story.command], OK).happening == Answered(
        attempt=1, dedup="up-1", answer=OK
    )


def test_an_attempt_cannot_be_answered_before_it_was_sent() -> None:
    story = push().unanswered().released().transmitted()
    early = story.last.sent_at - MINUTE
    assert route(uplink(at=early), [story.command], OK) is Verdict.LATER
    between = story.last.sent_at - 3 * SECOND
    assert routed(uplink(at=between), [story.command], OK).happening == Answered(
        attempt=1, dedup="up-1", answer=OK
    )


def test_an_answer_waits_for_the_name_of_its_attempt() -> None:
    assert route(uplink(), [push().dispatched().command], OK) is Verdict.LATER
    assert route(uplink(), [lost().command], OK) is Verdict.LATER
    adopted = lost().then(Transmitted(attempt=1, external_id="item-9")).command
    assert isinstance(route(uplink(), [adopted], OK), Routed)


def test_a_late_answer_is_not_taken_for_that_of_the_command_in_the_air() -> None:
    late = push(CommandType.TURN_OFF, id="01").unanswered().command
    in_the_air = push(CommandType.SET_TIME, id="02").transmitted()
    assert route(uplink("late"), [late, in_the_air.command], written()) is Verdict.LATER
    in_the_air.then(Acknowledged(attempt=1, acknowledged=True, dedup="up-2"))
    assert routed(uplink("up-2"), [late, in_the_air.command], written()).command.id == "02"


def test_what_was_answered_is_not_answered_again() -> None:
    story = push(CommandType.TOP_UP, expectation=RISE).answered(credit(10))
    assert route(uplink("again", story.now), [story.command], credit(10)) is Verdict.LATER


def test_a_probe_and_its_token_are_answered_each_by_its_own() -> None:
    story = push(CommandType.TOP_UP, expectation=RISE).answered(credit(10)).released()
    story.unanswered().released().transmitted()
    assert [asked(story.command, each.purpose) for each in story.command.attempts] == [
        CommandType.READ_CREDIT,
        CommandType.TOP_UP,
        CommandType.READ_CREDIT,
    ]
    read = routed(uplink(at=story.now), [story.command], credit(60)).happening
    assert isinstance(read, Answered)
    assert read.attempt == 3
    token = routed(uplink(at=story.now), [story.command], token_answer()).happening
    assert isinstance(token, Answered)
    assert token.attempt == 2


@pytest.mark.parametrize(
    ("kind", "phase", "answer", "fits"),
    [
        (CommandType.READ_CREDIT, None, OK, True),
        (CommandType.READ_POWER, None, OK, False),
        (CommandType.TURN_ON, None, written(), True),
        (CommandType.SET_DATE, None, written(), True),
        (CommandType.READ_CREDIT, None, written(), False),
        (CommandType.TOP_UP, None, token_answer(), True),
        (CommandType.TURN_ON, None, token_answer(), False),
        (CommandType.READ_VOLTAGE, Phase.A, Answer(family=Family.READ, ok=True, phase=Phase.A), True),
        (CommandType.READ_VOLTAGE, Phase.A, Answer(family=Family.READ, ok=True, phase=Phase.B), False),
    ],
)
def test_an_answer_fits_its_type_family_and_phase(
    kind: CommandType, phase: Phase | None, answer: Answer, fits: bool
) -> None:
    command = push(kind, phase=phase).transmitted().command
    assert isinstance(route(uplink(), [command], answer), Routed) is fits


# -- the rest


def test_a_report_is_passed_on_and_a_frame_that_nobody_can_read_is_forgotten() -> None:
    command = push().transmitted().command
    assert route(uplink(), [command], Report(type=CommandType.READ_REPORT)) is Verdict.REPORT
    assert route(uplink(), [command], None) is Verdict.FORGET
    assert route(signals.Joined(**common(START)), [command], None) is Verdict.REPORT
    assert route(signals.Status(**common(START)), [command], None) is Verdict.REPORT


def test_a_refusing_gateway_is_told_to_the_command_that_waits_for_it() -> None:
    signal = signals.GatewayRefused(**common(START), details="TOO_LATE")
    waiting, other = push(id="02").accepted().command, push(id="01").transmitted().command
    where = routed(signal, [other, waiting])
    assert (where.command.id, where.happening) == ("02", GatewayRefused(details="TOO_LATE"))
    assert route(signal, [other], None) is Verdict.FORGET


def test_only_an_uplink_says_something() -> None:
    codec = default_codecs().get("calin-meter")
    request = codec.encode(METER, CommandType.READ_CREDIT, data=None, phase=None, now=START)
    frame = answer_frame(parse_request(request.data), value=12.5)
    heard = decode(replace(uplink(), data=frame), codec)
    assert isinstance(heard, Answer)
    assert (heard.type, heard.ok) == (CommandType.READ_CREDIT, True)
    assert decode(txack("item-1"), codec) is None
    assert asked(push(CommandType.TOP_UP).command, Purpose.PROBE) is CommandType.TOP_UP
