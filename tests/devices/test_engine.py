"""The engine as a whole: commands from a fleet to simulated meters and back, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from remuda import Exponential, Queue
from remuda.clock import Clock, SystemClock
from remuda.devices.airtime import DutyCycle
from remuda.devices.command import (
    Command,
    CommandType,
    Device,
    Execution,
    Expectation,
    Outcome,
    Protocol,
)
from remuda.devices.engine import Engine
from remuda.devices.fleet import Fleet
from remuda.devices.listening import DeviceReport
from remuda.devices.networks.contract import Network, Order, QueueItem
from remuda.devices.networks.signals import Ack, TxAck, Uplink
from remuda.devices.publishing import BatchSubscriber
from remuda.devices.sending import NewCommand
from remuda.devices.simulator.calin import SimulatedCalin
from remuda.devices.simulator.calin_http import HttpServer
from remuda.devices.simulator.calin_network import InProcessCalin
from remuda.devices.simulator.meter import Meter
from remuda.devices.simulator.radio import Call, Fault, Weather
from remuda.devices.simulator.virtual_time import run_virtually
from remuda.devices.timings import Timings
from remuda.devices.webhooks import (
    SIGNATURE_HEADER,
    WebhookSubscriber,
    WebhookTarget,
    is_signed,
    signature_of,
    webhook_worker,
)
from remuda.errors import StoreUnavailableError
from remuda.lifecycle import IN_FLIGHT_STATUSES, CommandStatus, EndReason
from tests.devices.engine_world import CREDIT, START, EngineWorld, in_engine_world, token
from tests.faults.waiting import until

QUEUED, SENT_TO_NS, DELIVERED_TO_NS = (
    CommandStatus.QUEUED,
    CommandStatus.SENT_TO_NS,
    CommandStatus.DELIVERED_TO_NS,
)
SENT_TO_DEVICE, TO_RETRY = CommandStatus.SENT_TO_DEVICE, CommandStatus.TO_RETRY
DONE, FAILED = CommandStatus.DELIVERY_SUCCESSFUL, CommandStatus.DELIVERY_FAILED
PULLS = [Protocol.API_V1, Protocol.API_V2]
BY_READ = Expectation(read=CREDIT, rises_by=50.0)


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


# A tenth in reserve: the gateway reckons in whole frames of the hour that ends now.
@pytest.mark.parametrize("airtime", [None, DutyCycle(share=0.009)])
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


# -- calls that are slow, or fail


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", [CREDIT, CommandType.TOP_UP])
def test_a_call_of_37_seconds_is_waited_for_and_the_meter_gets_the_command_once(
    seed: int, kind: CommandType
) -> None:
    async def story(world: EngineWorld) -> None:
        sent = await world.send(kind, data=token(1) if kind is CommandType.TOP_UP else None)
        (command,) = await world.all_end([sent])
        assert command.outcome is Outcome.EXECUTED
        assert len(world.trace.handovers) == len(world.trace.deeds[sent]) == 1
        assert "accept_timeout" in [each.reason for each in command.failures]

    in_engine_world(story, weather=Weather(seed, slow_calls=1.0), gateways=1)


class WorseAtFirst(Weather):
    """The first calls are these, whoever makes them; all others are quick."""

    def __init__(self, *first: Call) -> None:
        super().__init__(1)
        self._first = list(first)

    def call(self, name: str) -> Call:
        usual = super().call(name)
        return self._first.pop(0) if self._first and name != "gateways" else usual


@pytest.mark.parametrize("before_s", [1.0, 19.0, 25.0, 29.0, 31.0, 33.0, 36.0])
@pytest.mark.parametrize(
    "proof", [None, BY_READ, Expectation(read=CREDIT, at_least=70.0)], ids=["none", "rise", "value"]
)
def test_a_call_that_has_its_effect_after_it_was_given_up_does_not_make_a_record_untrue(
    before_s: float, proof: Expectation | None
) -> None:
    """The adapter waits 30 s; the network server queues the item up to 37 s after it was asked."""

    async def story(world: EngineWorld) -> None:
        sent = await world.send(CommandType.TOP_UP, data=token(1), expectation=proof)
        (command,) = await world.all_end([sent])
        await world.wait(120)
        await world.check_truth([command])
        assert command.outcome is Outcome.EXECUTED

    weather = WorseAtFirst(Call(before_s, 37.0 - before_s, None))
    in_engine_world(story, weather=weather, call_deadline=timedelta(seconds=30))


def test_a_look_does_not_take_another_commands_item_for_a_lost_one() -> None:
    """The read before a top-up has the bytes of a read whose call has failed."""

    async def story(world: EngineWorld) -> None:
        read = await world.send(CREDIT, priority=90)
        top_up = await world.send(CommandType.TOP_UP, data=token(1), expectation=BY_READ)
        await world.wait(60)
        names = [
            attempt.external_id
            for command in (await world.get(read), await world.get(top_up))
            for attempt in command.attempts
            if attempt.external_id is not None
        ]
        assert len(names) == len(set(names)) > 0
        world.core.report(world.meters[0])
        ends = await world.all_end([read, top_up])
        assert {each.outcome for each in ends} == {Outcome.EXECUTED}

    in_engine_world(
        story,
        weather=WorseAtFirst(Call(0.1, 0.1, Fault.BEFORE)),
        meter={"device_class": "A"},
        report_every=timedelta(minutes=10),
    )


def test_a_lost_call_does_not_take_another_commands_frame_for_its_own() -> None:
    """Its transmission is told before its slow accept; the only other call of the device was lost."""

    async def story(world: EngineWorld) -> None:
        switch = await world.send(CommandType.TURN_OFF, priority=90)
        await world.until(switch, TO_RETRY)
        date = await world.send(CommandType.SET_DATE, data="2031-05-06")
        first, second = await world.all_end([switch, date])
        assert (first.outcome, second.outcome) == (Outcome.EXECUTED, Outcome.EXECUTED)
        assert len(world.trace.deeds[switch]) == 1

    weather = WorseAtFirst(Call(0.1, 0.1, Fault.BEFORE), Call(0.1, 12.0, None))
    in_engine_world(story, weather=weather, timings=Timings(lock=timedelta(seconds=0.1)))


class ScriptedChirpStack(Network):
    """Takes every frame, and tells nothing by itself: the test does."""

    protocol = Protocol.LORAWAN

    def __init__(self) -> None:
        self.orders: list[Order] = []

    async def send(self, order: Order) -> str:
        self.orders.append(order)
        return f"item-{len(self.orders)}"

    async def look(self, device: Device) -> list[QueueItem]:
        return []

    def answer(self, number: int, meter: Meter, now: datetime) -> bytes:
        """What a meter answers to a frame."""
        frame = self.orders[number - 1].downlink
        assert frame is not None
        answer = meter.receive(frame.data, now)
        assert answer is not None
        return answer


def test_an_answer_that_fitted_two_commands_is_not_given_to_the_one_that_is_left() -> None:
    """A bare reply to a switch, whose ACK was lost, waits; the switch ends by its next attempt."""

    async def story(clock: Clock) -> None:
        meter, network = Meter("47000000001", rng=random.Random(1)), ScriptedChirpStack()
        device = Device(reference=meter.serial, protocol=Protocol.LORAWAN)
        async with Fleet("memory://", clock=clock) as fleet, Engine(fleet, [network]) as engine:

            async def sent(number: int) -> dict[str, Any]:
                while len(network.orders) < number:
                    await clock.sleep(timedelta(seconds=0.1))
                named = {"device": device.key, "external_id": f"item-{number}"}
                await clock.sleep(timedelta(seconds=0.5))
                await engine.keep([TxAck(id=f"tx-{number}", at=clock.now(), **named)])
                return {**named, "at": clock.now() + timedelta(milliseconds=1)}

            date = await fleet.send(NewCommand(type=CommandType.SET_DATE, device=device, data="2031-05-06"))
            about = await sent(1)
            await engine.keep([Ack(id="ack-1", acknowledged=False, **about)])  # nobody heard it
            switch = await fleet.send(NewCommand(type=CommandType.TURN_OFF, device=device, priority=90))
            await sent(2)
            await clock.sleep(timedelta(seconds=1))
            reply = network.answer(2, meter, clock.now())
            heard = {"device": device.key, "data": reply, "f_port": 1}
            await engine.keep([Uplink(id="up-2", at=clock.now(), dedup="lost ack", **heard)])
            number = 3
            while (found := await fleet.get(switch.id)) is None or not found.has_ended:
                about = await sent(number)
                if network.orders[number - 1].command_id == switch.id:
                    await engine.keep([Ack(id=f"ack-{number}", acknowledged=True, dedup="joined", **about)])
                    await engine.keep([Uplink(id=f"up-{number}", at=clock.now(), dedup="joined", **heard)])
                number += 1
                await clock.sleep(timedelta(seconds=0.5))
            assert found.outcome is Outcome.EXECUTED
            await clock.sleep(timedelta(seconds=60))
            left = await fleet.get(date.id)
            assert left is not None
            assert left.outcome is not Outcome.EXECUTED, "nobody has set the date"

    run_virtually(story, start=START)


def test_a_task_is_asked_for_one_poll_at_a_time() -> None:
    async def story(world: EngineWorld) -> None:
        world.calin.set_offline(world.pulled[0].serial)
        read = await world.send(CREDIT, via=Protocol.API_V1)
        await world.wait(600)
        moments = [at.timestamp() for at, _ in world.trace.polls]
        assert len(moments) > 5
        assert min(after - before for before, after in itertools.pairwise(moments)) >= 10
        world.calin.set_online(world.pulled[0].serial)
        await world.all_end([read])

    delay = timedelta(seconds=12), timedelta(seconds=14)
    in_engine_world(story, pulled=1, vendor=Weather(1, accept_delay=delay), engines=2)


@pytest.mark.parametrize("via", PULLS)
def test_a_poll_that_fails_is_repeated_and_makes_no_second_task(via: Protocol) -> None:
    async def story(world: EngineWorld) -> None:
        sent = await world.send(CommandType.TOP_UP, via=via, data=token(1))
        await world.until(sent, DELIVERED_TO_NS)
        world.calin.weather.failures_before = world.calin.weather.failures_after = 0.4
        (command,) = await world.all_end([sent])
        assert (len(world.calin.tasks), command.outcome) == (1, Outcome.EXECUTED)

    in_engine_world(story, pulled=1, vendor=Weather(3))


@pytest.mark.parametrize("seed", range(2))
def test_in_bad_weather_everything_ends_and_every_end_is_true(seed: int) -> None:
    """Switches, settings and tokens are answered alike, so that nothing but care tells whose answer it is."""

    async def story(world: EngineWorld) -> None:
        rng = random.Random(seed)
        new = []
        for number, meter in enumerate([*world.meters, *world.pulled]):
            via = Protocol.LORAWAN if meter in world.meters else PULLS[number % 2]
            new.append(world.new(CREDIT, meter, via=via))
            new.append(world.new(rng.choice([CommandType.TURN_ON, CommandType.TURN_OFF]), meter, via=via))
            new.append(world.new(CommandType.SET_DATE, meter, via=via, data="2031-05-06"))
            if via.is_push:
                new.append(world.new(CommandType.SET_TIME, meter, via=via, data="12:30:00"))
            proof = BY_READ if number % 2 else None
            new.append(world.new(CommandType.TOP_UP, meter, via=via, data=token(number), expectation=proof))
        rng.shuffle(new)
        sent = await world.fleet.send_many(new)
        await world.all_end([each.id for each in sent], within_s=200_000)

    trouble: dict[str, Any] = {
        "downlink_loss": 0.2,
        "uplink_loss": 0.2,
        "slow_calls": 0.1,
        "failures_before": 0.1,
        "failures_after": 0.1,
    }
    signals: dict[str, Any] = {"webhook_loss": 0.3, "webhook_duplicates": 0.2, "webhook_reorder": 0.3}
    in_engine_world(
        story,
        meters=40,
        pulled=8,
        gateways=4,
        engines=2,
        meter={"refuse": 0.3, "spreading_factor": 7},
        weather=Weather(seed, **trouble, **signals),
        vendor=Weather(seed, **trouble),
    )


# -- several engines, engines that die, a store that goes away


def test_two_engines_on_one_store_share_the_work_and_do_nothing_twice() -> None:
    async def story(world: EngineWorld) -> None:
        new = [world.new(CREDIT, meter) for meter in world.meters]
        new += [
            world.new(CommandType.TOP_UP, meter, data=token(number))
            for number, meter in enumerate(world.meters)
        ]
        sent = [each.id for each in await world.fleet.send_many(new)]
        ends = await world.all_end(sent)
        assert {each.outcome for each in ends} == {Outcome.EXECUTED}
        assert {len(world.trace.deeds[each]) for each in sent} == {1}
        assert sorted(each.id for each in world.ended) == sorted(sent)

    in_engine_world(story, meters=60, gateways=6, engines=2)


@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.3, 1.0, 2.5, 6.0])
def test_what_a_dead_engine_leaves_behind_is_taken_over(after_s: float) -> None:
    async def story(world: EngineWorld) -> None:
        first = world.engines[0]
        new = []
        for number, meter in enumerate(world.meters):
            new += [world.new(CREDIT, meter), world.new(CommandType.TURN_OFF, meter)]
            new.append(world.new(CommandType.TOP_UP, meter, data=token(number), expectation=BY_READ))
        new += [world.new(CREDIT, meter, via=Protocol.API_V2) for meter in world.pulled]
        sent = [each.id for each in await world.fleet.send_many(new)]
        await world.wait(after_s)
        world.crash(first)
        await world.wait(1)
        world.engines.append(world.new_engine())
        await world.engines[-1].start()
        ends = await world.all_end(sent)
        assert {each.outcome for each in ends} == {Outcome.EXECUTED}

    in_engine_world(story, meters=10, pulled=6, gateways=5, timings=Timings(lock=timedelta(seconds=0.2)))


@pytest.mark.parametrize("trouble", ["is_down", "loses_answers"])
@pytest.mark.parametrize("after_s", [0.1, 1.0, 3.0])
def test_nothing_is_lost_while_the_store_is_away(
    trouble: str, after_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(world: EngineWorld) -> None:
        new = []
        for number, meter in enumerate(world.meters):
            new += [world.new(CREDIT, meter), world.new(CommandType.TURN_OFF, meter)]
            new.append(world.new(CommandType.TOP_UP, meter, data=token(number), expectation=BY_READ))
        sent = [each.id for each in await world.fleet.send_many(new)]
        await world.wait(after_s)
        setattr(world.store, trouble, True)
        await world.wait(20)
        setattr(world.store, trouble, False)
        ends = await world.all_end(sent)
        assert {each.outcome for each in ends} == {Outcome.EXECUTED}

    in_engine_world(story, meters=8, gateways=4, timings=Timings(lock=timedelta(seconds=0.2)))
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []
    assert any("until the store is back" in each.message for each in caplog.records)


# -- those who are told


class Audience(BatchSubscriber):
    """Hears commands and reports; refuses the first `refusals` times."""

    def __init__(self, refusals: int = 0) -> None:
        self.refusals = refusals
        self.commands: list[str] = []
        self.reports: list[DeviceReport] = []

    async def told(self, commands: list[Command]) -> None:
        if self.refusals > 0:
            self.refusals -= 1
            raise StoreUnavailableError("not now")
        self.commands += [each.id for each in commands]

    async def reported(self, report: DeviceReport) -> None:
        self.reports.append(report)


def test_a_subscriber_that_fails_keeps_nobody_else_from_being_told(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: EngineWorld) -> None:
        engine = world.new_engine()
        calls: list[str] = []

        def fails(command: Command) -> None:
            calls.append(command.id)
            raise RuntimeError("a subscriber's own bug")

        later = Audience()
        engine.subscribe(fails)
        engine.subscribe(later)
        await world.engines[0].stop()
        world.engines[0] = engine
        await engine.start()
        sent = [await world.send(CREDIT, meter) for meter in world.meters]
        await world.all_end(sent)
        assert set(calls) == set(later.commands) == set(sent)
        assert sorted(each.id for each in world.ended) == sorted(sent)

    in_engine_world(story, meters=3)
    assert "a subscriber failed 5 times" in caplog.text


def test_a_subscriber_whose_store_is_away_is_told_again() -> None:
    async def story(world: EngineWorld) -> None:
        audience = Audience(refusals=3)
        world.engines[0].subscribe(audience)
        sent = [await world.send(CREDIT, meter) for meter in world.meters]
        await world.all_end(sent)
        assert set(audience.commands) == set(sent)

    in_engine_world(story, meters=3)


def test_reports_and_joins_reach_subscribers_once() -> None:
    async def story(world: EngineWorld) -> None:
        audience = Audience()
        world.engines[0].subscribe(audience)
        meter = world.meters[0]
        world.core.report(meter)
        await world.wait(5)
        world.core.join(meter)
        await world.wait(5)
        report, joined = audience.reports
        assert (report.type, joined.type) == ("READ_REPORT", "JOIN_NETWORK")
        assert report.device == joined.device == world.device(meter).key
        assert "25" in repr(report.data)
        assert audience.commands == []

    in_engine_world(story, weather=Weather(1, webhook_duplicates=1.0))


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


# -- webhooks: real HTTP, a real queue, real time

SECRET = "a-secret-of-the-receiver"


class Receiver:
    """Takes webhooks; answers with the scripted statuses of a target in turn, then with 204."""

    def __init__(self, **statuses: list[int]) -> None:
        self.statuses = statuses
        self.got: list[tuple[str, Any, bool]] = []
        self.deliveries: list[str] = []
        self.server = HttpServer(Starlette(routes=[Route("/{target}", self._take, methods=["POST"])]))

    async def _take(self, request: Request) -> Response:
        target, body = request.path_params["target"], await request.body()
        signature = request.headers[SIGNATURE_HEADER]
        self.got.append(
            (target, json.loads(body), is_signed(body, signature, secret=SECRET, now=time.time()))
        )
        self.deliveries.append(request.headers["X-Remuda-Delivery"])
        script = self.statuses.get(target, [])
        return Response(status_code=script.pop(0) if script else 204)

    def bodies(self, target: str) -> list[Any]:
        return [body for name, body, _ in self.got if name == target]

    def target(self, name: str) -> WebhookTarget:
        return WebhookTarget(name=name, url=f"{self.server.url}/{name}", secret=SECRET)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries of webhooks that nobody has to wait for."""
    quick = Exponential(initial=timedelta(milliseconds=1), cap=timedelta(milliseconds=5), max_attempts=15)
    monkeypatch.setattr("remuda.devices.webhooks._RETRY", quick)


