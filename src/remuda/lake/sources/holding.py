"""What a stream holds of a queue: from the fetch to the ack, under leases that a background task renews.

A micro-batch is what was fetched under its leases, less what became a dead letter at once. Their numbers
go into Spark's offset log, so that a query that was started anew finds what it still holds, acks what was
committed, and reads again what was not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from remuda.backoff import Backoff
from remuda.codec import CONTENT_TYPE, decode_headers, decode_payload
from remuda.errors import DecodeError, StoreUnavailableError
from remuda.identity import make_identity
from remuda.lake.sources.records import json_text
from remuda.lifecycle import Reason, State
from remuda.stores.contract import NO_SUSPECTS, Delivery, Settlement, Store, Suspects
from remuda.worker.outcomes import undecodable, unheard
from remuda.worker.settler import WRITTEN_AT_MOST
from remuda.worker.turns import Turns

log = logging.getLogger("remuda.lake")

RECOVER_EVERY_S = 10.0
SUSPECTS_EVERY = 4  # one fetch in so many begins with what was delivered in vain before


class Message(msgspec.Struct, frozen=True):
    """A delivery that can be read, and its payload as a row has it."""

    delivery: Delivery
    payload: str | bytes

    def column(self, name: str) -> Any:
        """What a row says in a column."""
        return self.payload if name == "payload" else getattr(self.delivery, name)


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """How a stream holds messages: the options of the source."""

    queue: str
    lease: timedelta
    max_deliveries: int | None
    max_payload_bytes: int
    raw: bool
    archive_completed: bool


class Holding:
    """The messages that one stream holds. Its coroutines run on one event loop, one at a time (`lock`)."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._who = make_identity("spark")
        self._held: dict[int, list[Message]] = {}  # by the number of their micro-batch
        self._turns: Turns | None = None
        self._fetches = 0
        self.lock = asyncio.Lock()

    # -- fetching

    async def fetch(self, store: Store, batch: int, limit: int) -> list[Message]:
        """Messages for a micro-batch; what cannot be read becomes a dead letter. Held until `ack`."""
        async with self.lock:
            self._fetches += 1
            while True:
                deliveries = await self._fetch(store, limit)
                messages = await self._readable(store, deliveries)
                if messages or not deliveries:
                    break
            if messages:
                self._held[batch] = messages
            return messages

    async def _fetch(self, store: Store, limit: int) -> list[Delivery]:
        """As the queue's rate limits allow."""
        if self._turns is None:
            self._turns = Turns(store, self._terms.queue, self._who)
        await self._turns.look()
        granted = await self._turns.take(limit)
        fetched = await self._fetch_some(store, granted) if granted else []
        kept = await self._turns.of_now(fetched)
        await self._turns.give_back_all_but(len(kept))
        return kept

    async def _fetch_some(self, store: Store, limit: int) -> list[Delivery]:
        """What was delivered in vain before comes by itself, the more often the fewer together."""
        most = self._terms.max_deliveries
        if most is None:
            return await self._ask(store, limit, NO_SUSPECTS)
        asks = [(limit, Suspects(1, only=False))]
        suspects = [
            (narrowed(limit, delivered, most), Suspects(delivered, only=True))
            for delivered in range(max(1, most - 1), 0, -1)
        ]
        asks = [*suspects, *asks] if self._fetches % SUSPECTS_EVERY == 0 else [*asks, *suspects]
        for size, which in asks:
            found = await self._ask(store, size, which)
            if found:
                return found
        return []

    async def _ask(self, store: Store, limit: int, which: Suspects) -> list[Delivery]:
        terms = self._terms
        return await store.fetch(terms.queue, limit=limit, lease=terms.lease, who=self._who, suspects=which)

    async def _readable(self, store: Store, deliveries: Sequence[Delivery]) -> list[Message]:
        now = store.now()
        messages: list[Message] = []
        ended: list[Settlement] = []
        for each in deliveries:
            opened = open_delivery(each, self._terms, now)
            if isinstance(opened, Settlement):
                ended.append(opened)
            else:
                messages.append(opened)
        if ended:
            await self._settle(store, ended)
            log.warning(
                "%d messages of %s became dead letters: no row could be made of them",
                len(ended),
                self._terms.queue,
                extra={"action": "dead_unheard", "jobs": [each.delivery.id for each in ended[:20]]},
            )
        return messages

    async def count_due(self, store: Store) -> int:
        """How many messages could be fetched now."""
        stats = await store.stats(self._terms.queue)
        return stats.pending + stats.retryable - stats.delayed

    # -- a query that was started anew

    async def messages_of(self, store: Store, batch: int, leases: Sequence[int]) -> list[Message]:
        """The messages of a micro-batch: of one that is run again those that are still held.

        With `max_deliveries` they are put back instead, so that each run of them counts as a delivery.
        """
        if batch in self._held:
            return self._held[batch]
        async with self.lock:
            deliveries = await store.held(self._terms.queue, leases)
            if self._terms.max_deliveries is not None:
                await store.release(self._terms.queue, deliveries, who=self._who, counted=True)
                return []
            lost = await store.extend(self._terms.queue, deliveries, lease=self._terms.lease)
            gone = {id(each) for each in lost}
            messages = await self._readable(store, [each for each in deliveries if id(each) not in gone])
            self._held[batch] = messages
            return messages

    # -- acking

    async def ack(self, store: Store, batch: int, leases: Sequence[int]) -> None:
        """Complete the messages of a micro-batch that Spark has committed, as far as they are still held."""
        async with self.lock:
            messages = self._held.get(batch)
            if messages is not None:
                deliveries = [each.delivery for each in messages]
            else:
                deliveries = await store.held(self._terms.queue, leases)
            lost = await self._settle(
                store,
                [
                    Settlement(
                        delivery=each,
                        state=State.COMPLETED,
                        started_at=each.acquired_at,
                        keep=self._terms.archive_completed,
                    )
                    for each in deliveries
                ],
            )
            self._held.pop(batch, None)
        if lost:
            log.warning(
                "%d messages of %s were processed after their lease had ended, and are delivered again",
                lost,
                self._terms.queue,
                extra={"action": "outcome_lost"},
            )

    async def _settle(self, store: Store, settlements: Sequence[Settlement]) -> int:
        lost = 0
        for start in range(0, len(settlements), WRITTEN_AT_MOST):
            part = settlements[start : start + WRITTEN_AT_MOST]
            lost += len(await store.settle(self._terms.queue, part, who=self._who))
        return lost

    # -- keeping

    async def keep_leases(self, store: Store) -> None:
        """Renew what is held, as long as this process lives."""
        backoff = Backoff("leases cannot be renewed", log)
        while True:
            try:
                within = (await store.open()).renew_within
                every = min(self._terms.lease / 3, within or self._terms.lease)
                await asyncio.sleep(every.total_seconds())
                await self._renew(store)
            except StoreUnavailableError as error:
                await backoff.wait(error)
            else:
                backoff.over()

    async def _renew(self, store: Store) -> None:
        async with self.lock:
            deliveries = [
                each.delivery for batch in self._held.values() for each in batch if not each.delivery.lost
            ]
            for each in await store.extend(self._terms.queue, deliveries, lease=self._terms.lease):
                each.lost = True

    async def recover(self, store: Store) -> None:
        """Put back what dead workers, or dead queries, hold."""
        await store.recover(self._terms.queue, timeout=self._terms.lease, who=self._who)

    async def keep_recovering(self, store: Store) -> None:
        """A queue that only Spark reads has no worker that would do it."""
        backoff = Backoff("the messages of dead workers cannot be recovered", log)
        while True:
            await asyncio.sleep(RECOVER_EVERY_S)
            try:
                await self.recover(store)
            except StoreUnavailableError as error:
                await backoff.wait(error)
            else:
                backoff.over()


