"""Signals from the inbox to the commands that they are for."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta

import msgspec

from remuda.devices.codecs import Codecs
from remuda.devices.codecs.contract import Report, UnsupportedCommandError
from remuda.devices.command import Answer, Command
from remuda.devices.correlate import Routed, Verdict, decode, names_attempt, route
from remuda.devices.ledger import Ledger, Upshot
from remuda.devices.networks import signals
from remuda.errors import DecodeError
from remuda.stores.commands import StoredSignal

_log = logging.getLogger("remuda.devices")

TAKEN_AT_ONCE = 500
_HOLD = timedelta(seconds=30)
_FIRST_WAIT = timedelta(milliseconds=500)
_LONGEST_WAIT = timedelta(seconds=8)
_DEFAULT_TYPE = "calin-meter"


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a device, or its network server, told by itself: a report, a join, its status."""

    id: str
    device: str
    at: datetime
    type: str
    data: object = None


class Listened(msgspec.Struct, frozen=True):
    """What came of one batch: commands that changed, and when to look again for what was put off."""

    taken: int
    upshots: list[Upshot] = []
    look_again_in: float | None = None


async def keep(ledger: Ledger, told: Sequence[signals.Signal]) -> int:
    """Put signals into the inbox; how many are new. They are durable when this returns."""
    now = ledger.store.now()
    stored = [
        StoredSignal(id=each.id, device=each.device, body=signals.pack(each), received_at=now)
        for each in told
    ]
    return await ledger.store.keep_signals(stored, remember=ledger.timings.remember)


class Listener:
    """Takes signals from the inbox in batches, and lets them happen to their commands."""

    def __init__(
        self,
        ledger: Ledger,
        codecs: Codecs,
        *,
        report: Callable[[DeviceReport], Awaitable[None]],
        default_type: str = _DEFAULT_TYPE,
    ) -> None:
        self._ledger = ledger
        self._codecs = codecs
        self._report = report
        self._default_type = default_type

    async def listen(self) -> Listened:
        """Take and settle one batch of signals."""
        taken = await self._ledger.store.take_signals(limit=TAKEN_AT_ONCE, hold=_HOLD)
        if not taken:
            return Listened(0)
        done: list[str] = []
        waiting: list[tuple[StoredSignal, signals.Signal]] = []
        for stored in taken:
            try:
                waiting.append((stored, signals.unpack(stored.body)))
            except DecodeError:
                _log.exception("a stored signal of %s cannot be read, and is dropped", stored.device)
                done.append(stored.id)
        upshots: list[Upshot] = []
        later: list[tuple[str, datetime]] = []
        while waiting:
            waiting, settled, postponed, changed = await self._pass(waiting)
            done += settled
            later += postponed
            upshots += changed
        await self._ledger.store.settle_signals(done=done, later=later)
        return Listened(len(taken), upshots, _FIRST_WAIT.total_seconds() if later else None)

    async def _pass(
        self, waiting: list[tuple[StoredSignal, signals.Signal]]
    ) -> tuple[
        list[tuple[StoredSignal, signals.Signal]], list[str], list[tuple[str, datetime]], list[Upshot]
    ]:
        """Route every signal; those whose command changed meanwhile come again."""
        hearers = await self._ledger.hearers(list({signal.device for _, signal in waiting}))
        page = self._ledger.page(each for commands in hearers.values() for each in commands)
        taken = await self._taken(waiting, hearers)
        done: list[str] = []
        unmatched: list[tuple[StoredSignal, signals.Signal]] = []
        used: dict[str, list[tuple[StoredSignal, signals.Signal]]] = {}
        for stored, signal in waiting:
            ids = [each.id for each in hearers.get(signal.device, ())]
            commands = [page.commands[each] for each in ids if not page.commands[each].has_ended]
            heard = self._decoded(signal, commands)
            where = route(signal, commands, heard, taken)
            if isinstance(where, Routed):
                page.apply(where.command.id, where.happening)
                used.setdefault(where.command.id, []).append((stored, signal))
            elif where is Verdict.LATER:
                unmatched.append((stored, signal))
            else:
                if where is Verdict.REPORT:
                    await self._report(_report_of(signal, heard))
                done.append(stored.id)
        upshots, missed = await page.write()
        again = [each for command_id in missed for each in used.pop(command_id)]
        done += [stored.id for each in used.values() for stored, _ in each]
        gone, later = await self._postpone(unmatched)
        return again, done + gone, later, upshots

    async def _taken(
        self, waiting: list[tuple[StoredSignal, signals.Signal]], hearers: dict[str, list[Command]]
    ) -> set[str]:
        """Those names that no hearer has, but that belong to some command all the same."""
        strange = {
            signal.external_id
            for _, signal in waiting
            if isinstance(signal, signals.TxAck | signals.Ack | signals.Discarded)
            and signal.device in hearers
            and not names_attempt(signal, hearers[signal.device])
        }
        return set(await self._ledger.store.find(list(strange))) if strange else set()

    async def _postpone(
        self, unmatched: list[tuple[StoredSignal, signals.Signal]]
    ) -> tuple[list[str], list[tuple[str, datetime]]]:
        """A signal may come before its command knows its name. One whose command has ended is over."""
        if not unmatched:
            return [], []
        names = {
            stored.id: signal.external_id
            for stored, signal in unmatched
            if isinstance(signal, signals.TxAck | signals.Ack | signals.Discarded)
        }
        over = await self._ended(set(names.values()))
        now = self._ledger.store.now()
        done: list[str] = []
        later: list[tuple[str, datetime]] = []
        for stored, _ in unmatched:
            if names.get(stored.id) in over or now - stored.received_at > self._ledger.timings.unmatched:
                done.append(stored.id)
            else:
                later.append((stored.id, now + min(_FIRST_WAIT * 2 ** min(stored.looks, 10), _LONGEST_WAIT)))
        return done, later

    async def _ended(self, external_ids: set[str]) -> set[str]:
        """Those of the names whose command has ended."""
        if not external_ids:
            return set()
        owners = await self._ledger.store.find(list(external_ids))
        commands = await self._ledger.load(list(set(owners.values())))
        return {name for name, owner in owners.items() if owner in commands and commands[owner].has_ended}

    def _decoded(self, signal: signals.Signal, commands: Sequence[Command]) -> Answer | Report | None:
        try:
            return decode(signal, self._codecs.get(self._type_of(commands)))
        except Exception:  # noqa: BLE001  # a codec is a plug-in: one uplink must not hold up the inbox
            _log.exception("a codec failed on an uplink of %s, which is dropped", signal.device)
            return None

    def _type_of(self, commands: Sequence[Command]) -> str:
        kind = commands[-1].device.type if commands else self._default_type
        try:
            self._codecs.get(kind)
        except UnsupportedCommandError:
            return self._default_type
        return kind


def _report_of(signal: signals.Signal, heard: object) -> DeviceReport:
    if isinstance(signal, signals.Uplink) and isinstance(heard, Report):
        kind, data = heard.type.value, heard.data
    elif isinstance(signal, signals.Joined):
        kind, data = "JOIN_NETWORK", None
    else:
        kind, data = "STATUS", getattr(signal, "data", None)
    return DeviceReport(id=signal.id, device=signal.device, at=signal.at, type=kind, data=data)
