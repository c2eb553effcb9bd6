"""Where happenings meet records: load, decide, write; and decide again when another was quicker."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import msgspec
from msgspec.structs import replace

from remuda.devices.command import Command, unpack
from remuda.devices.happenings import Effect, Happening
from remuda.devices.placing import change_of
from remuda.devices.rules import decide
from remuda.devices.timings import Timings
from remuda.errors import DecodeError, StoreUnavailableError
from remuda.lifecycle import CommandStatus
from remuda.stores.commands import Change, CommandStore, Move, StoredCommand

_log = logging.getLogger("remuda.devices")

_TRIES = 50  # another writer was quicker so often only when something is wrong


class Upshot(msgspec.Struct, frozen=True):
    """A command after what happened to it, and what it asks for."""

    command: Command
    effects: tuple[Effect, ...]


class Addition(msgspec.Struct, frozen=True):
    """A new command, and the moves that it makes beyond its adding."""

    command: Command
    moves: tuple[Move, ...] = ()


def opened(stored: StoredCommand) -> Command:
    """The record of a command, with the version that it was read with."""
    return replace(unpack(stored.record), version=stored.version)


def opened_all(stored: Iterable[StoredCommand]) -> list[Command]:
    """Those records that can be read. One that cannot is logged, and holds up nobody."""
    commands = []
    for each in stored:
        try:
            commands.append(opened(each))
        except DecodeError:
            _log.exception("the record of command %s is passed over", each.id)
    return commands


def by_age(command: Command) -> tuple[datetime, str]:
    """What the older of two commands has less of. Not every id is made from the moment."""
    return command.created_at, command.id


class Page:
    """Commands as they were read, and as they are after what happened to them: the next write."""

    def __init__(self, commands: Iterable[Command], ledger: Ledger) -> None:
        self.commands = {each.id: each for each in commands}
        self._ledger = ledger
        self._moves: dict[str, list[Move]] = {}  # of those that have changed
        self._effects: dict[str, list[Effect]] = {}

    def apply(self, command_id: str, happening: Happening) -> None:
        """Let something happen to a command; it is written with the page."""
        command, ledger = self.commands[command_id], self._ledger
        now = ledger.store.now()
        try:
            decision = decide(command, happening, now=now, timings=ledger.timings, rng=ledger.rng)
        except Exception:  # noqa: BLE001  # a mistake in a rule stops one command, not all that share its batch
            _log.exception("no rule could be applied to command %s: %r", command_id, type(happening).__name__)
            return
        if decision.command is not command:
            self._moves.setdefault(command_id, []).extend(decision.moves)
            self.commands[command_id] = decision.command
        if decision.effects:
            self._effects.setdefault(command_id, []).extend(decision.effects)

    def changes(self) -> list[Change]:
        """What is to be written. A command that only asks for something stays as it is."""
        return [change_of(self.commands[each], tuple(moves)) for each, moves in self._moves.items()]

    async def write(self) -> tuple[list[Upshot], list[str]]:
        """Write what has changed: the commands as they now are, and the ids where another was quicker."""
        changes = self.changes()
        written = await self._ledger.store.write(changes, who=self._ledger.who) if changes else []
        missed = [each.id for each, done in zip(changes, written, strict=True) if not done]
        upshots = [
            self._upshot(each) for each in dict.fromkeys((*self._moves, *self._effects)) if each not in missed
        ]
        return upshots, missed

    def _upshot(self, command_id: str) -> Upshot:
        command = self.commands[command_id]
        if command_id in self._moves:
            command = replace(command, version=command.version + 1)
        return Upshot(command, tuple(self._effects.get(command_id, ())))


class Ledger:
    """The only way in which an engine or a program changes commands."""

    def __init__(self, store: CommandStore, *, timings: Timings, rng: random.Random, who: str) -> None:
        self.store = store
        self.timings = timings
        self.rng = rng
        self.who = who

    def page(self, commands: Iterable[Command]) -> Page:
        """A page of commands that were read just now."""
        return Page(commands, self)

    async def load(self, ids: Sequence[str]) -> dict[str, Command]:
        """Those commands that there are."""
        return {each.id: each for each in opened_all((await self.store.load(ids)).values())}

    async def hearers(self, devices: Sequence[str]) -> dict[str, list[Command]]:
        """The live commands that each device's signals may be for, oldest first."""
        found = await self.store.hearers(devices)
        return {device: sorted(opened_all(stored), key=by_age) for device, stored in found.items()}

    async def happen(
        self,
        happenings: Mapping[str, Sequence[Happening]],
        known: Mapping[str, Command] | None = None,
    ) -> list[Upshot]:
        """Let things happen to commands, by id, in order; what changed. `known` are read already.

        An id that the store does not know is passed over.
        """
        upshots: list[Upshot] = []
        waiting = dict(happenings)
        read = dict(known or {})
        for _ in range(_TRIES):
            missing = [each for each in waiting if each not in read]
            if missing:
                read |= await self.load(missing)
            page = self.page(read[each] for each in waiting if each in read)
            for command_id in page.commands:
                for happening in waiting[command_id]:
                    page.apply(command_id, happening)
            done, missed = await page.write()
            upshots += done
            if not missed:
                return upshots
            waiting = {each: waiting[each] for each in missed}
            read = {}
        raise StoreUnavailableError(
            f"commands changed too often while they were written: {list(waiting)[:5]}"
        )

    def addition(self, command: Command, happening: Happening) -> Addition:
        """A new command to which something happens before it is written."""
        decision = decide(command, happening, now=self.store.now(), timings=self.timings, rng=self.rng)
        return Addition(decision.command, decision.moves)

    async def add(self, additions: Sequence[Addition], others: Page) -> bool:
        """Add new commands together with changes of others; False: somebody was quicker, nothing changed."""
        added = [change_of(each.command, (_adding(each.command), *each.moves)) for each in additions]
        changes = [*others.changes(), *added]
        return not changes or all(await self.store.write(changes, who=self.who, whole=True))


def _adding(command: Command) -> Move:
    device = command.device
    about = {"device": device.key, "lane": command.lane, "protocol": device.protocol.value}
    if device.gateway is not None:
        about["gateway"] = device.gateway.id
    if command.grid is not None:
        about["grid"] = command.grid
    return Move(
        left=None,
        entered=CommandStatus.QUEUED,
        at=command.created_at,
        name=command.type.value,
        about=about,
    )
