"""Whatever happens, in whatever order: the rules hold, and a little world is never told an untruth."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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


REPEATABLE = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)

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
    st.builds(QueueSeen, present=st.frozensets(names), adoptable=st.none() | names),
    st.builds(Polled, attempt=numbers, result=st.sampled_from([None, DONE, FAILED, REFUSED])),
    st.just(NotLearnt(code="UNAVAILABLE")),
    st.just(CancelAsked()),
    st.builds(Withdrawn, attempt=numbers, certain=st.booleans()),
    st.just(Superseded(by="02")),
    st.just(KeyGivenUp()),
    st.builds(JoinedBy, correlation_id=st.sampled_from([None, "a", "b"]), priority=st.integers(0, 100)),
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
        command = check_step(command, happening, now, SEED).command if not contradicts_itself(
            command, happening
        ) else command
        if isinstance(happening, Accepted | CallFailed | Transmitted | Discarded | Withdrawn | CancelAsked):
            again = decide(command, happening, now=now, timings=SEED, rng=random.Random(7))
            assert again.moves == ()
