"""ChasquiMQ's events, for its tools: one stream entry for each, which costs, so only where asked for."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from remuda.lifecycle import State
from remuda.stores.contract import Settlement
from remuda.transition import to_ms

Event = tuple[str | int, ...]

_MICROSECOND = timedelta(microseconds=1)
_MILLISECOND = timedelta(milliseconds=1)


def events_of(settlement: Settlement, now: datetime) -> Iterator[Event]:
    """The events of an outcome, each as the fields of a stream entry. Attempts count from 1 there."""
    delivery = settlement.delivery
    started = settlement.started_at
    attempt = delivery.attempts + (started is not None)
    duration: Event = () if started is None else ("duration_us", max(0, (now - started) // _MICROSECOND))

    def event(word: str, *more: str | int, attempt: int = attempt) -> Event:
        named: Event = ("n", delivery.name) if delivery.name else ()
        return ("e", word, "id", delivery.id, "ts", to_ms(now), *named, "attempt", attempt, *more)

    if settlement.state is State.COMPLETED:
        yield event("completed", *duration)
        return
    if started is not None:
        text = "" if settlement.failure is None else settlement.failure.message
        yield event("failed", "reason", text, *duration)
    if settlement.state is State.RETRYABLE:
        wait = (settlement.next_attempt_at or now) - now
        yield event("retry-scheduled", "backoff_ms", max(0, wait // _MILLISECOND), attempt=attempt + 1)
    else:
        yield event("dlq", "reason", settlement.reason or "")
