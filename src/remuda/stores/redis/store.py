"""RedisStore: the contract on Redis and Valkey Streams, with ChasquiMQ's keys and bytes."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from remuda.clock import Clock
from remuda.errors import ConfigurationError, StoreError
from remuda.lifecycle import State
from remuda.message import DeadLetter, DeadLetterFilter, JobRecord, Replayed, Stats, priorities_from
from remuda.rate import RateLimit, RateLimits
from remuda.stores.contract import (
    NO_SUSPECTS,
    Capabilities,
    Delivery,
    EncodedJob,
    Settlement,
    Store,
    Suspects,
    TrailPage,
    Wakeup,
    queue_full,
)
from remuda.stores.redis import scripts, trail
from remuda.stores.redis.adding import add_arguments
from remuda.stores.redis.dead_letters import DeadLetterStream, holds_its_id
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
from remuda.stores.redis.inspection import Inspector, next_due_from, stats_from
from remuda.stores.redis.keys import OURS, Keys, keys_of, queue_of, stream_index
from remuda.stores.redis.link import Link, Script
from remuda.stores.redis.refusals import RefusedError
from remuda.stores.redis.settling import Caps, release_arguments, rescheduled, settle_arguments
from remuda.stores.redis.sweeping import Sweeper
from remuda.stores.redis.urls import parse
from remuda.stores.redis.waking import StreamWakeup
from remuda.stores.redis.wire import from_us, to_us

COLD_CHUNK = 500
ADDED_AT_ONCE = 100_000  # a server takes about a million arguments in one command, and a job up to eight
RECOVERED_AT_ONCE = 500
FORGET_CONSUMERS_AFTER = timedelta(hours=1)
DEFAULT_TRAIL_MAX = 1_000_000
DEFAULT_TRAIL_AGE = timedelta(days=7)
DEFAULT_DONE_MAX = 100_000
DONE_BYTES_MAX = 64 * 1024 * 1024
DEFAULT_DLQ_MAX = 100_000
EVENTS_MAX = 100_000
# ChasquiMQ's workers claim what was idle for 30 s, whatever its lease.
RENEW_WITHIN = timedelta(seconds=10)


class RedisStore(Store):
    """Redis 6.2 or later, Valkey 7.2 or later."""

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self._address = parse(url)
        self._link = Link(self._address)
        self.url = self._link.url
        self._clock = clock
        self._clock_offset = timedelta(0)
        self._opening = asyncio.Lock()
        self._capabilities: Capabilities | None = None
        self._closed = False
        self._has_ackdel = False
        self._can_claim = False
        self._ends: dict[str, list[bytes]] = {}
        self._sweepers: dict[str, Sweeper] = {}
        address = self._address
        self._trail_max = DEFAULT_TRAIL_MAX if address.trail_max is None else address.trail_max
        self._trail_age = DEFAULT_TRAIL_AGE if address.trail_age is None else address.trail_age
        self._events_max = EVENTS_MAX if address.events else 0
        self._caps = Caps(
            DEFAULT_DONE_MAX if address.done_max is None else address.done_max,
            DONE_BYTES_MAX,
            DEFAULT_DLQ_MAX if address.dlq_max is None else address.dlq_max,
        )

    # -- life

    def now(self) -> datetime:
        if self._clock is not None:
            return self._clock.now()
        return datetime.now(UTC) + self._clock_offset if self._clock_offset else datetime.now(UTC)

    async def open(self) -> Capabilities:
        if self._capabilities is not None:
            return self._capabilities
        async with self._opening:
            if self._closed:
                raise StoreError(f"the store {self.url} was closed; open a new one")
            if self._capabilities is None:
                server = await self._link.open()
                self._has_ackdel = server.has_ackdel
                self._can_claim = server.has_read_claim
                # A server that still reads its file answers some commands, but not this one. A user who may
                # not look at the key is answered, too.
                with contextlib.suppress(RefusedError):
                    await self._link.call("EXISTS", keys_of("").meta)
                await self._learn_clock()
                self._capabilities = Capabilities(
                    backend=server.kind,
                    version=server.release,
                    wake="notify",
                    transactional=False,
                    renew_within=RENEW_WITHIN,
                    completed_kept=self._caps.done_jobs,
                    features=server.features(),
                )
            return self._capabilities

    async def close(self) -> None:
        async with self._opening:
            self._closed = True
            self._capabilities = None
            await self._link.close()

    async def _learn_clock(self) -> None:
        """How far the server's clock is from this machine's, as far as the length of a round trip tells."""
        if self._clock is not None:
            return
        asked = datetime.now(UTC)
        seconds, microseconds = await self._link.call("TIME")
        answered = datetime.now(UTC)
        server = from_us(int(seconds) * 1_000_000 + int(microseconds))
        offset = server - (asked + (answered - asked) / 2)
        # Less than the answer took on its way is no difference that could be told.
        if abs(offset - self._clock_offset) > answered - asked:
            self._clock_offset = offset

    async def _run(self, script: Script, queue: str, now: datetime, arguments: Sequence[Argument]) -> Any:
        if self._capabilities is None:
            await self.open()
        keys = keys_of(queue)
        return await self._link.run(
            script,
            keys.for_scripts(),
            [keys.prefix, to_us(now), self._trail_max, self._events_max, *arguments],
        )

    async def _inspector(self, queue: str) -> tuple[Inspector, Keys]:
        await self.open()
        keys = keys_of(queue)
        return Inspector(self._link, keys, queue), keys

    # -- publishing and delivering

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
            [
                *by_hold.arguments,
                to_us(leased_until),
                *(hold.consumer for hold in renewed.values()),
                0,
            ],
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
        recovered: list[str] = []
        while True:
            chunk = await self._run(
                scripts.RECOVER,
                queue,
                self.now(),
                [
                    RECOVERED_AT_ONCE,
                    who,
                    timeout // timedelta(milliseconds=1),
                    FORGET_CONSUMERS_AFTER // timedelta(milliseconds=1),
                ],
            )
            recovered += [each.decode() for each in chunk]
            if len(chunk) < RECOVERED_AT_ONCE:
                return recovered

    async def next_due(self, queue: str) -> datetime | None:
        await self.open()
        now = self.now()
        return next_due_from(await self._run(scripts.STATS, queue, now, []), now)

    def watch(self, queue: str) -> Wakeup:
        return StreamWakeup(self._link, keys_of(queue), lambda: self._ends.get(queue))

    # -- rate limits

    async def set_rate_limits(self, queue: str, limits: RateLimits) -> None:
        arguments: list[Argument] = ["set"]
        for limit in (limits.queue, limits.key):
            if limit is None:
                arguments += ("", "", "")
            else:
                microsecond = timedelta(microseconds=1)
                arguments += (limit.jobs, limit.per // microsecond, limit.interval // microsecond)
        await self._run(scripts.RATES, queue, self.now(), arguments)

    async def rate_limits(self, queue: str) -> RateLimits:
        await self.open()
        keys = keys_of(queue)
        jobs, per, key_jobs, key_per = await self._link.call(
            "HMGET", keys.meta, "queue_jobs", "queue_per", "key_jobs", "key_per"
        )
        return RateLimits(queue=_limit(jobs, per), key=_limit(key_jobs, key_per))

    async def take_turns(self, queue: str, *, wanted: int) -> int:
        if not wanted:
            return 0
        granted: int = await self._run(scripts.RATES, queue, self.now(), ["take", wanted])
        return granted

    async def book(self, queue: str, keys: Sequence[str]) -> list[datetime]:
        if not keys:
            return []
        await self.open()
        moments = await self._run(scripts.RATES, queue, self.now(), ["book", len(keys), *keys])
        return [from_us(int(moment)) for moment in moments]

    # -- results

    async def result(self, queue: str, job_id: str) -> bytes | None:
        await self.open()
        keys = keys_of(queue)
        value, over = await self._link.call_many(
            [("GET", keys.result(job_id)), ("ZSCORE", keys.results, job_id)]
        )
        if value is None or (over is not None and float(over) <= to_us(self.now())):
            return None
        result: bytes = value
        return result

    # -- dead letters

    async def _dead(self, queue: str) -> DeadLetterStream:
        await self.open()

        def run(script: Script, now: datetime, arguments: Sequence[Argument]) -> Awaitable[Any]:
            return self._run(script, queue, now, arguments)

        return DeadLetterStream(self._link, keys_of(queue), queue, run)

    async def count_dead(self, queue: str, which: DeadLetterFilter) -> dict[str, int]:
        counts: dict[str, int] = {}
        async for dead in (await self._dead(queue)).matching(which):
            counts[dead.reason] = counts.get(dead.reason, 0) + 1
        return counts

    async def peek_dead(
        self,
        queue: str,
        which: DeadLetterFilter,
        *,
        limit: int,
        after: str | None = None,
        oldest_first: bool = False,
    ) -> list[DeadLetter]:
        found: list[DeadLetter] = []
        if limit < 1:
            return found
        stream = await self._dead(queue)
        async for dead in stream.matching(which, after=after, oldest_first=oldest_first):
            found.append(dead.letter(queue))
            if len(found) == limit:
                break
        return found

    async def replay_dead(
        self, queue: str, which: DeadLetterFilter, *, limit: int, who: str, dry_run: bool = False
    ) -> Replayed:
        stream = await self._dead(queue)
        return await stream.replay(which, limit=limit, who=who, now=self.now, dry_run=dry_run)

    async def drop_dead(self, queue: str, which: DeadLetterFilter, *, limit: int, who: str) -> list[str]:
        stream = await self._dead(queue)
        return await stream.drop(which, limit=limit, who=who, reason="dropped", now=self.now)

    # -- looking and operating

    async def queues(self) -> list[str]:
        await self.open()
        found: set[str] = set()
        async for key in self._link.scan("{chasqui:*}:*"):
            name = queue_of(key)
            if name is not None:
                found.add(name)
        return sorted(found)

    async def stats(self, queue: str) -> Stats:
        await self.open()
        now = self.now()
        return stats_from(await self._run(scripts.STATS, queue, now, []), queue, now)

    async def get(self, queue: str, job_id: str) -> JobRecord | None:
        inspector, _ = await self._inspector(queue)
        live = await inspector.find_live(job_id)
        if live is not None:
            return live.record(queue)
        completed = await inspector.find_completed(job_id)
        dead = await self.peek_dead(queue, DeadLetterFilter(ids=(job_id,)), limit=1)
        ended = [*([] if completed is None else [completed]), *dead]
        return max(ended, key=lambda record: record.ended_at or record.created_at, default=None)

    async def jobs(self, queue: str, *, state: State | None, name: str | None, limit: int) -> list[JobRecord]:
        inspector, _ = await self._inspector(queue)
        found: list[JobRecord] = []
        if state not in (State.COMPLETED, State.FAILED):
            found += await inspector.live(state=state, name=name, limit=limit)
        ended: list[JobRecord] = []
        room = limit - len(found)
        if room and state in (None, State.COMPLETED):
            ended += await inspector.completed(name=name, limit=room)
        if room and state in (None, State.FAILED):
            ended += await self.peek_dead(queue, DeadLetterFilter(name=name), limit=room)
        ended.sort(key=lambda record: record.ended_at or record.created_at, reverse=True)
        return found + ended[:room]

    async def cancel(self, queue: str, job_ids: Sequence[str], *, who: str) -> list[str]:
        inspector, _ = await self._inspector(queue)
        members: list[Argument] = []
        entries: list[Argument] = []
        for job_id in dict.fromkeys(job_ids):
            found = await inspector.find_live(job_id)
            if found is None or found.state is State.PROCESSING:
                continue
            if found.member is not None:
                members.append(found.member)
            elif found.index is not None:
                entries += (found.index, found.entry)
        removed = await self._run(
            scripts.CANCEL,
            queue,
            self.now(),
            [who, len(members), len(entries) // 2, *members, *entries],
        )
        gone = {each.decode() for each in removed}
        return [job_id for job_id in dict.fromkeys(job_ids) if job_id in gone]

    async def reschedule(self, queue: str, job_id: str, *, at: datetime) -> bool:
        inspector, _ = await self._inspector(queue)
        found = await inspector.find_live(job_id)
        if found is None or found.state is State.PROCESSING:
            return False
        arguments = rescheduled(found, at)
        return bool(await self._run(scripts.RESCHEDULE, queue, self.now(), arguments))

    async def pause(self, queue: str) -> None:
        await self.open()
        now = self.now()
        await self._run(scripts.PAUSE, queue, now, [to_us(now)])

    async def resume(self, queue: str) -> None:
        await self.open()
        await self._run(scripts.PAUSE, queue, self.now(), [""])

    async def purge(self, queue: str, *, who: str) -> int:
        await self.open()
        removed = 0
        while True:
            chunk: int = await self._run(scripts.PURGE, queue, self.now(), [COLD_CHUNK, who])
            removed += chunk
            if chunk < COLD_CHUNK:
                return removed

    async def prune(
        self,
        queue: str,
        *,
        completed_before: datetime | None,
        failed_before: datetime | None,
        who: str,
        limit: int,
    ) -> int:
        await self.open()
        now = self.now()
        removed = 0
        if completed_before is not None:
            removed += await self._run(scripts.PRUNE, queue, now, [to_us(completed_before), limit])
        if failed_before is not None and removed < limit:
            which = DeadLetterFilter(until=failed_before - timedelta(microseconds=1))
            stream = await self._dead(queue)
            dropped = await stream.drop(
                which,
                limit=limit - removed,
                who=who,
                reason="retention",
                now=self.now,
                spare=lambda dead: holds_its_id(dead, now),
            )
            removed += len(dropped)
        await self._age_trail(queue, now)
        await self._sweep(queue)
        return removed

    async def _sweep(self, queue: str) -> None:
        """Forget what is kept beside jobs that other programs have ended."""
        sweeper = self._sweepers.get(queue)
        if sweeper is None:
            sweeper = self._sweepers[queue] = Sweeper(self._link, keys_of(queue), queue)
        leftovers = await sweeper.find_leftovers(asyncio.get_running_loop().time())
        for start in range(0, len(leftovers), COLD_CHUNK):
            chunk = leftovers[start : start + COLD_CHUNK]
            await self._run(scripts.SWEEP, queue, self.now(), [len(chunk), *chunk])

    # -- the trail

    async def _age_trail(self, queue: str, now: datetime) -> None:
        """Forget what is older than the trail's age, and rate buckets and results that are over."""
        up_to = await trail.offset(self._link, keys_of(queue), since=now - self._trail_age)
        if up_to:
            await self.trim_transitions(queue, up_to=up_to)
        await self._link.call("ZREMRANGEBYSCORE", keys_of(queue).results, "-inf", to_us(now))
        await self._forget_full_buckets(queue, now)

    async def _forget_full_buckets(self, queue: str, now: datetime) -> None:
        cursor: Any = b"0"
        while True:
            cursor, flat = await self._link.call("HSCAN", keys_of(queue).rates, cursor, "COUNT", COLD_CHUNK)
            full = [
                key for key, moment in zip(flat[::2], flat[1::2], strict=True) if float(moment) <= to_us(now)
            ]
            if full:
                await self._run(scripts.RATES, queue, now, ["forget", len(full), *full])
            if cursor in (b"0", 0):
                return

    async def transitions(self, queue: str, *, after: int, limit: int) -> TrailPage:
        await self.open()
        return await trail.read(self._link, keys_of(queue), queue, after=after, limit=limit)

    async def trail_offset(self, queue: str, *, since: datetime) -> int:
        await self.open()
        return await trail.offset(self._link, keys_of(queue), since=since)

    async def trim_transitions(self, queue: str, *, up_to: int) -> int:
        await self.open()
        trimmed: int = await self._run(scripts.TRIM, queue, self.now(), [up_to])
        return trimmed


def _first_of_each(jobs: Sequence[EncodedJob]) -> list[bool]:
    """For each job whether it is the first of its id in the batch."""
    seen: set[str] = set()
    first = []
    for job in jobs:
        first.append(job.id not in seen)
        if job.unique:
            seen.add(job.id)
    return first


def _limit(jobs: bytes | None, per_us: bytes | None) -> RateLimit | None:
    if jobs is None or per_us is None:
        return None
    return RateLimit(int(jobs), timedelta(microseconds=int(per_us)))
