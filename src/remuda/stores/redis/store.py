"""RedisStore: the contract on Redis and Valkey Streams, with ChasquiMQ's keys and bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from remuda.lifecycle import State
from remuda.message import DeadLetter, DeadLetterFilter, JobRecord, LogLine, Replayed, Stats
from remuda.rate import RateLimit, RateLimits
from remuda.schedule import Repeat, Repeating
from remuda.stores.command_trail import fleet_of
from remuda.stores.contract import (
    Firing,
    Note,
    Progressed,
    RecordPage,
    TrailEntry,
    TrailPage,
    TrailSpan,
    Wakeup,
)
from remuda.stores.redis import command_scripts, obliterating, repeats, scripts
from remuda.stores.redis import trail as trails
from remuda.stores.redis.adding import add_arguments
from remuda.stores.redis.command_keys import command_keys
from remuda.stores.redis.dead_letters import DeadLetterStream, holds_its_id
from remuda.stores.redis.holding import Argument
from remuda.stores.redis.inspection import stats_from
from remuda.stores.redis.keys import keys_of
from remuda.stores.redis.link import Script
from remuda.stores.redis.notes import how_far, lines, note_arguments
from remuda.stores.redis.paging import RecordWalk
from remuda.stores.redis.records import LiveJob
from remuda.stores.redis.settling import expiring, rescheduled
from remuda.stores.redis.sweeping import Sweeper
from remuda.stores.redis.waking import TrailWakeup
from remuda.stores.redis.wire import from_us, to_score, to_us
from remuda.stores.redis.working import WorkingStore
from remuda.transition import to_ms

COLD_CHUNK = 500
NOTES_AT_ONCE = 100  # jobs in one script; each may have a thousand lines


class RedisStore(WorkingStore):
    """Redis 6.2 or later, Valkey 7.2 or later. Here: limits, results, dead letters, looking, the trail."""

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

    async def results(self, queue: str, job_ids: Sequence[str]) -> dict[str, bytes]:
        await self.open()
        if not job_ids:
            return {}
        keys = keys_of(queue)
        places = [place(each) for each in job_ids for place in (keys.result, keys.failure)]
        values, *over = await self._link.call_many(
            [("MGET", *places), *(("ZSCORE", keys.results, each) for each in job_ids)]
        )
        now_us = to_us(self.now())
        kept: dict[str, bytes] = {}
        for job_id, done, failed, end_us in zip(job_ids, values[::2], values[1::2], over, strict=True):
            value = done if done is not None else failed
            if value is not None and (end_us is None or float(end_us) > now_us):
                kept[job_id] = value
        return kept

    def watch_results(self, queue: str) -> Wakeup:
        return TrailWakeup(self._link, keys_of(queue).log)

    # -- notes

    async def note(self, queue: str, notes: Sequence[Note], *, ttl: timedelta) -> None:
        await self.open()
        now = self.now()
        for start in range(0, len(notes), NOTES_AT_ONCE):
            arguments = note_arguments(notes[start : start + NOTES_AT_ONCE], now=now, ttl=ttl)
            await self._run(scripts.NOTE, queue, now, arguments)

    async def progress(self, queue: str, job_ids: Sequence[str]) -> dict[str, Progressed]:
        await self.open()
        if not job_ids:
            return {}
        return await how_far(self._link, keys_of(queue), job_ids, now=self.now())

    async def log(self, queue: str, job_id: str, *, after: int, limit: int) -> list[LogLine]:
        await self.open()
        return await lines(self._link, keys_of(queue), job_id, now=self.now(), after=after, limit=limit)

    # -- repeatable jobs

    async def put_repeat(self, queue: str, spec: Repeat, *, first: datetime, keep: bool) -> bool:
        packed = repeats.spec_to_wire(spec)
        arguments: list[Argument] = [spec.key, to_ms(first), "1" if keep else "0", packed]
        return bool(await self._run(scripts.PUT_REPEAT, queue, self.now(), arguments))

    async def repeats(self, queue: str, *, key: str | None = None, limit: int) -> list[Repeating]:
        await self.open()
        return await repeats.look(self._link, keys_of(queue), key=key, limit=limit)

    async def remove_repeat(self, queue: str, key: str) -> bool:
        return bool(await self._run(scripts.REMOVE_REPEAT, queue, self.now(), [key]))

    async def fire(self, queue: str, firings: Sequence[Firing], *, who: str) -> list[bool]:
        waiting = list(range(len(firings)))
        while waiting:
            arguments, jobs = repeats.firing_arguments([firings[place] for place in waiting])
            now = self.now()
            added, _ = add_arguments(jobs, now=now, who=who, max_live=None)
            answer = await self._run(scripts.FIRE, queue, now, [*arguments, *added])
            if answer == 0:
                break
            if answer[0] == b"locked":
                return [False] * len(firings)
            stale = set(answer[1:])
            waiting = [place for number, place in enumerate(waiting, 1) if number not in stale]
        return [place in waiting for place in range(len(firings))]

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
        return await obliterating.names(self._link)

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

    async def records(self, queue: str, *, ended: bool, after: str | None, limit: int) -> RecordPage:
        await self.open()

        def run(script: Script, arguments: Sequence[Argument]) -> Awaitable[Any]:
            return self._run(script, queue, self.now(), arguments)

        walk = RecordWalk(self._link, keys_of(queue), queue, run)
        return await walk.page(ended=ended, after=after, limit=limit)

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

    async def ask_to_cancel(self, queue: str, job_ids: Sequence[str]) -> None:
        await self.open()
        if job_ids:
            now_us = to_us(self.now())
            pairs = [part for each in job_ids for part in (now_us, each)]
            await self._link.call("ZADD", keys_of(queue).cancel, *pairs)

    async def asked_to_cancel(self, queue: str) -> dict[str, datetime]:
        await self.open()
        flat = await self._link.call("ZRANGE", keys_of(queue).cancel, 0, -1, "WITHSCORES")
        return {
            each.decode(): from_us(int(float(at))) for each, at in zip(flat[::2], flat[1::2], strict=True)
        }

    async def forget_to_cancel(self, queue: str, job_ids: Sequence[str]) -> None:
        await self.open()
        if job_ids:
            await self._link.call("ZREM", keys_of(queue).cancel, *job_ids)

    async def reschedule(self, queue: str, job_id: str, *, at: datetime) -> bool:
        return await self._change(
            queue, job_id, scripts.RESCHEDULE, lambda found, known: rescheduled(found, known, at)
        )

    async def set_expiry(self, queue: str, job_id: str, *, at: datetime | None) -> bool:
        return await self._change(
            queue, job_id, scripts.EXPIRE, lambda found, known: expiring(found, known, at)
        )

    async def _change(
        self,
        queue: str,
        job_id: str,
        script: Script,
        arguments: Callable[[LiveJob, bytes], list[Argument]],
    ) -> bool:
        """Change a job that waits; again from the look at it, if somebody else was quicker."""
        keys = keys_of(queue)
        while True:
            inspector, _ = await self._inspector(queue)
            found = await inspector.find_live(job_id)
            if found is None or found.state is State.PROCESSING:
                return False
            known = await self._link.call("HGET", keys.extra, job_id) or b""
            done: int = await self._run(script, queue, self.now(), arguments(found, known))
            if done >= 0:
                return bool(done)

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

    async def forget(self, queue: str) -> None:
        await self.open()
        await obliterating.forget(self._link, queue)
        self._sweepers.pop(queue, None)

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
        up_to = await self.trail_offset(queue, since=now - self._trail_age)
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

    async def trails(self) -> list[str]:
        await self.open()
        return await trails.names(self._link)

    async def trail_span(self, trail: str) -> TrailSpan:
        await self.open()
        return await trails.span(self._link, trails.trail_keys(trail))

    async def trail_entries(self, trail: str, *, after: int, up_to: int, limit: int) -> list[TrailEntry]:
        await self.open()
        log = trails.trail_keys(trail).log
        return await trails.entries(self._link, log, after=after, up_to=up_to, limit=limit)

    async def transitions(self, queue: str, *, after: int, limit: int) -> TrailPage:
        await self.open()
        log = trails.trail_keys(queue).log
        return await trails.read(self._link, log, queue, after=after, limit=limit)

    async def trail_offset(self, queue: str, *, since: datetime) -> int:
        await self.open()
        return await trails.offset(self._link, trails.trail_keys(queue).log, since=since)

    async def forget_trail(self, queue: str) -> None:
        await self.open()
        await self._link.call("DEL", *trails.trail_keys(queue))

    async def trim_transitions(self, queue: str, *, up_to: int) -> int:
        await self.open()
        fleet = fleet_of(queue)
        trimmed: int
        if fleet is None:
            trimmed = await self._run(scripts.TRIM, queue, self.now(), [up_to])
        else:
            keys = command_keys(fleet)
            arguments: list[Argument] = [keys.prefix, to_score(self.now()), self._trail_max, up_to]
            trimmed = await self._link.run(command_scripts.TRIM, keys.for_scripts(), arguments)
        return trimmed


def _limit(jobs: bytes | None, per_us: bytes | None) -> RateLimit | None:
    if jobs is None or per_us is None:
        return None
    return RateLimit(int(jobs), timedelta(microseconds=int(per_us)))
