"""How a worker works, checked once when it is made."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum

import msgspec

from remuda.errors import ConfigurationError
from remuda.retry import DEFAULT_RETRY, RetryCallable, RetryPolicy


class AckPolicy(StrEnum):
    """What happens to a job when its handler says nothing itself. A word by hand always comes first.

    ACK              acked, whether the handler raised or not
    ACK_FIRST        acked before the handler starts: at most once, no retries
    REJECT_ON_ERROR  acked; an exception makes it a dead letter at once
    NACK_ON_ERROR    acked; an exception is left to the retry policy
    MANUAL           the handler must say ack, nack or reject; silence is logged and rejected
    """

    ACK = "ack"
    ACK_FIRST = "ack_first"
    REJECT_ON_ERROR = "reject_on_error"
    NACK_ON_ERROR = "nack_on_error"
    MANUAL = "manual"


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long ended jobs are kept in the archive; None keeps them for ever.

    Dead letters are kept until somebody looks at them, unless you say otherwise.
    """

    completed: timedelta | None = timedelta(days=30)
    failed: timedelta | None = None


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Every option of a worker beside its default.

    concurrency             handlers that run at the same time
    fetch_batch_size        jobs that one fetch asks for at most
    overfetch_factor        how many fetches' worth may wait in the worker's own buffer
    min_fetch_interval      pause after a fetch that was full
    max_fetch_interval      pause after one that was not, unless the store wakes the worker earlier
    flush_interval          how long an outcome waits for company before it is written
    release_stuck_timeout   the lease: renewed at a third of it, over when a worker is dead
    release_stuck_interval  how often a worker looks for the jobs of dead ones
    graceful_timeout        how long running handlers may go on after a stop
    max_deliveries          deliveries of one job at most; more make it a dead letter unseen
    handler_timeout         how long one handler run may take; None for no limit
    max_payload_bytes       a larger payload is a dead letter, `oversize`
    archive_completed       keep completed jobs in the archive at all
    store_results           keep what handlers return, for `Queue.result` …
    result_ttl              … for this long
    notes_ttl               how long progress and lines of jobs are kept (`Job.progress`, `Job.log`)
    schedule                make the jobs of repeatable specs, together with every other worker of the queue
    """

    concurrency: int = 10
    fetch_batch_size: int = 250
    overfetch_factor: float = 1.5
    min_fetch_interval: timedelta = timedelta(0)
    max_fetch_interval: timedelta = timedelta(seconds=1)
    flush_interval: timedelta = timedelta(milliseconds=10)
    release_stuck_timeout: timedelta = timedelta(seconds=60)
    release_stuck_interval: timedelta = timedelta(seconds=10)
    graceful_timeout: timedelta = timedelta(seconds=15)
    max_deliveries: int | None = None
    ack_policy: AckPolicy = AckPolicy.NACK_ON_ERROR
    retry: RetryPolicy | RetryCallable = DEFAULT_RETRY
    handler_timeout: timedelta | None = None
    max_payload_bytes: int = 16 * 1024 * 1024
    archive_completed: bool = True
    store_results: bool = False
    result_ttl: timedelta = timedelta(hours=1)
    notes_ttl: timedelta = timedelta(days=7)
    retention: Retention = Retention()
    schedule: bool = True

    def __post_init__(self) -> None:
        for name in ("concurrency", "fetch_batch_size", "max_payload_bytes", "max_deliveries"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {value}")
        if self.overfetch_factor < 1.0:
            raise ConfigurationError(f"overfetch_factor must be at least 1, not {self.overfetch_factor}")
        for name in ("min_fetch_interval", "max_fetch_interval", "flush_interval", "graceful_timeout"):
            if getattr(self, name) < timedelta(0):
                raise ConfigurationError(f"{name} must not be negative, not {getattr(self, name)}")
        for name in ("release_stuck_timeout", "release_stuck_interval", "result_ttl", "notes_ttl"):
            if getattr(self, name) <= timedelta(0):
                raise ConfigurationError(f"{name} must be more than nought, not {getattr(self, name)}")
        if self.handler_timeout is not None and self.handler_timeout <= timedelta(0):
            raise ConfigurationError(f"handler_timeout must be more than nought, not {self.handler_timeout}")

    @property
    def buffer_size(self) -> int:
        return max(1, int(self.fetch_batch_size * self.overfetch_factor))
