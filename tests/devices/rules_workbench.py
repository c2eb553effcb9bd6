"""The words of the tests of the rules: a command, what happens to it and when, and what came of it."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import replace

from remuda.clock import VirtualClock
from remuda.devices.command import (
    Answer,
    Attempt,
    Command,
    CommandType,
    Device,
    Execution,
    Expectation,
    Family,
    Gateway,
    Protocol,
)
from remuda.devices.fleet import Fleet
from remuda.devices.happenings import (
    Accepted,
    Acknowledged,
    Answered,
    Dispatched,
    Effect,
    Happening,
    Look,
    Polled,
    QueueSeen,
    Send,
    TimePassed,
    Transmitted,
)
from remuda.devices.networks.contract import TaskResult
from remuda.devices.rules import Decision, decide
from remuda.devices.timings import Timings
from remuda.lifecycle import CommandStatus
from remuda.retry import Exponential
from remuda.stores.commands import Move
from remuda.stores.memory_commands import MemoryCommands

START = datetime(2030, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)

METER = Device(reference="47003333771", protocol=Protocol.LORAWAN, gateway=Gateway(id="gw-1"))
METER_V1 = Device(reference="47003333771", protocol=Protocol.API_V1, gateway=Gateway(id="gw-1"))
METER_V2 = Device(reference="47003333771", protocol=Protocol.API_V2, gateway=Gateway(id="gw-1"))

SEED = Timings()
# The same without jitter, so that a test can say to the second when a retry is due.
EXACT = replace(
    SEED, retry=Exponential(initial=2 * SECOND, cap=HOUR, max_attempts=SEED.retry.max_attempts or 12)
)

RISE = Expectation(read=CommandType.READ_CREDIT, rises_by=50.0)
LIMIT = Expectation(read=CommandType.READ_POWER_LIMIT, at_least=100.0)

OK = Answer(family=Family.READ, ok=True, type=CommandType.READ_CREDIT, data={"value": 12.5})
DONE = TaskResult(execution=Execution.EXECUTION_SUCCESS, data={"value": 12.5})
FAILED = TaskResult(execution=Execution.EXECUTION_FAILURE, code="2")
REFUSED = TaskResult(execution=Execution.EXECUTION_FAILURE, refused=True, code="3")


def a_command(kind: CommandType = CommandType.READ_CREDIT, device: Device = METER, **options: Any) -> Command:
    """A new command, as it waits in its lane."""
    usual: dict[str, Any] = {
        "id": "01",
        "lane": "lorawan_network:default" if device.protocol.is_push else "gateway:gw-1",
        "priority": 10,
        "created_at": START,
        "started_at": START,
        "status_since": START,
    }
    return Command(type=kind, device=device, **{**usual, **options})


def token_answer(*, ok: bool = True) -> Answer:
    return Answer(family=Family.TOKEN, ok=ok, code=None if ok else "bad")


def written(*, ok: bool = True) -> Answer:
    """The bare reply to a switch or a setting."""
    return Answer(family=Family.CONTROL, ok=ok)


def credit(value: Any) -> Answer:
    return Answer(family=Family.READ, ok=True, type=CommandType.READ_CREDIT, data={"value": value})


def happen(
    command: Command,
    happening: Happening,
    *,
    at: datetime = START,
    timings: Timings = EXACT,
    rng: random.Random | None = None,
) -> Decision:
    """What the rules make of one happening."""
    return decide(command, happening, now=at, timings=timings, rng=rng or random.Random(1))


class Story:
    """One command in time: what happens to it, one thing after the other."""

    def __init__(
        self, command: Command | None = None, *, timings: Timings = EXACT, rng: random.Random | None = None
    ) -> None:
        self.command = command or a_command()
        self.timings = timings
        self.now = START
        self.moves: list[Move] = []
        self.effects: tuple[Effect, ...] = ()
        self._rng = rng or random.Random(1)

    def then(self, *happenings: Happening, after: timedelta = timedelta(0)) -> Story:
        """Let things happen at once, `after` a while; `effects` are those of all of them."""
        self.now += after
        self.effects = ()
        for happening in happenings:
            decision = decide(self.command, happening, now=self.now, timings=self.timings, rng=self._rng)
            self.command = decision.command
            self.moves += decision.moves
            self.effects += decision.effects
        return self

    def wait(self, duration: timedelta) -> Story:
        """Time passes, and somebody looks."""
        return self.then(TimePassed(), after=duration)

    def wait_till_due(self) -> Story:
        """Time passes until its next deadline, and somebody looks."""
        assert self.command.due_at is not None
        return self.wait(max(timedelta(0), self.command.due_at - self.now))

    # -- looking

    @property
    def status(self) -> CommandStatus:
        return self.command.status

    @property
    def last(self) -> Attempt:
        return self.command.attempts[-1]

    @property
    def due_in(self) -> timedelta | None:
        return None if self.command.due_at is None else self.command.due_at - self.now

    @property
    def last_reason(self) -> str | None:
        return self.moves[-1].reason

    @property
    def reasons(self) -> list[str | None]:
        return [each.reason for each in self.moves]

    @property
    def pairs(self) -> list[tuple[CommandStatus | None, CommandStatus]]:
        return [(each.left, each.entered) for each in self.moves]

    @property
    def sends(self) -> int:
        return len(self.command.attempts)

    # -- the usual ways

    def dispatched(self) -> Story:
        self.then(Dispatched())
        assert self.effects == (Send(attempt=self.sends),)
        return self

    def accepted(self, *, after: timedelta = SECOND) -> Story:
        """Dispatched, and taken by the network server as `item-<number>`."""
        self.dispatched()
        return self.then(Accepted(attempt=self.sends, external_id=f"item-{self.sends}"), after=after)

    def transmitted(self) -> Story:
        self.accepted()
        return self.then(Transmitted(attempt=self.sends), after=SECOND)

    def answered(self, answer: Answer, *, acknowledged: bool = True) -> Story:
        """Sent, transmitted, and answered with an ACK and its uplink."""
        self.transmitted()
        dedup = f"up-{self.sends}"
        if acknowledged:
            self.then(Acknowledged(attempt=self.sends, acknowledged=True, dedup=dedup), after=SECOND)
        return self.then(Answered(attempt=self.sends, dedup=dedup, answer=answer))

    def polled(self, result: TaskResult | None) -> Story:
        return self.then(Polled(attempt=self.sends, result=result))

    def released(self) -> Story:
        """Its backoff passes; where the network server's queue has to be looked at, nothing is there."""
        while self.status is CommandStatus.TO_RETRY:
            self.wait_till_due()
            if Look() in self.effects:
                self.then(QueueSeen(present=frozenset()))
        assert self.status is CommandStatus.QUEUED
        return self

    def unanswered(self) -> Story:
        """An attempt that was transmitted, and to which the device said nothing in time."""
        return self.transmitted().wait_till_due()


def push(kind: CommandType = CommandType.READ_CREDIT, **options: Any) -> Story:
    return Story(a_command(kind, METER, **options))


def pull(kind: CommandType = CommandType.READ_CREDIT, **options: Any) -> Story:
    return Story(a_command(kind, METER_V2, **options))


def a_fleet(clock: VirtualClock, store: MemoryCommands | None = None, **options: Any) -> Fleet:
    """A program of its own on a store in memory."""
    options.setdefault("timings", EXACT)
    return Fleet(store or MemoryCommands(clock=clock), rng=random.Random(1), **options)
