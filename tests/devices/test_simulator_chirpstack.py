"""The simulated ChirpStack does what the real one does, as far as a client can tell."""

from __future__ import annotations

import asyncio
import base64
from datetime import timedelta
from typing import Any

import pytest

from remuda.devices.codecs.dlt645 import Dlt645
from remuda.devices.command import Answer, CommandType
from remuda.devices.simulator.chirpstack import InvalidItemError, UnknownDeviceError
from remuda.devices.simulator.radio import Weather
from remuda.devices.simulator.virtual_time import VirtualTimeLoop
from remuda.errors import ConfigurationError
from tests.devices.simulated_world import NO_DELAY, START, World, in_world

TOKEN = "50000000000000000050"


def test_a_confirmed_item_is_told_by_txack_then_ack_and_up_of_one_deduplication_id() -> None:
    async def story(world: World) -> None:
        counter = world.core.next_f_cnt_down(world.meter.dev_eui)
        item = world.command(CommandType.READ_CREDIT)
        await world.wait(6)
        assert world.kinds() == ["txack", "ack", "up"]
        (txack,), (ack,), (up,) = (world.events(kind) for kind in ("txack", "ack", "up"))
        assert txack["queueItemId"] == ack["queueItemId"] == item
        assert type(txack["downlinkId"]) is int
        assert txack["gatewayId"] == world.gateway.id
        assert txack["fCntDown"] == ack["fCntDown"] == counter
        assert ack["acknowledged"] is True
        assert ack["deduplicationId"] == up["deduplicationId"] != ""
        answer = Dlt645().decode(base64.b64decode(up["data"]), up["fPort"])
        assert isinstance(answer, Answer)
        assert answer.data["value"] == world.meter.credit_kwh
        assert up["deviceInfo"]["devEui"] == world.meter.dev_eui
        assert up["deviceInfo"]["deviceClassEnabled"] == "CLASS_C"
        assert world.core.queue(world.meter.dev_eui) == []
        assert world.core.next_f_cnt_down(world.meter.dev_eui) == counter + 1

    in_world(story)


def test_an_unconfirmed_item_is_gone_with_its_txack() -> None:
    async def story(world: World) -> None:
        world.command(CommandType.TURN_OFF, confirmed=False)
        await world.wait(6)
        assert world.kinds() == ["txack", "up"]
        assert not world.meter.relay_on

    in_world(story)


def test_an_item_that_is_not_acknowledged_is_told_lazily_and_dropped() -> None:
    async def story(world: World) -> None:
        item = world.command(CommandType.TURN_OFF)
        await world.wait(5)
        assert [each.is_pending for each in world.core.queue(world.meter.dev_eui)] == [True]
        assert world.kinds() == ["txack"]
        await world.wait(5)
        (txack_at, *_), (nack_at, kind, nack) = world.told
        assert kind == "ack"
        assert (nack["queueItemId"], nack["acknowledged"], nack["deduplicationId"]) == (item, False, "")
        assert nack_at - txack_at >= timedelta(seconds=5)
        assert (nack_at - START).total_seconds() % 1 == 0  # told in a round of the scheduler
        assert world.core.queue(world.meter.dev_eui) == []
        assert world.meter.relay_on
        assert world.meter.deeds == []

    in_world(story, weather=Weather(1, downlink_loss=1.0))


def test_a_lost_answer_leaves_a_deed_that_nobody_heard_of() -> None:
    async def story(world: World) -> None:
        world.command(CommandType.TOP_UP, TOKEN)
        await world.wait(12)
        assert world.kinds() == ["txack", "ack"]
        assert world.events("ack")[0]["acknowledged"] is False
        assert [deed.applied for deed in world.meter.deeds] == [True]

    in_world(story, weather=Weather(1, uplink_loss=1.0))


