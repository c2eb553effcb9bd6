"""Random histories: whatever is done to a fleet, the store and the one in memory tell the same story."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from remuda.clock import VirtualClock
from remuda.lifecycle import COMMAND_MOVES
from remuda.stores.commands import (
    TIMED_HOMES,
    Change,
    Claimed,
    CommandStore,
    Home,
    Pace,
    StoredSignal,
)
from remuda.stores.memory_commands import MemoryCommands
from remuda.stores.opening_commands import open_commands
from tests.commands.workbench import HOUR, MINUTE, SECOND, STATUSES, WHO, move, next_of, signal, trail

ENOUGH = 1_000
# Each lane has one pace at all times, as an engine has it.
PACES = (
    Pace(prefix="locked:", every=2 * SECOND),
    Pace(prefix="duty:", duty=0.1, burst=SECOND),
    Pace(prefix="slots:", slots=2, slot_for=MINUTE),
    Pace(prefix="free:"),
)
LANES = ("locked:1", "locked:2", "duty:1", "slots:1", "free:1", "unfit:1")
DEVICES = ("dev-1", "dev-2", "dev-3")
KEYS = ("key-1", "key-2", "key-3")
SIGNALS = tuple(f"s{n}" for n in range(6))
MOMENTS = st.sampled_from([0, 1, 2, 29, 30, 60, 3_600]).map(lambda seconds: timedelta(seconds=seconds))
HOLDS = st.sampled_from([SECOND, MINUTE])
FLEETS = itertools.count()
NEW = st.fixed_dictionaries(
    {
        "lane": st.sampled_from(LANES),
        "device": st.sampled_from(DEVICES),
        "priority": st.integers(-1, 2),
        "takes_turns": st.booleans(),
        "key": st.none() | st.sampled_from(KEYS),
        "hears": st.booleans(),
        "expires_in": st.none() | st.sampled_from([2 * SECOND, MINUTE, HOUR]),
        "airtime_ms": st.sampled_from([0, 50, 100]),
    }
)


class Machine(RuleBasedStateMachine):
    """Does everything to both. The subclass says where the store lives."""

    url = "sqlite://"

    @initialize()
    def begin(self) -> None:
        self.runner = asyncio.Runner()
        self.clock = VirtualClock()
        self.model = MemoryCommands(clock=self.clock)
        self.store = open_commands(self.url, fleet=f"model-{next(FLEETS)}", clock=self.clock)
        self.asked: dict[str, dict[str, Any]] = {}  # what each command is like, by its id
        self.last_seen = 0
        self.runner.run(self.store.open())

    def teardown(self) -> None:
        with contextlib.suppress(AttributeError):
            self.runner.run(self.store.close())
            self.runner.close()

    @property
    def now(self) -> datetime:
        return self.clock.now()

    def ask(self, question: Callable[[CommandStore], Awaitable[Any]]) -> tuple[Any, Any]:
        """The answers of the model and of the store."""

        async def both() -> tuple[Any, Any]:
            return await question(self.model), await question(self.store)

        return self.runner.run(both())

    def agree(self, question: Callable[[CommandStore], Awaitable[Any]]) -> Any:
        """The answer of both."""
        by_model, by_store = self.ask(question)
        assert by_store == by_model
        return by_model

    def write(self, changes: list[Change], *, whole: bool = False) -> list[bool]:
        verdicts: list[bool] = self.agree(lambda store: store.write(changes, who=WHO, whole=whole))
        return verdicts

    # -- writing

    @rule(wanted=st.lists(NEW, min_size=1, max_size=3), whole=st.booleans())
    def add(self, wanted: list[dict[str, Any]], whole: bool) -> None:
        changes = []
        for like in wanted:
            command_id = f"C{len(self.asked):04}"
            expires_in = like["expires_in"]
            expires_at = None if expires_in is None else self.now + expires_in
            self.asked[command_id] = {**like, "expires_at": expires_at}
            changes.append(self.next_record(command_id, 0, Home.LANE))
        self.write(changes, whole=whole)

    @precondition(lambda self: self.model.placings.rows)
    @rule(data=st.data(), whole=st.booleans())
    def change(self, data: st.DataObject, whole: bool) -> None:
        """Any commands, each to any home, now and then from a version that is no longer the latest."""
        ids = data.draw(
            st.lists(st.sampled_from(sorted(self.model.placings.rows)), min_size=1, max_size=3, unique=True)
        )
        changes: list[Change] = []
        turns: set[str] = set()
        for command_id in ids:
            # What two of one turn do within one call depends on their order, and has tests of its own.
            device = self.asked[command_id]["device"]
            if device in turns:
                continue
            turns.add(device)
            version = self.model.placings.rows[command_id].stored.version
            base = version - data.draw(st.sampled_from([0, 0, 0, 0, 1]))
            home = data.draw(st.sampled_from([*Home, Home.ENDED]))
            changes.append(
                self.next_record(
                    command_id,
                    base,
                    home,
                    keeps=data.draw(st.booleans()),
                    due_in=data.draw(MOMENTS),
                    named=data.draw(st.booleans()),
                )
            )
        self.write(changes, whole=whole)

    def next_record(
        self,
        command_id: str,
        base: int,
        home: Home,
        *,
        keeps: bool = True,
        due_in: timedelta = SECOND,
        named: bool = False,
    ) -> Change:
        like = self.asked[command_id]
        row = self.model.placings.rows.get(command_id)
        known = row.placing.external_ids if row is not None else ()
        was = row.placing.status if row is not None else None
        entered = STATUSES[home]
        on_its_way = home not in (Home.LANE, Home.ENDED)
        expires_at = like["expires_at"] if keeps and home is not Home.ENDED else None
        if home is Home.LANE and expires_at is not None and expires_at <= self.now:
            expires_at = None  # an engine would have ended it
        has_slot = command_id in self.model.placings.lane(like["lane"]).slots
        return next_of(
            command_id,
            base,
            home,
            lane=like["lane"],
            priority=like["priority"],
            device=like["device"],
            airtime_ms=like["airtime_ms"],
            due_at=None if home is Home.LANE else self.now if home is Home.ENDED else self.now + due_in,
            turn=self.turn_for(command_id, home, keeps=keeps),
            key=like["key"] if keeps and home is not Home.ENDED else None,
            hears=like["device"] if like["hears"] and keeps else None,
            uses_slot=has_slot and on_its_way and keeps,
            expires_at=expires_at,
            external_ids=(*known, f"{command_id}/{len(known)}") if named else known,
            correlation_ids=(f"order-{like['priority']}",),
            moves=(move(was, entered, at=self.now, attempt=base, reason="why"),)
            if (was, entered) in COMMAND_MOVES
            else (),
        )

    def turn_for(self, command_id: str, home: Home, *, keeps: bool) -> str | None:
        like = self.asked[command_id]
        if not like["takes_turns"] or home is Home.ENDED or (home is not Home.LANE and not keeps):
            return None
        device: str = like["device"]
        turn = self.model.placings.turns.get(device)
        # No rule lets two of one turn be on their way at once.
        others = home is not Home.LANE and turn is not None and turn.away - {command_id}
        return None if others else device

    # -- working

    @rule(duration=MOMENTS)
    def wait(self, duration: timedelta) -> None:
        """Time passes; whatever expires in its lane meanwhile is ended, as an engine does it."""
        self.clock.advance(duration)
        for command_id in self.due([], hold=SECOND):
            row = self.model.placings.rows[command_id]
            if row.home is Home.LANE:
                assert self.write([self.next_record(command_id, row.stored.version, Home.ENDED)]) == [True]

    @rule(hold=HOLDS)
    def claim(self, hold: timedelta) -> None:
        """From all lanes, as much as there is."""
        by_model, by_store = self.ask(lambda store: store.claim(PACES, limit=ENOUGH, hold=hold))
        self.compare_claims(by_model, by_store)
        assert by_store.next_at == by_model.next_at

    @rule(lane=st.sampled_from(LANES), limit=st.integers(1, 3), hold=HOLDS)
    def claim_some(self, lane: str, limit: int, hold: timedelta) -> None:
        """From one lane: which of several are served first under a limit is left to the store."""
        pace = next((each for each in PACES if lane.startswith(each.prefix)), Pace(prefix=""))
        paces = [
            Pace(
                prefix=lane,
                every=pace.every,
                duty=pace.duty,
                burst=pace.burst,
                slots=pace.slots,
                slot_for=pace.slot_for,
            )
        ]
        self.compare_claims(*self.ask(lambda store: store.claim(paces, limit=limit, hold=hold)))

    def compare_claims(self, by_model: Claimed, by_store: Claimed) -> None:
        for lane in LANES:
            mine, theirs = (
                [each for each in found.commands if self.asked[each.id]["lane"] == lane]
                for found in (by_model, by_store)
            )
            assert theirs == mine, lane

    @rule(homes=st.lists(st.sampled_from(TIMED_HOMES), unique=True), hold=HOLDS)
    def look(self, homes: list[Home], hold: timedelta) -> None:
        self.due(homes, hold=hold)

    def due(self, homes: list[Home], *, hold: timedelta) -> list[str]:
        by_model, by_store = self.ask(lambda store: store.due(homes, limit=ENOUGH, hold=hold))
        assert by_id(by_store) == by_id(by_model)
        return [each.id for each in by_model]

    @rule(lane=st.sampled_from(LANES), until=st.none() | MOMENTS)
    def hold_lane(self, lane: str, until: timedelta | None) -> None:
        moment = None if until is None else self.now + until
        self.agree(lambda store: store.hold_lane(lane, until=moment, why="a reason"))

    @rule(lane=st.sampled_from(LANES))
    def release_lane(self, lane: str) -> None:
        self.agree(lambda store: store.release_lane(lane))

    # -- signals and ends

    @rule(ids=st.lists(st.sampled_from(SIGNALS), min_size=1, max_size=4))
    def keep_signals(self, ids: list[str]) -> None:
        signals: list[StoredSignal] = [signal(each, at=self.now) for each in ids]
        self.agree(lambda store: store.keep_signals(signals, remember=MINUTE))

    @rule(hold=HOLDS, data=st.data())
    def take_signals(self, hold: timedelta, data: st.DataObject) -> None:
        by_model, by_store = self.ask(lambda store: store.take_signals(limit=ENOUGH, hold=hold))
        assert by_id(by_store) == by_id(by_model)
        done, later = [], []
        for each in by_model:
            fate = data.draw(st.sampled_from(["done", "later", "forgotten"]))
            if fate == "done":
                done.append(each.id)
            elif fate == "later":
                later.append((each.id, self.now + data.draw(MOMENTS)))
        self.agree(lambda store: store.settle_signals(done=done, later=later))

    @rule(hold=HOLDS, share=st.sampled_from([0, 1, 2]))
    def publish(self, hold: timedelta, share: int) -> None:
        by_model, by_store = self.ask(lambda store: store.take_ended(limit=ENOUGH, hold=hold))
        assert by_id(by_store) == by_id(by_model)
        ids = [each.id for each in by_id(by_model)]
        self.agree(lambda store: store.mark_published(ids[: len(ids) * share // 2]))

    @rule(age=st.sampled_from([MINUTE, HOUR]))
    def prune(self, age: timedelta) -> None:
        self.ask(lambda store: store.prune(ended_before=self.now - age, limit=ENOUGH))

    @rule(back=st.integers(0, 10))
    def trim(self, back: int) -> None:
        self.agree(lambda store: store.trim_transitions(up_to=max(0, self.last_seen - back)))

    # -- what holds at all times

    @invariant()
    def every_command_is_the_same(self) -> None:
        found = self.agree(lambda store: store.commands(limit=ENOUGH))
        assert self.agree(lambda store: store.load(sorted(self.asked))) == {each.id: each for each in found}

    @invariant()
    def what_commands_hold_on_to_is_the_same(self) -> None:
        self.agree(lambda store: store.owners(KEYS))
        by_model, by_store = self.ask(lambda store: store.hearers(DEVICES))
        assert {device: found for device, found in by_store.items() if found} == by_model
        names = [name for row in self.model.placings.rows.values() for name in row.placing.external_ids]
        gone = [f"{command_id}/0" for command_id in self.asked if command_id not in self.model.placings.rows]
        self.agree(lambda store: store.find([*names, *gone]))

    @invariant()
    def the_lanes_are_the_same(self) -> None:
        by_model, by_store = self.ask(lambda store: store.lanes())
        assert [self.shown(each) for each in by_store] == [self.shown(each) for each in by_model]

    def shown(self, lane: Any) -> tuple[object, ...]:
        opens_at = lane.opens_at
        if lane.lane.startswith("duty:") or (opens_at is not None and opens_at <= self.now):
            opens_at = None  # when a burst is used up depends on the pace, which a lane does not know
        return lane.lane, lane.waiting, lane.slots_used, opens_at, lane.held_until, lane.held_why

    @invariant()
    def the_numbers_are_the_same(self) -> None:
        by_model, by_store = self.ask(lambda store: store.stats())
        shown = {status: count for status, count in by_store.by_status.items() if count}
        assert (shown, by_store.signals, by_store.unpublished) == (
            by_model.by_status,
            by_model.signals,
            by_model.unpublished,
        )

    @invariant()
    def the_trail_is_the_same(self) -> None:
        by_model, by_store = self.ask(lambda store: trail(store))
        assert [told(each) for each in by_store] == [told(each) for each in by_model]
        if by_model:
            self.last_seen = by_model[-1].seq


def told(transition: Any) -> tuple[object, ...]:
    """A transition but for its fleet's name."""
    return (
        transition.seq,
        transition.message,
        transition.left,
        transition.entered,
        transition.at,
        transition.dwell,
        transition.attempt,
        transition.reason,
        transition.who,
    )


def by_id(found: Any) -> Any:
    return sorted(found, key=lambda each: each.id)


def run(url: str, *, examples: int, steps: int) -> None:
    machine = type("Machine", (Machine,), {"url": url})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
            database=None,
        ),
    )


def test_random_histories_are_the_same_on_every_store(commands_url: str) -> None:
    run(commands_url, examples=25, steps=30)