def narrowed(limit: int, delivered: int, most: int) -> int:
    """How many messages that were delivered `delivered` times in vain may come together.

    Fewer each time, and on the last allowed delivery one alone: a message that makes its batch fail takes no
    others with it.
    """
    return 1 if delivered >= most - 1 else max(1, round(limit ** (1 - delivered / (most - 1))))


def open_delivery(delivery: Delivery, terms: Terms, now: datetime) -> Message | Settlement:
    """A message that a row can be made of, or the end of one that cannot be read."""
    ended = unheard(
        delivery, now=now, max_deliveries=terms.max_deliveries, max_payload_bytes=terms.max_payload_bytes
    )
    if ended is not None:
        return ended
    try:
        headers = decode_headers(delivery.headers)
    except DecodeError as error:
        return undecodable(delivery, error, Reason.MALFORMED)
    if terms.raw:
        return Message(delivery, delivery.payload)
    try:
        return Message(delivery, _as_json(delivery, headers.get(CONTENT_TYPE)))
    except DecodeError as error:
        return undecodable(delivery, error)


def _as_json(delivery: Delivery, content_type: object) -> str:
    value = decode_payload(delivery.payload, content_type, foreign=delivery.foreign)
    try:
        return json_text(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise DecodeError(
            f"the payload cannot be written as JSON ({error}): read it with payload=raw"
        ) from error
