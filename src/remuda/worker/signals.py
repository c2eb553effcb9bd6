"""SIGTERM and SIGINT ask a worker to stop; once more ends it at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator

log = logging.getLogger("remuda.worker")

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


def end_process(threads: int) -> None:
    """End here and now: Python would wait for threads that nobody can stop.

    Their jobs stay leased, so that nobody runs them beside a thread that is still at it; they are
    delivered again when the lease ends.
    """
    log.warning(
        "ending the process: %d handlers still run in threads, which cannot be stopped",
        threads,
        extra={"action": "process_ended"},
    )
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
