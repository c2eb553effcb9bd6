"""What a command's records tell of each hand-over: what was heard of it, how long after it was sent.

Records show moves, not what was heard; where one move has several causes the deadlines that were in force
(`base`) tell them apart. Deadlines that passed leave no event: the rules find them again by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from remuda.devices.command import Purpose
from remuda.devices.timings import Timings
from remuda.lake.whatif.delays import longest_delay
from remuda.lake.whatif.trails import Record
from remuda.lifecycle import SKIP_RETRY_REASONS, CommandStatus, EndReason
from remuda.transition import from_ms

_NOTHING = timedelta(0)
_MOMENT = timedelta(milliseconds=1)
_IN_FLIGHT = (CommandStatus.SENT_TO_NS, CommandStatus.DELIVERED_TO_NS, CommandStatus.SENT_TO_DEVICE)
_AT_ONCE = ("baseline_read", "probe_not_applied")  # another attempt that is no retry
_SILENT = ("accept_timeout", "gateway_timeout", "device_timeout", "correlation_timeout")

# What a read after or before a token said, for the expectation that stands in for the unknown real one.
NOT_APPLIED, APPLIED = 0.0, 1.0
_READS: Mapping[str, float | None] = {
    "baseline_read": NOT_APPLIED,
    "probe_not_applied": NOT_APPLIED,
    "probe_inconclusive": NOT_APPLIED,
    "probe_applied": APPLIED,
    "baseline_failed": None,
    "probe_failed": None,
}


class Sound(StrEnum):
    """What can be heard of a hand-over."""

    ACCEPTED = "accepted"
    CALL_FAILED = "call_failed"
    TRANSMITTED = "transmitted"
    ACKED = "acked"
    NACKED = "nacked"
    DISCARDED = "discarded"
    NOT_NOW = "not_now"  # push: a gateway would not transmit it
    ANSWER = "answer"  # push: with its ACK; pull: the task has ended
    ANSWER_ALONE = "answer_alone"  # push: the ACK was lost
    REPLY_ALONE = "reply_alone"  # the same, of a reply that does not say what it answers to
    TASK_FAILED = "task_failed"


# What shows that the network server has sent a frame, or thrown it away.
_LEAVES = frozenset(set(Sound) - {Sound.ACCEPTED, Sound.CALL_FAILED, Sound.NOT_NOW})
# How a command can come to wait for its device before its tx-ack.
_ENTRIES: Mapping[str | None, Sound] = {
    "ack_before_txack": Sound.ACKED,
    "answer_before_ack": Sound.ANSWER_ALONE,
}


class Event(NamedTuple):
    """Something heard of a hand-over, so long after it was sent.

    value   what a read for a token told; `reason` why the network server refused for good
    before  it was taken for an answer to the hand-over before: nobody knew that this one had gone out
    """

    after: timedelta
    sound: Sound
    value: float | None = None
    reason: EndReason | None = None
    certain: bool = False
    before: bool = False


class Handover(msgspec.Struct):
    """One hand-over to the network server, as recorded.

    waited      before it, in its lane or for an engine: what no rule asked for
    lags        how much later than its deadline each stage was given up
    held        how much later than its backoff it still waited when something was heard after all
    gone_after  push: from when on the network server no longer held it, though nobody saw it go
    """

    sent_at: datetime
    purpose: Purpose
    waited: timedelta
    events: list[Event]
    lags: dict[CommandStatus, timedelta]
    held: list[timedelta]
    gone_after: timedelta | None = None

    @property
    def leaves_after(self) -> timedelta | None:
        """Push: when the network server no longer holds it, as far as that is known."""
        seen = [event.after for event in self.events if event.sound in _LEAVES]
        seen += [] if self.gone_after is None else [self.gone_after]
        return min(seen, default=None)

    @property
    def is_answered(self) -> bool:
        return any(event.sound in (Sound.ANSWER, Sound.ANSWER_ALONE) for event in self.events)


class Life(msgspec.Struct):
    """A command from its adding, or a replay, to its end. `waited`: in its lane when it ended there."""

    began_at: datetime
    ended_at: datetime
    handovers: list[Handover]
    waited: timedelta | None = None


def read_lives(records: Sequence[Record], *, base: Timings, is_push: bool) -> list[Life]:
    """The lives of a command, with what was heard in each."""
    lives: list[_Reader] = []
    for record in records:
        at = from_ms(record.at_ms)
        if record.left is None or record.left == CommandStatus.DELIVERY_FAILED:
            lives.append(_Reader(at, base, is_push=is_push))
        elif lives:
            lives[-1].read(record, at)
    return [reader.finished() for reader in lives]


class _Reader:
    """Reads the records of one life, in order."""

    def __init__(self, began_at: datetime, base: Timings, *, is_push: bool) -> None:
        self._base, self._is_push = base, is_push
        self._life = Life(began_at, began_at, [])
        self._since = began_at  # when it entered the state that it is in
        self._entry: str | None = None  # and for what reason
        self._tries = 0
        self._slack = _NOTHING  # in TO_RETRY, beyond what the rules ask for

    def finished(self) -> Life:
        self._life.ended_at = self._since
        return self._life

    def read(self, record: Record, at: datetime) -> None:
        dwell = at - self._since
        if record.left == CommandStatus.QUEUED and record.entered != CommandStatus.SENT_TO_NS:
            self._life.waited = dwell + self._slack
        match record.entered:
            case CommandStatus.QUEUED:
                self._slack = self._beyond_backoff(dwell)
            case CommandStatus.SENT_TO_NS:
                self._sent(record, at, dwell)
            case CommandStatus.DELIVERED_TO_NS:
                self._resumed(record, dwell)
                self._heard(at, Sound.ACCEPTED)
            case CommandStatus.SENT_TO_DEVICE:
                self._resumed(record, dwell)
                self._heard(at, _ENTRIES.get(record.reason, Sound.TRANSMITTED))
            case CommandStatus.TO_RETRY:
                self._failed(record, at, dwell)
            case CommandStatus.DELIVERY_SUCCESSFUL:
                self._succeeded(record, at, dwell)
            case CommandStatus.DELIVERY_FAILED:
                self._given_up(record, at, dwell)
        self._since, self._entry = at, record.reason

    def _heard(
        self,
        at: datetime,
        sound: Sound,
        *,
        back: int = 1,
        value: float | None = None,
        reason: EndReason | None = None,
        certain: bool = False,
        before: bool = False,
    ) -> None:
        """Something was heard of the last hand-over, or of one further `back`."""
        handovers = self._life.handovers
        if handovers:
            handover = handovers[-min(back, len(handovers))]
            handover.events.append(Event(at - handover.sent_at, sound, value, reason, certain, before))

    def _correct(self, heard: Sound, **known: Any) -> None:
        """What was heard of the last hand-over is better known now."""
        if self._life.handovers:
            last = self._life.handovers[-1]
            last.events = [
                event._replace(**known) if event.sound is heard else event for event in last.events
            ]

    def _read(self, at: datetime, value: float | None) -> None:
        """An answer to a read for a token; if it had come before its ACK, that was it."""
        self._correct(Sound.ANSWER_ALONE, value=value)
        self._heard(at, Sound.ANSWER, value=value)

    # -- moves

    def _sent(self, record: Record, at: datetime, dwell: timedelta) -> None:
        purpose = Purpose(record.reason) if record.reason in ("baseline", "probe") else Purpose.SEND
        if purpose is Purpose.PROBE:
            self._doubt_the_call()  # it is read for because it may have gone out
        elif purpose is Purpose.SEND:
            self._read_late()
        self._life.handovers.append(
            Handover(sent_at=at, purpose=purpose, waited=dwell + self._slack, events=[], lags={}, held=[])
        )
        self._slack = _NOTHING

    def _read_late(self) -> None:
        """A token goes out though the read before it was given up: an answer to it came after all."""
        last = self._life.handovers[-1] if self._life.handovers else None
        if last is not None and last.purpose is not Purpose.SEND and not last.is_answered:
            self._heard(self._since, Sound.ANSWER, value=NOT_APPLIED)

    def _doubt_the_call(self) -> None:
        """Nobody was certain that the network server had nothing of the last hand-over."""
        self._correct(Sound.CALL_FAILED, certain=False)

    def _resumed(self, record: Record, dwell: timedelta) -> None:
        """It was under way after all: so long it had not gone out again."""
        if record.left == CommandStatus.TO_RETRY:
            self._doubt_the_call()
            if self._life.handovers:
                self._life.handovers[-1].held.append(max(_NOTHING, dwell - self._backoff()))
            self._tries = max(0, self._tries - 1)

    def _failed(self, record: Record, at: datetime, dwell: timedelta) -> None:
        reason = record.reason or ""
        if reason not in _AT_ONCE:
            self._tries += 1
        if reason in _SILENT:
            self._silent(record, at, dwell, reason)
        elif reason in _READS:
            self._read(at, _READS[reason])
        elif reason == "task_failed":
            self._heard(at, Sound.TASK_FAILED)
        else:
            self._refused(record, at, reason)

    def _refused(self, record: Record, at: datetime, reason: str) -> None:
        if record.left == CommandStatus.SENT_TO_NS or not self._is_push:
            self._heard(at, Sound.CALL_FAILED, certain=True)
        else:
            self._heard(at, Sound.DISCARDED if reason == "discarded" else Sound.NACKED)

    def _succeeded(self, record: Record, at: datetime, dwell: timedelta) -> None:
        reason, left = record.reason, record.left
        if reason == "task_failed":
            self._heard(at, Sound.TASK_FAILED)
        elif reason == "probe_applied":
            self._read(at, APPLIED)
        elif reason == "answer_without_ack":
            # It was taken for the answer when no ACK had come within the window.
            if self._entry == "answer_before_ack":
                self._lag(CommandStatus.SENT_TO_DEVICE, dwell - self._base.correlation)
            else:
                self._heard(at - min(dwell, self._base.correlation), Sound.ANSWER_ALONE)
                self._lag(CommandStatus.SENT_TO_DEVICE, _NOTHING)
        elif reason == "late_result" and left == CommandStatus.DELIVERED_TO_NS:
            # Its frame was at the network server: more likely its own answer, and its tx-ack was lost.
            self._heard(at, Sound.ANSWER, before=True)
        elif self._is_push:
            # Only an earlier attempt can be answered before the last one was transmitted.
            is_earlier = left in (CommandStatus.SENT_TO_NS, CommandStatus.DELIVERED_TO_NS) or (
                reason == "late_result" and left != CommandStatus.QUEUED
            )
            self._answered(at, dwell, back=2 if is_earlier else 1)
        else:
            self._heard(at, Sound.ANSWER)

    def _answered(self, at: datetime, dwell: timedelta, *, back: int) -> None:
        if self._entry in _ENTRIES and back == 1:
            self._heard(at, Sound.ANSWER)  # the other half of what had come before
            return
        if back == 1 and dwell > self._base.device:
            # Half of it must have come in time, or the wait would have been over.
            self._heard(at - (dwell - self._base.device), Sound.ACKED)
        self._heard(at, Sound.ANSWER, back=back)

    def _given_up(self, record: Record, at: datetime, dwell: timedelta) -> None:
        reason, left = record.reason or "", record.left or ""
        if reason in SKIP_RETRY_REASONS:
            self._heard(at, Sound.CALL_FAILED, certain=True, reason=EndReason(reason))
        elif reason == EndReason.OUTCOME_UNKNOWN:
            self._doubt_the_call()
        elif reason == EndReason.RETRIES_EXHAUSTED and left in _IN_FLIGHT:
            self._last_straw(record, at, dwell)

    def _last_straw(self, record: Record, at: datetime, dwell: timedelta) -> None:
        """Out of retries: what the last attempt failed of is not said. A deadline, if that had passed."""
        if record.left == CommandStatus.SENT_TO_NS:
            self._heard(at, Sound.CALL_FAILED, certain=True)  # a deadline would have waited for the call
        elif not self._is_push:
            is_send = not self._life.handovers or self._life.handovers[-1].purpose is Purpose.SEND
            self._heard(at, Sound.TASK_FAILED if is_send else Sound.ANSWER)  # a read that told nothing
        elif record.left == CommandStatus.DELIVERED_TO_NS and dwell >= self._base.gateway:
            self._silent(record, at, dwell, "gateway_timeout")
        elif record.left == CommandStatus.SENT_TO_DEVICE and dwell >= self._window():
            self._silent(record, at, dwell, "device_timeout")
        else:
            self._refused(record, at, "")

    # -- deadlines

    def _window(self) -> timedelta:
        """How long the device had: less where half of an answer was there before the tx-ack."""
        return self._base.correlation if self._entry in _ENTRIES else self._base.device

    def _silent(self, record: Record, at: datetime, dwell: timedelta, reason: str) -> None:
        base = self._base
        if reason == "accept_timeout":
            self._lag(CommandStatus.SENT_TO_NS, dwell - base.accept)
        elif reason == "gateway_timeout":
            self._vanished(at, dwell)
        elif reason == "correlation_timeout":
            if self._entry in _ENTRIES:
                self._lag(CommandStatus.SENT_TO_DEVICE, dwell - base.correlation)
            else:
                self._heard(at - min(dwell, base.correlation), Sound.ACKED)
                self._lag(CommandStatus.SENT_TO_DEVICE, _NOTHING)
        else:
            self._device_silent(at, dwell)

    def _device_silent(self, at: datetime, dwell: timedelta) -> None:
        """A reply without its ACK sets the deadline anew; if it does not speak for itself, that is all."""
        window = self._window()
        if self._entry == "answer_before_ack":
            self._correct(Sound.ANSWER_ALONE, sound=Sound.REPLY_ALONE)
        elif dwell < window:
            self._heard(at - min(dwell, self._base.correlation), Sound.REPLY_ALONE)
        self._lag(CommandStatus.SENT_TO_DEVICE, dwell - window)

    def _lag(self, status: CommandStatus, lag: timedelta) -> None:
        if self._life.handovers:
            self._life.handovers[-1].lags[status] = max(_NOTHING, lag)

    def _vanished(self, at: datetime, dwell: timedelta) -> None:
        """The last look but one still saw it; it went between the two."""
        between = self._base.gateway
        lag = dwell - max(1, round(dwell / between)) * between
        if dwell < between:
            between = min(dwell, self._base.look_again)
            self._heard(at - between, Sound.NOT_NOW)  # else nobody would have looked so soon
        self._lag(CommandStatus.DELIVERED_TO_NS, lag)
        if self._life.handovers:
            last = self._life.handovers[-1]
            last.gone_after = at - last.sent_at - between / 2

    def _beyond_backoff(self, dwell: timedelta) -> timedelta:
        """How much longer it waited for its retry than the rules asked for."""
        if self._entry in _AT_ONCE or not self._life.handovers:
            return dwell
        last = self._life.handovers[-1]
        expected = self._backoff()
        if not any(event.sound in (Sound.ACCEPTED, Sound.CALL_FAILED) for event in last.events):
            call_over = last.sent_at + self._base.call - self._since
            if dwell < call_over:
                self._call_has_ended(last)
            else:
                expected = max(expected, call_over)
        return max(_NOTHING, dwell - expected)

    def _backoff(self) -> timedelta:
        return longest_delay(self._base.retry, max(1, self._tries))

    def _call_has_ended(self, last: Handover) -> None:
        """It could go out again: its call, of which no record tells, must have ended by then."""
        if last.events:
            # With the first thing that was heard of it: at another time there would be a record.
            last.events.insert(1, Event(last.events[0].after, Sound.ACCEPTED))
        else:
            last.events.append(Event(self._since - last.sent_at + _MOMENT, Sound.CALL_FAILED))
