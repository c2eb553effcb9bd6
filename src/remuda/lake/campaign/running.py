"""Campaigns at work: begun, advanced step by step, paused, aborted; their state lies beside the tables.

`advance` is the unit, and may be called by any program at any time. A command's id is made from the campaign
and the device, and a fleet adds an id once: killed at any moment, or run by two programs at once, a campaign
sends no device its command twice and leaves none out. What an operator asks for (pause, resume, abort) lies
in a file of its own, which a campaign at work only reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from remuda.devices.codecs import Codecs, default_codecs
from remuda.devices.command import Command, Family, Outcome
from remuda.devices.fleet import Fleet
from remuda.devices.happenings import CancelAsked
from remuda.devices.sending import NewCommand
from remuda.errors import ConfigurationError
from remuda.lake.campaign.devices import (
    Rows,
    Target,
    as_parquet,
    checked,
    from_parquet,
    id_prefix,
    targets_of,
)
from remuda.lake.campaign.spec import Campaign, CampaignState, Counts, Status, wave_ends
from remuda.lake.campaign.steps import Standing, StepKind, next_step, wave_of
from remuda.lake.folder import Folder
from remuda.lake.place import Lake
from remuda.lifecycle import EndReason

if TYPE_CHECKING:
    import pyarrow as pa

_CAMPAIGN = "campaign.json"
_DEVICES = "devices.parquet"
_PROGRESS = "progress.json"
_WANTED = "wanted.json"
_LOOKED_AT = 5_000  # commands under way whose status is asked for in one step
_TOGETHER = 500
_UNDER_WAY = ""
_CALLED_OFF = (EndReason.CANCELLED.value, EndReason.SUPERSEDED.value)
_FORGOTTEN = "forgotten"  # the store kept it no longer when it was asked


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign as it was begun."""

    campaign: Campaign
    begun_at: datetime
    devices: int
    waves: list[int]

    @property
    def name(self) -> str:
        return self.campaign.name


