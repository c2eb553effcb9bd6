"""Repeatable jobs in ChasquiMQ's bytes, so that its programs read our specs, and ours read theirs.

A spec is `[key, name, {"Every": [ms]} or {"Cron": [expression, zone]}, payload, limit, start, end, fired]`,
moments in milliseconds, and a ninth element where missed windows are not skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from remuda.errors import ConfigurationError
from remuda.schedule import MILLISECOND, Missed, Repeat, Repeating
from remuda.stores.contract import EncodedJob, Firing
from remuda.stores.redis.holding import Argument
from remuda.stores.redis.keys import Keys
from remuda.stores.redis.link import Link
from remuda.stores.redis.wire import encode, from_us
from remuda.transition import to_ms

log = logging.getLogger("remuda.stores.redis")

_decode = msgspec.msgpack.decode
_WITHOUT_MISSED = 8  # elements


def spec_to_wire(spec: Repeat) -> bytes:
    pattern = (
        {"Every": [spec.every // MILLISECOND]}
        if spec.every is not None
        else {"Cron": [spec.cron, None if spec.zone == "UTC" else spec.zone]}
    )
    elements: list[Any] = [
        spec.key,
        spec.name,
        pattern,
        encode(spec.payload),
        spec.limit,
        None if spec.start is None else to_ms(spec.start),
        None if spec.end is None else to_ms(spec.end),
        0,
    ]
    if spec.missed is Missed.FIRE_ONCE:
        elements.append("FireOnce")
    elif spec.missed is Missed.FIRE_ALL:
        elements.append({"FireAll": [spec.most]})
    return encode(elements)


def spec_from_wire(packed: bytes) -> tuple[Repeat, int]:
    """A spec, and the count that it came with; `ValueError` for what is none."""
    try:
        key, name, pattern, payload, limit, start_ms, end_ms, fired, *more = _decode(packed)
        ((kind, values),) = pattern.items()
        missed, most = _missed(more[0] if more else None)
        spec = Repeat(
            key=key,
            name=name,
            payload=_decode(payload),
            every=values[0] * MILLISECOND if kind == "Every" else None,
            cron=values[0] if kind == "Cron" else None,
            zone=values[1] or "UTC" if kind == "Cron" else "UTC",
            limit=limit,
            start=None if start_ms is None else from_us(start_ms * 1000),
            end=None if end_ms is None else from_us(end_ms * 1000),
            missed=missed,
            most=most,
        )
    except (ValueError, TypeError, AttributeError, OverflowError, msgspec.MsgspecError) as error:
        raise ValueError(f"{len(packed):,} bytes that are no spec of a repeatable job: {error}") from error
    except ConfigurationError as error:
        raise ValueError(f"a spec that cannot be followed: {error}") from error
    return spec, fired


def _missed(word: Any) -> tuple[Missed, int | None]:
    if isinstance(word, dict):
        (most,) = word["FireAll"]
        return Missed.FIRE_ALL, most
    return (Missed.FIRE_ONCE if word == "FireOnce" else Missed.SKIP), None


async def look(link: Link, keys: Keys, *, key: str | None, limit: int) -> list[Repeating]:
    """Specs by their next windows."""
    if key is None:
        flat = await link.call("ZRANGE", keys.repeat, 0, limit - 1, "WITHSCORES")
    else:
        score = await link.call("ZSCORE", keys.repeat, key)
        flat = [] if score is None else [key.encode(), score]
    names = [name.decode() for name in flat[::2]]
    if not names:
        return []
    bodies = await link.call_many([("HMGET", keys.repeat_spec(name), "spec", "fired") for name in names])
    found = []
    for name, score, (packed, fired) in zip(names, flat[1::2], bodies, strict=True):
        if packed is None:
            continue  # removed while we looked
        try:
            spec, at_first = spec_from_wire(packed)
        except ValueError as error:
            log.warning("the spec %r is left alone: %s", name, error, extra={"action": "spec_unreadable"})
            continue
        count = at_first if fired is None else int(fired)
        found.append(Repeating(spec, from_us(int(float(score)) * 1000), count))
    return found


def firing_arguments(firings: Sequence[Firing]) -> tuple[list[Argument], list[EncodedJob]]:
    """What `fire.lua` takes before the arguments of `add.lua`; and the jobs that those are made from."""
    arguments: list[Argument] = [len(firings)]
    for each in firings:
        following: Argument = "" if each.next is None else to_ms(each.next)
        arguments += (each.key, to_ms(each.window), following, len(each.jobs))
    return arguments, [job for each in firings for job in each.jobs]
