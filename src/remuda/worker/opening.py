"""Opening a queue's store, however long it takes to be there."""

from __future__ import annotations

import asyncio
import logging

from remuda.backoff import Backoff
from remuda.errors import StoreUnavailableError
from remuda.queue import Queue

log = logging.getLogger("remuda.worker")


async def open_patiently(queue: Queue) -> None:
    """Try until the store is there. What no waiting mends (a wrong schema, say) is raised."""
    backoff = Backoff("the store cannot be opened", log)
    while True:
        try:
            await queue.open()
        except StoreUnavailableError as error:
            await backoff.wait(error)
        else:
            backoff.over()
            return


async def open_unless_stopped(queue: Queue, stopping: asyncio.Event) -> bool:
    """`open_patiently`, given up when told to stop; whether the store is open."""
    opening = asyncio.create_task(open_patiently(queue))
    stopped = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({opening, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if opening.done():
            opening.result()
            return True
        return False
    finally:
        opening.cancel()
        stopped.cancel()
        await asyncio.gather(opening, stopped, return_exceptions=True)