def test_a_pending_item_blocks_its_device_and_no_other() -> None:
    async def story(world: World) -> None:
        first, second = world.meters
        stuck = world.command(CommandType.TURN_OFF, meter=first)
        waiting = world.command(CommandType.TURN_ON, meter=first)
        await world.wait(2.5)
        free = world.command(CommandType.TURN_OFF, meter=second)
        await world.wait(2)
        assert [(each.id, each.is_pending) for each in world.core.queue(first.dev_eui)] == [
            (stuck, True),
            (waiting, False),
        ]
        assert [each["queueItemId"] for each in world.events("txack")] == [stuck, free]
        await world.wait(4)
        assert [each["queueItemId"] for each in world.events("txack")] == [stuck, free, waiting]
        assert world.events("ack")[0]["queueItemId"] == stuck

    in_world(story, meters=2, weather=Weather(1, downlink_loss=1.0))


def test_a_gateway_that_is_busy_refuses_and_the_item_stays() -> None:
    async def story(world: World) -> None:
        for meter in world.meters:
            world.command(CommandType.READ_CREDIT, meter=meter)
        await world.wait(1.5)
        assert sorted(world.kinds()[:2]) == ["log", "txack"]
        (log, *_) = world.events("log")
        assert (log["level"], log["code"]) == ("ERROR", "DOWNLINK_GATEWAY")
        assert log["description"] == "COLLISION_PACKET"
        assert log["context"] == {}
        await world.wait(10)
        assert len(world.events("txack")) == len(world.events("up")) == 2

    weather = Weather(1, delay=NO_DELAY)
    in_world(story, meters=2, weather=weather, meter={"spreading_factor": 9})


def test_a_gateway_without_duty_left_refuses_until_it_has_some() -> None:
    async def story(world: World) -> None:
        for meter in world.meters:
            world.command(CommandType.READ_CREDIT, meter=meter)
        await world.wait(60)
        assert {each["description"] for each in world.events("log")} >= {"DUTY_CYCLE_OVERFLOW"}
        # 3.6 s of air time at 0.1 %, of which a read takes 1.5 s at SF12
        assert len(world.events("txack")) == 2
        await world.wait(3600)
        assert len(world.events("txack")) == 3

    in_world(story, meters=3, duty=0.001, meter={"spreading_factor": 12})


def test_a_gateway_that_is_down_says_nothing_and_the_item_goes_out_when_it_is_back() -> None:
    async def story(world: World) -> None:
        world.gateway.cut(world.clock.now())
        world.command(CommandType.TURN_OFF)
        await world.wait(120)
        assert world.told == []
        assert [each.is_pending for each in world.core.queue(world.meter.dev_eui)] == [False]
        assert [each.online for each in world.core.gateways()] == [False]
        world.gateway.restore()
        await world.wait(20)
        assert world.kinds() == ["txack", "ack", "up"]
        assert [each.online for each in world.core.gateways()] == [True]

    in_world(story)


def test_an_uplink_is_not_heard_while_the_gateway_sends() -> None:
    async def story(world: World) -> None:
        sender, teller = world.meters
        world.command(CommandType.READ_CREDIT, meter=sender)
        await world.wait(1.1)
        world.core.report(teller)
        await world.wait(10)
        heard = [each["deviceInfo"]["devEui"] for each in world.events("up")]
        assert heard == [sender.dev_eui]
        world.core.report(teller)
        await world.wait(10)
        assert len(world.events("up")) == 2

    weather = Weather(1, delay=NO_DELAY)
    in_world(story, meters=2, weather=weather, meter={"spreading_factor": 12})


def test_a_joined_meter_hears_its_first_frame() -> None:
    async def story(world: World) -> None:
        world.core.join(world.meter)
        world.command(CommandType.TURN_OFF)
        await world.wait(10)
        assert world.kinds() == ["join", "txack", "ack", "up"]
        assert world.events("txack")[0]["fCntDown"] == 0

    in_world(story)


def test_an_expired_item_and_one_that_is_too_large_are_discarded_by_name() -> None:
    async def story(world: World) -> None:
        late = world.command(CommandType.TURN_OFF, expires_at=START)
        large = world.core.enqueue(world.meter.dev_eui, confirmed=True, f_port=1, data=bytes(52))
        good = world.command(CommandType.READ_CREDIT, expires_at=START + timedelta(minutes=1))
        await world.wait(10)
        assert [(each["code"], each["context"]) for each in world.events("log")] == [
            ("EXPIRED", {"queue_item_id": late}),
            ("DOWNLINK_PAYLOAD_SIZE", {"queue_item_id": large}),
        ]
        assert [each["queueItemId"] for each in world.events("txack")] == [good]
        assert world.meter.relay_on

    in_world(story, meter={"spreading_factor": 12})


