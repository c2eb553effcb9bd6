"""Fleet: what a program sends its commands through, and looks after them with."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import datetime
from types import TracebackType
from typing import Self

import msgspec

from remuda.clock import Clock
from remuda.devices.codecs import Codecs, default_codecs
from remuda.devices.command import Command, Merge, Outcome
from remuda.devices.happenings import (
    CancelAsked,
    JoinedBy,
    KeyGivenUp,
    ReplayAsked,
    Superseded,
)
from remuda.devices.ledger import Addition, Ledger, Page, by_age, opened, opened_all
from remuda.devices.sending import NewCommand, make_command, merge_of
from remuda.devices.timings import Timings
from remuda.errors import StoreUnavailableError
from remuda.identity import make_identity
from remuda.ids import IdMaker
from remuda.lifecycle import CommandStatus, EndReason
from remuda.stores.commands import CommandStats, CommandStore, LaneStats
from remuda.stores.opening_commands import open_commands
from remuda.transition import Transition, to_ms

_TOGETHER = 500  # commands that are added in one step
_TRIES = 20
_WAITING = (CommandStatus.QUEUED, CommandStatus.TO_RETRY)


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a command that was to be sent.

    is_new      False: one that waited, or that has its id, answers for it, and `id` is that one's
    superseded  commands that it made redundant
    """

    id: str
    is_new: bool = True
    superseded: tuple[str, ...] = ()


class Cancellation(msgspec.Struct, frozen=True, kw_only=True):
    """What a cancellation could still do.

    has_ended  False: it is on its way; no further attempt is made, and it ends with the one under way
    outcome    what the device did as far as is certain; `unknown` where it may have been carried out
    """

    id: str
    status: CommandStatus
    has_ended: bool
    outcome: Outcome | None
    words: str


