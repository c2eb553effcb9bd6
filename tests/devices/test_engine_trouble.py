"""The engine in trouble: slow and failing calls, lost signals, dead engines, a store that is away."""

from __future__ import annotations

import itertools
import random
from datetime import datetime, timedelta
from typing import Any

import pytest

from remuda.clock import Clock
from remuda.devices.command import (
    Command,
    CommandType,
    Device,
    Expectation,
    Outcome,
    Protocol,
)
from remuda.devices.engine import Engine
from remuda.devices.fleet import Fleet
from remuda.devices.happenings import Accepted, Happening
from remuda.devices.networks.contract import Network, Order, QueueItem, SendError
from remuda.devices.networks.signals import Ack, TxAck, Uplink
from remuda.devices.rules import Decision, decide
from remuda.devices.sending import NewCommand
from remuda.devices.simulator.meter import Meter
from remuda.devices.simulator.radio import Call, Fault, Weather
from remuda.devices.simulator.virtual_time import run_virtually
from remuda.devices.timings import Timings
from remuda.errors import ConfigurationError
from remuda.lifecycle import CommandStatus
from tests.devices.engine_world import BY_READ, CREDIT, PULLS, START, EngineWorld, in_engine_world, token

DELIVERED_TO_NS, TO_RETRY = CommandStatus.DELIVERED_TO_NS, CommandStatus.TO_RETRY


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
            heard: dict[str, Any] = {"device": device.key, "data": reply, "f_port": 1}
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


def test_an_adapter_cannot_spoil_a_record_with_an_end_that_is_none() -> None:
    with pytest.raises(ConfigurationError, match="must be an EndReason or None, not True"):
        SendError("no such device", code="1", certain=True, final=True)  # type: ignore[arg-type]


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
    assert any("until the store is back" in each.getMessage() for each in caplog.records)


def test_a_rule_that_fails_stops_one_command_and_not_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def decide_badly(command: Command, happening: Happening, **options: Any) -> Decision:
        if command.type is CommandType.SET_DATE and isinstance(happening, Accepted):
            raise ZeroDivisionError("a rule that cannot be right")
        return decide(command, happening, **options)

    monkeypatch.setattr("remuda.devices.ledger.decide", decide_badly)

    async def story(world: EngineWorld) -> None:
        struck = await world.send(CommandType.SET_DATE)
        others = [await world.send(CREDIT, meter) for meter in world.meters[1:]]
        ends = await world.all_end(others)
        assert {each.outcome for each in ends} == {Outcome.EXECUTED}
        command = await world.get(struck)
        assert not command.has_ended

    in_engine_world(story, meters=4)
    assert "a rule that cannot be right" in caplog.text


def test_a_signal_that_waits_for_weeks_does_not_stop_the_inbox(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: EngineWorld) -> None:
        stranger = TxAck(
            id="s", device=f"LORAWAN:{world.meters[0].dev_eui}", at=world.clock.now(), external_id="nobody's"
        )
        await world.engines[0].keep([stranger])
        await world.wait(3 * 3600)
        sent = await world.send(CREDIT)
        await world.all_end([sent])
        assert (await world.fleet.stats()).signals == 1

    in_engine_world(story, timings=Timings(unmatched=timedelta(days=30)))
    assert "failed to listen" not in caplog.text
