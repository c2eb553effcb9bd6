"""The hot part of the store: add, fetch, settle, extend, release, recover, wait."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from remuda.errors import ConfigurationError
from remuda.message import priorities_from
from remuda.stores.contract import (
    NO_SUSPECTS,
    Delivery,
    EncodedJob,
    Settlement,
    Suspects,
    Wakeup,
    queue_full,
)
from remuda.stores.redis import held, scripts
from remuda.stores.redis.adding import add_arguments
from remuda.stores.redis.connected import ConnectedStore
from remuda.stores.redis.delivering import deliveries as read_deliveries
from remuda.stores.redis.holding import (
    Argument,
    Place,
    Sorted,
    let_go,
    move,
    place_of,
    place_of_settlement,
    renewed_holds,
)
from remuda.stores.redis.inspection import next_due_from
from remuda.stores.redis.keys import OURS, keys_of, stream_index
from remuda.stores.redis.link import Script
from remuda.stores.redis.settling import release_arguments, settle_arguments
from remuda.stores.redis.waking import StreamWakeup
from remuda.stores.redis.wire import to_us

ADDED_AT_ONCE = 100_000  # a server takes about a million arguments in one command, and a job up to eight
RECOVERED_AT_ONCE = 500
FORGET_CONSUMERS_AFTER = timedelta(hours=1)


class WorkingStore(ConnectedStore):
    """What producers and workers ask for, again and again."""

    async def add(
        self,
        queue: str,
        jobs: Sequence[EncodedJob],
        *,
        who: str,
        connection: Any = None,
        max_live: int | None = None,
    ) -> list[bool]:
        if connection is not None:
            raise self._no_transactions()
        await self.open()
        if len(jobs) > ADDED_AT_ONCE:
            raise ConfigurationError(
                f"{len(jobs):,} jobs in one call; at most {ADDED_AT_ONCE:,} fit into one step"
            )
        new = _first_of_each(jobs)
        while any(new):
            chosen = (
                list(jobs) if all(new) else [job for job, is_new in zip(jobs, new, strict=True) if is_new]
            )
            now = self.now()
            arguments, special = add_arguments(chosen, now=now, who=who, max_live=max_live)
            answer = await self._run(scripts.ADD, queue, now, arguments)
            if answer == 0:
                break
            if answer[0] == b"full":
                raise queue_full(queue, live=answer[1], more=len(chosen), max_live=max_live)
            taken = {special[place - 1].id for place in answer[1:]}
            taken -= await self._free_stale(queue, taken)
            new = [is_new and job.id not in taken for job, is_new in zip(jobs, new, strict=True)]
        return new

    async def _free_stale(self, queue: str, ids: set[str]) -> set[str]:
        """Free ids that are marked as live though another program, which knows no marks, ended their job."""
        inspector, keys = await self._inspector(queue)
        if not await inspector.is_shared():
            return set()
        marks = await self._link.call_many([("GET", keys.held_id(each)) for each in ids])
        stale = {
            each
            for each, mark in zip(ids, marks, strict=True)
            # Twice, for a job may move while we look.
            if mark == b"live"
            and await inspector.find_live(each) is None
            and await inspector.find_live(each) is None
        }
        if stale:
            await self._run(scripts.SWEEP, queue, self.now(), [len(stale), *stale])
        return stale

    def _no_transactions(self) -> ConfigurationError:
        return ConfigurationError(
            f"{self.url} has no transactions that a job could join: leave out `connection`, "
            "or use a SQL store"
        )

    def add_blocking(
        self,
        queue: str,
        jobs: Sequence[EncodedJob],
        *,
        who: str,
        connection: Any,
        max_live: int | None = None,
    ) -> list[bool]:
        raise self._no_transactions()

    async def fetch(
        self,
        queue: str,
        *,
        limit: int,
        lease: timedelta,
        who: str,
        suspects: Suspects = NO_SUSPECTS,
        begin_with: int | None = None,
    ) -> list[Delivery]:
        if self._capabilities is None:
            await self.open()
        now = self.now()
        number = secrets.randbits(62) + 1
        leased_until = now + lease
        consumer = f"{OURS}{who}/{to_us(now)}-{number:x}"
        answer, ends = await self._run(
            scripts.FETCH,
            queue,
            now,
            [
                limit,
                consumer,
                who,
                to_us(leased_until),
                suspects.delivered,
                "1" if suspects.only else "0",
                "1" if self._can_claim else "0",
                *map(stream_index, priorities_from(begin_with)),
            ],
        )
        if ends:
            self._ends[queue] = ends
        return read_deliveries(answer, consumer=consumer, lease=number, now=now, leased_until=leased_until)

    async def held(self, queue: str, leases: Sequence[int]) -> list[Delivery]:
        await self.open()
        return await held.held(self._link, keys_of(queue), leases)

    async def settle(self, queue: str, settlements: Sequence[Settlement], *, who: str) -> list[Settlement]:
        told: dict[int, Settlement] = {}
        for each in settlements:
            if not each.delivery.key.is_over:
                told.setdefault(id(each.delivery), each)
        remaining = list(told.values())
        while remaining:
            now = self.now()
            by_hold = Sorted(remaining, place_of_settlement)
            lost = await self._say(
                scripts.SETTLE,
                queue,
                now,
                settle_arguments(
                    by_hold,
                    now=now,
                    who=who,
                    has_ackdel=self._has_ackdel,
                    caps=self._caps,
                    events=self._events_max > 0,
                ),
                [each.delivery.key for each in remaining],
            )
            if not lost:
                let_go(each.delivery.key for each in remaining)
                break
            remaining = by_hold.without(lost)
        written = {id(each) for each in remaining}
        return [] if len(written) == len(settlements) else [e for e in settlements if id(e) not in written]

    async def _say(
        self, script: Script, queue: str, now: datetime, arguments: Sequence[Argument], places: list[Place]
    ) -> Any:
        """Run a script that ends deliveries. Without an answer it is not known whether it has."""
        try:
            return await self._run(script, queue, now, arguments)
        except BaseException:
            for place in places:
                place.is_unsure = True
            raise

    async def extend(self, queue: str, deliveries: Sequence[Delivery], *, lease: timedelta) -> list[Delivery]:
        over = [each for each in deliveries if each.key.is_over]
        by_hold = Sorted([each for each in deliveries if not each.key.is_over], place_of)
        if not by_hold.items:
            return over
        now = self.now()
        leased_until = now + lease
        renewed = renewed_holds(by_hold)
        lost = await self._run(
            scripts.EXTEND,
            queue,
            now,
            [*by_hold.arguments, to_us(leased_until), *(hold.consumer for hold in renewed.values())],
        )
        for each in by_hold.without(lost):
            each.leased_until = leased_until
            move(each.key, renewed[each.key.hold])
        gone = set(lost)
        return [*over, *(each for place, each in enumerate(by_hold.items, 1) if place in gone)]

    async def release(
        self,
        queue: str,
        deliveries: Sequence[Delivery],
        *,
        who: str,
        counted: bool,
        until: Sequence[datetime] | None = None,
    ) -> None:
        moments: Sequence[datetime | None] = [None] * len(deliveries) if until is None else until
        pairs = [
            (each, moment) for each, moment in zip(deliveries, moments, strict=True) if not each.key.is_over
        ]
        while pairs:
            now = self.now()
            by_hold = Sorted(pairs, lambda pair: place_of(pair[0]))
            places = [each.key for each, _ in pairs]
            lost = await self._say(
                scripts.RELEASE,
                queue,
                now,
                release_arguments(by_hold, now=now, who=who, counted=counted, has_ackdel=self._has_ackdel),
                places,
            )
            if not lost:
                let_go(places)
                return
            pairs = by_hold.without(lost)

    async def recover(self, queue: str, *, timeout: timedelta, who: str) -> list[str]:
        await self.open()
        await self._learn_clock()
        idle_ms = timeout // timedelta(milliseconds=1)
        return await self._put_back(queue, who=who, idle_ms=idle_ms, all_of_it=False)

    async def take_back(self, queue: str, *, who: str) -> list[str]:
        await self.open()
        return await self._put_back(queue, who=who, idle_ms=0, all_of_it=True)

    async def _put_back(self, queue: str, *, who: str, idle_ms: int, all_of_it: bool) -> list[str]:
        forget_ms = FORGET_CONSUMERS_AFTER // timedelta(milliseconds=1)
        reason = "taken_back" if all_of_it else "lease_expired"
        taken: list[str] = []
        while True:
            now = self.now()
            up_to = "+inf" if all_of_it else to_us(now)
            chunk = await self._run(
                scripts.RECOVER, queue, now, [RECOVERED_AT_ONCE, who, up_to, idle_ms, forget_ms, reason]
            )
            taken += [each.decode() for each in chunk]
            if len(chunk) < RECOVERED_AT_ONCE:
                return taken

    async def next_due(self, queue: str) -> datetime | None:
        await self.open()
        now = self.now()
        return next_due_from(await self._run(scripts.STATS, queue, now, []), now)

    def watch(self, queue: str) -> Wakeup:
        return StreamWakeup(self._link, keys_of(queue), lambda: self._ends.get(queue))


def _first_of_each(jobs: Sequence[EncodedJob]) -> list[bool]:
    """For each job whether it is the first of its id in the batch."""
    seen: set[str] = set()
    first = []
    for job in jobs:
        first.append(job.id not in seen)
        if job.unique:
            seen.add(job.id)
    return first
