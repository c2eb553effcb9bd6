"""What a simulated meter does, and that its deeds tell the truth about it."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from remuda.devices.codecs.contract import Report
from remuda.devices.codecs.dlt645 import Dlt645
from remuda.devices.command import Answer, CommandType, Device, Family, Phase, Protocol
from remuda.devices.simulator.meter import Meter

NOW = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
SERIAL = "47003333771"
TOP_UP_5 = "50000000000000000050"


def new_meter(**options: Any) -> Meter:
    return Meter(SERIAL, rng=random.Random(1), **options)


def frame(
    command: CommandType, data: object = None, *, serial: str = SERIAL, phase: Phase | None = None
) -> bytes:
    device = Device(reference=serial, protocol=Protocol.LORAWAN)
    return Dlt645().encode(device, command, data=data, phase=phase, now=NOW).data


def heard(answer: bytes | None) -> Answer:
    assert answer is not None
    decoded = Dlt645().decode(answer, 1)
    assert isinstance(decoded, Answer)
    return decoded


def test_a_token_is_applied_once_and_refused_the_second_time() -> None:
    meter = new_meter(credit_kwh=10.0)
    first = meter.carry_out(CommandType.TOP_UP, TOP_UP_5, None, NOW)
    second = meter.carry_out(CommandType.TOP_UP, TOP_UP_5, None, NOW)
    assert (first.ok, second.ok, second.code) == (True, False, "TOKEN_USED")
    assert meter.credit_kwh == 15.0
    assert [(deed.data, deed.accepted, deed.applied) for deed in meter.deeds] == [
        (TOP_UP_5, True, True),
        (TOP_UP_5, False, False),
    ]


def test_a_token_that_is_refused_by_chance_stays_unused() -> None:
    meter = new_meter(refuse=1.0, credit_kwh=10.0)
    assert not meter.carry_out(CommandType.TOP_UP, TOP_UP_5, None, NOW).ok
    assert meter.credit_kwh == 10.0
    meter.refuse = 0.0
    assert meter.carry_out(CommandType.TOP_UP, TOP_UP_5, None, NOW).ok
    assert meter.credit_kwh == 15.0


def test_reads_are_never_refused_and_change_nothing() -> None:
    meter = new_meter(refuse=1.0)
    for kind in CommandType:
        if kind.startswith("READ_") and kind is not CommandType.READ_REPORT:
            assert meter.carry_out(kind, None, Phase.A, NOW).ok, kind
    assert not any(deed.applied for deed in meter.deeds)


@pytest.mark.parametrize("token", ["123", "", None, "1" * 21])
def test_a_token_of_another_length_is_refused(token: object) -> None:
    reply = new_meter().carry_out(CommandType.TOP_UP, token, None, NOW)
    assert (reply.ok, reply.code) == (False, "BAD_TOKEN")


@pytest.mark.parametrize(
    ("token", "kind"),
    [
        ("10000000000000000030", CommandType.SET_POWER_LIMIT),
        ("20000000000000000000", CommandType.CLEAR_CREDIT),
        ("30000000000000000000", CommandType.CLEAR_TAMPER),
        ("40000000000000000050", CommandType.TOP_UP),
    ],
)
def test_a_bare_token_says_by_its_first_digit_what_it_does(token: str, kind: CommandType) -> None:
    meter = new_meter(credit_kwh=10.0)
    meter.tampered = True
    answer = heard(meter.receive(frame(CommandType.DELIVER_PREEXISTING_TOKEN, token), NOW))
    assert answer.ok
    assert [(deed.type, deed.data, deed.applied) for deed in meter.deeds] == [(kind, token, True)]
    assert (meter.power_limit_kw == 3.0) == (kind is CommandType.SET_POWER_LIMIT)
    assert (meter.credit_kwh == 0.0) == (kind is CommandType.CLEAR_CREDIT)
    assert meter.tampered == (kind is not CommandType.CLEAR_TAMPER)
    assert (meter.credit_kwh == 15.0) == (kind is CommandType.TOP_UP)


def test_frames_are_carried_out_and_answered() -> None:
    meter = new_meter(credit_kwh=12.5)
    assert heard(meter.receive(frame(CommandType.READ_CREDIT), NOW)).data == {"value": 12.5, "relay": "on"}
    assert heard(meter.receive(frame(CommandType.TURN_OFF), NOW)).ok
    assert not meter.relay_on
    voltage = heard(meter.receive(frame(CommandType.READ_VOLTAGE, phase=Phase.B), NOW))
    assert voltage.phase is Phase.B
    assert 200 < voltage.data["value"] < 250
    refused = new_meter(refuse=1.0).receive(frame(CommandType.TOP_UP, TOP_UP_5), NOW)
    assert (heard(refused).family, heard(refused).ok) == (Family.TOKEN, False)


def test_a_frame_that_is_damaged_or_for_another_meter_is_not_answered() -> None:
    meter, whole = new_meter(), frame(CommandType.TURN_OFF)
    assert meter.receive(frame(CommandType.TURN_OFF, serial="123"), NOW) is None
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 0x01
        assert meter.receive(bytes(damaged), NOW) is None
    assert meter.deeds == []
    assert meter.relay_on


def test_the_clock_can_be_set_by_date_and_by_time() -> None:
    meter = new_meter()
    assert heard(meter.receive(frame(CommandType.SET_DATE, date(2031, 3, 4)), NOW)).ok
    assert heard(meter.receive(frame(CommandType.SET_TIME, "08:15:30"), NOW)).ok
    later = NOW + timedelta(hours=1)
    assert meter.local_time(later) == datetime(2031, 3, 4, 9, 15, 30, tzinfo=UTC)
    assert heard(meter.receive(frame(CommandType.READ_DATE), later)).data["value"] == "2031-03-04"
    assert heard(meter.receive(frame(CommandType.READ_TIME), later)).data["value"] == "09:15:30"


def test_a_date_that_is_none_is_refused() -> None:
    reply = new_meter().carry_out(CommandType.SET_DATE, "tomorrow", None, NOW)
    assert (reply.ok, reply.code) == (False, "BAD_DATA")


def test_a_report_can_be_read_by_the_codec() -> None:
    report = Dlt645().decode(new_meter(credit_kwh=7.25).report(NOW), 1)
    assert isinstance(report, Report)
    assert report.data["remaining"] == 7.25


def test_the_share_of_refusals_is_near_the_one_that_was_asked_for() -> None:
    meter = new_meter(refuse=0.2)
    refused = sum(not meter.carry_out(CommandType.TURN_ON, None, None, NOW).ok for _ in range(5000))
    assert 0.18 < refused / 5000 < 0.22
