"""Time on air against known figures, and what a gateway may send in an hour."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.devices.airtime import (
    SNR_MARGIN,
    SPREADING_FACTORS,
    DutyCycle,
    demodulation_floor,
    max_payload,
    spreading_factor_for,
    time_on_air,
)
from remuda.errors import ConfigurationError

factors = st.sampled_from(SPREADING_FACTORS)
payloads = st.integers(0, 222)


@pytest.mark.parametrize(
    ("payload", "factor", "milliseconds"),
    [
        (14, 7, 62),
        (14, 9, 206),
        (14, 10, 412),
        (14, 12, 1483),
        (22, 7, 72),
        (22, 9, 247),
        (22, 10, 453),
        (22, 12, 1810),
    ],
)
def test_a_downlink_takes_as_long_as_is_known_of_it(payload: int, factor: int, milliseconds: int) -> None:
    assert round(time_on_air(payload, factor) / timedelta(milliseconds=1)) == milliseconds


def test_the_figure_is_exact() -> None:
    assert time_on_air(14, 7) == timedelta(microseconds=61_696)
    assert time_on_air(14, 7, uplink=True) == timedelta(microseconds=66_816)


@given(payloads, factors)
def test_more_bytes_or_a_crc_never_take_less_time(payload: int, factor: int) -> None:
    assert time_on_air(payload, factor) <= time_on_air(payload + 1, factor)
    assert time_on_air(payload, factor) <= time_on_air(payload, factor, uplink=True)


@given(payloads, st.sampled_from(SPREADING_FACTORS[:-1]))
def test_a_higher_spreading_factor_takes_longer(payload: int, factor: int) -> None:
    assert time_on_air(payload, factor) < time_on_air(payload, factor + 1)


@pytest.mark.parametrize(("factor", "reads"), [(7, 5835), (9, 1749), (12, 242)])
def test_a_gateway_at_a_tenth_sends_as_many_reads_an_hour_as_is_known(factor: int, reads: int) -> None:
    assert DutyCycle().per_hour(14, factor) == reads


@given(st.floats(0.001, 1), payloads, factors)
def test_an_hour_of_frames_stays_within_the_share(share: float, payload: int, factor: int) -> None:
    frames = DutyCycle(share=share).per_hour(payload, factor)
    airtime = time_on_air(payload, factor)
    allowed = timedelta(hours=1) * share
    # A spacing is a whole number of microseconds, so each frame may be half of one too near to the next.
    rounding = frames * timedelta(microseconds=1)
    assert frames * airtime <= allowed + rounding
    assert (frames + 1) * airtime > allowed - rounding - timedelta(microseconds=1)


@pytest.mark.parametrize("options", [{"share": 0.0}, {"share": 1.1}, {"share": float("nan")}])
def test_a_share_is_above_nought_and_at_most_one(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="share"):
        DutyCycle(**options)


def test_a_burst_is_above_nought() -> None:
    with pytest.raises(ConfigurationError, match="burst"):
        DutyCycle(burst=timedelta(0))


@pytest.mark.parametrize(
    ("snr", "factor"),
    [
        (10.0, 7),
        (-2.5, 7),
        (-2.6, 8),
        (-5.0, 8),
        (-7.5, 9),
        (-10.0, 10),
        (-12.5, 11),
        (-15.0, 12),
        (-30.0, 12),
    ],
)
def test_the_fastest_factor_that_is_still_heard_is_taken(snr: float, factor: int) -> None:
    assert spreading_factor_for(snr) == factor


@pytest.mark.parametrize("snr", [None, float("nan")])
def test_the_slowest_factor_is_assumed_where_nothing_is_known(snr: float | None) -> None:
    assert spreading_factor_for(snr) == 12


@given(st.floats(-40, 40))
def test_a_faster_factor_would_not_have_been_heard_with_the_margin(snr: float) -> None:
    chosen = spreading_factor_for(snr)
    assert chosen == 12 or demodulation_floor(chosen) + SNR_MARGIN <= snr
    assert all(demodulation_floor(each) + SNR_MARGIN > snr for each in range(7, chosen))


def test_the_largest_payload_falls_with_the_data_rate() -> None:
    assert [max_payload(each) for each in SPREADING_FACTORS] == [222, 222, 115, 51, 51, 51]


@pytest.mark.parametrize("factor", [6, 13, 0])
def test_a_spreading_factor_that_does_not_exist_is_named(factor: int) -> None:
    for ask in (max_payload, demodulation_floor, lambda each: time_on_air(14, each)):
        with pytest.raises(ConfigurationError, match=f"not {factor}"):
            ask(factor)


def test_a_payload_is_not_negative() -> None:
    with pytest.raises(ConfigurationError, match="not -1"):
        time_on_air(-1, 7)
