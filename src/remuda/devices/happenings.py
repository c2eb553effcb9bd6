"""What can happen to a command, and what the rules ask to be done about it.

Happenings go into `rules.decide`, effects come out of it. An attempt is named by its number.
"""

from __future__ import annotations

from datetime import datetime
from typing import TypeAlias

import msgspec

from remuda.devices.command import Answer
from remuda.devices.networks.contract import TaskResult
from remuda.lifecycle import EndReason


class _Value(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Dispatched(_Value, frozen=True, kw_only=True):
    """It was claimed from its lane, and is about to be handed to the network server."""


class Accepted(_Value, frozen=True, kw_only=True):
    """The network server has taken it, under a name of its own. May be late."""

    attempt: int
    external_id: str


class CallFailed(_Value, frozen=True, kw_only=True):
    """The call ended with an error. `certain`: the network server has nothing of it."""

    attempt: int
    code: str
    details: str = ""
    certain: bool = False
    final: EndReason | None = None


class Transmitted(_Value, frozen=True, kw_only=True):
    """Push: a gateway has transmitted it."""

    attempt: int
    external_id: str | None = None


class Acknowledged(_Value, frozen=True, kw_only=True):
    """Push: the device's MAC layer has it, or the network server gave up waiting for that."""

    attempt: int
    acknowledged: bool
    dedup: str = ""
    external_id: str | None = None


class Answered(_Value, frozen=True, kw_only=True):
    """Push: the device sent an answer to it."""

    attempt: int
    dedup: str
    answer: Answer


class Discarded(_Value, frozen=True, kw_only=True):
    """Push: the network server threw it away without sending it."""

    attempt: int
    code: str
    details: str = ""


class GatewayRefused(_Value, frozen=True, kw_only=True):
    """Push: a gateway would not transmit it just now; it stays in the network server's queue."""

    details: str


class QueueSeen(_Value, frozen=True, kw_only=True):
    """Push: what the network server still holds. `adoptable` is an item that a lost call must have made.

    `attempt` is the last one when it was looked; an answer that a newer one has overtaken says nothing.
    """

    present: frozenset[str]
    adoptable: str | None = None
    attempt: int | None = None


class Polled(_Value, frozen=True, kw_only=True):
    """Pull: the task was asked for; None: it goes on, or its answer could not be learnt."""

    attempt: int
    result: TaskResult | None = None
    problem: str | None = None


class NotLearnt(_Value, frozen=True, kw_only=True):
    """The network server did not answer a question; it is asked again later."""

    code: str


class TimePassed(_Value, frozen=True, kw_only=True):
    """It is time to look at it."""


class CancelAsked(_Value, frozen=True, kw_only=True):
    """Somebody does not want it any more."""


class Withdrawn(_Value, frozen=True, kw_only=True):
    """The network server was asked to give it back. `certain`: it did, and had never sent it."""

    attempt: int
    certain: bool
    details: str = ""


class Superseded(_Value, frozen=True, kw_only=True):
    """A newer command makes it redundant."""

    by: str


class KeyGivenUp(_Value, frozen=True, kw_only=True):
    """A newer command takes over its key: this one is on its way, and can stand for nobody else."""


class JoinedBy(_Value, frozen=True, kw_only=True):
    """Another caller wants the same."""

    correlation_id: str | None
    priority: int
    expires_at: datetime | None = None


class ReplayAsked(_Value, frozen=True, kw_only=True):
    """Begin anew. `not_applied`: somebody has made sure that no earlier attempt had an effect.

    `with_key`: it stands for its kind again, so that others join or supersede it.
    """

    not_applied: bool = False
    with_key: bool = True
    expires_at: datetime | None = None


Happening: TypeAlias = (
    Dispatched
    | Accepted
    | CallFailed
    | Transmitted
    | Acknowledged
    | Answered
    | Discarded
    | GatewayRefused
    | QueueSeen
    | Polled
    | NotLearnt
    | TimePassed
    | CancelAsked
    | Withdrawn
    | Superseded
    | KeyGivenUp
    | JoinedBy
    | ReplayAsked
)


class Send(_Value, frozen=True, kw_only=True):
    """Hand this attempt to the network server."""

    attempt: int


class Look(_Value, frozen=True, kw_only=True):
    """Ask the network server what it still holds for the device."""


class Poll(_Value, frozen=True, kw_only=True):
    """Ask the network server for the task of this attempt."""

    attempt: int


class Withdraw(_Value, frozen=True, kw_only=True):
    """Ask the network server to give this attempt back."""

    attempt: int


Effect: TypeAlias = Send | Look | Poll | Withdraw
