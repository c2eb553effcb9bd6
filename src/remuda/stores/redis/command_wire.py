"""What the scripts of the command store are told and answer, from and to the types of the contract."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from remuda.errors import DecodeError
from remuda.stores.command_trail import pack_moves
from remuda.stores.commands import Change, Pace, StoredCommand, StoredSignal
from remuda.stores.redis.holding import Argument
from remuda.stores.redis.wire import from_us, to_score, to_us

_MILLISECOND = timedelta(milliseconds=1)
_encoder = msgspec.msgpack.Encoder()


def _moment(moment: datetime | None) -> str:
    return "" if moment is None else to_score(moment)


def _ms(length: timedelta) -> str:
    return f"{length / _MILLISECOND:.3f}"


def _maybe_ms(length: timedelta | None) -> str:
    return "" if length is None else _ms(length)


def _list(names: tuple[str, ...]) -> bytes:
    return _encoder.encode(names) if names else b""


# -- changes


def write_arguments(changes: Sequence[Change], *, who: str) -> list[Argument]:
    """What `write.lua` takes: the changes, and the entries of the trail for when all of them are written."""
    arguments: list[Argument] = [len(changes)]
    for change in changes:
        placing = change.placing
        arguments += (
            change.id,
            change.base,
            change.record,
            placing.home.value,
            placing.lane,
            placing.priority,
            placing.status.value,
            placing.type,
            placing.device,
            _moment(placing.due_at),
            placing.turn or "",
            placing.key or "",
            "1" if placing.uses_slot else "",
            placing.hears or "",
            _moment(placing.expires_at),
            placing.airtime_ms,
            _list(placing.external_ids),
            _list(placing.correlation_ids),
        )
    entries = pack_moves(changes, who=who)
    arguments.append(len(entries))
    for count, packed in entries:
        arguments += (count, packed)
    return arguments


def pace_arguments(paces: Sequence[Pace]) -> list[Argument]:
    """What `claim.lua` takes of each pace."""
    arguments: list[Argument] = [len(paces)]
    for pace in paces:
        arguments += (
            pace.prefix,
            _maybe_ms(pace.every),
            "" if pace.duty is None else repr(pace.duty),
            _ms(pace.burst),
            "" if pace.slots is None else pace.slots,
            _ms(pace.slot_for),
        )
    return arguments


def stored_commands(flat: Sequence[Any]) -> list[StoredCommand]:
    """Id, version and record, one after the other."""
    return [
        StoredCommand(id=command_id.decode(), version=int(version), record=record)
        for command_id, version, record in zip(flat[::3], flat[1::3], flat[2::3], strict=True)
    ]


def numbered_commands(flat: Sequence[Any]) -> list[tuple[int, StoredCommand]]:
    """The same, each after the number of what was asked for; here they count from 0."""
    return [
        (number - 1, StoredCommand(id=command_id.decode(), version=int(version), record=record))
        for number, command_id, version, record in zip(
            flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True
        )
    ]


# -- signals


class _Kept(msgspec.Struct, array_like=True, frozen=True):
    """A signal's bytes in the store."""

    device: str
    body: bytes
    received_us: int


_kept_decoder = msgspec.msgpack.Decoder(_Kept)


def keep_arguments(signals: Sequence[StoredSignal], *, remember: timedelta) -> list[Argument]:
    """What `keep.lua` takes."""
    arguments: list[Argument] = [_ms(remember)]
    for each in signals:
        kept = _Kept(each.device, each.body, to_us(each.received_at))
        arguments += (each.id, each.looks, _encoder.encode(kept))
    return arguments


def stored_signals(flat: Sequence[Any]) -> list[StoredSignal]:
    """Id, looks and bytes, one after the other."""
    return [
        _stored_signal(signal_id.decode(), looks, packed)
        for signal_id, looks, packed in zip(flat[::3], flat[1::3], flat[2::3], strict=True)
    ]


def _stored_signal(signal_id: str, looks: int, packed: bytes) -> StoredSignal:
    try:
        kept = _kept_decoder.decode(packed)
    except (msgspec.DecodeError, ValueError) as error:
        raise DecodeError(f"the stored signal {signal_id!r} is not readable: {error}") from error
    return StoredSignal(
        id=signal_id,
        device=kept.device,
        body=kept.body,
        received_at=from_us(kept.received_us),
        looks=looks,
    )
