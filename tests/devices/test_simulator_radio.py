"""Gateways and weather: limits that are kept, shares that are met, numbers that repeat."""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime, timedelta

import pytest

from remuda.devices.simulator.gateway import Gateway, Outages
from remuda.devices.simulator.radio import Fault, Weather
from remuda.errors import ConfigurationError

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def new_gateway(*, duty: float = 1.0, outages: Outages | None = None, seed: int = 1) -> Gateway:
    return Gateway("gw-1", "grid-1", rng=random.Random(seed), duty=duty, outages=outages)


def test_a_gateway_sends_one_frame_at_a_time() -> None:
    gateway = new_gateway()
    assert gateway.transmit(NOW, SECOND) is None
    assert gateway.transmit(NOW + SECOND / 2, SECOND) == "COLLISION_PACKET"
    assert gateway.transmit(NOW + SECOND, SECOND) is None
    assert gateway.refusals == 1


def test_a_frame_whose_window_has_passed_is_too_late() -> None:
    assert new_gateway().transmit(NOW, SECOND, at=NOW - SECOND) == "TOO_LATE"


def test_a_frame_that_waits_for_its_window_keeps_others_out_of_it() -> None:
    gateway = new_gateway()
    assert gateway.transmit(NOW, SECOND, at=NOW + 2 * SECOND) is None
    assert gateway.transmit(NOW, SECOND) is None
    assert gateway.transmit(NOW + 1.5 * SECOND, SECOND) == "COLLISION_PACKET"


def test_a_gateway_hears_nothing_while_it_sends() -> None:
    gateway = new_gateway()
    gateway.transmit(NOW + SECOND, SECOND)
    assert gateway.hears(NOW, NOW + SECOND)
    assert not gateway.hears(NOW, NOW + 1.1 * SECOND)
    assert not gateway.hears(NOW + 1.2 * SECOND, NOW + 1.4 * SECOND)
    assert gateway.hears(NOW + 2 * SECOND, NOW + 3 * SECOND)


def test_the_duty_cycle_is_kept_over_an_hour_and_comes_back() -> None:
    gateway, now, sent, answers = new_gateway(duty=0.1), NOW, 0, set()
    while now < NOW + timedelta(hours=1):
        answer = gateway.transmit(now, SECOND)
        sent += answer is None
        answers.add(answer)
        now += SECOND
    assert sent == 360
    assert answers == {None, "DUTY_CYCLE_OVERFLOW"}
    assert gateway.transmit(now + 2 * SECOND, SECOND) is None


def test_outages_come_in_bursts_and_take_their_share_of_time() -> None:
    outages = Outages(every=timedelta(hours=3), lasting=timedelta(hours=1))
    gateway = new_gateway(outages=outages)
    ups = [gateway.is_up(NOW + timedelta(minutes=minute)) for minute in range(60 * 24 * 120)]
    changes = sum(before != after for before, after in itertools.pairwise(ups))
    assert 0.70 < sum(ups) / len(ups) < 0.80
    assert 500 < changes < 1700  # 720 outages would be the mean of 120 days, each seen by two changes

    again = new_gateway(outages=outages)
    assert ups == [again.is_up(NOW + timedelta(minutes=minute)) for minute in range(60 * 24 * 120)]


def test_a_gateway_that_is_down_was_last_seen_when_it_went_down() -> None:
    gateway = new_gateway()
    assert gateway.last_seen(NOW) == NOW
    gateway.cut(NOW + SECOND)
    assert not gateway.is_up(NOW + 9 * SECOND)
    assert gateway.last_seen(NOW + 9 * SECOND) == NOW + SECOND
    assert not gateway.hears(NOW + 8 * SECOND, NOW + 9 * SECOND)
    gateway.restore()
    assert gateway.last_seen(NOW + 10 * SECOND) == NOW + 10 * SECOND


def test_loss_is_near_the_share_that_was_asked_for() -> None:
    weather = Weather(3, downlink_loss=0.1, uplink_loss=0.3)
    down = sum(weather.loses_downlink("a") for _ in range(10_000))
    up = sum(weather.loses_uplink("a") for _ in range(10_000))
    assert 900 < down < 1100
    assert 2850 < up < 3150


def test_a_device_draws_the_same_numbers_whatever_the_others_do() -> None:
    alone, among = (Weather(3, downlink_loss=0.5) for _ in range(2))
    expected = [alone.loses_downlink("a") for _ in range(100)]
    found = []
    for _ in range(100):
        among.loses_downlink("b")
        found.append(among.loses_downlink("a"))
        among.call("a")
    assert found == expected
    other_seed = Weather(4, downlink_loss=0.5)
    assert [other_seed.loses_downlink("a") for _ in range(100)] != expected


def test_calls_are_slow_or_fail_as_often_as_asked() -> None:
    weather = Weather(3, slow_calls=0.05, failures_before=0.1, failures_after=0.2)
    calls = [weather.call("a") for _ in range(10_000)]
    slow = [each for each in calls if each.before_s + each.after_s > 36.9]
    assert 400 < len(slow) < 600
    assert all(each.before_s + each.after_s <= 0.3 for each in calls if each not in slow)
    assert 900 < sum(each.fault is Fault.BEFORE for each in calls) < 1100
    assert 1850 < sum(each.fault is Fault.AFTER for each in calls) < 2150


def test_webhooks_are_lost_doubled_and_held_up_as_often_as_asked() -> None:
    weather = Weather(3, webhook_loss=0.1, webhook_duplicates=0.2, webhook_reorder=0.3)
    fortunes = [weather.webhook("a") for _ in range(10_000)]
    copies = [sum(len(each) == many for each in fortunes) for many in (0, 1, 2)]
    assert 900 < copies[0] < 1100
    assert 1650 < copies[2] < 1950
    held = sum(each[0] > 0.05 for each in fortunes if each)
    assert 0.27 < held / (10_000 - copies[0]) < 0.33


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_outside_0_to_1_is_refused(share: float) -> None:
    with pytest.raises(ConfigurationError, match="uplink_loss"):
        Weather(1, uplink_loss=share)


def test_a_span_that_goes_back_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="delay"):
        Weather(1, delay=(SECOND, timedelta(0)))