def test_a_class_a_meter_hears_only_after_its_own_uplink() -> None:
    async def story(world: World) -> None:
        world.command(CommandType.TURN_OFF)
        await world.wait(600)
        assert world.told == []
        world.core.report(world.meter)
        await world.wait(10)
        assert world.kinds() == ["up", "txack", "ack", "up"]
        uplink_at, _, _ = world.told[0]
        (deed,) = world.meter.deeds
        assert timedelta(seconds=0.6) < deed.at - uplink_at < timedelta(seconds=1.3)

    in_world(story, meter={"device_class": "A"}, report_every=None)


def test_a_class_a_meter_that_does_not_acknowledge_is_told_at_its_next_uplink() -> None:
    async def story(world: World) -> None:
        world.command(CommandType.TURN_OFF)
        world.core.report(world.meter)
        await world.wait(3600)
        assert world.kinds() == ["up", "txack"]
        world.core.report(world.meter)
        await world.wait(10)
        assert world.kinds() == ["up", "txack", "up", "ack"]
        (nack,) = world.events("ack")
        assert nack["acknowledged"] is False
        assert nack["deduplicationId"] == world.events("up")[1]["deduplicationId"]

    weather = Weather(1, downlink_loss=1.0)
    in_world(story, weather=weather, meter={"device_class": "A"}, report_every=None)


def test_a_window_of_class_a_that_the_network_missed_is_told_as_too_late() -> None:
    async def story(world: World) -> None:
        world.command(CommandType.TURN_OFF)
        world.core.report(world.meter)
        await world.wait(10)
        assert [each["description"] for each in world.events("log")] == ["TOO_LATE"]
        assert len(world.core.queue(world.meter.dev_eui)) == 1

    slow = (timedelta(seconds=1), timedelta(seconds=1))
    in_world(story, weather=Weather(1, delay=slow), meter={"device_class": "A"}, report_every=None)


def test_class_a_meters_report_about_hourly_each_at_a_time_of_its_own() -> None:
    async def story(world: World) -> None:
        await world.wait(24 * 3600)
        by_meter: dict[str, list[float]] = {}
        for at, _, event in world.told:
            eui = event["deviceInfo"]["devEui"]
            by_meter.setdefault(eui, []).append((at - START).total_seconds())
        assert all(23 <= len(times) <= 25 for times in by_meter.values())
        assert len({round(times[0]) for times in by_meter.values()}) > 10

    in_world(story, meters=20, meter={"device_class": "A"})


def test_an_item_that_is_flushed_on_its_way_is_transmitted_without_a_word() -> None:
    async def story(world: World) -> None:
        counter = world.core.next_f_cnt_down(world.meter.dev_eui)
        world.command(CommandType.TURN_OFF)
        await world.wait(1.2)  # scheduled at 1 s, and half a second away from the gateway
        world.core.flush(world.meter.dev_eui)
        await world.wait(20)
        assert not world.meter.relay_on
        assert world.kinds() == ["up"]
        assert world.core.next_f_cnt_down(world.meter.dev_eui) == counter
        # The next frame has the same counter, and is a replay to the device; the one after it is not.
        world.command(CommandType.TURN_ON)
        await world.wait(20)
        assert [each["acknowledged"] for each in world.events("ack")] == [False]
        assert not world.meter.relay_on
        world.command(CommandType.TURN_ON)
        await world.wait(20)
        assert world.meter.relay_on

    half = (timedelta(seconds=0.5), timedelta(seconds=0.5))
    in_world(story, weather=Weather(1, delay=half))


def test_a_new_item_does_not_wait_for_one_that_was_flushed() -> None:
    async def story(world: World) -> None:
        world.command(CommandType.TURN_OFF)
        await world.wait(2)
        world.core.flush(world.meter.dev_eui)
        item = world.command(CommandType.READ_CREDIT)
        await world.wait(1.5)
        assert [each["queueItemId"] for each in world.events("txack")][-1] == item

    in_world(story, weather=Weather(1, downlink_loss=1.0))


