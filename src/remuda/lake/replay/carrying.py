"""Carrying a plan out: batch by batch at a rate, so that each letter is put back once, whenever it is killed.

Before a batch is given to the store, the letters in it are noted with the exact moments of their deaths and
the end of the trail; afterwards, what became of them. A run that was killed in between leaves the first note
without the second: the next run reads in the trail what the store had done, and does the rest.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from remuda.clock import Clock, SystemClock
from remuda.devices.fleet import Fleet
from remuda.errors import ConfigurationError
from remuda.lake.folder import Folder
from remuda.lake.place import Lake
from remuda.lake.replay.plans import PROGRESS, Plan, folder_of, letters_of
from remuda.lake.replay.targets import EXACTLY, FleetTarget, Outcome, QueueTarget, Target
from remuda.lifecycle import CommandStatus, State
from remuda.stores import open_store
from remuda.stores.command_trail import fleet_of
from remuda.transition import Transition

if TYPE_CHECKING:
    import pyarrow as pa

    from remuda.stores.contract import Store

BATCH = 500
_TRAIL_PAGE = 5_000
_BACK = {(State.FAILED, State.PENDING), (CommandStatus.DELIVERY_FAILED, CommandStatus.QUEUED)}


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """What was about to be done: the letters of a batch that were there, and where the trail ended.

    `others` are those of the batch that were not there any more; `end` is the position after it.
    """

    queue: str
    there: dict[str, datetime]
    others: dict[str, Outcome]
    end: int
    trail: int


class Progress(msgspec.Struct, kw_only=True):
    """How far a plan was carried out. Letters that were not replayed are named, under what became of them."""

    position: int = 0
    replayed: int = 0
    left_alone: dict[Outcome, list[str]] = {}
    intent: Intent | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """How far a plan was carried out. `left_alone` names the letters that were not replayed, by outcome."""

    plan: str
    letters: int
    done: int
    replayed: int
    still_live: int
    died_again: int
    gone: int
    refused: int
    left_alone: dict[str, list[str]] = {}

    @property
    def left(self) -> int:
        """Letters that have not been looked at yet."""
        return self.letters - self.done


def report_of(lake: Lake, plan: Plan) -> Report:
    """How far a plan was carried out up to now."""
    return _report(plan, _load(folder_of(lake, plan.id)))


async def carry_out(
    lake: Lake,
    plan: Plan,
    url: str,
    *,
    rate: float | None = None,
    batch: int = BATCH,
    limit: int | None = None,
    clock: Clock | None = None,
    on_progress: Callable[[Report], None] = lambda _: None,
    on_step: Callable[[str], None] = lambda _: None,
) -> Report:
    """Replay what a plan names on its store, oldest first in each queue, at most `rate` letters a second.

    Goes on where an earlier run stopped, killed or not; `limit` ends this run after so many replays. Two runs
    at once put no letter back twice either, only their reports may count it differently.
    """
    if rate is not None and rate <= 0:
        raise ConfigurationError(f"the rate of a replay is above nought, not {rate}")
    if batch < 1:
        raise ConfigurationError(f"a batch holds 1 letter or more, not {batch}")
    if rate is not None:
        batch = max(1, min(batch, int(rate)))
    run = _Run(folder_of(lake, plan.id), plan, url, clock, on_step)
    pace = _Pace(rate, clock or SystemClock())
    async with run:
        async for report in run.batches(batch, limit, pace):
            on_progress(report)
    return run.report()


class _Pace:
    """So many turns a second, evenly."""

    def __init__(self, rate: float | None, clock: Clock) -> None:
        self._each = timedelta(0) if rate is None else timedelta(seconds=1 / rate)
        self._clock = clock
        self._next = clock.now()

    async def wait(self, turns: int) -> None:
        """Return when it is time for that many."""
        now = self._clock.now()
        if self._next > now:
            await self._clock.sleep(self._next - now)
        self._next = max(self._next, now) + turns * self._each


class _Run:
    """One run of a plan, from where the last one stopped."""

    def __init__(
        self, folder: Folder, plan: Plan, url: str, clock: Clock | None, on_step: Callable[[str], None]
    ) -> None:
        self._folder, self._plan, self._url, self._clock = folder, plan, url, clock
        self._on_step = on_step
        self._progress = _load(folder)
        self._letters: pa.Table = letters_of(folder)
        self._stack = AsyncExitStack()
        self._fleets: dict[str, Fleet] = {}

    async def __aenter__(self) -> _Run:
        self._store: Store = await self._stack.enter_async_context(open_store(self._url, clock=self._clock))
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self._stack.aclose()

    def report(self) -> Report:
        return _report(self._plan, self._progress)

    async def batches(self, size: int, limit: int | None, pace: _Pace) -> AsyncIterator[Report]:
        """Batch after batch; the report after each."""
        if self._progress.intent is not None:
            await self._settle(self._progress.intent)
            yield self.report()
        until = None if limit is None else self._progress.replayed + limit
        while self._progress.position < self._plan.letters:
            room = size if until is None else min(size, until - self._progress.replayed)
            if room <= 0:
                return
            await self._carry(self._next(room), pace)
            yield self.report()

    def _next(self, count: int) -> list[dict[str, Any]]:
        """The next letters, all of one queue."""
        columns = ["queue", "message", "died_at"]
        rows: list[dict[str, Any]]
        rows = self._letters.slice(self._progress.position, count).select(columns).to_pylist()
        return [row for row in rows if row["queue"] == rows[0]["queue"]]

    async def _carry(self, rows: list[dict[str, Any]], pace: _Pace) -> None:
        queue = rows[0]["queue"]
        target = await self._target(queue)
        looked = await target.look({row["message"]: row["died_at"] for row in rows})
        await pace.wait(len(looked.there))
        span = await self._store.trail_span(queue)
        self._on_step("looked")
        end = self._progress.position + len(rows)
        intent = Intent(queue=queue, there=looked.there, others=looked.others, end=end, trail=span.last)
        self._progress.intent = intent
        self._save()
        self._on_step("noted")
        became = await target.replay(intent.there) if intent.there else {}
        self._on_step("replayed")
        self._finish(intent, became)

    async def _settle(self, intent: Intent) -> None:
        """Finish a batch of a run that was killed: what the store had done of it stands in the trail."""
        target = await self._target(intent.queue)
        moved = await self._moved(intent)
        became = dict.fromkeys(moved, Outcome.REPLAYED)
        rest = {each: at for each, at in intent.there.items() if each not in moved}
        if rest:
            looked = await target.look(rest, within=EXACTLY)
            became |= looked.others
            became |= await target.replay(looked.there) if looked.there else {}
        self._on_step("settled")
        self._finish(intent, became)

    async def _moved(self, intent: Intent) -> set[str]:
        """Letters of a batch that this plan has put back since, as the trail tells."""
        queue, after = intent.queue, intent.trail
        last = (await self._store.trail_span(queue)).last
        moved: set[str] = set()
        while after < last:
            page = await self._store.transitions(queue, after=after, limit=_TRAIL_PAGE)
            if not page.transitions:
                break
            moved |= {each.message for each in page.transitions if self._put_back(each)}
            after = page.next_offset
        return moved & intent.there.keys()

    def _put_back(self, transition: Transition) -> bool:
        return transition.who == self._plan.who and (transition.left, transition.entered) in _BACK

    def _finish(self, intent: Intent, became: dict[str, Outcome]) -> None:
        progress = self._progress
        for message, outcome in (intent.others | became).items():
            if outcome is Outcome.REPLAYED:
                progress.replayed += 1
            else:
                progress.left_alone.setdefault(outcome, []).append(message)
        progress.position, progress.intent = intent.end, None
        self._save()
        self._on_step("done")

    def _save(self) -> None:
        self._folder.save(PROGRESS, self._progress)

    async def _target(self, queue: str) -> Target:
        name = fleet_of(queue)
        if name is None:
            return QueueTarget(self._store, queue, self._plan.who)
        if name not in self._fleets:
            fleet = Fleet(self._url, name=name, who=self._plan.who, clock=self._clock)
            self._fleets[name] = await self._stack.enter_async_context(fleet)
        return FleetTarget(self._fleets[name])


def _load(folder: Folder) -> Progress:
    return folder.load(PROGRESS, Progress) if folder.has(PROGRESS) else Progress()


def _report(plan: Plan, progress: Progress) -> Report:
    counts = {each.value: len(progress.left_alone.get(each, [])) for each in Outcome}
    return Report(
        plan=plan.id,
        letters=plan.letters,
        done=progress.position,
        replayed=progress.replayed,
        still_live=counts[Outcome.STILL_LIVE],
        died_again=counts[Outcome.DIED_AGAIN],
        gone=counts[Outcome.GONE],
        refused=counts[Outcome.REFUSED],
        left_alone={each.value: ids for each, ids in progress.left_alone.items()},
    )