async def ended_commands() -> list[Command]:
    """A command that was carried out, and one that failed."""

    async def story(world: EngineWorld) -> list[Command]:
        stranger = Device(reference="99", protocol=Protocol.LORAWAN)
        top_up = world.new(CommandType.TOP_UP, data=token(1), correlation_id="order-17")
        sent = await world.fleet.send_many([top_up, NewCommand(type=CREDIT, device=stranger, grid="grid0")])
        return await world.all_end([each.id for each in sent])

    return await asyncio.to_thread(in_engine_world, story)


async def test_webhooks_are_signed_retried_and_dead_where_they_are_hopeless(
    sqlite_url: str, at_once: None
) -> None:
    done, failed = await ended_commands()
    receiver = Receiver(flaky=[500, 503, 429], gone=[410, 410])
    await receiver.server.start()
    targets = [receiver.target(each) for each in ("good", "flaky", "gone")]
    async with Queue("webhooks", sqlite_url) as queue:
        subscriber = WebhookSubscriber(queue, targets)
        await subscriber.told([done, failed])
        await subscriber.told([failed, done])  # an end may be published twice
        await webhook_worker(queue, targets).run(until_empty=True)
        letters = await queue.dead.peek()
    await receiver.server.stop()
    assert all(signed for _, _, signed in receiver.got)
    good = {body["id"]: body for body in receiver.bodies("good")}
    assert len(receiver.bodies("good")) == len(good) == 2
    assert good[done.id]["outcome"] == "executed"
    assert good[done.id]["correlation_ids"] == ["order-17"]
    assert (good[failed.id]["status"], good[failed.id]["reason"]) == ("DELIVERY_FAILED", "unknown_device")
    assert token(1) not in json.dumps([body for _, body, _ in receiver.got])
    assert len(receiver.bodies("flaky")) == 2 + 3
    assert {body["id"] for body in receiver.bodies("flaky")} == {done.id, failed.id}
    assert len(receiver.bodies("gone")) == 2
    assert [each.reason for each in letters] == ["unrecoverable"] * 2
    assert SECRET not in "".join(
        f"{each.error_message}{each.error_trace}{each.payload!r}" for each in letters
    )


