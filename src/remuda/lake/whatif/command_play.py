"""A recorded command lives again under other deadlines. Pure: `remuda.devices.rules.decide` decides.

What was heard of its k-th hand-over is heard again, so long after the k-th was sent; time passes when the
rules say so. Hand-overs beyond the recorded ones are drawn from how others of their kind fared.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from remuda.devices.command import (
    FAMILIES,
    Answer,
    Command,
    CommandType,
    Device,
    Execution,
    Expectation,
    Family,
    Protocol,
    Purpose,
)
from remuda.devices.happenings import (
    Accepted,
    Acknowledged,
    Answered,
    CallFailed,
    Discarded,
    Dispatched,
    Effect,
    GatewayRefused,
    Happening,
    Look,
    Polled,
    QueueSeen,
    ReplayAsked,
    Send,
    TimePassed,
    Transmitted,
    Withdraw,
    Withdrawn,
)
from remuda.devices.networks.contract import TaskResult
from remuda.devices.rules import decide
from remuda.devices.timings import Timings
from remuda.lake.whatif.command_record import APPLIED, NOT_APPLIED, Event, Handover, Life, Sound, read_lives
from remuda.lake.whatif.survival import Curves, Evidence, Guess, Leaning
from remuda.lake.whatif.trails import DEAD, DELIVERED, NO_END, Lived, Message, Verdict, minutes_of
from remuda.lifecycle import IN_FLIGHT_STATUSES, CommandStatus, EndReason
from remuda.transition import from_ms, to_ms

# Ends that are nobody's deadline: they stay.
KEPT = frozenset({EndReason.CANCELLED, EndReason.SUPERSEDED, EndReason.EXPIRED})

_MOST_STEPS = 2_000
_NOTHING = timedelta(0)
_MOMENT = timedelta(milliseconds=1)
_FAILED_TASK = TaskResult(execution=Execution.EXECUTION_FAILURE)


class Pace(NamedTuple):
    """How long the stages of commands take that go well: until accepted, transmitted, answered."""

    accept: timedelta
    transmit: timedelta
    answer: timedelta


class Plan(msgspec.Struct, frozen=True):
    """What is tried: the same for all commands, and taken to Spark's workers."""

    timings: Timings
    base: Timings
    seed: int
    curves: Curves
    paces: dict[bool, Pace]  # by whether the network pushes


def play_command(plan: Plan, message: Message) -> Verdict:
    """How a command fared, and how it would have."""
    command = new_command(message)
    lives = read_lives(message.records, base=plan.base, is_push=command.is_push)
    recorded = _as_recorded(message, lives)
    if message.outcome == DEAD and message.reason in KEPT:
        return Verdict(recorded, recorded, Evidence.RECORDED, at_worst=False, at_best=False)
    command = _with_expectation(command, lives)
    if not _is_explained(plan, message, command, lives, recorded):
        # What a try would show is then not the work of other deadlines.
        return Verdict(recorded, recorded, Evidence.UNEXPLAINED, at_worst=False, at_best=True)
    tried, evidence = _try(plan, message, command, lives, Leaning.LIKELY)
    at_worst = at_best = tried.outcome == DELIVERED
    if evidence is not Evidence.RECORDED:
        at_worst = _try(plan, message, command, lives, Leaning.WORST)[0].outcome == DELIVERED
        at_best = _try(plan, message, command, lives, Leaning.BEST)[0].outcome == DELIVERED
    return Verdict(recorded, tried, evidence, at_worst, at_best)


def _is_explained(
    plan: Plan, message: Message, command: Command, lives: Sequence[Life], recorded: Lived
) -> bool:
    """Whether the rules, under the deadlines that were in force, make of the record what was recorded."""
    control, _ = _try(replace(plan, timings=plan.base), message, command, lives, Leaning.LIKELY)
    return (control.outcome, control.attempts) == (recorded.outcome, recorded.attempts)


def new_command(message: Message) -> Command:
    """The command as it was added, as far as the trail tells."""
    protocol, _, address = (message.device or "").partition(":")
    added_at = from_ms(message.added_ms)
    return Command(
        id=message.message,
        type=CommandType(message.name or ""),
        device=Device(reference=address, protocol=Protocol(protocol)),
        lane=message.lane or "",
        priority=0,
        created_at=added_at,
        started_at=added_at,
        status_since=added_at,
    )


