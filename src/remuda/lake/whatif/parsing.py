"""Retry policies and deadlines as people write them: `constant:every=30s,max_attempts=5`, `device=30s`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from remuda.devices.timings import Timings
from remuda.durations import parse_duration
from remuda.errors import ConfigurationError
from remuda.retry import DEFAULT_RETRY, Constant, Exponential, Linear, NoRetry, RetryPolicy

_KINDS: Mapping[str, type[Constant | Linear | Exponential | NoRetry]] = {
    "constant": Constant,
    "linear": Linear,
    "exponential": Exponential,
    "none": NoRetry,
}
# The others say how an engine shares its work out; a recorded command cannot tell what they would have done.
_DEADLINES = (
    "accept",
    "gateway",
    "held_for",
    "device",
    "correlation",
    "max_age",
    "call",
    "look_again",
    "late_result",
)


def parse_policy(text: str) -> RetryPolicy:
    """A retry policy: a kind, and its options after a colon; `default` is the worker's own.

    >>> parse_policy("exponential:initial=2s,cap=1h,max_attempts=8,jitter=0.5")
    """
    kind, _, options = text.strip().partition(":")
    if kind == "default" and not options:
        return DEFAULT_RETRY
    if kind not in _KINDS:
        raise ConfigurationError(f"no retry policy {kind!r}; there are {', '.join(_KINDS)} and default")
    policy = _KINDS[kind]
    known = () if policy is NoRetry else policy.__struct_fields__
    values: dict[str, Any] = {}
    for name, value in _pairs(options.split(",") if options else ()):
        if name not in known:
            there = f"it takes {', '.join(known)}" if known else "it takes none"
            raise ConfigurationError(f"the policy {kind} has no option {name!r}; {there}")
        values[name] = _read(name, value, _READERS.get(name, parse_duration))
    try:
        return policy(**values)
    except TypeError:
        needed = ("every",) if policy is Constant else ("initial", "step")
        missing = [name for name in needed if name not in values]
        raise ConfigurationError(f"the policy {kind} needs {' and '.join(missing)}: {text!r}") from None


def parse_timings(texts: Iterable[str], base: Timings | None = None) -> Timings:
    """Deadlines of commands: `base` (or the defaults) with what `device=30s`, `retry=exponential:…` say.

    >>> parse_timings(["device=30s", "gateway=5m"])
    """
    values: dict[str, Any] = {}
    for name, value in _pairs(texts):
        if name == "retry":
            values[name] = _exponential(value)
        elif name in _DEADLINES:
            values[name] = _read(name, value, parse_duration)
        else:
            there = ", ".join((*_DEADLINES, "retry"))
            raise ConfigurationError(f"no deadline {name!r} that can be tried out; there are {there}")
    try:
        return replace(base or Timings(), **values)
    except OverflowError:
        raise ConfigurationError(f"longer than anything that can be waited for: {values}") from None


def _exponential(text: str) -> Exponential:
    policy = parse_policy(text)
    if not isinstance(policy, Exponential):
        raise ConfigurationError(
            f"commands are retried exponentially; write retry=exponential:…, not {text!r}"
        )
    return policy


def _pairs(texts: Iterable[str]) -> list[tuple[str, str]]:
    pairs = []
    for text in texts:
        name, sign, value = (part.strip() for part in text.partition("="))
        if not (name and sign and value):
            raise ConfigurationError(f"write name=value, not {text!r}")
        pairs.append((name, value))
    return pairs


def _read(name: str, value: str, read: Callable[[str], Any]) -> Any:
    try:
        return read(value)
    except ValueError as error:
        raise ConfigurationError(f"{name}={value}: {error}") from None


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"not a whole number: {text!r}") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"not a number: {text!r}") from None


def _share_or_span(text: str) -> float | timedelta:
    """Jitter: a share (`0.5`) or a time (`5s`)."""
    try:
        return float(text)
    except ValueError:
        return parse_duration(text)


_READERS: Mapping[str, Callable[[str], Any]] = {
    "max_attempts": _whole,
    "multiplier": _number,
    "jitter": _share_or_span,
}