async def test_a_replayed_command_is_told_again_and_a_report_is_told_to_webhooks(
    sqlite_url: str, at_once: None
) -> None:
    _, failed = await ended_commands()
    again = msgspec.structs.replace(failed, version=failed.version + 7)
    report = DeviceReport(id="r-1", device="LORAWAN:01", at=failed.created_at, type="JOIN_NETWORK")
    receiver = Receiver()
    await receiver.server.start()
    targets = [receiver.target("good")]
    async with Queue("webhooks", sqlite_url) as queue:
        subscriber = WebhookSubscriber(queue, targets)
        await subscriber.told([failed])
        await subscriber.told([again])
        await subscriber.reported(report)
        await subscriber.reported(report)
        await webhook_worker(queue, targets).run(until_empty=True)
    await receiver.server.stop()
    assert sorted(body["id"] for body in receiver.bodies("good")) == sorted([failed.id, failed.id, "r-1"])


async def test_an_engine_tells_webhooks_of_every_end(sqlite_url: str, at_once: None) -> None:
    """The whole way: an engine in real time whose ends become jobs, and a worker that sends them."""
    receiver = Receiver(good=[500])
    await receiver.server.start()
    targets = [receiver.target("good")]
    stranger = Device(reference="99", protocol=Protocol.API_V1)
    async with Queue("webhooks", sqlite_url) as queue, Fleet("memory://") as fleet:
        calin = SimulatedCalin(
            {}, SystemClock(), weather=Weather(1, accept_delay=(timedelta(0), timedelta(0)))
        )
        engine = Engine(fleet, [InProcessCalin(calin, Protocol.API_V1)])
        engine.subscribe(WebhookSubscriber(queue, targets))
        async with engine:
            sent = await fleet.send(NewCommand(type=CREDIT, device=stranger))
            await until(lambda: queue_has_jobs(queue), "the end has become a job")
        await webhook_worker(queue, targets).run(until_empty=True)
    await receiver.server.stop()
    assert [body["id"] for body in receiver.bodies("good")] == [sent.id, sent.id]
    assert len(set(receiver.deliveries)) == 1


async def queue_has_jobs(queue: Queue) -> bool:
    return (await queue.stats()).live > 0


def test_a_signature_is_not_taken_for_another_body_secret_or_time() -> None:
    body = b'{"id":"c-1"}'
    header = signature_of(body, secret=SECRET, at=1_000)
    assert is_signed(body, header, secret=SECRET, now=1_010)
    assert not is_signed(body + b" ", header, secret=SECRET, now=1_010)
    assert not is_signed(body, header, secret=SECRET + "x", now=1_010)
    assert not is_signed(body, header, secret=SECRET, now=1_400)
    assert not is_signed(body, "v1=", secret=SECRET, now=1_010)
