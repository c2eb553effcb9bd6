"""What the three SQL stores share: the contract, written once over two ways to run an operation."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from remuda.lifecycle import State
from remuda.message import DeadLetter, DeadLetterFilter, JobRecord, Replayed, Stats
from remuda.stores.contract import RecordPage, TrailEntry, TrailPage, TrailSpan
from remuda.stores.sql import dead_letters, inspection, notes, rates, results, upkeep
from remuda.stores.sql import trail as trails
from remuda.stores.sql.working import WorkingStore

COLD_CHUNK = 500  # rows that one transaction of an operator's command touches
PRUNE_CHUNK = 1_000


class SqlStore(WorkingStore):
    """A store over SQL. Here: dead letters, looking and operating, the trail."""

    # -- dead letters

    async def count_dead(self, queue: str, which: DeadLetterFilter) -> dict[str, int]:
        return await self._cold(lambda: dead_letters.count(self.dialect, queue, which), read_only=True)

    async def peek_dead(
        self,
        queue: str,
        which: DeadLetterFilter,
        *,
        limit: int,
        after: str | None = None,
        oldest_first: bool = False,
    ) -> list[DeadLetter]:
        return await self._cold(
            lambda: dead_letters.peek(
                self.dialect, queue, which, limit=limit, after=after, oldest_first=oldest_first
            ),
            read_only=True,
        )

    async def replay_dead(
        self, queue: str, which: DeadLetterFilter, *, limit: int, who: str, dry_run: bool = False
    ) -> Replayed:
        await self._ready()
        now = self.now()
        # What dies again while this goes on is not replayed a second time by it.
        until = now if which.until is None else min(which.until, now)
        which = DeadLetterFilter(
            reason=which.reason, name=which.name, since=which.since, until=until, ids=which.ids
        )
        conflicts = await self._cold(
            lambda: dead_letters.still_live(self.dialect, queue, which, limit=min(limit, COLD_CHUNK)),
            read_only=True,
        )
        if dry_run:
            candidates = await self._cold(
                lambda: dead_letters.replayable(self.dialect, queue, which, limit=limit), read_only=True
            )
            return Replayed(ids=candidates, still_live=conflicts)
        replayed: list[str] = []
        while len(replayed) < limit:
            ask = min(COLD_CHUNK, limit - len(replayed))
            chunk = await self._cold(
                lambda ask=ask: dead_letters.replay(  # type: ignore[misc]  # as above
                    self.dialect, queue, which, limit=ask, now=now, who=who
                )
            )
            replayed += chunk
            if not chunk:
                break
        if replayed:
            self._announce(queue)
        return Replayed(ids=replayed, still_live=conflicts)

    async def drop_dead(self, queue: str, which: DeadLetterFilter, *, limit: int, who: str) -> list[str]:
        dropped: list[str] = []
        while len(dropped) < limit:
            ask = min(COLD_CHUNK, limit - len(dropped))
            now = self.now()
            chunk = await self._cold(
                lambda ask=ask, now=now: dead_letters.drop(  # type: ignore[misc]  # as above
                    self.dialect, queue, which, limit=ask, now=now, who=who
                )
            )
            dropped += chunk
            if len(chunk) < ask:
                break
        return dropped

    # -- looking and operating

    async def queues(self) -> list[str]:
        return await self._cold(inspection.queues, read_only=True)

    async def stats(self, queue: str) -> Stats:
        await self._ready()
        now = self.now()
        return await self._cold(lambda: inspection.stats(queue, now=now), read_only=True)

    async def get(self, queue: str, job_id: str) -> JobRecord | None:
        return await self._cold(lambda: inspection.get(queue, job_id), read_only=True)

    async def jobs(self, queue: str, *, state: State | None, name: str | None, limit: int) -> list[JobRecord]:
        return await self._cold(
            lambda: inspection.jobs(queue, state=state, name=name, limit=limit), read_only=True
        )

    async def records(self, queue: str, *, ended: bool, after: str | None, limit: int) -> RecordPage:
        return await self._cold(
            lambda: inspection.records(self.dialect, queue, ended=ended, after=after, limit=limit),
            read_only=True,
        )

    async def cancel(self, queue: str, job_ids: Sequence[str], *, who: str) -> list[str]:
        await self._ready()
        cancelled: set[str] = set()
        for start in range(0, len(job_ids), COLD_CHUNK):
            part, now = job_ids[start : start + COLD_CHUNK], self.now()
            cancelled.update(
                await self._cold(
                    lambda part=part, now=now: upkeep.cancel(  # type: ignore[misc]  # as above
                        self.dialect, queue, part, now=now, who=who
                    )
                )
            )
        return [each for each in dict.fromkeys(job_ids) if each in cancelled]

    async def ask_to_cancel(self, queue: str, job_ids: Sequence[str]) -> None:
        await self._ready()
        if job_ids:
            now = self.now()
            ids = list(dict.fromkeys(job_ids))
            await self._cold(lambda: upkeep.ask_to_cancel(self.dialect, queue, ids, now=now))

    async def asked_to_cancel(self, queue: str) -> dict[str, datetime]:
        await self._ready()
        return await self._cold(lambda: upkeep.asked_to_cancel(queue), read_only=True)

    async def forget_to_cancel(self, queue: str, job_ids: Sequence[str]) -> None:
        await self._ready()
        if job_ids:
            await self._cold(lambda: upkeep.forget_to_cancel(self.dialect, queue, job_ids))

    async def reschedule(self, queue: str, job_id: str, *, at: datetime) -> bool:
        await self._ready()
        done = await self._cold(lambda: upkeep.reschedule(self.dialect, queue, job_id, at=at))
        if done and at <= self.now():
            self._announce(queue)
        return done

    async def set_expiry(self, queue: str, job_id: str, *, at: datetime | None) -> bool:
        await self._ready()
        return await self._cold(lambda: upkeep.set_expiry(self.dialect, queue, job_id, at=at))

    async def pause(self, queue: str) -> None:
        await self._ready()
        now = self.now()
        await self._cold(lambda: upkeep.set_pause(queue, now))

    async def resume(self, queue: str) -> None:
        await self._cold(lambda: upkeep.set_pause(queue, None))
        self._announce(queue)

    async def purge(self, queue: str, *, who: str) -> int:
        await self._ready()
        removed = 0
        while True:
            now = self.now()
            chunk = await self._cold(
                lambda now=now: upkeep.purge(  # type: ignore[misc]  # as above
                    self.dialect, queue, now=now, who=who, limit=COLD_CHUNK
                )
            )
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
        await self._ready()
        now = self.now()
        for expired in (results.prune, rates.prune, notes.prune_progress, notes.prune_lines):
            while (
                await self._cold(
                    lambda expired=expired: expired(  # type: ignore[misc]  # as above
                        self.dialect, queue, now=now, limit=PRUNE_CHUNK
                    )
                )
                >= PRUNE_CHUNK
            ):
                pass
        return await self._cold(
            lambda: dead_letters.prune(
                self.dialect,
                queue,
                completed_before=completed_before,
                failed_before=failed_before,
                now=now,
                who=who,
                limit=limit,
            )
        )

    async def take_back(self, queue: str, *, who: str) -> list[str]:
        await self._ready()
        taken: list[str] = []
        while True:
            now = self.now()
            chunk = await self._cold(
                lambda now=now: upkeep.take_back(  # type: ignore[misc]  # as above
                    self.dialect, queue, now=now, who=who, limit=COLD_CHUNK
                )
            )
            taken += chunk
            if len(chunk) < COLD_CHUNK:
                return taken

    async def forget(self, queue: str) -> None:
        await self._ready()
        await self._number(queue)
        await self._cold(lambda: upkeep.forget(queue))

    # -- the trail

    async def _number(self, queue: str) -> None:
        """Give numbers to what was recorded since the last look."""
        if await self._cold(lambda: trails.unnumbered(queue), read_only=True):
            while await self._cold(lambda: trails.number(queue)):
                pass

    async def trails(self) -> list[str]:
        return await self._cold(trails.names, read_only=True)

    async def trail_span(self, trail: str) -> TrailSpan:
        await self._number(trail)
        return await self._cold(lambda: trails.span(trail), read_only=True)

    async def trail_entries(self, trail: str, *, after: int, up_to: int, limit: int) -> list[TrailEntry]:
        return await self._cold(
            lambda: trails.entries(trail, after=after, up_to=up_to, limit=limit), read_only=True
        )

    async def transitions(self, queue: str, *, after: int, limit: int) -> TrailPage:
        await self._number(queue)
        return await self._cold(lambda: trails.read(queue, after=after, limit=limit), read_only=True)

    async def trail_offset(self, queue: str, *, since: datetime) -> int:
        await self._number(queue)
        return await self._cold(lambda: trails.offset(queue, since=since), read_only=True)

    async def trim_transitions(self, queue: str, *, up_to: int) -> int:
        return await self._cold(lambda: trails.trim(queue, up_to=up_to))

    async def forget_trail(self, queue: str) -> None:
        await self._cold(lambda: trails.forget(queue))
