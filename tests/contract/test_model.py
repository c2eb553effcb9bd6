"""Random histories against a model in memory: whatever is done to a queue, the store and the model agree."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
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

from remuda import NewJob, Queue, Reason, State
from remuda.clock import VirtualClock
from remuda.stores.contract import Delivery, Settlement
from tests.contract.workbench import LEASE, SECOND, acked, checked_trail, dead, nacked

WHO = "model"
IDS = [f"unique-{n}" for n in range(4)]
MOMENTS = st.sampled_from([0, 1, 30, 59, 60, 61, 3_600]).map(lambda seconds: timedelta(seconds=seconds))


@dataclass
class Row:
    """One life of a job, as the model has it."""

    id: str
    key: int
    priority: int
    due: datetime
    state: State = State.PENDING
    attempts: int = 0
    deliveries: int = 0
    lease: int | None = None
    lease_ends: datetime | None = None
    ended_at: datetime | None = None
    unique_for: timedelta | None = None
    reason: str | None = None
    moves: int = 1


@dataclass
class Model:
    """Every life that is in the store, and the counts of those that are not any more."""

    rows: list[Row] = field(default_factory=list)
    added: int = 0
    removed: int = 0
    moves_of_removed: int = 0
    paused: bool = False

    def live(self) -> list[Row]:
        return [row for row in self.rows if row.ended_at is None]

    def in_state(self, *states: State) -> list[Row]:
        return [row for row in self.rows if row.state in states]

    def due(self, now: datetime) -> list[Row]:
        waiting = [row for row in self.in_state(State.PENDING, State.RETRYABLE) if row.due <= now]
        return sorted(waiting, key=lambda row: (-row.priority, row.due, row.key))

    def is_taken(self, job_id: str, now: datetime) -> bool:
        return any(
            row.id == job_id
            and (row.ended_at is None or (row.unique_for is not None and row.ended_at + row.unique_for > now))
            for row in self.rows
        )

    def held_by(self, delivery: Delivery) -> Row | None:
        for row in self.live():
            if row.id == delivery.id and row.lease == delivery.lease and row.state is State.PROCESSING:
                return row
        return None

    def dead_oldest_first(self) -> list[Row]:
        return sorted(self.in_state(State.FAILED), key=lambda row: (row.ended_at, row.key))

    def forget(self, row: Row) -> None:
        self.rows.remove(row)
        self.removed += 1
        self.moves_of_removed += row.moves + 1


class Machine(RuleBasedStateMachine):
    """Drives a queue and its model with the same steps. The subclass says where the queue lives."""

    url = "sqlite://"

    @initialize()
    def begin(self) -> None:
        self.runner = asyncio.Runner()
        self.clock = VirtualClock()
        self.queue = Queue(f"model-{id(self)}", self.url, clock=self.clock)
        self.model = Model()
        self.deliveries: list[Delivery] = []
        self.call(self.queue.open())

    def call(self, awaitable: Any) -> Any:
        return self.runner.run(awaitable)

    def teardown(self) -> None:
        with contextlib.suppress(AttributeError):
            self.call(self.queue.close())
            self.runner.close()

    @property
    def now(self) -> datetime:
        return self.clock.now()

    # -- what is done

    @rule(
        jobs=st.lists(
            st.tuples(st.none() | st.sampled_from(IDS), st.integers(-2, 2), MOMENTS, st.none() | MOMENTS),
            min_size=1,
            max_size=4,
        )
    )
    def add(self, jobs: list[tuple[str | None, int, timedelta, timedelta | None]]) -> None:
        asked = [
            NewJob(
                "job",
                priority=priority,
                delay=delay,
                job_id=job_id,
                unique_for=None if job_id is None else unique_for,
            )
            for job_id, priority, delay, unique_for in jobs
        ]
        encoded = self.queue.encode(asked)
        new = self.call(self.queue.store.add(self.queue.name, encoded, who=WHO))
        for job, is_new in zip(encoded, new, strict=True):
            assert is_new == (not self.model.is_taken(job.id, self.now))
            if is_new:
                self.model.added += 1
                self.model.rows.append(
                    Row(
                        id=job.id,
                        key=self.model.added,
                        priority=job.priority,
                        due=job.next_attempt_at,
                        unique_for=job.unique_for,
                    )
                )

    @rule(duration=MOMENTS)
    def wait(self, duration: timedelta) -> None:
        self.clock.advance(duration)

    @rule(limit=st.integers(1, 5), lease=st.sampled_from([SECOND, LEASE]))
    def fetch(self, limit: int, lease: timedelta) -> None:
        found = self.call(self.queue.store.fetch(self.queue.name, limit=limit, lease=lease, who=WHO))
        due = [] if self.model.paused else self.model.due(self.now)
        assert len(found) == min(limit, len(due))
        # Which of those with an equal place in the order come first is left to the store.
        assert [(each.priority, each.next_attempt_at) for each in found] == [
            (row.priority, row.due) for row in due[:limit]
        ]
        for each in found:
            (row,) = [row for row in due if row.id == each.id]
            row.state, row.lease, row.lease_ends = State.PROCESSING, each.lease, self.now + lease
            row.deliveries += 1
            row.moves += 1
            assert (each.attempts, each.deliveries) == (row.attempts, row.deliveries)
        self.deliveries += found

    @precondition(lambda self: self.deliveries)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        """Any deliveries that were ever made, late ones included, each with any outcome."""
        chosen = data.draw(st.lists(st.sampled_from(self.deliveries), min_size=1, max_size=4, unique_by=id))
        settlements: list[Settlement] = []
        for delivery in chosen:
            word = data.draw(st.sampled_from(["ack", "nack", "dead", "unheard"]))
            if word == "ack":
                settlements.append(acked(delivery))
            elif word == "nack":
                settlements.append(nacked(delivery, self.now + data.draw(MOMENTS)))
            else:
                settlements.append(dead(delivery, Reason.REJECTED, ran=word == "dead"))
        lost = self.call(self.queue.store.settle(self.queue.name, settlements, who=WHO))
        for each in settlements:
            row = self.model.held_by(each.delivery)
            assert (each in lost) == (row is None)
            if row is None:
                continue
            row.state, row.lease, row.lease_ends = each.state, None, None
            row.attempts += each.started_at is not None
            row.moves += 1
            row.reason = each.reason
            if each.state is State.RETRYABLE:
                assert each.next_attempt_at is not None
                row.due = each.next_attempt_at
            else:
                row.ended_at = self.now

    @precondition(lambda self: self.deliveries)
    @rule(data=st.data(), counted=st.booleans())
    def release(self, data: st.DataObject, counted: bool) -> None:
        delivery = data.draw(st.sampled_from(self.deliveries))
        self.call(self.queue.store.release(self.queue.name, [delivery], who=WHO, counted=counted))
        row = self.model.held_by(delivery)
        if row is not None:
            row.state, row.lease, row.lease_ends = State.PENDING, None, None
            row.deliveries -= not counted
            row.moves += 1

    @precondition(lambda self: self.deliveries)
    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        delivery = data.draw(st.sampled_from(self.deliveries))
        lost = self.call(self.queue.store.extend(self.queue.name, [delivery], lease=LEASE))
        row = self.model.held_by(delivery)
        assert bool(lost) == (row is None)
        if row is not None:
            row.lease_ends = self.now + LEASE

    @rule()
    def recover(self) -> None:
        found = self.call(self.queue.store.recover(self.queue.name, timeout=LEASE, who=WHO))
        over = [
            row
            for row in self.model.in_state(State.PROCESSING)
            if row.lease_ends is not None and row.lease_ends <= self.now
        ]
        assert sorted(found) == sorted(row.id for row in over)
        for row in over:
            row.state, row.lease, row.lease_ends = State.PENDING, None, None
            row.moves += 1

    @rule(limit=st.integers(1, 3))
    def replay(self, limit: int) -> None:
        replayed = self.call(self.queue.dead.replay(limit=limit))
        living = {row.id for row in self.model.live()}
        candidates = [row for row in self.model.dead_oldest_first() if row.id not in living]
        expected = []
        for row in candidates:
            if len(expected) < limit and row.id not in {each.id for each in expected}:
                expected.append(row)
        assert len(replayed.ids) == len(expected)
        assert set(replayed.still_live) <= living | set(replayed.ids)
        for job_id in replayed.ids:
            row = next(row for row in candidates if row.id == job_id)
            row.state, row.ended_at, row.reason, row.due = State.PENDING, None, None, self.now
            row.attempts = row.deliveries = 0
            row.moves += 1

    @rule(limit=st.integers(1, 3))
    def drop(self, limit: int) -> None:
        dropped = self.call(self.queue.dead.drop(limit=limit))
        assert len(dropped) == min(limit, len(self.model.in_state(State.FAILED)))
        for job_id in dropped:
            self.model.forget(next(row for row in self.model.dead_oldest_first() if row.id == job_id))

    @rule()
    def purge(self) -> None:
        waiting = self.model.in_state(State.PENDING, State.RETRYABLE)
        assert self.call(self.queue.purge()) == len(waiting)
        for row in waiting:
            self.model.forget(row)

    @rule(pause=st.booleans())
    def pause(self, pause: bool) -> None:
        self.call(self.queue.pause() if pause else self.queue.resume())
        self.model.paused = pause

    # -- what holds at all times

    @invariant()
    def the_numbers_agree(self) -> None:
        stats = self.call(self.queue.stats())
        model = self.model
        waiting = model.in_state(State.PENDING, State.RETRYABLE)
        assert stats.pending == len(model.in_state(State.PENDING))
        assert stats.retryable == len(model.in_state(State.RETRYABLE))
        assert stats.processing == len(model.in_state(State.PROCESSING))
        assert stats.completed == len(model.in_state(State.COMPLETED))
        assert stats.failed == len(model.in_state(State.FAILED))
        assert stats.delayed == len([row for row in waiting if row.due > self.now])
        assert stats.paused == model.paused
        assert model.added == stats.completed + stats.failed + stats.live + model.removed

    @invariant()
    def every_job_is_as_the_model_has_it(self) -> None:
        found = self.call(self.queue.jobs(limit=10_000))
        assert sorted((each.id, each.state, each.attempts, each.deliveries) for each in found) == sorted(
            (row.id, row.state, row.attempts, row.deliveries) for row in self.model.rows
        )

    @invariant()
    def the_trail_is_complete(self) -> None:
        trail = self.call(checked_trail(self.queue))
        assert len(trail) == sum(row.moves for row in self.model.rows) + self.model.moves_of_removed


def run(url: str, *, examples: int, steps: int) -> None:
    machine = type("Machine", (Machine,), {"url": url})
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
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


def test_random_histories_agree_with_the_model_in_memory() -> None:
    run("sqlite://", examples=20, steps=50)


def test_random_histories_agree_with_the_model_on_every_store(store_url: str) -> None:
    run(store_url, examples=4, steps=20)
