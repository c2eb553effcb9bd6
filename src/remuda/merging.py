"""Adds that come while another add is on its way share the next one: many callers, few transactions."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from remuda.errors import QueueFullError, StoreUnavailableError
from remuda.stores.contract import EncodedJob, Store

MERGED_AT_MOST = 1_000


class _Waiting(NamedTuple):
    job: EncodedJob
    new: asyncio.Future[bool]


class MergingAdder:
    """Adds single jobs of one queue. The first goes at once; those behind it go together."""

    def __init__(self, store: Store, queue: str, who: str, *, max_live: int | None = None) -> None:
        self._store = store
        self._queue = queue
        self._who = who
        self._max_live = max_live
        self._waiting: list[_Waiting] = []
        self._busy = False
        self._follower: asyncio.Task[None] | None = None

    async def add(self, job: EncodedJob) -> bool:
        """Add one job; whether it is new. Returns when it is durable."""
        if self._busy:
            waiting = _Waiting(job, asyncio.get_running_loop().create_future())
            self._waiting.append(waiting)
            return await waiting.new
        self._busy = True
        try:
            return (await self._write([job]))[0]
        finally:
            if self._waiting:
                self._follower = asyncio.create_task(self._follow())
            else:
                self._busy = False

    async def _follow(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:MERGED_AT_MOST], self._waiting[MERGED_AT_MOST:]
                await self._add_together(batch)
        finally:
            self._busy = False

    async def _write(self, jobs: list[EncodedJob]) -> list[bool]:
        return await self._store.add(self._queue, jobs, who=self._who, max_live=self._max_live)

    async def _add_together(self, batch: list[_Waiting]) -> QueueFullError | None:
        """Add a batch; the error, if the queue had no place for a job of it that was tried alone."""
        try:
            new = await self._write([each.job for each in batch])
        except BaseException as error:
            if (
                isinstance(error, Exception)
                and len(batch) > 1
                and not isinstance(error, StoreUnavailableError)
            ):
                return await self._add_halves(batch)
            _refuse(batch, error)
            if not isinstance(error, Exception):
                raise
            return error if isinstance(error, QueueFullError) else None
        for each, is_new in zip(batch, new, strict=True):
            if not each.new.done():
                each.new.set_result(is_new)
        return None

    async def _add_halves(self, batch: list[_Waiting]) -> QueueFullError | None:
        """The store refuses one of them: its neighbours, who know nothing of it, go without it."""
        half = len(batch) // 2
        first, second = batch[:half], batch[half:]
        full = await self._add_together(first)
        if full is not None:
            # No place for the one before, so none for these; but a unique one may be there already.
            _refuse([each for each in second if not each.job.unique], full)
            second = [each for each in second if each.job.unique]
        if second:
            full = await self._add_together(second) or full
        return full


def _refuse(batch: list[_Waiting], error: BaseException) -> None:
    for each in batch:
        if not each.new.done():
            each.new.set_exception(error)
