"""The keys of a queue: ChasquiMQ's where it has one, Remuda's own beside them, all on one cluster slot."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from remuda.errors import ConfigurationError
from remuda.message import PRIORITIES

GROUP = "default"
OURS = "remuda:"  # how the names of our consumers begin
RETURNED = "remuda-returned"  # the consumer that holds what was put back and waits for another worker

_FIRST_STREAM = 11  # in the scripts' KEYS, which count from 1


class Keys(NamedTuple):
    """The names of a queue's keys."""

    prefix: str
    meta: str
    log: str
    leases: str
    extra: str
    delayed: str
    retryable: str
    returned: str
    done: str
    dlq: str
    wake: str
    streams: tuple[str, ...]  # by priority, the highest first
    rates: str
    results: str
    repeat: str
    cancel: str

    def for_scripts(self) -> tuple[str, ...]:
        """In the order in which `prelude.lua` names them."""
        return (
            self.meta,
            self.log,
            self.leases,
            self.extra,
            self.delayed,
            self.retryable,
            self.returned,
            self.done,
            self.dlq,
            self.wake,
            *self.streams,
        )

    def held_id(self, job_id: str) -> str:
        """The marker of a unique id that is taken."""
        return f"{self.prefix}dlid:{job_id}"

    def delayed_member(self, job_id: str) -> str:
        """Where the delayed set's member of a job is written down."""
        return f"{self.prefix}didx:{job_id}"

    def repeat_spec(self, key: str) -> str:
        """Where the spec of a repeatable job is."""
        return f"{self.prefix}repeat:spec:{key}"

    def result(self, job_id: str) -> str:
        """Where a job's result is, for ChasquiMQ's programs too."""
        return f"{self.prefix}result:{job_id}"

    def failure(self, job_id: str) -> str:
        """Where it is of a job that failed, which they know nothing of."""
        return f"{self.prefix}remuda:failed:{job_id}"

    def progress(self, job_id: str) -> str:
        """Where a job's handler has said how far it is …"""
        return f"{self.prefix}remuda:progress:{job_id}"

    def lines(self, job_id: str) -> str:
        """… and what else it said."""
        return f"{self.prefix}remuda:lines:{job_id}"


@lru_cache(maxsize=1024)
def keys_of(queue: str) -> Keys:
    if "}:" in queue:
        raise ConfigurationError(f"on Redis a queue's name must not hold '}}:', as {queue!r} does")
    prefix = f"{{chasqui:{queue}}}:"
    return Keys(
        prefix=prefix,
        meta=f"{prefix}remuda:meta",
        log=f"{prefix}remuda:log",
        leases=f"{prefix}remuda:leases",
        extra=f"{prefix}remuda:extra",
        delayed=f"{prefix}delayed",
        retryable=f"{prefix}remuda:retryable",
        returned=f"{prefix}remuda:returned",
        done=f"{prefix}remuda:done",
        dlq=f"{prefix}dlq",
        wake=f"{prefix}remuda:wake",
        streams=tuple(_stream(prefix, priority) for priority in PRIORITIES),
        rates=f"{prefix}remuda:rates",
        results=f"{prefix}remuda:results",
        repeat=f"{prefix}repeat",
        cancel=f"{prefix}remuda:cancel",
    )


def _stream(prefix: str, priority: int) -> str:
    """Priority 0 lives in ChasquiMQ's own stream, the others in siblings that its programs do not read."""
    return f"{prefix}stream" if priority == 0 else f"{prefix}stream:{priority:+d}"


def stream_index(priority: int) -> int:
    """The place of a priority's stream among the scripts' KEYS."""
    return _FIRST_STREAM + PRIORITIES.index(priority)


def priority_of(index: int) -> int:
    return PRIORITIES[index - _FIRST_STREAM]


def queue_of(key: bytes) -> str | None:
    """The queue that a key belongs to, if it is one of a queue's."""
    if key.startswith(b"{chasqui:") and b"}:" in key:
        try:
            return key[len(b"{chasqui:") : key.index(b"}:")].decode()
        except UnicodeDecodeError:
            return None
    return None
