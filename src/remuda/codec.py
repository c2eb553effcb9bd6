"""Payloads and headers to bytes and back, with limits. msgpack by default, JSON where others read along."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from math import isfinite
from typing import Any

import msgspec

from remuda.errors import ConfigurationError, DecodeError, EncodeError, InvalidJobError, OversizeError

DEFAULT_MAX_PAYLOAD_BYTES = 1024 * 1024
MAX_HEADERS_BYTES = 64 * 1024
MAX_NAME_BYTES = 255

CONTENT_TYPE = "content-type"
_MSGPACK_TYPES = ("application/msgpack", "application/x-msgpack")
_JSON_TYPE = "application/json"

Headers = Mapping[str, str | int | float | bool | None]


class PayloadFormat(StrEnum):
    """How a queue writes payloads. Both kinds are always read."""

    MSGPACK = "msgpack"
    JSON = "json"


CONTENT_TYPES = {PayloadFormat.MSGPACK: "application/msgpack", PayloadFormat.JSON: _JSON_TYPE}


def _plain(value: object) -> object:
    """Pydantic models as dicts; everything else that msgspec does not know is refused."""
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    raise TypeError(f"a value of type {type(value).__qualname__} cannot be encoded")


_msgpack_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_json_encoder = msgspec.json.Encoder(enc_hook=_plain)
_msgpack_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder()
_json_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def encode_payload(
    payload: object,
    *,
    name: str,
    max_bytes: int = DEFAULT_MAX_PAYLOAD_BYTES,
    payload_format: PayloadFormat = PayloadFormat.MSGPACK,
) -> bytes:
    """The bytes of a payload, or an error that names the job and what is wrong with it."""
    encoder = _msgpack_encoder if payload_format is PayloadFormat.MSGPACK else _json_encoder
    try:
        encoded = encoder.encode(payload)
    except (TypeError, ValueError, OverflowError, RecursionError, NotImplementedError) as error:
        raise EncodeError(f"the payload of job {name!r} cannot be encoded: {error}") from error
    if len(encoded) > max_bytes:
        raise OversizeError(
            f"the payload of job {name!r} has {len(encoded):,} bytes; the queue takes at most {max_bytes:,}"
        )
    return encoded


def decode_payload(payload: bytes, content_type: object, *, foreign: bool = False) -> Any:
    """The value behind the bytes; `DecodeError` when they are not what the content type says.

    `foreign` is for messages that another program wrote: without a content type they stay bytes.
    """
    if content_type is not None and not isinstance(content_type, str):
        raise DecodeError(f"the content type is not text: {content_type!r}")
    try:
        if content_type is None:
            return payload if foreign else _msgpack_decoder.decode(payload)
        kind = content_type.partition(";")[0].strip().lower()
        if kind in _MSGPACK_TYPES:
            return _msgpack_decoder.decode(payload)
        if kind == _JSON_TYPE:
            return _json_decoder.decode(payload)
        if kind.startswith("text/"):
            return payload.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DecodeError(
            f"{len(payload):,} bytes of payload do not decode as {content_type or 'msgpack'}: {error}"
        ) from error
    return payload


def encode_headers(headers: Headers, *, name: str) -> str:
    """Headers as JSON text; flat, string keys, plain values."""
    for key, value in headers.items():
        if not isinstance(key, str):
            raise EncodeError(f"the headers of job {name!r} have a key that is not a string: {key!r}")
        if not isinstance(value, str | int | float | bool | None):
            raise EncodeError(
                f"header {key!r} of job {name!r} is a {type(value).__name__}; "
                "headers hold text, numbers, booleans and None"
            )
        if isinstance(value, float) and not isfinite(value):
            raise EncodeError(f"header {key!r} of job {name!r} is {value}, which JSON cannot hold")
    try:
        encoded = msgspec.json.encode(headers)
    except (ValueError, OverflowError) as error:
        raise EncodeError(f"the headers of job {name!r} cannot be encoded: {error}") from error
    if len(encoded) > MAX_HEADERS_BYTES:
        raise OversizeError(
            f"the headers of job {name!r} have {len(encoded):,} bytes; at most {MAX_HEADERS_BYTES:,} fit"
        )
    return encoded.decode()


def decode_headers(encoded: str | bytes | None) -> dict[str, Any]:
    """The headers behind stored JSON; `DecodeError` when it is not an object."""
    if encoded is None:
        return {}
    try:
        headers = _json_decoder.decode(encoded)
    except msgspec.DecodeError as error:
        raise DecodeError(f"the headers are not JSON: {error}") from error
    if headers is None:  # how some writers store "no headers" in a JSON column
        return {}
    if not isinstance(headers, dict):
        raise DecodeError(f"the headers are a {type(headers).__name__}, not an object")
    return headers


def check_name(value: str, what: str, error: type[InvalidJobError | ConfigurationError]) -> str:
    """`value` if every store can hold it as a name; otherwise an `error` that says why not."""
    checked: object = value  # callers need not be typed
    if not isinstance(checked, str) or not checked:
        raise error(f"{what} must be a non-empty string, not {value!r}")
    try:
        length = len(value.encode())
    except UnicodeEncodeError:
        raise error(f"{what} is not valid Unicode: {value!r}") from None
    if length > MAX_NAME_BYTES:
        raise error(f"{what} has {length} bytes; at most {MAX_NAME_BYTES} are taken: {value[:40]!r}…")
    if value != value.strip() or not value.isprintable():
        raise error(f"{what} must not begin or end with a blank, nor hold control characters: {value!r}")
    return value
