"""The simulated ChirpStack inside the process: what a network promises, and events as signals."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from remuda.devices.codecs.contract import Downlink
from remuda.devices.command import CommandType, Device, Protocol
from remuda.devices.networks.contract import NetworkError, Order, SendError
from remuda.devices.networks.signals import Ack, Signal, TxAck, Uplink
from remuda.devices.simulator.chirpstack_network import InProcessChirpStack, SignalCourier
from remuda.devices.simulator.meter import Meter
from remuda.devices.simulator.radio import Weather
from remuda.lifecycle import EndReason
from tests.devices.simulated_world import World, device_of, frame, in_world


def order(meter: Meter, *, device: Device | None = None, f_port: int = 1) -> Order:
    return Order(
        command_id="c-1",
        attempt=1,
        device=device or device_of(meter),
        type=CommandType.TURN_OFF,
        downlink=Downlink(data=frame(meter, CommandType.TURN_OFF), f_port=f_port),
    )


def test_an_order_goes_out_and_its_signals_carry_the_id_that_send_gave() -> None:
    async def story(world: World) -> None:
        signals: list[Signal] = []
        courier = SignalCourier(world.weather, signals.extend)
        network = InProcessChirpStack(world.core)
        item = await network.send(order(world.meter))
        assert [(each.id, each.pending) for each in await network.look(device_of(world.meter))] == [
            (item, False)
        ]
        await world.wait(10)
        for _, kind, event in world.told:
            courier(kind, event)
        await world.wait(1)
        txack, ack, uplink = sorted(signals, key=lambda each: each.at)
        assert isinstance(txack, TxAck)
        assert isinstance(ack, Ack)
        assert isinstance(uplink, Uplink)
        assert txack.external_id == ack.external_id == item
        assert ack.dedup == uplink.dedup
        assert {each.device for each in signals} == {device_of(world.meter).key}
        await network.close()

    in_world(story)


def test_a_slow_call_is_given_up_and_has_its_effect_all_the_same() -> None:
    async def story(world: World) -> None:
        network = InProcessChirpStack(world.core, call_deadline=timedelta(seconds=0.001))
        with pytest.raises(SendError) as caught:
            await network.send(order(world.meter))
        assert (caught.value.code, caught.value.certain) == ("DEADLINE_EXCEEDED", False)
        assert world.core.queue(world.meter.dev_eui) == []
        await world.wait(60)
        assert not world.meter.relay_on
        await network.close()

    in_world(story, weather=Weather(1, slow_calls=1.0))


@pytest.mark.parametrize(("when", "reaches"), [("failures_before", False), ("failures_after", True)])
def test_a_failed_call_leaves_in_doubt_whether_it_had_its_effect(when: str, reaches: bool) -> None:
    async def story(world: World) -> None:
        network = InProcessChirpStack(world.core)
        with pytest.raises(SendError) as caught:
            await network.send(order(world.meter))
        assert (caught.value.certain, caught.value.final) == (False, None)
        with pytest.raises(NetworkError):
            await network.look(device_of(world.meter))
        await world.wait(10)
        assert world.meter.relay_on is not reaches

    shares: dict[str, Any] = {when: 1.0}
    in_world(story, weather=Weather(1, **shares))


def test_orders_that_can_never_work_are_final() -> None:
    async def story(world: World) -> None:
        network = InProcessChirpStack(world.core)
        stranger = Device(reference="99", protocol=Protocol.LORAWAN)
        for bad, reason in (
            (order(world.meter, device=stranger), EndReason.UNKNOWN_DEVICE),
            (order(world.meter, f_port=0), EndReason.UNSUPPORTED_COMMAND),
        ):
            with pytest.raises(SendError) as caught:
                await network.send(bad)
            assert (caught.value.certain, caught.value.final) == (True, reason)

    in_world(story)


def test_an_item_that_was_never_scheduled_is_taken_back() -> None:
    async def story(world: World) -> None:
        network = InProcessChirpStack(world.core)
        item = await network.send(order(world.meter))
        assert "taken back" in (await network.withdraw(device_of(world.meter), item)).details
        assert await network.look(device_of(world.meter)) == []
        world.core.report(world.meter)
        await world.wait(60)
        assert world.meter.deeds == []

    in_world(story, meter={"device_class": "A"}, report_every=None)


def test_a_withdrawal_is_not_certain_once_a_gateway_may_have_the_frame() -> None:
    async def story(world: World) -> None:
        network, device = InProcessChirpStack(world.core), device_of(world.meter)
        assert "no longer" in (await network.withdraw(device, "gone")).details
        world.gateway.cut(world.clock.now())
        given = await network.send(order(world.meter))
        await world.wait(3)
        assert "gateway" in (await network.withdraw(device, given)).details
        world.gateway.restore()
        await world.wait(4)
        assert "ack" in (await network.withdraw(device, given)).details
        await network.send(order(world.meter))
        withdrawal = await network.withdraw(device, given)
        assert (withdrawal.certain, "1 other" in withdrawal.details) == (False, True)

    in_world(story, weather=Weather(1, downlink_loss=1.0))


def test_gateways_are_told_with_their_grid() -> None:
    async def story(world: World) -> None:
        network = InProcessChirpStack(world.core)
        (gateway,) = await network.gateways()
        assert (gateway.id, gateway.grid, gateway.is_up) == (world.gateway.id, "grid-7", True)
        world.gateway.cut(world.clock.now())
        await world.wait(90)  # the server notices by the statistics that stay away
        assert [each.is_up for each in await network.gateways()] == [False]

    in_world(story)


def test_signals_are_lost_and_doubled_by_the_weather() -> None:
    async def story(world: World) -> None:
        arrived: list[str] = []

        async def take(signals: list[Signal]) -> None:
            arrived.extend(each.id for each in signals)

        courier = SignalCourier(Weather(2, webhook_loss=0.3, webhook_duplicates=0.3), take)
        for _ in range(200):
            world.core.report(world.meter)
            await world.wait(2)
        for _, kind, event in world.told:
            courier(kind, event)
        await world.wait(1)
        told = len(world.told)
        assert 0.2 * told < courier.lost < 0.4 * told
        assert len(set(arrived)) == told - courier.lost
        assert len(arrived) > 1.2 * len(set(arrived))

    in_world(story)
