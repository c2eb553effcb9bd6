"""Whatever happens, in whatever order: the rules hold, and a little world is never told an untruth."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from remuda.devices.certainty import unresolved
from remuda.devices.command import (
    Answer,
    Command,
    CommandType,
    Device,
    Execution,
    Family,
    Fate,
    Outcome,
    Purpose,
    pack,
    unpack,
)
from remuda.devices.correlate import Routed, Verdict, asked, route
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
    Look,
    NotLearnt,
    Poll,
    Polled,
    QueueSeen,
    ReplayAsked,
    Send,
    Superseded,
    TimePassed,
    Transmitted,
    Withdraw,
    Withdrawn,
)
from remuda.devices.networks import signals
from remuda.devices.networks.contract import TaskResult
from remuda.devices.placing import change_of, place
from remuda.devices.rules import Decision, decide
from remuda.devices.timings import Timings
from remuda.lifecycle import CommandStatus, EndReason, check_move
from remuda.stores.commands import TIMED_HOMES
from remuda.transition import between_ms
from tests.devices.rules_workbench import (
    DONE,
    EXACT,
    FAILED,
    HOUR,
    LIMIT,
    METER,
    METER_V1,
    METER_V2,
    MINUTE,
    REFUSED,
    RISE,
    SECOND,
    SEED,
    START,
    a_command,
    credit,
    token_answer,
    written,
)

# -- (a) anything at all


REPEATABLE = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))

numbers = st.integers(0, 6)
dedups = st.sampled_from(["", "up-1", "up-2", "up-3"])
names = st.sampled_from(["item-1", "item-2", "item-3"])
answers = st.sampled_from(
    [
        token_answer(),
        token_answer(ok=False),
        written(),
        written(ok=False),
        credit(10),
        credit(60.0),
        credit("not a number"),
        Answer(family=Family.READ, ok=False, type=CommandType.READ_CREDIT, code="D1"),
    ]
)
happenings: st.SearchStrategy[Happening] = st.one_of(
    st.just(Dispatched()),
    st.just(Dispatched()),
    st.just(TimePassed()),
    st.just(TimePassed()),
    st.builds(Accepted, attempt=numbers, external_id=names),
    st.builds(
        CallFailed,
        attempt=numbers,
        code=st.just("UNAVAILABLE"),
        certain=st.booleans(),
        final=st.sampled_from([None, None, None, EndReason.UNKNOWN_DEVICE]),
    ),
    st.builds(Transmitted, attempt=numbers, external_id=st.none() | names),
    st.builds(Acknowledged, attempt=numbers, acknowledged=st.booleans(), dedup=dedups),
    st.builds(Answered, attempt=numbers, dedup=dedups, answer=answers),
    st.builds(Discarded, attempt=numbers, code=st.just("EXPIRED")),
    st.builds(GatewayRefused, details=st.just("TOO_LATE")),
    st.builds(
        QueueSeen, present=st.frozensets(names), adoptable=st.none() | names, attempt=st.none() | numbers
    ),
    st.builds(Polled, attempt=numbers, result=st.sampled_from([None, DONE, FAILED, REFUSED])),
    st.just(NotLearnt(code="UNAVAILABLE")),
    st.just(CancelAsked()),
    st.builds(Withdrawn, attempt=numbers, certain=st.booleans()),
    st.just(Superseded(by="02")),
    st.just(KeyGivenUp()),
    st.builds(
        JoinedBy,
        correlation_id=st.sampled_from([None, "a", "b"]),
        priority=st.integers(0, 100),
        expires_at=st.sampled_from([None, START + MINUTE, START + HOUR]),
    ),
    st.builds(ReplayAsked, not_applied=st.booleans()),
)
pauses = st.sampled_from([0, 0, 1, 10, 12, 20, 60, 900, 4_000, 172_801]).map(lambda s: s * SECOND)
commands = st.builds(
    lambda kind, device, expectation, expires_in: a_command(
        kind,
        device,
        expectation=expectation if kind is CommandType.TOP_UP else None,
        expires_at=None if expires_in is None else START + expires_in,
        key="a key",
    ),
    st.sampled_from([CommandType.READ_CREDIT, CommandType.TURN_ON, CommandType.TOP_UP]),
    st.sampled_from([METER, METER_V1, METER_V2]),
    st.sampled_from([None, RISE, LIMIT]),
    st.sampled_from([None, None, MINUTE, HOUR]),
)


def contradicts_itself(command: Command, happening: Happening) -> bool:
    """A network server that has said for certain that it has nothing of an attempt, and then takes it."""
    if not isinstance(happening, Accepted) or not 1 <= happening.attempt <= len(command.attempts):
        return False
    return command.attempts[happening.attempt - 1].fate is Fate.NOT_SENT


def check_moves(before: Command, decision: Decision, now: datetime) -> None:
    status, since = before.status, before.status_since
    for move in decision.moves:
        check_move(move.left, move.entered)
        assert move.left is status
        assert move.at == now
        assert move.dwell_ms == between_ms(since, now)
        status, since = move.entered, now
    assert decision.command.status is status
    assert decision.command.status_since == since


def check_record(command: Command, timings: Timings) -> None:
    placing = place(command)
    if placing.home in TIMED_HOMES:
        assert command.due_at is not None, "nobody would ever look at it again"
    if command.has_ended:
        assert command.outcome is not None
        assert (command.reason is not None) == (command.status is CommandStatus.DELIVERY_FAILED)
        assert (command.response is not None) == (command.status is CommandStatus.DELIVERY_SUCCESSFUL)
        assert (placing.key, placing.turn, placing.hears) == (None, None, None)
    if command.is_single_use:
        assert len(unresolved(command)) <= 1
    assert command.retries <= (timings.retry.max_attempts or 0)
    assert [each.number for each in command.attempts] == list(range(1, len(command.attempts) + 1))
    assert unpack(pack(command)) == command


def check_step(before: Command, happening: Happening, now: datetime, timings: Timings) -> Decision:
    """Decide once, and again from the same values; what must hold after any happening at all."""
    as_it_was = pack(before)
    decision = decide(before, happening, now=now, timings=timings, rng=random.Random(7))
    assert pack(before) == as_it_was, "a record is a value"
    assert decide(before, happening, now=now, timings=timings, rng=random.Random(7)) == decision
    after = decision.command
    if before.has_ended and not isinstance(happening, ReplayAsked):
        assert after is before
        assert (decision.moves, decision.effects) == ((), ())
    check_moves(before, decision, now)
    check_record(after, timings)
    if not after.has_ended:
        kept = set(place(after).external_ids)
        assert set(place(before).external_ids) <= kept, "a late event could not find its attempt"
    if any(isinstance(each, Send) for each in decision.effects):
        assert not any(each.call_until is not None for each in before.attempts)
    assert change_of(after, decision.moves).base == before.version
    return decision


@given(commands, st.lists(st.tuples(happenings, pauses), max_size=40))
@settings(REPEATABLE, max_examples=500)
def test_whatever_happens_in_whatever_order_the_rules_hold(
    command: Command, told: list[tuple[Happening, timedelta]]
) -> None:
    now = START
    for happening, pause in told:
        now += pause
        if not contradicts_itself(command, happening):
            command = check_step(command, happening, now, SEED).command


@given(commands, st.lists(st.tuples(happenings, pauses), max_size=25))
@settings(REPEATABLE, max_examples=200)
def test_what_comes_twice_in_a_row_makes_no_second_move(
    command: Command, told: list[tuple[Happening, timedelta]]
) -> None:
    now = START
    for happening, pause in told:
        now += pause
        if contradicts_itself(command, happening):
            continue
        command = check_step(command, happening, now, SEED).command
        if isinstance(happening, Accepted | CallFailed | Transmitted | Discarded | Withdrawn | CancelAsked):
            again = decide(command, happening, now=now, timings=SEED, rng=random.Random(7))
            assert again.moves == ()


# -- (b) a little world


class Fortune:
    """What goes wrong, read off a tape of bytes. Nought is luck, and so is what comes after its end."""

    def __init__(self, tape: bytes) -> None:
        self._tape = iter(tape)

    def strikes(self, share: float) -> bool:
        return next(self._tape, 0) >= 256 * (1 - share)

    def within(self, longest: timedelta) -> timedelta:
        return longest * (next(self._tape, 0) / 255)


@dataclass
class Meter:
    """A meter that does what reaches it. It takes a token once."""

    fortune: Fortune
    is_token: bool
    credit: float = 10.0
    applied: int = 0
    used_tokens: int = 0

    def gets(self, purpose: Purpose, kind: CommandType) -> Answer:
        if purpose is not Purpose.SEND or kind is CommandType.READ_CREDIT:
            self.applied += purpose is Purpose.SEND
            return credit(self.credit)
        family = Family.TOKEN if self.is_token else Family.CONTROL
        if self.is_token and self.applied:
            self.used_tokens += 1
            return Answer(family=family, ok=False, code="used")
        if self.fortune.strikes(0.1):
            return Answer(family=family, ok=False, code="no")
        self.applied += 1
        self.credit += 50.0 if self.is_token else 0.0
        return Answer(family=family, ok=True)


@dataclass
class Item:
    """A frame in the network server's queue."""

    id: str
    purpose: Purpose
    pending: bool = False


