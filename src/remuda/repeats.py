"""Repeatable jobs of a queue: put, list, remove, run now. The rules are in `remuda.schedule`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from remuda.codec import check_name, encode_payload
from remuda.errors import ConfigurationError, InvalidJobError
from remuda.schedule import MILLISECOND, Missed, Repeat, Repeating

if TYPE_CHECKING:
    from remuda.queue import Queue

LISTED_AT_MOST = 10_000
LONGEST_KEY = 255


class Repeats:
    """`queue.repeats`: the recipes from which workers make fresh jobs."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def put(
        self,
        name: str,
        payload: Any = None,
        *,
        every: timedelta | None = None,
        cron: str | None = None,
        zone: str = "UTC",
        start: datetime | None = None,
        end: datetime | None = None,
        limit: int | None = None,
        missed: Missed | str = Missed.SKIP,
        most: int | None = None,
        key: str | None = None,
    ) -> Repeating:
        """Make a spec, or change the one of the same key; as it stands now.

        >>> await reports.repeats.put("daily", {"to": "a"}, cron="0 9 * * *", zone="Europe/Berlin")
        >>> await reports.repeats.put("ping", every=timedelta(seconds=30))

        `cron` has five fields, or six with seconds first. Its key is `<name>::<pattern>` unless you give one.
        A spec that is put again with the same pattern and start keeps its next window and its count: a
        program may put its specs whenever it starts. `missed` says what is done about windows that passed
        while no worker ran: `skip`, `fire-once`, or `fire-all` of the latest `most`.
        """
        queue = self._queue
        queue.check_open()
        await queue.store.open()
        spec = Repeat(
            name=check_name(name, "a job's name", InvalidJobError),
            payload=encode_payload(payload, name=name, max_bytes=queue.max_payload_bytes),
            every=every,
            cron=None if cron is None else " ".join(cron.split()),
            zone=zone,
            start=_in_milliseconds("start", start),
            end=_in_milliseconds("end", end),
            limit=limit,
            missed=_missed(missed),
            most=most,
            key=key or "",
        )
        if len(spec.key.encode()) > LONGEST_KEY:
            raise ConfigurationError(f"the key of a spec has at most {LONGEST_KEY} bytes: {spec.key!r}")
        first = spec.first_window(_whole(queue.store.now()))
        if first is None:
            raise ConfigurationError(f"{spec.key!r} would never run: its end ({spec.end}) is over")
        before = await self.get(spec.key)
        keep = before is not None and _same_windows(before.spec, spec)
        await queue.store.put_repeat(queue.name, spec, first=first, keep=keep)
        return await self.get(spec.key) or Repeating(spec, first, 0)

    async def list(self, *, limit: int = LISTED_AT_MOST) -> list[Repeating]:
        """Specs, those that are due first first."""
        self._queue.check_open()
        return await self._queue.store.repeats(self._queue.name, limit=limit)

    async def get(self, key: str) -> Repeating | None:
        """One spec; None when there is none of that key."""
        self._queue.check_open()
        found = await self._queue.store.repeats(self._queue.name, key=key, limit=1)
        return found[0] if found else None

    async def remove(self, key: str) -> bool:
        """Remove a spec; False if there is none. Jobs that it has made stay as they are."""
        self._queue.check_open()
        return await self._queue.store.remove_repeat(self._queue.name, key)

    async def run(self, key: str) -> str:
        """Make a job of a spec now, beside its windows; its id."""
        found = await self.get(key)
        if found is None:
            raise ConfigurationError(f"{self._queue.name!r} has no repeatable job {key!r}")
        return await self._queue.add_encoded(found.spec.name, found.spec.payload)


def _missed(word: Missed | str) -> Missed:
    try:
        return Missed(word)
    except ValueError:
        raise ConfigurationError(f"missed is one of {', '.join(Missed)}, not {word!r}") from None


def _same_windows(one: Repeat, other: Repeat) -> bool:
    return (one.pattern, one.start) == (other.pattern, other.start)


def _in_milliseconds(what: str, moment: datetime | None) -> datetime | None:
    if moment is None:
        return None
    if moment.utcoffset() is None:
        raise ConfigurationError(f"{what} has no time zone: {moment!r}")
    return _whole(moment.astimezone(UTC))


def _whole(moment: datetime) -> datetime:
    """In whole milliseconds, as every store keeps windows."""
    return moment - timedelta(microseconds=moment.microsecond) % MILLISECOND
