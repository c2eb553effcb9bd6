"""Calin's frame: the recorded ones byte for byte, there and back for every command, nothing from damage."""

from __future__ import annotations

import base64
from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.devices.codecs.contract import Report, UnsupportedCommandError
from remuda.devices.codecs.dlt645 import (
    READS,
    REPORT_FLAGS,
    WRITES,
    Control,
    Dlt645,
    MeterReport,
    Request,
    answer_frame,
    parse_request,
    report_frame,
)
from remuda.devices.command import FAMILIES, Answer, CommandType, Device, Family, Phase, Protocol
from remuda.errors import DecodeError

NOW = datetime(2026, 3, 15, 14, 5, 9, tzinfo=UTC)
SERIAL = "47003333771"
TOKEN = "01234567890123456789"
TOKEN_COMMANDS = [each for each in CommandType if FAMILIES[each] is Family.TOKEN]
DECIMALS = {
    CommandType.READ_VOLTAGE: (2, 999_999),
    CommandType.READ_CURRENT: (2, 9_999),
    CommandType.READ_POWER: (4, 99_999_999),
    CommandType.READ_CREDIT: (2, 99_999_999),
}
REFUSED_TOKEN = base64.b64decode("aCM2MwNwBGjAATTIFg==")

codec = Dlt645()
serials = st.integers(0, 10**12 - 1).map(str)
this_century = st.dates(date(2000, 1, 1), date(2099, 12, 31))
whole_seconds = st.times().map(lambda each: each.replace(microsecond=0))


def frame(command: CommandType, data: Any = None, phase: Phase | None = None, serial: str = SERIAL) -> bytes:
    device = Device(reference=serial, protocol=Protocol.LORAWAN)
    return codec.encode(device, command, data=data, phase=phase, now=NOW).data


def request(control: Control, identifier: int, serial: str = SERIAL) -> Request:
    return Request(serial=serial, control=control, identifier=identifier)


def with_sum(body: bytes) -> bytes:
    return body + bytes([sum(body) % 256, 0x16])


