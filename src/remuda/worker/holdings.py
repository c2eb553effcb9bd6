"""Holdings: the deliveries that a worker holds under lease, from the fetch to the written outcome."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime

from remuda.lifecycle import State
from remuda.stores.contract import Delivery, Settlement
from remuda.worker.counts import Counts

log = logging.getLogger("remuda.worker")


class Holdings:
    """What is held, and what was lost of it. A delivery that is lost is somebody else's by now."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._held: dict[int, Delivery] = {}

    def take_in(self, deliveries: Iterable[Delivery]) -> None:
        for each in deliveries:
            self._held[id(each)] = each
            self._counts.fetched += 1

    def __contains__(self, delivery: Delivery) -> bool:
        return id(delivery) in self._held

    def all_but(self, leaving: set[int]) -> list[Delivery]:
        """What is held, less the deliveries with these identities."""
        return [each for key, each in self._held.items() if key not in leaving]

    def let_go(self, deliveries: Iterable[Delivery]) -> None:
        for each in deliveries:
            self._held.pop(id(each), None)

    def lose(self, delivery: Delivery) -> None:
        """Its lease is over: it must not be started, and what runs of it is in vain."""
        self._held.pop(id(delivery), None)
        if not delivery.lost:
            delivery.lost = True
            self._counts.lost += 1

    def still_ours(self, unit: list[Delivery], now: datetime) -> list[Delivery]:
        """Those of a unit that may be started: not lost, and with their lease not run out unnoticed."""
        if len(unit) == 1 and not unit[0].lost and unit[0].leased_until > now:
            return unit
        kept = [each for each in unit if not each.lost and each.leased_until > now]
        if len(kept) < len(unit):
            gone = [each for each in unit if each.lost or each.leased_until <= now]
            for each in gone:
                self.lose(each)
            log.warning(
                "%d jobs were not started: their lease had ended",
                len(gone),
                extra={"action": "lease_lost", "jobs": [each.id for each in gone]},
            )
        return kept

    def written(self, settlements: Sequence[Settlement], lost: Sequence[Settlement]) -> None:
        """Outcomes are in the store, but for those that came too late."""
        refused = {id(each) for each in lost}
        for each in settlements:
            if id(each) in refused:
                self.lose(each.delivery)
                log.warning(
                    "the outcome of job %s came too late: its lease was lost",
                    each.delivery.id,
                    extra={"action": "outcome_lost", "job": each.delivery.id},
                )
                continue
            self._held.pop(id(each.delivery), None)
            if each.state is State.COMPLETED:
                self._counts.completed += 1
            elif each.state is State.RETRYABLE:
                self._counts.retried += 1
            else:
                self._counts.failed += 1
