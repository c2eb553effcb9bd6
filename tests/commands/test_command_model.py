"""Random histories: whatever is done to a fleet, the store and the one in memory tell the same story."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
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
LANES = ("locked:1", "duty:1", "slots:1", "free:1", "unfit:1")
DEVICES = ("dev-1", "dev-2", "dev-3")
KEYS = ("key-1", "key-2", "key-3")
SIGNALS = tuple(f"s{n}" for n in range(6))
SPANS = tuple(timedelta(seconds=seconds) for seconds in (0, 1, 2, 29, 30, 60, 3_600))
HOMES = (Home.LANE, *(home for home in Home for _ in range(2 if home in (Home.LANE, Home.ENDED) else 1)))
FLEETS = itertools.count()


def any_command(rng: random.Random) -> dict[str, Any]:
    """What a new command is like."""
    return {
        "lane": rng.choice(LANES),
        "device": rng.choice(DEVICES),
        "priority": rng.randint(-1, 2),
        "takes_turns": rng.random() < 0.7,
        "key": rng.choice((None, None, *KEYS)),
        "hears": rng.random() < 0.5,
        "expires_in": rng.choice((None, None, 2 * SECOND, MINUTE, HOUR)),
        "airtime_ms": rng.choice((0, 50, 100)),
    }


class Pair:
    """A store and its model, to which the same is done. Each step takes its chance from a seeded source."""

    def __init__(self, url: str) -> None:
        self.runner = asyncio.Runner()
        self.clock = VirtualClock()
        self.model = MemoryCommands(clock=self.clock)
        self.store = open_commands(url, fleet=f"model-{next(FLEETS)}", clock=self.clock)
        self.asked: dict[str, dict[str, Any]] = {}  # what each command is like, by its id
        self.last_seen = 0
        self.runner.run(self.store.open())

    def close(self) -> None:
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

    def add(self, rng: random.Random) -> None:
        changes = []
        for _ in range(rng.randint(1, 6)):
            like = any_command(rng)
            command_id = f"C{len(self.asked):04}"
            expires_at = None if like["expires_in"] is None else self.now + like["expires_in"]
            self.asked[command_id] = {**like, "expires_at": expires_at}
            changes.append(self.next_record(command_id, 0, Home.LANE))
        self.write(changes, whole=rng.random() < 0.1)

    def change(self, rng: random.Random) -> None:
        """Any commands, each to any home, now and then from a version that is no longer the latest."""
        ids = sorted(self.model.placings.rows)
        self.change_some(rng, rng.sample(ids, min(len(ids), rng.randint(1, 4))))

    def go_on(self, rng: random.Random) -> None:
        """Commands that are on their way, to any home."""
        rows = self.model.placings.rows
        away = sorted(command_id for command_id, row in rows.items() if row.home in TIMED_HOMES)
        self.change_some(rng, rng.sample(away, min(len(away), rng.randint(1, 3))))

    def change_some(self, rng: random.Random, ids: list[str]) -> None:
        changes: list[Change] = []
        devices: set[str] = set()
        for command_id in ids:
            # What two of one turn do within one call depends on their order, and has tests of its own.
            device = self.asked[command_id]["device"]
            if device in devices:
                continue
            devices.add(device)
            version = self.model.placings.rows[command_id].stored.version
            changes.append(
                self.next_record(
                    command_id,
                    version - (rng.random() < 0.1),
                    rng.choice(HOMES),
                    keeps=rng.random() < 0.7,
                    due_in=rng.choice(SPANS),
                    named=rng.random() < 0.3,
                )
            )
        self.write(changes, whole=rng.random() < 0.3)

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

    def wait(self, rng: random.Random) -> None:
        """Time passes; whatever expires in its lane meanwhile is ended, as an engine does it."""
        self.clock.advance(rng.choice(SPANS))
        for command_id in self.due([], hold=SECOND):
            row = self.model.placings.rows[command_id]
            if row.home is Home.LANE:
                assert self.write([self.next_record(command_id, row.stored.version, Home.ENDED)]) == [True]

    def claim(self, rng: random.Random) -> None:
        """From all lanes, as much as there is."""
        hold = rng.choice((SECOND, MINUTE))
        by_model, by_store = self.ask(lambda store: store.claim(PACES, limit=ENOUGH, hold=hold))
        self.compare_claims(by_model, by_store)
        assert by_store.next_at == by_model.next_at

    def claim_some(self, rng: random.Random) -> None:
        """From one lane: which of several are served first under a limit is left to the store."""
        lane, limit = rng.choice(LANES), rng.randint(1, 2)
        pace = next((each for each in PACES if lane.startswith(each.prefix)), Pace(prefix=lane))
        self.compare_claims(*self.ask(lambda store: store.claim([pace], limit=limit, hold=MINUTE)))

    def compare_claims(self, by_model: Claimed, by_store: Claimed) -> None:
        for lane in LANES:
            mine, theirs = (
                [each for each in found.commands if self.asked[each.id]["lane"] == lane]
                for found in (by_model, by_store)
            )
            assert theirs == mine, lane

    def look(self, rng: random.Random) -> None:
        homes = rng.sample(TIMED_HOMES, rng.randint(0, len(TIMED_HOMES)))
        self.due(homes, hold=rng.choice((SECOND, MINUTE)))

    def due(self, homes: Sequence[Home], *, hold: timedelta) -> list[str]:
        by_model, by_store = self.ask(lambda store: store.due(homes, limit=ENOUGH, hold=hold))
        assert by_id(by_store) == by_id(by_model)
        return [each.id for each in by_model]

    # -- signals, ends and upkeep

    def signals(self, rng: random.Random) -> None:
        kept: list[StoredSignal] = [signal(each, at=self.now) for each in rng.choices(SIGNALS, k=3)]
        self.agree(lambda store: store.keep_signals(kept, remember=MINUTE))
        if rng.random() < 0.5:
            return
        hold = rng.choice((SECOND, MINUTE))
        by_model, by_store = self.ask(lambda store: store.take_signals(limit=ENOUGH, hold=hold))
        assert by_id(by_store) == by_id(by_model)
        fates = {each.id: rng.choice(("done", "later", "forgotten")) for each in by_id(by_model)}
        done = [each for each, fate in fates.items() if fate == "done"]
        later = [(each, self.now + rng.choice(SPANS)) for each, fate in fates.items() if fate == "later"]
        self.agree(lambda store: store.settle_signals(done=done, later=later))

    def publish(self, rng: random.Random) -> None:
        hold = rng.choice((SECOND, MINUTE))
        by_model, by_store = self.ask(lambda store: store.take_ended(limit=ENOUGH, hold=hold))
        assert by_id(by_store) == by_id(by_model)
        ids = [each.id for each in by_id(by_model) if rng.random() < 0.7]
        self.agree(lambda store: store.mark_published(ids))

    def upkeep(self, rng: random.Random) -> None:
        """Lanes are held and released, what is old is removed."""
        lane, age, back = rng.choice(LANES), rng.choice((MINUTE, HOUR)), rng.randint(0, 10)
        until = rng.choice((None, *(self.now + span for span in SPANS)))
        match rng.choice(("hold", "release", "release", "prune", "trim")):
            case "hold":
                self.agree(lambda store: store.hold_lane(lane, until=until, why="a reason"))
            case "release":
                self.agree(lambda store: store.release_lane(lane))
            case "prune":
                self.ask(lambda store: store.prune(ended_before=self.now - age, limit=ENOUGH))
            case _:
                self.agree(lambda store: store.trim_transitions(up_to=max(0, self.last_seen - back)))

    # -- what holds at all times

    def compare(self) -> None:
        self.every_command_is_the_same()
        self.what_commands_hold_on_to_is_the_same()
        self.the_lanes_are_the_same()
        self.the_numbers_are_the_same()
        self.the_trail_is_the_same()

    def every_command_is_the_same(self) -> None:
        found = self.agree(lambda store: store.commands(limit=ENOUGH))
        assert self.agree(lambda store: store.load(sorted(self.asked))) == {each.id: each for each in found}

    def what_commands_hold_on_to_is_the_same(self) -> None:
        self.agree(lambda store: store.owners(KEYS))
        by_model, by_store = self.ask(lambda store: store.hearers(DEVICES))
        assert {device: found for device, found in by_store.items() if found} == by_model
        names = [name for row in self.model.placings.rows.values() for name in row.placing.external_ids]
        gone = [f"{command_id}/0" for command_id in self.asked if command_id not in self.model.placings.rows]
        self.agree(lambda store: store.find([*names, *gone]))

    def the_lanes_are_the_same(self) -> None:
        by_model, by_store = self.ask(lambda store: store.lanes())
        assert [self.shown(each) for each in by_store] == [self.shown(each) for each in by_model]

    def shown(self, lane: Any) -> tuple[object, ...]:
        opens_at = lane.opens_at
        if lane.lane.startswith("duty:") or (opens_at is not None and opens_at <= self.now):
            opens_at = None  # when a burst is used up depends on the pace, which a lane does not know
        return lane.lane, lane.waiting, lane.slots_used, opens_at, lane.held_until, lane.held_why

    def the_numbers_are_the_same(self) -> None:
        by_model, by_store = self.ask(lambda store: store.stats())
        shown = {status: count for status, count in by_store.by_status.items() if count}
        assert (shown, by_store.signals, by_store.unpublished) == (
            by_model.by_status,
            by_model.signals,
            by_model.unpublished,
        )

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


STEPS = {
    Pair.add: 2,
    Pair.change: 2,
    Pair.go_on: 4,
    Pair.wait: 3,
    Pair.claim: 4,
    Pair.claim_some: 2,
    Pair.look: 2,
    Pair.signals: 1,
    Pair.publish: 1,
    Pair.upkeep: 1,
}


class Machine(RuleBasedStateMachine):
    """Hypothesis picks the steps, and finds the shortest history that goes wrong."""

    url = "memory://"

    @initialize()
    def begin(self) -> None:
        self.pair = Pair(self.url)

    @rule(step=st.sampled_from(list(STEPS)), seed=st.integers(0, 2**32 - 1))
    def step(self, step: Callable[[Pair, random.Random], None], seed: int) -> None:
        step(self.pair, random.Random(seed))

    @invariant()
    def both_are_the_same(self) -> None:
        self.pair.compare()

    def teardown(self) -> None:
        if hasattr(self, "pair"):
            self.pair.close()


def walk(url: str, *, seed: int, steps: int) -> None:
    """A long history, from chance alone: it goes where the short ones of Hypothesis do not come."""
    rng = random.Random(seed)
    pair = Pair(url)
    try:
        for number, step in enumerate(rng.choices(list(STEPS), list(STEPS.values()), k=steps), 1):
            step(pair, rng)
            if number % 10 == 0:  # what a step itself is told is compared in any case
                pair.compare()
    finally:
        pair.close()


def run(url: str, *, examples: int, steps: int) -> None:
    run_state_machine_as_test(
        type("Machine", (Machine,), {"url": url}),
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
    run(commands_url, examples=4, steps=20)


def test_many_random_histories_are_the_same_in_a_file(sqlite_url: str) -> None:
    run(sqlite_url, examples=25, steps=30)


@pytest.mark.parametrize("seed", range(4))
def test_long_random_histories_are_the_same_on_every_store(commands_url: str, seed: int) -> None:
    walk(commands_url, seed=seed, steps=200)
