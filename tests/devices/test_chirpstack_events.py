"""ChirpStack's events, as JSON and as protobuf, become signals with ids of their own."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from chirpstack_api import integration
from google.protobuf.json_format import MessageToJson
from hypothesis import given
from hypothesis import strategies as st

from remuda.devices.command import Device, Protocol
from remuda.devices.networks.chirpstack_events import InvalidSignalError, parse_event
from remuda.devices.networks.signals import (
    Ack,
    Discarded,
    GatewayRefused,
    Joined,
    Signal,
    Status,
    TxAck,
    Uplink,
    pack,
    unpack,
)
from remuda.errors import RemudaError

METER = Device(reference="47003333771", protocol=Protocol.LORAWAN)
INFO = {
    "tenantId": "52f14cd4-c6f1-4fbd-8f87-4025e1d49242",
    "deviceProfileName": "Calin class C",
    "deviceName": "meter",
    "devEui": METER.address.upper(),
    "deviceClassEnabled": "CLASS_C",
    "tags": {},
}
AT = datetime(2030, 1, 1, 12, 0, 0, 775023, tzinfo=UTC)
TIME = "2030-01-01T12:00:00.775023242+00:00"
KINDS = ("up", "ack", "txack", "log", "status", "join")


def an_event(kind: str, **changes: Any) -> dict[str, Any]:
    """An event as ChirpStack posts it; a change to `...` leaves the field out."""
    event: dict[str, Any] = {"time": TIME, "deviceInfo": INFO}
    if kind in ("up", "ack", "status", "join"):
        event["deduplicationId"] = "3ac7e3c4-4401-4b8d-9386-a5c902f9202d"
    match kind:
        case "up":
            event |= {
                "fPort": 1,
                "data": "aCM2MwNwBGjAATTIFg==",
                "adr": True,
                "object": {"any": [{"thing": 1}]},
            }
            event["rxInfo"] = [
                {"gatewayId": "far", "rssi": -118, "snr": -12.5, "uplinkId": 4217106255},
                {"gatewayId": "NEAR", "rssi": -48, "snr": 9.5},
            ]
        case "ack":
            event |= {"queueItemId": "item-1", "acknowledged": True, "fCntDown": 7}
        case "txack":
            event |= {"downlinkId": 3504699415, "queueItemId": "item-1", "gatewayId": "0016c001f153a14c"}
        case "log":
            event |= {"level": "ERROR", "code": "EXPIRED", "description": "too old"}
            event["context"] = {"queue_item_id": "item-1"}
        case "status":
            event |= {"margin": 5, "externalPowerSource": True, "batteryLevelUnavailable": True}
    event |= changes
    return {name: value for name, value in event.items() if value is not ...}


def parse(kind: str, **changes: Any) -> list[Signal]:
    return parse_event(kind, json.dumps(an_event(kind, **changes)).encode(), content_type="application/json")


def the_one(kind: str, **changes: Any) -> Signal:
    (signal,) = parse(kind, **changes)
    return signal


def test_an_uplink_tells_what_was_sent_and_who_heard_it_best() -> None:
    signal = the_one("up")
    assert signal == Uplink(
        id="up:3ac7e3c4-4401-4b8d-9386-a5c902f9202d",
        device=METER.key,
        at=AT,
        dedup="3ac7e3c4-4401-4b8d-9386-a5c902f9202d",
        data=bytes.fromhex("6823363303700468c00134c816"),
        f_port=1,
        gateway="near",
        snr=9.5,
        rssi=-48.0,
        profile="Calin class C",
    )


def test_an_uplink_of_mac_commands_only_is_an_uplink_without_data() -> None:
    signal = the_one("up", data=..., fPort=..., rxInfo=...)
    assert isinstance(signal, Uplink)
    assert (signal.data, signal.f_port, signal.gateway, signal.snr) == (b"", 0, None, None)


def test_an_ack_and_a_nack_name_their_queue_item() -> None:
    ack, nack = the_one("ack"), the_one("ack", acknowledged=False, deduplicationId="")
    assert isinstance(ack, Ack)
    assert isinstance(nack, Ack)
    assert (ack.external_id, ack.acknowledged, ack.dedup) == (
        "item-1",
        True,
        an_event("up")["deduplicationId"],
    )
    assert (nack.external_id, nack.acknowledged, nack.dedup) == ("item-1", False, "")
    assert ack.id != nack.id


def test_an_ack_that_does_not_say_so_is_a_nack() -> None:
    signal = the_one("ack", acknowledged=...)
    assert isinstance(signal, Ack)
    assert signal.acknowledged is False


@pytest.mark.parametrize("downlink", [3504699415, "3504699415"])
def test_a_tx_ack_is_read_whether_its_downlink_id_is_a_number_or_a_string(downlink: int | str) -> None:
    assert the_one("txack", downlinkId=downlink) == TxAck(
        id="txack:item-1:3504699415",
        device=METER.key,
        at=AT,
        external_id="item-1",
        gateway="0016c001f153a14c",
    )


@pytest.mark.parametrize("item", [..., "", None])
def test_a_tx_ack_without_a_queue_item_is_nothing_of_ours(item: Any) -> None:
    assert parse("txack", queueItemId=item) == []


def test_a_gateways_refusal_keeps_its_description() -> None:
    signal = the_one("log", code="DOWNLINK_GATEWAY", description="DUTY_CYCLE_OVERFLOW", context={})
    assert isinstance(signal, GatewayRefused)
    assert (signal.device, signal.details) == (METER.key, "DUTY_CYCLE_OVERFLOW")


@pytest.mark.parametrize("code", ["EXPIRED", "DOWNLINK_PAYLOAD_SIZE", "F_CNT_DOWN"])
def test_a_discard_names_its_queue_item(code: str) -> None:
    signal = the_one("log", code=code)
    assert isinstance(signal, Discarded)
    assert (signal.external_id, signal.code, signal.details) == ("item-1", code, "too old")


@pytest.mark.parametrize(
    "changes",
    [
        {"code": "OTAA"},
        {"code": "UPLINK_F_CNT_RETRANSMISSION"},
        {"code": "UPLINK_CODEC", "context": {"queue_item_id": "item-1"}},
        {"code": "A_CODE_OF_TOMORROW"},
        {"code": ...},
        {"code": "EXPIRED", "context": {}},
        {"code": "EXPIRED", "context": ...},
    ],
)
def test_other_logs_are_not_signals(changes: dict[str, Any]) -> None:
    assert parse("log", **changes) == []


def test_a_status_without_a_battery_says_so() -> None:
    signal = the_one("status", batteryLevel=0.0)
    assert isinstance(signal, Status)
    assert signal.data == {"margin": 5, "external_power_source": True, "battery_level": None}
    known = the_one("status", batteryLevel=97.5, batteryLevelUnavailable=False)
    assert isinstance(known, Status)
    assert known.data["battery_level"] == 97.5


def test_a_join_is_a_signal_and_a_location_is_none() -> None:
    signal = the_one("join")
    assert isinstance(signal, Joined)
    assert signal.device == METER.key
    assert parse_event("location", b"{}", content_type="application/json") == []


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_that_comes_twice_has_the_same_ids(kind: str) -> None:
    assert parse(kind) == parse(kind)


def test_different_events_have_different_ids() -> None:
    signals = [
        *(the_one(kind) for kind in KINDS),
        the_one("up", deduplicationId="another"),
        the_one("ack", acknowledged=False),
        the_one("ack", queueItemId="item-2"),
        the_one("txack", queueItemId="item-2"),
        the_one("txack", downlinkId=1),
        the_one("log", time="2030-01-01T12:00:01Z"),
        the_one("log", code="F_CNT_DOWN"),
        the_one("log", context={"queue_item_id": "item-2"}),
        the_one("log", deviceInfo=INFO | {"devEui": "00" * 8}),
    ]
    assert len({signal.id for signal in signals}) == len(signals)


@pytest.mark.parametrize(
    ("kind", "field", "change"),
    [
        ("up", "deduplicationId", ...),
        ("up", "deduplicationId", ""),
        ("status", "deduplicationId", ...),
        ("join", "deduplicationId", None),
        ("ack", "queueItemId", ...),
        ("ack", "queueItemId", ""),
        ("up", "time", ...),
    ],
)
def test_what_is_missing_is_named(kind: str, field: str, change: Any) -> None:
    with pytest.raises(InvalidSignalError, match=field) as raised:
        parse(kind, **{field: change})
    assert raised.value.field == field
    assert isinstance(raised.value, RemudaError)


@pytest.mark.parametrize("info", [..., None, {}, {"devEui": ""}, {"devEui": "xyz"}, {"devEui": "00" * 9}])
def test_an_event_without_a_device_is_refused(info: Any) -> None:
    with pytest.raises(InvalidSignalError, match="devEui"):
        parse("up", deviceInfo=info)


@pytest.mark.parametrize(
    ("time", "at"),
    [
        ("2030-01-01T12:00:00Z", datetime(2030, 1, 1, 12, tzinfo=UTC)),
        ("2030-01-01T14:00:00.5+02:00", datetime(2030, 1, 1, 12, 0, 0, 500_000, tzinfo=UTC)),
        ("2030-01-01T12:00:00.123456789Z", datetime(2030, 1, 1, 12, 0, 0, 123_457, tzinfo=UTC)),
        ("2030-01-01T12:00:00", datetime(2030, 1, 1, 12, tzinfo=UTC)),
    ],
)
def test_times_are_read_in_every_spelling_as_utc(time: str, at: datetime) -> None:
    signal = the_one("up", time=time)
    assert signal.at == at
    assert signal.at.tzinfo is UTC


@pytest.mark.parametrize("time", ["yesterday", "2030-01-01T25:00:00Z", 12, "0001-01-01T00:00:00+05:00"])
def test_a_time_that_is_none_is_refused(time: Any) -> None:
    with pytest.raises(InvalidSignalError, match="time"):
        parse("up", time=time)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"x":' + b"[" * 100_000, b'{"data":"?"}', b'{"fPort":256}'],
)
def test_a_body_that_is_no_event_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidSignalError):
        parse_event("up", body, content_type="application/json")


@pytest.mark.parametrize("bad", ["a\0b", "x" * 65, "with space", "zwölf"])
def test_an_id_that_no_store_should_meet_is_refused(bad: str) -> None:
    with pytest.raises(InvalidSignalError, match="queueItemId"):
        parse("txack", queueItemId=bad)


def test_text_that_no_store_should_meet_is_shortened_and_cleaned() -> None:
    signal = the_one("log", description="a\0b" + "c" * 10_000)
    assert isinstance(signal, Discarded)
    assert signal.details.startswith("abccc")
    assert len(signal.details) == 300


def test_a_kind_that_chirpstack_does_not_have_is_named() -> None:
    with pytest.raises(InvalidSignalError, match="'uplink'") as raised:
        parse_event("uplink", b"{}", content_type="application/json")
    assert raised.value.field == "event"


def test_a_body_that_is_too_large_is_refused() -> None:
    body = json.dumps(an_event("up")).encode()
    assert parse_event("up", body, content_type="", max_bytes=len(body))
    with pytest.raises(InvalidSignalError, match="body"):
        parse_event("up", body, content_type="", max_bytes=len(body) - 1)


MESSAGES = {
    "up": integration.UplinkEvent,
    "ack": integration.AckEvent,
    "txack": integration.TxAckEvent,
    "log": integration.LogEvent,
    "status": integration.StatusEvent,
    "join": integration.JoinEvent,
}
PACKED = ("application/octet-stream", "application/x-protobuf; messageType=x")
ids = st.text("0123456789abcdef-", min_size=1, max_size=36)


@st.composite
def messages(draw: st.DrawFn) -> tuple[str, Any]:
    """Any event, as ChirpStack's own message."""
    kind = draw(st.sampled_from(KINDS))
    event = MESSAGES[kind]()
    event.time.seconds = draw(st.integers(0, 4_000_000_000))
    event.time.nanos = draw(st.integers(0, 999_999_999))
    event.device_info.dev_eui = draw(st.binary(min_size=8, max_size=8)).hex()
    if kind not in ("txack", "log"):
        event.deduplication_id = draw(ids)
    if kind == "up":
        event.data, event.f_port = draw(st.binary(max_size=222)), draw(st.integers(0, 255))
        for gateway in draw(st.lists(ids, max_size=3)):
            heard = event.rx_info.add(gateway_id=gateway, rssi=draw(st.integers(-140, 0)))
            heard.snr = draw(st.floats(width=32))
    if kind in ("ack", "txack"):
        event.queue_item_id = draw(ids)
    if kind == "ack":
        event.acknowledged = draw(st.booleans())
    if kind == "txack":
        event.downlink_id = draw(st.integers(0, 2**32 - 1))
    if kind == "log":
        event.code = draw(st.integers(0, 12))  # 12 is a code that is not there yet
        event.description = draw(st.text(max_size=20))
        event.context["queue_item_id"] = draw(ids)
    return kind, event


