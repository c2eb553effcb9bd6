"""The engine as a whole: commands from a fleet to simulated meters and back, in virtual time."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest

from remuda.devices.airtime import DutyCycle
from remuda.devices.command import (
    Command,
    CommandType,
    Device,
    Execution,
    Outcome,
    Protocol,
)
from remuda.devices.engine import Engine
from remuda.devices.sending import NewCommand
from remuda.devices.simulator.radio import Weather
from remuda.devices.timings import Timings
from remuda.lifecycle import IN_FLIGHT_STATUSES, CommandStatus, EndReason
from tests.devices.engine_world import BY_READ, CREDIT, PULLS, EngineWorld, in_engine_world, token

QUEUED, SENT_TO_NS, DELIVERED_TO_NS = (
    CommandStatus.QUEUED,
    CommandStatus.SENT_TO_NS,
    CommandStatus.DELIVERED_TO_NS,
)
SENT_TO_DEVICE, TO_RETRY = CommandStatus.SENT_TO_DEVICE, CommandStatus.TO_RETRY
DONE, FAILED = CommandStatus.DELIVERY_SUCCESSFUL, CommandStatus.DELIVERY_FAILED


async def in_flight(world: EngineWorld, commands: list[Command]) -> list[tuple[float, float]]:
    """From when until when each attempt of these commands was with the network server or the device."""
    spans: list[tuple[float, float]] = []
    for command in commands:
        began: float | None = None
        for move in await world.fleet.story(command):
            if move.entered in IN_FLIGHT_STATUSES:
                began = move.at.timestamp() if began is None else began
            elif began is not None:
                spans.append((began, move.at.timestamp()))
                began = None
    return spans


def most_at_once(spans: list[tuple[float, float]]) -> int:
    # An end comes before a beginning of the same moment: what ends makes room.
    changes = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    return max(itertools.accumulate(change for _, change in changes))


# -- from end to end


def test_a_pushed_read_passes_every_stage_and_brings_its_value() -> None:
    async def story(world: EngineWorld) -> None:
        read = await world.send(CREDIT)
        (command,) = await world.all_end([read])
        assert await world.steps(command) == [QUEUED, SENT_TO_NS, DELIVERED_TO_NS, SENT_TO_DEVICE, DONE]
        assert command.response is not None
        assert command.response.execution is Execution.EXECUTION_SUCCESS
        assert command.response.data["value"] == world.meters[0].credit_kwh
        assert (command.outcome, command.response.source) == (Outcome.EXECUTED, "uplink")
        trail = await world.fleet.story(command)
        for before, after in itertools.pairwise(trail):
            assert after.dwell is not None
            assert abs(after.dwell - (after.at - before.at)) <= timedelta(milliseconds=1)
        assert trail[0].about is not None
        assert trail[0].about["device"] == command.device.key
        assert [each.id for each in world.ended] == [read]

    in_engine_world(story)


@pytest.mark.parametrize("via", PULLS)
def test_a_pulled_read_is_polled_until_its_task_has_ended(via: Protocol) -> None:
    async def story(world: EngineWorld) -> None:
        read = await world.send(CREDIT, via=via)
        (command,) = await world.all_end([read])
        assert await world.steps(command) == [QUEUED, SENT_TO_NS, DELIVERED_TO_NS, DONE]
        assert command.response is not None
        assert (command.outcome, command.response.source) == (Outcome.EXECUTED, "task")
        assert float(command.response.data["value"]) == world.pulled[0].credit_kwh
        assert len(world.trace.handovers) == 1
        assert {task for _, task in world.trace.polls} == {command.attempts[0].external_id}

    in_engine_world(story, pulled=1)


@pytest.mark.parametrize("via", [Protocol.LORAWAN, *PULLS])
def test_a_switch_a_setting_and_a_token_are_carried_out(via: Protocol) -> None:
    async def story(world: EngineWorld) -> None:
        meter = (world.meters if via.is_push else world.pulled)[0]
        before = meter.credit_kwh
        sent = [
            await world.send(CommandType.TURN_OFF, via=via),
            await world.send(CommandType.SET_DATE, via=via, data="2031-05-06"),
            await world.send(CommandType.TOP_UP, via=via, data=token(1)),
        ]
        commands = await world.all_end(sent)
        assert {(each.status, each.outcome) for each in commands} == {(DONE, Outcome.EXECUTED)}
        assert not meter.relay_on
        assert meter.local_time(world.clock.now()).date().isoformat() == "2031-05-06"
        assert meter.credit_kwh == before + 50

    in_engine_world(story, pulled=1)


@pytest.mark.parametrize(
    ("via", "kind"),
    [
        (Protocol.LORAWAN, CommandType.TURN_OFF),
        (Protocol.LORAWAN, CommandType.TOP_UP),
        (Protocol.API_V2, CommandType.TOP_UP),
    ],
)
def test_a_refusal_is_delivered_and_not_executed(via: Protocol, kind: CommandType) -> None:
    async def story(world: EngineWorld) -> None:
        data = token(1) if kind is CommandType.TOP_UP else None
        sent = await world.send(kind, via=via, data=data)
        (command,) = await world.all_end([sent])
        assert (command.status, command.outcome) == (DONE, Outcome.REFUSED)
        assert command.response is not None
        assert command.response.execution is Execution.EXECUTION_FAILURE
        assert len(command.attempts) == 1

    in_engine_world(story, pulled=1, meter={"refuse": 1.0})


def test_what_can_never_work_ends_at_once() -> None:
    async def story(world: EngineWorld) -> None:
        stranger = Device(reference="99", protocol=Protocol.LORAWAN)
        unknown = await world.fleet.send(NewCommand(type=CREDIT, device=stranger, grid="grid0"))
        other = Device(reference="99", protocol=Protocol.API_V1)
        at_calin = await world.fleet.send(NewCommand(type=CREDIT, device=other))
        unsupported = await world.send(CommandType.READ_VERSION)
        ends = await world.all_end([unknown.id, at_calin.id, unsupported], within_s=30)
        assert [(each.reason, each.outcome) for each in ends] == [
            (EndReason.UNKNOWN_DEVICE, Outcome.NOT_EXECUTED),
            (EndReason.UNKNOWN_DEVICE, Outcome.NOT_EXECUTED),
            (EndReason.UNSUPPORTED_COMMAND, Outcome.NOT_EXECUTED),
        ]
        assert {(each.retries, len(each.attempts)) for each in ends} == {(0, 1)}

    in_engine_world(story, pulled=1)


def test_a_class_a_meter_is_answered_after_its_own_uplink() -> None:
    async def story(world: EngineWorld) -> None:
        await world.wait(10)
        read = await world.send(CREDIT)
        await world.wait(2000)  # more than twice the time for the gateway: the item is still in its queue
        assert (await world.get(read)).status is DELIVERED_TO_NS
        (command,) = await world.all_end([read], within_s=7200)
        assert (command.outcome, len(command.attempts)) == (Outcome.EXECUTED, 1)

    in_engine_world(
        story, meter={"device_class": "A"}, weather=Weather(11), report_every=timedelta(minutes=90)
    )


# -- how quickly, and in what order


def test_a_lane_rests_two_seconds_after_each_command_and_lanes_do_not_wait_for_each_other() -> None:
    async def story(world: EngineWorld) -> None:
        sent = [await world.send(CREDIT, meter) for meter in world.meters]
        await world.all_end(sent)
        by_lane: dict[str, list[float]] = {}
        for each in world.trace.handovers:
            lane = world.meters[[m.serial for m in world.meters].index(each.order.device.reference)].gateway
            by_lane.setdefault(str(lane), []).append(each.at.timestamp())
        assert [len(each) for each in by_lane.values()] == [5, 5]
        for moments in by_lane.values():
            waits = [after - before for before, after in itertools.pairwise(moments)]
            assert min(waits) >= 2.0
            assert max(waits) < 2.5
        assert abs(by_lane["gw0"][0] - by_lane["gw1"][0]) < 0.5

    in_engine_world(story, meters=10, gateways=2)


def test_a_gateway_has_at_most_five_pulled_commands_at_once() -> None:
    async def story(world: EngineWorld) -> None:
        sent = [
            (await world.fleet.send(world.new(CREDIT, meter, via=PULLS[number % 2]))).id
            for number, meter in enumerate(world.pulled)
        ]
        commands = await world.all_end(sent)
        assert most_at_once(await in_flight(world, commands)) == 5

    in_engine_world(story, pulled=17, engines=2)


def test_the_higher_priority_leaves_its_lane_first_and_equals_in_the_order_of_their_coming() -> None:
    async def story(world: EngineWorld) -> None:
        await world.fleet.hold_lane("lorawan_network:grid0")
        priorities = [10, 60, 30, 10, 50, 30]
        sent = [
            await world.send(CREDIT, meter, priority=priority)
            for meter, priority in zip(world.meters, priorities, strict=True)
        ]
        await world.wait(30)
        assert world.trace.handovers == []
        await world.fleet.release_lane("lorawan_network:grid0")
        await world.all_end(sent)
        order = [sent.index(each.order.command_id) for each in world.trace.handovers]
        assert order == [1, 4, 2, 5, 0, 3]

    in_engine_world(story, meters=6)


def test_a_device_has_one_downlink_at_a_time() -> None:
    async def story(world: EngineWorld) -> None:
        kinds = [CREDIT, CommandType.READ_POWER, CommandType.TURN_OFF, CommandType.READ_VOLTAGE]
        sent = [await world.send(kind) for kind in kinds]
        sent.append(await world.send(CommandType.TOP_UP, data=token(1), expectation=BY_READ))
        commands = await world.all_end(sent)
        assert most_at_once(await in_flight(world, commands)) == 1
        assert {each.waiting for each in world.trace.handovers} == {0}
        assert {each.outcome for each in commands} == {Outcome.EXECUTED}

    in_engine_world(story, timings=Timings(lock=timedelta(0)), engines=2)


# At the gateway's own share: it reckons in whole frames of the last hour, so a little is left in reserve.
@pytest.mark.parametrize("airtime", [None, DutyCycle(share=0.01)])
def test_shared_out_air_time_keeps_to_the_duty_cycle_where_a_fixed_lock_does_not(
    airtime: DutyCycle | None,
) -> None:
    """At SF12 a frame is 1.5 s on the air, and 24 of them are a hundredth of an hour."""

    async def story(world: EngineWorld) -> None:
        sent = [await world.send(CREDIT, meter) for meter in world.meters]
        overflows = world.gateways[0].reasons
        if airtime is None:
            await world.wait(120)
            assert overflows["DUTY_CYCLE_OVERFLOW"] > 0
        else:
            await world.wait(3600)
            assert overflows["DUTY_CYCLE_OVERFLOW"] == 0
            done = [(await world.get(each)).status for each in sent].count(DONE)
            assert 20 <= done <= airtime.per_hour(14, 12) + 1

    in_engine_world(
        story, meters=40, duty=0.01, meter={"spreading_factor": 12}, airtime=airtime, by_gateway=True
    )


# -- gateways that are down, and what piles up meanwhile


def test_a_lane_is_held_while_its_gateway_is_down_and_released_after() -> None:
    async def story(world: EngineWorld) -> None:
        gateway, lane = world.gateways[0], "lorawan_network:grid0"
        gateway.cut(world.clock.now())
        sent = [await world.send(CREDIT, meter) for meter in world.meters[::2]]
        other = [await world.send(CREDIT, meter) for meter in world.meters[1::2]]
        await world.wait(
            120
        )  # the network server needs a while to miss it; what went out by then waits there
        (held,) = [each for each in await world.fleet.lanes() if each.lane == lane]
        assert (held.waiting > 0, held.held_why) == (True, "gateway down")
        await world.wait(600)
        assert [each.waiting for each in await world.fleet.lanes() if each.lane == lane] == [held.waiting]
        assert [(await world.get(each)).status for each in other] == [DONE] * len(other)
        gateway.restore()
        ends = await world.all_end(sent)
        assert {each.outcome for each in ends} == {Outcome.EXECUTED}
        assert [each for each in await world.fleet.lanes() if each.held_why] == []

    in_engine_world(story, meters=120, gateways=2)


def test_a_hold_of_an_operator_stays_when_the_gateway_comes_back() -> None:
    async def story(world: EngineWorld) -> None:
        await world.fleet.hold_lane("lorawan_network:grid0", why="works on the mast")
        read = await world.send(CREDIT)
        world.gateways[0].cut(world.clock.now())
        await world.wait(300)
        world.gateways[0].restore()
        await world.wait(300)
        assert [each.held_why for each in await world.fleet.lanes()] == ["works on the mast"]
        assert (await world.get(read)).status is QUEUED

    in_engine_world(story)


def test_reads_expire_while_their_gateway_is_down() -> None:
    async def story(world: EngineWorld) -> None:
        world.gateways[0].cut(world.clock.now())
        await world.fleet.hold_lane("lorawan_network:grid0", why="the mast is down")
        half_an_hour = timedelta(minutes=30)
        sent = [await world.send(CREDIT, meter, expires_in=half_an_hour) for meter in world.meters]
        began = world.clock.now()
        ends = await world.all_end(sent, within_s=1900)
        assert {(each.reason, each.outcome) for each in ends} == {(EndReason.EXPIRED, Outcome.NOT_EXECUTED)}
        assert world.clock.now() - began < half_an_hour + timedelta(seconds=10)
        assert world.trace.handovers == []

    in_engine_world(story, meters=20)


def test_a_thousand_reads_of_one_meter_become_one() -> None:
    async def story(world: EngineWorld) -> None:
        await world.fleet.hold_lane("lorawan_network:grid0")
        wanted = [world.new(CREDIT, correlation_id=f"caller-{number}") for number in range(1000)]
        first = await world.fleet.send(wanted[0])
        rest = [await world.fleet.send(each) for each in wanted[1:100]]
        rest += await world.fleet.send_many(wanted[100:])
        assert {each.id for each in rest} == {first.id}
        assert not any(each.is_new for each in rest)
        await world.fleet.release_lane("lorawan_network:grid0")
        (command,) = await world.all_end([first.id])
        assert len(world.trace.deeds[first.id]) == len(world.meters[0].deeds) == 1
        assert {command.correlation_id, *command.joined} == {each.correlation_id for each in wanted}
        assert [each.id for each in await world.fleet.find("caller-777")] == [first.id]

    in_engine_world(story)


def test_a_newer_switch_takes_the_place_of_one_that_waits() -> None:
    async def story(world: EngineWorld) -> None:
        await world.fleet.hold_lane("lorawan_network:grid0")
        off = await world.send(CommandType.TURN_OFF)
        on = await world.fleet.send(world.new(CommandType.TURN_ON))
        assert on.superseded == (off,)
        await world.fleet.release_lane("lorawan_network:grid0")
        first, second = await world.all_end([off, on.id])
        assert (first.reason, first.outcome) == (EndReason.SUPERSEDED, Outcome.NOT_EXECUTED)
        assert second.outcome is Outcome.EXECUTED
        assert [each.type for each in world.meters[0].deeds] == [CommandType.TURN_ON]

    in_engine_world(story)


# -- people


@pytest.mark.parametrize("kind", [CommandType.TURN_OFF, CommandType.TOP_UP])
@pytest.mark.parametrize(
    "stage", [QUEUED, SENT_TO_NS, DELIVERED_TO_NS, SENT_TO_DEVICE, TO_RETRY], ids=lambda each: each.value
)
def test_a_cancelled_command_says_what_the_meter_did(stage: CommandStatus, kind: CommandType) -> None:
    async def story(world: EngineWorld) -> None:
        if stage is QUEUED:
            await world.fleet.hold_lane("lorawan_network:grid0")
        world.weather.downlink_loss = 1.0 if stage is TO_RETRY else 0.0
        sent = await world.send(kind, data=token(1) if kind is CommandType.TOP_UP else None)
        await world.until(sent, stage)
        cancelled = await world.fleet.cancel(sent)
        assert cancelled is not None
        world.weather.downlink_loss = 0.0
        (command,) = await world.all_end([sent])
        await world.wait(600)
        await world.check_truth([command])
        assert len(command.attempts) == (0 if stage is QUEUED else 1)
        if cancelled.has_ended:
            assert (cancelled.status, cancelled.outcome) == (command.status, command.outcome)
        if stage is QUEUED:
            assert (command.reason, command.outcome) == (EndReason.CANCELLED, Outcome.NOT_EXECUTED)
        elif stage is TO_RETRY:
            assert (command.reason, command.outcome) == (EndReason.CANCELLED, Outcome.UNKNOWN)
        else:
            assert command.outcome in (Outcome.EXECUTED, Outcome.UNKNOWN)

    in_engine_world(story)


def test_a_cancelled_command_of_a_class_a_meter_is_not_sent_by_anybody_afterwards_without_being_told() -> (
    None
):
    async def story(world: EngineWorld) -> None:
        sent = await world.send(CommandType.TURN_OFF)
        await world.until(sent, DELIVERED_TO_NS)
        await world.fleet.cancel(sent)
        (command,) = await world.all_end([sent], within_s=40_000)
        world.core.report(world.meters[0])
        await world.wait(600)
        await world.check_truth([command])

    in_engine_world(story, meter={"device_class": "A"}, report_every=timedelta(hours=1))


def test_a_cancelled_task_may_be_carried_out_and_says_so() -> None:
    async def story(world: EngineWorld) -> None:
        sent = await world.send(CommandType.TURN_OFF, via=Protocol.API_V1)
        await world.until(sent, DELIVERED_TO_NS)
        cancelled = await world.fleet.cancel(sent)
        assert cancelled is not None
        assert (cancelled.has_ended, cancelled.outcome) == (True, Outcome.UNKNOWN)
        (command,) = await world.all_end([sent])
        await world.wait(600)
        assert not world.pulled[0].relay_on
        await world.check_truth([command])

    in_engine_world(story, pulled=1)


def test_a_failed_command_is_replayed_and_begins_anew() -> None:
    async def story(world: EngineWorld) -> None:
        world.weather.downlink_loss = 1.0
        sent = await world.send(CREDIT, expires_in=timedelta(minutes=3))
        command = await world.until(sent)
        assert (command.status, command.reason) == (FAILED, EndReason.EXPIRED)
        world.weather.downlink_loss = 0.0
        assert await world.fleet.replay(sent)
        (command,) = await world.all_end([sent])
        assert (command.status, command.outcome, command.replays) == (DONE, Outcome.EXECUTED, 1)
        assert not await world.fleet.replay(sent)
        assert [each.status for each in world.ended] == [FAILED, DONE]

    in_engine_world(story)


def test_a_token_that_may_have_been_applied_is_replayed_only_when_somebody_made_sure() -> None:
    async def story(world: EngineWorld) -> None:
        world.weather.downlink_loss = 1.0
        sent = await world.send(CommandType.TOP_UP, data=token(1))
        command = await world.until(sent)
        assert (command.reason, command.outcome) == (EndReason.OUTCOME_UNKNOWN, Outcome.UNKNOWN)
        world.weather.downlink_loss = 0.0
        assert not await world.fleet.replay(sent)
        assert await world.fleet.replay(sent, not_applied=True)
        (command,) = await world.all_end([sent])
        assert command.outcome is Outcome.EXECUTED
        assert world.meters[0].credit_kwh == 75.0

    in_engine_world(story)


def test_ended_commands_are_pruned_after_their_time_and_not_before() -> None:
    async def story(world: EngineWorld) -> None:
        early = await world.send(CREDIT)
        await world.until(early)
        await world.wait(1500)
        assert await world.fleet.get(early) is not None
        await world.wait(1800)
        late = await world.send(CREDIT)
        await world.until(late)
        await world.wait(900)
        assert await world.fleet.get(early) is None
        assert await world.fleet.get(late) is not None

    in_engine_world(story, timings=Timings(keep_ended=timedelta(minutes=30)))


def test_an_engine_that_is_stopped_finishes_the_calls_that_run() -> None:
    async def story(world: EngineWorld) -> None:
        engine: Engine = world.engines[0]
        sent = await world.send(CREDIT)
        await world.until(sent, SENT_TO_NS)
        await engine.stop()
        command = await world.get(sent)
        assert command.status in (DELIVERED_TO_NS, SENT_TO_DEVICE, DONE)
        await world.send(CommandType.TURN_OFF)
        await world.wait(60)
        assert len(world.trace.handovers) == 1

    in_engine_world(story)
