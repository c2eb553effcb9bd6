"""A world from a few options, traffic on it, and whether the records say what the meters did."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from remuda.clock import Clock
from remuda.devices.command import Command, CommandType, Outcome, Protocol
from remuda.devices.simulator.rehearsal import Rehearsed, rehearse
from remuda.devices.simulator.traffic import Traffic, make_token
from remuda.devices.simulator.truth import lies
from remuda.devices.simulator.virtual_time import run_virtually
from remuda.devices.simulator.world import World, WorldOptions, weather_of
from remuda.errors import ConfigurationError
from remuda.lifecycle import CommandStatus

START = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Gateways that cannot be looked at now and then are what bad weather is."""
    logging.getLogger("remuda.devices").setLevel(logging.ERROR)
    yield
    logging.getLogger("remuda.devices").setLevel(logging.NOTSET)


class FixedClock:
    def now(self) -> datetime:
        return START

    async def sleep(self, duration: timedelta) -> None:
        raise AssertionError("nobody waits here")


def world(**options: Any) -> World:
    return World(WorldOptions(**options), FixedClock())


def test_meters_are_shared_out_over_the_protocols() -> None:
    made = world(meters=600, api_v1=0.1, api_v2=0.2)
    counts = Counter(each.protocol for each in made.devices.values())
    assert counts == {Protocol.LORAWAN: 420, Protocol.API_V1: 60, Protocol.API_V2: 120}
    assert set(made.devices) == set(made.meters)
    assert len(made.gateways) == 3
    assert made.protocols() == [Protocol.LORAWAN, Protocol.API_V1, Protocol.API_V2]
    assert {each.protocol for each in made.networks()} == set(made.protocols())
    assert len(made.calin.meters) == 180


def test_a_protocol_without_meters_has_no_network() -> None:
    made = world(meters=10, api_v1=0.0, api_v2=0.0)
    assert made.protocols() == [Protocol.LORAWAN]
    assert [each.protocol for each in made.networks()] == [Protocol.LORAWAN]


def test_a_device_is_where_its_meter_is() -> None:
    made = world(meters=40, gateways=3)
    for device in made.of(Protocol.LORAWAN):
        meter = made.meters[device.reference]
        assert device.gateway is not None
        assert (device.gateway.id, device.spreading_factor) == (meter.gateway, meter.spreading_factor)
        assert device.address == meter.dev_eui
        grid = next(each.grid for each in made.gateways if each.id == meter.gateway)
        assert made.grids[device.reference] == grid


def test_the_same_options_give_the_same_world() -> None:
    one, other, another = (world(meters=30, seed=seed) for seed in (7, 7, 8))
    known = [[each.credit_kwh for each in made.meters.values()] for made in (one, other, another)]
    assert known[0] == known[1] != known[2]
    assert one.devices == other.devices


def test_a_clear_day_has_no_troubles_and_a_bad_one_has_all() -> None:
    clear, bad = weather_of(1, 0.0), weather_of(1, 0.3)
    names = (
        "downlink_loss",
        "uplink_loss",
        "webhook_loss",
        "webhook_duplicates",
        "webhook_reorder",
        "slow_calls",
        "failures_before",
        "failures_after",
    )
    assert not any(getattr(clear, name) for name in names)
    assert all(getattr(bad, name) > 0 for name in names)


@pytest.mark.parametrize(
    "options",
    [{"meters": 0}, {"loss": 1.5}, {"loss": -0.1}, {"api_v1": 0.6, "api_v2": 0.6}, {"gateways": 0}],
)
def test_options_that_make_no_world_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        WorldOptions(**options)


def test_the_deeds_of_all_meters_are_counted() -> None:
    made = world(meters=3, refuse=0.0)
    first, second, _ = made.meters.values()
    first.carry_out(CommandType.READ_CREDIT, None, None, START)
    first.carry_out(CommandType.TURN_OFF, None, None, START)
    token = make_token(random.Random(1), tenths=500)
    for _ in range(2):
        second.carry_out(CommandType.TOP_UP, token, None, START)
    deeds = made.deeds()
    assert (deeds.reads, deeds.switched, deeds.tokens, deeds.refused) == (1, 1, 1, 1)


def test_traffic_reads_every_meter_and_asks_the_rest_by_chance() -> None:
    made = world(meters=200)
    asked = Traffic(top_ups=12.0, switches=12.0).commands(made, rng=random.Random(1), last=timedelta(hours=1))
    kinds = Counter(each.type for each in asked)
    assert kinds[CommandType.READ_CREDIT] == 200
    assert 60 < kinds[CommandType.TOP_UP] < 140
    assert 60 < kinds[CommandType.TURN_ON] + kinds[CommandType.TURN_OFF] < 140
    tokens = [each.data for each in asked if each.type is CommandType.TOP_UP]
    assert len(set(tokens)) == len(tokens)
    assert all(len(each) == 20 for each in tokens)


