"""The note taker: what handlers say of their jobs while they run, gathered and written together.

Handlers call it from coroutines and from threads, as often as they like: only the last word of progress in a
while is written, and lines of all jobs go together. They are in the store before their job's outcome is.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from remuda.codec import encode_payload
from remuda.errors import InvalidJobError, StoreError
from remuda.message import LogLine
from remuda.stores.contract import Note, Store

log = logging.getLogger("remuda.worker")

WRITE_EVERY = timedelta(milliseconds=250)
MAX_PROGRESS_BYTES = 64 * 1024
MAX_LINE_CHARACTERS = 4_096
MAX_LINES = 1_000  # of one run of a handler
_KEPT_UNWRITTEN = 10_000  # lines, while the store cannot be reached


class Notebook:
    """What the handler of one job says. `Job.progress` and `Job.log` write into it."""

    __slots__ = ("_attempt", "_job_id", "_lines", "_taker")

    def __init__(self, taker: NoteTaker, job_id: str, attempt: int) -> None:
        self._taker = taker
        self._job_id = job_id
        self._attempt = attempt
        self._lines = 0

    def progress(self, value: Any) -> None:
        try:
            encoded = encode_payload(value, name=self._job_id, max_bytes=MAX_PROGRESS_BYTES)
        except InvalidJobError as error:
            raise type(error)(f"the progress of job {self._job_id} cannot be kept: {error}") from error
        self._taker.take_progress(self._job_id, encoded)

    def log(self, text: str) -> None:
        self._lines += 1
        if self._lines > MAX_LINES:
            return
        if self._lines == MAX_LINES:
            text = f"(one run may say {MAX_LINES:,} lines: the rest is not kept)"
        if len(text) > MAX_LINE_CHARACTERS:
            text = f"{text[:MAX_LINE_CHARACTERS]} …"
        # Half a surrogate pair cannot be written anywhere.
        readable = text.encode(errors="backslashreplace").decode()
        self._taker.take_line(self._job_id, self._attempt, readable)


class NoteTaker:
    """Gathers what all handlers of a worker say, and writes it every so often."""

    def __init__(self, store: Store, queue: str, *, ttl: timedelta) -> None:
        self._store = store
        self._queue = queue
        self._ttl = ttl
        self._now: Callable[[], datetime] = store.now
        self._lock = threading.Lock()  # handlers may run in threads
        self._far: dict[str, bytes] = {}
        self._said: dict[str, list[LogLine]] = {}
        self._writing = asyncio.Lock()

    def notebook(self, job_id: str, attempt: int) -> Notebook:
        return Notebook(self, job_id, attempt)

    def take_progress(self, job_id: str, value: bytes) -> None:
        with self._lock:
            self._far[job_id] = value

    def take_line(self, job_id: str, attempt: int, text: str) -> None:
        line = LogLine(self._now(), attempt, text)
        with self._lock:
            self._said.setdefault(job_id, []).append(line)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(WRITE_EVERY.total_seconds())
            await self.write()

    async def write(self) -> None:
        """Write what was said so far. What cannot be written is tried again with the next."""
        if not self._far and not self._said:
            return
        async with self._writing:
            with self._lock:
                far, said = self._far, self._said
                self._far, self._said = {}, {}
            notes = [Note(each, far.get(each), said.get(each, ())) for each in {**far, **said}]
            if not notes:
                return
            try:
                await self._store.note(self._queue, notes, ttl=self._ttl)
            except StoreError as error:
                log.warning(
                    "what handlers said cannot be written: %s",
                    error,
                    extra={"action": "notes_unwritten", "jobs": len(notes)},
                )
                self._put_back(far, said)

    def _put_back(self, far: dict[str, bytes], said: dict[str, list[LogLine]]) -> None:
        with self._lock:
            self._far = {**far, **self._far}
            for job_id, lines in said.items():
                self._said[job_id] = [*lines, *self._said.get(job_id, ())]
            if sum(map(len, self._said.values())) > _KEPT_UNWRITTEN:
                log.error("lines of handlers are dropped: too many", extra={"action": "notes_dropped"})
                self._said = {}
