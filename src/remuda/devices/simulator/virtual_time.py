"""An event loop whose time jumps: days of device time in seconds, the same every time.

When nothing is ready, the loop does not wait for its next timer but moves its time there. Callbacks run
in the order of their timers, so a program that takes its randomness from seeded sources repeats itself
exactly. What comes from outside the loop does not fit in: a socket's answer takes real time, in which
virtual years may pass. Threads do not fit in either: what is given to `run_in_executor` (or
`asyncio.to_thread`) runs at once, in place, and the time stands still meanwhile.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from datetime import datetime, timedelta
from typing import Any, TypeVar

from remuda.clock import Clock
from remuda.errors import RemudaError

T = TypeVar("T")

_NAMED_TASKS = 10


class DeadlockError(RemudaError):
    """Everything waits, and no timer will ever wake anything."""


class _JumpingSelector(selectors.DefaultSelector):
    """Asks the system only when the loop has sockets, and never waits."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.steps = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.steps += 1
        if timeout is not None and timeout <= 0:
            return []
        if len(self.get_map()) > 1:  # one is the loop's own, by which other threads wake it
            ready = super().select(0)
            if ready:
                return ready
        if timeout is None:
            raise DeadlockError("everything waits forever: no timer is set")
        # Far from zero a short wait may be less than the next number that a float can hold.
        self.now = max(self.now + timeout, math.nextafter(self.now, math.inf))
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """The loop that `run_virtually` runs. `time()` starts at 0; `steps` counts the turns of the loop."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        # A timer is due when it is less than this ahead. The machine's own nanosecond is less than a float
        # can tell apart after some months, and then no timer would ever be due; this serves for 15 years,
        # and is still less than the microsecond of a timedelta.
        self._clock_resolution = 1e-7

    def time(self) -> float:
        return self._jumping.now

    @property
    def steps(self) -> int:
        return self._jumping.steps

    def run_in_executor(  # type: ignore[override]  # typeshed asks for TypeVarTuple, which 3.11 callers do not need
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run `func` now, in place."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  # it belongs to whoever awaits the future
            future.set_exception(error)
        return future


class LoopClock:
    """A `Clock` that shows the time of the running loop, counted from `start`."""

    def __init__(self, start: datetime, loop: asyncio.AbstractEventLoop) -> None:
        self._start = start
        self._loop = loop

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._loop.time())

    async def sleep(self, duration: timedelta) -> None:
        await asyncio.sleep(duration.total_seconds())


def run_virtually(main: Callable[[Clock], Awaitable[T]], *, start: datetime) -> T:
    """Run `main` to its end in virtual time, which begins at `start`; `DeadlockError` if it never ends.

    >>> async def nap(clock: Clock) -> datetime:
    ...     await clock.sleep(timedelta(days=30))
    ...     return clock.now()
    >>> run_virtually(nap, start=datetime(2030, 1, 1, tzinfo=UTC))
    datetime.datetime(2030, 1, 31, 0, 0, tzinfo=datetime.timezone.utc)
    """

    async def run() -> T:
        return await main(LoopClock(start, asyncio.get_running_loop()))

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        try:
            return runner.run(run())
        except DeadlockError as error:
            raise DeadlockError(f"{error}; {_waiting(runner.get_loop())}") from None


def _waiting(loop: asyncio.AbstractEventLoop) -> str:
    """The names of the tasks that wait, for the error."""
    names = sorted(task.get_name() for task in asyncio.all_tasks(loop))
    more = f" and {len(names) - _NAMED_TASKS} more" if len(names) > _NAMED_TASKS else ""
    return f"{len(names)} tasks wait: {', '.join(names[:_NAMED_TASKS])}{more}"
