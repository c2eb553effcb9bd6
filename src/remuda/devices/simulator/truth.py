"""Whether what the records say is what the meters did."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from remuda.devices.command import Command, Family, Outcome
from remuda.devices.simulator.meter import Deed, Meter
from remuda.devices.simulator.world import World


class Lie(msgspec.Struct, frozen=True, kw_only=True):
    """A command whose record contradicts its meter."""

    command: str
    device: str
    type: str
    said: Outcome | None
    why: str


def lies(world: World, ended: Iterable[Command]) -> list[Lie]:
    """Those of the ended commands whose outcome is not what their meter did. `unknown` is never a lie.

    A token is known by its digits, so that its deeds are its own: it was applied at most once, and if so
    nobody says otherwise. Of the rest it is asked that what is said to have been done was done at the time.
    """
    found = []
    for command in ended:
        meter = world.meters.get(command.device.reference)
        why = None if meter is None else _contradiction(command, meter)
        if why is not None:
            found.append(
                Lie(
                    command=command.id,
                    device=command.device.reference,
                    type=command.type.value,
                    said=command.outcome,
                    why=why,
                )
            )
    return found


def _contradiction(command: Command, meter: Meter) -> str | None:
    if command.family is Family.TOKEN:
        return _about_token(command, meter)
    at_the_time = [
        each
        for each in meter.deeds
        if each.type is command.type and command.created_at <= each.at <= command.status_since
    ]
    if command.outcome is Outcome.EXECUTED and not any(each.accepted for each in at_the_time):
        return "said to be done, and the meter did nothing of the kind"
    if command.outcome is Outcome.REFUSED and all(each.accepted for each in at_the_time):
        return "said to be refused, and the meter refused nothing of the kind"
    return None


def _about_token(command: Command, meter: Meter) -> str | None:
    written = command.data.get("token") if isinstance(command.data, dict) else command.data
    digits = "".join(each for each in str(written) if each.isdigit())
    applied = sum(_applies(each, digits) for each in meter.deeds)
    if applied > 1:
        return f"applied {applied} times"
    if applied and command.outcome in (Outcome.REFUSED, Outcome.NOT_EXECUTED):
        return "applied, and said not to be"
    if not applied and command.outcome is Outcome.EXECUTED:
        return "not applied, and said to be"
    return None


def _applies(deed: Deed, digits: str) -> bool:
    return deed.applied and deed.data == digits