class Progress(msgspec.Struct, kw_only=True):
    """How far a campaign has come.

    sent      devices that have their command, in the order of the rows
    sending   up to which device a step was about to send; more than `sent`: it was interrupted
    ends      for each of those sent, as far as is known, what became of it; empty while under way
    answered  commands of others that answer for one of ours, by the place of its device
    """

    sent: int = 0
    sending: int = 0
    ends: list[str] = []
    answered: dict[int, str] = {}
    looked: int = 0
    full_at: datetime | None = None
    aborted: str | None = None
    cancelled: bool = False


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator wants of a campaign."""

    state: CampaignState
    at: datetime
    why: str = ""


# -- beginning and operating


def start(
    lake: Lake, campaign: Campaign, rows: Rows, *, now: datetime, codecs: Codecs | None = None
) -> Begun:
    """Check everything and keep it; nothing is sent before `advance`. `CampaignError` names every bad row."""
    campaign.check()
    folder = _folder(lake, campaign.name)
    if folder.has(_CAMPAIGN):
        raise ConfigurationError(
            f"there is a campaign {campaign.name!r} already: resume that one, or choose another name"
        )
    targets = checked(campaign, rows, codecs=codecs or default_codecs(), now=now)
    begun = Begun(
        campaign=campaign,
        begun_at=now,
        devices=len(targets),
        waves=wave_ends(campaign.waves, len(targets)),
    )
    folder.write(_DEVICES, as_parquet(targets))
    folder.save(_PROGRESS, Progress())
    folder.save(_CAMPAIGN, begun)  # last: without it nothing was begun
    return begun


def load_campaign(lake: Lake, name: str) -> Begun:
    """A campaign that was begun."""
    try:
        return _folder(lake, name).load(_CAMPAIGN, Begun)
    except FileNotFoundError:
        known = ", ".join(each.name for each in list_campaigns(lake)) or "none"
        raise ConfigurationError(
            f"there is no campaign {name!r} in {lake.root.uri}; there are: {known}"
        ) from None


def list_campaigns(lake: Lake) -> list[Begun]:
    """All campaigns, newest first."""
    names = Folder(lake.root.below("campaigns")).names()
    kept = [load_campaign(lake, name) for name in names if _folder(lake, name).has(_CAMPAIGN)]
    return sorted(kept, key=lambda begun: begun.begun_at, reverse=True)


def pause(lake: Lake, name: str, *, now: datetime, why: str = "") -> None:
    """Send nothing more until it is resumed. What was sent goes its way."""
    _want(lake, name, CampaignState.PAUSED, now, why)


def resume(lake: Lake, name: str, *, now: datetime) -> None:
    """End a pause. A campaign that was aborted stays so: begin another one for the devices that are left."""
    if status(lake, name).state is CampaignState.ABORTED:
        raise ConfigurationError(f"the campaign {name!r} was aborted: begin another one for what is left")
    _want(lake, name, CampaignState.RUNNING, now, "")


def abort(lake: Lake, name: str, *, now: datetime, why: str = "") -> None:
    """Send nothing more, and cancel what has not reached its device yet (with the next `advance`)."""
    _want(lake, name, CampaignState.ABORTED, now, why)


def status(lake: Lake, name: str) -> Status:
    """How a campaign stood when it was last advanced, and what is wanted of it now."""
    begun, folder = load_campaign(lake, name), _folder(lake, name)
    return _status(begun, folder.load(_PROGRESS, Progress), _wanted(folder), why="", sent_now=0, until=None)


async def advance(
    lake: Lake,
    name: str,
    fleet: Fleet,
    *,
    now: datetime,
    on_step: Callable[[str], None] = lambda _: None,
) -> Status:
    """One step: learn what became of commands, decide, and send or cancel. Call it until it `is_over`."""
    return await _Advance(lake, load_campaign(lake, name), fleet, now, on_step).run()


# -- one step


class _Advance:
    def __init__(
        self, lake: Lake, begun: Begun, fleet: Fleet, now: datetime, on_step: Callable[[str], None]
    ) -> None:
        if begun.campaign.fleet != fleet.store.fleet:
            raise ConfigurationError(
                f"the campaign {begun.name!r} is for the fleet {begun.campaign.fleet!r}, "
                f"not {fleet.store.fleet!r}"
            )
        self._begun, self._campaign, self._fleet, self._now = begun, begun.campaign, fleet, now
        self._folder = _folder(lake, begun.name)
        self._progress = self._folder.load(_PROGRESS, Progress)
        self._saved = msgspec.json.encode(self._progress)
        self._wanted = _wanted(self._folder)
        self._table: pa.Table = from_parquet(self._folder.read(_DEVICES))
        self._identities: list[str] = self._table.column("identity").to_pylist()
        self._prefix = id_prefix(begun.begun_at)
        self._on_step = on_step

    async def run(self) -> Status:
        await self._learn()
        self._on_step("learnt")
        progress = self._progress
        state = _state(self._begun, progress, self._wanted)
        standing = Standing(state=state, waves=self._begun.waves, full_at=progress.full_at)
        step = next_step(self._campaign, standing, _counts(self._begun, progress), self._now)
        sent_now = 0
        if step.kind is StepKind.ABORT:
            await self._abort(step.why)
        elif step.kind is StepKind.SEND:
            progress.full_at = step.full_at
            sent_now = await self._send(step.send)
        self._save()
        return _status(self._begun, progress, self._wanted, why=step.why, sent_now=sent_now, until=step.until)

    def _save(self) -> None:
        content = msgspec.json.encode(self._progress)
        if content != self._saved:
            self._folder.write(_PROGRESS, content)
            self._saved = content

    async def _learn(self) -> None:
        """Ask what became of commands that were under way; in turns, where there are very many."""
        progress = self._progress
        open_ = [place for place, end in enumerate(progress.ends) if end == _UNDER_WAY]
        first = next((at for at, place in enumerate(open_) if place >= progress.looked), 0)
        asked = [*open_[first:], *open_[:first]][:_LOOKED_AT]
        for start_at in range(0, len(asked), _TOGETHER):
            places = asked[start_at : start_at + _TOGETHER]
            ids = self._ids(places)
            found = await self._fleet.ledger.load(list(ids.values()))
            for place in places:
                progress.ends[place] = _end_of(found.get(ids[place]))
        progress.looked = asked[-1] + 1 if asked else 0

    def _ids(self, places: Sequence[int]) -> dict[int, str]:
        """The command of each device: its own, or the one that answers for it."""
        own = {place: self._prefix + self._identities[place] for place in places}
        return own | {place: each for place, each in self._progress.answered.items() if place in own}

    async def _send(self, count: int) -> int:
        progress = self._progress
        interrupted = progress.sending - progress.sent
        progress.sending = max(progress.sending, progress.sent + count)
        self._save()
        self._on_step("noted")
        count = progress.sending - progress.sent
        targets = targets_of(self._campaign, self._table, progress.sent, count)
        joined = await self._joined_before(targets[: max(0, interrupted)])
        commands = [self._command(target) for target in targets if target.identity not in joined]
        answers = await self._fleet.send_many(commands)
        self._on_step("sent")
        others = joined | {
            command.id[len(self._prefix) :]: sent.id
            for command, sent in zip(commands, answers, strict=True)
            if command.id is not None and sent.id != command.id
        }
        for place, target in enumerate(targets, progress.sent):
            if target.identity in others:
                progress.answered[place] = others[target.identity]
        progress.sent = progress.sending
        progress.ends += [_UNDER_WAY] * count
        return count

    async def _joined_before(self, targets: Sequence[Target]) -> dict[str, str]:
        """Of a step that was interrupted: who answers for commands that were joined to another's.

        That one may have ended meanwhile; sent once more, ours would be carried out beside it.
        """
        there = await self._fleet.ledger.load([self._prefix + each.identity for each in targets])
        joined: dict[str, str] = {}
        for target in targets:
            if self._prefix + target.identity not in there:
                ids = await self._fleet.store.named(self._correlation(target))
                joined |= dict.fromkeys([target.identity], ids[0]) if ids else {}
        return joined

    def _command(self, target: Target) -> NewCommand:
        return msgspec.structs.replace(
            target.command, id=self._prefix + target.identity, correlation_id=self._correlation(target)
        )

    def _correlation(self, target: Target) -> str:
        return f"{self._begun.name}:{target.identity}"

    async def _abort(self, why: str) -> None:
        """Cancel what is under way, but not the commands of others."""
        progress, wanted = self._progress, self._wanted
        if progress.aborted is None:
            by_operator = wanted is not None and wanted.state is CampaignState.ABORTED
            progress.aborted = _why(wanted) if by_operator else why
            self._save()
            self._on_step("aborted")
        if progress.cancelled:
            return
        await self._count_interrupted()
        own = [
            place
            for place, end in enumerate(progress.ends)
            if end == _UNDER_WAY and place not in progress.answered
        ]
        for start_at in range(0, len(own), _TOGETHER):
            ids = self._ids(own[start_at : start_at + _TOGETHER])
            await self._fleet.ledger.happen({each: [CancelAsked()] for each in ids.values()})
        self._on_step("cancelled")
        progress.cancelled = True
        await self._learn()

    async def _count_interrupted(self) -> None:
        """Of a step that was interrupted and is not taken up again: what it has sent, and what not."""
        progress = self._progress
        places = range(progress.sent, progress.sending)
        ids = self._ids(places)
        there = await self._fleet.ledger.load(list(ids.values()))
        progress.ends += (_UNDER_WAY if ids[place] in there else _CALLED_OFF[0] for place in places)
        progress.sent = max(progress.sent, progress.sending)


# -- how it stands


def _folder(lake: Lake, name: str) -> Folder:
    if not name or name.startswith(".") or "/" in name:
        raise ConfigurationError(f"not the name of a campaign: {name!r}")
    return Folder(lake.root.below("campaigns").below(name))


def _wanted(folder: Folder) -> Wanted | None:
    return folder.load(_WANTED, Wanted) if folder.has(_WANTED) else None


def _why(wanted: Wanted | None) -> str:
    return (wanted.why if wanted is not None else "") or "by an operator"


def _want(lake: Lake, name: str, state: CampaignState, now: datetime, why: str) -> None:
    load_campaign(lake, name)
    _folder(lake, name).save(_WANTED, Wanted(state=state, at=now, why=why))


def _state(begun: Begun, progress: Progress, wanted: Wanted | None) -> CampaignState:
    if progress.aborted is not None:
        return CampaignState.ABORTED
    if wanted is not None and wanted.state is CampaignState.ABORTED:
        return CampaignState.ABORTED
    if progress.sent == begun.devices:
        return CampaignState.FINISHED
    return CampaignState.RUNNING if wanted is None else wanted.state


def _end_of(command: Command | None) -> str:
    """What became of a command, in a word: an outcome, a reason of its failure, or nothing yet."""
    if command is None:
        return _FORGOTTEN
    if not command.has_ended:
        return _UNDER_WAY
    in_doubt = command.outcome is Outcome.UNKNOWN and command.family is not Family.READ
    if in_doubt and command.reason not in _CALLED_OFF:
        return Outcome.UNKNOWN.value
    if command.reason is not None:
        return command.reason.value
    return str(command.outcome or Outcome.UNKNOWN)


def _counts(begun: Begun, progress: Progress) -> Counts:
    ends = Counter(progress.ends)
    executed, refused = ends.pop(Outcome.EXECUTED, 0), ends.pop(Outcome.REFUSED, 0)
    unknown = ends.pop(Outcome.UNKNOWN, 0) + ends.pop(_FORGOTTEN, 0)
    under_way = ends.pop(_UNDER_WAY, 0)
    called_off = sum(ends.pop(each, 0) for each in _CALLED_OFF)
    return Counts(
        total=begun.devices,
        sent=progress.sent,
        under_way=under_way,
        executed=executed,
        refused=refused,
        unknown=unknown,
        called_off=called_off,
        failed=dict(ends),
    )


def _status(
    begun: Begun,
    progress: Progress,
    wanted: Wanted | None,
    *,
    why: str,
    sent_now: int,
    until: datetime | None,
) -> Status:
    state = _state(begun, progress, wanted)
    if state is CampaignState.ABORTED:
        why = progress.aborted or _why(wanted)
    elif state is CampaignState.PAUSED and wanted is not None:
        why = wanted.why or why
    return Status(
        name=begun.name,
        state=state,
        why=why,
        wave=wave_of(begun.waves, progress.sent) + 1,
        waves=begun.waves,
        counts=_counts(begun, progress),
        sent_now=sent_now,
        next_at=until,
    )
