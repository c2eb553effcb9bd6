"""Adds that come while another add is on its way share the next one: many callers, few transactions."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from remuda.errors import StoreUnavailableError
from remuda.stores.contract import EncodedJob, Store

MERGED_AT_MOST = 1_000


class _Waiting(NamedTuple):
    job: EncodedJob
    new: asyncio.Future[bool]


class MergingAdder:
    """Adds single jobs of one queue. The first goes at once; those behind it go together."""

    def __init__(self, store: Store, queue: str, who: str) -> None:
        self._store = store
        self._queue = queue
        self._who = who
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
            return (await self._store.add(self._queue, [job], who=self._who))[0]
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

    async def _add_together(self, batch: list[_Waiting]) -> None:
        try:
            new = await self._store.add(self._queue, [each.job for each in batch], who=self._who)
        except BaseException as error:
            if (
                isinstance(error, Exception)
                and len(batch) > 1
                and not isinstance(error, StoreUnavailableError)
            ):
                # The store refuses one of them: its neighbours, who know nothing of it, go without it.
                half = len(batch) // 2
                await self._add_together(batch[:half])
                await self._add_together(batch[half:])
                return
            for each in batch:
                if not each.new.done():
                    each.new.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        for each, is_new in zip(batch, new, strict=True):
            if not each.new.done():
                each.new.set_result(is_new)