def _with_expectation(command: Command, lives: Sequence[Life]) -> Command:
    """A token that was read for had an expectation; one that serves stands in for it."""
    purposes = {handover.purpose for life in lives for handover in life.handovers}
    if Purpose.BASELINE in purposes:
        expectation = Expectation(read=CommandType.READ_CREDIT, rises_by=APPLIED - NOT_APPLIED)
    elif Purpose.PROBE in purposes:
        expectation = Expectation(read=CommandType.READ_CREDIT, at_least=APPLIED)
    else:
        return command
    return replace(command, expectation=expectation)


def _as_recorded(message: Message, lives: Sequence[Life]) -> Lived:
    sent = [handover.sent_at for life in lives for handover in life.handovers]
    latency = message.latency_ms if message.outcome == DELIVERED else None
    return Lived(message.outcome, message.reason, len(sent), message.retries, latency, minutes_of(sent))


def _try(
    plan: Plan, message: Message, command: Command, lives: Sequence[Life], leaning: Leaning
) -> tuple[Lived, Evidence]:
    seed = f"{plan.seed}/{message.queue}/{message.message}"
    guess = Guess(plan.curves, message.queue, message.name, seed, leaning)
    story = _Story(plan, command, guess, random.Random(seed))
    reason = story.live(lives)
    is_delivered = reason is None
    lived = Lived(
        outcome=DELIVERED if is_delivered else DEAD,
        reason=reason,
        attempts=len(story.command.attempts),
        retries=story.retries,
        latency_ms=to_ms(story.now) - message.added_ms if is_delivered else None,
        minutes=minutes_of([each.sent_at for each in story.command.attempts]),
    )
    return lived, guess.evidence