@dataclass
class Task:
    """A vendor's task. Without a result it goes on."""

    id: str
    purpose: Purpose
    result: TaskResult | None = None


class World:
    """One command, the engines that look after it, and what is on the other side of the wire.

    Engines die between a dispatch and its call, and between a call and its result. The network server
    answers late or not at all; its webhooks are lost, delayed, doubled and out of order.
    """

    def __init__(self, command: Command, tape: bytes) -> None:
        self.command = command
        self.now = START
        self.fortune = Fortune(tape)
        self.meter = Meter(self.fortune, is_token=command.is_single_use)
        self.told: list[tuple[datetime, Happening]] = []
        self._timings = replace(EXACT, max_age=20 * MINUTE)
        self._agenda: list[tuple[datetime, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._names = (f"name-{n}" for n in itertools.count(1))
        self._watching = 0

    def later(self, delay: timedelta, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (self.now + delay, next(self._order), action))

    def run(self) -> None:
        """Until nothing is left to happen, which is after the end of the command."""
        if self.fortune.strikes(0.2):
            stop: Happening = CancelAsked() if self.fortune.strikes(0.5) else Superseded(by="02")
            self.later(self.fortune.within(10 * MINUTE), lambda: self.tell(stop))
        self._dispatch_soon()
        for _ in range(5_000):
            if not self._agenda:
                break
            self.now, _, action = heapq.heappop(self._agenda)
            action()
        assert not self._agenda, "it goes on for ever"
        assert self.command.has_ended, "nobody looks at it any more"

    # -- the engines

    def tell(self, happening: Happening) -> None:
        self.told.append((self.now, happening))
        before = self.command.status
        decision = check_step(self.command, happening, self.now, self._timings)
        self.command = decision.command
        for effect in decision.effects:
            self._carry_out(effect)
        if self.command.status is CommandStatus.QUEUED and before is not CommandStatus.QUEUED:
            self._dispatch_soon()
        self._watch()

    def _dispatch_soon(self) -> None:
        self.later(self.fortune.within(30 * SECOND), lambda: self.tell(Dispatched()))

    def _watch(self) -> None:
        """Look at the command when it is due; one that was looked at is left alone for a while."""
        if place(self.command).home not in TIMED_HOMES or self.command.due_at is None:
            return
        self._watching += 1
        mine, wait = self._watching, self.command.due_at - self.now
        looked = bool(self.told) and isinstance(self.told[-1][1], TimePassed)
        self.later(
            max(wait, 30 * SECOND if looked else timedelta(0)) + self.fortune.within(2 * SECOND),
            lambda: self.tell(TimePassed()) if mine == self._watching else None,
        )

    def _carry_out(self, effect: Effect) -> None:
        if self.fortune.strikes(0.05):
            return  # whoever was about to make the call has died
        match effect:
            case Send():
                self._call(effect.attempt)
            case Look():
                self._answer_call(lambda: self.tell(self.looked()), lambda: self.tell(NotLearnt(code="x")))
            case Poll():
                self._poll(effect.attempt)
            case Withdraw():
                number = effect.attempt
                lost = Withdrawn(attempt=number, certain=False)
                self._answer_call(lambda: self.tell(self.withdrawn(number)), lambda: self.tell(lost))

    def _answer_call(self, answer: Callable[[], None], lose: Callable[[], None]) -> None:
        took = self.fortune.within(30 * SECOND)
        self.later(took, lose if self.fortune.strikes(0.1) else answer)

    def _call(self, number: int) -> None:
        """A call that hands an attempt over: refused, or taken; told, told wrongly, or never told."""
        took = self.fortune.within(54 * SECOND)
        if self.fortune.strikes(0.1):
            final = EndReason.UNKNOWN_DEVICE if self.fortune.strikes(0.1) else None
            failed = CallFailed(attempt=number, code="no", certain=True, final=final)
            self.later(took, lambda: self.tell(failed))
            return
        name, purpose = next(self._names), self.command.attempts[number - 1].purpose
        self.later(self.fortune.within(took), lambda: self.take(name, purpose))
        if self.fortune.strikes(0.1):
            return  # its maker died before it could write down what it was told
        if self.fortune.strikes(0.1):
            self.later(took, lambda: self.tell(CallFailed(attempt=number, code="timeout")))
        else:
            self.later(took, lambda: self.tell(Accepted(attempt=number, external_id=name)))

    # -- what each network has of its own

    def take(self, name: str, purpose: Purpose) -> None:
        raise NotImplementedError

    def looked(self) -> Happening:
        raise NotImplementedError

    def withdrawn(self, number: int) -> Happening:
        raise NotImplementedError

    def _poll(self, number: int) -> None:
        raise NotImplementedError


class PushWorld(World):
    """ChirpStack: a queue for the device, one frame after the other, and webhooks."""

    def __init__(self, command: Command, tape: bytes) -> None:
        super().__init__(command, tape)
        self.queue: list[Item] = []

    def take(self, name: str, purpose: Purpose) -> None:
        self.queue.append(Item(name, purpose))
        if len(self.queue) == 1:
            self._serve()

    def looked(self) -> Happening:
        """As `calling` does it: an item with the same bytes that no attempt knows is that of a lost call."""
        last = self.command.attempts[-1]
        kind = asked(self.command, last.purpose)
        known = {each.external_id for each in self.command.attempts}
        fitting = [
            each.id
            for each in self.queue
            if asked(self.command, each.purpose) is kind and each.id not in known
        ]
        adoptable = fitting[0] if fitting and last.external_id is None else None
        present = frozenset(each.id for each in self.queue)
        return QueueSeen(present=present, adoptable=adoptable, attempt=last.number)

    def withdrawn(self, number: int) -> Happening:
        name = self.command.attempts[number - 1].external_id
        held = [each for each in self.queue if each.id == name and not each.pending]
        self.queue = [each for each in self.queue if each not in held]
        return Withdrawn(attempt=number, certain=bool(held))

    def _serve(self) -> None:
        """The gateway gets to the head of the queue; at times only after long."""
        if self.queue:
            rest = 20 * MINUTE if self.fortune.strikes(0.05) else self.fortune.within(40 * SECOND)
            self.later(rest, self._transmit)

    def _transmit(self) -> None:
        item = self.queue[0] if self.queue else None
        if item is None or item.pending:
            return
        if self.fortune.strikes(0.03):
            self.queue.remove(item)
            self._post(signals.Discarded(**self._signed(), external_id=item.id, code="EXPIRED"))
            self._serve()
            return
        item.pending = True
        self._post(signals.TxAck(**self._signed(), external_id=item.id))
        answer = None
        if not self.fortune.strikes(0.15):
            answer = self.meter.gets(item.purpose, self.command.type)
        if answer is None or self.fortune.strikes(0.15):
            self.later(5 * SECOND + self.fortune.within(MINUTE), lambda: self._give_up(item))
        else:
            said = answer
            self.later(SECOND + self.fortune.within(20 * SECOND), lambda: self._hear(item, said))

    def _give_up(self, item: Item) -> None:
        self.queue.remove(item)
        self._post(signals.Ack(**self._signed(), external_id=item.id, acknowledged=False))
        self._serve()

    def _hear(self, item: Item, answer: Answer) -> None:
        self.queue.remove(item)
        dedup = f"dedup-{item.id}"
        self._post(signals.Ack(**self._signed(), external_id=item.id, acknowledged=True, dedup=dedup))
        self._post(signals.Uplink(**self._signed(), dedup=dedup, data=b"", f_port=1), answer)
        self._serve()

    def _signed(self) -> dict[str, Any]:
        return {"id": "", "device": METER.key, "at": self.now}

    def _post(self, signal: signals.Signal, answer: Answer | None = None) -> None:
        """A webhook: one try, no order."""
        until = self.now + 5 * MINUTE
        for _ in range(2 if self.fortune.strikes(0.1) else 1):
            if not self.fortune.strikes(0.1):
                late = MINUTE if self.fortune.strikes(0.1) else 2 * SECOND
                self.later(self.fortune.within(late), lambda: self._deliver(signal, answer, until))

    def _deliver(self, signal: signals.Signal, answer: Answer | None, until: datetime) -> None:
        hears = place(self.command).hears is not None
        where = route(signal, [self.command] if hears else [], answer)
        if isinstance(where, Routed):
            self.tell(where.happening)
        elif where is Verdict.LATER and self.now < until and not self.command.has_ended:
            self.later(2 * SECOND, lambda: self._deliver(signal, answer, until))


class PullWorld(World):
    """Calin: tasks that end some time, in any order, or never."""

    def __init__(self, command: Command, tape: bytes) -> None:
        super().__init__(command, tape)
        self.tasks: dict[str, Task] = {}

    def take(self, name: str, purpose: Purpose) -> None:
        self.tasks[name] = Task(name, purpose)
        if not self.fortune.strikes(0.03):
            rest = 10 * MINUTE if self.fortune.strikes(0.05) else self.fortune.within(2 * MINUTE)
            self.later(rest, lambda: self._carry_out_task(self.tasks[name]))

    def _carry_out_task(self, task: Task) -> None:
        """A vendor says "failed" whether its frame or the answer was lost."""
        failed = TaskResult(execution=Execution.EXECUTION_FAILURE, code="2")
        if self.fortune.strikes(0.15):
            task.result = failed
            return
        answer = self.meter.gets(task.purpose, self.command.type)
        if self.fortune.strikes(0.15):
            task.result = failed
        elif answer.ok:
            task.result = TaskResult(execution=Execution.EXECUTION_SUCCESS, data=answer.data)
        else:
            task.result = TaskResult(execution=Execution.EXECUTION_FAILURE, refused=True, code=answer.code)

    def _poll(self, number: int) -> None:
        name = self.command.attempts[number - 1].external_id
        assert name is not None

        def answer() -> None:
            self.tell(Polled(attempt=number, result=result))

        result = self.tasks[name].result
        self._answer_call(answer, lambda: self.tell(Polled(attempt=number, problem="reset")))


def check_truth(world: World) -> None:
    """What the record says at the end against what the meter did, also later."""
    outcome, applied = world.command.outcome, world.meter.applied
    if outcome is Outcome.EXECUTED:
        assert applied
    if outcome is Outcome.NOT_EXECUTED:
        assert not applied
    if outcome is Outcome.REFUSED and world.command.family is not Family.READ:
        assert not applied
    if world.command.is_single_use:
        assert world.meter.used_tokens == 0, "it was sent again although it had been applied"


def worlds(device: Device) -> st.SearchStrategy[Command]:
    def command(chosen: tuple[CommandType, bool], expires_in: timedelta | None) -> Command:
        kind, probed = chosen
        return a_command(
            kind,
            device,
            expectation=RISE if probed else None,
            expires_at=None if expires_in is None else START + expires_in,
        )

    chosen = st.sampled_from(
        [
            (CommandType.READ_CREDIT, False),
            (CommandType.TURN_ON, False),
            (CommandType.TOP_UP, False),
            (CommandType.TOP_UP, True),
            (CommandType.TOP_UP, True),
        ]
    )
    return st.builds(command, chosen, st.sampled_from([None, None, None, 2 * MINUTE, HOUR]))


tapes = st.binary(min_size=30, max_size=300)


@given(worlds(METER), tapes)
@settings(REPEATABLE, max_examples=1_000)
def test_push_every_command_ends_and_what_it_says_is_true(command: Command, tape: bytes) -> None:
    world = PushWorld(command, tape)
    world.run()
    check_truth(world)


@given(worlds(METER_V2), tapes)
@settings(REPEATABLE, max_examples=1_000)
def test_pull_every_command_ends_and_what_it_says_is_true(command: Command, tape: bytes) -> None:
    world = PullWorld(command, tape)
    world.run()
    check_truth(world)
