"""What the rules ask of the networks, carried out: calls side by side, and what each one told.

Nothing is decided here. Every effect ends as a happening, or as several.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from remuda.devices.codecs import Codecs
from remuda.devices.codecs.contract import Downlink, UnsupportedCommandError
from remuda.devices.command import Command, Protocol, Purpose
from remuda.devices.correlate import asked, has_unnamed
from remuda.devices.happenings import (
    Accepted,
    CallFailed,
    Effect,
    Happening,
    Look,
    NotLearnt,
    Poll,
    Polled,
    QueueSeen,
    Send,
    Withdraw,
    Withdrawn,
)
from remuda.devices.ledger import opened_all
from remuda.devices.networks.contract import Network, NetworkError, Order, SendError
from remuda.devices.timings import Timings
from remuda.lifecycle import EndReason
from remuda.stores.commands import CommandStore

_log = logging.getLogger("remuda.devices")
_MARGIN = 0.9  # of the time that the store allows a call: it has ended when the rules take it for lost


class Caller:
    """Runs effects as tasks. `tell` is called with each command's id and what happened to it."""

    def __init__(
        self,
        networks: Mapping[Protocol, Network],
        codecs: Codecs,
        timings: Timings,
        *,
        store: CommandStore,
        tell: Callable[[str, Happening], None],
    ) -> None:
        self._networks = networks
        self._codecs = codecs
        self._longest = timings.call.total_seconds() * _MARGIN
        self._store = store
        self._tell = tell
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> int:
        return len(self._tasks)

    def start(self, command: Command, effect: Effect) -> None:
        """Carry out an effect in the background."""
        task = asyncio.create_task(self._run(command, effect))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self, grace: float) -> None:
        """Wait for what runs; what is not done then is given up, and settled by the reaper."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, command: Command, effect: Effect) -> None:
        try:
            happening = await asyncio.wait_for(self._carry_out(command, effect), self._longest)
        except TimeoutError:
            happening = _lost(effect, "timeout", f"no answer within {self._longest:g} s")
        except (SendError, NetworkError) as error:
            happening = _failed(effect, error)
        except UnsupportedCommandError as error:
            happening = _unsupported(effect, str(error))
        except Exception as error:  # noqa: BLE001  # an adapter is a plug-in: what it raises must not stop the engine
            _log.exception("a network adapter failed on command %s", command.id)
            happening = _lost(effect, type(error).__name__, str(error))
        self._tell(command.id, happening)

    async def _carry_out(self, command: Command, effect: Effect) -> Happening:
        network = self._networks.get(command.device.protocol)
        if network is None:
            raise UnsupportedCommandError(f"this engine has no network for {command.device.protocol}")
        match effect:
            case Send():
                external_id = await network.send(self._order(command, effect.attempt))
                return Accepted(attempt=effect.attempt, external_id=external_id)
            case Look():
                return await self._look(network, command)
            case Poll():
                attempt = command.attempts[effect.attempt - 1]
                order = self._order(command, effect.attempt)
                result = await network.poll(order, attempt.external_id or "")
                return Polled(attempt=effect.attempt, result=result)
            case Withdraw():
                attempt = command.attempts[effect.attempt - 1]
                taken = await network.withdraw(command.device, attempt.external_id or "")
                return Withdrawn(attempt=effect.attempt, certain=taken.certain, details=taken.details)

    async def _look(self, network: Network, command: Command) -> QueueSeen:
        items = await network.look(command.device)
        last = command.attempts[-1]
        adoptable = None
        if last.external_id is None:
            # The call's answer was lost. An item with the same bytes that nobody knows is its own.
            data = self._frame(command, last.purpose).data
            adoptable = await self._nobodys(command, [each.id for each in items if each.data == data])
        present = frozenset(each.id for each in items)
        return QueueSeen(present=present, adoptable=adoptable, attempt=last.number)

    async def _nobodys(self, command: Command, names: list[str]) -> str | None:
        """The one of these items that can only be the command's own."""
        if not names:
            return None
        known = await self._store.find(names)
        strange = [each for each in names if each not in known]
        if not command.is_single_use:  # the bytes of a token are its own; others may have the same ones
            device = command.device.key
            others = opened_all((await self._store.hearers([device])).get(device, ()))
            if any(each.id != command.id and has_unnamed(each) for each in others):
                return None
        return strange[0] if strange else None

    def _order(self, command: Command, number: int) -> Order:
        attempt = command.attempts[number - 1]
        own = attempt.purpose is Purpose.SEND
        return Order(
            command_id=command.id,
            attempt=number,
            device=command.device,
            type=asked(command, attempt.purpose),
            data=command.data if own else None,
            phase=command.phase if own else None,
            downlink=self._frame(command, attempt.purpose) if command.is_push else None,
            expires_at=command.expires_at,
        )

    def _frame(self, command: Command, purpose: Purpose) -> Downlink:
        own = purpose is Purpose.SEND
        return self._codecs.get(command.device.type).encode(
            command.device,
            asked(command, purpose),
            data=command.data if own else None,
            phase=command.phase if own else None,
            now=self._store.now(),
        )


def _lost(effect: Effect, code: str, details: str) -> Happening:
    """Whether the call had an effect is not known."""
    if isinstance(effect, Send):
        return CallFailed(attempt=effect.attempt, code=code, details=details)
    if isinstance(effect, Poll):
        return Polled(attempt=effect.attempt, problem=f"{code}: {details}")
    return NotLearnt(code=code)


def _failed(effect: Effect, error: SendError | NetworkError) -> Happening:
    if isinstance(effect, Send) and isinstance(error, SendError):
        return CallFailed(
            attempt=effect.attempt,
            code=error.code,
            details=str(error),
            certain=error.certain,
            final=error.final,
        )
    return _lost(effect, error.code, str(error))


def _unsupported(effect: Effect, details: str) -> Happening:
    if not isinstance(effect, Send):
        return _lost(effect, "unsupported", details)
    return CallFailed(
        attempt=effect.attempt,
        code="unsupported",
        details=details,
        certain=True,
        final=EndReason.UNSUPPORTED_COMMAND,
    )