class _Story:
    """One command in time. `now` is the moment of what happened last."""

    def __init__(self, plan: Plan, command: Command, guess: Guess, rng: random.Random) -> None:
        self.command = command
        self.now = command.created_at
        self.retries = 0
        self._timings, self._plan, self._guess, self._rng = plan.timings, plan, guess, rng
        self._coming: list[tuple[datetime, int, int, Event | None]] = []  # None: the record ends here
        self._order = 0
        self._life: Life | None = None
        self._sent: list[Handover] = []  # one for each attempt of the command
        self._in_life = 0  # hand-overs so far
        self._given_up = 0  # how often the last one was
        self._dispatch_at = self.now

    def live(self, lives: Sequence[Life]) -> str | None:
        """None when it is delivered, else why it is dead. A replay comes when it came, if it is dead then."""
        for number, life in enumerate(lives):
            if number and life.began_at < self.now:
                break
            self._begin(life, is_replay=number > 0)
            steps = 0
            while not self.command.has_ended:
                self._step()
                steps += 1
                if steps > _MOST_STEPS:
                    return NO_END
            if self.command.status is CommandStatus.DELIVERY_SUCCESSFUL:
                return None
        reason = self.command.reason
        return NO_END if reason is None else reason.value

    def _begin(self, life: Life, *, is_replay: bool) -> None:
        self._life, self._in_life = life, 0
        self.now = life.began_at
        self._dispatch_at = self.now + (life.handovers[0].waited if life.handovers else _NOTHING)
        if is_replay:
            self._feed(ReplayAsked(not_applied=True))

    # -- time

    def _step(self) -> None:
        """What comes next: something heard, or a moment that the rules asked to be called at."""
        own = self._own_moment()
        if self._coming and self._coming[0][0] <= own:
            self.now, _, number, event = heapq.heappop(self._coming)
            if event is None:
                self._record_ends(number)
            else:
                self._hear(number, event)
            return
        self.now = own
        self._feed(Dispatched() if self.command.status is CommandStatus.QUEUED else TimePassed())

    def _own_moment(self) -> datetime:
        command = self.command
        if command.status is CommandStatus.QUEUED:
            return max(self.now, self._dispatch_at)
        if command.status is CommandStatus.DELIVERED_TO_NS and not command.is_push:
            # Polls that find nothing change nothing until the task is too old.
            return max(self.now, command.started_at + self._timings.max_age + _MOMENT)
        return max(self.now, (command.due_at or self.now) + self._lag())

    def _lag(self) -> timedelta:
        """How late the reaper is: as it was, where it was there; else half of its round."""
        status = self.command.status
        if status is CommandStatus.DELIVERED_TO_NS:
            return _NOTHING  # a look comes first
        last = self._sent[-1]
        if status is CommandStatus.TO_RETRY:
            if self._given_up <= len(last.held):
                return last.held[self._given_up - 1]
            if self._life is not None and (self._life_goes_on() or self._life.waited is not None):
                return _NOTHING  # it is part of what the next one waited
        return last.lags.get(status, self._timings.reap / 2)

    def _life_goes_on(self) -> bool:
        return self._life is not None and self._in_life < len(self._life.handovers)

    # -- happenings

    def _feed(self, happening: Happening) -> None:
        was = self.command.status
        decision = decide(self.command, happening, now=self.now, timings=self._timings, rng=self._rng)
        self.command = decision.command
        again = sum(move.entered is CommandStatus.TO_RETRY for move in decision.moves)
        self.retries += again
        self._given_up += again
        for effect in decision.effects:
            self._carry_out(effect)
        if self.command.status is CommandStatus.QUEUED and was is not CommandStatus.QUEUED:
            self._dispatch_at = self.now + self._waits()

    def _waits(self) -> timedelta:
        """How long the next hand-over waits in its lane: as it did, or as the last one did."""
        life = self._life
        if life is None or not life.handovers:
            return _NOTHING
        if self._life_goes_on():
            return life.handovers[self._in_life].waited
        return life.handovers[-1].waited if life.waited is None else life.waited + _MOMENT

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Send):
            self._send(effect.attempt)
        elif isinstance(effect, Look):
            self._look()
        elif isinstance(effect, Withdraw):
            transmitted = self.command.attempts[effect.attempt - 1].transmitted_at is not None
            self._feed(Withdrawn(attempt=effect.attempt, certain=not transmitted))

    def _send(self, number: int) -> None:
        purpose = self.command.attempts[number - 1].purpose
        handover = self._recorded(purpose) or self._drawn(number, purpose)
        self._in_life += 1
        self._given_up = 0
        self._sent.append(handover)
        for event in handover.events:
            self._expect(self.now + event.after, number, event)

    def _expect(self, at: datetime, number: int, event: Event | None) -> None:
        self._order += 1
        heapq.heappush(self._coming, (at, self._order, number, event))

    def _recorded(self, purpose: Purpose) -> Handover | None:
        """How this hand-over of the life went, if there was one like it."""
        life = self._life
        if life is None or not self._life_goes_on():
            return None
        handover = life.handovers[self._in_life]
        if handover.purpose is not purpose:
            return None
        if not handover.is_answered:
            # Nothing came while anybody listened; later than that nobody knows.
            unheard = life.ended_at - handover.sent_at + _MOMENT
            self._expect(self.now + unheard, len(self.command.attempts), None)
        return handover

    def _drawn(self, number: int, purpose: Purpose) -> Handover:
        """A hand-over that was never made."""
        is_push = self.command.is_push
        pace = self._plan.paces[is_push]
        accepted = Event(pace.accept, Sound.ACCEPTED)
        if self._guess.delivers(number):
            events = [accepted]
            if is_push:
                events.append(Event(pace.accept + pace.transmit, Sound.TRANSMITTED))
            over = pace.accept + pace.transmit + pace.answer
            value = None if purpose is Purpose.SEND else self._reading(self.now + over)
            events.append(Event(over, Sound.ANSWER, value=value))
        elif is_push:
            events = [accepted, Event(pace.accept + pace.transmit, Sound.TRANSMITTED)]
        else:
            events = [Event(pace.accept, Sound.CALL_FAILED, certain=True)]
        return Handover(sent_at=self.now, purpose=purpose, waited=_NOTHING, events=events, lags={}, held=[])

    def _reading(self, at: datetime) -> float:
        """What a read would show: that the token was applied, if an earlier attempt was answered by then."""
        for attempt, handover in zip(self.command.attempts, self._sent, strict=False):
            if attempt.purpose is Purpose.SEND and any(
                event.sound in (Sound.ANSWER, Sound.ANSWER_ALONE) and attempt.sent_at + event.after <= at
                for event in handover.events
            ):
                return APPLIED
        return NOT_APPLIED

    def _look(self) -> None:
        """Ask what the network server still holds. Looks that change only the next look are skipped."""
        command = self.command
        last, handover = command.attempts[-1], self._sent[-1]
        if command.status is not CommandStatus.DELIVERED_TO_NS:
            self._feed(QueueSeen(present=frozenset()))
            return
        leaves_after = handover.leaves_after
        gone_at = None if leaves_after is None else last.sent_at + leaves_after
        if gone_at is not None and gone_at <= self.now:
            self.now += handover.lags.get(CommandStatus.DELIVERED_TO_NS, self._timings.reap / 2)
            self._feed(QueueSeen(present=frozenset()))
            return
        until = [command.started_at + self._timings.held_for]
        until += [at for at in (gone_at, self._coming[0][0] if self._coming else None) if at is not None]
        skipped = -((self.now - min(until)) // self._timings.gateway) - 1
        self.now += max(0, skipped) * self._timings.gateway
        self._feed(QueueSeen(present=frozenset({last.external_id or ""})))

    def _record_ends(self, number: int) -> None:
        """Nobody listened for this attempt any longer. If it is still waited for, its fate is not known."""
        command = self.command
        if number == len(command.attempts) and command.status in IN_FLIGHT_STATUSES:
            self._guess.rests_on(Evidence.NO_DATA)
            if self._guess.leaning is Leaning.BEST:
                self._hear(number, Event(_NOTHING, Sound.ANSWER, value=APPLIED))

    # -- what is heard

    def _hear(self, number: int, event: Event) -> None:
        for happening in self._happenings(number, event):
            self._feed(happening)

    def _happenings(self, number: int, event: Event) -> Sequence[Happening]:
        name = str(number)
        match event.sound:
            case Sound.ACCEPTED:
                return (Accepted(attempt=number, external_id=name),)
            case Sound.CALL_FAILED:
                failed = CallFailed(
                    attempt=number, code="recorded", certain=event.certain, final=event.reason
                )
                return (failed,)
            case Sound.TRANSMITTED:
                return (Transmitted(attempt=number),)
            case Sound.ACKED | Sound.NACKED:
                is_ack = event.sound is Sound.ACKED
                return (Acknowledged(attempt=number, acknowledged=is_ack, dedup=name, external_id=name),)
            case Sound.DISCARDED:
                return (Discarded(attempt=number, code="recorded"),)
            case Sound.NOT_NOW:
                return (GatewayRefused(details="recorded"),)
            case Sound.TASK_FAILED:
                return (Polled(attempt=number, result=_FAILED_TASK),)
            case Sound.ANSWER | Sound.ANSWER_ALONE | Sound.REPLY_ALONE:
                return self._answer(number, event)

    def _answer(self, number: int, event: Event) -> Sequence[Happening]:
        number -= event.before and number > 1
        is_send = self.command.attempts[number - 1].purpose is Purpose.SEND
        is_read = event.value is not None
        data = {"value": event.value} if is_read else None
        if not self.command.is_push:
            done = Execution.EXECUTION_SUCCESS if is_send or is_read else Execution.EXECUTION_FAILURE
            return (Polled(attempt=number, result=TaskResult(execution=done, data=data)),)
        name = str(number)
        answer = self._frame(event, data) if is_send else _reading_of(data)
        heard = Answered(attempt=number, dedup=name, answer=answer)
        if event.sound is not Sound.ANSWER:
            return (heard,)
        return (Acknowledged(attempt=number, acknowledged=True, dedup=name, external_id=name), heard)

    def _frame(self, event: Event, data: dict[str, float | None] | None) -> Answer:
        """A read's answer says what it answers to; a bare reply does not, but where it had to."""
        kind, family = self.command.type, FAMILIES[self.command.type]
        speaks = event.sound is Sound.ANSWER_ALONE or (
            family is Family.READ and event.sound is not Sound.REPLY_ALONE
        )
        return Answer(family=family, ok=True, type=kind if speaks else None, data=data)


def _reading_of(data: dict[str, float | None] | None) -> Answer:
    read = CommandType.READ_CREDIT
    return Answer(family=Family.READ, ok=data is not None, type=read, data=data)
