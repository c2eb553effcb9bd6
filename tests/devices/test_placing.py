"""Where a command belongs in its store, read off its record."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from remuda.devices.command import CommandType, Device, Gateway, Protocol, unpack
from remuda.devices.happenings import Accepted, CallFailed, CancelAsked, Transmitted
from remuda.devices.placing import change_of, lane_of, place
from remuda.lifecycle import CommandStatus
from remuda.stores.commands import Home
from tests.devices.rules_workbench import (
    LIMIT,
    METER,
    METER_V1,
    METER_V2,
    OK,
    RISE,
    SECOND,
    START,
    Story,
    a_command,
    credit,
    pull,
    push,
)


def test_each_status_has_its_home() -> None:
    homes = [
        (push(), Home.LANE),
        (push().dispatched(), Home.TO_NS),
        (push().accepted(), Home.TO_GATEWAY),
        (Story(a_command(device=METER_V1)).accepted(), Home.TASK_V1),
        (Story(a_command(device=METER_V2)).accepted(), Home.TASK_V2),
        (push().transmitted(), Home.TO_DEVICE),
        (push().unanswered(), Home.RETRY),
        (push().answered(OK), Home.ENDED),
        (push().then(CancelAsked()), Home.ENDED),
    ]
    for story, home in homes:
        placing = place(story.command)
        assert (placing.home, placing.status) == (home, story.status)
        assert placing.due_at == story.command.due_at
        assert (placing.due_at is None) == (home is Home.LANE)
    assert {home for _, home in homes} == set(Home)


def test_an_ended_command_is_due_at_its_end() -> None:
    story = push().answered(OK)
    assert place(story.command).due_at == story.now == story.command.status_since


def test_the_record_itself_is_what_is_written() -> None:
    story = push(version=3).accepted()
    change = change_of(story.command, tuple(story.moves))
    assert (change.id, change.base, change.moves) == ("01", 3, tuple(story.moves))
    assert unpack(change.record) == story.command
    assert change.placing == place(story.command)


# -- lanes


@pytest.mark.parametrize(
    ("device", "grid", "by_gateway", "lane"),
    [
        (METER, "lagos-7", False, "lorawan_network:lagos-7"),
        (METER, None, False, "lorawan_network:default"),
        (METER, "lagos-7", True, "lorawan_gateway:gw-1"),
        (Device(reference="1", protocol=Protocol.LORAWAN), "g", True, "lorawan_network:g"),
        (METER_V1, "lagos-7", False, "gateway:gw-1"),
        (METER_V2, None, True, "gateway:gw-1"),
        (Device(reference="1", protocol=Protocol.API_V1), "g", True, "gateway:default"),
        (Device(reference="1", protocol=Protocol.API_V2, gateway=Gateway(id="x")), None, False, "gateway:x"),
    ],
)
def test_a_lane_for_each_network_or_gateway(
    device: Device, grid: str | None, by_gateway: bool, lane: str
) -> None:
    assert lane_of(device, grid, by_gateway=by_gateway) == lane


# -- what it holds on to


def test_push_has_one_frame_at_a_time_for_each_device() -> None:
    for stage in (push(), push().dispatched(), push().accepted(), push().transmitted()):
        assert place(stage.command).turn == METER.key


def test_a_command_that_waits_for_its_retry_lets_others_pass() -> None:
    assert place(push().unanswered().command).turn is None


def test_it_does_not_while_its_call_may_still_succeed() -> None:
    story = push().dispatched().wait(20 * SECOND)
    assert (story.status, place(story.command).turn) == (CommandStatus.TO_RETRY, METER.key)
    story.then(CallFailed(attempt=1, code="UNAVAILABLE", certain=True))
    assert place(story.command).turn is None


def test_a_token_that_is_being_cleared_up_keeps_its_turn() -> None:
    story = push(CommandType.TOP_UP, expectation=RISE).answered(credit(10))
    assert (story.status, place(story.command).turn) == (CommandStatus.QUEUED, METER.key)
    story.dispatched().then(CallFailed(attempt=2, code="UNAVAILABLE", certain=True))
    assert (story.status, place(story.command).turn) == (CommandStatus.TO_RETRY, METER.key)
    story.released().unanswered()
    assert (story.status, place(story.command).turn) == (CommandStatus.TO_RETRY, METER.key)
    limit = push(CommandType.SET_POWER_LIMIT, expectation=LIMIT).unanswered()
    assert place(limit.command).turn == METER.key


def test_a_token_that_no_read_can_settle_lets_others_pass() -> None:
    assert place(push(CommandType.TOP_UP).unanswered().command).turn is None


def test_pull_has_one_token_at_a_time_for_each_device() -> None:
    assert place(pull(CommandType.TOP_UP).command).turn == f"{METER_V2.key}/token"
    assert place(pull(CommandType.READ_CREDIT).command).turn is None


def test_what_has_ended_holds_on_to_nothing() -> None:
    for story in (push(key="a key").answered(OK), pull(CommandType.TOP_UP, key="k").then(CancelAsked())):
        placing = place(story.command)
        assert (placing.turn, placing.key, placing.hears, placing.uses_slot) == (None, None, None, False)


def test_a_key_is_held_until_the_end() -> None:
    for story in (push(key="k"), push(key="k").transmitted(), push(key="k").unanswered()):
        assert place(story.command).key == "k"


def test_a_slot_of_the_gateway_is_used_by_tasks_on_their_way() -> None:
    assert not place(pull().command).uses_slot
    assert place(pull().dispatched().command).uses_slot
    assert place(pull().accepted().command).uses_slot
    failed = pull().dispatched().then(CallFailed(attempt=1, code="reset"))
    assert not place(failed.command).uses_slot
    assert not place(push().accepted().command).uses_slot


def test_push_hears_from_its_first_attempt_to_its_end() -> None:
    assert place(push().command).hears is None
    for story in (push().dispatched(), push().transmitted(), push().unanswered().released()):
        assert place(story.command).hears == METER.key
    assert place(pull().accepted().command).hears is None


def test_every_name_is_kept_to_be_found_by() -> None:
    story = push(correlation_id="mine", joined=("yours",)).unanswered().released().accepted()
    placing = place(story.command)
    assert placing.external_ids == ("item-1", "item-2")
    assert placing.correlation_ids == ("mine", "yours")
    story.then(Transmitted(attempt=2)).wait_till_due().released().dispatched()
    story.then(Accepted(attempt=3, external_id="item-3"))
    assert place(story.command).external_ids == ("item-1", "item-2", "item-3")
    assert place(push().command).correlation_ids == ()


def test_only_what_waits_can_expire_in_the_store() -> None:
    def expiry(story: Story) -> bool:
        command = replace(story.command, expires_at=START + 3600 * SECOND)
        return place(command).expires_at is not None

    assert [expiry(each) for each in (push(), push().unanswered())] == [True, True]
    assert [expiry(each) for each in (push().dispatched(), push().transmitted(), push().answered(OK))] == [
        False,
        False,
        False,
    ]


def test_what_the_store_shows_is_the_commands() -> None:
    placing = place(a_command(priority=60, airtime_ms=62))
    assert (placing.priority, placing.airtime_ms, placing.lane) == (60, 62, "lorawan_network:default")
    assert (placing.type, placing.device) == ("READ_CREDIT", METER.key)
