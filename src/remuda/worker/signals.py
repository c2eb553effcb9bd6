"""SIGTERM and SIGINT ask a worker to stop; once more ends it at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on each stop signal. Outside the main thread, where there are none, does nothing."""
    loop = asyncio.get_running_loop()
    heard = []
    for each in STOP_SIGNALS:
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(each, stop)
            heard.append(each)
    try:
        yield
    finally:
        for each in heard:
            loop.remove_signal_handler(each)
