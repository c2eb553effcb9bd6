"""The deciding part of the device engine: (command, what happened, now) → (command, moves, effects).

Pure: clock and random source are passed in, and nothing is read or written. A happening may be late,
early, doubled or out of order; one that says nothing new changes nothing. From outside only `decide` and
`may_replay` may be touched; the rules themselves stand in `handing_over`, `push`, `deadlines` and `requests`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from remuda.devices.case import Case
from remuda.devices.command import Command
from remuda.devices.happenings import (
    Accepted,
    Acknowledged,
    Answered,
    CallFailed,
    CancelAsked,
    Discarded,
    Dispatched,
    Effect,
    GatewayRefused,
    Happening,
    JoinedBy,
    KeyGivenUp,
    NotLearnt,
    Polled,
    QueueSeen,
    ReplayAsked,
    Superseded,
    TimePassed,
    Transmitted,
    Withdrawn,
)
from remuda.devices.rules import deadlines, handing_over, push, requests
from remuda.devices.rules.requests import may_replay
from remuda.devices.timings import Timings
from remuda.stores.commands import Move

__all__ = ["Decision", "decide", "may_replay"]


class Decision(msgspec.Struct, frozen=True):
    """What becomes of a command. `command` is the same object where nothing changed."""

    command: Command
    moves: tuple[Move, ...] = ()
    effects: tuple[Effect, ...] = ()


_RULES: dict[type, Callable[[Case, Any], None]] = {
    Dispatched: handing_over.dispatched,
    Accepted: handing_over.accepted,
    CallFailed: handing_over.call_failed,
    Transmitted: push.transmitted,
    Acknowledged: push.acknowledged,
    Answered: push.answered,
    Discarded: push.discarded,
    GatewayRefused: push.gateway_refused,
    QueueSeen: push.queue_seen,
    Polled: handing_over.polled,
    NotLearnt: push.not_learnt,
    TimePassed: deadlines.time_passed,
    CancelAsked: requests.cancel_asked,
    Withdrawn: requests.withdrawn,
    Superseded: requests.superseded,
    KeyGivenUp: requests.key_given_up,
    JoinedBy: requests.joined_by,
    ReplayAsked: requests.replay_asked,
}


def decide(
    command: Command, happening: Happening, *, now: datetime, timings: Timings, rng: random.Random
) -> Decision:
    """What becomes of a command to which something happened."""
    if command.has_ended and not isinstance(happening, ReplayAsked):
        return Decision(command)
    case = Case(command, now, timings, rng)
    _RULES[type(happening)](case, happening)
    return Decision(case.command, tuple(case.moves), tuple(case.effects))