# -- a rehearsal


BUSY = Traffic(top_ups=8.0, switches=8.0, settings=4.0)


@pytest.fixture(scope="module")
def rehearsed() -> Rehearsed:
    return rehearse(WorldOptions(meters=40, seed=3, loss=0.15), lasting=timedelta(hours=2), traffic=BUSY)


def test_every_command_ends_once_and_says_the_truth_in_bad_weather(rehearsed: Rehearsed) -> None:
    assert rehearsed.unended == 0
    assert rehearsed.lies == ()
    assert rehearsed.sent == len(rehearsed.ended)
    assert len({each.id for each in rehearsed.ended}) == len(rehearsed.ended)
    assert rehearsed.lasted >= timedelta(hours=2)
    assert {each.type for each in rehearsed.ended} >= {CommandType.READ_CREDIT, CommandType.TOP_UP}
    assert max(len(each.attempts) for each in rehearsed.ended) > 1


def test_a_rehearsal_repeats_itself(rehearsed: Rehearsed) -> None:
    again = rehearse(WorldOptions(meters=40, seed=3, loss=0.15), lasting=timedelta(hours=2), traffic=BUSY)
    assert again.deeds == rehearsed.deeds
    assert _facts(again) == _facts(rehearsed)


def _facts(told: Rehearsed) -> list[tuple[object, ...]]:
    return [
        (each.type, each.device.reference, each.status, each.outcome, each.status_since, len(each.attempts))
        for each in told.ended
    ]


def test_on_a_clear_day_every_command_is_carried_out_at_the_first_attempt() -> None:
    passed: list[timedelta] = []
    told = rehearse(
        WorldOptions(meters=10, loss=0.0, refuse=0.0, api_v1=0.0, api_v2=0.0),
        lasting=timedelta(hours=1),
        traffic=Traffic(top_ups=0.0),
        on_progress=passed.append,
    )
    assert {each.outcome for each in told.ended} == {Outcome.EXECUTED}
    assert {len(each.attempts) for each in told.ended} == {1}
    assert sum(passed, timedelta(0)) == timedelta(hours=1)


# -- truth


def _told(kind: CommandType, outcome: Outcome, *, did: bool) -> list[str]:
    """What is found out about a command that its meter carried out, or not, and what is said of it."""

    async def main(clock: Clock) -> list[str]:
        made = World(WorldOptions(meters=1, api_v1=0.0, api_v2=0.0, refuse=0.0), clock)
        (meter,), (device,) = made.meters.values(), made.devices.values()
        data = make_token(random.Random(1), tenths=500) if kind is CommandType.TOP_UP else None
        if did:
            meter.carry_out(kind, data, None, clock.now())
        command = Command(
            id="c",
            type=kind,
            device=device,
            lane="l",
            priority=0,
            created_at=START,
            started_at=START,
            status_since=clock.now(),
            data=data,
            status=CommandStatus.DELIVERY_SUCCESSFUL,
        )
        return [each.why for each in lies(made, [replace(command, outcome=outcome)])]

    return run_virtually(main, start=START)


@pytest.mark.parametrize("kind", [CommandType.TOP_UP, CommandType.TURN_OFF, CommandType.READ_CREDIT])
def test_what_was_said_to_be_done_and_was_not_is_a_lie(kind: CommandType) -> None:
    assert _told(kind, Outcome.EXECUTED, did=False)
    assert not _told(kind, Outcome.EXECUTED, did=True)


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.NOT_EXECUTED])
def test_a_token_that_was_applied_and_is_said_not_to_be_is_a_lie(outcome: Outcome) -> None:
    assert _told(CommandType.TOP_UP, outcome, did=True) == ["applied, and said not to be"]
    assert not _told(CommandType.TOP_UP, outcome, did=False)


@pytest.mark.parametrize("did", [True, False])
def test_who_says_that_he_does_not_know_does_not_lie(did: bool) -> None:
    for kind in (CommandType.TOP_UP, CommandType.TURN_OFF):
        assert not _told(kind, Outcome.UNKNOWN, did=did)


def test_a_refusal_that_never_was_is_a_lie() -> None:
    assert _told(CommandType.TURN_OFF, Outcome.REFUSED, did=True)
