"""Job: what a handler gets, and what it may say about it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Protocol

import msgspec

from remuda.errors import ConfigurationError, JobCancelledError


class Notebook(Protocol):
    """What takes down what a handler says of its job."""

    def progress(self, value: Any) -> None: ...

    def log(self, text: str) -> None: ...


class Verdict(msgspec.Struct, frozen=True):
    """What a handler said by hand: `ack`, `nack` or `reject`."""

    word: str
    delay: timedelta | None = None
    message: str | None = None


ACK = Verdict("ack")


class Job(msgspec.Struct, kw_only=True, eq=False):
    """A job in a handler's hands.

    attempt     which run of the handler this is, from 1
    deliveries  how often the job was handed to a worker, this time included
    verdict     what was said by hand, or None; the first word counts
    cancelled   somebody wants it to end: a coroutine is cancelled by itself, a plain function has to look
    notebook    where `progress` and `log` write; without a worker, nowhere
    """

    id: str
    name: str
    payload: Any
    headers: dict[str, Any]
    queue: str
    attempt: int
    deliveries: int
    priority: int
    created_at: datetime
    expires_at: datetime | None
    worker: str
    verdict: Verdict | None = None
    cancelled: bool = False
    notebook: Notebook | None = None

    def __repr__(self) -> str:
        return f"<Job {self.name!r} {self.id} attempt {self.attempt} of queue {self.queue!r}>"

    def ack(self) -> None:
        """It is done, whatever the handler does from here on."""
        self._say(ACK)

    def nack(self, *, delay: timedelta | None = None) -> None:
        """It failed: another attempt if the retry policy allows one, after `delay` if given."""
        if delay is not None and delay < timedelta(0):
            raise ConfigurationError(f"the delay of a nack must not be negative, not {delay}")
        self._say(Verdict("nack", delay=delay))

    def reject(self, message: str | None = None) -> None:
        """It can never succeed: a dead letter, `rejected`, with `message` as its error text."""
        self._say(Verdict("reject", message=message))

    def check_cancelled(self) -> None:
        """Raise `JobCancelledError` if somebody has cancelled it: for loops of plain functions."""
        if self.cancelled:
            raise JobCancelledError(f"job {self.id} was cancelled while it ran")

    def progress(self, value: Any) -> None:
        """Say how far it is: a number, a text, whatever a payload can be. `Queue.progress` reads it.

        As often as you like, from coroutines and threads: a worker writes the last word in a while.

        >>> job.progress({"done": 40, "of": 100})
        """
        if self.notebook is not None:
            self.notebook.progress(value)

    def log(self, text: object) -> None:
        """Keep a line with the job, to be read with `Queue.log` or `remuda jobs log`."""
        if self.notebook is not None:
            self.notebook.log(str(text))

    def _say(self, verdict: Verdict) -> None:
        if self.verdict is None:
            self.verdict = verdict