@st.composite
def readings(draw: st.DrawFn) -> tuple[int, Any, Any]:
    """A data identifier, a value for it, and what a codec makes of that value."""
    identifier = draw(st.sampled_from(sorted(READS)))
    kind = READS[identifier][0]
    if kind is CommandType.READ_DATE:
        day = draw(this_century)
        return identifier, day, day.isoformat()
    if kind is CommandType.READ_TIME:
        moment = draw(whole_seconds)
        return identifier, moment, moment.isoformat()
    decimals, most = DECIMALS[kind]
    value = draw(st.integers(0, most)) / 10**decimals
    return identifier, value, value


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Any frame that a meter may send."""
    serial = draw(serials)
    if draw(st.booleans()):
        identifier, value, _ = draw(readings())
        return answer_frame(request(Control.READ, identifier, serial), value=value)
    if draw(st.booleans()):
        return report_frame(serial, MeterReport(at=NOW, remaining=draw(st.floats(0, 1000))))
    asked = request(draw(st.sampled_from(Control)), draw(st.sampled_from(sorted(WRITES))), serial)
    return answer_frame(asked, ok=False, code=draw(st.integers(0, 255)), named=draw(st.booleans()))


# What was recorded


@pytest.mark.parametrize(
    ("command", "data", "recorded"),
    [
        (CommandType.READ_CREDIT, None, "6871373303700468010254179016"),
        (CommandType.TURN_ON, None, "6871373303700468040770f333333333c92516"),
        (CommandType.SET_DATE, date(2026, 3, 15), "6871373303700468040a43f333333333334836593c16"),
    ],
)
def test_a_command_is_encoded_as_it_was_recorded(command: CommandType, data: Any, recorded: str) -> None:
    assert frame(command, data).hex() == recorded


def test_the_recorded_refusal_of_a_token_is_read_as_one() -> None:
    assert codec.decode(REFUSED_TOKEN, 1) == Answer(family=Family.TOKEN, ok=False, code="01")


def test_a_meter_that_refuses_a_token_answers_as_it_was_recorded() -> None:
    asked = parse_request(frame(CommandType.TOP_UP, TOKEN, serial="47003333623"))
    assert answer_frame(asked, ok=False, code=1) == REFUSED_TOKEN


def test_frames_go_out_confirmed_on_port_1() -> None:
    device = Device(reference=SERIAL, protocol=Protocol.LORAWAN)
    downlink = codec.encode(device, CommandType.TURN_OFF, data=None, phase=None, now=NOW)
    assert (downlink.f_port, downlink.confirmed) == (1, True)


def test_a_token_is_sent_as_digits_low_byte_first_and_without_a_password() -> None:
    sent = frame(CommandType.TOP_UP, TOKEN)
    assert sent[8:10] == b"\x00\x0c"
    assert bytes((each - 0x33) % 256 for each in sent[10:-2]).hex() == "20a1" + "89674523018967452301"


def test_voltage_is_read_from_its_known_place_whatever_the_byte_before_it_says() -> None:
    plain = answer_frame(request(Control.READ, 0xB611), value=230.14)
    strange = with_sum(plain[:12] + b"\xee" + plain[13:-2])
    assert codec.decode(strange, 1) == codec.decode(plain, 1)
    assert bytes((each - 0x33) % 256 for each in plain[12:-2]).hex() == "00143002"


def test_the_relay_stands_behind_the_credit() -> None:
    asked = request(Control.READ, 0xE421)
    on, off = (answer_frame(asked, value=12.5, relay_on=each) for each in (True, False))
    assert [(each[17] - 0x33) % 256 for each in (on, off)] == [0, 1]
    read = [codec.decode(each, 1) for each in (on, off)]
    assert [each.data for each in read if isinstance(each, Answer)] == [
        {"value": 12.5, "relay": "on"},
        {"value": 12.5, "relay": "off"},
    ]


# There and back


@given(serials, st.sampled_from(sorted(READS)))
def test_a_meter_reads_a_read_as_it_was_asked(serial: str, identifier: int) -> None:
    command, phase = READS[identifier]
    asked = parse_request(frame(command, phase=phase, serial=serial))
    assert asked == Request(serial=serial, control=Control.READ, identifier=identifier)
    assert (asked.type, asked.phase) == (command, phase)


@pytest.mark.parametrize("command", [CommandType.TURN_ON, CommandType.TURN_OFF])
@given(serial=serials)
def test_a_meter_reads_a_switch_as_it_was_asked(command: CommandType, serial: str) -> None:
    asked = parse_request(frame(command, serial=serial))
    assert (asked.serial, asked.control, asked.type, asked.phase) == (serial, Control.WRITE, command, None)
    assert (asked.password, asked.payload.hex()) == (
        bytes(4),
        "96" if command is CommandType.TURN_ON else "35",
    )


@given(serials, this_century)
def test_a_meter_reads_a_date_as_it_was_set(serial: str, day: date) -> None:
    asked = parse_request(frame(CommandType.SET_DATE, day, serial=serial))
    assert (asked.serial, asked.type) == (serial, CommandType.SET_DATE)
    assert asked.payload.hex() == day.strftime("%y%m%d0%w")


@given(serials, whole_seconds)
def test_a_meter_reads_a_time_as_it_was_set(serial: str, moment: time) -> None:
    asked = parse_request(frame(CommandType.SET_TIME, moment, serial=serial))
    assert (asked.serial, asked.type) == (serial, CommandType.SET_TIME)
    assert asked.payload.hex() == moment.strftime("%H%M%S")


@given(serials, st.sampled_from(TOKEN_COMMANDS), st.text("0123456789", min_size=20, max_size=20))
def test_a_meter_reads_a_token_as_it_was_sent(serial: str, command: CommandType, token: str) -> None:
    spaced = "-".join(token[at : at + 4] for at in range(0, 20, 4))
    for data in (token, spaced, spaced.replace("-", " "), {"token": token}):
        asked = parse_request(frame(command, data, serial=serial))
        assert (asked.serial, asked.control, asked.type) == (serial, Control.TOKEN, None)
        assert asked.payload.hex() == token


@given(readings(), serials)
def test_a_value_that_a_meter_answers_is_the_value_that_is_read(
    reading: tuple[int, Any, Any], serial: str
) -> None:
    identifier, value, expected = reading
    command, phase = READS[identifier]
    answer = codec.decode(answer_frame(request(Control.READ, identifier, serial), value=value), 1)
    data = {"value": expected} | ({"relay": "on"} if command is CommandType.READ_CREDIT else {})
    assert answer == Answer(family=Family.READ, type=command, phase=phase, ok=True, data=data)


@given(st.sampled_from(sorted(WRITES)), st.booleans(), st.integers(0, 255))
def test_an_answer_that_names_what_was_written_is_read_with_its_command(
    identifier: int, ok: bool, code: int
) -> None:
    command = WRITES[identifier]
    answer = codec.decode(answer_frame(request(Control.WRITE, identifier), ok=ok, code=code, named=True), 1)
    expected = None if ok else f"{code:02x}"
    assert answer == Answer(family=FAMILIES[command], type=command, ok=ok, code=expected)


@given(st.sampled_from(sorted(READS)), st.booleans(), st.integers(0, 255))
def test_a_refused_read_tells_its_code_and_where_it_is_named_its_command(
    identifier: int, named: bool, code: int
) -> None:
    answer = codec.decode(
        answer_frame(request(Control.READ, identifier), ok=False, code=code, named=named), 1
    )
    command, phase = READS[identifier] if named else (None, None)
    assert answer == Answer(family=Family.READ, type=command, phase=phase, ok=False, code=f"{code:02x}")


@pytest.mark.parametrize("named", [False, True])
@given(ok=st.booleans(), code=st.integers(0, 255))
def test_an_answer_to_a_token_never_says_which_command_it_was(named: bool, ok: bool, code: int) -> None:
    answer = codec.decode(answer_frame(request(Control.TOKEN, 0xA120), ok=ok, code=code, named=named), 1)
    assert answer == Answer(family=Family.TOKEN, ok=ok, code=None if ok else f"{code:02x}")


@pytest.mark.parametrize(("ok", "code"), [(True, None), (False, "07")])
def test_a_bare_answer_to_a_write_is_of_the_family_of_writes_and_of_no_command(
    ok: bool, code: str | None
) -> None:
    asked = parse_request(frame(CommandType.TURN_ON))
    answer = codec.decode(answer_frame(asked, ok=ok, code=7), 1)
    assert answer == Answer(family=Family.WRITE, ok=ok, code=code)


# Reports


def hundredths(most: int) -> st.SearchStrategy[float]:
    return st.integers(0, most).map(lambda each: each / 100)


@given(
    st.datetimes(datetime(2000, 1, 1), datetime(2099, 12, 31)),  # noqa: DTZ001  # a meter's local time
    hundredths(2**32 - 1),
    st.none() | hundredths(100_000),  # what a 4-byte float holds to the hundredth
    st.integers(0, 9999).map(lambda each: each / 10),
    st.lists(st.sampled_from(REPORT_FLAGS), unique=True),
)
def test_a_report_says_what_the_meter_put_into_it(
    at: datetime, consumed: float, remaining: float | None, voltage: float, flags: list[str]
) -> None:
    report = MeterReport(
        at=at, consumed=consumed, remaining=remaining, voltage=voltage, current=1.234, flags=tuple(flags)
    )
    heard = codec.decode(report_frame(SERIAL, report), 1)
    assert isinstance(heard, Report)
    assert heard.type is CommandType.READ_REPORT
    assert heard.data == {
        "at": at.isoformat(timespec="minutes"),
        "consumed": consumed,
        "remaining": remaining,
        "consumed_2": 0.0,
        "remaining_2": 0.0,
        "demand": 0,
        "voltage": voltage,
        "current": 1.234,
        "flags": sorted(flags, key=REPORT_FLAGS.index),
    }


def test_a_report_of_another_shape_is_kept_as_it_is() -> None:
    whole = report_frame(SERIAL, MeterReport(at=NOW))
    short = with_sum(whole[:9] + bytes([4]) + whole[10:14])
    assert codec.decode(short, 1) == Report(type=CommandType.READ_REPORT, data={"raw": "0005"})


# Damage


@given(st.binary(max_size=80), st.integers(0, 255))
def test_no_bytes_whatever_make_it_raise(data: bytes, port: int) -> None:
    codec.decode(data, port)


@given(serials, st.integers(0, 255), st.binary(max_size=60))
def test_no_whole_frame_with_strange_content_makes_it_raise(serial: str, control: int, field: bytes) -> None:
    address = bytes.fromhex(serial.zfill(12))[::-1]
    codec.decode(with_sum(bytes([0x68, *address, 0x68, control, len(field)]) + field), 1)


@given(frames(), st.data())
def test_a_frame_with_one_byte_changed_is_no_frame(whole: bytes, data: st.DataObject) -> None:
    assert codec.decode(whole, 1) is not None
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[at] = data.draw(st.integers(0, 255).filter(lambda each: each != whole[at]))
    assert codec.decode(bytes(damaged), 1) is None


@given(frames(), st.data())
def test_a_frame_cut_short_or_with_bytes_around_it_is_no_frame(whole: bytes, data: st.DataObject) -> None:
    assert codec.decode(whole[: data.draw(st.integers(0, len(whole) - 1))], 1) is None
    assert codec.decode(whole + b"\x16", 1) is None
    assert codec.decode(b"\x68" + whole, 1) is None


@pytest.mark.parametrize("command", [CommandType.READ_CREDIT, CommandType.TURN_ON])
def test_a_request_is_no_answer(command: CommandType) -> None:
    assert codec.decode(frame(command), 1) is None


def test_a_value_that_is_not_bcd_is_no_answer() -> None:
    plain = answer_frame(request(Control.READ, 0xE421), value=1)
    assert codec.decode(with_sum(plain[:12] + b"\xff" + plain[13:-2]), 1) is None


def test_a_value_of_an_unknown_data_identifier_is_no_answer() -> None:
    plain = answer_frame(request(Control.READ, 0xE421), value=1)
    assert codec.decode(with_sum(plain[:10] + b"\x00\x00" + plain[12:-2]), 1) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        REFUSED_TOKEN,
        frame(CommandType.READ_CREDIT)[:-1],
        with_sum(frame(CommandType.READ_CREDIT)[:9] + b"\x00"),
        with_sum(frame(CommandType.TURN_ON)[:9] + b"\x05" + frame(CommandType.TURN_ON)[10:15]),
    ],
)
def test_what_is_no_request_is_told_to_the_meter_as_an_error(data: bytes) -> None:
    with pytest.raises(DecodeError):
        parse_request(data)


# What a meter has no frame for


@pytest.mark.parametrize(
    "command",
    [
        CommandType.READ_POWER_LIMIT,
        CommandType.READ_VERSION,
        CommandType.READ_REPORT,
        CommandType.JOIN_NETWORK,
    ],
)
def test_a_command_without_a_frame_is_named(command: CommandType) -> None:
    with pytest.raises(UnsupportedCommandError, match=command):
        frame(command)


def test_every_other_command_has_a_frame() -> None:
    data = dict.fromkeys(TOKEN_COMMANDS, TOKEN)
    for command in CommandType:
        if command not in {
            CommandType.READ_POWER_LIMIT,
            CommandType.READ_VERSION,
            CommandType.READ_REPORT,
            CommandType.JOIN_NETWORK,
        }:
            asked = parse_request(frame(command, data.get(command)))
            assert asked.type == (None if command in TOKEN_COMMANDS else command)


@pytest.mark.parametrize("command", TOKEN_COMMANDS)
@pytest.mark.parametrize(
    "data",
    [
        None,
        12345678901234567890,
        "1234567890123456789",
        "123456789012345678901",
        "1234567890123456789x",
        "١" * 20,
        {"code": "12345678901234567890"},
        {"token": 12345678901234567890},
        ["12345678901234567890"],
        b"12345678901234567890",
    ],
)
def test_what_is_no_token_is_refused_without_being_repeated(command: CommandType, data: Any) -> None:
    with pytest.raises(UnsupportedCommandError, match=command) as refused:
        frame(command, data)
    assert "123456789" not in str(refused.value)
    assert "١" not in str(refused.value)


def test_a_token_does_not_show_in_the_text_of_its_request() -> None:
    asked = parse_request(frame(CommandType.TOP_UP, TOKEN))
    assert repr(asked) == "Request(47003333771, TOKEN, A120)"


@pytest.mark.parametrize("serial", ["", "1234567890123", "47A0333377", "-4700333377", "٤٧"])
def test_a_serial_that_is_no_meters_is_named(serial: str) -> None:
    with pytest.raises(UnsupportedCommandError, match="up to 12 digits"):
        frame(CommandType.READ_CREDIT, serial=serial)


@pytest.mark.parametrize("phase", [None, Phase.A])
@pytest.mark.parametrize(
    "command", [CommandType.READ_VOLTAGE, CommandType.READ_CURRENT, CommandType.READ_POWER]
)
def test_a_measurement_is_of_phase_a_unless_said_otherwise(command: CommandType, phase: Phase | None) -> None:
    assert parse_request(frame(command, phase=phase)).phase is Phase.A


# Dates and times


@pytest.mark.parametrize(
    "data",
    [None, date(2026, 3, 15), NOW, "2026-03-15", "20260315", "2026-03-15T23:59:59+14:00"],
)
def test_a_date_may_be_given_in_several_ways(data: Any) -> None:
    assert parse_request(frame(CommandType.SET_DATE, data)).payload.hex() == "26031500"


@pytest.mark.parametrize(
    "data",
    [
        None,
        time(14, 5, 9),
        NOW,
        NOW.replace(tzinfo=timezone(timedelta(hours=5, minutes=30))),
        "14:05:09",
        "2026-03-15T14:05:09",
        "2026-03-15 14:05:09.999+01:00",
    ],
)
def test_a_time_may_be_given_in_several_ways(data: Any) -> None:
    assert parse_request(frame(CommandType.SET_TIME, data)).payload.hex() == "140509"


@pytest.mark.parametrize(
    "data", ["", "14:05", "2026-02-30", "1999-12-31", date(2100, 1, 1), 20260315, time(1)]
)
def test_what_is_no_date_is_refused_by_name(data: Any) -> None:
    with pytest.raises(UnsupportedCommandError, match="SET_DATE needs a date"):
        frame(CommandType.SET_DATE, data)


@pytest.mark.parametrize("data", ["", "25:00", "2026-03-15", "20260315", "140509", date(2026, 3, 15), 140509])
def test_what_is_no_time_is_refused_by_name(data: Any) -> None:
    with pytest.raises(UnsupportedCommandError, match="SET_TIME needs a time"):
        frame(CommandType.SET_TIME, data)


def test_a_meter_that_has_lost_its_clock_still_answers() -> None:
    plain = answer_frame(request(Control.READ, 0xC010), value=NOW)
    lost = with_sum(plain[:12] + b"\x33" * 4)
    assert codec.decode(lost, 1) == Answer(
        family=Family.READ, type=CommandType.READ_DATE, ok=True, data={"value": "2000-00-00"}
    )


@pytest.mark.parametrize("value", [None, -0.01, 100.0, float("nan"), float("inf"), "1.5"])
def test_a_value_that_a_meter_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(UnsupportedCommandError, match=r"READ_CURRENT holds 0 to 99\.99"):
        answer_frame(request(Control.READ, 0xB621), value=value)


def test_a_meter_can_only_refuse_a_read_that_it_does_not_know() -> None:
    asked = request(Control.READ, 0x9010)
    assert (asked.type, asked.phase) == (None, None)
    with pytest.raises(UnsupportedCommandError, match="9010"):
        answer_frame(asked, value=1)
    assert codec.decode(answer_frame(asked, ok=False), 1) == Answer(family=Family.READ, ok=False, code="01")
