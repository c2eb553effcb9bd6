"""What to do about a fault: the rules of "when to replay" and "when not to", as a function of its numbers."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from remuda.lifecycle import PRODUCER_REASONS, EndReason, Reason
from remuda.stores.command_trail import fleet_of

if TYPE_CHECKING:
    from remuda.lake.triage import Group

A_FEW = 10
_NOW = timedelta(hours=1)  # what was seen within this still happens
_DAY = timedelta(days=1)
_SHORT = timedelta(hours=1)  # a burst is no longer
_MANY = 5  # and no smaller
_ENOUGH = 3  # replays that ended, before they prove anything
_MOSTLY = 0.8
_HARDLY = 0.2
_RISING = 1.5

# The handler may have done part of its work before it failed.
_HANDLER_RAN = frozenset(
    {
        Reason.RETRIES_EXHAUSTED,
        Reason.UNRECOVERABLE,
        Reason.PANIC,
        Reason.MAX_DELIVERIES,
        Reason.REJECTED,
        Reason.CANCELLED,
    }
)
_TWICE = "the handler ran, and may have done part of it: replay only if running it twice does no harm"


class Verdict(StrEnum):
    """In one word.

    NOTHING        none of them is dead any more
    REPLAY         a replay has fixed it before
    TRY_FEW        it looks as if its cause were gone: replay ten, look, then the rest
    CAUSE_FIRST    it still happens: what is replayed would come straight back
    LOOK           somebody has to look at one before any is replayed
    DO_NOT_REPLAY  not as it is, or not at all
    MEND_PRODUCER  not at all: mend what adds them, then drop them
    """

    NOTHING = "nothing"
    REPLAY = "replay"
    TRY_FEW = "try_few"
    CAUSE_FIRST = "cause_first"
    LOOK = "look"
    DO_NOT_REPLAY = "do_not_replay"
    MEND_PRODUCER = "mend_producer"


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """What to do: a verdict, why, what to mind (if anything), and the command line to run next (if any)."""

    verdict: Verdict
    words: str
    caution: str | None = None
    next: str | None = None


def suggest(group: Group, now: datetime) -> Suggestion:
    """The first rule that has something to say about a group of dead letters."""
    for rule in _RULES:
        suggestion = rule(group, now)
        if suggestion is not None:
            return suggestion
    return _if_mended(group, now)


def _nothing_left(group: Group, _: datetime) -> Suggestion | None:
    if group.dead_now:
        return None
    return Suggestion(verdict=Verdict.NOTHING, words="nothing to do: none of them is dead any more")


def _producer(group: Group, _: datetime) -> Suggestion | None:
    if group.reason not in PRODUCER_REASONS:
        return None
    return Suggestion(
        verdict=Verdict.MEND_PRODUCER,
        words="do not replay: mend the producer, then drop; no handler can read what it wrote",
        next=_line("dlq", "drop", group.queue, "--reason", group.reason),
    )


# Commands whose end says by itself what can be done about it.
_NO = Verdict.DO_NOT_REPLAY
_ENDS: dict[str, tuple[Verdict, str]] = {
    EndReason.EXPIRED: (_NO, "do not replay: its time is over; send a new one if it is still wanted"),
    EndReason.CANCELLED: (_NO, "do not replay: somebody did not want it any more"),
    EndReason.SUPERSEDED: (_NO, "do not replay: a newer command took its place, and would be undone"),
    EndReason.BAD_TOKEN: (_NO, "do not replay: the token was refused; ask for a new one"),
    EndReason.UNSUPPORTED_COMMAND: (_NO, "do not replay: the device or its network has no such command"),
    EndReason.OUTCOME_UNKNOWN: (
        Verdict.LOOK,
        "do not replay blindly: the token may have been applied; read the device, and replay what was not",
    ),
    EndReason.UNKNOWN_DEVICE: (
        Verdict.CAUSE_FIRST,
        "find the cause first: the network server does not know the device; register it, then replay",
    ),
}


def _command_end(group: Group, _: datetime) -> Suggestion | None:
    if fleet_of(group.queue) is None or group.reason not in _ENDS:
        return None
    verdict, words = _ENDS[group.reason]
    return Suggestion(verdict=verdict, words=words, next=_show(group) if verdict is Verdict.LOOK else None)


def _replays_failed(group: Group, _: datetime) -> Suggestion | None:
    ended = group.fixed + group.died_again
    if ended < _ENOUGH or group.fixed > _HARDLY * ended:
        return None
    return Suggestion(
        verdict=Verdict.DO_NOT_REPLAY,
        words=f"do not replay as it is: of {ended:,} that were replayed, {group.died_again:,} died again",
        next=_look(group),
    )


def _replays_worked(group: Group, _: datetime) -> Suggestion | None:
    ended = group.fixed + group.died_again
    if ended < _ENOUGH or group.fixed < _MOSTLY * ended:
        return None
    return Suggestion(
        verdict=Verdict.REPLAY,
        words=f"replay: that has fixed {group.fixed:,} of {ended:,} before",
        caution=_caution(group),
        next=_replay(group),
    )


_LOOK_FIRST: dict[str, str] = {
    Reason.UNRECOVERABLE: "look first: its handler said that a retry cannot help; something has to change",
    Reason.REJECTED: "look first: its handler, or the ack policy, did not want it",
    Reason.MAX_DELIVERIES: "look first: it may have taken its workers down; replay one, and watch",
    Reason.CANCELLED: "look first: somebody cancelled it while it ran; replay only what is wanted after all",
    Reason.EXPIRED: "look first: its time was over before it could start; replay only what is still wanted",
}


def _look_first(group: Group, _: datetime) -> Suggestion | None:
    if group.reason not in _LOOK_FIRST:
        return None
    return Suggestion(
        verdict=Verdict.LOOK, words=_LOOK_FIRST[group.reason], caution=_caution(group), next=_look(group)
    )


def _still_happens(group: Group, now: datetime) -> Suggestion | None:
    since = now - group.last_seen
    rising = group.last_day > _RISING * group.day_before and since < _DAY and not _is_burst(group)
    if since > _NOW and not rising:
        return None
    words = f"it was seen {_ago(since)}" if since <= _NOW else "there are more of them every day"
    return Suggestion(
        verdict=Verdict.CAUSE_FIRST,
        words=f"find the cause first: {words}, and a replay would come straight back",
        next=_look(group),
    )


def _burst_is_over(group: Group, now: datetime) -> Suggestion | None:
    if not _is_burst(group):
        return None
    last = _ago(now - group.last_seen)
    return Suggestion(
        verdict=Verdict.TRY_FEW,
        words=f"replay, try {A_FEW} first: most of {group.count:,} came within {_span(group.spread)}, "
        f"the last {last}, as when something was down and is back",
        caution=_caution(group),
        next=_replay(group, limit=A_FEW),
    )


def _if_mended(group: Group, now: datetime) -> Suggestion:
    last = _ago(now - group.last_seen)
    return Suggestion(
        verdict=Verdict.TRY_FEW,
        words=f"replay if the cause is mended, try {A_FEW} first: the last one was seen {last}",
        caution=_caution(group),
        next=_replay(group, limit=A_FEW),
    )


Rule = Callable[["Group", datetime], Suggestion | None]
_RULES: tuple[Rule, ...] = (
    _nothing_left,
    _producer,
    _command_end,
    _replays_failed,
    _replays_worked,
    _look_first,
    _still_happens,
    _burst_is_over,
)


def _is_burst(group: Group) -> bool:
    return group.count >= _MANY and group.spread <= _SHORT


def _caution(group: Group) -> str | None:
    if fleet_of(group.queue) is not None:
        return "a token that may have been applied is left out, unless a read can tell"
    return _TWICE if group.reason in _HANDLER_RAN else None


# -- command lines


def _line(*words: str) -> str:
    return shlex.join(["remuda", *words])


def _replay(group: Group, limit: int | None = None) -> str:
    source = ["--source", group.sources[0]] if len(group.sources) > 1 else []
    few = [] if limit is None else ["--limit", str(limit)]
    return _line("lake", "replay", "--fingerprint", group.fingerprint, *source, *few)


def _look(group: Group) -> str:
    if fleet_of(group.queue) is not None:
        return _show(group)
    name = ["--name", group.name] if group.name else []
    return _line("dlq", "peek", group.queue, "--reason", group.reason, *name)


def _show(group: Group) -> str:
    fleet = fleet_of(group.queue)
    which = [] if fleet in (None, "devices") else ["--fleet", str(fleet)]
    return _line("devices", "show", group.example, *which)


# -- words


def _ago(since: timedelta) -> str:
    return "just now" if since < timedelta(minutes=1) else f"{_span(since)} ago"


def _span(length: timedelta) -> str:
    """A length of time as it is said: the largest unit of which there are two, or a minute."""
    seconds = int(length.total_seconds())
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return "a minute" if seconds >= 60 else f"{max(seconds, 1)} s"