@given(messages(), st.sampled_from(PACKED), st.booleans())
def test_protobuf_and_json_say_the_same(event: tuple[str, Any], content_type: str, all_fields: bool) -> None:
    kind, message = event
    packed = parse_event(kind, message.SerializeToString(), content_type=content_type)
    text = MessageToJson(message, always_print_fields_with_no_presence=all_fields)
    assert packed == parse_event(kind, text.encode(), content_type="application/json")
    assert [unpack(pack(signal)) for signal in packed] == packed


@given(st.sampled_from(KINDS), st.binary(max_size=60), st.sampled_from([*PACKED, "application/json", ""]))
def test_any_bytes_are_read_or_refused(kind: str, body: bytes, content_type: str) -> None:
    with suppress(InvalidSignalError):
        parse_event(kind, body, content_type=content_type)


def test_protobuf_that_is_damaged_is_refused() -> None:
    with pytest.raises(InvalidSignalError, match=r"integration\.UplinkEvent"):
        parse_event("up", b"\xff\xff\xff", content_type="application/octet-stream")
    late = integration.JoinEvent(deduplication_id="d")
    late.time.seconds = 2**62
    with pytest.raises(InvalidSignalError, match=r"integration\.JoinEvent"):
        parse_event("join", late.SerializeToString(), content_type="application/octet-stream")
