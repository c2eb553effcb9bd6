"""From what a handler did to what is settled. Pure: clock, random source and policy are passed in."""

from __future__ import annotations

import random
import traceback
from datetime import datetime, timedelta
from types import TracebackType

from remuda.errors import JobRejectedError
from remuda.lifecycle import Reason, State
from remuda.retry import Again, RetryCallable, RetryPolicy, decide, final_reason, unpack_policy
from remuda.stores.contract import Delivery, Failure, Settlement
from remuda.worker.job import Verdict
from remuda.worker.options import AckPolicy

MAX_ERROR_TYPE = 255
MAX_ERROR_MESSAGE = 4_000
MAX_ERROR_TRACE = 32_000

# What stands between a worker and a handler: in every trace, and never what is wrong.
_ON_THE_WAY = ("remuda.worker", "asyncio.", "concurrent.futures.")

_SILENCE = "the handler returned without ack, nack or reject, and its ack policy is MANUAL"


def describe(error: BaseException) -> Failure:
    """An error as it is kept: type, message and trace, cut to size, in characters that every store takes."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    raised = error.__traceback__
    trace = None if raised is None else "".join(traceback.format_exception(kind, error, _of_the_user(raised)))
    return Failure(
        type=_storable(name, MAX_ERROR_TYPE),
        message=text_of(error),
        trace=None if trace is None else _storable(trace, MAX_ERROR_TRACE, keep_end=True),
    )


def _of_the_user(raised: TracebackType) -> TracebackType:
    """A trace from the first function that is not of the worker's own making; all of it if there is none."""
    at: TracebackType | None = raised
    while at is not None:
        module = at.tb_frame.f_globals.get("__name__", "")
        if not module.startswith(_ON_THE_WAY):
            return at
        at = at.tb_next
    return raised


def text_of(error: BaseException) -> str:
    """What an error says, if it says anything."""
    try:
        return _storable(str(error), MAX_ERROR_MESSAGE)
    except Exception as unprintable:  # noqa: BLE001 - a user's __str__ may do anything
        return f"<its text cannot be had: {type(unprintable).__name__}>"


def _storable(text: str, limit: int, *, keep_end: bool = False) -> str:
    clean = text.replace("\x00", "\\0").encode("utf-8", "backslashreplace").decode()
    if len(clean) <= limit:
        return clean
    # The end of a trace says what was raised; the beginning of a message says what was wrong.
    return "…" + clean[-(limit - 1) :] if keep_end else clean[: limit - 1] + "…"


def unheard(
    delivery: Delivery, *, now: datetime, max_deliveries: int | None, max_payload_bytes: int
) -> Settlement | None:
    """The end of a delivery that no handler may have: unreadable, poison, expired, oversize; or None."""
    if delivery.defect is not None:
        return _dead_unheard(delivery, Reason(delivery.defect.reason), delivery.defect.message)
    if max_deliveries is not None and delivery.deliveries > max_deliveries:
        return _dead_unheard(
            delivery,
            Reason.MAX_DELIVERIES,
            f"delivered {delivery.deliveries} times; max_deliveries is {max_deliveries}",
        )
    if delivery.expires_at is not None and delivery.expires_at <= now:
        return _dead_unheard(delivery, Reason.EXPIRED, f"expired at {delivery.expires_at.isoformat()}")
    if len(delivery.payload) > max_payload_bytes:
        return _dead_unheard(
            delivery,
            Reason.OVERSIZE,
            f"a payload of {len(delivery.payload):,} bytes; the worker takes {max_payload_bytes:,}",
        )
    return None


def _dead_unheard(delivery: Delivery, reason: Reason, message: str) -> Settlement:
    return Settlement(
        delivery=delivery, state=State.FAILED, reason=reason.value, failure=Failure(reason.value, message)
    )


def undecodable(delivery: Delivery, error: Exception, reason: Reason = Reason.DECODE_FAIL) -> Settlement:
    """The end of a delivery that cannot be read; no attempt is counted."""
    return Settlement(delivery=delivery, state=State.FAILED, reason=reason.value, failure=describe(error))


def settle_run(
    delivery: Delivery,
    *,
    started_at: datetime,
    verdict: Verdict | None,
    error: BaseException | None,
    ack_policy: AckPolicy,
    retry: RetryPolicy | RetryCallable,
    now: datetime,
    rng: random.Random,
    keep: bool = True,
    result: bytes | None = None,
    result_ttl: timedelta = timedelta(hours=1),
) -> Settlement:
    """What becomes of a delivery whose handler has run, by its own word or by the policies."""
    word = verdict.word if verdict is not None else _implied(ack_policy, error)
    if word == "ack":
        return Settlement(
            delivery=delivery,
            state=State.COMPLETED,
            started_at=started_at,
            keep=keep,
            result=result,
            result_ttl=result_ttl,
        )
    if word == "nack":
        return _nacked(delivery, started_at, verdict, error, retry, now, rng)
    if error is None:
        message = verdict.message if verdict is not None else _SILENCE
        error = JobRejectedError(message or "rejected by its handler")
    return Settlement(
        delivery=delivery,
        state=State.FAILED,
        started_at=started_at,
        # Unrecoverable and panic keep their own names, whatever the policy.
        reason=(final_reason(error) or Reason.REJECTED).value,
        failure=describe(error),
    )


def _implied(ack_policy: AckPolicy, error: BaseException | None) -> str:
    if ack_policy is AckPolicy.MANUAL:
        return "reject"
    if error is None or ack_policy in (AckPolicy.ACK, AckPolicy.ACK_FIRST):
        return "ack"
    return "nack" if ack_policy is AckPolicy.NACK_ON_ERROR else "reject"


def _nacked(
    delivery: Delivery,
    started_at: datetime,
    verdict: Verdict | None,
    error: BaseException | None,
    retry: RetryPolicy | RetryCallable,
    now: datetime,
    rng: random.Random,
) -> Settlement:
    decision = decide(
        retry if delivery.retry is None else unpack_policy(delivery.retry),
        attempts=delivery.attempts + 1,
        first_attempt_at=delivery.first_attempt_at or started_at,
        now=now,
        error=error,
        rng=rng,
        asked_delay=None if verdict is None else verdict.delay,
    )
    failure = describe(error) if error is not None else Failure("nack", "nacked by its handler")
    if isinstance(decision, Again):
        return Settlement(
            delivery=delivery,
            state=State.RETRYABLE,
            started_at=started_at,
            next_attempt_at=decision.at,
            failure=failure,
        )
    return Settlement(
        delivery=delivery,
        state=State.FAILED,
        started_at=started_at,
        reason=decision.reason.value,
        failure=failure,
    )