def test_enqueueing_with_a_flush_leaves_what_is_pending() -> None:
    async def story(world: World) -> None:
        pending = world.command(CommandType.TURN_OFF)
        await world.wait(2)
        world.command(CommandType.TURN_ON)
        last = world.command(CommandType.READ_CREDIT, flush_queue=True)
        assert [each.id for each in world.core.queue(world.meter.dev_eui)] == [pending, last]

    in_world(story, weather=Weather(1, downlink_loss=1.0))


def test_a_join_begins_the_counters_anew() -> None:
    async def story(world: World) -> None:
        world.core.join(world.meter)
        assert world.kinds() == ["join"]
        assert world.core.next_f_cnt_down(world.meter.dev_eui) == 0

    in_world(story)


@pytest.mark.parametrize("f_port", [0, 256])
def test_a_port_outside_1_to_255_is_refused(f_port: int) -> None:
    async def story(world: World) -> None:
        with pytest.raises(InvalidItemError, match=str(f_port)):
            world.command(CommandType.TURN_OFF, f_port=f_port)

    in_world(story)


def test_an_unknown_device_is_an_error() -> None:
    async def story(world: World) -> None:
        with pytest.raises(UnknownDeviceError, match="00000000deadbeef"):
            world.core.queue("00000000deadbeef")

    in_world(story)


def test_a_meter_of_a_gateway_that_is_not_there_is_refused() -> None:
    async def story(world: World) -> None: ...

    with pytest.raises(ConfigurationError, match="gw-9"):
        in_world(story, meter={"gateway": "gw-9"})


async def _busy_hour(world: World) -> tuple[list[Any], list[Any]]:
    """Every meter gets a command a minute."""

    async def talk(number: int) -> None:
        meter = world.meters[number]
        for minute in range(60):
            world.command(CommandType.TURN_OFF if minute % 2 else CommandType.READ_CREDIT, meter=meter)
            await world.wait(60)

    await asyncio.gather(*map(talk, range(len(world.meters))))
    return world.told, [meter.deeds for meter in world.meters]


def _rough(seed: int) -> Weather:
    return Weather(seed, downlink_loss=0.15, uplink_loss=0.15)


def test_one_seed_gives_one_history() -> None:
    first, again, other = (
        in_world(_busy_hour, meters=10, weather=_rough(seed), meter={"refuse": 0.1, "spreading_factor": 7})
        for seed in (5, 5, 6)
    )
    assert first == again
    assert first != other
    assert len(first[0]) > 1000


def test_frames_are_lost_about_as_often_as_asked() -> None:
    async def story(world: World) -> tuple[int, int, int]:
        _, deeds = await _busy_hour(world)
        return len(world.events("txack")), sum(map(len, deeds)), len(world.events("up"))

    sent, received, answered = in_world(story, meters=10, weather=_rough(5), meter={"spreading_factor": 7})
    assert 0.80 < received / sent < 0.90
    assert 0.80 < answered / received < 0.90


def test_a_day_of_600_idle_meters_costs_nothing() -> None:
    async def story(world: World) -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        before = loop.steps
        await world.wait(24 * 3600)
        return loop.steps - before

    assert in_world(story, meters=600) < 10


def test_a_queue_that_waits_for_a_pending_item_costs_no_step_a_second() -> None:
    async def story(world: World) -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        world.command(CommandType.TURN_OFF)
        await world.wait(5)
        before = loop.steps
        await world.wait(3590)
        assert world.kinds() == ["txack"]
        return loop.steps - before

    options = {"confirmed_timeout": timedelta(hours=1)}
    assert in_world(story, weather=Weather(1, downlink_loss=1.0), **options) < 10


def test_a_stopped_world_stands_still() -> None:
    async def story(world: World) -> None:
        world.command(CommandType.TURN_OFF)
        await world.wait(1.01)
        world.core.stop()
        await world.wait(600)
        assert world.told == []
        world.core.start()
        await world.wait(20)
        assert not world.meter.relay_on

    in_world(story)
