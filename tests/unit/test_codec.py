"""Payloads and headers to bytes and back, with limits that name the job."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.codec import (
    MAX_HEADERS_BYTES,
    PayloadFormat,
    check_name,
    decode_headers,
    decode_payload,
    encode_headers,
    encode_payload,
)
from remuda.errors import ConfigurationError, DecodeError, EncodeError, InvalidJobError, OversizeError

texts = st.text(st.characters(codec="utf-8"), max_size=20)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | texts
    | st.floats(allow_nan=False, width=64)
)
plain = st.recursive(
    scalars | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)
json_plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)
header_values = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | texts
    | st.floats(allow_nan=False, allow_infinity=False)
)


@given(plain)
def test_a_payload_comes_back_from_msgpack(payload: Any) -> None:
    assert decode_payload(encode_payload(payload, name="job"), None) == payload
    assert decode_payload(encode_payload(payload, name="job"), "application/msgpack") == payload


@given(json_plain)
def test_a_payload_comes_back_from_json(payload: Any) -> None:
    encoded = encode_payload(payload, name="job", payload_format=PayloadFormat.JSON)
    assert decode_payload(encoded, "application/json; charset=utf-8") == payload
    assert json.loads(encoded) == payload


@given(st.dictionaries(texts, header_values, max_size=8))
def test_headers_come_back(headers: dict[str, Any]) -> None:
    assert decode_headers(encode_headers(headers, name="job")) == headers


@given(
    st.binary(max_size=60), st.sampled_from([None, "application/json", "application/msgpack", "text/plain"])
)
def test_any_bytes_are_a_value_or_a_decode_error(payload: bytes, kind: str | None) -> None:
    with contextlib.suppress(DecodeError):
        decode_payload(payload, kind)


@given(st.binary(max_size=60) | texts)
def test_any_stored_headers_are_a_dict_or_a_decode_error(stored: bytes | str) -> None:
    with contextlib.suppress(DecodeError):
        assert isinstance(decode_headers(stored), dict)


def test_models_are_encoded_as_what_they_hold() -> None:
    class Struct(msgspec.Struct):
        n: int

    @dataclass
    class Data:
        n: int

    class Model(pydantic.BaseModel):
        n: int
        at: datetime

    moment = datetime(2030, 1, 1, tzinfo=UTC)
    for payload in (Struct(1), Data(1)):
        assert decode_payload(encode_payload(payload, name="job"), None) == {"n": 1}
    assert decode_payload(encode_payload([Model(n=1, at=moment)], name="job"), None) == [
        {"n": 1, "at": "2030-01-01T00:00:00Z"}
    ]


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


@pytest.mark.parametrize("payload_format", PayloadFormat)
@pytest.mark.parametrize(
    "payload",
    [object(), {"a": {object()}}, "\ud800", lambda: None],
    ids=["object", "set of objects", "surrogate", "function"],
)
def test_what_cannot_be_encoded_is_refused_with_the_jobs_name(
    payload: Any, payload_format: PayloadFormat
) -> None:
    with pytest.raises(EncodeError, match="'mail'"):
        encode_payload(payload, name="mail", payload_format=payload_format)


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1])
def test_a_number_that_msgpack_does_not_have_is_refused(number: int) -> None:
    with pytest.raises(EncodeError, match="'mail'"):
        encode_payload(number, name="mail")


def test_a_payload_without_end_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for payload in (endless, nested(100_000)):
        with pytest.raises(EncodeError, match="'mail'"):
            encode_payload(payload, name="mail")


def test_the_limit_is_in_bytes_and_inclusive() -> None:
    payload = "é" * 100
    size = len(encode_payload(payload, name="mail"))
    assert encode_payload(payload, name="mail", max_bytes=size)
    with pytest.raises(
        OversizeError, match=rf"'mail' has {size:,} bytes; the queue takes at most {size - 1:,}"
    ):
        encode_payload(payload, name="mail", max_bytes=size - 1)


@pytest.mark.parametrize(
    "headers", [{"a": [1]}, {"a": {}}, {"a": b"x"}, {1: "a"}, {None: 1}, {"a": "\ud800"}, {"\ud800": 1}]
)
def test_headers_that_are_not_flat_are_refused(headers: Any) -> None:
    with pytest.raises(EncodeError, match="'mail'"):
        encode_headers(headers, name="mail")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_header_that_would_not_come_back_is_refused(value: float) -> None:
    with pytest.raises(EncodeError, match="'mail'"):
        encode_headers({"a": value}, name="mail")


def test_the_limit_of_headers_is_in_bytes() -> None:
    encode_headers({"a": "x" * (MAX_HEADERS_BYTES - 8)}, name="mail")
    with pytest.raises(OversizeError, match="'mail'"):
        encode_headers({"a": "x" * MAX_HEADERS_BYTES}, name="mail")
    with pytest.raises(OversizeError, match="'mail'"):
        encode_headers({"a": "é" * (MAX_HEADERS_BYTES - 100)}, name="mail")


def test_stored_headers_of_nothing_are_none() -> None:
    assert decode_headers(None) == decode_headers("null") == decode_headers(b"{}") == {}
    for wrong in ("[]", "5", '"a"', "{", ""):
        with pytest.raises(DecodeError):
            decode_headers(wrong)


def test_a_foreign_payload_without_a_type_stays_bytes() -> None:
    assert decode_payload(b"\xc1", None, foreign=True) == b"\xc1"
    assert decode_payload(b"[1]", "Application/JSON", foreign=True) == [1]
    assert decode_payload("grüezi".encode(), "text/plain; charset=utf-8") == "grüezi"
    assert decode_payload(b"\x89PNG", "image/png") == b"\x89PNG"
    with pytest.raises(DecodeError):
        decode_payload(b"\xff", "text/plain")


@given(st.text(max_size=300))
def test_a_name_is_taken_as_it_is_or_refused(name: str) -> None:
    printable = name.isprintable() and name.strip() == name
    if printable and 0 < len(name.encode()) <= 255:
        assert check_name(name, "a name", InvalidJobError) == name
    else:
        with pytest.raises(InvalidJobError, match="a name") as refused:
            check_name(name, "a name", InvalidJobError)
        str(refused.value).encode()  # can be shown


@pytest.mark.parametrize(
    "name", ["", " a", "a ", "\x00", "a\nb", "\x7f", "a\u2028b", "n" * 256, "é" * 128, 5, None]
)
def test_a_bad_name_is_refused_with_the_error_of_the_caller(name: Any) -> None:
    for error in (InvalidJobError, ConfigurationError):
        with pytest.raises(error, match="what it is"):
            check_name(name, "what it is", error)