class Fleet:
    """The commands of a fleet of devices, on a store that a URL names.

    >>> async with Fleet("sqlite:///fleet.db") as fleet:
    ...     sent = await fleet.send(NewCommand(type=CommandType.READ_CREDIT, device=meter, grid="lagos-7"))
    """

    def __init__(
        self,
        store: str | CommandStore,
        *,
        name: str = "devices",
        codecs: Codecs | None = None,
        timings: Timings | None = None,
        lanes_by_gateway: bool = False,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        who: str | None = None,
    ) -> None:
        self.store = open_commands(store, fleet=name, clock=clock) if isinstance(store, str) else store
        self.codecs = codecs or default_codecs()
        self.timings = timings or Timings()
        self.lanes_by_gateway = lanes_by_gateway
        self.who = who or make_identity("sender")
        self.ledger = Ledger(self.store, timings=self.timings, rng=rng or random.Random(), who=self.who)
        self._ids = IdMaker()

    async def __aenter__(self) -> Self:
        await self.store.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self.store.close()

    # -- sending

    async def send(self, new: NewCommand) -> Sent:
        """Send one command. Returns when it is durable."""
        return (await self.send_many([new]))[0]

    async def send_many(self, new: Sequence[NewCommand]) -> list[Sent]:
        """Send many, in order, 500 in each atomic step; all are checked before any is written.

        A command whose own id there is already, live or ended, is not added.
        """
        await self.store.open()
        now = self.store.now()
        ids = self._ids.make(len(new), to_ms(now))
        commands = [
            make_command(
                each,
                command_id=fresh_id if each.id is None else each.id,
                now=now,
                codecs=self.codecs,
                by_gateway=self.lanes_by_gateway,
            )
            for each, fresh_id in zip(new, ids, strict=True)
        ]
        own_ids = {each.id for each in new if each.id is not None}
        answers: dict[str, str] = {}
        sent: list[Sent] = []
        for start in range(0, len(commands), _TOGETHER):
            together = commands[start : start + _TOGETHER]
            sent += await self._send_together(together, own_ids, answers)
            pairs = zip(together, sent[start:], strict=True)
            answers |= {each.id: one.id for each, one in pairs if each.id in own_ids}
        return sent

    async def _send_together(
        self, commands: Sequence[Command], own_ids: set[str], answers: dict[str, str]
    ) -> list[Sent]:
        """Add commands in one step. `answers` says which command stands for an id that was sent before."""
        keys = list({each.key for each in commands if each.key is not None})
        own = list({each.id for each in commands if each.id in own_ids})
        before = {each: answers[each] for each in own if each in answers}
        for _ in range(_TRIES):
            owners = {}
            if keys:
                owners = {key: opened(each) for key, each in (await self.store.owners(keys)).items()}
            # After the owners: one of these ids that has been added since is then not met as an owner.
            there = await self.store.load(own) if own else {}
            batch = _Merging(self.ledger, owners, {each: each for each in there} | before)
            sent = [batch.take(each) for each in commands]
            if await self.ledger.add(batch.added(), batch.others):
                return sent
        raise StoreUnavailableError(f"{len(commands)} commands were not added: others were quicker each time")

    # -- looking

    async def get(self, command_id: str) -> Command | None:
        """Everything that is known of a command."""
        return (await self.ledger.load([command_id])).get(command_id)

    async def find(self, name: str) -> list[Command]:
        """Commands by their id, an attempt's external id, or a caller's correlation id; oldest first."""
        ids = await self.store.named(name)
        found = await self.ledger.load(ids)
        return sorted(found.values(), key=by_age)

    async def commands(
        self,
        *,
        status: CommandStatus | None = None,
        lane: str | None = None,
        device: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[Command]:
        """Commands, newest first (by id); the next page are those `before` the last one's id."""
        found = await self.store.commands(status=status, lane=lane, device=device, before=before, limit=limit)
        return opened_all(found)

    async def story(self, command: Command) -> list[Transition]:
        """Every state change of a command, as far back as the trail goes."""
        after = await self.store.trail_offset(since=command.created_at)
        story: list[Transition] = []
        while True:
            page = await self.store.transitions(after=after, limit=5_000)
            story += (each for each in page.transitions if each.message == command.id)
            if not page.transitions or (command.has_ended and story and story[-1].entered is command.status):
                return story
            after = page.next_offset

    async def lanes(self) -> list[LaneStats]:
        """The lanes in which something waits, or that are held."""
        return await self.store.lanes()

    async def stats(self) -> CommandStats:
        """The fleet in numbers."""
        return await self.store.stats()

    # -- operating

    async def cancel(self, command_id: str) -> Cancellation | None:
        """Stop a command, and say what may already have happened; None when there is no such command."""
        await self.ledger.happen({command_id: [CancelAsked()]})
        command = await self.get(command_id)
        return None if command is None else _cancellation(command)

    async def replay(
        self, command_id: str, *, not_applied: bool = False, expires_at: datetime | None = None
    ) -> bool:
        """Begin a failed command anew, with a fresh budget; False when it did not fail, or must not.

        A token that may have been applied is not sent again unless a read can tell, or the caller has made
        sure (`not_applied`). A switch, a setting or a token is not replayed while another one stands in its
        place (`successor`): the newer one would be undone.
        """
        command = await self.get(command_id)
        if command is None:
            return False
        newer = await self.successor(command)
        if newer is not None and (merge_of(command.type) is Merge.SUPERSEDE or command.is_single_use):
            return False
        happening = ReplayAsked(not_applied=not_applied, expires_at=expires_at, with_key=newer is None)
        upshots = await self.ledger.happen({command_id: [happening]})
        return any(each.command.status is CommandStatus.QUEUED for each in upshots)

    async def successor(self, command: Command) -> str | None:
        """The id of another command of the same key that has not ended, if there is one."""
        if command.key is None:
            return None
        owner = (await self.store.owners([command.key])).get(command.key)
        return None if owner is None or owner.id == command.id else owner.id

    async def hold_lane(self, lane: str, *, until: datetime | None = None, why: str = "held") -> None:
        """Send nothing from a lane until a moment, or until it is released."""
        await self.store.hold_lane(lane, until=until, why=why)

    async def release_lane(self, lane: str) -> None:
        """End a hold."""
        await self.store.release_lane(lane)


class _Merging:
    """New commands on their way into the store, and what they do to those that wait there."""

    def __init__(self, ledger: Ledger, owners: dict[str, Command], answers: dict[str, str]) -> None:
        self._owners = owners
        self._answers = answers  # by id: the command that stands for it
        self._new: dict[str, Addition] = {}
        self._by_key: dict[str, str] = {}
        self._ledger = ledger
        self.others: Page = ledger.page(owners.values())

    def added(self) -> list[Addition]:
        return list(self._new.values())

    def take(self, command: Command) -> Sent:
        """What becomes of one new command."""
        answer = self._answers.get(command.id)
        if answer is not None:
            return Sent(id=answer, is_new=False)
        sent = self._merge(command)
        self._answers[command.id] = sent.id
        return sent

    def _merge(self, command: Command) -> Sent:
        key = command.key
        twin = None if key is None else self._by_key.get(key)
        owner = None if key is None else self._owners.get(key)
        if key is None or (twin is None and owner is None):
            return self._add(command)
        if twin is not None:
            return self._meet_twin(command, twin)
        if owner is None:
            return self._add(command)
        if merge_of(command.type) is Merge.SUPERSEDE:
            self.others.apply(owner.id, Superseded(by=command.id))
            sent = self._add(command)
            return Sent(id=sent.id, superseded=(owner.id,))
        if owner.is_single_use or owner.status in _WAITING:
            self.others.apply(owner.id, _joining(command))
            return Sent(id=owner.id, is_new=False)
        self.others.apply(owner.id, KeyGivenUp())
        return self._add(command)

    def _add(self, command: Command) -> Sent:
        self._new[command.id] = Addition(command)
        if command.key is not None:
            self._by_key[command.key] = command.id
        return Sent(id=command.id)

    def _meet_twin(self, command: Command, twin: str) -> Sent:
        """Another of the same key stands in the same batch: the later one joins it, or takes its place."""
        if merge_of(command.type) is Merge.JOIN:
            self._new[twin] = self._ledger.addition(self._new[twin].command, _joining(command))
            return Sent(id=twin, is_new=False)
        self._new[twin] = self._ledger.addition(self._new[twin].command, Superseded(by=command.id))
        self._add(command)
        return Sent(id=command.id, superseded=(twin,))


def _joining(command: Command) -> JoinedBy:
    return JoinedBy(
        correlation_id=command.correlation_id, priority=command.priority, expires_at=command.expires_at
    )


_CANCELLED_WORDS = {
    Outcome.NOT_EXECUTED: "cancelled; the device never got it",
    Outcome.UNKNOWN: "cancelled; the device may have got it, and may have carried it out",
}


def _cancellation(command: Command) -> Cancellation:
    if not command.has_ended:
        words = "on its way already: no further attempt is made, and what becomes of this one is waited for"
    elif command.reason is EndReason.CANCELLED and command.outcome is not None:
        words = _CANCELLED_WORDS.get(command.outcome, "cancelled")
    else:
        words = f"not cancelled: it had ended before as {command.status}"
    return Cancellation(
        id=command.id,
        status=command.status,
        has_ended=command.has_ended,
        outcome=command.outcome,
        words=words,
    )
