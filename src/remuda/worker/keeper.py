"""The lease keeper: a healthy worker renews what it holds, and learns what it has lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta

from remuda.backoff import Backoff
from remuda.errors import StoreUnavailableError
from remuda.stores.contract import Delivery, Store
from remuda.worker.holdings import Holdings
from remuda.worker.settler import Settler

log = logging.getLogger("remuda.worker")


class LeaseKeeper:
    """Renews every third of a lease, and as often as the store asks for.

    `on_lost` is told of each delivery that another worker has by now.
    """

    def __init__(
        self,
        store: Store,
        queue: str,
        lease: timedelta,
        holdings: Holdings,
        settler: Settler,
        on_lost: Callable[[Delivery], None],
    ) -> None:
        self._store = store
        self._queue = queue
        self._lease = lease
        self._holdings = holdings
        self._settler = settler
        self._on_lost = on_lost
        self._backoff = Backoff("leases cannot be renewed", log)

    async def run(self) -> None:
        """Until cancelled."""
        within = (await self._store.open()).renew_within
        every = min(self._lease / 3, within or self._lease).total_seconds()
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + every
            await asyncio.sleep(every)
            if loop.time() - due > every:
                log.warning(
                    "the event loop was blocked for %.1f s, and leases with it: make the handler a plain "
                    "function, which runs in a thread",
                    loop.time() - due,
                    extra={"action": "loop_blocked"},
                )
            await self._renew()

    async def _renew(self) -> None:
        while True:
            # An outcome on its way needs no lease; both at once could wait for each other's rows.
            leaving = self._settler.being_written()
            held = self._holdings.all_but(leaving)
            try:
                lost = await self._store.extend(self._queue, held, lease=self._lease)
            except StoreUnavailableError as error:
                await self._backoff.wait(error)
                continue
            self._backoff.over()
            leaving |= self._settler.being_written()
            for delivery in lost:
                # Settled between the question and the answer: not lost, but done.
                if delivery in self._holdings and id(delivery) not in leaving:
                    self._holdings.lose(delivery)
                    self._on_lost(delivery)
            return
