"""Results: what a job came to, read once or waited for. Many waiters of a queue share one look at the store.

A job that completes leaves what its handler returned; one that dies leaves its reason and its error, marked
by a byte that no payload begins with.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from remuda.codec import decode_payload
from remuda.errors import JobFailedError, NoResultError, StoreUnavailableError
from remuda.lifecycle import State
from remuda.message import JobRecord, Result

if TYPE_CHECKING:
    from remuda.stores.contract import Failure, Store

_FAILED = b"\xc1"  # stands for nothing in msgpack
_MISSED_WORD = timedelta(seconds=1)  # a look at least this often, should a word to the waiters be lost
_POLL = timedelta(milliseconds=50)  # where the store cannot wake anybody
_COMPANY_S = 0.002  # between two looks: on a busy queue something ends all the time
_FIRST_DOUBT_S = 1.0  # after this long a waiter's job itself is looked at: it may be gone …
_DOUBTS_AT_ONCE = 5
_LONGEST_DOUBT_S = 30.0  # … and then ever more rarely


def encode_failure(reason: str | None, failure: Failure | None) -> bytes:
    """How a dead letter is kept as a result."""
    kind, message = (None, None) if failure is None else (failure.type, failure.message)
    return _FAILED + msgspec.msgpack.encode([reason or "", kind, message])


def is_failure(kept: bytes) -> bool:
    return kept.startswith(_FAILED)


def open_result(job_id: str, kept: bytes) -> Result:
    """The result; `JobFailedError` for that of a dead letter."""
    if is_failure(kept):
        reason, kind, message = msgspec.msgpack.decode(kept[1:])
        raise JobFailedError(job_id, reason, kind, message)
    return Result(decode_payload(kept, None))


def failure_of(record: JobRecord | None) -> JobFailedError | None:
    """The error of a job that is a dead letter."""
    if record is None or record.state is not State.FAILED:
        return None
    return JobFailedError(record.id, record.reason or "", record.error_type, record.error_message)


class _Waiter:
    """One caller, and when its job is looked at next."""

    def __init__(self, job_id: str, now: float) -> None:
        self.job_id = job_id
        self.answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.doubt_s = _FIRST_DOUBT_S
        self.doubts_at = now + _FIRST_DOUBT_S

    def end(self, kept: bytes) -> None:
        try:
            self.answer.set_result(open_result(self.job_id, kept))
        except Exception as error:  # noqa: BLE001 - it is the caller's answer
            self.answer.set_exception(error)


class Waiting:
    """All that wait for results of one queue in this program."""

    def __init__(self, store: Store, queue: str) -> None:
        self._store = store
        self._queue = queue
        self._waiters: set[_Waiter] = set()
        self._looking: asyncio.Task[None] | None = None

    async def wait(self, job_id: str, timeout: timedelta) -> Result:
        """The result as soon as it is there; `TimeoutError` when it is not in time."""
        waiter = _Waiter(job_id, asyncio.get_running_loop().time())
        self._waiters.add(waiter)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="remuda-results")
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                return await waiter.answer
        except TimeoutError:
            raise TimeoutError(f"job {job_id} has no result after {timeout}") from None
        finally:
            self._waiters.discard(waiter)

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()

    async def _look(self) -> None:
        """While anybody waits."""
        try:
            capabilities = await self._store.open()
            longest = _POLL if capabilities.wake == "poll" else _MISSED_WORD
            wakeup = self._store.watch_results(self._queue)
            try:
                while self._waiters:
                    with suppress(StoreUnavailableError):
                        await self._give_out()
                        await self._doubt()
                    if self._waiters:
                        await asyncio.sleep(_COMPANY_S)
                        await wakeup.wait(longest)
            finally:
                wakeup.close()
        except Exception as error:  # noqa: BLE001 - it is the waiters' answer
            for waiter in self._open():
                waiter.answer.set_exception(error)

    def _open(self) -> list[_Waiter]:
        return [each for each in self._waiters if not each.answer.done()]

    async def _give_out(self) -> None:
        waiters = self._open()
        if not waiters:
            return
        kept = await self._store.results(self._queue, list({each.job_id for each in waiters}))
        for waiter in waiters:
            if waiter.job_id in kept and not waiter.answer.done():
                waiter.end(kept[waiter.job_id])

    async def _doubt(self) -> None:
        """Look whether what is waited for can still come."""
        now = asyncio.get_running_loop().time()
        doubtful = [each for each in self._open() if each.doubts_at <= now]
        for waiter in doubtful[:_DOUBTS_AT_ONCE]:  # such a look may be long, and the others wait for it
            waiter.doubt_s = min(2 * waiter.doubt_s, _LONGEST_DOUBT_S)
            waiter.doubts_at = now + waiter.doubt_s
            record = await self._store.get(self._queue, waiter.job_id)
            error: Exception | None = failure_of(record)
            if error is None and (record is None or record.state is State.COMPLETED):
                # It may have ended between the two looks.
                if waiter.job_id in await self._store.results(self._queue, [waiter.job_id]):
                    continue
                error = NoResultError(
                    f"no result of job {waiter.job_id} is kept: "
                    + ("there is no such job" if record is None else "it completed without store_results")
                )
            if error is not None and not waiter.answer.done():
                waiter.answer.set_exception(error)
